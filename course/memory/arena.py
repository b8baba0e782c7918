"""A contiguous arena: variable-size reservations, holes, coalescing, compaction.

This is what a server has when each request gets one run of slots of its own size. ``BuddyArena``
in ``buddy.py`` has the same interface.
"""

from bisect import bisect_right
from typing import NamedTuple


class Move(NamedTuple):
    """One copy made by compaction: ``size`` slots from ``source`` to ``destination``."""

    source: int
    destination: int
    size: int


def check_size(name: str, value: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of at least 1.")


def first_fit(sizes: list[int], size: int) -> int | None:
    """Which hole to cut ``size`` slots from: the first that is long enough; None: there is none.

    ``sizes`` are those of the holes, in address order; what comes back is an index into them.

    >>> first_fit([5, 4], 4)
    0
    """
    return next((index for index, hole in enumerate(sizes) if hole >= size), None)


def best_fit(sizes: list[int], size: int) -> int | None:
    """Which hole to cut ``size`` slots from: the shortest that is long enough; None: there is none.

    ``sizes`` are those of the holes, in address order; what comes back is an index into them. Of
    holes that are equally short it is the first.

    >>> best_fit([5, 4], 4)
    1
    >>> best_fit([5, 9, 4, 9], 8)
    1
    """
    enough = [(hole, index) for index, hole in enumerate(sizes) if hole >= size]
    return min(enough)[1] if enough else None


FITS = {"first": first_fit, "best": best_fit}


class Arena:
    """``size`` slots, handed out as runs of any length.

    Invariant: runs and holes tile the arena from 0 to ``size``, and no two holes touch.
    ``fit`` says which hole is cut, ``"first"`` or ``"best"``; it is cut at its low end.

    >>> arena = Arena(64)
    >>> [arena.allocate(size) for size in (5, 28, 4, 27)]  # a visitor, A, a visitor, B
    [0, 5, 33, 37]
    >>> arena.free(0), arena.free(33)  # the visitors leave
    (None, None)
    >>> arena.holes, arena.allocate(8)  # C comes
    ([(0, 5), (33, 4)], None)
    >>> arena.free(5)  # A leaves
    >>> arena.holes
    [(0, 37)]
    """

    def __init__(self, size: int, fit: str = "first") -> None:
        check_size("size", size)
        if fit not in FITS:
            raise ValueError(f"fit is {fit!r}: choose one of {', '.join(FITS)}.")
        self.size = size
        self.fit = fit
        self.num_free = size
        self._runs: dict[int, int] = {}  # offset -> size
        # holes in address order, offsets and sizes side by side
        self._offsets = [0]
        self._sizes = [size]

    @property
    def holes(self) -> list[tuple[int, int]]:
        """(offset, size) of every hole, in address order."""
        return list(zip(self._offsets, self._sizes, strict=True))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(offset, size) of every run in use, in address order."""
        return sorted(self._runs.items())

    @property
    def largest_hole(self) -> int:
        """Slots of the longest hole: the largest request that would not be refused."""
        return max(self._sizes, default=0)

    def held(self, offset: int) -> int:
        """Slots taken by the run at ``offset``; for this arena exactly what was asked for."""
        self._check_run(offset)
        return self._runs[offset]

    def fits(self, size: int) -> bool:
        """Whether ``allocate(size)`` would succeed now."""
        return size <= self.largest_hole

    def allocate(self, size: int) -> int | None:
        """The offset of a new run of ``size`` slots; None when no hole is long enough.

        ValueError: size is not a whole number of at least 1.
        """
        check_size("size", size)
        index = FITS[self.fit](self._sizes, size)
        if index is None:
            return None
        offset = self._offsets[index]
        if self._sizes[index] == size:
            del self._offsets[index], self._sizes[index]
        else:
            self._offsets[index] += size
            self._sizes[index] -= size
        self._runs[offset] = size
        self.num_free -= size
        return offset

    def free(self, offset: int) -> None:
        """Return the run at ``offset``; it merges with the holes on either side.

        ValueError: no run starts there, and nothing has changed.
        """
        self._check_run(offset)
        size = self._runs.pop(offset)
        self.num_free += size
        right = bisect_right(self._offsets, offset)
        left = right - 1
        touches_left = left >= 0 and self._offsets[left] + self._sizes[left] == offset
        touches_right = right < len(self._offsets) and offset + size == self._offsets[right]
        if touches_left and touches_right:
            self._sizes[left] += size + self._sizes[right]
            del self._offsets[right], self._sizes[right]
        elif touches_left:
            self._sizes[left] += size
        elif touches_right:
            self._offsets[right] = offset
            self._sizes[right] += size
        else:
            self._offsets.insert(right, offset)
            self._sizes.insert(right, size)

    def compact(self) -> list[Move]:
        """Slide every run to the low end, so that all free slots form one hole.

        Returns the copies to make, in an order in which none overwrites a run not yet moved. The
        sum of their sizes is what compaction costs; the caller must rename its offsets.
        """
        moves, cursor = [], 0
        for offset, size in self.runs:
            if offset != cursor:
                moves.append(Move(offset, cursor, size))
                self._runs[cursor] = self._runs.pop(offset)
            cursor += size
        self._offsets = [cursor] if cursor < self.size else []
        self._sizes = [self.size - cursor] if cursor < self.size else []
        return moves

    def _check_run(self, offset: object) -> None:
        # True == 1 as a key, so ask for the type as well
        if isinstance(offset, bool) or not isinstance(offset, int) or offset not in self._runs:
            raise ValueError(
                f"No run starts at {offset!r}: it was never allocated, or has already been freed."
            )

    def check_invariants(self) -> None:
        """Raise AssertionError unless runs and holes tile the arena and no two holes touch."""
        cursor, after_hole = 0, False
        for offset, size in sorted(self.runs + self.holes):
            assert offset == cursor, f"slot {cursor}: the next piece starts at {offset}"
            assert size >= 1, f"the piece at {offset} has {size} slots"
            is_hole = offset not in self._runs
            assert not (is_hole and after_hole), f"the hole at {offset} touches the one before"
            cursor, after_hole = offset + size, is_hole
        assert cursor == self.size, f"the pieces end at {cursor}, the arena at {self.size}"
        assert self.num_free == sum(self._sizes), "num_free is not the sum of the holes"


def external_fragmentation(holes: list[tuple[int, int]]) -> float:
    """Share of the free slots that lie outside the longest hole; one hole alone gives 0.

    >>> external_fragmentation([(0, 5), (33, 4)])
    0.4444444444444444
    """
    sizes = [size for _, size in holes]
    return 1 - max(sizes) / sum(sizes) if sizes else 0.0


def unusable_share(holes: list[tuple[int, int]], request_size: int) -> float:
    """Share of the free slots that requests of ``request_size`` slots could not be given.

    Unlike ``external_fragmentation`` it knows what is asked for: any number of holes is
    harmless to a small request. Nothing free: 0.

    Requests of 2 find place for two in the hole of 5 and for two in the hole of 4; 1 slot of 9 is
    left over. A request of 8 finds none.

    >>> round(unusable_share([(0, 5), (33, 4)], 2), 3)
    0.111
    >>> unusable_share([(0, 5), (33, 4)], 8)
    1.0
    """
    check_size("request_size", request_size)
    free = sum(size for _, size in holes)
    used = sum(size // request_size * request_size for _, size in holes)
    return 1 - used / free if free else 0.0


def smallest_refused(holes: list[tuple[int, int]]) -> int | None:
    """The smallest request that is refused although as many slots are free; None: no such."""
    sizes = [size for _, size in holes]
    return max(sizes) + 1 if len(sizes) > 1 else None
