"""course/workload/arrivals.py: Poisson, bursty, recorded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.workload.arrivals import arrival_stats, bursty, poisson, recorded


@given(st.integers(0, 300), st.floats(0.01, 100), st.floats(0, 5), st.integers(0, 2**32))
def test_times_start_at_zero_and_never_go_back(count, rate, cv, seed):
    times = bursty(count, rate, cv, seed)
    assert len(times) == count
    assert np.isfinite(times).all()
    if count:
        assert times[0] == 0
        assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_rate_and_burstiness(cv):
    stats = arrival_stats(bursty(200_000, rate_per_s=5, cv=cv, seed=1))
    assert stats.mean_rate == pytest.approx(5, rel=0.05)
    assert stats.cv == pytest.approx(cv, rel=0.05)


def test_poisson_counts_have_a_variance_like_their_mean():
    times = poisson(100_000, rate_per_s=10, seed=2)
    counts = np.bincount(times.astype(int))[:-1]
    assert counts.mean() == pytest.approx(10, rel=0.03)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.05)


def test_a_cv_of_zero_is_a_metronome():
    assert bursty(4, 2.0, 0.0, seed=9).tolist() == [0.0, 0.5, 1.0, 1.5]


def test_seeds():
    assert (poisson(50, 1, seed=3) == poisson(50, 1, seed=3)).all()
    assert (poisson(50, 1, seed=3) != poisson(50, 1, seed=4)).any()


def test_recorded_times():
    assert recorded([7.0, 3.0, 4.0]).tolist() == [0.0, 1.0, 4.0]
    assert recorded([7.0, 3.0, 4.0], speed=2).tolist() == [0.0, 0.5, 2.0]
    assert recorded(iter([])).tolist() == []


def test_stats_by_hand():
    stats = arrival_stats([0, 10, 20, 30, 70, 70, 130])
    assert stats.num_requests == 7
    assert stats.span_s == 130
    assert stats.mean_rate == pytest.approx(6 / 130)
    assert stats.busiest_minute_rate == pytest.approx(4 / 60)
    assert stats.quietest_minute_rate == pytest.approx(2 / 60)
    assert stats.distinct_times == 6
    assert stats.cv == pytest.approx(np.std([10, 10, 10, 40, 0, 60]) / (130 / 6))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: poisson(-1, 1, 0), "num_requests is -1"),
        (lambda: poisson(5, 0, 0), "rate_per_s is 0"),
        (lambda: poisson(5, float("nan"), 0), "rate_per_s is nan"),
        (lambda: bursty(5, 1, -1, 0), "cv is -1"),
        (lambda: bursty(5, 1, float("inf"), 0), "cv is inf"),
        (lambda: recorded([1.0], speed=0), "speed is 0"),
        (lambda: recorded([1.0, float("nan")]), "not a finite number"),
        (lambda: arrival_stats([1.0]), "1 arrival times at a single moment"),
        (lambda: arrival_stats([1.0, 1.0]), "2 arrival times at a single moment"),
    ],
)
def test_arguments_are_checked(call, word):
    with pytest.raises(ValueError, match=word):
        call()
