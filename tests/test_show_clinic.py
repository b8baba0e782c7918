"""The clinic agrees with the engine, and with what it says."""

import pytest

from course.engine.block_table import blocks_needed
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.show import boundary_clinic
from course.show.clinic import PHASES


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_it_takes_blocks_exactly_when_the_engine_does(block_size):
    first, last = 3, 15
    clinic = boundary_clinic(block_size, range(first, last + 1), blocks=range(20), show=False)
    manager = KVManager(32, block_size, prefix_caching=False)
    request = Request("A", list(range(first - 1)), SamplingParams(max_tokens=20))
    assert manager.admit(request, first - 1)
    request.num_computed_tokens = first - 1
    for step in range(clinic.last + 1):
        n, computed, table, phase = clinic.at(step)
        if phase == "schedule":
            assert manager.grow(request, n) == []
        if phase == "write":
            request.num_computed_tokens = n
        assert len(table) == len(manager.tables["A"]), (step, phase)
        assert computed == request.num_computed_tokens
        assert bool(clinic.takes(step)) == (
            phase == "schedule" and blocks_needed(n, block_size) > blocks_needed(n - 1, block_size)
        )


def test_the_phases_come_in_order_and_a_sample_counts_before_it_is_stored():
    clinic = boundary_clinic(show=False)
    assert [clinic.at(s)[3] for s in range(1, 9)] == [*PHASES, *PHASES]
    assert clinic.at(0)[:2] == (6, 5)
    assert clinic.at(1)[:2] == (6, 5)
    assert clinic.at(2)[:2] == (6, 6)
    assert clinic.at(3)[:2] == (6, 6)
    assert clinic.at(4)[:2] == (7, 6)
    assert clinic.at(12)[:2] == (9, 8)  # the ninth token is there, block 3 is not
    assert clinic.at(12)[2] == [7, 1]
    assert "taken when it is needed: at the next schedule" in clinic.explain(12)
    assert clinic.at(13)[2] == [7, 1, 3]
    assert clinic.explain(13) == (
        "Schedule: blocks_needed(9, 4) = 3, the table has 2. Take block 3."
    )
    assert "slot 12, row 0 of block 3" in clinic.explain(14)
    assert clinic.at(clinic.last)[3] == "write"


def test_a_guess_is_stored_and_answered():
    clinic = boundary_clinic(step=11, show=False)
    clinic.press("yes")  # for the append: the block comes only at the next schedule
    assert clinic.state["step"] == 12
    assert clinic.picture.caption.startswith("You guessed a new block: not so.")
    clinic.press("yes")
    assert clinic.picture.caption.startswith("You guessed a new block: right.")
    clinic.press("no")
    assert clinic.picture.caption.startswith("You guessed no block: right.")
    assert clinic.right == 2
    assert clinic.picture.table["guesses right"] == "2 of 3"
    clinic.set("step", clinic.last)
    clinic.press("yes")  # nothing is left to guess
    assert clinic.state["step"] == clinic.last
    assert "2 of 3 guesses right" in clinic.picture.caption


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tokens": []}, "rise by one"),
        ({"tokens": [3, 5]}, "rise by one"),
        ({"tokens": range(0, 4)}, "rise by one"),
        ({"tokens": range(6, 40)}, "need 10 blocks of 4"),
        ({"tokens": range(30, 60), "blocks": range(20)}, "at most 40"),
        ({"step": 99}, "Step must be 0 to 30"),
    ],
)
def test_what_cannot_be_stepped_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        boundary_clinic(**arguments)
