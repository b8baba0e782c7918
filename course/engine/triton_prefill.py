"""Attention of a chunk of queries over the paged cache, as a Triton kernel.

The queries are the last tokens of their sequence: query i of n stands at position
``context_len - n + i`` and sees every cached token up to itself. One program takes a tile of
queries of one sequence, with all the query heads that share one KV head packed into its rows, so
that keys and values are loaded once for the whole group:

    row 0: query 0, head 0    row 1: query 0, head 1   ...   row GROUP: query 1, head 0   ...
"""

import triton
import triton.language as tl

from course.engine.triton_decode import load_rows


@triton.jit
def paged_prefill_kernel(
    out_ptr,  # [num_tokens, num_heads, head_dim], contiguous
    lse_ptr,  # [num_tokens, num_heads] fp32, or None
    q_ptr,
    key_ptr,
    value_ptr,
    key_scale_ptr,  # [num_blocks, block_size, num_kv_heads], or None
    value_scale_ptr,
    block_table_ptr,
    context_len_ptr,
    query_start_ptr,
    scale,
    stride_q_token,
    stride_q_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,  # 0: none
):
    seq = tl.program_id(1)
    kv_head = tl.program_id(2)
    num_kv_heads = tl.num_programs(2)
    QUERIES: tl.constexpr = ROWS // GROUP  # in a tile; with a group of 3, one row of 64 is idle

    first_token = tl.load(query_start_ptr + seq)
    num_queries = tl.load(query_start_ptr + seq + 1) - first_token
    first_query = tl.program_id(0) * QUERIES
    if (num_queries == 1) | (first_query >= num_queries):
        return  # the decode kernel's work, or a tile past the end of this chunk
    context_len = tl.load(context_len_ptr + seq)
    first_position = context_len - num_queries  # of the chunk

    row = tl.arange(0, ROWS)
    query = first_query + row // GROUP
    is_query = (row < QUERIES * GROUP) & (query < num_queries)
    query_position = first_position + query

    dim = tl.arange(0, DIM_PADDED)
    # Of the tile's first row; from there on 32 bits do, which leaves registers for the products.
    token = (first_token + first_query).to(tl.int64)
    q_ptr += token * stride_q_token + kv_head * GROUP * stride_q_head
    q_offsets = (row // GROUP)[:, None] * stride_q_token + (row % GROUP)[:, None] * stride_q_head
    is_wanted = is_query[:, None] & (dim < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_offsets + dim[None, :], mask=is_wanted, other=0.0)

    # Positions that any query of this tile sees: up to its last query, from its first one's window.
    end = tl.minimum(first_position + first_query + QUERIES, context_len)
    first_visible = 0
    if SLIDING_WINDOW > 0:
        first_visible = tl.maximum(first_position + first_query - SLIDING_WINDOW + 1, 0)

    running_max = tl.full([ROWS], float("-inf"), tl.float32)
    running_sum = tl.zeros([ROWS], tl.float32)
    weighted_values = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    table_ptr = block_table_ptr + seq.to(tl.int64) * stride_table

    for tile_start in range(first_visible // TILE * TILE, end, TILE):
        position = tile_start + tl.arange(0, TILE)
        in_context = (position >= first_visible) & (position < end)

        block_id = tl.load(table_ptr + position // BLOCK_SIZE, mask=in_context, other=0)
        slot = position % BLOCK_SIZE
        offsets = block_id.to(tl.int64) * stride_block + slot * stride_slot
        offsets += kv_head * stride_kv_head
        scale_offsets = (block_id.to(tl.int64) * BLOCK_SIZE + slot) * num_kv_heads + kv_head

        k = load_rows(
            key_ptr, key_scale_ptr, offsets, scale_offsets, dim, in_context, HEAD_DIM, q.dtype
        )
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        is_seen = in_context[None, :] & (position[None, :] <= query_position[:, None])
        if SLIDING_WINDOW > 0:
            is_seen &= position[None, :] > query_position[:, None] - SLIDING_WINDOW
        scores = tl.where(is_seen, scores, float("-inf"))

        # Online softmax. A row may see nothing in its first tiles: -inf - -inf would be NaN.
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.exp(running_max - safe_max)
        weights = tl.exp(scores - safe_max[:, None])

        v = load_rows(
            value_ptr, value_scale_ptr, offsets, scale_offsets, dim, in_context, HEAD_DIM, q.dtype
        )
        running_max = new_max
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        weighted_values = weighted_values * rescale[:, None]
        weighted_values = tl.dot(weights.to(v.dtype), v, weighted_values, input_precision="ieee")

    saw_nothing = running_sum == 0.0
    divisor = tl.where(saw_nothing, 1.0, running_sum)
    out = weighted_values / divisor[:, None]
    first_state = (token * num_kv_heads + kv_head) * GROUP
    state = row // GROUP * num_kv_heads * GROUP + row % GROUP
    out_ptr += first_state * HEAD_DIM
    out_offsets = state[:, None] * HEAD_DIM + dim[None, :]
    tl.store(out_ptr + out_offsets, out.to(out_ptr.dtype.element_ty), mask=is_wanted)
    if lse_ptr is not None:
        lse = tl.where(saw_nothing, float("-inf"), running_max + tl.log(divisor))
        tl.store(lse_ptr + first_state + state, lse, mask=is_query)
