"""course/memory/arena.py, buddy.py, trace.py: against a map of single slots."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from course.memory.arena import (
    Arena,
    external_fragmentation,
    smallest_refused,
    unusable_share,
)
from course.memory.buddy import BuddyArena
from course.memory.trace import play, random_operations


def holes_of(slots):
    """Runs of free slots in a slot map, in address order."""
    found, start = [], None
    for index, owner in enumerate([*slots, "end"]):
        if owner is None and start is None:
            start = index
        elif owner is not None and start is not None:
            found.append((start, index - start))
            start = None
    return found


class ArenaAgainstSlots(RuleBasedStateMachine):
    """Every answer of the arena is worked out again on a list with one entry a slot."""

    fit = "first"
    size = 48

    def __init__(self):
        super().__init__()
        self.arena = Arena(self.size, self.fit)
        self.slots = [None] * self.size
        self.runs = {}

    @rule(size=st.integers(1, 20))
    def allocate(self, size):
        enough = [(s, o) for o, s in holes_of(self.slots) if s >= size]
        expected = None
        if enough and self.fit == "first":
            expected = min(o for _, o in enough)
        elif enough:
            expected = min(enough)[1]
        assert self.arena.fits(size) == (expected is not None)
        offset = self.arena.allocate(size)
        assert offset == expected
        if offset is not None:
            assert set(self.slots[offset : offset + size]) == {None}
            self.slots[offset : offset + size] = [offset] * size
            self.runs[offset] = size

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.runs)))
        self.arena.free(offset)
        size = self.runs.pop(offset)
        self.slots[offset : offset + size] = [None] * size

    @rule(offset=st.integers(-2, 50))
    def free_of_something_else(self, offset):
        if offset not in self.runs:
            with pytest.raises(ValueError, match="No run starts"):
                self.arena.free(offset)

    @rule()
    def compact(self):
        slots = list(self.slots)
        for move in self.arena.compact():
            # each copy must land on slots that are free or its own
            target = slots[move.destination : move.destination + move.size]
            assert set(target) <= {None, move.source}
            slots[move.source : move.source + move.size] = [None] * move.size
            slots[move.destination : move.destination + move.size] = [move.destination] * move.size
        sizes = [size for _, size in sorted(self.runs.items())]
        self.runs, cursor = {}, 0
        for size in sizes:
            self.runs[cursor] = size
            cursor += size
        self.slots = [None] * self.size
        for offset, size in self.runs.items():
            self.slots[offset : offset + size] = [offset] * size
        assert slots == self.slots

    @invariant()
    def agrees(self):
        self.arena.check_invariants()
        assert self.arena.holes == holes_of(self.slots)
        assert dict(self.arena.runs) == self.runs
        assert self.arena.num_free == self.slots.count(None)
        assert self.arena.largest_hole == max((s for _, s in holes_of(self.slots)), default=0)
        for offset, size in self.runs.items():
            assert self.arena.held(offset) == size


class BestFitAgainstSlots(ArenaAgainstSlots):
    fit = "best"


class BuddyAgainstSlots(RuleBasedStateMachine):
    """The buddy arena against a slot map and, after each step, full merging by brute force."""

    size = 45  # 32 + 8 + 4 + 1

    def __init__(self):
        super().__init__()
        self.arena = BuddyArena(self.size)
        self.slots = [None] * self.size
        self.runs = {}

    def free_blocks(self):
        """The largest aligned free blocks, found by trying every block of every part."""
        parts, found = [(0, 32), (32, 8), (40, 4), (44, 1)], []
        for start, part in parts:
            covered = set()
            block = part
            while block:
                for offset in range(start, start + part, block):
                    span = range(offset, offset + block)
                    if offset not in covered and all(self.slots[i] is None for i in span):
                        found.append((offset, block))
                        covered.update(span)
                block //= 2
        return sorted(found)

    @rule(size=st.integers(1, 34))
    def allocate(self, size):
        wanted = next(2**k for k in range(7) if 2**k >= size)
        enough = [(s, o) for o, s in self.free_blocks() if s >= wanted]
        assert self.arena.fits(size) == bool(enough)
        offset = self.arena.allocate(size)
        assert offset == (min(enough)[1] if enough else None)
        if offset is not None:
            assert self.arena.held(offset) == wanted
            self.slots[offset : offset + wanted] = [offset] * wanted
            self.runs[offset] = wanted

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.runs)))
        self.arena.free(offset)
        size = self.runs.pop(offset)
        self.slots[offset : offset + size] = [None] * size
        with pytest.raises(ValueError, match="No run starts"):
            self.arena.free(offset)

    @invariant()
    def agrees(self):
        self.arena.check_invariants()
        assert self.arena.holes == self.free_blocks()
        assert dict(self.arena.runs) == self.runs
        assert self.arena.num_free == self.slots.count(None)


TestFirstFit = ArenaAgainstSlots.TestCase
TestBestFit = BestFitAgainstSlots.TestCase
TestBuddy = BuddyAgainstSlots.TestCase


def test_out_of_order_frees_leave_holes_that_refuse_a_request():
    arena = Arena(64)
    first, _, third, _ = (arena.allocate(size) for size in (5, 28, 4, 27))
    arena.free(first)
    arena.free(third)
    assert arena.holes == [(0, 5), (33, 4)]
    assert arena.num_free == 9
    assert arena.allocate(8) is None
    assert smallest_refused(arena.holes) == 6
    moves = arena.compact()
    assert sum(move.size for move in moves) == 28 + 27
    assert arena.allocate(8) == 55


def test_free_merges_on_the_left_the_right_and_both_sides():
    arena = Arena(12)
    a, b, c, d = (arena.allocate(3) for _ in range(4))
    arena.free(a)
    arena.free(b)
    assert arena.holes == [(0, 6)]
    arena.free(d)
    assert arena.holes == [(0, 6), (9, 3)]
    arena.free(c)
    assert arena.holes == [(0, 12)]


def test_first_and_best_fit_choose_differently():
    chosen = {}
    for fit in ("first", "best"):
        arena = Arena(20, fit)
        runs = [arena.allocate(size) for size in (6, 2, 4, 2, 4, 2)]
        for index in (0, 2, 4):
            arena.free(runs[index])
        chosen[fit] = arena.allocate(3)
    assert chosen == {"first": 0, "best": 8}  # the shortest hole that is enough, first of equals


def test_compaction_of_a_compact_arena_moves_nothing():
    arena = Arena(10)
    arena.allocate(4)
    assert arena.compact() == []
    assert arena.holes == [(4, 6)]
    arena.allocate(6)
    assert arena.compact() == []
    assert arena.holes == []


@pytest.mark.parametrize("make", [Arena, BuddyArena])
@pytest.mark.parametrize("bad", [0, -1, 2.0, True, None])
def test_sizes_are_checked(make, bad):
    with pytest.raises(ValueError, match=re.escape(f"size is {bad!r}")):
        make(bad)
    arena = make(8)
    with pytest.raises(ValueError, match=re.escape(f"size is {bad!r}")):
        arena.allocate(bad)
    assert arena.holes == [(0, 8)]


@pytest.mark.parametrize("make", [Arena, BuddyArena])
def test_a_bool_is_no_offset(make):
    arena = make(8)
    arena.allocate(1)
    arena.allocate(1)
    with pytest.raises(ValueError, match="No run starts at True"):
        arena.free(True)
    with pytest.raises(ValueError, match="No run starts at 9"):
        arena.held(9)


def test_unknown_fit_and_odd_min_block():
    with pytest.raises(ValueError, match="'worst'"):
        Arena(8, "worst")
    with pytest.raises(ValueError, match="min_block is 3"):
        BuddyArena(8, min_block=3)


def test_buddy_rounds_up_and_splits_and_merges():
    arena = BuddyArena(16)
    assert arena.allocate(5) == 0
    assert arena.held(0) == 8
    assert arena.allocate(2) == 8
    assert arena.holes == [(10, 2), (12, 4)]
    arena.free(0)
    arena.free(8)
    assert arena.holes == [(0, 16)]
    assert arena.allocate(17) is None


def test_buddy_min_block_leaves_the_tail_alone():
    arena = BuddyArena(45, min_block=8)
    assert arena.holes == [(0, 32), (32, 8)]
    assert arena.num_free == 40
    assert arena.allocate(1) == 32
    assert arena.held(32) == 8
    arena.check_invariants()


def test_the_papers_pool_gives_seven_slabs():
    arena = BuddyArena(15_728)
    assert [arena.allocate(2048) is not None for _ in range(8)] == [True] * 7 + [False]


def test_fragmentation_measures():
    holes = [(0, 5), (33, 4)]
    assert external_fragmentation(holes) == pytest.approx(1 - 5 / 9)
    assert external_fragmentation([(3, 9)]) == 0
    assert external_fragmentation([]) == 0
    assert unusable_share(holes, 4) == pytest.approx(1 / 9)
    assert unusable_share(holes, 5) == pytest.approx(4 / 9)
    assert unusable_share(holes, 6) == 1
    assert unusable_share([], 6) == 0
    assert smallest_refused([(0, 9)]) is None
    assert smallest_refused([]) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_measures_agree_with_an_arena(sizes, request):
    # holes of the given sizes, one slot in use between each two
    arena = Arena(sum(sizes) + len(sizes))
    runs = []
    for size in sizes:
        runs.append(arena.allocate(size))
        arena.allocate(1)
    for offset in runs:
        arena.free(offset)
    refused = smallest_refused(arena.holes)
    assert (refused is None) == (len(sizes) == 1)
    if refused is not None:
        assert refused <= arena.num_free
        assert not arena.fits(refused)
        assert arena.fits(refused - 1)
    free, share = arena.num_free, unusable_share(arena.holes, request)
    given = 0
    while arena.allocate(request) is not None:
        given += request
    assert share == pytest.approx(1 - given / free)


def test_play_reports_refusals_with_room():
    operations = [
        ("allocate", "x", 3),
        ("allocate", "y", 4),
        ("allocate", "z", 3),
        ("free", "x", 0),
        ("free", "z", 0),
        ("allocate", "big", 4),
        ("allocate", "huge", 7),
        ("free", "big", 0),
        ("free", "y", 0),
        ("allocate", "again", 7),
    ]
    outcomes = list(play(Arena(10), operations))
    assert [o.refused_with_room for o in outcomes] == [False] * 5 + [True] + [False] * 4
    assert [o.offset for o in outcomes] == [0, 3, 7, 0, 7, None, None, None, 3, 0]
    assert [o.num_free for o in outcomes] == [7, 3, 0, 3, 6, 6, 6, 6, 10, 3]
    assert outcomes[4].largest_hole == 3
    assert outcomes[8].size == 4


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([("free", "x", 0)], "'x' was never allocated"),
        ([("allocate", "x", 1), ("allocate", "x", 1)], "'x' is already there"),
        ([("grow", "x", 1)], "The action is 'grow'"),
    ],
)
def test_play_refuses_nonsense(operations, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        list(play(Arena(10), operations))


def test_random_streams_are_seeded_and_fragment():
    stream = random_operations(500, mean_size=8, mean_alive=10, seed=3)
    assert stream == random_operations(500, mean_size=8, mean_alive=10, seed=3)
    assert stream != random_operations(500, mean_size=8, mean_alive=10, seed=4)
    counts = {
        fit: sum(o.refused_with_room for o in play(arena, stream))
        for fit, arena in {
            "first": Arena(100, "first"),
            "best": Arena(100, "best"),
            "buddy": BuddyArena(100),
        }.items()
    }
    assert all(count > 0 for count in counts.values()), counts


def test_free_blocks_forget_what_has_left():
    """Blocks that come and go without being the lowest must not pile up."""
    from course.memory.buddy import FreeBlocks

    blocks = FreeBlocks()
    blocks.add(0)
    for offset in range(8, 80_000, 8):
        blocks.add(offset)
        blocks.discard(offset)
        blocks.add(offset)
        blocks.discard(offset)
    assert len(blocks._heap) < 100
    assert blocks.take_lowest() == 0
    assert not blocks
