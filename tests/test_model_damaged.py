"""Model files that are missing, damaged or of an unknown kind: each is named, none is half read."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_checkpoints import SMALL, random_weights, write_folder, write_gguf

from course.engine.loading.loader import load_model
from course.engine.loading.model_file import DamagedModelFile, ModelNotFound, UnsupportedModel

TINY = SMALL | {"num_hidden_layers": 1, "vocab_size": 260}
WEIGHTS = random_weights(TINY)
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def whole_gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(path, TINY, WEIGHTS)
    load_model(path, device="cpu")
    return path  # not its bytes: a failing test prints what it was given


def refuses(path, match, error=DamagedModelFile):
    with pytest.raises(error, match=match) as caught:
        load_model(path, device="cpu")
    assert str(path.name) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["smollm3", "", "no/such/model.gguf", "meta-llama/Llama-3"])
def test_unknown_names_say_what_is_known(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="'smollm2' and 'tiny'"):
        load_model(name)


@pytest.mark.parametrize("name", [None, 5, torch])
def test_a_name_that_is_no_text_or_path(name):
    with pytest.raises(TypeError, match="name_or_path"):
        load_model(name)


def test_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("course.engine.loading.loader.model_file", lambda: None)
    with pytest.raises(ModelNotFound, match=r"make setup.*tiny"):
        load_model("smollm2")


def test_model_file_without_the_package(monkeypatch):
    from course.engine.loading import model_file

    monkeypatch.setattr(model_file, "MODEL_PACKAGE", "no_such_package_here")
    assert model_file.model_file() is None


def test_bad_dtype_and_device():
    with pytest.raises(ValueError, match=r"int8.*bfloat16"):
        load_model("tiny", dtype="int8")
    with pytest.raises(ValueError, match=r"float64"):
        load_model("tiny", dtype=torch.float64)
    with pytest.raises(ValueError, match=r"toaster.*cpu"):
        load_model("tiny", device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU"):
            load_model("tiny", device="cuda")


@pytest.mark.parametrize(
    "content", [b"", b"GG", b"this is a text file that somebody renamed\n" * 9, bytes(5000)]
)
def test_not_gguf_at_all(tmp_path, content):
    path = tmp_path / "text.gguf"
    path.write_bytes(content)
    refuses(path, "no whole GGUF file")


def test_gguf_cut_short_anywhere(tmp_path, whole_gguf):
    whole = whole_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    cuts = [*range(0, 200, 7), 1000, 5000, len(whole) // 2]
    for length in cuts:
        path.write_bytes(whole[:length])
        refuses(path, "no whole GGUF file")
    path.write_bytes(whole[:-4096])
    assert "cut short" in refuses(path, "no whole GGUF file")


@pytest.mark.parametrize(
    ("at", "form", "value", "match"),
    [
        (4, "<I", 1, "version 1"),
        (4, ">I", 3, "version"),  # the other byte order
        (8, "<Q", 2**60, "past its end|unknown type|not UTF-8"),
        (16, "<Q", 2**60, "past its end|unknown type|not UTF-8"),
        (16, "<Q", 2**64 - 1, "past its end|unknown type|not UTF-8"),
        (24, "<Q", 2**63, "past its end"),  # length of the first key
    ],
)
def test_header_numbers_that_lie(tmp_path, whole_gguf, at, form, value, match):
    content = bytearray(whole_gguf.read_bytes())
    struct.pack_into(form, content, at, value)
    path = tmp_path / "lie.gguf"
    path.write_bytes(content)
    refuses(path, match, (DamagedModelFile, UnsupportedModel))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_bytes_never_escape_as_another_error(tmp_path, whole_gguf, data):
    """Any bytes of the header: a clear refusal, or a model where the flip does no harm."""
    content = bytearray(whole_gguf.read_bytes())
    header = content.index(b"token_embd.weight") + 1500
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(content)
    message = path.name
    try:
        model, tokenizer = load_model(path, device="cpu")
        assert model.config.shape.num_layers == 1
        tokenizer.encode("still usable")
    except (DamagedModelFile, UnsupportedModel) as error:
        message = str(error)
    assert path.name in message


def test_array_of_2_to_the_60_numbers_does_not_hang(tmp_path, whole_gguf):
    content = bytearray(whole_gguf.read_bytes())
    at = content.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    struct.pack_into("<Q", content, at, 2**60)
    path = tmp_path / "long.gguf"
    path.write_bytes(content)
    refuses(path, "past its end")


def test_a_billion_layers_are_refused_at_once(tmp_path):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, llama__block_count=2**31)
    refuses(tmp_path / "m.gguf", "2147483648 layers.*12 tensors")
    folder = write_folder(tmp_path / "m", TINY | {"num_hidden_layers": 2**40}, WEIGHTS)
    refuses(folder, "layers.*12 tensors")


def test_a_long_context_costs_the_model_no_memory(tmp_path):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, llama__context_length=2**32 - 1)
    model, _ = load_model(tmp_path / "m.gguf", device="cpu")
    assert model.config.max_model_len == 2**32 - 1


def test_gguf_without_a_tensor(tmp_path):
    less = {name: value for name, value in WEIGHTS.items() if name != Q_PROJ}
    write_gguf(tmp_path / "m.gguf", TINY, less)
    refuses(tmp_path / "m.gguf", r"lacks 1 tensor\(s\): blk.0.attn_q.weight")


def test_gguf_with_a_wrong_shape(tmp_path):
    odd = WEIGHTS | {"model.layers.0.mlp.up_proj.weight": np.zeros((95, 64), np.float32)}
    write_gguf(tmp_path / "m.gguf", TINY, odd)
    refuses(tmp_path / "m.gguf", r"blk.0.ffn_up.weight is \(95, 64\).*\(96, 64\)")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gguf_with_nan_or_infinity(tmp_path, value):
    bad = WEIGHTS[Q_PROJ].copy()
    bad[5, 6] = value
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS | {Q_PROJ: bad})
    refuses(tmp_path / "m.gguf", "blk.0.attn_q.weight holds NaN or infinity")


def test_large_sums_are_not_taken_for_infinity(tmp_path):
    large = {n: np.full_like(v, 3e37) if "up_proj" in n else v for n, v in WEIGHTS.items()}
    write_gguf(tmp_path / "m.gguf", TINY, large)
    load_model(tmp_path / "m.gguf", device="cpu")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("llama__rope__scaling__type", "yarn", "rope.scaling.type is 'yarn'"),
        ("llama__expert_count", 8, "expert_count is 8"),
        ("llama__rope__dimension_count", 16, "rope.dimension_count is 16"),
        ("llama__attention__value_length", 64, "value_length is 64"),
        ("tokenizer__ggml__model", "llama", "tokenizer 'llama'"),
        ("tokenizer__ggml__pre", "qwen2", "pre-tokenizer 'qwen2'"),
    ],
)
def test_gguf_of_an_unsupported_kind(tmp_path, key, value, match):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, **{key: value})
    refuses(tmp_path / "m.gguf", match, UnsupportedModel)


def test_gguf_with_a_tensor_that_would_be_ignored(tmp_path):
    content = write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS)
    assert content
    raw = (tmp_path / "m.gguf").read_bytes().replace(b"blk.0.ffn_norm", b"blk.0.ffn_nurm")
    (tmp_path / "m.gguf").write_bytes(raw)
    refuses(tmp_path / "m.gguf", "lacks .*blk.0.ffn_norm")
    two_layers = random_weights(SMALL)
    write_gguf(tmp_path / "n.gguf", TINY, two_layers)  # header says one
    refuses(tmp_path / "n.gguf", "9 tensor.*does not compute", UnsupportedModel)


@pytest.mark.parametrize(
    "key", ["llama__context_length", "llama__embedding_length", "tokenizer__ggml__tokens",
            "llama__attention__layer_norm_rms_epsilon", "tokenizer__ggml__merges"],
)  # fmt: skip
def test_gguf_with_a_gap_in_its_header(tmp_path, key, whole_gguf):
    name = key.replace("__", ".").encode()
    whole = whole_gguf.read_bytes()
    assert name in whole
    path = tmp_path / "m.gguf"
    path.write_bytes(whole.replace(name, name[:-1] + b"X"))
    refuses(path, "lacks|is 0|asks for", DamagedModelFile)


def test_gguf_of_another_architecture(tmp_path, whole_gguf):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole_gguf.read_bytes().replace(b"llama", b"mamba"))
    refuses(path, "architecture 'mamba'", UnsupportedModel)


def test_gguf_whose_merges_do_not_fit(tmp_path):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, tokenizer__ggml__merges=["q z"])
    refuses(tmp_path / "m.gguf", "tokenizer does not fit")


@pytest.mark.parametrize("eos", [260, 2**32 - 1, "<|b|>"])
def test_an_end_token_that_is_no_token(tmp_path, eos):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, tokenizer__ggml__eos_token_id=eos)
    refuses(tmp_path / "m.gguf", r"last token is .*, not an id in 0 \.\. 259")


@pytest.mark.filterwarnings("error")
def test_a_quantised_block_with_a_damaged_scale(tmp_path):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, "Q8_0")
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    content[-34:-32] = b"\xff\x7f"  # the last block's scale, float16: NaN
    (tmp_path / "m.gguf").write_bytes(content)
    refuses(tmp_path / "m.gguf", "holds NaN or infinity")


def test_tokens_beyond_the_model(tmp_path):
    write_gguf(tmp_path / "m.gguf", TINY, WEIGHTS, llama__vocab_size=100)
    refuses(tmp_path / "m.gguf", r"token_embd.weight is \(260, 64\).*\(100, 64\)")
    small = TINY | {"vocab_size": 100}
    folder = write_folder(tmp_path / "f", small, random_weights(small))
    refuses(folder, "258 tokens.*100 rows")


def test_folders_that_are_no_models(tmp_path):
    refuses(tmp_path, "no config.json", ModelNotFound)
    folder = write_folder(tmp_path / "m", TINY, WEIGHTS)
    (folder / "model.safetensors").unlink()
    refuses(folder, "neither model.safetensors nor", ModelNotFound)


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"', "\x00\x01"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_folder_with_unreadable_json(tmp_path, name, content):
    folder = write_folder(tmp_path / "m", TINY, WEIGHTS)
    (folder / name).write_text(content)
    refuses(folder, name)


def test_folder_with_a_tokenizer_that_is_not_one(tmp_path):
    folder = write_folder(tmp_path / "m", TINY, WEIGHTS)
    (folder / "tokenizer.json").write_text("{}")
    refuses(folder, "tokenizer.json cannot be read")
    (folder / "tokenizer.json").unlink()
    refuses(folder, "no tokenizer.json", ModelNotFound)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("model_type", "gemma3"),
        ("model_type", None),
        ("quantization_config", {"bits": 4}),
        ("partial_rotary_factor", 0.5),
        ("use_sliding_window", True),
    ],
)
def test_folder_of_an_unsupported_kind_names_it(tmp_path, key, value):
    folder = write_folder(tmp_path / "m", TINY, WEIGHTS, **{key: value})
    refuses(folder, f"{key} is", UnsupportedModel)


def test_biases_that_the_settings_do_not_mention(tmp_path):
    folder = write_folder(tmp_path / "m", TINY, random_weights(TINY, qkv_bias=True))
    refuses(folder, "k_proj.bias.*does not compute", UnsupportedModel)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size"])
def test_folder_whose_settings_lack_a_number(tmp_path, key):
    folder = write_folder(tmp_path / "m", {k: v for k, v in TINY.items() if k != key}, WEIGHTS)
    refuses(folder, f"lacks {key}")


def test_folder_whose_settings_hold_text_for_a_number(tmp_path):
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "rope_theta"):
        folder = write_folder(tmp_path / key, TINY | {key: "many"}, WEIGHTS)
        refuses(folder, key)


@pytest.mark.parametrize("length", [0, 4, 8, 100, 3000, -1])
def test_half_written_safetensors(tmp_path, length):
    folder = write_folder(tmp_path / "m", TINY, WEIGHTS)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    refuses(folder, "model.safetensors is no whole safetensors file")


def test_shards_that_do_not_fit_together(tmp_path):
    folder = write_folder(tmp_path / "m", TINY, WEIGHTS, shards=2)
    (folder / "model-1.safetensors").rename(folder / "elsewhere")
    refuses(folder, "model-1.safetensors is missing")
    (folder / "model-0.safetensors").rename(folder / "model-1.safetensors")
    (folder / "elsewhere").rename(folder / "model-0.safetensors")
    refuses(folder, "which its index promises")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {Q_PROJ: "../other/model.safetensors"}}))
    refuses(folder, "no weight_map of file names")


def test_folder_without_a_tensor_or_with_a_wrong_one(tmp_path):
    less = {name: value for name, value in WEIGHTS.items() if name != "lm_head.weight"}
    refuses(write_folder(tmp_path / "a", TINY, less), "lacks .*lm_head.weight")
    odd = WEIGHTS | {Q_PROJ: np.zeros((64, 64), np.float32)}
    refuses(write_folder(tmp_path / "b", TINY, odd), r"q_proj.weight is \(64, 64\)")
    integers = WEIGHTS | {Q_PROJ: np.zeros((192, 64), np.int32)}
    refuses(write_folder(tmp_path / "c", TINY, integers), "stored as torch.int32", UnsupportedModel)
    nan = WEIGHTS | {"model.norm.weight": np.full(64, np.nan, np.float32)}
    refuses(write_folder(tmp_path / "d", TINY, nan), "model.norm.weight holds NaN")
