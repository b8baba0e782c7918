"""KV cache sizes of known models: bytes per token, bytes per request.

Every byte count comes from one formula: keys and values (2) x layers x KV heads x head
dimension x bytes per value, for each token kept. Two kinds of model bend it. Multi-head latent
attention (MLA) keeps one latent vector and one rotary key per layer instead of keys and values
per head, so the factor 2 goes. Layers with a sliding window stop growing at the window.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

KIB, MIB, GIB = 2**10, 2**20, 2**30


def require_count(name: str, value: object, least: int = 1) -> None:
    """ValueError, with ``name`` in it, unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of at least {least}.")


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that decide how large its KV cache is.

    ``head_dim`` is a field of its own because it is not always hidden size / heads (Qwen3-32B:
    128, not 5120 / 64 = 80). ``num_window_layers`` of the ``num_layers`` layers see only the last
    ``sliding_window`` tokens, the newest included. ``kv_lora_rank`` and ``qk_rope_head_dim`` are
    given together and mean MLA. A shape that contradicts itself raises ValueError.
    """

    name: str
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    sliding_window: int | None = None
    num_window_layers: int = 0

    def __post_init__(self) -> None:
        for field in (
            "num_layers",
            "num_attention_heads",
            "num_kv_heads",
            "head_dim",
            "max_model_len",
        ):
            require_count(f"{self.name}: {field}", getattr(self, field))
        for field in ("kv_lora_rank", "qk_rope_head_dim", "sliding_window"):
            if getattr(self, field) is not None:
                require_count(f"{self.name}: {field}", getattr(self, field))
        require_count(f"{self.name}: num_window_layers", self.num_window_layers, least=0)
        if self.num_attention_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: {self.num_attention_heads} attention heads do not share "
                f"{self.num_kv_heads} KV heads evenly: the second must divide the first."
            )
        if (self.kv_lora_rank is None) != (self.qk_rope_head_dim is None):
            raise ValueError(
                f"{self.name}: kv_lora_rank is {self.kv_lora_rank} and qk_rope_head_dim is "
                f"{self.qk_rope_head_dim}: MLA keeps both, so give both or neither."
            )
        if self.num_window_layers > self.num_layers:
            raise ValueError(
                f"{self.name}: {self.num_window_layers} window layers among "
                f"{self.num_layers} layers: there cannot be more than layers."
            )
        if (self.sliding_window is None) != (self.num_window_layers == 0):
            raise ValueError(
                f"{self.name}: sliding_window is {self.sliding_window} with "
                f"{self.num_window_layers} window layers: a window needs the number of layers "
                "that use it, and the other way round."
            )

    @property
    def attention_kind(self) -> str:
        """ "MHA", "MQA", "GQA" or "MLA", with "+SWA" if some layers have a sliding window."""
        if self.kv_lora_rank is not None:
            kind = "MLA"
        elif self.num_kv_heads == self.num_attention_heads:
            kind = "MHA"
        else:
            kind = "MQA" if self.num_kv_heads == 1 else "GQA"
        return kind + ("+SWA" if self.num_window_layers else "")

    @property
    def num_full_layers(self) -> int:
        """Layers that keep every token."""
        return self.num_layers - self.num_window_layers


def bytes_of(num_values: int, bytes_per_value: float) -> int:
    """Bytes of so many numbers, rounded up; ValueError unless ``bytes_per_value`` is above 0."""
    if isinstance(bytes_per_value, bool) or not isinstance(bytes_per_value, int | float):
        raise ValueError(f"bytes_per_value is {bytes_per_value!r}: it must be a number.")
    if not (math.isfinite(bytes_per_value) and bytes_per_value > 0):
        raise ValueError(
            f"bytes_per_value is {bytes_per_value}: it must be above 0 "
            "(4 for fp32, 2 for fp16 and bf16, 1 for int8 and fp8, 0.5 for 4 bits)."
        )
    return math.ceil(num_values * Fraction(bytes_per_value))


def kv_bytes_per_token(shape: ModelShape, bytes_per_value: float = 2) -> int:
    """Bytes of KV cache for a token that every layer keeps, over all layers.

    Keys and values of every KV head. With MLA, where ``kv_lora_rank`` is not None, it is one
    latent of so many numbers and one rotary key of ``qk_rope_head_dim`` instead (DeepSeek-V2
    report, sec. 2.1). ``bytes_per_value`` may be a fraction, 0.5 for 4 bits; what comes out is
    rounded up to a whole byte.

    >>> kv_bytes_per_token(ModelShape("small", 3, 4, 2, 5, 32))  # 3 layers, 2 KV heads of 5
    120
    >>> kv_bytes_per_token(MODELS["Llama-2-7B"]) // 1024  # in KiB
    512
    """
    if shape.kv_lora_rank is not None and shape.qk_rope_head_dim is not None:
        per_layer = shape.kv_lora_rank + shape.qk_rope_head_dim
    else:
        per_layer = 2 * shape.num_kv_heads * shape.head_dim
    return bytes_of(shape.num_layers * per_layer, bytes_per_value)


def values_per_token_per_layer(shape: ModelShape) -> int:
    """Numbers that one layer keeps for one token."""
    return kv_bytes_per_token(shape, 1) // shape.num_layers  # at one byte each


def kv_bytes_per_token_past_window(shape: ModelShape, bytes_per_value: float = 2) -> int:
    """Bytes by which the cache grows with each token once every window is full."""
    return bytes_of(shape.num_full_layers * values_per_token_per_layer(shape), bytes_per_value)


def kv_bytes(shape: ModelShape, num_tokens: int, bytes_per_value: float = 2) -> int:
    """Bytes of KV cache for one request of ``num_tokens`` tokens; window layers stop growing.

    ``num_tokens`` may exceed max_model_len: the formula does not know what the model was trained
    for. Negative counts raise ValueError.

    >>> mixed = ModelShape("small", 3, 4, 2, 5, 32, sliding_window=4, num_window_layers=2)
    >>> kv_bytes(mixed, 7)  # one layer keeps 7 tokens, two keep the last 4; 40 bytes each
    600
    """
    require_count("num_tokens", num_tokens, least=0)
    in_window = min(num_tokens, shape.sliding_window or 0)
    tokens_kept = shape.num_full_layers * num_tokens + shape.num_window_layers * in_window
    values_per_layer = kv_bytes_per_token(shape, 1) // shape.num_layers  # at one byte each
    return bytes_of(tokens_kept * values_per_layer, bytes_per_value)


def quantised_kv_bytes_per_token(shape: ModelShape, bits: int = 8, scale_bytes: int = 4) -> int:
    """Bytes per token when values are stored in ``bits`` bits, with their scales.

    One scale for the keys and one for the values of each token and KV head; for MLA one for the
    latent and one for the rotary key.
    """
    if bits not in (2, 4, 8):
        raise ValueError(f"bits is {bits!r}: choose 2, 4 or 8.")
    require_count("scale_bytes", scale_bytes, least=0)
    num_scales = 2 if shape.kv_lora_rank is not None else 2 * shape.num_kv_heads
    num_values = shape.num_layers * values_per_token_per_layer(shape)
    return math.ceil(num_values * bits / 8) + shape.num_layers * num_scales * scale_bytes


def saving_against_mha(shape: ModelShape) -> float:
    """How many times larger the cache would be if every attention head kept keys and values."""
    full = 2 * shape.num_attention_heads * shape.head_dim
    return full / values_per_token_per_layer(shape)


def tokens_that_fit(shape: ModelShape, num_bytes: int, bytes_per_value: float = 2) -> int:
    """Tokens whose keys and values fit into ``num_bytes`` when every layer keeps each."""
    require_count("num_bytes", num_bytes, least=0)
    return num_bytes // kv_bytes_per_token(shape, bytes_per_value)


def attention_flops_per_byte(shape: ModelShape, bytes_per_value: float = 2) -> float:
    """FLOPs that decode attention does for each byte of KV cache it reads.

    Per token of context, layer and query head: a dot product with the key and a weighted sum of
    the value, 2 FLOPs per number each. At 2 bytes per value this is one FLOP per byte for each
    query head that shares a KV head, far below what any GPU needs to be busy computing: decode
    is bound by bandwidth. MLA reads its latent once for all heads, as key and as value.
    """
    values = values_per_token_per_layer(shape)
    if shape.kv_lora_rank is not None:
        flops = 2 * shape.num_attention_heads * (values + shape.kv_lora_rank)
    else:
        flops = 4 * shape.num_attention_heads * shape.head_dim
    return flops / (values * _positive(bytes_per_value))


def _positive(bytes_per_value: float) -> float:
    bytes_of(1, bytes_per_value)  # the same check, the same message
    return bytes_per_value


def human_bytes(num_bytes: float, digits: int = 2) -> str:
    """``num_bytes`` with a unit of 1024s, always spelt so: B, KiB, MiB, GiB or TiB.

    >>> human_bytes(819_200), human_bytes(2 * GIB), human_bytes(70_272)
    ('800 KiB', '2 GiB', '68.62 KiB')
    """
    if not math.isfinite(num_bytes):
        raise ValueError(f"num_bytes is {num_bytes}: only finite sizes have a name.")
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    # round before comparing: 1,023.999 KiB would otherwise print as 1,024 KiB
    while abs(round(value, digits)) >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{_plain(value, digits)} {units[0]}"


def _plain(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _shape(
    name: str, layers: int, heads: int, kv_heads: int, head_dim: int, max_len: int, **more: int
) -> ModelShape:
    return ModelShape(name, layers, heads, kv_heads, head_dim, max_len, **more)


def _mla(name: str, layers: int, heads: int) -> ModelShape:
    # head_dim 128 is the size of a head's key without its rotary part, and of its value; it
    # enters only the comparison with MHA
    return _shape(name, layers, heads, heads, 128, 163840, kv_lora_rank=512, qk_rope_head_dim=64)


# Sources: the models' published config.json, read directly or as quoted by the model tables of
# litgpt 0.5.13 and transformers 5.24; MODEL_CHECKS says what each was compared with.
MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _shape("GPT-2 124M", 12, 12, 12, 64, 1024),
        _shape("OPT-13B", 40, 40, 40, 128, 2048),
        _shape("Llama-2-7B", 32, 32, 32, 128, 4096),
        _shape("Llama-2-13B", 40, 40, 40, 128, 4096),
        _shape("Llama-2-70B", 80, 64, 8, 128, 4096),
        _shape("Llama-3-8B", 32, 32, 8, 128, 8192),
        _shape("Llama-3-70B", 80, 64, 8, 128, 8192),
        _shape("Llama-3.1-405B", 126, 128, 8, 128, 131072),
        _shape("Llama-3.2-1B", 16, 32, 8, 64, 131072),
        _shape("Mistral-7B-v0.1", 32, 32, 8, 128, 32768, sliding_window=4096, num_window_layers=32),
        _shape("Mixtral-8x7B", 32, 32, 8, 128, 32768),
        _shape("Qwen2.5-0.5B", 24, 14, 2, 64, 32768),
        _shape("Qwen2.5-7B", 28, 28, 4, 128, 131072),
        _shape("Qwen2.5-72B", 80, 64, 8, 128, 131072),
        _shape("Qwen3-0.6B", 28, 16, 8, 128, 40960),
        _shape("Qwen3-8B", 36, 32, 8, 128, 40960),
        _shape("Qwen3-32B", 64, 64, 8, 128, 40960),
        _shape("Qwen3-235B-A22B", 94, 64, 4, 128, 40960),
        _shape("Gemma-2-9B", 42, 16, 8, 256, 8192, sliding_window=4096, num_window_layers=21),
        _shape("Gemma-3-27B", 62, 32, 16, 128, 131072, sliding_window=1024, num_window_layers=52),
        _shape("Phi-3-mini-4k", 32, 32, 32, 96, 4096, sliding_window=2047, num_window_layers=32),
        _shape("Phi-4 14B", 40, 40, 10, 128, 16384),
        _shape("Phi-4-mini", 32, 24, 8, 128, 131072),
        _mla("DeepSeek-V2 236B", 60, 128),
        _mla("DeepSeek-V2-Lite 16B", 27, 16),
        _mla("DeepSeek-V3 671B", 61, 128),
        _shape("gpt-oss-20b", 24, 64, 8, 64, 131072, sliding_window=128, num_window_layers=12),
        _shape("gpt-oss-120b", 36, 64, 8, 64, 131072, sliding_window=128, num_window_layers=18),
        _shape("SmolLM2-135M", 30, 9, 3, 64, 8192),
        _shape("TinyLlama-1.1B", 22, 32, 4, 64, 2048),
    )
}

_CONFIG_ONLY = "computed from its config; no published size to compare with"
_ISCA_TABLE = "Table 1 of DeepSeek's 'Insights' paper (ISCA 2025), which counts KB of 1,000 B"
MODEL_CHECKS: dict[str, str] = dict.fromkeys(MODELS, _CONFIG_ONLY) | {
    "GPT-2 124M": "not compared with anything: its shape is common knowledge",
    "OPT-13B": "PagedAttention paper, sec. 3: 800 KB a token, a KB of 1,024 B",
    "Llama-2-7B": "published surveys: 512 KB, or 0.5 MB, a token, both of 1,024s",
    "Llama-2-13B": "public notes: about 1 MB a token, rounded up from 0.78 MiB",
    "Llama-2-70B": "a public page prints about 65 KB a token, five times too little",
    "Llama-3-8B": "public notes: 128 KB a token, 0.5 GB for 4,096 tokens, of 1,024s",
    "Llama-3-70B": "320 MB for 1,000 tokens; another page says 5 GB at 4,096, four times too much",
    "Llama-3.1-405B": f"{_ISCA_TABLE}: 516.096 KB",
    "Mistral-7B-v0.1": "public table: 0.5 GB for 4,096 tokens; its max_model_len is unchecked",
    "Mixtral-8x7B": "public table: 0.5 GB for 4,096 tokens (the experts change only the MLP)",
    "Qwen2.5-72B": f"{_ISCA_TABLE}: 327.680 KB",
    "Qwen3-235B-A22B": "a paper's table, quoted second hand: 192 KB a token, of 1,000 B",
    "DeepSeek-V3 671B": f"{_ISCA_TABLE}: 70.272 KB (its one extra prediction layer not counted)",
}


@dataclass(frozen=True)
class Accelerator:
    """What a GPU's maker says it can do at most: bytes per second, and dense 16-bit FLOP/s.

    Peaks, never reached; memory and bandwidth in decimal units, as data sheets count.
    """

    name: str
    memory_bytes: float
    bandwidth: float
    flops_16bit: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on computing, and not reading, is the limit."""
        return self.flops_16bit / self.bandwidth

    def attainable_flops(self, flops_per_byte: float) -> float:
        """The roofline: the most FLOP/s of work that does so many FLOPs for each byte it reads.

        Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
        """
        if not flops_per_byte > 0:
            raise ValueError(f"flops_per_byte is {flops_per_byte}: it must be above 0.")
        return min(self.flops_16bit, self.bandwidth * flops_per_byte)


# From NVIDIA's data sheets of each part. They print 16-bit peaks with sparsity for H100, H200 and
# L4; the numbers here are half of those.
ACCELERATORS: dict[str, Accelerator] = {
    gpu.name: gpu
    for gpu in (
        Accelerator("T4", 16e9, 300e9, 65e12),
        Accelerator("L4", 24e9, 300e9, 121e12),
        Accelerator("A100 40GB", 40e9, 1_555e9, 312e12),
        Accelerator("A100 80GB", 80e9, 2_039e9, 312e12),
        Accelerator("H100 SXM", 80e9, 3_350e9, 989e12),
        Accelerator("H200", 141e9, 4_800e9, 989e12),
    )
}


def weights_flops_per_byte(tokens_per_step: int, bytes_per_value: float = 2) -> float:
    """FLOPs for each byte of weights read in a step: 2 per weight for each token in the step.

    One token at 2 bytes a weight is 1 FLOP per byte. Tokens of one prompt and of many requests
    count alike: that is what batching amortises, and why prefill is not bound by bandwidth.
    """
    require_count("tokens_per_step", tokens_per_step)
    return 2 * tokens_per_step / _positive(bytes_per_value)
