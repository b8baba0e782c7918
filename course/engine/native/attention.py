"""Paged attention in C: a work item is one KV head and a few query tokens of one sequence."""

import numpy as np
import torch

from course.engine.attention_batch import AttentionBatch
from course.engine.native.library import load, native_problem

MOST_ROWS = 64  # of one work item, as in kernels.c: query tokens times query heads of a group
MOST_HEAD_DIM = 256


class NativeAttention:
    """The attention of one step: called once for each layer."""

    def __init__(self, batch: AttentionBatch, device: torch.device):
        self.batch, self.device = batch, device
        self.tables = torch.from_numpy(np.ascontiguousarray(batch.block_tables))
        self._items: dict[int, torch.Tensor] = {}
        self._other = None

    def __call__(
        self, q, keys, values, key_scales=None, value_scales=None, *, scale, return_lse=False
    ):
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = keys.shape[2]
        group = num_heads // num_kv_heads
        if not fits(q, keys, values, group):
            return self._in_torch()(
                q, keys, values, key_scales, value_scales, scale=scale, return_lse=return_lse
            )
        items, work = self._work(max(1, MOST_ROWS // group))
        out = q.new_empty(q.shape) if self._covers_all else q.new_zeros(q.shape)
        lse = None
        if return_lse:
            lse = torch.full((num_tokens, num_heads), float("-inf"))
        load(q.dtype).attend(
            q.data_ptr(),
            q.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            self.tables.data_ptr(),
            self.tables.shape[1],
            items.data_ptr(),
            len(items),
            num_heads,
            num_kv_heads,
            head_dim,
            self.batch.block_size,
            self.batch.sliding_window or 0,
            scale,
            work * num_heads * head_dim,
            out.data_ptr(),
            None if lse is None else lse.data_ptr(),
        )
        return out, lse

    def _work(self, tokens_at_once: int) -> tuple[torch.Tensor, int]:
        """Items int64 [n, 4] (sequence, first row, rows, position of the first) and key reads."""
        if tokens_at_once not in self._items:
            items, work, rows = [], 0, 0
            for seq, (_, context_len, start, end) in enumerate(self.batch.sequences()):
                if context_len == 0:
                    continue  # nothing to see: out stays 0 and lse stays -inf
                rows += end - start
                for row in range(start, end, tokens_at_once):
                    num_rows = min(tokens_at_once, end - row)
                    position = context_len - (end - row)
                    items.append((seq, row, num_rows, position))
                    seen = position + num_rows - int(self.batch.first_visible(position))
                    work += num_rows * seen
            # The longest first, so that no thread is left alone with it at the end.
            items.sort(key=lambda item: -item[2] * item[3])
            self._items[tokens_at_once] = torch.tensor(items, dtype=torch.int64).view(-1, 4)
            self._num_reads, self._covers_all = work, rows == self.batch.num_tokens
        return self._items[tokens_at_once], self._num_reads

    def _in_torch(self):
        if self._other is None:
            from course.engine.attention_torch import TorchAttention

            self._other = TorchAttention(self.batch, self.device)
        return self._other


def fits(q, keys, values, group: int) -> bool:
    """Whether the C code can do it: int8 caches, mixed or other dtypes are PyTorch's."""
    return (
        q.dtype == keys.dtype == values.dtype
        and native_problem(q.dtype) is None
        and group <= MOST_ROWS
        and q.shape[2] <= MOST_HEAD_DIM
        and q.stride()[1:] == (q.shape[2], 1)
        and keys.is_contiguous()
        and values.is_contiguous()
    )


def can_copy(cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether rows of k and v can be copied as they are; a change of dtype is PyTorch's."""
    inner = (k.shape[2], 1)
    return k.dtype == v.dtype == cache.dtype and k.stride()[1:] == v.stride()[1:] == inner


def copy_to_slots(keys, values, layer: int, k, v, slots: torch.Tensor) -> None:
    """k and v [num_tokens, num_kv_heads, head_dim] to their slots of one layer of the cache.

    IndexError, before anything is written, for a slot outside the cache: `write` has filtered -1.
    """
    if slots.dtype != torch.int64 or not slots.is_contiguous() or len(slots) != len(k):
        raise ValueError(f"slots {tuple(slots.shape)} {slots.dtype}: one int64 for each row of k")
    width = k.shape[1] * k.shape[2]
    at = layer * keys.stride(0) * keys.element_size()
    num_slots = keys.shape[1] * keys.shape[2]
    outside = load(keys.dtype).write(
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        slots.data_ptr(),
        len(slots),
        width,
        keys.data_ptr() + at,
        values.data_ptr() + at,
        num_slots,
    )
    if outside >= 0:
        raise IndexError(f"slot {int(slots[outside])} is outside 0..{num_slots - 1}")
