"""Four ways to batch the same requests, step by step: static, dynamic, continuous and chunked.

static      wait until the batch is full, run it until its longest request ends, then hand out all
dynamic     the same, but start with fewer when the oldest has waited long enough
continuous  before each step the finished leave and the waiting enter; a prompt is computed whole
            (iteration-level scheduling: Yu et al., Orca, OSDI 2022)
chunked     the same under a token budget: decodes first, then as much of the prompts as still fits
            (chunked prefill: Agrawal et al., Sarathi-Serve, OSDI 2024)

No memory is modelled here: a *seat* is a place in the batch. Times are in milliseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from course.memory import example

BATCHING = ("static", "dynamic", "continuous", "chunked")


@dataclass(frozen=True)
class Job:
    """A request: prompt and output in tokens, arrival in milliseconds."""

    name: str
    prompt: int
    output: int
    arrival: float = 0.0

    def __post_init__(self) -> None:
        for field_name in ("prompt", "output"):
            value = getattr(self, field_name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{self.name}: {field_name} is {value!r}; it must be 1 or more.")
        if not (math.isfinite(self.arrival) and self.arrival >= 0):
            raise ValueError(f"{self.name}: arrival is {self.arrival}; it must be 0 or later.")


# Twelve requests: the running example's three, and nine more with everyday differences.
TWELVE = (
    Job("A", example.A.prompt_tokens, example.A.output_tokens, 0),
    Job("B", example.B.prompt_tokens, example.B.output_tokens, 0),
    Job("C", example.C.prompt_tokens, example.C.output_tokens, 0),
    Job("D", 40, 6, 80),
    Job("E", 12, 9, 90),
    Job("F", 5, 30, 100),
    Job("G", 96, 4, 110),
    Job("H", 8, 12, 140),
    Job("I", 20, 3, 160),
    Job("J", 4, 18, 180),
    Job("K", 64, 8, 200),
    Job("L", 10, 5, 500),
)


@dataclass(frozen=True)
class StepCost:
    """What a step takes: reading the weights once, or computing its tokens, whichever is longer.

    ``read_ms``: one pass over the weights. ``token_ms``: arithmetic of one token. Below
    read_ms / token_ms tokens a step costs the same however many it computes: that is what
    batching wins.
    """

    read_ms: float = 10.0
    token_ms: float = 0.5

    def __post_init__(self) -> None:
        for name in ("read_ms", "token_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: it must be above 0.")

    def __call__(self, num_tokens: int) -> float:
        """Milliseconds of a step that computes so many tokens."""
        return max(self.read_ms, num_tokens * self.token_ms)


class Row(NamedTuple):
    """What one request did in one step. kind: "prefill", "decode", or "idle" (it has finished and
    still holds its seat)."""

    request: str
    kind: str
    tokens: int


class Tick(NamedTuple):
    """One step: start and duration in milliseconds, and its rows."""

    start: float
    duration: float
    rows: tuple[Row, ...]


@dataclass
class BatchRun:
    """One policy's day. ``finish`` and ``first_token``: when each request had its answer and its
    first token, in milliseconds since the beginning."""

    policy: str
    jobs: tuple[Job, ...]
    max_batch: int
    ticks: list[Tick] = field(default_factory=list)
    finish: dict[str, float] = field(default_factory=dict)
    first_token: dict[str, float] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        """Milliseconds until the last step has ended."""
        return self.ticks[-1].start + self.ticks[-1].duration

    @property
    def throughput(self) -> float:
        """Output tokens per second over the makespan."""
        return sum(job.output for job in self.jobs) / self.makespan * 1000

    @property
    def latencies(self) -> dict[str, float]:
        """Milliseconds from arrival to the whole answer, by request."""
        return {job.name: self.finish[job.name] - job.arrival for job in self.jobs}

    @property
    def mean_latency(self) -> float:
        return sum(self.latencies.values()) / len(self.jobs)

    @property
    def mean_first_token(self) -> float:
        """Mean milliseconds from arrival to the first token that the user sees."""
        waits = (self.first_token[job.name] - job.arrival for job in self.jobs)
        return sum(waits) / len(self.jobs)

    @property
    def longest_gap(self) -> float:
        """The longest time between two tokens of one request, in milliseconds: how long an answer
        that has begun can stand still."""
        last: dict[str, float] = {}
        longest = 0.0
        for tick in self.ticks:
            end = tick.start + tick.duration
            for row in tick.rows:
                if row.kind == "decode":
                    longest = max(longest, end - last[row.request])
                last[row.request] = end  # of a prompt the last chunk counts: it gives a token
        return longest

    @property
    def seats_idle(self) -> float:
        """Share of seat time, max_batch seats over the makespan, in which no token was computed."""
        busy = sum(
            tick.duration * sum(row.kind != "idle" for row in tick.rows) for tick in self.ticks
        )
        return 1 - busy / (self.max_batch * self.makespan)

    @property
    def gpu_idle(self) -> float:
        """Share of the makespan in which no step ran."""
        return 1 - sum(tick.duration for tick in self.ticks) / self.makespan

    def summary(self) -> dict[str, float]:
        """The numbers of a row in a comparison."""
        return {
            "makespan, ms": self.makespan,
            "tokens per s": self.throughput,
            "mean latency, ms": self.mean_latency,
            "mean first token, ms": self.mean_first_token,
            "longest gap, ms": self.longest_gap,
            "seats idle, %": self.seats_idle * 100,
        }


def run_batching(
    policy: str,
    jobs: Sequence[Job] = TWELVE,
    max_batch: int = 4,
    *,
    token_budget: int = 32,
    max_wait: float = 50.0,
    cost: StepCost | None = None,
) -> BatchRun:
    """Serve the jobs in order of arrival by one of ``BATCHING``.

    max_batch: seats. token_budget: tokens a step, for "chunked" (at least max_batch, so that no
    decode waits). max_wait: milliseconds, for "dynamic". ValueError for anything else.
    """
    if policy not in BATCHING:
        raise ValueError(f"There is no policy {policy!r}: choose one of {', '.join(BATCHING)}.")
    if isinstance(max_batch, bool) or not isinstance(max_batch, int) or max_batch < 1:
        raise ValueError(f"max_batch is {max_batch!r}: it must be a whole number of at least 1.")
    if not jobs:
        raise ValueError("There are no jobs: give at least one.")
    if len({job.name for job in jobs}) != len(jobs):
        raise ValueError("Two jobs have the same name.")
    if token_budget < max_batch:
        raise ValueError(
            f"token_budget is {token_budget}: with {max_batch} seats it must be at least that."
        )
    if not max_wait >= 0:
        raise ValueError(f"max_wait is {max_wait}: it must be 0 or more.")
    run = BatchRun(policy, tuple(sorted(jobs, key=lambda job: job.arrival)), max_batch)
    cost = cost or StepCost()
    if policy in ("static", "dynamic"):
        _whole_batches(run, math.inf if policy == "static" else max_wait, cost)
    else:
        _iterations(run, token_budget if policy == "chunked" else None, cost)
    return run


def _whole_batches(run: BatchRun, max_wait: float, cost: StepCost) -> None:
    """Batch after batch, each from its first prompt to its longest answer."""
    queue, clock = list(run.jobs), 0.0
    while queue:
        wanted = queue[: run.max_batch]
        full, patience = wanted[-1].arrival, wanted[0].arrival + max_wait
        if math.isinf(max_wait):  # a static server must know that nobody else will come
            clock = max(clock, full)
        elif len(wanted) == run.max_batch:
            clock = max(clock, min(full, patience))
        else:
            clock = max(clock, patience)
        batch = [job for job in wanted if job.arrival <= clock]
        queue = queue[len(batch) :]
        padded = len(batch) * max(job.prompt for job in batch)  # short prompts are filled up
        for turn in range(max(job.output for job in batch)):
            duration = cost(padded if turn == 0 else len(batch))
            rows = tuple(
                Row(job.name, "idle", 0) if turn >= job.output
                else Row(job.name, "decode", 1) if turn
                else Row(job.name, "prefill", job.prompt)
                for job in batch
            )  # fmt: skip
            run.ticks.append(Tick(clock, duration, rows))
            clock += duration
        # Nobody gets anything before the batch has ended.
        run.finish |= {job.name: clock for job in batch}
        run.first_token |= {job.name: clock for job in batch}


def _iterations(run: BatchRun, token_budget: int | None, cost: StepCost) -> None:
    """Step after step, with whoever is there."""
    queue, clock = list(run.jobs), 0.0
    seated: list[Job] = []
    computed: dict[str, int] = {}  # prompt tokens
    written: dict[str, int] = {}  # output tokens
    while queue or seated:
        if not seated and queue[0].arrival > clock:
            clock = queue[0].arrival
        while queue and len(seated) < run.max_batch and queue[0].arrival <= clock:
            job = queue.pop(0)
            seated.append(job)
            computed[job.name] = written[job.name] = 0
        left = math.inf if token_budget is None else token_budget
        rows: list[Row] = []
        for job in seated:  # decodes first: they cost one token each and somebody is reading
            if computed[job.name] == job.prompt:
                rows.append(Row(job.name, "decode", 1))
                left -= 1
        for job in seated:
            chunk = int(min(job.prompt - computed[job.name], left))
            if chunk > 0:
                rows.append(Row(job.name, "prefill", chunk))
                left -= chunk
        duration = cost(sum(row.tokens for row in rows))
        run.ticks.append(Tick(clock, duration, tuple(rows)))
        clock += duration
        done = {row.request: row for row in rows}
        for job in list(seated):
            row = done.get(job.name)
            if row is None:
                continue
            if row.kind == "prefill":
                computed[job.name] += row.tokens
                if computed[job.name] < job.prompt:
                    continue
                run.first_token[job.name] = clock
            written[job.name] += 1
            if written[job.name] == job.output:
                run.finish[job.name] = clock
                seated.remove(job)
