"""One step's attention, planned once: what all layers share is checked and laid out here."""

from functools import partial

import torch

from course.engine.attention_batch import check_batch, check_window
from course.engine.triton_support import choose_backend

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class AttentionPlan:
    """What all layers of one step share: checked, laid out and moved to the device once.

    Arguments as in `paged_attention`; tables and lengths may also be lists. For a GPU give them as
    lists or host tensors with ``device``: they are then checked and cross over once.
    """

    def __init__(
        self,
        block_tables,
        context_lens,
        query_start_loc=None,
        *,
        block_size: int,
        sliding_window: int | None = None,
        backend: str = "auto",
        device: torch.device | str | None = None,
        num_splits: int | None = None,
        max_context_len: int | None = None,
        max_query_len: int | None = None,
    ):
        if device is None:
            device = block_tables.device if isinstance(block_tables, torch.Tensor) else "cpu"
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self.block_size = block_size
        self.backend = choose_backend(backend, self.device)
        check_window(sliding_window)
        if num_splits is not None and (not isinstance(num_splits, int) or num_splits < 1):
            raise ValueError(f"num_splits={num_splits!r}: give an int >= 1, or None to choose")
        tensors = (block_tables, context_lens, query_start_loc)
        self.batch = None
        if self.backend == "triton" and any(getattr(t, "is_cuda", False) for t in tensors):
            from course.engine.triton_attention import TritonAttention

            limits = (num_splits, max_context_len, max_query_len)
            self._compute = TritonAttention(*tensors, block_size, sliding_window, *limits)
            return
        self.batch = batch = check_batch(*tensors, block_size, sliding_window)
        if self.backend == "triton":
            from course.engine.triton_attention import TritonAttention

            self._compute = TritonAttention.from_batch(batch, self.device, num_splits)
        elif self.backend == "native":
            from course.engine.native.attention import NativeAttention

            self._compute = NativeAttention(batch, self.device)
        elif self.backend == "torch":
            from course.engine.attention_torch import TorchAttention

            self._compute = TorchAttention(batch, self.device)
        else:
            from course.engine.attention_reference import reference_attention

            self._compute = partial(reference_attention, batch)

    def attend(
        self, q, keys, values, key_scales=None, value_scales=None, *, scale=None, return_lse=False
    ):
        """Attention of one layer: ``plan.attend(q, *cache.layer(i))``; see `paged_attention`."""
        self._check(q, keys, values, key_scales, value_scales)
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        out, lse = self._compute(
            q, keys, values, key_scales, value_scales, scale=scale, return_lse=return_lse
        )
        return (out, lse) if return_lse else out

    def _check(self, q, keys, values, key_scales, value_scales) -> None:
        """Shapes only: this runs in every layer."""
        if q.dim() != 3 or keys.dim() != 4 or keys.shape != values.shape:
            raise ValueError(
                f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}: "
                "expected [num_tokens, num_heads, head_dim] and twice the same "
                "[num_blocks, block_size, num_kv_heads, head_dim]"
            )
        num_blocks, block_size, num_kv_heads, head_dim = keys.shape
        if q.shape[2] != head_dim or q.shape[1] % num_kv_heads:
            raise ValueError(
                f"q has {q.shape[1]} heads of {q.shape[2]}, the cache {num_kv_heads} of {head_dim}:"
                " head_dim must be equal and each KV head serve the same number of query heads"
            )
        if block_size != self.block_size:
            raise ValueError(f"cache of block size {block_size}, plan for {self.block_size}")
        if q.dtype not in FLOATS or keys.dtype not in (*FLOATS, torch.int8):
            raise ValueError(f"q is {q.dtype}, the cache {keys.dtype}: use fp32, fp16 or bf16")
        is_int8 = keys.dtype == torch.int8
        if is_int8 != (key_scales is not None) or is_int8 != (value_scales is not None):
            raise ValueError("an int8 cache needs key_scales and value_scales, others have none")
        if not q.device == keys.device == self.device:
            raise ValueError(f"q on {q.device}, cache on {keys.device}, plan on {self.device}")
        if self.batch is None:
            return
        if q.shape[0] != self.batch.num_tokens:
            raise ValueError(
                f"q has {q.shape[0]} rows, query_start_loc speaks of {self.batch.num_tokens}"
            )
        if self.batch.num_blocks_named > num_blocks:
            raise ValueError(
                f"block_tables name block {self.batch.num_blocks_named - 1}, "
                f"the cache has blocks 0 to {num_blocks - 1}"
            )
