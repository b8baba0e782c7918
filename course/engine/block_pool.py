"""The block pool: all KV memory, cut into equal blocks, lent out by reference count."""

from collections import Counter
from collections.abc import Container, Iterable
from operator import index

from course.engine.free_list import FreeList
from course.engine.invariants import check_pool


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free. Nothing was taken."""


class DoubleFree(ValueError):
    """A block was given back by somebody who no longer owned it. Nothing was freed."""


class BlockPool:
    """Hands out block ids; knows how many owners each block has, and nothing of tokens.

    Invariant: a block is in the free list exactly when its reference count is 0. So the free and
    the used blocks are disjoint and together are the pool: num_free + num_used == num_blocks.

    Every operation costs O(1) per block it touches, whatever the size of the pool. No block is set
    aside as a "null block": all `num_blocks` can be used.

    >>> pool = BlockPool(4, order=[2, 0, 1, 3])
    >>> pool.allocate(2), pool.num_free
    ([2, 0], 2)
    >>> pool.share([2])
    >>> pool.free([2, 0])
    >>> pool.num_free, pool.ref_count(2)
    (3, 1)
    """

    def __init__(self, num_blocks: int, order: Iterable[int] | None = None):
        """num_blocks: size of the pool in blocks.

        order: every block id once, in the order in which fresh blocks are handed out (for a worked
        example whose ids should not be 0, 1, 2, ...); ascending when not given.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool needs at least 1 block")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = FreeList(num_blocks, order)
        if len(self._free) != num_blocks:
            raise ValueError(
                f"order names {len(self._free)} of {num_blocks} blocks; name each once"
            )

    @property
    def num_free(self) -> int:
        """Blocks without an owner, those with reusable content included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one owner; a shared block counts once."""
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that have an owner, 0 to 1."""
        return self.num_used / self.num_blocks

    @property
    def free_blocks(self) -> list[int]:
        """The free ids, next to be reused first. O(n): for looking, not for serving."""
        return list(self._free)

    def ref_count(self, block_id: int) -> int:
        """How many owners the block has. ValueError outside the pool."""
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"block {block_id} is outside the pool 0..{self.num_blocks - 1}")
        return self._ref_counts[block_id]

    def allocate(self, count: int = 1) -> list[int]:
        """Take `count` free blocks, each with one owner.

        If fewer are free: OutOfBlocks, and nothing is taken. ValueError: `count` is negative.
        """
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks; ask for 0 or more")
        if count > self.num_free:
            raise OutOfBlocks(
                f"{count} blocks wanted, {self.num_free} of {self.num_blocks} free: "
                "wait for a request to finish, preempt one, or make the pool larger"
            )
        block_ids = self._free.popleft_n(count)
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """One more owner for each block. ValueError, nothing changed, if one of them is free."""
        block_ids = list(block_ids)
        for block_id in block_ids:
            if self.ref_count(block_id) == 0:
                raise ValueError(f"block {block_id} is free: it has no content to share")
        for block_id in block_ids:
            self._ref_counts[block_id] += 1

    def claim(self, block_ids: Iterable[int]) -> None:
        """One more owner for each block, free or not, because its content is wanted.

        A prefix hit: a block that waits in the free list leaves it from the middle.
        """
        block_ids = list(block_ids)
        for block_id in block_ids:
            self.ref_count(block_id)  # refuses ids outside the pool before anything changes
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                self._free.remove(block_id)
            self._ref_counts[block_id] += 1

    def free(self, block_ids: Iterable[int], keep: Container[int] = ()) -> None:
        """One owner less for each block; a block without owners goes back to the free list.

        All or nothing: a block listed twice needs two owners, else DoubleFree and nothing changes.
        Blocks in `keep` (their content may be wanted again) go to the end of the free list in the
        given order, so they are reused last and oldest first; all others go to the front.
        """
        block_ids = list(map(index, block_ids))  # plain: equal tensors are not counted together
        for block_id, times in Counter(block_ids).items():
            owners = self.ref_count(block_id)
            if times > owners:
                raise DoubleFree(
                    f"block {block_id} is freed {times} time(s) and has {owners} owner(s): "
                    "each owner frees a block once"
                )
        ownerless = []
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                ownerless.append(block_id)
        self._free.prepend_n([block_id for block_id in ownerless if block_id not in keep])
        self._free.append_n([block_id for block_id in ownerless if block_id in keep])

    def check_invariants(self) -> None:
        """Walk the whole pool; InvariantError says what is wrong."""
        check_pool(self)
