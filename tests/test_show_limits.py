"""The dial that moves max_model_len, and slabs drawn to scale."""

from time import perf_counter

import pytest

from course.show import limit_dial, slab_figure
from course.show.svg import number
from course.workload import make_requests

REQUESTS = make_requests([(10, 20), (30, 30), (100, 50)] * 20)


def test_each_limit_shows_its_own_numbers():
    dial = limit_dial(REQUESTS, 960, (32, 64, 160), show=False)
    assert "33.3 %" not in dial.picture.caption
    seen = set()
    for limit, batch, dropped in [(32, 20, "66.7 %"), (64, 15, "33.3 %"), (160, 6, "0.0 %")]:
        started = perf_counter()
        dial.set("limit", limit)
        assert perf_counter() - started < 0.25
        text = dial.picture.caption
        assert f"{limit}:" in text
        assert dropped in text
        # sustained: slabs stay full while somebody waits
        assert f"{batch:.1f} run together" in text
        seen.add(text)
        assert dial.picture.alt
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("limits", "words"), [((), "no limit"), ((2000,), "does not fit"), ((5,), "no request")]
)
def test_limits_that_make_no_sense_are_named(limits, words):
    with pytest.raises(ValueError, match=words):
        limit_dial(REQUESTS, 960, limits, show=False)


def test_slabs_are_drawn_to_scale():
    shown = slab_figure([10, 20], 40, 100, show=False)
    assert shown.picture.table["empty, %"] == 62.5
    assert "50 are reserved and empty" in shown.alt
    wide = 712 / 100
    for slots in (40, 20, 10):  # two slabs and the rest, and what is written
        assert f'width="{number(wide * slots)}"' in shown.picture.data
    assert shown.picture.data.count('stroke-dasharray="4 3"') == 1


@pytest.mark.parametrize("arguments", [([], 40), ([5, 5], 40, 79), ([41], 40), ([-1], 40)], ids=str)
def test_slabs_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match=r"slabs of|live is"):
        slab_figure(*arguments, show=False)


def test_the_dial_counts_its_moment_and_its_blocks():
    dial = limit_dial(REQUESTS, 960, (64, 160), show=False)
    assert [len(dial._live[n]) for n in (64, 160)] == [15, 6]
    assert dial.results[160].dropped == 0
    assert dial.in_blocks[160] > dial.results[160].batch
    assert 0 < dial.results[160].empty < 1
