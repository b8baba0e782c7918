"""The dial that moves max_model_len."""

from time import perf_counter

import pytest

from course.show import limit_dial
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
