"""Attention over a paged KV cache: one function, four ways to compute it.

"reference"  plain loops, to be read and to check the others with
"torch"      PyTorch operations that are quick on a CPU (and run anywhere)
"native"     the same walk over the block tables in C, the quickest on a CPU with a C compiler
"triton"     kernels for a GPU; on a CPU only in Triton's interpreter, to study them
"""

import torch

from course.engine.attention_plan import AttentionPlan
from course.engine.native.library import native_problem
from course.engine.triton_support import BackendUnavailable, triton_status

__all__ = [
    "AttentionPlan",
    "BackendUnavailable",
    "available_backends",
    "merge_attention_states",
    "paged_attention",
]


def available_backends() -> dict[str, str]:
    """Each backend by name: "ok", or why it cannot run here."""
    return {
        "reference": "ok",
        "torch": "ok",
        "native": native_problem() or "ok",
        "triton": triton_status().problem or "ok",
    }


def paged_attention(
    q,
    keys,
    values,
    block_tables,
    context_lens,
    *,
    query_start_loc=None,
    scale=None,
    backend="auto",
    num_splits=None,
    sliding_window=None,
    max_context_len=None,
    max_query_len=None,
    key_scales=None,
    value_scales=None,
    return_lse=False,
):
    """Attention of each sequence's newest tokens over its cached keys and values.

    q              ``[num_tokens, num_heads, head_dim]``, the sequences one after another
    keys, values   one layer of the cache, ``[num_blocks, block_size, num_kv_heads, head_dim]``
    block_tables   int32 ``[num_seqs, max_blocks]``; entries that no query sees are never read
    context_lens   int32 ``[num_seqs]``, tokens in the cache, this step's included; 0 gives zeros
    query_start_loc  int32 ``[num_seqs + 1]``: rows of q of each sequence; None: one row each
    scale          factor on q . k, default ``head_dim ** -0.5``
    num_splits     how many programs share one long context (triton); None: chosen
    sliding_window W: a token sees itself and the W - 1 before it
    max_context_len, max_query_len  upper bounds, so that a GPU need not be asked for them
    key_scales, value_scales  fp32 ``[num_blocks, block_size, num_kv_heads]`` of an int8 cache

    Returns out, like q; with ``return_lse`` also lse, fp32 ``[num_tokens, num_heads]``, natural
    logarithm. Scores and sums are fp32. ValueError for arguments that do not fit together (on a
    GPU, what the tensors hold is not looked at), BackendUnavailable for a backend that cannot run.
    """
    if keys.dim() != 4:
        raise ValueError(f"keys have shape {tuple(keys.shape)}; one layer has 4 dimensions")
    plan = AttentionPlan(
        block_tables,
        context_lens,
        query_start_loc,
        block_size=keys.shape[1],
        sliding_window=sliding_window,
        backend=backend,
        device=q.device,
        num_splits=num_splits,
        max_context_len=max_context_len,
        max_query_len=max_query_len,
    )
    return plan.attend(
        q, keys, values, key_scales, value_scales, scale=scale, return_lse=return_lse
    )


def merge_attention_states(out_a, lse_a, out_b, lse_b):
    """Attention over two disjoint sets of tokens, from the attention over each.

    out ``[num_tokens, num_heads, head_dim]``, lse fp32 ``[num_tokens, num_heads]``, natural
    logarithm. A part weighs exp(lse), the sum under its softmax. A part with lse -inf saw no token:
    it weighs nothing, whatever its out holds; two such parts give zeros and -inf. Commutative and
    associative (up to rounding), so any number of parts can be merged in any order. The result is
    (out, lse): out with the dtype of ``out_a``, lse fp32.

    >>> def one_head(*numbers):
    ...     return torch.tensor(numbers).view(1, 1, -1)
    >>> lse_3, lse_1 = torch.log(torch.tensor([[3.0]])), torch.log(torch.tensor([[1.0]]))
    >>> out, lse = merge_attention_states(one_head(10.0, 4.0), lse_3, one_head(20.0, 8.0), lse_1)
    >>> out.flatten().tolist(), round(float(lse.exp()), 4)
    ([12.5, 5.0], 4.0)
    """
    if out_a.shape != out_b.shape or lse_a.shape != lse_b.shape or lse_a.shape != out_a.shape[:-1]:
        shapes = [tuple(t.shape) for t in (out_a, lse_a, out_b, lse_b)]
        raise ValueError(
            f"shapes {shapes}: expected out [num_tokens, num_heads, head_dim] and lse "
            "[num_tokens, num_heads], twice"
        )
    lse_a, lse_b = lse_a.float(), lse_b.float()
    larger = torch.maximum(lse_a, lse_b)
    larger = torch.where(larger == float("-inf"), 0.0, larger)  # -inf - -inf would be NaN
    weight_a, weight_b = torch.exp(lse_a - larger), torch.exp(lse_b - larger)
    total = weight_a + weight_b
    out = torch.zeros_like(out_a, dtype=torch.float32)
    for part, weight in ((out_a, weight_a), (out_b, weight_b)):
        share = (weight / total)[..., None]  # NaN where both are empty
        out += torch.where(weight[..., None] > 0, part.float() * share, 0.0)  # 0 * NaN is NaN
    return out.to(out_a.dtype), larger + torch.log(total)
