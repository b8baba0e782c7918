"""Lab 05: right answers that are Triton kernels and exist only for the lab."""

import triton
import triton.language as tl


@triton.jit
def attend_blocks(
    out_ptr,
    q_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    context_len,
    scale,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One query over the cached tokens of one sequence, a block at a time.

    out and q `[HEAD_DIM]`; keys and values `[num_blocks, BLOCK_SIZE, HEAD_DIM]`, contiguous; all
    fp32. A slot in which no token of the sequence lies may hold anything, NaN included. With
    context_len 0, zeros.

    A at its ninth token, blocks 7, 1, 3 of 4 slots: nine rows are seen. The last block is 3, and of
    its slots 12, 13, 14 and 15 only slot 12 holds a token.
    """
    row = tl.arange(0, BLOCK_SIZE)
    dim = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + dim)
    running_max = float("-inf")
    running_sum = 0.0
    weighted_values = tl.zeros([HEAD_DIM], tl.float32)
    for logical_block in range(0, tl.cdiv(context_len, BLOCK_SIZE)):
        block_id = tl.load(block_table_ptr + logical_block).to(tl.int64)
        in_context = logical_block * BLOCK_SIZE + row < context_len
        offsets = (block_id * BLOCK_SIZE + row)[:, None] * HEAD_DIM + dim[None, :]
        k = tl.load(key_ptr + offsets, mask=in_context[:, None], other=0.0)
        v = tl.load(value_ptr + offsets, mask=in_context[:, None], other=0.0)

        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(in_context, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=0))
        rescale = tl.exp(running_max - new_max)
        weights = tl.exp(scores - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=0)
        weighted_values = weighted_values * rescale + tl.sum(weights[:, None] * v, axis=0)
        running_max = new_max
    divisor = tl.where(running_sum == 0.0, 1.0, running_sum)
    tl.store(out_ptr + dim, weighted_values / divisor)
