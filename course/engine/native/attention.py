"""Paged attention in C: a work item is one KV head and a few query tokens of one sequence."""

import ctypes

import numpy as np
import torch

from course.engine.attention_batch import AttentionBatch
from course.engine.native.library import Attention, load, native_problem

MOST_ROWS = 64  # of one work item, as in attention.h: query tokens times query heads of a group
TILE = 32  # keys looked at together, as there
FEWEST_ROWS = 8  # for which it pays to look at the keys that they have in common once for all
MOST_HEAD_DIM = 256


class NativeAttention:
    """The attention of one step: called once for each layer."""

    def __init__(self, batch: AttentionBatch, device: torch.device):
        self.batch, self.device = batch, device
        self.tables = np.ascontiguousarray(batch.block_tables)
        # Where a sequence has queries and no context, there is nothing to see: out stays 0.
        self.counts = np.diff(batch.query_start_loc)
        has_context = batch.context_lens > 0
        self.covers_all = bool(has_context.all()) or not self.counts[~has_context].any()
        self._about: dict[tuple, Attention] = {}
        self._kept: list[np.ndarray] = []  # kept alive: their addresses are in _about
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
        about = self.about(num_heads, num_kv_heads, head_dim, scale)
        out = q.new_empty(q.shape) if self.covers_all else q.new_zeros(q.shape)
        lse = None
        if return_lse:
            lse = q.new_full((num_tokens, num_heads), float("-inf"), dtype=torch.float32)
        load(q.dtype).attend(
            ctypes.byref(about),
            q.data_ptr(),
            q.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            None if lse is None else lse.data_ptr(),
        )
        return out, lse

    def about(self, num_heads: int, num_kv_heads: int, head_dim: int, scale: float) -> Attention:
        """The step as the C code wants it; it stays valid while this object lives."""
        key = num_heads, num_kv_heads, head_dim, scale
        if key not in self._about:
            group = num_heads // num_kv_heads
            parts, work = self._parts(max(1, MOST_ROWS // group))
            parts, items = self._items(parts, group)
            self._kept += parts, items
            self._about[key] = Attention(
                tables=self.tables.ctypes.data,
                max_blocks=self.tables.shape[1],
                parts=parts.ctypes.data,
                items=items.ctypes.data,
                num_items=len(items),
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                block_size=self.batch.block_size,
                window=self.batch.sliding_window or 0,
                work=work,
                scale=scale,
            )
        return self._about[key]

    def _parts(self, tokens_at_once: int) -> tuple[np.ndarray, int]:
        """Parts int64 [n, 4] (sequence, first row, rows, position of the first) and key reads."""
        batch, counts = self.batch, self.counts
        if self.covers_all and (counts == 1).all():  # decode
            parts = np.empty((len(counts), 4), np.int64)
            parts[:, 0] = parts[:, 1] = np.arange(len(counts))
            parts[:, 2], parts[:, 3] = 1, batch.context_lens - 1
            return parts, int((batch.context_lens - batch.first_visible(parts[:, 3])).sum())
        seqs = np.flatnonzero((counts > 0) & (batch.context_lens > 0))
        # A sequence of many query tokens is several parts.
        pieces = -(-counts[seqs] // tokens_at_once)
        of = np.repeat(seqs, pieces)
        nth = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = nth * tokens_at_once
        num_rows = np.minimum(counts[of] - first, tokens_at_once)
        position = batch.context_lens[of] - counts[of] + first
        seen = position + num_rows - batch.first_visible(position)
        parts = np.stack([of, batch.query_start_loc[of] + first, num_rows, position], axis=1)
        return parts, int((num_rows * seen).sum())

    def _items(self, parts: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The parts in a new order, and items int64 [n, 3] (first part, parts, keys that all of
        them begin with): most have one part, but single tokens of sequences whose tables begin with
        the same blocks go together. The longest item comes first, so that no thread is left alone
        with it at the end."""
        families = self._families(parts, group)
        if not families:
            items = np.zeros((len(parts), 3), np.int64)
            items[:, 0], items[:, 1] = np.arange(len(parts)), 1
            return parts[np.argsort(-parts[:, 2] * parts[:, 3], kind="stable")], items
        alone = np.ones(len(parts), bool)
        for members, _ in families:
            alone[members] = False
        families += [(np.array([part]), 0) for part in np.flatnonzero(alone)]
        families.sort(key=lambda f: -int((parts[f[0], 2] * (parts[f[0], 3] + 1 - f[1])).sum()))
        counts = np.array([len(members) for members, _ in families])
        shared = np.array([num_keys for _, num_keys in families])
        order = np.concatenate([members for members, _ in families])
        items = np.stack([np.cumsum(counts) - counts, counts, shared], axis=1)
        return parts[order], items

    def _families(self, parts: np.ndarray, group: int) -> list[tuple[np.ndarray, int]]:
        """(places in `parts`, number of keys in common) of single tokens that share a prefix."""
        single = np.flatnonzero(parts[:, 2] == 1)
        fewest = -(-FEWEST_ROWS // group)
        if self.batch.sliding_window is not None or len(single) < fewest:
            return []
        first_block = self.tables[parts[single, 0], 0]
        if len(set(first_block.tolist())) == len(single):  # nearly always
            return []
        families = []
        _, family_of, counts = np.unique(first_block, return_inverse=True, return_counts=True)
        for family in np.flatnonzero(counts >= fewest):
            members = single[family_of == family]
            tables = self.tables[parts[members, 0]]
            is_same = (tables == tables[0]).all(axis=0)
            num_blocks = len(is_same) if is_same.all() else int(is_same.argmin())
            # Each token's own key is its own, whatever else the tables say. Whole tiles: then each
            # sum is made in the order in which it would be made alone.
            shared = min(num_blocks * self.batch.block_size, int(parts[members, 3].min()))
            shared -= shared % TILE
            most = MOST_ROWS // group
            num_items = max(-(-len(members) // most), min(2, len(members) // fewest))
            if shared:
                families += [(some, shared) for some in np.array_split(members, num_items)]
        return families

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
