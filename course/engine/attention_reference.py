"""Attention over a paged cache, as slowly and as clearly as it can be said.

This is the oracle: every faster path must agree with it. For one query at position ``p`` of its
sequence, and the keys and values at positions ``0 .. p``:

    score[j] = scale * (q . key[j])      weight[j] = exp(score[j]) / sum(exp(score))
    out = sum over j of weight[j] * value[j]          lse = log(sum(exp(score)))
"""

import torch


def slots_of(block_table, positions, block_size: int) -> list[int]:
    """Where each position of a sequence lies: the one step that paging adds to attention."""
    slots = []
    for position in positions:
        logical_block, row = divmod(position, block_size)
        slots.append(int(block_table[logical_block]) * block_size + row)
    return slots


def reference_attention(
    batch, q, keys, values, key_scales=None, value_scales=None, *, scale, return_lse=True
):
    """(out, lse) for the checked `AttentionBatch` and one layer of the cache; sums in fp32.

    q ``[num_tokens, num_heads, head_dim]``, keys and values ``[num_blocks, block_size,
    num_kv_heads, head_dim]``, the scales of an int8 cache ``[num_blocks, block_size,
    num_kv_heads]``; out like q, lse fp32 ``[num_tokens, num_heads]``.
    """
    num_tokens, num_heads, _ = q.shape
    group = num_heads // keys.shape[2]  # query heads that share one KV head
    out = torch.zeros_like(q)
    lse = torch.full((num_tokens, num_heads), float("-inf"), device=q.device)

    for block_table, context_len, first_row, end_row in batch.sequences():
        first_position = context_len - (end_row - first_row)  # of this step's first query
        for row in range(first_row, end_row):
            position = first_position + row - first_row
            visible = range(batch.first_visible(position), position + 1)
            if context_len == 0 or not visible:
                continue  # nothing to see: out stays 0 and lse stays -inf
            slots = torch.tensor(slots_of(block_table, visible, batch.block_size), device=q.device)
            k = take(keys, slots, key_scales).repeat_interleave(group, dim=1)
            v = take(values, slots, value_scales).repeat_interleave(group, dim=1)
            scores = scale * torch.einsum("hd,thd->ht", q[row].float(), k)
            weights = torch.softmax(scores, dim=-1)
            out[row] = torch.einsum("ht,thd->hd", weights, v).to(q.dtype)
            lse[row] = torch.logsumexp(scores, dim=-1)
    return out, lse


def take(cache, slots, scales=None):
    """The values in these slots as fp32 ``[len(slots), num_kv_heads, head_dim]``."""
    rows = cache.flatten(0, 1).index_select(0, slots).float()
    if scales is not None:  # int8: each row was stored divided by its own scale
        rows *= scales.flatten(0, 1).index_select(0, slots).unsqueeze(-1)
    return rows
