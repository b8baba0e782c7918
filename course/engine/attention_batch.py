"""Which sequences one attention step is about: the numbers every backend needs, checked once."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class AttentionBatch:
    """Host copies, checked by `check_batch`. Row i of the tables belongs to sequence i.

    Its queries are the rows ``query_start_loc[i]`` to ``query_start_loc[i + 1]`` of q. They are the
    *last* tokens of its context, so with 6 tokens in the context and 2 query rows, these stand at
    positions 4 and 5.
    """

    block_tables: np.ndarray  # [num_seqs, max_blocks]
    context_lens: np.ndarray  # [num_seqs]
    query_start_loc: np.ndarray  # [num_seqs + 1]
    block_size: int
    sliding_window: int | None
    num_blocks_named: int  # one more than the highest block that may be read

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_loc[-1])

    def first_visible(self, position):
        """The first position that a query at ``position`` sees (an int or an array of them)."""
        if self.sliding_window is None:
            return position * 0
        return np.maximum(position - self.sliding_window + 1, 0)

    def sequences(self):
        """(block table, context length, first query row, end query row) of each sequence."""
        starts = self.query_start_loc.tolist()
        lens = self.context_lens.tolist()
        return zip(self.block_tables, lens, starts[:-1], starts[1:], strict=True)


def check_window(sliding_window) -> None:
    if sliding_window is not None and (
        isinstance(sliding_window, bool)
        or not isinstance(sliding_window, int)
        or sliding_window < 1
    ):
        raise ValueError(
            f"sliding_window={sliding_window!r}: a token sees at least itself; give an int >= 1, "
            "or None for all tokens before it"
        )


def check_batch(
    block_tables, context_lens, query_start_loc, block_size: int, sliding_window: int | None
) -> AttentionBatch:
    """Lists, arrays or tensors to a checked `AttentionBatch`; ValueError says what is wrong.

    Lists of block ids may differ in length. Entries that no query sees are not looked at: those
    after the context, and those that the sliding window has passed.
    """
    check_window(sliding_window)
    tables = _integers("block_tables", _pad(block_tables), 2)
    lens = _integers("context_lens", context_lens, 1)
    num_seqs, max_blocks = tables.shape
    if query_start_loc is None:  # decode: one token each
        query_start_loc = np.arange(num_seqs + 1)
    starts = _integers("query_start_loc", query_start_loc, 1)
    if len(lens) != num_seqs or len(starts) != num_seqs + 1:
        raise ValueError(
            f"{num_seqs} block tables need {num_seqs} context_lens and {num_seqs + 1} entries of "
            f"query_start_loc; got {len(lens)} and {len(starts)}"
        )
    num_queries = np.diff(starts)
    if starts[0] != 0 or (num_queries < 0).any():
        raise ValueError(f"query_start_loc must start at 0 and never fall; got {starts.tolist()}")

    for problem, seq in (
        ("is negative", np.flatnonzero(lens < 0)),
        (
            f"does not fit its table of {max_blocks} blocks of {block_size}: grow the table first",
            np.flatnonzero(lens > max_blocks * block_size),
        ),
        (
            "is less than its query tokens: context_lens counts this step's tokens too",
            np.flatnonzero((lens > 0) & (lens < num_queries)),
        ),
    ):
        if seq.size:
            raise ValueError(f"context_lens[{seq[0]}] = {lens[seq[0]]} {problem}")

    batch = AttentionBatch(tables, lens, starts, block_size, sliding_window, 0)
    first_block = batch.first_visible(np.maximum(lens - num_queries, 0)) // block_size
    end_block = -(-lens // block_size)
    logical = np.arange(max_blocks)
    is_read = (logical >= first_block[:, None]) & (logical < end_block[:, None])
    is_read &= (num_queries > 0)[:, None]
    read = tables[is_read]
    if read.size and read.min() < 0:
        seq, block = np.argwhere(is_read & (tables < 0))[0]
        raise ValueError(
            f"block_tables[{seq}, {block}] = {tables[seq, block]}, but tokens in that block are "
            f"seen by this step (context {lens[seq]}, block size {block_size}, sliding window "
            f"{sliding_window}): only blocks that no query sees may be given back"
        )
    named = int(read.max()) + 1 if read.size else 0
    return AttentionBatch(tables, lens, starts, block_size, sliding_window, named)


def _pad(block_tables):
    if isinstance(block_tables, (torch.Tensor, np.ndarray)):
        return block_tables
    width = max((len(table) for table in block_tables), default=0)
    padded = np.full((len(block_tables), width), -1, np.int64)
    for row, table in zip(padded, block_tables, strict=True):
        row[: len(table)] = table
    return padded


def _integers(name: str, values, num_dims: int) -> np.ndarray:
    array = values.numpy(force=True) if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != num_dims or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} must be integers with {num_dims} dimension(s); got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array.astype(np.int64)
