"""A model from a Hugging Face folder: config.json and safetensors."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from course.engine.loading.model_file import DamagedModelFile, ModelNotFound, UnsupportedModel
from course.engine.loading.tokenizer import Tokenizer
from course.engine.loading.tokenizer_hf import open_tokenizer, read_json
from course.engine.loading.weights import CheckpointWeights, check_layers
from course.engine.model_config import ModelConfig, default_head_dim

_NAMES = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight",
          "lm_head": "lm_head.weight"}  # fmt: skip
_LAYER_NAMES = {"attention_norm": "input_layernorm", "q": "self_attn.q_proj",
                "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
                "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj",
                "up": "mlp.up_proj", "down": "mlp.down_proj"}  # fmt: skip
_FAMILIES = ("llama", "mistral", "qwen2")


def open_folder(path: Path) -> tuple[ModelConfig, CheckpointWeights, Tokenizer]:
    """Read the configuration; the weights are read when the model asks for them."""
    settings = read_json(path / "config.json")
    config = _config(path, settings)
    homes = _tensor_homes(path)
    check_layers(path, config.num_layers, homes)
    names = checkpoint_names(config.num_layers)
    # Old files store the RoPE rates, and some a copy of tied embeddings: neither is needed.
    ignored = ["lm_head.weight"] if config.tied_embeddings else []
    present = [n for n in homes if n not in ignored and not n.endswith("rotary_emb.inv_freq")]
    weights = CheckpointWeights(path, config, names, present, lambda n: homes[n].get_tensor(n))
    return config, weights, open_tokenizer(path, settings)


def checkpoint_names(num_layers: int) -> dict[str, str]:
    """What such folders call each weight, by the engine's own short name."""
    names = dict(_NAMES)
    for i in range(num_layers):
        for ours, theirs in _LAYER_NAMES.items():
            names[f"{i}.{ours}"] = f"model.layers.{i}.{theirs}.weight"
            names[f"{i}.{ours}_bias"] = f"model.layers.{i}.{theirs}.bias"
    return names


def _config(path: Path, settings: dict[str, Any]) -> ModelConfig:
    family = settings.get("model_type")
    # transformers 5 moved what it calls rope_theta and rope_scaling into rope_parameters.
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    unsupported = {
        "model_type": family not in _FAMILIES,
        "quantization_config": settings.get("quantization_config") is not None,
        "hidden_act": settings.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(settings.get("attention_bias")),  # has one on o_proj, too
        "mlp_bias": bool(settings.get("mlp_bias")),
        "partial_rotary_factor": settings.get("partial_rotary_factor", 1) != 1,
        "use_sliding_window": bool(settings.get("use_sliding_window")),  # some layers only
    }
    unsupported["rope_parameters" if "rope_parameters" in settings else "rope_scaling"] = (
        not isinstance(rope, dict)
        or rope.get("rope_type", rope.get("type", "default")) != "default"
    )
    for key, is_so in unsupported.items():
        if is_so:
            raise UnsupportedModel(
                f"{path}: {key} is {settings.get(key)!r}, which this engine does not compute "
                f"(it computes {', '.join(_FAMILIES)} models without scaled RoPE)"
            )

    def get(key: str, default=None):
        value = settings.get(key)
        value = default if value is None else value
        if value is None:
            raise DamagedModelFile(f"{path / 'config.json'} lacks {key}")
        return value

    num_heads, hidden_size = get("num_attention_heads"), get("hidden_size")
    return ModelConfig(
        name=settings.get("_name_or_path") or path.resolve().name,
        hidden_size=hidden_size,
        intermediate_size=get("intermediate_size"),
        num_layers=get("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=get("num_key_value_heads", num_heads),
        head_dim=get("head_dim", default_head_dim(hidden_size, num_heads)),
        vocab_size=get("vocab_size"),
        max_model_len=get("max_position_embeddings", 2048),
        rope_theta=get("rope_theta", rope.get("rope_theta", 10_000.0)),
        rms_norm_eps=get("rms_norm_eps", 1e-6),
        tied_embeddings=bool(settings.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        sliding_window=settings.get("sliding_window") if family == "mistral" else None,
    )


def _tensor_homes(path: Path) -> dict[str, Any]:
    """Tensor name -> the open file that holds it: one model.safetensors, or an index of shards."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        file = _open(single)
        return dict.fromkeys(file.keys(), file)
    if not index.exists():
        raise ModelNotFound(
            f"{path} has neither {single.name} nor {index.name}; pickled weights "
            "(pytorch_model.bin) can run code when they are read, so they are not"
        )
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard for shard in shard_of.values()
    ):
        raise DamagedModelFile(f"{index} has no weight_map of file names beside it")
    shards = {shard: _open(path / shard) for shard in set(shard_of.values())}
    for name, shard in shard_of.items():
        if name not in shards[shard].keys():  # noqa: SIM118 (not a dict)
            raise DamagedModelFile(f"{path / shard} lacks {name}, which its index promises")
    return {name: shards[shard] for name, shard in shard_of.items()}


def _open(path: Path):
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise DamagedModelFile(f"{path} is missing. Get the model again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedModelFile(
            f"{path} is no whole safetensors file: {error}. Get the file again"
        ) from None
