"""Launching the attention kernels: which ones, with what tile sizes, over how many programs.

Nothing here asks the GPU for a number. Grids follow from shapes and from upper bounds that the
host knows; programs that find nothing to do return at once.
"""

# Kernels are launched with plain numbers where their signatures say constexpr.
# pyright: reportArgumentType=false, reportReturnType=false

from contextlib import nullcontext

import numpy as np
import torch
import triton

from course.engine.attention_batch import AttentionBatch
from course.engine.triton_config import choose_num_splits, decode_config, prefill_config
from course.engine.triton_decode import merge_splits_kernel, paged_decode_kernel
from course.engine.triton_prefill import paged_prefill_kernel
from course.engine.triton_support import refuse_bfloat16_in_interpreter


class TritonAttention:
    """The attention of one step: called once for each layer. Tensors are on the device."""

    def __init__(
        self,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        query_start_loc: torch.Tensor | None,
        block_size: int,
        sliding_window: int | None,
        num_splits: int | None = None,
        max_context_len: int | None = None,
        max_query_len: int | None = None,
    ):
        self.num_seqs, max_blocks = block_tables.shape
        if query_start_loc is None:
            max_query_len = 1
            query_start_loc = torch.arange(self.num_seqs + 1, device=block_tables.device)
        self.block_tables = block_tables.to(torch.int32).contiguous()
        self.context_lens = context_lens.to(torch.int32).contiguous()
        self.query_start_loc = query_start_loc.to(torch.int32).contiguous()
        self.block_size, self.window = block_size, sliding_window or 0
        capacity = max_blocks * block_size
        self.max_context_len = capacity if max_context_len is None else max_context_len
        self.max_query_len, self.num_splits = max_query_len, num_splits

    @classmethod
    def from_batch(cls, batch: AttentionBatch, device, num_splits: int | None = None):
        """The same from numbers on the host, which cross to the device here, once a step."""

        def put(array):
            return torch.from_numpy(array).to(torch.int32).to(device)

        return cls(
            put(batch.block_tables),
            put(batch.context_lens),
            put(batch.query_start_loc),
            batch.block_size,
            batch.sliding_window,
            num_splits,
            max_context_len=int(batch.context_lens.max(initial=0)),
            max_query_len=int(np.diff(batch.query_start_loc).max(initial=0)),
        )

    def __call__(
        self, q, keys, values, key_scales=None, value_scales=None, *, scale, return_lse=False
    ):
        refuse_bfloat16_in_interpreter(q.dtype, keys.dtype)
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = keys.shape[2]
        q = q if q.stride(-1) == 1 else q.contiguous()
        if keys.stride() != values.stride() or keys.stride(-1) != 1:
            keys, values = keys.contiguous(), values.contiguous()
        out = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
        lse = torch.empty(out.shape[:2], device=q.device) if return_lse else None
        if num_tokens == 0 or self.num_seqs == 0:
            return out, lse
        inputs = (
            *(q, keys, values, key_scales, value_scales),
            *(self.block_tables, self.context_lens, self.query_start_loc, scale),
            *(*q.stride()[:2], *keys.stride()[:3], self.block_tables.stride(0)),
        )
        group = num_heads // num_kv_heads
        sizes = {"BLOCK_SIZE": self.block_size, "HEAD_DIM": head_dim, "GROUP": group}
        sizes |= {"SLIDING_WINDOW": self.window}
        with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
            self._decode(out, lse, inputs, num_kv_heads, q.dtype, sizes)
            if self.max_query_len != 1:
                config = prefill_config(head_dim, group, q.dtype)
                queries = config["ROWS"] // group
                most_queries = self.max_query_len or num_tokens
                grid = (triton.cdiv(most_queries, queries), self.num_seqs, num_kv_heads)
                paged_prefill_kernel[grid](out, lse, *inputs, **sizes, **config)
        return out, lse

    def _decode(self, out, lse, inputs, num_kv_heads, dtype, sizes):
        config = decode_config(sizes["HEAD_DIM"], sizes["GROUP"], dtype)
        num_splits = self.num_splits or choose_num_splits(
            self.num_seqs * num_kv_heads, self.max_context_len, out.device
        )
        grid = (self.num_seqs, num_kv_heads, num_splits)
        if num_splits == 1:
            paged_decode_kernel[grid](out, lse, *inputs, **sizes, **config)
            return
        state = (*out.shape[:2], num_splits)
        parts = torch.empty((*state, out.shape[2]), dtype=torch.float32, device=out.device)
        part_lse = torch.empty(state, dtype=torch.float32, device=out.device)
        paged_decode_kernel[grid](parts, part_lse, *inputs, **sizes, **config)
        merge_splits_kernel[(self.num_seqs, out.shape[1])](
            *(out, lse, parts, part_lse, self.query_start_loc, num_splits),
            HEAD_DIM=sizes["HEAD_DIM"],
            DIM_PADDED=config["DIM_PADDED"],
            SPLIT_TILE=16,
        )
