"""Lab 03, fragmentation: an arena, the search, a measure, the smallest refusal, and a diagnosis."""

from __future__ import annotations

from functools import cache
from itertools import groupby, pairwise
from random import Random
from typing import Any

from course.memory.arena import Arena
from course.practice.compare import Parting
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt
from course.practice.guess import how_far

# ---- 3.1 the arena ------------------------------------------------------------------------------
#
# Offsets and holes are no choice of the learner's: first fit at the low end leaves exactly one
# answer. What stands inside the arena is theirs.


def play_arena(arena_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Operations: ["allocate", name, size], ["free", name]; a number in place of a name is an
    offset as it stands. A name that was refused is not freed."""
    arena = arena_class(inputs["size"], *([inputs["fit"]] if "fit" in inputs else []))
    offsets: dict[str, Any] = {}
    log: list[dict[str, Any]] = []
    for action, who, *rest in inputs["operations"]:
        if action == "allocate":
            result = attempt(lambda rest=rest: arena.allocate(rest[0]), ValueError)
            at = offsets[who] = result.get("returned")
            came = result.get("raised", "refused" if at is None else f"offset {at!r}")
        elif isinstance(who, str) and offsets.get(who) is None:
            came = "it was refused"
        else:
            at = offsets[who] if isinstance(who, str) else who
            result = attempt(lambda at=at: arena.free(at), ValueError)
            came = result.get("raised", "no error")
        entry = {
            "what came of it": came,
            "holes": _told_holes(arena.holes),
            "free slots": arena.num_free,
        }
        log.append(entry)
    return log


def _told_holes(holes: Any) -> str:
    """In words, so that a difference is shown with all that is around it."""
    if type(holes) is not list or any(type(hole) is not tuple for hole in holes):
        raise Unusable(f"holes is {holes!r}, not a list of (offset, size)")
    return ", ".join(f"({', '.join(map(repr, hole))})" for hole in holes) or "none"


def _operation(operation: list) -> str:
    action, who, *rest = operation
    return f"{who} = allocate({rest[0]})" if action == "allocate" else f"free({who})"


def _describe_arena(inputs: Inputs) -> str:
    told = [f"{inputs['size']} slots" + (f", {inputs['fit']} fit" if "fit" in inputs else "")]
    for action, group in groupby(inputs["operations"], key=lambda operation: operation[0]):
        words = [f"{who} {rest[0]}" if rest else str(who) for _, who, *rest in group]
        told.append(f"{action} {', '.join(words)}")
    return "; ".join(told)


def _place_arena(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = f"after {_operation(inputs['operations'][int(number)])}"
    return f"{where}: {rest[0] if rest else 'the log'}"


def _fill(random: Random, least: int = 4, most: int = 8) -> tuple[int, list, list[str]]:
    """(size, operations, names): an arena filled to the last slot, in runs of various sizes."""
    sizes = random.sample(range(1, 3 * most), random.randint(least, most))
    names = list("ABCDEFGH"[: len(sizes)])
    calls = [["allocate", name, size] for name, size in zip(names, sizes, strict=True)]
    return sum(sizes), calls, names


def _apart(random: Random) -> Inputs:
    """Holes that do not touch, freed in any order, then requests that fit into some."""
    size, calls, names = _fill(random, least=6)
    gone = names[random.randint(0, 1) :: 2]
    random.shuffle(gone)
    calls += [["free", name] for name in gone]
    sizes = {name: s for _, name, s in calls[: len(names)]}
    wanted = [random.randint(1, max(sizes[name] for name in gone)) for _ in range(3)]
    calls += [["allocate", name, s] for name, s in zip("XYZ", wanted, strict=True)]
    return {"size": size, "operations": calls}


def _best(random: Random) -> Inputs:
    return {**_apart(random), "fit": "best"}


def _exact(random: Random) -> Inputs:
    """A hole that a request takes to its last slot, and one too long by a slot."""
    size, calls, names = _fill(random)
    gone = random.choice(names)
    wanted = next(s for _, name, s in calls if name == gone)
    calls += [["free", gone], ["allocate", "X", wanted + 1], ["allocate", "Y", wanted]]
    return {"size": size, "operations": [*calls, ["allocate", "Z", 1]]}


def _pieces(random: Random) -> Inputs:
    """Enough slots are free, in pieces of which none is long enough."""
    size, calls, names = _fill(random, least=5)
    gone = names[1::2]
    sizes = {name: s for _, name, s in calls}
    calls += [["free", name] for name in gone]
    free, longest = sum(sizes[n] for n in gone), max(sizes[n] for n in gone)
    calls += [["allocate", "X", random.randint(longest + 1, free)], ["allocate", "Y", longest]]
    return {"size": size, "operations": calls}


def _order(random: Random) -> Inputs:
    size, calls, names = _fill(random, least=7)
    gone = names[random.randint(0, 1) :: 2]
    gone = sorted(gone, reverse=True) if random.random() < 0.5 else random.sample(gone, len(gone))
    return {"size": size, "operations": [*calls, *(["free", name] for name in gone)]}


def _merging(before: bool, after: bool) -> Any:
    """A run leaves that has a hole before it, after it, or both."""

    def make(random: Random) -> Inputs:
        size, calls, names = _fill(random, least=5)
        middle = random.randint(1, len(names) - 2)
        beside = [names[middle - 1]] * before + [names[middle + 1]] * after
        random.shuffle(beside)
        calls += [["free", name] for name in [*beside, names[middle]]]
        return {"size": size, "operations": calls}

    return make


def _churn(random: Random) -> Inputs:
    """Requests come and go, and some are refused."""
    size = random.choice([16, 31, 64])
    alive: list[str] = []
    calls: list = []
    for number in range(random.randint(10, 18)):
        if len(alive) > 2 and random.random() < 0.5:
            calls.append(["free", alive.pop(random.randrange(len(alive)))])
        else:
            alive.append(f"r{number}")
            calls.append(["allocate", alive[-1], random.randint(1, size // 3)])
    return {"size": size, "operations": calls}


def _too_small(random: Random) -> Inputs:
    wrong = random.choice([0, -1, -random.randint(2, 9)])
    size, calls, names = _fill(random)
    calls = [*calls, ["free", random.choice(names)]]
    return {"size": size, "operations": [*calls, ["allocate", "X", wrong]]}


def _unknown(random: Random) -> Inputs:
    """Freed twice, inside a run, outside of the arena."""
    size, calls, _ = _fill(random)
    gone = random.randrange(1, len(calls) - 1)
    at = sum(s for _, _, s in calls[:gone])
    inside = 1 if calls[0][2] > 1 else size
    wrong = random.choice([at, inside, size, size + 3, -1])
    return {"size": size, "operations": [*calls, ["free", calls[gone][1]], ["free", wrong]]}


def _arena(size: int, *told: str) -> Inputs:
    """An example: "A 28" is an allocation, "-A" gives it back, "-@7" frees offset 7."""
    calls: list = []
    for word in told:
        if word.startswith("-"):
            calls.append(["free", int(word[2:]) if word[1] == "@" else word[1:]])
        else:
            name, count = word.split()
            calls.append(["allocate", name, int(count)])
    return {"size": size, "operations": calls}


DAY = ("v 5", "A 28", "w 4", "B 27", "-v", "-w")  # the running example, its visitors gone


def _arena_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_arena,
        examples=examples,
        make=make,
        describe=_describe_arena,
        place=_place_arena,
        **more,
    )


ARENA = Exercise(
    id="3.1",
    title="An arena that closes its holes",
    symbol="course.memory.arena:Arena",
    points=4,
    minutes=30,
    difficulty=3,
    blank=("allocate", "free"),
    omit=("runs", "largest_hole", "held", "fits", "compact", "check_invariants"),
    trials="random runs of an arena",
    hints=(
        "A run leaves, and before and after it may lie a run, a hole, or nothing. How many cases "
        "are there, and how does the number of holes change in each?",
        '"Two holes touch": you joined the freed run to one neighbour and stopped. With a hole on '
        "either side two holes become one, so an entry of the list must go. "
        '"I get `KeyError`": call `self._check_run(offset)` before you look the run up.',
        "`allocate`: check the size, ask `FITS[self.fit]` for an index, then move the hole's "
        "offset up and its size down, or delete it when it is used up. `free`: `bisect_right("
        "self._offsets, offset)` is the place of the hole after the run; the one before it stands "
        "one place to the left. Ask of each whether it touches, then four branches.",
    ),
    probes=(
        _arena_probe(
            "a request takes the low end of a hole",
            None,
            _arena(64, "v 5", "A 28"),
            _arena(64, "v 5", "A 28", "w 4", "B 27"),
        ),
        _arena_probe(
            "free slots in pieces do not make a run: None, and nothing changes",
            _pieces,
            _arena(64, *DAY, "C 8"),
        ),
        _arena_probe(
            "a hole can be taken to its last slot, and is then gone",
            _exact,
            _arena(64, "v 5", "A 28", "w 4", "B 27", "-w", "C 4"),
        ),
        _arena_probe(
            "the first hole that is long enough is cut",
            _apart,
            _arena(64, "v 5", "A 28", "w 4", "B 27", "-w", "-v", "C 3"),
            _arena(14, "p 4", "q 1", "r 6", "s 1", "t 2", "-p", "-r", "-t", "x 2"),
        ),
        _arena_probe(
            "with best fit it is the shortest that is long enough",
            _best,
            {**_arena(64, *DAY, "C 4"), "fit": "best"},
            cases=4,
        ),
        _arena_probe(
            "holes stand in address order, whoever leaves first",
            _order,
            _arena(12, "p 2", "q 1", "r 5", "s 1", "t 3", "-t", "-p", "-r"),
        ),
        _arena_probe(
            "a freed run joins the hole before it",
            _merging(True, False),
            _arena(64, "v 5", "A 28", "w 4", "B 27", "-v", "-A"),
            cases=3,
        ),
        _arena_probe(
            "a freed run joins the hole after it",
            _merging(False, True),
            _arena(64, "v 5", "A 28", "w 4", "B 27", "-w", "-A"),
            _arena(64, "v 5", "A 28", "-A"),
            cases=3,
        ),
        _arena_probe(
            "a run between two holes makes one hole of them",
            _merging(True, True),
            _arena(64, *DAY, "-A"),
            cases=4,
        ),
        _arena_probe(
            "what has left is given out again",
            _churn,
            _arena(64, *DAY, "-A", "C 8"),
        ),
        _arena_probe(
            "a size below 1 is a ValueError, and changes nothing",
            _too_small,
            _arena(64, "v 0"),
            _arena(64, "v 5", "A -1"),
            cases=3,
        ),
        _arena_probe(
            "freeing what is no run is a ValueError, and changes nothing",
            _unknown,
            _arena(64, "v 5", "A 28", "-v", "-@0"),
            _arena(64, "v 5", "A 28", "-@6"),
            cases=5,
        ),
    ),
)


# ---- 3.2 best fit -------------------------------------------------------------------------------


def _find(best_fit: Any, inputs: Inputs) -> dict[str, Any]:
    sizes = list(inputs["sizes"])
    found = best_fit(sizes, inputs["size"])
    return {"the index": found, "the list of sizes afterwards": sizes}


def _search(sizes: list[int], size: int) -> Inputs:
    return {"sizes": sizes, "size": size}


def _describe_search(inputs: Inputs) -> str:
    return f"holes of {inputs['sizes']} slots, {inputs['size']} wanted"


def _place_search(parting: Parting, inputs: Inputs) -> str:
    return str(parting.path[0]) if parting.path else ""


def _some_fit(random: Random) -> Inputs:
    sizes = random.sample(range(1, 30), random.randint(2, 7))
    return _search(sizes, random.randint(1, max(sizes)))


def _equals(random: Random) -> Inputs:
    """The best hole is there two or three times; the first hole may be one of them."""
    best = random.randint(4, 12)
    sizes = [best] * random.randint(2, 3) + random.sample(range(best + 1, 30), 2)
    sizes += random.sample(range(1, best - 1), 1)
    random.shuffle(sizes)
    return _search(sizes, random.choice([best, best - 1]))


def _just_enough(random: Random) -> Inputs:
    sizes = random.sample(range(2, 30), random.randint(2, 6))
    return _search(sizes, random.choice(sizes))


def _none_fits(random: Random) -> Inputs:
    sizes = random.sample(range(1, 30), random.randint(1, 5))
    return _search(sizes, max(sizes) + random.randint(1, 5))


def _search_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        _find,
        examples=examples,
        make=make,
        describe=_describe_search,
        place=_place_search,
        **more,
    )


BEST_FIT = Exercise(
    id="3.2",
    title="Best fit",
    symbol="course.memory.arena:best_fit",
    points=2,
    minutes=10,
    difficulty=1,
    trials="random lists of holes",
    hints=(
        "Of the holes that are long enough, which one leaves the smallest rest?",
        '"I get 0 where another index is expected": index 0 counts as False in Python. Ask '
        "`is None`. "
        '"I get an index that is no hole of that size": you sorted the sizes, and an index into '
        "the sorted list says nothing about the list that was given.",
        "Pairs `(hole, index)` sort by the hole first and by the index second. Collect those that "
        "are long enough; the smallest pair holds the answer, if there is one.",
    ),
    probes=(
        _search_probe(
            "the shortest hole that is long enough",
            _some_fit,
            _search([5, 4], 4),
            _search([4, 5, 20], 5),
            _search([9, 30, 12, 3], 10),
            cases=16,
        ),
        _search_probe(
            "of equally short ones the first",
            _equals,
            _search([5, 9, 4, 9], 8),
            _search([9, 4, 9], 8),
            cases=8,
        ),
        _search_probe(
            "a hole of just that size will do", _just_enough, _search([5, 4], 5), _search([7], 7)
        ),
        _search_probe(
            "None when none is long enough", _none_fits, _search([5, 4], 8), _search([], 1)
        ),
    ),
)


# ---- 3.3 a measure ------------------------------------------------------------------------------


def _share(unusable_share: Any, inputs: Inputs) -> Any:
    holes = [(offset, size) for offset, size in inputs["holes"]]
    share = unusable_share(holes, inputs["request_size"])
    share = float(share) if type(share) is int else share
    return round(share, 9) if type(share) is float else share  # the order of sums is theirs


def _holes(sizes: list[int], request_size: int, between: int = 3) -> Inputs:
    holes, offset = [], 0
    for size in sizes:
        holes.append([offset, size])
        offset += size + between
    return {"holes": holes, "request_size": request_size}


def _describe_holes(inputs: Inputs) -> str:
    holes = [tuple(hole) for hole in inputs["holes"]]
    return f"holes {holes}, requests of {inputs['request_size']}"


def _mixed(random: Random) -> Inputs:
    sizes = random.sample(range(1, 40), random.randint(2, 6))
    return _holes(sizes, random.randint(2, max(sizes)), random.randint(1, 20))


def _long_holes(random: Random) -> Inputs:
    """Several requests go into each hole, and something is left over."""
    request_size = random.randint(2, 7)
    sizes = [request_size * random.randint(2, 6) + random.randrange(request_size) for _ in "abc"]
    return _holes(sizes, request_size, random.randint(1, 20))


def _multiples(random: Random) -> Inputs:
    request_size = random.randint(1, 9)
    return _holes([request_size * random.randint(1, 5) for _ in "abc"], request_size)


def _all_short(random: Random) -> Inputs:
    sizes = random.sample(range(1, 20), random.randint(1, 5))
    return _holes(sizes, max(sizes) + random.randint(1, 5))


SHARE = Exercise(
    id="3.3",
    title="How fragmented? It depends on who asks",
    symbol="course.memory.arena:unusable_share",
    points=2,
    minutes=10,
    difficulty=2,
    given={"unusable_share": (1, 0)},
    trials="random holes",
    hints=(
        "A hole of 5 slots, requests of 2. How many requests go in, and how many slots do they "
        "take?",
        '"I get 0 for everything": `/` gives a share of a request, and multiplied by the size it '
        'gives the whole hole back. "I get `ZeroDivisionError`": what should come out when nothing '
        "is free?",
        "For each hole `size // request_size * request_size` slots can be given out. Add them up, "
        "divide by all free slots, and take the rest.",
    ),
    probes=(
        Probe(
            "holes of all lengths",
            _share,
            examples=(
                {"holes": [[0, 5], [33, 4]], "request_size": 2},
                _holes([16, 3, 9], 8),
                {"holes": [[0, 5], [33, 4]], "request_size": 5},
            ),
            make=_mixed,
            cases=12,
            describe=_describe_holes,
        ),
        Probe(
            "a hole can take several requests",
            _share,
            examples=(_holes([9], 4), _holes([7, 10], 3)),
            make=_long_holes,
            describe=_describe_holes,
        ),
        Probe(
            "nothing is lost in whole multiples",
            _share,
            examples=(_holes([8, 16], 8), _holes([5, 4], 1)),
            make=_multiples,
            cases=4,
            describe=_describe_holes,
        ),
        Probe(
            "all is lost when no hole is long enough",
            _share,
            examples=({"holes": [[0, 5], [33, 4]], "request_size": 8},),
            make=_all_short,
            cases=4,
            describe=_describe_holes,
        ),
        Probe(
            "nothing free, nothing lost",
            _share,
            examples=(_holes([], 8),),
            describe=_describe_holes,
        ),
    ),
)


# ---- 3.4 the smallest refusal -------------------------------------------------------------------

SLOTS = 64
FEWEST_CALLS, FEWEST_SLOTS = 4, 1

Call = tuple[str, str, int]


def _stream(answer: Any) -> list[Call]:
    """The learner's calls, or Unusable that says what is wrong with them."""
    if type(answer) is not list or not answer:
        raise Unusable('refused_calls is a list of calls: [("allocate", "A", 5), ("free", "A")]')
    calls, here = [], set()
    for call in answer:
        action, name, size = _call(call)
        if action == "allocate" and name in here:
            raise Unusable(f"{name!r} is in the arena already: free it first, or take another name")
        if action == "free" and name not in here:
            raise Unusable(f"{name!r} is freed and is not in the arena")
        here.symmetric_difference_update({name})
        calls.append((action, name, size))
    if calls[-1][0] != "allocate":
        raise Unusable("the last call is a free: end with the allocate that is refused")
    return calls


def _call(call: Any) -> Call:
    good = type(call) in (tuple, list) and len(call) in (2, 3) and type(call[1]) is str
    if good and call[0] == "free" and call[2:] in ((), (0,), [], [0]):
        return "free", call[1], 0
    if good and call[0] == "allocate" and len(call) == 3 and type(call[2]) is int and call[2] > 0:
        return "allocate", call[1], call[2]
    raise Unusable(f'{call!r} is not a call: ("allocate", "A", 5) or ("free", "A")')


def _told(call: Call) -> str:
    if call[0] == "free":
        return f"free {call[1]}"
    return f"allocate {call[1]} ({call[2]} slot{'' if call[2] == 1 else 's'})"


def _driven(calls: list[Call]) -> tuple[list[tuple[int, int]], int, int | None]:
    """Holes and free slots before the last call, and the offset that it got."""
    arena, offsets = Arena(SLOTS), {}
    for action, name, size in calls[:-1]:
        if action == "allocate":
            offsets[name] = arena.allocate(size)
        elif offsets[name] is None:
            raise Unusable(f"{name!r} was refused, so it cannot be freed")
        else:
            arena.free(offsets.pop(name))
    return arena.holes, arena.num_free, arena.allocate(calls[-1][2])


def _refuses_with_room(calls: list[Call]) -> bool:
    try:
        _, num_free, offset = _driven(_stream(calls))
    except Unusable:
        return False
    return offset is None and calls[-1][2] <= num_free


def _is_refused(answer: Any, inputs: Inputs) -> str:
    calls = _stream(answer)
    holes, _, offset = _driven(calls)
    if offset is None:
        return "the last call is refused"
    size = dict(holes)[offset]
    where = "the end of the arena" if offset + size == SLOTS else f"offset {offset}"
    return f"{_told(calls[-1])} is granted: the hole at {where} has {size} slots"


def _has_room(answer: Any, inputs: Inputs) -> str:
    calls = _stream(answer)
    _, num_free, _ = _driven(calls)
    if calls[-1][2] <= num_free:
        return "as many slots are free"
    return (
        f"{_told(calls[-1])} asks for more than the {num_free} free slots: that memory is full, "
        "not fragmented"
    )


def _is_shortest(answer: Any, inputs: Inputs) -> str:
    calls = _stream(answer)
    if not _refuses_with_room(calls):
        return "it is no refusal with room to spare yet"
    if len(calls) <= FEWEST_CALLS:
        return "no list is shorter"
    for left_out in range(len(calls) - 1):
        name = calls[left_out][1]
        for fewer in (
            calls[:left_out] + calls[left_out + 1 :],
            [call for call in calls if call[1] != name],
        ):
            if _refuses_with_room(fewer):
                gone = _told(calls[left_out])
                gone = gone if len(fewer) == len(calls) - 1 else f"those for {name}"
                return f"{len(calls)} calls; without {gone} the last one is refused as well"
    return f"{len(calls)} calls; fewer will do, with other sizes"


def _uses_least(answer: Any, inputs: Inputs) -> str:
    calls = _stream(answer)
    if not _refuses_with_room(calls):
        return "it is no refusal with room to spare yet"
    _, num_free, _ = _driven(calls)
    used = SLOTS - num_free
    if used <= FEWEST_SLOTS:
        return "no fewer slots will do"
    return f"{used} slots are in use when it is refused; fewer will do"


def _nothing(inputs: Inputs) -> str:
    return ""


REFUSAL = Exercise(
    id="3.4",
    title="Make it break: the smallest refusal",
    symbol="course.practice.answers.lab_03:refused_calls",
    kind="data",
    start='refused_calls = None  # [("allocate", "A", 5), ("free", "A"), ...]',
    points=3,
    minutes=15,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "A refusal with room to spare needs two holes. What must lie between them, and who made "
        "the first of them?",
        '"It is granted": the rest of the arena behind the last run is a hole, too, and mostly the '
        'longest. "That memory is full": the request asks for more than all holes together.',
        "Two come, the first of them leaves, and a third is refused. The one that stays need not "
        "be large; where it lies is what counts. Ask for one slot more than the longest hole.",
    ),
    probes=tuple(
        Probe(behaviour, drive, examples=({},), describe=_nothing)
        for behaviour, drive in (
            ("a first-fit arena of 64 slots refuses the last call", _is_refused),
            ("it has as many slots free as the last call asks for", _has_room),
            ("no shorter list of calls would do", _is_shortest),
            ("no fewer slots in use would do", _uses_least),
        )
    ),
)


# ---- 3.5 and 3.6 a release that loses a run -----------------------------------------------------

Piece = tuple[int, str | None]
FEWEST_PIECES = 3


def _wrong_release(pieces: list[Piece], place: int) -> None:
    """As it stands in the lab."""
    size, _ = pieces[place]
    if place + 1 < len(pieces) and pieces[place + 1][1] is None:
        size += pieces.pop(place + 1)[0]
    if pieces[place - 1][1] is None:
        place -= 1
        size += pieces.pop(place)[0]
    pieces[place] = (size, None)


def _state(answer: Any) -> tuple[list[Piece], int]:
    """The learner's pieces and place, or Unusable that says what is wrong with them."""
    form = 'write (pieces, place): ([(5, "v"), (59, None)], 0)'
    if type(answer) not in (tuple, list) or len(answer) != 2 or type(answer[0]) is not list:
        raise Unusable(f"failing_release is not a pair: {form}")
    pieces, place = answer
    for piece in pieces:
        good = type(piece) in (tuple, list) and len(piece) == 2 and type(piece[0]) is int
        if not good or piece[0] < 1 or not (piece[1] is None or type(piece[1]) is str):
            raise Unusable(f"{piece!r} is not a piece: (slots, owner), the owner a name or None")
    pieces = [(size, owner) for size, owner in pieces]
    for number, ((_, one), (_, other)) in enumerate(pairwise(pieces)):
        if one is None and other is None:
            raise Unusable(
                f"pieces {number} and {number + 1} are free and touch: a right arena "
                "never gets there"
            )
    if type(place) is not int or not 0 <= place < len(pieces):
        raise Unusable(f"place {place!r} is no place in a list of {len(pieces)}: count from 0")
    if pieces[place][1] is None:
        raise Unusable(f"the piece at place {place} is free: there is nothing to release")
    return pieces, place


def _broken_promise(before: list[Piece], place: int, after: list[Piece]) -> str:
    """What is wrong with the pieces after a release; empty: nothing."""
    stayed = [
        piece for number, piece in enumerate(before) if number != place and piece[1] is not None
    ]
    if [piece for piece in after if piece[1] is not None] != stayed:
        return "runs that stayed are not there, or not as they were"
    if sum(size for size, _ in after) != sum(size for size, _ in before):
        return "slots are lost"
    if any(a[1] is None and b[1] is None for a, b in pairwise(after)):
        return "two holes touch"
    return ""


def _shows_fault(answer: Any, inputs: Inputs) -> str:
    before, place = _state(answer)
    after = list(before)
    _wrong_release(after, place)
    if _broken_promise(before, place, after):
        return "the release above goes wrong"
    return f"the release above does it right: {_which(before, place)}"


def _which(pieces: list[Piece], place: int) -> str:
    """Which of the cases that go well this is."""
    if place == len(pieces) - 1:
        return "the last piece leaves" if place else "the only piece leaves"
    if place:
        return "a piece in the middle leaves"
    if len(pieces) == 2 and pieces[1][1] is None:
        return "the first piece leaves, and the hole after it is the last piece"
    return "the first piece leaves, and the last one is in use"


def _is_small(answer: Any, inputs: Inputs) -> str:
    pieces, _ = _state(answer)
    if len(pieces) <= FEWEST_PIECES:
        return "no fewer pieces would do"
    return f"{len(pieces)} pieces; fewer will do"


FAULT = Exercise(
    id="3.5",
    title="Find the bug: a release that goes wrong",
    symbol="course.practice.answers.lab_03:failing_release",
    kind="data",
    start="failing_release = None  # ([(slots, owner or None), ...], place)",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "The function looks at a piece before the one that leaves and at one after it. Is there "
        "always one?",
        '"It does it right": for a piece in the middle it does. What does Python make of '
        "`pieces[place - 1]` for the first piece?",
        "`pieces[-1]` is the last piece. Release the first one, with a run next to it, in an arena "
        "whose end is free.",
    ),
    probes=(
        Probe(
            "the release above loses a run, loses slots or leaves two holes that touch",
            _shows_fault,
            examples=({},),
            describe=_nothing,
        ),
        Probe("no fewer pieces would do", _is_small, examples=({},), describe=_nothing),
    ),
)


def _release(release_run: Any, inputs: Inputs) -> dict[str, Any]:
    pieces = [(size, owner) for size, owner in inputs["pieces"]]
    result = attempt(lambda: release_run(pieces, inputs["place"]), ValueError)
    came = result.get("raised", "no error")
    return {"what came of it": came, "the pieces afterwards": _told_pieces(pieces)}


def _told_pieces(pieces: list) -> str:
    """In words, so that a difference is shown with all that is around it."""
    told = []
    for piece in pieces:
        if type(piece) is not tuple or len(piece) != 2:
            raise Unusable(f"{piece!r} stands in the list afterwards; a piece is (slots, owner)")
        size, owner = piece
        told.append(f"hole {size!r}" if owner is None else f"{owner} {size!r}")
    return f"[{', '.join(told)}]"


def _pieces_of(words: str, place: int) -> Inputs:
    """ "5 28:A 4" is a hole, A's run and a hole."""
    pieces = [word.split(":") for word in words.split()]
    return {
        "pieces": [[int(size), *(owner or [None])] for size, *owner in pieces],
        "place": place,
    }


def _describe_release(inputs: Inputs) -> str:
    pieces = [(size, owner) for size, owner in inputs["pieces"]]
    return f"{_told_pieces(pieces)}, release place {inputs['place']}"


def _place_release(parting: Parting, inputs: Inputs) -> str:
    return str(parting.path[0]) if parting.path else ""


def _around(where: str, holes: tuple[bool, ...]) -> Any:
    """Pieces in which a run is released at the start, in the middle or at the end, with a hole
    before it, after it, or both."""

    def make(random: Random) -> Inputs:
        owners: list[str | None] = ["A"]
        names = iter("BCDEFGHIJKL")
        for side in (0, 1):
            if (where, side) in (("first", 0), ("last", 1)):
                continue
            more: list[str | None] = [None] * holes[side] + [next(names)]
            for _ in range(random.randint(0, 2)):
                more += random.choice([[None, next(names)], [next(names)]])
            if random.random() < 0.6:
                more.append(None)
            owners = [*reversed(more), *owners] if side == 0 else [*owners, *more]
        sizes = random.sample(range(1, 60), len(owners))
        pieces = [[size, owner] for size, owner in zip(sizes, owners, strict=True)]
        return {"pieces": pieces, "place": owners.index("A")}

    return make


def _already_free(random: Random) -> Inputs:
    inputs = _around("middle", (True, random.random() < 0.5))(random)
    inputs["place"] -= 1
    return inputs


def _release_probe(behaviour: str, make: Any, *examples: Inputs, cases: int = 4) -> Probe:
    return Probe(
        behaviour,
        _release,
        examples=examples,
        make=make,
        cases=cases,
        describe=_describe_release,
        place=_place_release,
    )


RELEASE = Exercise(
    id="3.6",
    title="Find the bug: mend the release",
    symbol="course.practice.answers.lab_03:release_run",
    kind="mend",
    start="index -1 is taken for the piece before the first",
    points=2,
    minutes=10,
    difficulty=1,
    piece=False,
    lines=8,
    trials="random rows of pieces",
    hints=(
        "What you found fails at one end of the list only. What does the other end have that this "
        "one lacks?",
        '"I get `IndexError`": there is no piece after the last one either; the check for that was '
        "there already. "
        '"The first piece no longer joins the hole after it": do not return early.',
        "Before you look at `pieces[place - 1]`, ask whether there is such a piece.",
    ),
    probes=(
        _release_probe(
            "the first piece leaves, and the last one is free",
            _around("first", (False, False)),
            _pieces_of("5:v 28:A 31", 0),
            _pieces_of("5:v 28:A 4:w 27:B", 0),
            _pieces_of("64:A", 0),
        ),
        _release_probe(
            "the first piece leaves, and joins a hole after it",
            _around("first", (False, True)),
            _pieces_of("5:v 59", 0),
            _pieces_of("5:v 28 4:w 27", 0),
        ),
        _release_probe(
            "one in the middle leaves, between two holes",
            _around("middle", (True, True)),
            _pieces_of("5 28:A 4 27:B", 1),
        ),
        _release_probe(
            "one in the middle leaves, after a hole",
            _around("middle", (True, False)),
            _pieces_of("5 28:A 4:w 27:B", 1),
        ),
        _release_probe(
            "one in the middle leaves, before a hole",
            _around("middle", (False, True)),
            _pieces_of("5:v 28:A 4 27:B", 1),
        ),
        _release_probe(
            "one in the middle leaves, between two runs",
            _around("middle", (False, False)),
            _pieces_of("5:v 28:A 4:w 27:B", 1),
        ),
        _release_probe(
            "the last piece leaves",
            _around("last", (True, False)),
            _pieces_of("5 59:A", 1),
            _pieces_of("5:v 59:A", 1),
        ),
        _release_probe(
            "a piece that is free already is a ValueError, and nothing changes",
            _already_free,
            _pieces_of("5 28:A 4 27:B", 2),
            _pieces_of("64", 0),
        ),
    ),
)


# ---- 3.7 what compaction copies -----------------------------------------------------------------

RUNS, RUN_SIZE = 16, 4
LEAVING = (1, 2, 4, 8)


@cache
def measured_moved_share(leaving: int, days: int = 1000) -> float:
    """Share of the slots still in use that compaction copies, over many days on a full arena of
    16 runs of 4 slots, when so many of them have left, drawn at random."""
    random, moved, used = Random(3), 0, 0
    for _ in range(days):
        arena = Arena(RUNS * RUN_SIZE)
        offsets = [arena.allocate(RUN_SIZE) for _ in range(RUNS)]
        for offset in random.sample(offsets, leaving):
            assert offset is not None
            arena.free(offset)
        used += arena.size - arena.num_free
        moved += sum(move.size for move in arena.compact())
    return moved / used


def _near(answer: Any, inputs: Inputs) -> str:
    leaving = inputs["leaving"]
    guess = answer.get(leaving) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(f"there is no number for {leaving}: {{1: ..., 2: ..., 4: ..., 8: ...}}")
    measured = measured_moved_share(leaving)
    if abs(guess - measured) <= 0.05:
        return "within 0.05 of what is measured"
    if guess > 1:
        return f"you say {guess:g}; a share lies between 0 and 1"
    return f"you say {guess:g}: {how_far(guess, measured)}"


MOVED = Exercise(
    id="3.7",
    title="Predict, then measure: what compaction copies",
    symbol="course.practice.answers.lab_03:predicted_moved_share",
    kind="data",
    start="predicted_moved_share = {1: None, 2: None, 4: None, 8: None}",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "Everything slides to the low end. Which runs need not move?",
        '"Only the runs beside a hole move": slide them down by hand. Where do those behind them '
        "go?",
        "A run stays only if *no* departure lies below it. With one departure that is so for half "
        "of the runs. With two, the run and the two holes lie in any order: how often is the run "
        "the lowest of the three?",
    ),
    probes=tuple(
        Probe(
            f"{leaving} of 16 {'has' if leaving == 1 else 'have'} left",
            _near,
            examples=({"leaving": leaving},),
            describe=_nothing,
            measured=lambda inputs: f"{measured_moved_share(inputs['leaving']):.2f}",
        )
        for leaving in LEAVING
    ),
)


# ---- 3.8 a diagnosis ----------------------------------------------------------------------------

CAUSES = {
    "quiet": "nothing is wrong: there is no more work",
    "cap": "a limit that is not memory holds requests back",
    "holes": "the free slots are in pieces that are too short",
    "full": "the memory is full of tokens",
    "reservation": "requests hold more slots than they need now",
}

# One moment of a simulated server each; pools of 32,768 slots.
READINGS = {
    "P": {"running": 7, "waiting": 0, "live": 6839, "reserved": 1175, "internal": 20658,
          "external": 0, "free": 4096},
    "Q": {"running": 5, "waiting": 285, "live": 5355, "reserved": 1047, "internal": 14078,
          "external": 0, "free": 12288},
    "R": {"running": 14, "waiting": 233, "live": 19286, "reserved": 2507, "internal": 0,
          "external": 10975, "free": 0},
    "S": {"running": 25, "waiting": 242, "live": 32253, "reserved": 195, "internal": 0,
          "external": 0, "free": 320},
    "T": {"running": 15, "waiting": 257, "live": 19312, "reserved": 2732, "internal": 10724,
          "external": 0, "free": 0},
    "U": {"running": 10, "waiting": 276, "live": 11108, "reserved": 60, "internal": 0,
          "external": 0, "free": 21600},
}  # fmt: skip


def _diagnosis(answer: Any, inputs: Inputs) -> str:
    server = inputs["server"]
    said = answer.get(server) if type(answer) is dict else None
    if said is None:
        raise Unusable(f"there is no diagnosis for server {server}: one of {', '.join(CAUSES)}")
    if type(said) is not str or said not in CAUSES:
        raise Unusable(f"{said!r} is no diagnosis; one of {', '.join(CAUSES)}")
    return f'you say "{said}"'


def _describe_readings(inputs: Inputs) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in inputs.items() if name != "server")


DIAGNOSES = Exercise(
    id="3.8",
    title="The memory looks free and the batch is small",
    symbol="course.practice.answers.lab_03:diagnoses",
    kind="data",
    start='diagnoses = {"P": None, "Q": None, "R": None, "S": None, "T": None, "U": None}',
    points=3,
    minutes=15,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "The three questions of the lesson, in their order: does anybody wait; do the free slots "
        "suffice, and in one piece; what is in the held ones?",
        '"But so much is internal": waste is what ails a server only if somebody waits for want '
        "of it. Ask the first two questions first.",
        "A request that runs holds (live + reserved + internal) / running slots. Are as many free? "
        "External counts slots that would suffice, in pieces; free counts the others.",
    ),
    probes=tuple(
        Probe(
            f"server {name}",
            _diagnosis,
            examples=({"server": name, **reading},),
            describe=_describe_readings,
        )
        for name, reading in READINGS.items()
    ),
)

EXERCISES = (ARENA, BEST_FIT, SHARE, REFUSAL, FAULT, RELEASE, MOVED, DIAGNOSES)
