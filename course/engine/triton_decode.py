"""Decode attention as Triton kernels: one new query per sequence, its keys found block by block.

One program computes the query heads that share one KV head, for one sequence and one *split* (a
contiguous share of the context). All its heads read the same keys, so these are loaded once and
used ``GROUP`` times. It walks the context in tiles of several blocks and keeps, per query head, the
largest score so far, the sum of weights and the weighted sum of values: the online softmax.

With one split that is the answer. With several, a second kernel merges the partial results by
their lse, as `merge_attention_states` does.
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(
    cache_ptr, scale_ptr, offsets, scale_offsets, dim, in_context, HEAD_DIM: tl.constexpr, dtype
):
    """A tile of keys or values ``[tile, head_dim]``; zeros, not memory, where not in context."""
    is_wanted = in_context[:, None] & (dim < HEAD_DIM)[None, :]
    rows = tl.load(cache_ptr + offsets[:, None] + dim[None, :], mask=is_wanted, other=0.0)
    if scale_ptr is not None:  # int8: every row has its own scale
        scale = tl.load(scale_ptr + scale_offsets, mask=in_context, other=0.0)
        rows = rows.to(tl.float32) * scale[:, None]
    return rows.to(dtype)


@triton.jit
def paged_decode_kernel(
    out_ptr,  # [num_tokens, num_heads, num_splits, head_dim], contiguous
    lse_ptr,  # [num_tokens, num_heads, num_splits] fp32, or None
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
    DIM_PADDED: tl.constexpr,  # tiles have powers of two as sides
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,  # at least 16, what a tensor core wants
    TILE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,  # 0: none
):
    """Walk this program's share of the context, a tile at a time, and store what it came to.

    ``q`` ``[GROUP_PADDED, DIM_PADDED]`` holds the group's queries, a row each. ``running_max``,
    ``running_sum`` ``[GROUP_PADDED]`` and ``weighted_values``, shaped like ``q``, are the online
    softmax so far, in fp32. A position is in context from ``first_visible`` to ``end``, without
    ``end`` itself; no other may be read, in the table or in the cache. Keys and values of position
    p: row ``p % BLOCK_SIZE`` of block ``table[p // BLOCK_SIZE]``, and the scale of an int8 row is
    entry ``(block * BLOCK_SIZE + row) * num_kv_heads + kv_head``. Offsets have 64 bits.

    A at its ninth token, blocks 7, 1, 3 of 4 slots: position 8 is row 0 of block 3, so its key is
    at ``3 * stride_block + 0 * stride_slot + kv_head * stride_kv_head``.
    """
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)

    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) - token != 1:
        return  # several queries: the prefill kernel computes this sequence
    token = token.to(tl.int64)

    # The share of the context that belongs to this split, in whole tiles; it may be empty.
    context_len = tl.load(context_len_ptr + seq)
    first_visible = 0
    if SLIDING_WINDOW > 0:
        first_visible = tl.maximum(context_len - SLIDING_WINDOW, 0)
    first_tile = first_visible // TILE
    num_tiles = tl.cdiv(context_len, TILE) - first_tile
    tiles_per_split = tl.cdiv(num_tiles, num_splits)
    start = (first_tile + split * tiles_per_split) * TILE
    end = tl.minimum(start + tiles_per_split * TILE, context_len)

    dim = tl.arange(0, DIM_PADDED)
    member = tl.arange(0, GROUP_PADDED)
    head = kv_head * GROUP + member
    is_query = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    q_offsets = token * stride_q_token + head[:, None] * stride_q_head + dim[None, :]
    q = tl.load(q_ptr + q_offsets, mask=is_query, other=0.0)

    running_max = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    running_sum = tl.zeros([GROUP_PADDED], tl.float32)
    weighted_values = tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32)
    table_ptr = block_table_ptr + seq.to(tl.int64) * stride_table

    for tile_start in range(start, end, TILE):
        position = tile_start + tl.arange(0, TILE)
        in_context = (position >= first_visible) & (position < end)

        # Logical block to physical block to address; 64 bits, for caches of more than 4 GiB.
        block_id = tl.load(table_ptr + position // BLOCK_SIZE, mask=in_context, other=0)
        row = position % BLOCK_SIZE
        offsets = block_id.to(tl.int64) * stride_block + row * stride_slot
        offsets += kv_head * stride_kv_head
        scale_offsets = (block_id.to(tl.int64) * BLOCK_SIZE + row) * num_kv_heads + kv_head

        k = load_rows(
            key_ptr, key_scale_ptr, offsets, scale_offsets, dim, in_context, HEAD_DIM, q.dtype
        )
        # The product is summed in fp32 and scaled there: in fp16 it could overflow.
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(in_context[None, :], scores, float("-inf"))

        # Online softmax. Every tile holds a token in context, so new_max is never -inf.
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        rescale = tl.exp(running_max - new_max)
        weights = tl.exp(scores - new_max[:, None])

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
    state = (token * num_kv_heads * GROUP + head) * num_splits + split
    out_offsets = state[:, None] * HEAD_DIM + dim[None, :]
    tl.store(out_ptr + out_offsets, out.to(out_ptr.dtype.element_ty), mask=is_query)
    if lse_ptr is not None:
        lse = tl.where(saw_nothing, float("-inf"), running_max + tl.log(divisor))
        tl.store(lse_ptr + state, lse, mask=member < GROUP)


@triton.jit
def merge_splits_kernel(
    out_ptr,  # [num_tokens, num_heads, head_dim], contiguous
    lse_ptr,  # [num_tokens, num_heads] fp32, or None
    part_ptr,  # [num_tokens, num_heads, num_splits, head_dim] fp32
    part_lse_ptr,  # [num_tokens, num_heads, num_splits] fp32
    query_start_ptr,
    num_splits,
    HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    """Merge the splits of one sequence and query head: an online softmax over their lse."""
    seq = tl.program_id(0)
    token = tl.load(query_start_ptr + seq)
    if tl.load(query_start_ptr + seq + 1) - token != 1:
        return
    row = token.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    dim = tl.arange(0, DIM_PADDED)
    in_head = dim < HEAD_DIM

    running_max = float("-inf")
    running_sum = 0.0
    merged = tl.zeros([DIM_PADDED], tl.float32)
    for first_split in range(0, num_splits, SPLIT_TILE):
        split = first_split + tl.arange(0, SPLIT_TILE)
        state = row * num_splits + split
        part_lse = tl.load(part_lse_ptr + state, mask=split < num_splits, other=float("-inf"))
        saw_tokens = part_lse > float("-inf")
        is_wanted = saw_tokens[:, None] & in_head[None, :]
        part_offsets = state[:, None] * HEAD_DIM + dim[None, :]
        parts = tl.load(part_ptr + part_offsets, mask=is_wanted, other=0.0)

        new_max = tl.maximum(running_max, tl.max(part_lse, axis=0))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)  # all empty so far
        rescale = tl.exp(running_max - safe_max)
        weights = tl.exp(part_lse - safe_max)
        running_max = new_max
        running_sum = running_sum * rescale + tl.sum(weights, axis=0)
        merged = merged * rescale + tl.sum(weights[:, None] * parts, axis=0)

    saw_nothing = running_sum == 0.0
    divisor = tl.where(saw_nothing, 1.0, running_sum)
    out = merged / divisor
    tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=in_head)
    if lse_ptr is not None:
        lse = tl.where(saw_nothing, float("-inf"), running_max + tl.log(divisor))
        tl.store(lse_ptr + row, lse)
