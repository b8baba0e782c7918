"""Arrival times: Poisson, bursty, or recorded. All in seconds, in order, the first at 0."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


def poisson(num_requests: int, rate_per_s: float, seed: int) -> np.ndarray:
    """Arrivals of independent users: exponential gaps with mean 1 / ``rate_per_s``.

    The PagedAttention paper's experiments use these (sec. 6.1).
    """
    return bursty(num_requests, rate_per_s, cv=1.0, seed=seed)


def bursty(num_requests: int, rate_per_s: float, cv: float, seed: int) -> np.ndarray:
    """Gamma-distributed gaps with mean 1 / ``rate_per_s`` and coefficient of variation ``cv``.

    ``cv`` is the standard deviation of the gaps over their mean: 1 is Poisson, above 1 comes in
    bursts with pauses between, below 1 is more even than chance, 0 is a metronome.
    """
    if num_requests < 0:
        raise ValueError(f"num_requests is {num_requests}: it must be 0 or more.")
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise ValueError(f"rate_per_s is {rate_per_s}: it must be above 0 and finite.")
    if not (math.isfinite(cv) and cv >= 0):
        raise ValueError(f"cv is {cv}: it must be 0 or more, and finite.")
    mean_gap = 1 / rate_per_s
    if cv < 1e-6:
        return np.arange(num_requests) * mean_gap
    # a gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k)
    shape = 1 / cv**2
    generator = np.random.default_rng(seed)
    gaps = generator.gamma(shape, mean_gap / shape, size=num_requests)
    gaps[:1] = 0.0
    return np.cumsum(gaps)


def recorded(times_s: Iterable[float], speed: float = 1.0) -> np.ndarray:
    """Recorded times, sorted, moved to start at 0 and played ``speed`` times as fast."""
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"speed is {speed}: it must be above 0 and finite.")
    times = np.sort(np.asarray(list(times_s), dtype=float))
    if not np.isfinite(times).all():
        raise ValueError("The times hold a value that is not a finite number.")
    return (times - times[0]) / speed if len(times) else times


@dataclass(frozen=True)
class ArrivalStats:
    """How requests arrived. Rates in requests per second; cv as in ``bursty``."""

    num_requests: int
    span_s: float
    mean_rate: float
    busiest_minute_rate: float
    quietest_minute_rate: float
    cv: float
    distinct_times: int


def arrival_stats(times_s: Iterable[float]) -> ArrivalStats:
    """Rate, peaks and burstiness of arrival times; needs two that differ.

    Minutes are counted from the first arrival; the last one, which is not whole, is left out
    unless it is the only one.
    """
    times = recorded(times_s)
    if len(times) < 2 or times[-1] == 0:
        raise ValueError(f"{len(times)} arrival times at a single moment have no rate.")
    span = float(times[-1])
    per_minute = np.bincount((times // 60).astype(int))
    whole = per_minute[: max(1, int(span // 60))] / 60
    gaps = np.diff(times)
    return ArrivalStats(
        num_requests=len(times),
        span_s=span,
        mean_rate=(len(times) - 1) / span,
        busiest_minute_rate=float(whole.max()),
        quietest_minute_rate=float(whole.min()),
        cv=float(gaps.std() / gaps.mean()),
        distinct_times=len(np.unique(times)),
    )
