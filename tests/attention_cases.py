"""Attention cases with a known answer: made dense, answered in float64, then laid out in a cache.

The answer is computed before there is any block: it knows nothing of tables, slots or backends.
Everything that must not be read is poison: NaN in every slot that no query sees, nonsense in every
table entry that no query needs.
"""

from dataclasses import dataclass

import numpy as np
import torch

GARBAGE = (-1, 2**31 - 1, -(2**31), 999_999_999)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Case:
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_start_loc: torch.Tensor
    sliding_window: int | None
    expected: np.ndarray  # float64 [num_tokens, num_heads, head_dim]
    expected_lse: np.ndarray

    @property
    def arguments(self) -> dict:
        return {
            "block_tables": self.block_tables,
            "context_lens": self.context_lens,
            "query_start_loc": self.query_start_loc,
            "sliding_window": self.sliding_window,
        }

    def check(self, out, lse=None, tolerance=None):
        """Assert that out (and lse) are the expected ones."""
        tolerance = tolerance or TOLERANCE[self.q.dtype]
        assert out.dtype == self.q.dtype
        assert tuple(out.shape) == self.expected.shape
        found = out.double().cpu().numpy()
        assert np.isfinite(found).all(), "out holds NaN or infinity: poison was read"
        np.testing.assert_allclose(found, self.expected, rtol=tolerance, atol=tolerance)
        if lse is not None:
            assert lse.dtype == torch.float32
            np.testing.assert_allclose(lse.double().cpu(), self.expected_lse, rtol=1e-4, atol=1e-4)


def dense_attention(q, k, v, first_position, window=None):
    """Softmax attention of one sequence in float64; q starts at position ``first_position``."""
    num_queries, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    out = np.zeros(q.shape)
    lse = np.full((num_queries, num_heads), -np.inf)
    for row in range(num_queries):
        position = first_position + row
        start = 0 if window is None else max(0, position - window + 1)
        for head in range(num_heads):
            scores = k[start : position + 1, head // group] @ q[row, head] / np.sqrt(head_dim)
            if scores.size == 0:
                continue
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v[start : position + 1, head // group] / weights.sum()
            lse[row, head] = scores.max() + np.log(weights.sum())
    return out, lse


def make_case(
    context_lens,
    num_queries=None,
    *,
    block_size=16,
    num_kv_heads=2,
    group=2,
    head_dim=64,
    dtype=torch.float32,
    window=None,
    shuffled=True,
    device="cpu",
    seed=0,
) -> Case:
    """Random q, k and v for sequences of these lengths; block ids in random order."""
    rng, placing = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    num_queries = num_queries or [1] * len(context_lens)
    num_heads = num_kv_heads * group

    def draw(*shape):  # rounded to the dtype first, so that rounding is not held against anyone
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype).double().numpy()

    widest = max((-(-n // block_size) for n in context_lens), default=0) + 2
    num_blocks = len(context_lens) * widest + 3
    ids = placing.permutation(num_blocks) if shuffled else np.arange(num_blocks)
    tables = placing.choice(GARBAGE, (len(context_lens), widest)).astype(np.int64)
    keys = np.full((num_blocks, block_size, num_kv_heads, head_dim), np.nan)
    values = keys.copy()
    queries, outs, lses, next_id = [], [], [], 0
    for seq, (context_len, count) in enumerate(zip(context_lens, num_queries, strict=True)):
        q = draw(count, num_heads, head_dim)
        k, v = (draw(context_len, num_kv_heads, head_dim) for _ in range(2))
        first = max(context_len - count, 0)
        if context_len:
            out, lse = dense_attention(q, k, v, context_len - count, window)
        else:
            out, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
        seen = range(
            0 if window is None else max(0, first - window + 1), context_len if count else 0
        )
        for position in seen:
            logical, row = divmod(position, block_size)
            if row == 0 or position == seen[0]:
                tables[seq, logical] = ids[next_id]
                next_id += 1
            keys[tables[seq, logical], row] = k[position]
            values[tables[seq, logical], row] = v[position]
        queries.append(q)
        outs.append(out)
        lses.append(lse)

    def tensor(array, kind):
        return torch.from_numpy(np.asarray(array)).to(kind).to(device)

    return Case(
        tensor(np.concatenate(queries), dtype),
        tensor(keys, dtype),
        tensor(values, dtype),
        tensor(tables, torch.int32),
        tensor(context_lens, torch.int32),
        tensor(np.concatenate([[0], np.cumsum(num_queries)]), torch.int32),
        window,
        np.concatenate(outs),
        np.concatenate(lses),
    )
