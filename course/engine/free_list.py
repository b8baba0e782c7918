"""The free list of the block pool: a queue that any block can leave from the middle.

A prefix hit takes a block wherever it stands in the queue, so a plain list or deque will not do:
finding the block would cost a walk. With two links per block every operation is O(1) per block.
"""

from collections.abc import Iterable, Iterator
from operator import index


class FreeList:
    """Block ids in the order in which they will be reused, doubly linked.

    Invariant: walking `next` from the sentinel meets exactly `len(self)` blocks and returns to the
    sentinel, walking `prev` meets the same blocks backwards, and a block outside the list has no
    links (None).

    The sentinel stands before the first block and after the last, so that no operation has a
    special case for an empty list. It is one entry past the last block id.
    """

    def __init__(self, num_blocks: int, block_ids: Iterable[int] | None = None):
        """A list that can hold the ids 0 .. num_blocks - 1.

        block_ids: the ids that are in it at first, in order; all of them when not given.
        """
        if num_blocks < 0:
            raise ValueError(f"num_blocks is {num_blocks}; it must be 0 or more")
        self._sentinel = num_blocks
        # _next[b] and _prev[b] are the neighbours of block b. The lists hold plain numbers, so that
        # a million blocks are a few large objects and not a million small ones.
        if block_ids is None:
            self._next: list = [*range(1, num_blocks + 1), 0]
            self._prev: list = [num_blocks, *range(num_blocks)]
            self._count = num_blocks
        else:
            self._next = [None] * num_blocks + [num_blocks]
            self._prev = [None] * num_blocks + [num_blocks]
            self._count = 0
            self.append_n(block_ids)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """The ids from the first to be reused to the last. O(n): for looking, not for serving."""
        block_id = self._next[self._sentinel]
        while block_id != self._sentinel:
            yield block_id
            block_id = self._next[block_id]

    def __reversed__(self) -> Iterator[int]:
        block_id = self._prev[self._sentinel]
        while block_id != self._sentinel:
            yield block_id
            block_id = self._prev[block_id]

    def __contains__(self, block_id: int) -> bool:
        return 0 <= block_id < self._sentinel and self._next[block_id] is not None

    def links(self, block_id: int) -> tuple[int | None, int | None]:
        """The neighbours (before, after) of a block; the sentinel's id is num_blocks."""
        return self._prev[block_id], self._next[block_id]

    def popleft(self) -> int:
        """Take the first block. IndexError when the list is empty."""
        return self.popleft_n(1)[0]

    def popleft_n(self, count: int) -> list[int]:
        """Take the first `count` blocks, in order. IndexError, and nothing taken, if too few."""
        if not 0 <= count <= self._count:
            raise IndexError(f"no free blocks: {count} wanted, {self._count} in the list")
        taken = []
        for _ in range(count):
            block_id = self._next[self._sentinel]
            self._unlink(block_id)
            taken.append(block_id)
        return taken

    def remove(self, block_id: int) -> None:
        """Take one block out from wherever it stands. ValueError if it is not in the list."""
        if block_id not in self:
            raise ValueError(f"block {block_id} is not in the free list")
        self._unlink(block_id)

    def append(self, block_id: int) -> None:
        """Put one block at the end: it will be reused last."""
        self.append_n([block_id])

    def append_n(self, block_ids: Iterable[int]) -> None:
        """Put blocks at the end, in the given order. All or nothing, as `prepend_n`."""
        self._insert(list(map(index, block_ids)), after=self._sentinel)

    def prepend_n(self, block_ids: Iterable[int]) -> None:
        """Put blocks at the front: the first of them will be the next to be reused.

        ValueError, and nothing changed, if an id is outside the pool, listed twice or already in.
        """
        self._insert(list(map(index, block_ids)), after=self._next[self._sentinel])

    def _insert(self, block_ids: list[int], after: int) -> None:
        """Link blocks in, in the given order, in front of `after` (a block, or the sentinel).

        With 16 blocks the sentinel is 16. If 16 -> 7 -> 1 -> 16 are linked, inserting [10, 12]
        in front of 16 gives 7, 1, 10, 12, and in front of 7 it gives 10, 12, 7, 1.
        """
        for block_id in block_ids:
            if not 0 <= block_id < self._sentinel:
                raise ValueError(f"block {block_id} is outside 0..{self._sentinel - 1}")
            if self._next[block_id] is not None:
                raise ValueError(f"block {block_id} is in the free list already")
        if len(set(block_ids)) != len(block_ids):
            raise ValueError(f"a block is listed twice: {block_ids}")
        for block_id in block_ids:
            before = self._prev[after]
            self._prev[block_id], self._next[block_id] = before, after
            self._next[before] = self._prev[after] = block_id
        self._count += len(block_ids)

    def _unlink(self, block_id: int) -> None:
        """Take a block that is in the list out of it, from wherever it stands, in O(1).

        Its neighbours are linked to each other, and it is left without links (None).
        """
        before, after = self._prev[block_id], self._next[block_id]
        self._next[before], self._prev[after] = after, before
        self._prev[block_id] = self._next[block_id] = None
        self._count -= 1
