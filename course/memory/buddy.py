"""The buddy allocator: blocks of powers of two that split in halves and merge with their twin.

Knuth, The Art of Computer Programming, vol. 1, sec. 2.5. The PagedAttention paper takes it as the
allocator of its Orca baselines (sec. 6.1).
"""

from heapq import heappop, heappush

from course.memory.arena import check_size


class FreeBlocks(set[int]):
    """Offsets of the free blocks of one size, whose lowest is found without looking at the others.

    The heap may hold offsets that have left the set; they are skipped when they come up.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []

    def add(self, offset: int) -> None:
        super().add(offset)
        heappush(self._heap, offset)
        if len(self._heap) > 2 * len(self) + 64:  # mostly what has left
            self._heap = sorted(self)

    def take_lowest(self) -> int:
        while (offset := heappop(self._heap)) not in self:
            pass
        self.remove(offset)
        return offset


class BuddyArena:
    """An arena with the interface of ``Arena`` that hands out powers of two.

    A request gets the next power of two (at least ``min_block``), so ``held(offset)`` may be more
    than it asked for. A size that is not a power of two is cut into its binary parts, the largest
    at address 0; blocks of different parts never merge. Invariant: runs and holes tile the arena
    (less a tail shorter than ``min_block``, which is never given), every piece is a power of two
    that starts at a multiple of itself, and no two free twins exist.

    ``largest_part`` is the largest block that the empty arena could give, ``usable`` the slots in
    all its blocks.
    """

    def __init__(self, size: int, min_block: int = 1) -> None:
        check_size("size", size)
        check_size("min_block", min_block)
        if min_block & (min_block - 1):
            raise ValueError(f"min_block is {min_block}: it must be a power of two.")
        self.size = size
        self.min_block = min_block
        self._runs: dict[int, int] = {}
        self._free_by_size: dict[int, FreeBlocks] = {}
        self.largest_part = 0
        start = 0
        for bit in reversed(range(size.bit_length())):
            part = 1 << bit
            if size & part and part >= min_block:
                self.largest_part = max(self.largest_part, part)
                self._add_free(start, part)
                start += part
        self.usable = self.num_free = start

    @property
    def holes(self) -> list[tuple[int, int]]:
        """(offset, size) of every free block, in address order; neighbours may touch."""
        return sorted(
            (offset, size) for size, offsets in self._free_by_size.items() for offset in offsets
        )

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(offset, size) of every block in use, in address order."""
        return sorted(self._runs.items())

    @property
    def largest_hole(self) -> int:
        """Slots of the largest free block: the largest request that would not be refused."""
        return max((size for size, offsets in self._free_by_size.items() if offsets), default=0)

    def rounded(self, size: int) -> int:
        """The block size that a request of ``size`` slots gets."""
        check_size("size", size)
        return max(self.min_block, 1 << (size - 1).bit_length())

    def held(self, offset: int) -> int:
        """Slots taken by the block at ``offset``."""
        self._check_run(offset)
        return self._runs[offset]

    def fits(self, size: int) -> bool:
        """Whether ``allocate(size)`` would succeed now."""
        return self.rounded(size) <= self.largest_hole

    def allocate(self, size: int) -> int | None:
        """The offset of a block for ``size`` slots; None when no free block is large enough.

        Takes the smallest free block that is large enough, the lowest of equals, and halves it
        until the fit is tight; the upper halves stay free.
        """
        wanted = self.rounded(size)
        candidates = [s for s, offsets in self._free_by_size.items() if offsets and s >= wanted]
        if not candidates:
            return None
        block = min(candidates)
        offset = self._free_by_size[block].take_lowest()
        while block > wanted:
            block //= 2
            self._add_free(offset + block, block)
        self._runs[offset] = wanted
        self.num_free -= wanted
        return offset

    def free(self, offset: int) -> None:
        """Return the block at ``offset``; it merges with its free twin, and again, and again."""
        self._check_run(offset)
        block = self._runs.pop(offset)
        self.num_free += block
        # A whole part has no twin: what follows it is smaller.
        while (twin := offset ^ block) in self._free_by_size.get(block, ()):
            self._free_by_size[block].discard(twin)
            offset = min(offset, twin)
            block *= 2
        self._add_free(offset, block)

    def _add_free(self, offset: int, block: int) -> None:
        self._free_by_size.setdefault(block, FreeBlocks()).add(offset)

    def _check_run(self, offset: object) -> None:
        if isinstance(offset, bool) or not isinstance(offset, int) or offset not in self._runs:
            raise ValueError(
                f"No run starts at {offset!r}: it was never allocated, or has already been freed."
            )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the class invariant holds."""
        cursor = 0
        for offset, size in sorted(self.runs + self.holes):
            assert offset == cursor, f"slot {cursor}: the next piece starts at {offset}"
            assert size & (size - 1) == 0, f"the piece at {offset} has {size} slots"
            assert offset % size == 0, f"the piece of {size} slots at {offset} is not aligned"
            cursor = offset + size
        assert cursor == self.usable, f"the pieces end at {cursor}, the blocks at {self.usable}"
        assert self.num_free == sum(size for _, size in self.holes), "num_free is wrong"
        free = set(self.holes)
        for offset, size in free:
            twin = offset ^ size
            assert (twin, size) not in free, f"free twins of {size} slots at {offset} and {twin}"
