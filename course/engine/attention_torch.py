"""Paged attention in PyTorch operations that are quick on a CPU.

Two shapes of work. *Decode* rows, one query a sequence, are many and tiny: they are computed
together, in a handful of operations for the whole batch, so that the price of calling an operation
is paid once and not for every sequence. *Prefill* rows, many queries of one sequence, are few and
large: one call of PyTorch's own attention for each sequence.

Slots that were never written may hold NaN, and no mask removes NaN: 0 * NaN is NaN. So they are
not read at all: padding repeats the last slot that its own sequence has written. And slots are
worked out once for a step; all layers use them.
"""

import numpy as np
import torch
import torch.nn.functional as F

from course.engine.attention_batch import AttentionBatch
from course.engine.attention_reference import take

# One more group of decode rows costs about as much time as this many tokens of padding, and a
# group's gathered keys should stay small (SmolLM2-135M in fp32: 3 MB). Measured on two cores.
PADDING_ALLOWED = 512
TOKENS_AT_ONCE = 4_096


class TorchAttention:
    """The attention of one step: called once for each layer."""

    def __init__(self, batch: AttentionBatch, device: torch.device):
        self.batch, self.device = batch, device
        num_queries = np.diff(batch.query_start_loc)
        is_seen = batch.context_lens > 0  # the rows of empty contexts stay zero
        prefills = np.flatnonzero(is_seen & (num_queries > 1))
        decodes = np.flatnonzero(is_seen & (num_queries == 1))
        lengths = batch.context_lens - batch.first_visible(batch.context_lens - 1)
        self._prefills = [PrefillRows(batch, seq, device) for seq in prefills.tolist()]
        self._groups = group_by_length(decodes, lengths)
        # A single group of all rows, in their order, needs no copies in and out.
        self._is_whole = len(self._groups) == 1 and len(decodes) == batch.num_tokens
        self._decodes: list[DecodeRows] | None = None

    def __call__(
        self, q, keys, values, key_scales=None, value_scales=None, *, scale, return_lse=False
    ):
        if self._decodes is None:  # the first layer says how many heads there are
            num_kv_heads, group = keys.shape[2], q.shape[1] // keys.shape[2]
            self._decodes = [
                DecodeRows(self.batch, seqs, num_kv_heads, group, self.device)
                for seqs in self._groups
            ]
        cache = (keys, values, key_scales, value_scales)
        if self._is_whole:
            return self._decodes[0].attend(q, *cache, scale, return_lse)
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], float("-inf"), device=q.device)
        for part in (*self._decodes, *self._prefills):
            part_out, part_lse = part.attend(q[part.rows], *cache, scale, return_lse)
            out[part.rows] = part_out.to(q.dtype)
            if part_lse is not None:
                lse[part.rows] = part_lse
        return out, lse


class DecodeRows:
    """Sequences of similar length with one query each, computed together."""

    def __init__(self, batch: AttentionBatch, seqs, num_kv_heads: int, group: int, device):
        last = batch.context_lens[seqs] - 1
        first = batch.first_visible(last)
        num_visible = (last - first + 1)[:, None]
        longest = int(num_visible.max())
        step = np.arange(longest)
        positions = first[:, None] + np.minimum(step, num_visible - 1)  # padding repeats the last
        blocks = batch.block_tables[seqs[:, None], positions // batch.block_size]
        slots = blocks * batch.block_size + positions % batch.block_size
        # One layer seen as [slots * heads, head_dim]: the rows that each (sequence, head) reads.
        reads = slots[:, None, None, :] * num_kv_heads + np.arange(num_kv_heads)[:, None, None]
        self.shape = (len(seqs) * num_kv_heads, group, longest)
        self.key_rows = torch.from_numpy(reads.reshape(-1)).to(device)
        bags = np.repeat(reads, group, axis=2)  # the query heads of a group read the same rows
        self.value_rows = torch.from_numpy(bags.reshape(-1)).to(device)
        self.bag_starts = torch.arange(self.shape[0] * group, device=device) * longest
        self.rows = torch.from_numpy(batch.query_start_loc[seqs]).to(device)
        self.mask = None
        if (num_visible < longest).any():
            mask = np.where(step < num_visible, np.float32(0), np.float32("-inf"))
            mask = np.repeat(mask, num_kv_heads, axis=0)[:, None, :]
            self.mask = torch.from_numpy(mask).to(device)

    def attend(self, q, keys, values, key_scales, value_scales, scale, return_lse):
        pairs, group, _ = self.shape  # pairs of (sequence, KV head)
        queries = q.reshape(pairs, group, -1).float() * scale  # fp32 first: fp16 could overflow
        k = self._gather(keys, key_scales).transpose(1, 2)
        if self.mask is None:
            scores = torch.bmm(queries, k)
        else:
            scores = torch.baddbmm(self.mask, queries, k)
        weights = torch.softmax(scores, dim=-1)
        lse = torch.logsumexp(scores, dim=-1).view(q.shape[:2]) if return_lse else None
        if values.is_floating_point() and values.device.type == "cpu":
            # A weighted sum of rows of a table is an embedding bag: it reads the cache in place.
            out = torch.embedding_bag(
                values.flatten(0, 2),
                self.value_rows,
                self.bag_starts,
                mode=0,  # sum
                per_sample_weights=weights.to(values.dtype).flatten(),
            )[0]
        else:
            out = torch.bmm(weights, self._gather(values, value_scales))
        return out.view(q.shape).to(q.dtype), lse

    def _gather(self, cache, scales):
        rows = cache.flatten(0, 2).index_select(0, self.key_rows).float()
        if scales is not None:
            rows *= scales.flatten().index_select(0, self.key_rows).unsqueeze(-1)
        return rows.view(self.shape[0], self.shape[2], -1)


class PrefillRows:
    """One sequence with many queries; each sees the cached tokens and this chunk up to itself."""

    def __init__(self, batch: AttentionBatch, seq: int, device):
        start, end = batch.query_start_loc[seq : seq + 2].tolist()
        context_len = int(batch.context_lens[seq])
        queries = np.arange(context_len - (end - start), context_len)
        first = batch.first_visible(queries)
        positions = np.arange(first[0], context_len)
        blocks = batch.block_tables[seq, positions // batch.block_size]
        slots = blocks * batch.block_size + positions % batch.block_size
        self.rows = slice(start, end)
        self.slots = torch.from_numpy(slots).to(device)
        is_seen = (positions <= queries[:, None]) & (positions >= first[:, None])
        self.is_seen = torch.from_numpy(is_seen).to(device)
        # PyTorch's own causal mask starts at position 0: right only if nothing came before.
        self.is_causal = len(queries) == len(positions) and not first.any()

    def attend(self, q, keys, values, key_scales, value_scales, scale, return_lse):
        k = take(keys, self.slots, key_scales).transpose(0, 1)
        v = take(values, self.slots, value_scales).transpose(0, 1)
        # Scaled here: after its mask, PyTorch would make NaN of -inf with a scale of 0 or less.
        queries = q.float().transpose(0, 1) * scale
        mask = None if self.is_causal else self.is_seen
        out = F.scaled_dot_product_attention(
            queries[None], k[None], v[None], mask, 0.0, self.is_causal, scale=1.0, enable_gqa=True
        )
        lse = None
        if return_lse:
            grouped = queries.unflatten(0, (k.shape[0], -1))  # [KV heads, group, queries, head_dim]
            scores = grouped @ k[:, None].transpose(-1, -2)
            scores = scores.masked_fill(~self.is_seen, float("-inf"))
            lse = scores.logsumexp(-1).flatten(0, 1).transpose(0, 1)
        return out[0].transpose(0, 1), lse


def group_by_length(seqs: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Split decode sequences so that padding to the longest of a group stays cheap."""
    if seqs.size == 0:
        return []
    longest = int(lengths[seqs].max())
    total = longest * seqs.size
    if total <= TOKENS_AT_ONCE and total - int(lengths[seqs].sum()) <= PADDING_ALLOWED:
        return [seqs]
    groups: list[list[int]] = []
    padding = 0
    for seq in seqs[np.argsort(-lengths[seqs], kind="stable")].tolist():
        longest = int(lengths[groups[-1][0]]) if groups else 0
        padding += longest - int(lengths[seq])
        if (
            not groups
            or padding > PADDING_ALLOWED
            or longest * (len(groups[-1]) + 1) > TOKENS_AT_ONCE
        ):
            groups.append([])
            padding = 0
        groups[-1].append(seq)
    return [np.array(group) for group in groups]
