"""The decoder against an independent one in loops, from every kind of checkpoint."""

import numpy as np
import pytest
import torch
from model_checkpoints import SMALL, random_weights, slow_logits, write_folder, write_gguf

from course.engine.loading.loader import load_model, tiny_model
from course.engine.loading.model_file import DamagedModelFile
from course.engine.model import LlamaModel, dense_attend, rope_rate
from course.engine.model_config import ModelConfig
from course.engine.operations import apply_rope, rope_angles

IDS = [7, 200, 3, 3, 91, 0, 255, 40, 7, 12, 66]


def logits_of(model, ids, first_position=0, window=None):
    positions = torch.arange(len(ids)) + first_position
    return model.logits(model.forward(torch.tensor(ids), positions, dense_attend(window)))


def assert_close(model, settings, weights, **kinds):
    expected = slow_logits(settings, weights, IDS, **kinds)
    assert expected.std() > 0.3  # a model that says nothing would agree with any other
    np.testing.assert_allclose(logits_of(model, IDS, **kinds), expected, atol=2e-5, rtol=1e-5)


def as_checkpoint(config, weights):
    """The engine's names for a tiny model's weights, put into Hugging Face's."""
    names = {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        **{n: f"self_attn.{n}_proj" for n in "qkvo"},
        **{n: f"mlp.{n}_proj" for n in ("gate", "up", "down")},
    }
    found = {
        "model.embed_tokens.weight": weights["embedding"],
        "model.norm.weight": weights["final_norm"],
        "lm_head.weight": weights["lm_head"],
    }
    for i in range(config.num_layers):
        for ours, theirs in names.items():
            found[f"model.layers.{i}.{theirs}.weight"] = weights[f"{i}.{ours}"]
    return {name: value.numpy() for name, value in found.items()}


def test_tiny_model_agrees_with_loops(monkeypatch):
    taken = {}

    def spy(config, weights, *rest):
        taken.update(weights)
        return LlamaModel(config, weights, *rest)

    monkeypatch.setattr("course.engine.loading.loader.LlamaModel", spy)
    model = tiny_model()
    c = model.config
    settings = SMALL | {
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rope_theta": c.rope_theta,
        "rms_norm_eps": c.rms_norm_eps,
    }
    assert_close(model, settings, as_checkpoint(c, taken))


def test_tiny_model_is_the_same_every_time_and_listens_to_its_first_token():
    a, b = load_model("tiny", device="cpu")[0], load_model("tiny", device="cpu")[0]
    assert torch.equal(logits_of(a, IDS), logits_of(b, IDS))
    changed = [IDS[0] + 1, *IDS[1:]]
    assert (logits_of(a, IDS)[-1] - logits_of(a, changed)[-1]).abs().max() > 0.1


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_folder_agrees_with_loops(tmp_path, tied, shards):
    settings = SMALL | {"tie_word_embeddings": tied}
    weights = random_weights(settings)
    model, _ = load_model(write_folder(tmp_path / "m", settings, weights, shards), device="cpu")
    assert_close(model, settings, weights)
    assert model.config.shape.head_dim == 32  # a field of its own: 64 / 6 is not even whole


def test_qwen2_folder_with_biases_agrees_with_loops(tmp_path):
    weights = random_weights(SMALL, qkv_bias=True)
    folder = write_folder(tmp_path / "m", SMALL, weights, model_type="qwen2")
    assert_close(load_model(folder, device="cpu")[0], SMALL, weights)


def test_mistral_folder_with_a_window_agrees_with_loops(tmp_path):
    weights = random_weights(SMALL)
    folder = write_folder(tmp_path / "m", SMALL, weights, model_type="mistral", sliding_window=4)
    model, _ = load_model(folder, device="cpu")
    assert (model.config.shape.sliding_window, model.config.shape.num_window_layers) == (4, 2)
    assert_close(model, SMALL, weights, window=4)


def test_settings_of_transformers_5_are_read_too(tmp_path):
    old = {k: v for k, v in SMALL.items() if k != "rope_theta"}
    rope = {"rope_theta": 5000.0, "rope_type": "default"}
    weights = random_weights(SMALL)
    folder = write_folder(tmp_path / "m", old, weights, rope_parameters=rope)
    assert_close(load_model(folder, device="cpu")[0], SMALL, weights)


def test_half_precision_weights_are_read(tmp_path):
    weights = {name: value.astype(np.float16) for name, value in random_weights(SMALL).items()}
    model, _ = load_model(write_folder(tmp_path / "m", SMALL, weights), device="cpu")
    assert model.dtype == torch.float32
    assert_close(model, SMALL, weights)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_agrees_with_loops(tmp_path, kind):
    held = write_gguf(tmp_path / "m.gguf", SMALL, random_weights(SMALL), kind)
    model, _ = load_model(tmp_path / "m.gguf", device="cpu")
    assert_close(model, SMALL, held)


def test_gguf_without_output_is_tied(tmp_path):
    settings = SMALL | {"tie_word_embeddings": True}
    held = write_gguf(tmp_path / "m.gguf", settings, random_weights(settings))
    model, _ = load_model(tmp_path / "m.gguf", device="cpu")
    assert model.config.tied_embeddings
    assert_close(model, settings, held)


@pytest.mark.parametrize("offset", [1, 37, 1000])
def test_scores_depend_on_distance_only(offset):
    model = load_model("tiny", device="cpu")[0]
    moved = logits_of(model, IDS, first_position=offset)
    torch.testing.assert_close(moved, logits_of(model, IDS), atol=2e-4, rtol=1e-4)


def test_positions_place_the_rows_whatever_their_order():
    """A later chunk (offset positions) and a shuffled batch give what one straight pass gives."""
    model = load_model("tiny", device="cpu")[0]
    seen = {}

    def keep(layer, q, k, v):
        seen.setdefault(layer, []).append((q.clone(), k.clone(), v.clone()))
        return torch.zeros_like(q)  # rows do not meet, so they can be compared one by one

    ids, order = torch.tensor(IDS), torch.randperm(len(IDS))
    positions = torch.arange(len(IDS))
    model.forward(ids, positions, keep)
    model.forward(ids[order], positions[order], keep)
    model.forward(ids[4:], positions[4:], keep)
    for straight, shuffled, chunk in seen.values():
        for a, b, c in zip(straight, shuffled, chunk, strict=True):
            torch.testing.assert_close(a[order], b, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(a[4:], c, atol=1e-5, rtol=1e-5)


def test_rope_turns_each_pair_by_its_own_angle():
    config = tiny_model().config
    x = torch.randn(1, 2, config.head_dim, dtype=torch.float64)
    turned = apply_rope(x, *rope_angles(torch.tensor([1234]), rope_rate(config), torch.float64))
    half = config.head_dim // 2
    for j in range(half):
        angle = 1234 * config.rope_theta ** (-2 * j / config.head_dim)
        pair = torch.complex(x[..., j], x[..., j + half]) * np.exp(1j * angle)
        torch.testing.assert_close(turned[..., j], pair.real)
        torch.testing.assert_close(turned[..., j + half], pair.imag)


def test_logits_are_float32_and_only_of_the_rows_asked_for():
    model = load_model("tiny", dtype="bf16", device="cpu")[0]
    hidden = model.forward(torch.tensor(IDS), torch.arange(len(IDS)), dense_attend())
    assert hidden.dtype == torch.bfloat16
    assert hidden.shape == (len(IDS), 96)
    logits = model.logits(hidden[-2:])
    assert logits.dtype == torch.float32
    assert logits.shape == (2, 258)
    exact = logits_of(load_model("tiny", dtype="fp32", device="cpu")[0], IDS)[-2:]
    assert torch.corrcoef(torch.stack([logits[-1], exact[-1]]))[0, 1] > 0.99


def test_a_step_is_the_same_each_time():
    model = load_model("tiny", device="cpu")[0]
    assert torch.equal(logits_of(model, IDS), logits_of(model, IDS))


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_layers", 0), ("vocab_size", -1), ("head_dim", 33), ("num_kv_heads", 4),
     ("rms_norm_eps", float("nan")), ("rope_theta", 0.0), ("hidden_size", "64")],
)  # fmt: skip
def test_numbers_that_cannot_be_a_model_are_refused(field, value):
    sizes = ("hidden_size", "intermediate_size", "num_layers", "vocab_size", "max_model_len")
    numbers = {"name": "x", "num_heads": 6, "num_kv_heads": 2, "head_dim": 32}
    numbers |= dict.fromkeys(sizes, 64)
    with pytest.raises(DamagedModelFile, match=field if field != "num_kv_heads" else "KV"):
        ModelConfig(**numbers | {field: value})
