"""Lab 03: right answers that stand nowhere else, wrong ones, other right ones, and why."""

from __future__ import annotations

from textwrap import indent

from course.practice.compare import Parting
from course.practice.exercise import Alternative, Answers, Inputs, Mistake
from course.practice.source import clean

# ---- Answers that exist only for this lab -------------------------------------------------------

refused_calls = [("allocate", "A", 31), ("allocate", "B", 1), ("free", "A"), ("allocate", "C", 33)]

failing_release = ([(5, "v"), (28, "A"), (31, None)], 0)


def release_run(pieces: list[tuple[int, str | None]], place: int) -> None:
    """Give back the run at `place`, in place; it merges with the free pieces on either side.

    `pieces` are (slots, owner) in address order, from one end of the arena to the other. The owner
    of a free piece is None, and no two of those touch. ValueError: the piece is free already, and
    nothing has changed.

    >>> pieces = [(5, None), (28, "A"), (4, None), (27, "B")]
    >>> release_run(pieces, 1)
    >>> pieces
    [(37, None), (27, 'B')]
    """
    size, owner = pieces[place]
    if owner is None:
        raise ValueError(f"The piece at place {place} is free already.")
    if place + 1 < len(pieces) and pieces[place + 1][1] is None:
        size += pieces.pop(place + 1)[0]
    if place > 0 and pieces[place - 1][1] is None:
        place -= 1
        size += pieces.pop(place)[0]
    pieces[place] = (size, None)


predicted_moved_share = {1: 1 / 2, 2: 2 / 3, 4: 4 / 5, 8: 8 / 9}

diagnoses = {"P": "quiet", "Q": "cap", "R": "holes", "S": "full", "T": "reservation", "U": "cap"}

# ---- 3.1 ----------------------------------------------------------------------------------------

_LEFT = "touches_left = left >= 0 and self._offsets[left] + self._sizes[left] == offset"
_RIGHT = "touches_right = right < len(self._offsets) and offset + size == self._offsets[right]"
_FIND = "index = FITS[self.fit](self._sizes, size)"
_CHECK_RUN = """        self._check_run(offset)
        size = self._runs.pop(offset)
"""
_BOTH = """        if touches_left and touches_right:
            self._sizes[left] += size + self._sizes[right]
            del self._offsets[right], self._sizes[right]
        elif touches_left:
"""
_INSERT = """            self._offsets.insert(right, offset)
            self._sizes.insert(right, size)
"""
_CUT = """        offset = self._offsets[index]
        if self._sizes[index] == size:
            del self._offsets[index], self._sizes[index]
        else:
            self._offsets[index] += size
            self._sizes[index] -= size
        self._runs[offset] = size
"""
_NONE = """        if index is None:
            return None
        offset"""

ARENA = Answers(
    mistakes=(
        Mistake(
            "freed slots never merge with the holes beside them",
            "The border between two holes means nothing to a request. Where they touch, make one "
            "entry of them.",
            edit=((_LEFT, "touches_left = False"), (_RIGHT, "touches_right = False")),
        ),
        Mistake(
            "only the hole after the run is looked at",
            "The run has two sides: a hole may end just where it begins.",
            edit=((_LEFT, "touches_left = False"),),
        ),
        Mistake(
            "only the hole before the run is looked at",
            "The run has two sides: a hole may begin just where it ends.",
            edit=((_RIGHT, "touches_right = False"),),
        ),
        Mistake(
            "a run between two holes joins the first of them, and then the work seems done",
            "The hole that has grown now touches the next one. Two holes and a run make one hole, "
            "so one entry of the list must go.",
            edit=((_BOTH, "        if touches_left:\n"),),
        ),
        Mistake(
            "the run joins two holes, and the second stays in the list all the same",
            "Its slots are in the first one now. Two holes and a run make one hole: an entry of "
            "the list must go.",
            edit=(
                (
                    "            del self._offsets[right], self._sizes[right]\n        elif",
                    "        elif",
                ),
            ),
        ),
        Mistake(
            "the hole after the run grows and still begins where it did",
            "It begins where the run began: its offset changes as well as its size.",
            edit=(("            self._offsets[right] = offset\n", ""),),
        ),
        Mistake(
            "there is taken to be a hole after every run",
            "The place that `bisect_right` gives may be behind the last hole. Ask whether there is "
            "one.",
            edit=((_RIGHT, "touches_right = offset + size == self._offsets[right]"),),
        ),
        Mistake(
            "there is taken to be a hole before every run",
            "Place 0 has none before it: index -1 is the last hole, or an `IndexError`.",
            edit=((_LEFT, _LEFT.replace("left >= 0 and ", "")),),
        ),
        Mistake(
            "a run that is handed out is not put on record",
            "`_runs` says which runs there are. Without an entry a run can never be freed.",
            edit=(("        self._runs[offset] = size\n", ""),),
        ),
        Mistake(
            "the place in the list of holes is returned",
            "The caller needs the offset, that is the first slot of its run.",
            edit=(("        return offset\n", "        return index\n"),),
        ),
        Mistake(
            "`fit` is not asked",
            '`FITS["first"]` is one of two searches. `FITS[self.fit]` is the one that this arena '
            "was made with.",
            edit=((_FIND, 'index = FITS["first"](self._sizes, size)'),),
        ),
        Mistake(
            "the neighbours in the list are taken for neighbours in memory",
            "Between two holes of the list there may lie a run that somebody uses. They touch only "
            "if one ends where the other begins.",
            edit=(
                (_LEFT, "touches_left = left >= 0"),
                (_RIGHT, "touches_right = right < len(self._offsets)"),
            ),
        ),
        Mistake(
            "holes are put at the end of the list",
            "Neighbours are found by their place in the list, so it has to stay in address order.",
            edit=(
                (
                    _INSERT,
                    "            self._offsets.append(offset)\n"
                    "            self._sizes.append(size)\n",
                ),
            ),
        ),
        Mistake(
            "the offset is read after the hole was cut",
            "By then it is where the rest of the hole begins. Keep the offset before you move it.",
            edit=(
                (
                    _CUT,
                    "        self._offsets[index] += size\n"
                    "        self._sizes[index] -= size\n"
                    "        offset = self._offsets[index]\n"
                    "        if not self._sizes[index]:\n"
                    "            del self._offsets[index], self._sizes[index]\n"
                    "        self._runs[offset] = size\n",
                ),
            ),
        ),
        Mistake(
            "the high end of the hole is cut",
            "The docstring says the low end: the run begins where the hole began.",
            edit=(
                (
                    _CUT,
                    "        self._sizes[index] -= size\n"
                    "        offset = self._offsets[index] + self._sizes[index]\n"
                    "        if not self._sizes[index]:\n"
                    "            del self._offsets[index], self._sizes[index]\n"
                    "        self._runs[offset] = size\n",
                ),
            ),
        ),
        Mistake(
            "a hole that is used up stays in the list",
            "A hole of 0 slots is none. It would sit between two runs that touch.",
            edit=(
                (
                    _CUT,
                    "        offset = self._offsets[index]\n"
                    "        self._offsets[index] += size\n"
                    "        self._sizes[index] -= size\n"
                    "        self._runs[offset] = size\n",
                ),
            ),
        ),
        Mistake(
            "a hole of just the right length is passed over",
            "It is the best that can be found: `>=` and not `>`.",
            edit=(
                (
                    _FIND,
                    "index = next((i for i, hole in enumerate(self._sizes) if hole > size), None)",
                ),
            ),
        ),
        Mistake(
            "the longest hole is taken",
            "First fit takes the first that is long enough, in address order, whatever its length.",
            edit=(
                (
                    _FIND,
                    "index = self._sizes.index(max(self._sizes)) if self._sizes else None\n"
                    "        if index is not None and self._sizes[index] < size:\n"
                    "            index = None",
                ),
            ),
        ),
        Mistake(
            "the shortest hole that will do is taken",
            "That is best fit. `self.fit` says which search is asked for, and `FITS` has it.",
            edit=(
                (
                    _FIND,
                    "enough = [hole for hole in self._sizes if hole >= size]\n"
                    "        index = self._sizes.index(min(enough)) if enough else None",
                ),
            ),
        ),
        Mistake(
            "the index is asked whether it is true",
            "The first hole has index 0, which counts as False. Ask `is None`.",
            edit=((_NONE, _NONE.replace("index is None", "not index")),),
        ),
        Mistake(
            "all free slots together are asked whether they suffice",
            "A run lies in one piece, so one hole must hold all of it. That is the whole trouble.",
            edit=((_FIND, "index = 0 if size <= self.num_free else None"),),
        ),
        Mistake(
            "a request that finds no hole is an error",
            "It happens every second on a busy server: None, and the caller waits.",
            edit=((_NONE, _NONE.replace("return None", 'raise ValueError("no hole")')),),
        ),
        Mistake(
            "slots that come back are not counted as free again",
            "`num_free` is the sum of the holes at any time.",
            edit=(("        self.num_free += size\n", ""),),
        ),
        Mistake(
            "slots that are handed out are still counted as free",
            "`num_free` is the sum of the holes at any time.",
            edit=(("        self.num_free -= size\n", ""),),
        ),
        Mistake(
            "a freed run is still on record",
            "Freed a second time, it would give back slots that are somebody else's by now. Take "
            "it out of `_runs`.",
            edit=(("size = self._runs.pop(offset)", "size = self._runs[offset]"),),
        ),
        Mistake(
            "an unknown offset is left to the dictionary",
            "A `KeyError` says nothing of runs. `_check_run` is there for it: the docstring "
            "promises a `ValueError`.",
            edit=((_CHECK_RUN, "        size = self._runs.pop(offset)\n"),),
        ),
        Mistake(
            "an unknown offset is passed over in silence",
            "Whoever frees what is no run has lost count somewhere. An error tells them now.",
            edit=(
                (
                    _CHECK_RUN,
                    "        if offset not in self._runs:\n"
                    "            return\n"
                    "        size = self._runs.pop(offset)\n",
                ),
            ),
        ),
        Mistake(
            "any size is taken as it comes",
            "A run of 0 slots would lie where the next run begins, and one of -1 gives slots away. "
            "Refuse it first.",
            edit=(('        check_size("size", size)\n        index', "        index"),),
        ),
    ),
    alternatives=(
        Alternative(
            "holes as pairs: put in, sorted, and merged from left to right",
            code="""
            class Arena:
                def __init__(self, size, fit="first"):
                    check_size("size", size)
                    self.size, self.num_free, self.fit = size, size, fit
                    self.holes = [(0, size)]
                    self._runs = {}

                def allocate(self, size):
                    check_size("size", size)
                    by_length = (lambda hole: hole[1]) if self.fit == "best" else None
                    for offset, length in sorted(self.holes, key=by_length):
                        if length >= size:
                            place = self.holes.index((offset, length))
                            rest = [(offset + size, length - size)] if length > size else []
                            self.holes = self.holes[:place] + rest + self.holes[place + 1 :]
                            self._runs[offset] = size
                            self.num_free -= size
                            return offset

                def free(self, offset):
                    if offset not in self._runs:
                        raise ValueError(f"no run at {offset}")
                    size = self._runs.pop(offset)
                    self.num_free += size
                    merged = []
                    for start, length in sorted([*self.holes, (offset, size)]):
                        if merged and sum(merged[-1]) == start:
                            start, length = merged[-1][0], merged.pop()[1] + length
                        merged.append((start, length))
                    self.holes = merged
            """,
        ),
        Alternative(
            "one mark a slot, and no list of holes at all",
            code="""
            class Arena:
                def __init__(self, size, fit="first"):
                    self.size, self.best = size, fit == "best"
                    self.slots = [None] * size

                @property
                def num_free(self):
                    return self.slots.count(None)

                @property
                def holes(self):
                    found, start = [], None
                    for place, mark in enumerate([*self.slots, "end"]):
                        if mark is None and start is None:
                            start = place
                        elif mark is not None and start is not None:
                            found.append((start, place - start))
                            start = None
                    return found

                def allocate(self, size):
                    check_size("size", size)
                    fitting = [
                        (length if self.best else 0, offset)
                        for offset, length in self.holes
                        if length >= size
                    ]
                    if not fitting:
                        return None
                    start = min(fitting)[1]
                    for place in range(start, start + size):
                        self.slots[place] = start
                    return start

                def free(self, offset):
                    # A slot is marked with the first slot of its run.
                    if not 0 <= offset < self.size or self.slots[offset] != offset:
                        raise ValueError(offset)
                    self.slots = [None if mark == offset else mark for mark in self.slots]
            """,
        ),
        Alternative(
            "holes are what the runs leave",
            code="""
            class Arena:
                def __init__(self, size, fit="first"):
                    self.size, self.fit, self.runs = size, fit, {}

                @property
                def holes(self):
                    found, end = [], 0
                    for offset in [*sorted(self.runs), self.size]:
                        if offset > end:
                            found.append((end, offset - end))
                        end = offset + self.runs.get(offset, 0)
                    return found

                @property
                def num_free(self):
                    return self.size - sum(self.runs.values())

                def allocate(self, size):
                    check_size("size", size)
                    holes = self.holes
                    index = FITS[self.fit]([length for _, length in holes], size)
                    if index is not None:
                        self.runs[holes[index][0]] = size
                        return holes[index][0]

                def free(self, offset):
                    try:
                        del self.runs[offset]
                    except KeyError:
                        raise ValueError(f"{offset} is not a run") from None
            """,
        ),
        Alternative(
            "put the hole in first, then join it to what it touches",
            edit=(
                (
                    _BOTH
                    + "            self._sizes[left] += size\n"
                    + "        elif touches_right:\n"
                    + "            self._offsets[right] = offset\n"
                    + "            self._sizes[right] += size\n"
                    + "        else:\n"
                    + _INSERT,
                    """        self._offsets.insert(right, offset)
        self._sizes.insert(right, size)
        if touches_right:
            self._sizes[right] += self._sizes.pop(right + 1)
            self._offsets.pop(right + 1)
        if touches_left:
            self._sizes[left] += self._sizes.pop(right)
            self._offsets.pop(right)
""",
                ),
            ),
        ),
    ),
    why="""
    What keeps an arena useful is one invariant: no two holes touch. `free` restores it at once,
    where the border disappears, and so the list never has to be searched for holes that belong
    together. There are four cases, and only the last one makes the list longer: a hole on both
    sides (one entry less), before, after, and none.

    `allocate` needs no merging. It shortens one hole at its low end, and a hole that shrinks comes
    to touch nothing.
    """,
    shown="a run between two holes joins the first of them, and then the work seems done",
    shown_part="free",
    equivalent={},
)

# ---- 3.2 ----------------------------------------------------------------------------------------


def _searched(body: str) -> str:
    head = "def best_fit(sizes: list[int], size: int) -> int | None:"
    return head + "\n" + indent(clean(body), "    ") + "\n"


_ENOUGH = "enough = [(hole, index) for index, hole in enumerate(sizes) if hole >= size]"
_MIN = "return min(enough)[1] if enough else None"

BEST_FIT = Answers(
    mistakes=(
        Mistake(
            "the first hole that is long enough is taken",
            "That is first fit. Look at all of them before you decide.",
            edit=((_MIN, "return enough[0][1] if enough else None"),),
        ),
        Mistake(
            "the longest hole is taken",
            "That is called worst fit: it leaves the longest rest. Best fit leaves the shortest.",
            edit=((_MIN, "return max(enough)[1] if enough else None"),),
        ),
        Mistake(
            "the last of equally short holes is taken",
            "Nothing but the docstring decides between them: the first. With `<=` in a loop, a "
            "later one takes its place.",
            code=_searched("""
            best = None
            for index, hole in enumerate(sizes):
                if hole >= size and (best is None or hole <= sizes[best]):
                    best = index
            return best
            """),
        ),
        Mistake(
            "a hole of just the right length is passed over",
            "It leaves no rest at all, so nothing is better: `>=` and not `>`.",
            edit=((_ENOUGH, _ENOUGH.replace(">=", ">")),),
        ),
        Mistake(
            "the index counts in the sorted list",
            "The arena's holes are in address order. Sort pairs of size and index, and the index "
            "still says which hole it was.",
            code=_searched("""
            for index, hole in enumerate(sorted(sizes)):
                if hole >= size:
                    return index
            return None
            """),
        ),
        Mistake(
            "the index counts among the holes that are long enough",
            "The short ones are in the arena's list as well. Remember each hole's index before you "
            "leave any out.",
            code=_searched("""
            enough = [hole for hole in sizes if hole >= size]
            return enough.index(min(enough)) if enough else None
            """),
        ),
        Mistake(
            "the list of holes itself gets sorted",
            "It is the arena's own list, in address order, and neighbours are found by it. "
            "`sorted` makes a new one.",
            code=_searched("""
            sizes.sort()
            for index, hole in enumerate(sizes):
                if hole >= size:
                    return index
            return None
            """),
        ),
        Mistake(
            "the hole's length is returned",
            "Asked is which hole it is: its place in the list.",
            edit=((_MIN, "return min(enough)[0] if enough else None"),),
        ),
        Mistake(
            "the hole that is nearest in length is taken, be it too short",
            "A hole that is one slot too short is of no use. First those that are long enough, "
            "then the shortest of them.",
            code=_searched("""
            if not sizes or max(sizes) < size:
                return None
            return min(range(len(sizes)), key=lambda index: abs(sizes[index] - size))
            """),
        ),
        Mistake(
            "the shortest hole of all is looked at, and no other",
            "That it is too short says nothing of the others.",
            code=_searched("""
            if not sizes or min(sizes) < size:
                return None
            return sizes.index(min(sizes))
            """),
        ),
        Mistake(
            "an index of 0 is taken for none yet",
            "0 counts as False. A best hole at index 0 is then thrown away for the next one: ask "
            "`best is None`.",
            code=_searched("""
            best = None
            for index, hole in enumerate(sizes):
                if hole >= size and (not best or hole < sizes[best]):
                    best = index
            return best
            """),
        ),
        Mistake(
            "no hole is said with -1",
            "-1 is the last hole to Python, and the arena would cut it. None cannot be mistaken.",
            edit=((_MIN, "return min(enough)[1] if enough else -1"),),
        ),
        Mistake(
            "`min` is asked for the smallest of nothing",
            "With no hole long enough the list is empty. None is a right answer, not an error.",
            edit=((_MIN, "return min(enough)[1]"),),
        ),
    ),
    alternatives=(
        Alternative(
            "a loop that remembers the best so far",
            code=_searched("""
            best, best_hole = None, float("inf")
            for index, hole in enumerate(sizes):
                if size <= hole < best_hole:
                    best, best_hole = index, hole
            return best
            """),
        ),
        Alternative(
            "`min` over the indices",
            code=_searched("""
            places = [index for index in range(len(sizes)) if sizes[index] >= size]
            return min(places, key=sizes.__getitem__, default=None)
            """),
        ),
        Alternative(
            "the shortest length first, then where it stands",
            code=_searched("""
            lengths = sorted(hole for hole in sizes if not hole < size)
            return sizes.index(lengths[0]) if lengths else None
            """),
        ),
        Alternative(
            "length by length, upwards",
            code=_searched("""
            for wanted in range(size, max(sizes, default=0) + 1):
                if wanted in sizes:
                    return sizes.index(wanted)
            """),
        ),
    ),
    why="""
    Pairs compare by their first entry, and by the second where the first are equal. So the smallest
    pair is the shortest hole that is long enough and, of equals, the one with the lowest address:
    both rules of the docstring in one `min`.

    It looks at every hole, where first fit stops at the first that fits. In the lesson that bought
    a few points of the pool, and no end of the holes.
    """,
    shown="an index of 0 is taken for none yet",
)

# ---- 3.3 ----------------------------------------------------------------------------------------

_FREE = "free = sum(size for _, size in holes)"
_USED = "used = sum(size // request_size * request_size for _, size in holes)"
_SHARE = "return 1 - used / free if free else 0.0"


def _sum_of(inputs: Inputs) -> tuple[int, int]:
    sizes = [size for _, size in inputs["holes"]]
    return sum(sizes), max(sizes, default=0)


def _in_one_piece(inputs: Inputs, parting: Parting) -> str:
    free, _ = _sum_of(inputs)
    request = inputs["request_size"]
    return f"{free} // {request} = {free // request} requests, had the {free} slots no borders"


def _outside_longest(inputs: Inputs, parting: Parting) -> str:
    free, longest = _sum_of(inputs)
    return f"1 - {longest} / {free} = {1 - longest / free:.3f}" if free else ""


SHARE = Answers(
    mistakes=(
        Mistake(
            "a hole that takes one request is counted as wholly usable",
            "What is left of it when no more requests go in is lost, too: the remainder.",
            edit=((_USED, "used = sum(size for _, size in holes if size >= request_size)"),),
        ),
        Mistake(
            "each hole takes one request and no more",
            "A hole of 9 slots takes two requests of 4. How many go in?",
            edit=(
                (_USED, "used = sum(request_size for _, size in holes if size >= request_size)"),
            ),
        ),
        Mistake(
            "the free slots are taken together, as if in one piece",
            "No request lies across two holes. Ask each hole by itself, then add up.",
            edit=((_USED, "used = free // request_size * request_size"),),
            arithmetic=_in_one_piece,
        ),
        Mistake(
            "the share outside the longest hole is given",
            "That is `external_fragmentation`: it does not know who asks. A request that is short "
            "enough finds room in the other holes as well.",
            edit=((_USED, "used = max((size for _, size in holes), default=0)"),),
            arithmetic=_outside_longest,
        ),
        Mistake(
            "the usable share is given",
            "The name asks for the other part: 1 minus it.",
            edit=((_SHARE, "return used / free if free else 0.0"),),
        ),
        Mistake(
            "holes are counted, and not their slots",
            "One long hole outweighs many crumbs. The share is one of slots.",
            edit=(
                (_FREE, "free = len(holes)"),
                (_USED, "used = sum(size >= request_size for _, size in holes)"),
            ),
        ),
        Mistake(
            "requests are counted, and not the slots that they take",
            "Each takes `request_size` slots: multiply before you compare with the free ones.",
            edit=((_USED, "used = sum(size // request_size for _, size in holes)"),),
        ),
        Mistake(
            "the share is rounded",
            "The example rounds what comes out, to be short. The function gives all digits.",
            edit=((_SHARE, "return round(1 - used / free, 3) if free else 0.0"),),
        ),
        Mistake(
            "slots are given, and not their share",
            "Divide by all free slots. 10 lost slots are much of 20 and little of 2,000.",
            edit=((_SHARE, "return float(free - used)"),),
        ),
        Mistake(
            "it is given in per cent",
            "A share lies between 0 and 1 here; whoever prints it may multiply by 100.",
            edit=((_SHARE, "return 100 * (1 - used / free) if free else 0.0"),),
        ),
        Mistake(
            "`/` divides where a whole number of requests is meant",
            "A third of a request is none. `//` counts those that go in whole; divided with `/` "
            "and multiplied again, a hole comes out as it was.",
            edit=((_USED, "used = sum(size / request_size * request_size for _, size in holes)"),),
        ),
        Mistake(
            "offset and size of a hole have changed places",
            "A hole is (offset, size). The first number says where it lies, and nothing of how "
            "long it is.",
            edit=(
                (_FREE, "free = sum(size for size, _ in holes)"),
                (_USED, "used = sum(size // request_size * request_size for size, _ in holes)"),
            ),
        ),
        Mistake(
            "it divides by the free slots when there are none",
            "A full arena has no holes to lose anything in: 0.",
            edit=((_SHARE, "return 1 - used / free"),),
        ),
        Mistake(
            "nothing free is taken for everything lost",
            "None of 0 slots is lost. It is a full arena, which is what one wants.",
            edit=((_SHARE, "return 1 - used / free if free else 1.0"),),
        ),
    ),
    alternatives=(
        Alternative(
            "the remainders, added up",
            code="""
            def unusable_share(holes, request_size):
                check_size("request_size", request_size)
                free = lost = 0
                for _, size in holes:
                    free += size
                    lost += size % request_size
                return lost / max(free, 1)
            """,
        ),
        Alternative(
            "requests, one after the other",
            code="""
            def unusable_share(holes, request_size):
                left = [hole[1] for hole in holes]
                total = sum(left)
                if total == 0:
                    return 0
                for place in range(len(left)):
                    while left[place] >= request_size:
                        left[place] -= request_size
                return sum(left) / total
            """,
        ),
        Alternative(
            "with NumPy",
            code="""
            import numpy as np


            def unusable_share(holes, request_size):
                sizes = np.array([size for _, size in holes], dtype=np.int64)
                if not len(sizes):
                    return 0.0
                return float((sizes % request_size).sum() / sizes.sum())
            """,
        ),
    ),
    why="""
    Each hole is asked by itself: `size // request_size` requests go in whole, and the remainder is
    lost to requests of this size. Only then are slots added up. In the other order, the sum first,
    the borders are gone, and so is the very thing to be measured: that is the mistake of the memory
    bar in the lesson.

    The same holes give 0 for requests of one slot and 1 for requests longer than the longest hole.
    So a monitor that shows one number for "fragmentation" has decided for you who asks.
    """,
    shown="the free slots are taken together, as if in one piece",
)

# ---- 3.4 ----------------------------------------------------------------------------------------


def _calls(told: str) -> str:
    """ "A31 B1 -A C33" as the answer's text."""
    words = told.split()
    calls = [
        f'("free", "{w[1:]}")' if w[0] == "-" else f'("allocate", "{w[0]}", {w[1:]})' for w in words
    ]
    return "refused_calls = [\n" + "".join(f"    {call},\n" for call in calls) + "]\n"


REFUSAL = Answers(
    mistakes=(
        Mistake(
            "the arena is simply full",
            "Nothing is free when the last call comes, and no arrangement would help. Let somebody "
            "leave first.",
            code=_calls("A64 B1"),
        ),
        Mistake(
            "more is asked for than the arena has",
            "That is refused by any allocator on any day. The free slots must suffice.",
            code=_calls("A65"),
        ),
        Mistake(
            "the rest behind the last run is forgotten",
            "It is a hole like any other, and here the longest. Either use it up or ask for more "
            "than it holds.",
            code=_calls("A5 B28 -A C8"),
        ),
        Mistake(
            "everybody has left, so there is one hole again",
            "Holes that touch merge. Something that stays must lie between two of them.",
            code=_calls("A31 B33 -A -B C40"),
        ),
        Mistake(
            "the two that leave lie side by side",
            "Holes that touch merge, so the two make one hole. Something that stays must lie "
            "between.",
            code=_calls("v5 A28 w4 B27 -v -A C8"),
        ),
        Mistake(
            "the request is as long as the longest hole",
            "Then that hole takes it, to the last slot. One slot more, and none does.",
            code=_calls("A31 B1 -A C32"),
        ),
        Mistake(
            "the slot in use is forgotten",
            "With one slot in use, 63 are free: a request for all 64 has to wait wherever that one "
            "lies.",
            code=_calls("A31 B1 -A C64"),
        ),
        Mistake(
            "the day of the running example is taken as it is",
            "It is a refusal with room to spare, and it tells a story. Which of its calls does the "
            "refusal not need?",
            code=_calls("v5 A28 w4 B27 -v -w C8"),
        ),
        Mistake(
            "both holes are made by somebody who leaves",
            "The rest of the arena behind the last run is a hole for which nobody has to leave.",
            code=_calls("A31 B1 D32 -A -D C33"),
        ),
        Mistake(
            "the run that stays is a long one",
            "The calls are as few as can be. But it is not length that divides an arena: how short "
            "can the run in the middle be?",
            code=_calls("A5 B28 -A C32"),
        ),
    ),
    alternatives=(
        Alternative("a crumb in front", code=_calls("A1 B1 -A C63")),
        Alternative("a crumb at the end", code=_calls("x62 y1 -x z63")),
        Alternative(
            "as lists, with a size for the free as in the lesson",
            code='refused_calls = [["allocate", "A", 30], ["allocate", "B", 1], '
            '["free", "A", 0], ["allocate", "C", 50]]\n',
        ),
    ),
    why="""
    A refusal with room to spare needs two holes, and something between them. The hole at the low
    end can only come from a run that has left, so: it comes, its neighbour comes, it leaves, and
    the last one is refused. The second hole is there from the start: the rest of the arena.

    One slot in use is enough, if it lies in the middle: 63 of 64 slots are free, and a request for
    33 is refused. So the share of free memory says nothing about what can be had.
    """,
    shown="the run that stays is a long one",
)

# ---- 3.5 ----------------------------------------------------------------------------------------


def _failing(told: str, place: int) -> str:
    pieces = [
        f'({size}, "{owner[0]}")' if owner else f"({size}, None)"
        for size, *owner in (word.split(":") for word in told.split())
    ]
    return f"failing_release = ([{', '.join(pieces)}], {place})\n"


FAULT = Answers(
    mistakes=(
        Mistake(
            "a run in the middle is released, as in the lesson",
            "There is a piece on either side of it. Where is there none? Places count from 0.",
            code=_failing("5 28:A 4 27:B", 1),
        ),
        Mistake(
            "the last piece is released",
            "For the piece after it there is a check. And for the piece before the first?",
            code=_failing("5:v 28:A 31:B", 2),
        ),
        Mistake(
            "the first piece is released while the last one is in use",
            "The place is right. What the function takes for the piece before it must be free for "
            "the fault to show.",
            code=_failing("5:v 28:A 31:B", 0),
        ),
        Mistake(
            "the hole after the first piece is the last one as well",
            "It is taken out of the list before the function looks to the other side. Let a run "
            "stand between.",
            code=_failing("5:v 59", 0),
        ),
        Mistake(
            "a free piece is released",
            "That gives an error, as it should. The fault is in how runs are released.",
            code=_failing("5 28:A 31", 0),
        ),
        Mistake(
            "holes that touch are put there from the start",
            "No right arena gets into such a state, so nobody has to be able to get out of it.",
            code=_failing("5:v 28:A 20 11", 0),
        ),
        Mistake(
            "the running example is given, with its end free",
            "It goes wrong, too. But w adds nothing to it.",
            code=_failing("5:v 28:A 4:w 27", 0),
        ),
    ),
    alternatives=(
        Alternative("as small as can be", code=_failing("1:a 1:b 1", 0)),
        Alternative("with other names", code=_failing("28:A 27:B 9", 0)),
        Alternative("as lists", code='failing_release = [[[10, "x"], [20, "y"], [34, None]], 0]\n'),
    ),
    why="""
    For the first piece, `place - 1` is -1, and `pieces[-1]` is no error in Python: it is the *last*
    piece. If that is free, the function merges the two ends of the arena. Here it takes the 31
    slots at the end out of the list, adds them to the 5 of v, and writes the sum over A. A has lost
    its slots to the next who asks, and v, which has left, still stands in the list.

    The arena of the running example never shows it: B lies at its end all day.
    """,
    shown="a run in the middle is released, as in the lesson",
)

# ---- 3.6 ----------------------------------------------------------------------------------------

_RELEASE_HEAD = '''
def release_run(pieces: list[tuple[int, str | None]], place: int) -> None:
    """Give back the run at `place`, in place; it merges with the free pieces on either side.

    `pieces` are (slots, owner) in address order, from one end of the arena to the other. The owner
    of a free piece is None, and no two of those touch. ValueError: the piece is free already, and
    nothing has changed.

    >>> pieces = [(5, None), (28, "A"), (4, None), (27, "B")]
    >>> release_run(pieces, 1)
    >>> pieces
    [(37, None), (27, 'B')]
    """
    size, owner = pieces[place]
'''
_FREE_ALREADY = """
if owner is None:
    raise ValueError(f"The piece at place {place} is free already.")
"""
_AFTER = """
if place + 1 < len(pieces) and pieces[place + 1][1] is None:
    size += pieces.pop(place + 1)[0]
"""
_BEFORE_WRONG = """
if pieces[place - 1][1] is None:
    place -= 1
    size += pieces.pop(place)[0]
"""
_BEFORE = """
if place > 0 and pieces[place - 1][1] is None:
    place -= 1
    size += pieces.pop(place)[0]
"""
_PUT = "pieces[place] = (size, None)"


def _mended(*parts: str) -> str:
    return clean(_RELEASE_HEAD) + "\n" + indent("\n".join(map(clean, parts)), "    ") + "\n"


RELEASE = Answers(
    mistakes=(
        Mistake(
            "index -1 is taken for the piece before the first",
            "In Python it is the last piece. Before the first one there is none: ask `place > 0`.",
            code=_mended(_FREE_ALREADY, _AFTER, _BEFORE_WRONG, _PUT),
        ),
        Mistake(
            "no run joins the hole before it while the end of the arena is free",
            "That hides the fault and makes another. Only the first piece must not look for one "
            "before it.",
            code=_mended(
                _FREE_ALREADY,
                _AFTER,
                """
                if pieces[place - 1][1] is None and pieces[-1][1] is not None:
                    place -= 1
                    size += pieces.pop(place)[0]
                """,
                _PUT,
            ),
        ),
        Mistake(
            "the first two pieces are taken for the first",
            "The piece at place 1 has one before it: `place > 0`, or `place >= 1`.",
            code=_mended(_FREE_ALREADY, _AFTER, _BEFORE.replace("> 0", "> 1"), _PUT),
        ),
        Mistake(
            "the first piece is let go without a look at the one after it",
            "It has a neighbour as well, on one side. Leave the early way out away.",
            code=_mended(
                _FREE_ALREADY,
                """
                if place == 0:
                    pieces[0] = (size, None)
                    return
                """,
                _AFTER,
                _BEFORE,
                _PUT,
            ),
        ),
        Mistake(
            "the first piece stays as it was",
            "It leaves like any other: it has no piece before it, and still becomes free.",
            code=_mended(
                _FREE_ALREADY,
                _AFTER,
                """
                if place == 0:
                    return
                """,
                _BEFORE,
                _PUT,
            ),
        ),
        Mistake(
            "the side that was wrong is no longer looked at",
            "The fault is gone, and with it half of the merging: two holes that touch are left.",
            code=_mended(_FREE_ALREADY, _AFTER, _PUT),
        ),
        Mistake(
            "the check for the end of the list has gone",
            "Behind the last piece there is none: `pieces[len(pieces)]` is an `IndexError`.",
            code=_mended(
                _FREE_ALREADY,
                _AFTER.replace("place + 1 < len(pieces) and ", ""),
                _BEFORE,
                _PUT,
            ),
        ),
        Mistake(
            "a hole on one side keeps it from looking at the other",
            "`elif` takes one branch. A run between two holes has to join both.",
            code=_mended(_FREE_ALREADY, _AFTER, "el" + clean(_BEFORE), _PUT),
        ),
        Mistake(
            "after the piece before it is gone, the place still counts it",
            "Everything behind the removed piece has moved down by one. So has the run.",
            code=_mended(
                _FREE_ALREADY,
                _AFTER,
                """
                if place > 0 and pieces[place - 1][1] is None:
                    size += pieces.pop(place - 1)[0]
                """,
                _PUT,
            ),
        ),
        Mistake(
            "a piece that is free already is freed again",
            "The docstring promises an error. Whoever frees twice has lost count of what is "
            "theirs.",
            code=_mended(_AFTER, _BEFORE, _PUT),
        ),
        Mistake(
            "a new list is made, which the caller never sees",
            "`pieces = ...` gives the name in this function another list. Change the one that was "
            "given: `pieces[:] = ...`, `pop`, `insert`.",
            code=_mended(
                _FREE_ALREADY,
                """
                pieces = list(pieces)
                """,
                _AFTER,
                _BEFORE,
                _PUT,
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "first and last piece of what becomes one hole",
            code=_mended(
                _FREE_ALREADY,
                """
                first, last = place, place
                if first > 0 and pieces[first - 1][1] is None:
                    first -= 1
                if last < len(pieces) - 1 and pieces[last + 1][1] is None:
                    last += 1
                size = sum(slots for slots, _ in pieces[first : last + 1])
                pieces[first : last + 1] = [(size, None)]
                """,
            ),
        ),
        Alternative(
            "written anew, from left to right",
            code=_mended(
                _FREE_ALREADY,
                """
                pieces[place] = (size, None)
                merged = []
                for slots, owner in pieces:
                    if owner is None and merged and merged[-1][1] is None:
                        merged[-1] = (merged[-1][0] + slots, None)
                    else:
                        merged.append((slots, owner))
                pieces[:] = merged
                """,
            ),
        ),
        Alternative(
            "a run at either end",
            code=_mended(
                """
                if owner is None:
                    raise ValueError(place)
                pieces.insert(0, (0, "start"))
                pieces.append((0, "end"))
                pieces[place + 1] = (size, None)
                for left in (place + 1, place):
                    if pieces[left][1] is None and pieces[left + 1][1] is None:
                        pieces[left : left + 2] = [(pieces[left][0] + pieces[left + 1][0], None)]
                del pieces[0], pieces[-1]
                """,
            ),
        ),
    ),
    why="""
    One condition, `place > 0`, says what the check on the other side said already: there is a piece
    there. The kind of fault is common and quiet. In most languages index -1 stops the program; in
    Python, and in arrays on a GPU, it is a real place that belongs to somebody. You will meet it
    again in lesson 05 as slot -1, which is the last slot of the last block.
    """,
    shown="a hole on one side keeps it from looking at the other",
    equivalent={},
)

# ---- 3.7 ----------------------------------------------------------------------------------------


def _guess(*shares: float) -> str:
    told = ", ".join(f"{n}: {share}" for n, share in zip((1, 2, 4, 8), shares, strict=True))
    return f"predicted_moved_share = {{{told}}}\n"


MOVED = Answers(
    mistakes=(
        Mistake(
            "everything is taken to move",
            "What lies below the first hole stays where it is. With few holes that is much.",
            code=_guess(1, 1, 1, 1),
        ),
        Mistake(
            "half of it is taken to move, however many have left",
            "That is right for one hole, which lies in the middle on average. The *first* of "
            "several lies lower, and only what is below the first stays.",
            code=_guess(0.5, 0.5, 0.5, 0.5),
        ),
        Mistake(
            "as much is taken to move as has left",
            "The holes are not copied: the runs above them are, all of them, however small the "
            "hole is.",
            code=_guess(1 / 16, 2 / 16, 4 / 16, 8 / 16),
        ),
        Mistake(
            "only the run next to each hole is taken to move",
            "It leaves a hole behind it when it slides down, and so the next one moves as well.",
            code=_guess(round(1 / 15, 3), round(2 / 14, 3), round(4 / 12, 3), 1),
        ),
        Mistake(
            "the share that stays is given",
            "Nearly there. What is asked for is the share that is copied: 1 minus it.",
            code=_guess(0.5, 0.333, 0.2, 0.111),
        ),
        Mistake(
            "slots are counted, and not their share",
            "Divide by the slots that are still in use: 60 when one run of 4 has left.",
            code=_guess(30, 37.3, 38.4, 28.4),
        ),
        Mistake(
            "the share of the whole arena is given",
            "Asked is what part of the slots *in use* is copied. With 8 of 16 gone, that is half "
            "of the arena.",
            code=_guess(0.47, 0.583, 0.6, 0.444),
        ),
        Mistake(
            "each departure is taken to halve what stays",
            "So it would be if each hole were drawn below the one before. The holes lie anywhere: "
            "of 2 holes and a run, the run is the lowest in one of 3 orders.",
            code=_guess(0.5, 0.75, 0.938, 0.996),
        ),
    ),
    alternatives=(
        Alternative(
            "as a formula", code="predicted_moved_share = {k: k / (k + 1) for k in (1, 2, 4, 8)}\n"
        ),
        Alternative("rounded", code=_guess(0.5, 0.67, 0.8, 0.9)),
        Alternative("a careful estimate", code=_guess(0.52, 0.65, 0.78, 0.87)),
    ),
    why="""
    A run stays where it is only if no hole lies below it. Take a run and the `k` that have left:
    drawn at random, each of the `k + 1` is the lowest equally often, so the run is below all holes
    in one case of `k + 1`. The others move: `k / (k + 1)`.

    So the amount of free memory hardly matters. Two short visitors who leave cost the copy of two
    thirds of everything, and a server where many come and go copies nearly all of it each time.
    """,
    shown="as much is taken to move as has left",
)

# ---- 3.8 ----------------------------------------------------------------------------------------

# How the readings came about: one moment (the step) of a run over 300 Azure conversations each.
# A test makes them again.
RECIPES = {
    "P": {"policy": "slab", "calm": True, "step": 400},
    "Q": {"policy": "slab", "max_batch": 5, "step": 300},
    "R": {"policy": "first-fit", "step": 600},
    "S": {"policy": "paged", "step": 300},
    "T": {"policy": "pow2", "step": 400},
    "U": {"policy": "paged", "max_batch": 10, "step": 300},
}


def readings() -> dict[str, dict[str, int]]:
    """What the bank's READINGS hold, simulated."""
    from course.memory import make_policy, steps
    from course.workload import make_requests, mix, poisson

    lengths = mix("azure_conv_2023").sample(300, seed=3)
    rush, calm = make_requests(lengths), make_requests(lengths, poisson(300, 1.0, seed=4))
    found = {}
    for server, how in RECIPES.items():
        run = steps(
            calm if how.get("calm") else rush,
            make_policy(how["policy"], 32_768, 4096),
            step_s=0.03,
            all_at_once=not how.get("calm"),
            max_batch=how.get("max_batch"),
        )
        now = next(step for step in run if step.step >= how["step"])
        accounts = {name: int(value) for name, value in now.ledger.as_dict().items()}
        found[server] = {"running": now.batch, "waiting": now.waiting, **accounts}
    return found


_WAIT = "Look at the second reading: somebody waits, so something is wanted and not given."
_NO_HOLES = (
    "The external account is 0: no request is kept out by slots that are free in pieces too short."
)
_WRONG = {
    "P": {
        "cap": "A limit holds somebody back. Who is it? Nobody waits.",
        "holes": "Nobody waits, so nobody finds the free slots too short, and external is 0.",
        "full": "A fifth of the pool holds tokens, and a whole slab is free for the next one.",
        "reservation": "Most of it is held for nothing, true, and it will hurt on a busy day. "
        "Today nobody waits: with shorter ones not one more request would run.",
    },
    "Q": {
        "quiet": _WAIT,
        "holes": _NO_HOLES + " These 12,288 could be had at any time.",
        "full": "12,288 slots are free, in no reservation at all.",
        "reservation": "The reservations are empty, and yet they keep nobody out: each holds 4,096 "
        "slots, and three times as many are free. Something else says no.",
    },
    "R": {
        "quiet": _WAIT,
        "cap": "A limit would leave slots free that the next request could have had. Here it could "
        "not: they stand under external.",
        "full": "A third of the pool is in no reservation.",
        "reservation": "Nothing is internal, and little is reserved for later. What is lost is "
        "lost between the requests.",
    },
    "S": {
        "quiet": _WAIT,
        "cap": "A running request holds about 1,300 slots, and 320 are free. The memory says no "
        "before any limit does.",
        "holes": _NO_HOLES,
        "reservation": "What is held is nearly all live: 195 slots of more than 32,000 are not "
        "written yet. There is nothing to save.",
    },
    "T": {
        "quiet": _WAIT,
        "cap": "Not one slot is free. Whatever limits there are, the memory comes first.",
        "holes": _NO_HOLES + " None is free at all.",
        "full": "It looks full from outside. But of what is held, two fifths hold no token: look "
        "at internal.",
    },
    "U": {
        "quiet": _WAIT,
        "holes": _NO_HOLES + " The next request could have its slots at once.",
        "full": "Two thirds of the pool are free.",
        "reservation": "What is held is nearly all live; reserved and internal are about 0.",
    },
}
_SAID = {
    "quiet": "server {} is taken for quiet",
    "cap": "a limit is blamed on server {}",
    "holes": "holes are blamed on server {}",
    "full": "server {} is taken for full",
    "reservation": "the reservations are blamed on server {}",
}


def _diagnosed(changed: dict[str, str]) -> str:
    told = ", ".join(f'"{server}": "{cause}"' for server, cause in (diagnoses | changed).items())
    return f"diagnoses = {{{told}}}\n"


DIAGNOSES = Answers(
    mistakes=tuple(
        Mistake(_SAID[cause].format(server), note, code=_diagnosed({server: cause}))
        for server, wrong in _WRONG.items()
        for cause, note in wrong.items()
    ),
    alternatives=(
        Alternative("one a line", code=_diagnosed({}).replace(", ", ",\n    ")),
        Alternative(
            "from the other end",
            code="diagnoses = {\n"
            + "".join(f'    "{s}": "{c}",\n' for s, c in reversed(diagnoses.items()))
            + "}\n",
        ),
        Alternative(
            "by cause, turned round",
            code="""
            found = {"quiet": "P", "cap": "QU", "holes": "R", "full": "S", "reservation": "T"}
            diagnoses = {server: cause for cause, servers in found.items() for server in servers}
            """,
        ),
    ),
    why="""
    - **P**: nobody waits. Three quarters of what it holds are empty, which is worth knowing and not
      what ails it.
    - **Q** and **U**: somebody waits, and the free slots suffice: none is external. It is not the
      memory. Q has long, empty slabs besides, and shortening them would not start one more request.
    - **R**: the free slots would suffice and are in pieces.
    - **S** and **T**: too few are free. In S what is held is live, and only more memory helps, or
      fewer bytes a token. In T two fifths of it are held and empty: do not reserve so much.

    The order of the questions is what makes it easy: each account accuses somebody, and most of
    them are innocent on the day.
    """,
    shown="the reservations are blamed on server Q",
)

ANSWERS = {
    "Arena": ARENA,
    "best_fit": BEST_FIT,
    "unusable_share": SHARE,
    "refused_calls": REFUSAL,
    "failing_release": FAULT,
    "release_run": RELEASE,
    "predicted_moved_share": MOVED,
    "diagnoses": DIAGNOSES,
}
