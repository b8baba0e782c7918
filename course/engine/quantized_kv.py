"""An int8 KV cache: about half the bytes of fp16, for a small error that can be measured.

Symmetric quantisation, one scale for each token and KV head: with ``scale = max(|row|) / 127`` a
row is stored as ``round(row / scale)`` and read back as ``stored * scale``, so no element is off by
more than half a scale. A token and head costs ``head_dim + 4`` bytes instead of ``2 * head_dim``.
"""

import torch

from course.engine.kv_cache import PagedKVCache
from course.sizing import ModelShape


class QuantizedPagedKVCache(PagedKVCache):
    """A `PagedKVCache` that stores int8; ``dtype`` is what `gather` gives back.

    ``keys`` and ``values`` are int8; ``key_scales`` and ``value_scales`` are fp32
    ``[num_layers, num_blocks, block_size, num_kv_heads]`` and move with their blocks.
    ``layer(i)`` gives all four, in the order that `AttentionPlan.attend` takes them.
    """

    def __init__(
        self,
        shape: ModelShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        super().__init__(shape, num_blocks, block_size, torch.int8, device, write_backend="torch")
        self.dtype = dtype
        self.key_scales = torch.empty(self.keys.shape[:-1], dtype=torch.float32, device=device)
        self.value_scales = torch.empty_like(self.key_scales)
        self._tensors += [self.key_scales, self.value_scales]

    def _store(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """What `write` calls, with everything checked: k and v ``[num_tokens, num_kv_heads,
        head_dim]``, slots ``[num_tokens]`` int64, none of them -1. Works in place, as `keys`,
        `values` and both scales are what attention and `copy_blocks` look at.
        """
        for rows, cache, scales in (
            (k, self.keys, self.key_scales),
            (v, self.values, self.value_scales),
        ):
            stored, scale = quantize(rows)
            cache[layer].flatten(0, 1).index_copy_(0, slots, stored)
            scales[layer].flatten(0, 1).index_copy_(0, slots, scale)

    def gather(self, layer: int, block_ids, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first ``num_tokens`` keys and values of a table, in order, dequantized.

        Each ``[num_tokens, num_kv_heads, head_dim]`` of the cache's ``dtype``. ``_slots_of`` gives
        the slots of these tokens and refuses a table that is too short.
        """
        slots = self._slots_of(block_ids, num_tokens)
        k, v, k_scale, v_scale = (t.flatten(0, 1).index_select(0, slots) for t in self.layer(layer))
        return dequantize(k, k_scale, self.dtype), dequantize(v, v_scale, self.dtype)


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows ``[..., head_dim]`` of any float type to int8 of that shape and fp32 scales ``[...]``.

    A row's scale is what one step is worth: its largest number, sign aside, is 127 steps. Each
    number is stored as the nearest whole number of steps. A row of zeros is stored as zeros, with a
    scale of 0. `rows` itself stays as it is.

    >>> stored, scale = quantize(torch.tensor([[0.5, -2.0, 1.1], [0.0, 0.1, 0.02]]))
    >>> stored.tolist(), [round(s, 4) for s in scale.tolist()]
    ([[32, -127, 70], [0, 127, 25]], [0.0157, 0.0008])
    """
    rows = rows.float()
    scale = rows.abs().amax(dim=-1) / 127
    divisor = torch.where(scale > 0, scale, 1.0)  # a row of zeros stays a row of zeros
    stored = torch.round(rows / divisor.unsqueeze(-1)).clamp_(-127, 127).to(torch.int8)
    return stored, scale


def dequantize(stored: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers again: int8 ``[..., head_dim]`` and fp32 scales ``[...]`` to ``dtype``.

    Steps are multiplied in fp32 and only the product is converted: fp16 has no room for a scale
    that is very small.

    >>> stored = torch.tensor([[32, -127], [70, 1]], dtype=torch.int8)
    >>> dequantize(stored, torch.tensor([0.5, 2.0]), torch.float16).tolist()
    [[16.0, -63.5], [140.0, 2.0]]
    """
    return (stored.float() * scale.unsqueeze(-1)).to(dtype)
