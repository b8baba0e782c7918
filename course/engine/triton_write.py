"""Writing new keys and values into their slots, as a Triton kernel."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

from course.engine.triton_support import refuse_bfloat16_in_interpreter


@triton.jit
def write_to_slots_kernel(
    key_ptr,  # one layer of the cache, [num_blocks, block_size, num_kv_heads, head_dim], contiguous
    value_ptr,
    k_ptr,
    v_ptr,
    slot_ptr,
    num_slots,
    stride_k_token,
    stride_k_head,
    stride_v_token,
    stride_v_head,
    HEAD_DIM: tl.constexpr,
    ROW: tl.constexpr,  # num_kv_heads * head_dim: one slot
    ROW_PADDED: tl.constexpr,
):
    """One program a token. It never makes an address from a slot that is not in the cache."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    element = tl.arange(0, ROW_PADDED)
    head = element // HEAD_DIM
    dim = element % HEAD_DIM
    # Written so, since the interpreter will not join a tensor mask with a scalar one.
    is_written = (element < ROW) & (slot + 0 * element >= 0) & (slot + 0 * element < num_slots)
    k = tl.load(k_ptr + token * stride_k_token + head * stride_k_head + dim, mask=is_written)
    v = tl.load(v_ptr + token * stride_v_token + head * stride_v_head + dim, mask=is_written)
    offsets = slot * ROW + element
    tl.store(key_ptr + offsets, k.to(key_ptr.dtype.element_ty), mask=is_written)
    tl.store(value_ptr + offsets, v.to(value_ptr.dtype.element_ty), mask=is_written)


def warps_of(row_padded: int) -> int:
    """So few that a thread has eight values or more: 16 bytes of fp16 in one load."""
    return max(1, min(4, row_padded // 256))


def write_to_slots(keys, values, k, v, slots) -> None:
    """Store k and v ``[num_tokens, num_kv_heads, head_dim]`` in one layer's slots.

    keys, values: contiguous ``[num_blocks, block_size, num_kv_heads, head_dim]``; slots: int64
    ``[num_tokens]`` on the same device. A slot of -1, or past the cache, is not written.
    """
    refuse_bfloat16_in_interpreter(keys.dtype, k.dtype, v.dtype)
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    k = k if k.stride(-1) == 1 else k.contiguous()
    v = v if v.stride(-1) == 1 else v.contiguous()
    row, padded = num_kv_heads * head_dim, triton.next_power_of_2(num_kv_heads * head_dim)
    with torch.cuda.device(keys.device) if keys.is_cuda else nullcontext():
        write_to_slots_kernel[(num_tokens,)](
            *(keys, values, k, v, slots, keys.shape[0] * keys.shape[1]),
            *(*k.stride()[:2], *v.stride()[:2]),
            HEAD_DIM=head_dim,
            ROW=row,
            ROW_PADDED=padded,
            **{"num_warps": warps_of(int(padded))},
        )
