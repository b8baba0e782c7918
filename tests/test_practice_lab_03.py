"""Lab 03: its readings are simulated ones, its fault is one and the same in three places."""

from itertools import pairwise, product

import pytest

from course.authoring.build import ROOT
from course.practice import registry
from course.practice.answers import lab_03 as answers
from course.practice.bank import lab_03 as bank
from course.practice.source import cut_out
from course.practice.verdict import variant


def test_the_readings_are_those_of_the_simulation():
    assert answers.readings() == bank.READINGS
    assert all(
        sum(reading.values()) - reading["running"] - reading["waiting"] == 32_768
        for reading in bank.READINGS.values()
    )


def test_the_lab_the_bank_and_the_exercise_have_the_same_fault():
    page = (ROOT / "course" / "labs" / "03_fragmentation.py").read_text(encoding="utf-8")
    space: dict = {}
    exec(cut_out(page, "faulty_release"), space)
    exercise = registry.find("release_run")
    start, _ = variant(exercise, exercise.answers.mistake(exercise.start))
    shown = 0
    for owners in product([None, "A", "B"], repeat=4):
        for place in [place for place, owner in enumerate(owners) if owner]:
            before = [(size, owner) for size, owner in zip((5, 28, 4, 27), owners, strict=True)]
            after = []
            for release in (space["faulty_release"], bank._wrong_release, start):
                pieces = list(before)
                release(pieces, place)
                after.append(pieces)
            assert after[0] == after[1] == after[2]
            right = list(before)
            answers.release_run(right, place)
            holes_touch = any(not a and not b for a, b in pairwise(owners))
            if not holes_touch:
                wrong = bool(bank._broken_promise(before, place, after[0]))
                assert wrong == (after[0] != right)
                assert not bank._broken_promise(before, place, right)
                shown += wrong
    assert shown > 3


@pytest.mark.parametrize("fewer", [1, 2])
def test_no_state_of_fewer_pieces_shows_the_fault(fewer):
    for owners in product([None, "A", "B"], repeat=fewer):
        for place in [place for place, owner in enumerate(owners) if owner]:
            before = [(size, owner) for size, owner in zip((5, 28), owners, strict=False)]
            after = list(before)
            bank._wrong_release(after, place)
            assert not bank._broken_promise(before, place, after)


def test_no_three_calls_make_a_refusal_with_room():
    """Every stream of three calls with all sizes that matter in an arena of 64."""
    sizes = (1, 2, 31, 32, 33, 62, 63, 64)
    for a, b, c in product(sizes, repeat=3):
        for middle in (("allocate", "B", b), ("free", "A", 0)):
            calls = [("allocate", "A", a), middle, ("allocate", "C", c)]
            assert not bank._refuses_with_room(calls)
    assert bank._refuses_with_room([bank._call(call) for call in answers.refused_calls])
