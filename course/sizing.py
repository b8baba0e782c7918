"""KV cache sizes of known models: bytes per token, bytes per request."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that decide how large its KV cache is."""

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
