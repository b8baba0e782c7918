"""A model and its tokenizer from one GGUF file of the llama architecture."""

from pathlib import Path

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from course.engine.loading.gguf_file import GGUFFile
from course.engine.loading.model_file import DamagedModelFile, UnsupportedModel
from course.engine.loading.tokenizer import Tokenizer
from course.engine.loading.weights import CheckpointWeights, check_layers
from course.engine.model_config import ModelConfig, default_head_dim

_NAMES = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight",
          "lm_head": "output.weight"}  # fmt: skip
_LAYER_NAMES = {"attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
                "o": "attn_output", "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up",
                "down": "ffn_down"}  # fmt: skip
_CONTROL, _USER_DEFINED = 3, 4  # token types that are matched whole, before any splitting


def open_gguf(path: Path) -> tuple[ModelConfig, CheckpointWeights, Tokenizer]:
    """Read the header; the weights are read when the model asks for them."""
    file = GGUFFile(path)
    config = _config(file)
    check_layers(path, config.num_layers, file.tensors)
    names = dict(_NAMES)
    for i in range(config.num_layers):
        names |= {f"{i}.{ours}": f"blk.{i}.{s}.weight" for ours, s in _LAYER_NAMES.items()}
    heads = {"attn_q.weight": config.num_heads, "attn_k.weight": config.num_kv_heads}

    def read(name: str) -> torch.Tensor:
        tensor = torch.from_numpy(file.read(name))
        num_heads = heads.get(name.split(".", 2)[-1])
        return halves_from_pairs(tensor, num_heads) if num_heads else tensor

    weights = CheckpointWeights(path, config, names, file.tensors, read)
    return config, weights, _tokenizer(file)


def halves_from_pairs(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order of Q and K, [num_heads * head_dim, in].

    There the two rows that RoPE turns together lie next to each other; here they lie half a head
    apart, as in the checkpoints that the file was made from.
    """
    rows, width = weight.shape
    if rows % (2 * num_heads):
        return weight  # a wrong shape, which the caller reports with the tensor's name
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width)


def _config(file: GGUFFile) -> ModelConfig:
    meta = file.metadata
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModel(
            f"{file.path}: architecture {architecture!r}; this engine reads GGUF files of "
            "architecture 'llama' only"
        )

    def get(key: str, default=None):
        value = meta.get(f"llama.{key}", default)
        if value is None:
            raise DamagedModelFile(f"{file.path} lacks llama.{key} in its header")
        return value

    hidden_size, num_heads = get("embedding_length"), get("attention.head_count")
    head_dim = get("attention.key_length", default_head_dim(hidden_size, num_heads))
    unsupported = {
        "rope.scaling.type": get("rope.scaling.type", "none") != "none",
        "expert_count": get("expert_count", 0) != 0,
        "rope.dimension_count": get("rope.dimension_count", head_dim) != head_dim,
        "attention.value_length": get("attention.value_length", head_dim) != head_dim,
    }
    for key, is_so in unsupported.items():
        if is_so:
            raise UnsupportedModel(
                f"{file.path}: llama.{key} is {get(key)!r}, which this engine does not compute"
            )
    tokens = meta.get("tokenizer.ggml.tokens")
    return ModelConfig(
        name=meta.get("general.name", file.path.stem),
        hidden_size=hidden_size,
        intermediate_size=get("feed_forward_length"),
        num_layers=get("block_count"),
        num_heads=num_heads,
        num_kv_heads=get("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=get("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        max_model_len=get("context_length"),
        rope_theta=get("rope.freq_base", 10_000.0),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        tied_embeddings=_NAMES["lm_head"] not in file.tensors,
    )


def _tokenizer(file: GGUFFile) -> Tokenizer:
    """Byte-level BPE from the file's own vocabulary and merges."""
    meta = {key.removeprefix("tokenizer."): value for key, value in file.metadata.items()}
    kind = (meta.get("ggml.model"), meta.get("ggml.pre", "default"))
    if kind not in (("gpt2", "smollm"), ("gpt2", "gpt-2")):
        raise UnsupportedModel(
            f"{file.path}: tokenizer {kind[0]!r} with pre-tokenizer {kind[1]!r}; this engine "
            "builds 'gpt2' with 'smollm' or 'gpt-2'. A Hugging Face folder brings its own"
        )
    tokens, merges = meta.get("ggml.tokens"), meta.get("ggml.merges")
    if not tokens or merges is None:
        raise DamagedModelFile(f"{file.path} lacks the tokens or merges of its tokenizer")
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    except Exception as error:  # the library raises plain Exception for a merge it cannot make
        raise DamagedModelFile(
            f"{file.path}: its tokenizer does not fit together: {error}"
        ) from None
    digits = [pre_tokenizers.Digits(individual_digits=True)] if kind[1] == "smollm" else []
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, meta.get("ggml.token_type", ()), strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            special = kind == _CONTROL
            add = backend.add_special_tokens if special else backend.add_tokens
            add([AddedToken(token, special=special, normalized=False)])
    eos = meta.get("ggml.eos_token_id")
    return Tokenizer(
        backend,
        eos_token_ids=[] if eos is None else [eos],
        bos_token_id=meta.get("ggml.bos_token_id"),
        add_bos=bool(meta.get("ggml.add_bos_token", False)),
        chat_template=meta.get("chat_template"),
    )
