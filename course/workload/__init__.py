"""Workloads: request lengths and arrival times, recorded or drawn, never any text."""

from os import PathLike
from pathlib import Path

from course.workload.arrivals import ArrivalStats, arrival_stats, bursty, poisson, recorded
from course.workload.conversations import Conversations, multi_turn
from course.workload.lengths import GeometricMix, HistogramMix, mix, mix_names
from course.workload.readers import (
    MOONCAKE_BLOCK_TOKENS,
    TraceError,
    read_azure_csv,
    read_lengths_csv,
    read_mooncake_jsonl,
    read_sharegpt_csv,
    read_trace,
)
from course.workload.requests import WorkloadRequest, make_requests, with_arrivals

__all__ = [
    "MOONCAKE_BLOCK_TOKENS",
    "ArrivalStats",
    "Conversations",
    "GeometricMix",
    "HistogramMix",
    "TraceError",
    "WorkloadRequest",
    "arrival_stats",
    "bursty",
    "load_workload",
    "make_requests",
    "mix",
    "mix_names",
    "multi_turn",
    "poisson",
    "read_azure_csv",
    "read_lengths_csv",
    "read_mooncake_jsonl",
    "read_sharegpt_csv",
    "read_trace",
    "recorded",
    "with_arrivals",
]


def load_workload(
    name_or_path: str | PathLike[str],
    limit: int | None = None,
    seed: int = 0,
    rate_per_s: float = 1.0,
) -> list[WorkloadRequest]:
    """Requests from a trace file, or drawn from a mix of ``mix_names()``.

    A file is read in any format of ``read_trace``, at most ``limit`` requests of it. A mix gives
    ``limit`` requests (1,000 if None) with Poisson arrivals at ``rate_per_s``, from ``seed``.
    """
    if str(name_or_path) in mix_names():
        count = 1000 if limit is None else limit
        lengths = mix(str(name_or_path)).sample(count, seed)
        return make_requests(lengths, poisson(count, rate_per_s, seed))
    if not Path(name_or_path).exists():
        raise FileNotFoundError(
            f"{name_or_path} is neither a trace file nor one of the mixes {', '.join(mix_names())}."
        )
    return read_trace(name_or_path, limit)
