"""course/sizing.py: every figure that the course stands on, to the byte."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.sizing import (
    ACCELERATORS,
    GIB,
    KIB,
    MIB,
    MODEL_CHECKS,
    MODELS,
    ModelShape,
    attention_flops_per_byte,
    human_bytes,
    kv_bytes,
    kv_bytes_per_token,
    kv_bytes_per_token_past_window,
    quantised_kv_bytes_per_token,
    saving_against_mha,
    tokens_that_fit,
    values_per_token_per_layer,
    weights_flops_per_byte,
)

# name: bytes per token (2-byte values), bytes per token past the window, saving against MHA
FIGURES = {
    "GPT-2 124M": (36_864, 36_864, 1.0),
    "OPT-13B": (819_200, 819_200, 1.0),
    "Llama-2-7B": (524_288, 524_288, 1.0),
    "Llama-2-13B": (819_200, 819_200, 1.0),
    "Llama-2-70B": (327_680, 327_680, 8.0),
    "Llama-3-8B": (131_072, 131_072, 4.0),
    "Llama-3-70B": (327_680, 327_680, 8.0),
    "Llama-3.1-405B": (516_096, 516_096, 16.0),
    "Llama-3.2-1B": (32_768, 32_768, 4.0),
    "Mistral-7B-v0.1": (131_072, 0, 4.0),
    "Mixtral-8x7B": (131_072, 131_072, 4.0),
    "Qwen2.5-0.5B": (12_288, 12_288, 7.0),
    "Qwen2.5-7B": (57_344, 57_344, 7.0),
    "Qwen2.5-72B": (327_680, 327_680, 8.0),
    "Qwen3-0.6B": (114_688, 114_688, 2.0),
    "Qwen3-8B": (147_456, 147_456, 4.0),
    "Qwen3-32B": (262_144, 262_144, 8.0),
    "Qwen3-235B-A22B": (192_512, 192_512, 16.0),
    "Gemma-2-9B": (344_064, 172_032, 2.0),
    "Gemma-3-27B": (507_904, 81_920, 2.0),
    "Phi-3-mini-4k": (393_216, 0, 1.0),
    "Phi-4 14B": (204_800, 204_800, 4.0),
    "Phi-4-mini": (131_072, 131_072, 3.0),
    "DeepSeek-V2 236B": (69_120, 69_120, 56.89),
    "DeepSeek-V2-Lite 16B": (31_104, 31_104, 7.11),
    "DeepSeek-V3 671B": (70_272, 70_272, 56.89),
    "gpt-oss-20b": (49_152, 24_576, 8.0),
    "gpt-oss-120b": (73_728, 36_864, 8.0),
    "SmolLM2-135M": (23_040, 23_040, 3.0),
    "TinyLlama-1.1B": (22_528, 22_528, 8.0),
}


@pytest.mark.parametrize("name", FIGURES)
def test_known_models(name):
    per_token, past_window, saving = FIGURES[name]
    shape = MODELS[name]
    assert kv_bytes_per_token(shape) == per_token
    assert kv_bytes_per_token_past_window(shape) == past_window
    assert saving_against_mha(shape) == pytest.approx(saving, abs=0.005)
    assert MODEL_CHECKS[name]


def test_every_model_has_a_figure_here():
    assert len(MODELS) >= 25
    assert set(MODELS) == set(FIGURES) == set(MODEL_CHECKS)
    assert all(shape.name == name for name, shape in MODELS.items())


@pytest.mark.parametrize(
    ("name", "tokens", "unit", "size"),
    [
        ("OPT-13B", 2048, MIB, 1600.0),
        ("Llama-2-7B", 2048, MIB, 1024.0),
        ("Llama-3-8B", 8192, MIB, 1024.0),
        ("Llama-3-70B", 4096, GIB, 1.25),
        ("Llama-3.1-405B", 131072, GIB, 63.0),
        ("Mistral-7B-v0.1", 2048, MIB, 256.0),
        ("Mistral-7B-v0.1", 8192, MIB, 512.0),
        ("Gemma-2-9B", 2048, MIB, 672.0),
        ("Gemma-2-9B", 8192, MIB, 2016.0),
        ("Gemma-3-27B", 2048, MIB, 576.0),
        ("Gemma-3-27B", 8192, MIB, 1056.0),
        ("Gemma-3-27B", 131072, GIB, 10.41),
        ("Phi-3-mini-4k", 2048, MIB, 767.62),
        ("DeepSeek-V3 671B", 131072, GIB, 8.58),
        ("gpt-oss-20b", 2048, MIB, 51.0),
        ("gpt-oss-20b", 131072, GIB, 3.0),
        ("gpt-oss-120b", 8192, MIB, 292.5),
        ("SmolLM2-135M", 8192, MIB, 180.0),
    ],
)
def test_sizes_of_a_request(name, tokens, unit, size):
    assert kv_bytes(MODELS[name], tokens) / unit == pytest.approx(size, abs=0.006)


def test_the_worked_case():
    per_token = kv_bytes_per_token(MODELS["Llama-2-7B"])
    assert per_token == MIB // 2
    assert 4096 * per_token == 2 * GIB
    assert 512 * per_token == 256 * MIB
    assert 1 - 512 / 4096 == 0.875
    assert (8 * 4096 * per_token, 8 * 512 * per_token) == (16 * GIB, 2 * GIB)


def test_a_window_of_one_layer_kind_grows_exactly_until_it_is_full():
    gemma = MODELS["Gemma-3-27B"]
    grow = [kv_bytes(gemma, n + 1) - kv_bytes(gemma, n) for n in (0, 1022, 1023, 1024, 5000)]
    assert grow == [507_904, 507_904, 507_904, 81_920, 81_920]


def test_block_and_gib_columns():
    assert 16 * kv_bytes_per_token(MODELS["Gemma-2-9B"]) / KIB == 5376
    assert tokens_that_fit(MODELS["OPT-13B"], 12 * GIB) == 15_728
    assert tokens_that_fit(MODELS["DeepSeek-V3 671B"], GIB) == 15_279
    assert tokens_that_fit(MODELS["SmolLM2-135M"], GIB) == 46_603


def test_bytes_per_value_and_scales():
    smol = MODELS["SmolLM2-135M"]
    assert kv_bytes_per_token(smol, 4) == 46_080
    assert kv_bytes_per_token(smol, 1) == 11_520
    assert kv_bytes_per_token(smol, 0.5) == 5_760
    # 64 values of one byte and one 4-byte scale, for K and V of 3 heads in 30 layers
    assert quantised_kv_bytes_per_token(smol) == 30 * 3 * 2 * (64 + 4)
    assert quantised_kv_bytes_per_token(smol, bits=4, scale_bytes=2) == 30 * 3 * 2 * (32 + 2)
    v3 = MODELS["DeepSeek-V3 671B"]
    assert quantised_kv_bytes_per_token(v3) == 61 * (512 + 64 + 8)


def test_attention_kinds_and_values():
    kinds = {name: MODELS[name].attention_kind for name in MODELS}
    assert kinds["OPT-13B"] == "MHA"
    assert kinds["Llama-3-8B"] == "GQA"
    assert kinds["DeepSeek-V3 671B"] == "MLA"
    assert kinds["Gemma-3-27B"] == "GQA+SWA"
    assert kinds["Phi-3-mini-4k"] == "MHA+SWA"
    assert ModelShape("mqa", 1, 8, 1, 64, 10).attention_kind == "MQA"
    assert values_per_token_per_layer(MODELS["DeepSeek-V3 671B"]) == 576


def test_decode_attention_does_one_flop_per_byte_and_query_head_of_the_group():
    for name in ("OPT-13B", "Llama-3-8B", "Gemma-3-27B", "SmolLM2-135M"):
        shape = MODELS[name]
        group = shape.num_attention_heads // shape.num_kv_heads
        assert attention_flops_per_byte(shape) == group
        assert attention_flops_per_byte(shape, 1) == 2 * group
    # 128 heads x (576 + 512) x 2 over 576 x 2 bytes
    assert attention_flops_per_byte(MODELS["DeepSeek-V3 671B"]) == pytest.approx(241.78, abs=0.01)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (819_200, "800 KiB"),
        (70_272, "68.62 KiB"),
        (MIB // 2, "512 KiB"),
        (MIB - 1, "1 MiB"),
        (1.25 * GIB, "1.25 GiB"),
        (16 * GIB, "16 GiB"),
        (3 * 2**40, "3 TiB"),
        (-2048, "-2 KiB"),
        (100 * KIB, "100 KiB"),
    ],
)
def test_human_bytes(num_bytes, text):
    assert human_bytes(num_bytes) == text


@given(st.integers(0, 2**50))
def test_human_bytes_always_names_a_binary_unit(num_bytes):
    text = human_bytes(num_bytes)
    assert re.fullmatch(r"[\d,]+(\.\d+)? (B|KiB|MiB|GiB|TiB)", text)
    number, unit = text.replace(",", "").split()
    size = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}[unit]
    assert float(number) * size == pytest.approx(num_bytes, abs=0.006 * size)


BASE = {
    "name": "toy",
    "num_layers": 4,
    "num_attention_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_model_len": 64,
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_layers": True}, "num_layers is True"),
        ({"head_dim": 16.0}, "head_dim is 16.0"),
        ({"max_model_len": -1}, "max_model_len is -1"),
        ({"num_kv_heads": 3}, "evenly"),
        ({"num_kv_heads": 16}, "evenly"),
        ({"kv_lora_rank": 512}, "give both or neither"),
        ({"qk_rope_head_dim": 64}, "give both or neither"),
        ({"kv_lora_rank": 0, "qk_rope_head_dim": 64}, "kv_lora_rank is 0"),
        ({"sliding_window": 8}, "window needs the number of layers"),
        ({"num_window_layers": 2}, "window needs the number of layers"),
        ({"sliding_window": 8, "num_window_layers": 5}, "5 window layers among 4"),
        ({"sliding_window": 0, "num_window_layers": 2}, "sliding_window is 0"),
        ({"sliding_window": 8, "num_window_layers": -1}, "num_window_layers is -1"),
    ],
)
def test_a_shape_that_contradicts_itself_is_refused(change, word):
    ModelShape(**BASE)
    with pytest.raises(ValueError, match=re.escape(word)):
        ModelShape(**{**BASE, **change})


@pytest.mark.parametrize("bad", [0, -2, float("nan"), float("inf"), True, "2", None])
def test_bytes_per_value_is_checked(bad):
    shape = ModelShape(**BASE)
    for function in (kv_bytes_per_token, kv_bytes_per_token_past_window, attention_flops_per_byte):
        with pytest.raises(ValueError, match="bytes_per_value"):
            function(shape, bad)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "7", None])
def test_token_counts_are_checked(bad):
    with pytest.raises(ValueError, match="num_tokens"):
        kv_bytes(ModelShape(**BASE), bad)


@given(
    st.integers(0, 300),
    st.integers(1, 40),
    st.integers(0, 4),
    st.sampled_from([0.5, 1, 2, 4]),
)
def test_kv_bytes_agrees_with_counting_layer_by_layer(tokens, window, window_layers, width):
    more = {"sliding_window": window, "num_window_layers": window_layers} if window_layers else {}
    shape = ModelShape(**BASE, **more)
    values = 0
    for layer in range(4):
        for position in range(tokens):
            if layer >= window_layers or position >= tokens - window:
                values += 2 * 2 * 16
    assert kv_bytes(shape, tokens, width) == values * width


def test_import_needs_only_the_standard_library():
    code = (
        "import sys, course.sizing; "
        "bad = [m for m in ('torch', 'triton', 'numpy') if m in sys.modules]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_roofline():
    a100 = ACCELERATORS["A100 40GB"]
    assert a100.ridge == pytest.approx(200.6, abs=0.1)
    assert a100.attainable_flops(1) == a100.bandwidth == 1_555e9
    assert a100.attainable_flops(100) == 155.5e12
    assert a100.attainable_flops(10_000) == 312e12
    assert ACCELERATORS["H100 SXM"].ridge == pytest.approx(295, abs=0.5)
    for gpu in ACCELERATORS.values():
        assert gpu.attainable_flops(gpu.ridge) == pytest.approx(gpu.flops_16bit)
        # decode attention of every model without MLA, and one token's read of the weights
        assert attention_flops_per_byte(MODELS["Qwen3-235B-A22B"]) < gpu.ridge
        assert weights_flops_per_byte(1) < gpu.ridge < weights_flops_per_byte(2048)
    with pytest.raises(ValueError, match="flops_per_byte is 0"):
        a100.attainable_flops(0)


def test_weights_are_shared_by_the_tokens_of_a_step():
    assert [weights_flops_per_byte(n) for n in (1, 16)] == [1, 16]
    assert weights_flops_per_byte(1, 0.5) == 4
    with pytest.raises(ValueError, match="tokens_per_step is 0"):
        weights_flops_per_byte(0)
    with pytest.raises(ValueError, match="bytes_per_value"):
        weights_flops_per_byte(1, 0)
