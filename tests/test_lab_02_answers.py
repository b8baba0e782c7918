"""Lab 02: what is right there agrees with the course's own memory, and the page with both."""

import pytest

from course.memory.emptiness import emptiness
from course.memory.paper import FIG13, MAX_MODEL_LEN, POOL_TOKENS
from course.practice.answers.lab_02 import (
    admit,
    batch_that_fits,
    predicted_batches,
    slab_emptiness,
)
from course.practice.bank import lab_02
from course.sizing import GIB, MODELS
from course.workload import make_requests, mix


@pytest.mark.parametrize("limit", [1024, 2048, 4096])
def test_the_three_metrics_are_those_of_the_course(limit):
    lengths = mix("azure_conv_2023").sample(500, seed=3)
    mine, ours = slab_emptiness(lengths, limit), emptiness(make_requests(lengths), limit)
    assert mine["dropped"] == pytest.approx(ours.dropped_share)
    assert mine["at_finish"] == pytest.approx(ours.at_finish)
    assert mine["per_request"] == pytest.approx(ours.lifetime_per_request)
    assert mine["per_step"] == pytest.approx(ours.lifetime_per_step)


def test_the_worked_case():
    assert batch_that_fits(MODELS["Llama-2-7B"], 8 * GIB, [512] * 40, 4096) == (4, 32)
    assert batch_that_fits(MODELS["Llama-2-7B"], 16 * GIB, [512] * 8, 4096) == (8, 8)


def test_the_examples_in_the_docstrings():
    slabs, queue = lab_02.SlabAllocator(64, 32), [("D", 33), ("A", 28), ("B", 27), ("C", 8)]
    got = admit(slabs, queue), queue
    assert str(got) in admit.__doc__
    abc = slab_emptiness([(7, 21), (3, 24), (6, 2)], 32)["at_finish"]
    assert f"    {abc}\n" in slab_emptiness.__doc__


def test_the_prediction_is_near_what_is_measured_and_what_the_paper_says():
    for question, guess in predicted_batches.items():
        assert guess == pytest.approx(lab_02.measured(question), rel=0.1)
    for load in FIG13:
        assert lab_02.measured(f"{load}, a slab each") == FIG13[load]["Orca (Max)"]
    assert POOL_TOKENS // MAX_MODEL_LEN == 7
