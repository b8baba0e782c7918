"""The memory map tells the running example's story, and every slot of it is accounted for."""

from collections import Counter

import pytest

from course.memory import example
from course.show import Arrival, memory_map
from course.show.memory_stream import make_memory, run_stream
from course.show.pools import DAY

POLICIES = ("slab", "arena", "paged", "first-fit", "best-fit", "buddy", "pow2", "oracle")


@pytest.fixture(scope="module")
def day():
    return memory_map(show=False)


def test_c_is_refused_by_the_arena_with_room_to_spare(day):
    arena = day.at("arena", 2)
    assert arena.waiting == ["C"]
    assert arena.ledger.external == 9
    assert any("8 in one piece: 9 are free, the longest hole is 5" in note for note in arena.notes)
    assert day.at("slab", 2).waiting == ["B", "C"]
    assert day.at("paged", 2).waiting == []


def test_a_b_and_c_hold_the_blocks_that_they_hold_everywhere(day):
    snap = day.at("paged", 2)
    size, held = example.BLOCK_SIZE, {}
    for slot, (_, name) in enumerate(snap.slots):
        if name:
            held.setdefault(name, set()).add(slot // size)
    assert held["A"] == set(example.TABLE_OF_A_AT_9_TOKENS)
    assert held["C"] == set(example.TABLES["C"])
    assert held["B"] == {*example.TABLES["B"], 14}
    assert snap.running == {"A": 9, "B": 5, "C": 6}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_slot_is_in_the_ledger_at_every_step(policy):
    memory = make_memory(policy, 64, 32, 4, None)
    for snap in run_stream(memory, DAY):
        counts = Counter(kind for kind, _ in snap.slots)
        assert sum(counts.values()) == 64 == snap.ledger.pool
        assert {k: counts.get(k, 0) for k in snap.ledger.as_dict()} == snap.ledger.as_dict()
        live = Counter(name for kind, name in snap.slots if kind == "live")
        assert dict(live) == snap.running


@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_gets_through_in_order(policy):
    entered = []
    for snap in run_stream(make_memory(policy, 64, 32, 4, None), DAY):
        entered += [note.split()[0] for note in snap.notes if note.endswith("enters")]
    assert entered == ["v", "A", "w", "B", "C"]


def test_a_request_without_a_block_stands_still_and_then_goes_on():
    stream = [Arrival("A", 3, 8), Arrival("B", 4, 4), Arrival("C", 3, 4)]
    snaps = run_stream(make_memory("paged", 16, 16, 4, None), stream)
    assert not snaps[-1].running
    # room for both prompts and their first token, but not for both to grow to their ends
    tight = [Arrival("A", 3, 8), Arrival("B", 3, 5)]
    snaps = run_stream(make_memory("paged", 12, 12, 4, None), tight)
    notes = [note for snap in snaps for note in snap.notes]
    assert "B stands still: no block is free" in notes
    assert not snaps[-1].running
    with pytest.raises(ValueError, match="nobody can go on: A, B hold all blocks"):
        run_stream(make_memory("paged", 12, 12, 4, None), [Arrival("A", 3, 9), Arrival("B", 3, 9)])


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ([Arrival("A", 3, 8), Arrival("A", 3, 8)], "same name"),
        ([Arrival("A", 0, 8)], "prompt of 0"),
        ([Arrival("A", 9, 8)], "prompt of 9"),
        ([Arrival("A", 3, 33)], "can never run"),
    ],
)
def test_streams_that_make_no_sense(stream, words):
    with pytest.raises(ValueError, match=words):
        memory_map(stream)


def test_the_words_say_what_the_picture_shows(day):
    day.set("step", 2)
    words = day.picture.words.splitlines()
    assert words[0].split() == ["slab", "arena", "paged"]
    columns = ["".join(line.split()[i] for line in words[1:5]) for i in range(3)]
    for column, title in zip(columns, ("slab", "arena", "paged"), strict=True):
        assert column.count("x") == day.at(title, 2).ledger.external
        assert column.count(".") == day.at(title, 2).ledger.free
        assert column.count("-") == day.at(title, 2).ledger.internal
    assert "external" in str(day.picture.table[0])
    assert "9 external" in day.picture.alt
    day.set("step", 0)


def test_the_story_tells_what_is_new_and_only_that(day):
    story = dict(day.story())
    assert "paged: v leaves; w leaves; C enters; A takes block 3" in story[2]
    assert 8 not in story  # nothing happens but tokens
    assert story[29] == "slab: B leaves."
