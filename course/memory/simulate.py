"""Simulate a server's memory: which requests run together, and where every slot is.

The server is iteration-level: in each step every running request produces one token. A request
that is admitted in a step computes its whole prompt in it and produces its first token; after its
i-th token it has written prompt + i tokens; it gives its memory back after its last one. Requests
are admitted in order of arrival, and none overtakes. Under ``Paged`` a request takes a block when
a token needs it; when none is free the newest request is preempted, its blocks are taken, and it
waits at the front of the queue to be computed again.

What is left out: prompts take no longer than a token, tokens take no memory but their own slots,
and nothing is shared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from course.memory.ledger import Ledger
from course.memory.policies import Contiguous, Policy
from course.memory.server import Segment, Server
from course.workload.requests import WorkloadRequest

TIMELINE = np.dtype(
    [("step", "i8"), ("num_steps", "i8"), ("time_s", "f8"), ("batch", "i8"), ("waiting", "i8")]
    + [(name, "i8") for name in ("live", "reserved", "internal", "external", "free")]
)


class Step(NamedTuple):
    """One step: when it began, how many ran and waited, and the ledger after its tokens."""

    step: int
    time_s: float
    batch: int
    waiting: int
    ledger: Ledger


@dataclass(frozen=True)
class Simulation:
    """What one run gave. Ledgers and batches are means over steps, each step counted once.

    ``sustained`` and ``sustained_batch`` count only steps in which somebody waited, so that
    neither an idle server nor the last requests of a run dilute them (all steps if nobody ever
    waited). ``padding`` is the part of ``mean.internal`` that an allocator added by rounding up.
    ``timeline`` has a row for each stretch of steps without any event: its first step, its length
    and the accounts at its first step.
    """

    policy: str
    pool_tokens: int
    num_requests: int
    num_finished: int
    num_dropped: int
    num_cut: int
    num_steps: int
    time_s: float
    mean: Ledger
    mean_batch: float
    peak_batch: int
    padding: float
    waiting_share: float
    stuck_share: float
    sustained: Ledger
    sustained_batch: float
    sustained_padding: float
    num_preemptions: int
    recomputed_tokens: int
    num_compactions: int
    moved_tokens: int
    timeline: np.ndarray = field(repr=False)


def simulate(
    requests: Sequence[WorkloadRequest],
    policy: Policy,
    *,
    step_s: float | Callable[[int], float] = 1.0,
    max_batch: int | None = None,
    all_at_once: bool = False,
    over_limit: str = "drop",
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Run a workload to its end under a fresh policy.

    step_s       seconds that a step takes, or a function of the batch that says so
    max_batch    most requests that run together, whatever the memory allows
    all_at_once  take no notice of arrival times: every request waits from the start
    over_limit   "drop" requests longer than the policy's max_model_len, or "cut" their outputs;
                 what could not even run alone is dropped either way
    progress     called now and then with the number of requests done, and of all

    20,000 requests take seconds. For every single step see ``steps``.
    """
    server = Server(requests, policy, step_s, max_batch, all_at_once, over_limit)
    everything, pressed = _Sums(policy.pool_tokens), _Sums(policy.pool_tokens)
    rows = []
    peak = stuck = 0
    tell_at = 0
    for segment in server.segments():
        sums = segment.sums()
        everything.add(segment, sums)
        if segment.waiting:
            pressed.add(segment, sums)
        if sums[3]:
            stuck += int((segment.accounts()[:, 3] > 0).sum())
        peak = max(peak, segment.batch)
        rows.append(_row(segment))
        done = server.num_finished + server.num_dropped
        if progress and done >= tell_at:
            progress(done, len(requests))
            tell_at = done + max(1, len(requests) // 100)
    if progress:
        progress(len(requests), len(requests))
    compactions = policy if isinstance(policy, Contiguous) else None
    sustained = pressed if pressed.steps else everything
    return Simulation(
        policy=policy.name,
        pool_tokens=policy.pool_tokens,
        num_requests=len(requests),
        num_finished=server.num_finished,
        num_dropped=server.num_dropped,
        num_cut=server.num_cut,
        num_steps=everything.steps,
        time_s=server.time_s,
        mean=everything.ledger,
        mean_batch=everything.batch,
        peak_batch=peak,
        padding=everything.padding,
        waiting_share=pressed.steps / max(1, everything.steps),
        stuck_share=stuck / max(1, everything.steps),
        sustained=sustained.ledger,
        sustained_batch=sustained.batch,
        sustained_padding=sustained.padding,
        num_preemptions=server.num_preemptions,
        recomputed_tokens=server.recomputed_tokens,
        num_compactions=compactions.num_compactions if compactions else 0,
        moved_tokens=compactions.moved_tokens if compactions else 0,
        timeline=np.array(rows, dtype=TIMELINE),
    )


def steps(
    requests: Sequence[WorkloadRequest],
    policy: Policy,
    *,
    step_s: float | Callable[[int], float] = 1.0,
    max_batch: int | None = None,
    all_at_once: bool = False,
    over_limit: str = "drop",
) -> Iterator[Step]:
    """The same run step by step; each step's ledger sums to the pool. Arguments as ``simulate``."""
    server = Server(requests, policy, step_s, max_batch, all_at_once, over_limit)
    for segment in server.segments():
        for k, accounts in enumerate(segment.accounts().tolist()):
            yield Step(
                segment.step + k,
                segment.time_s + k * segment.step_s,
                segment.batch,
                segment.waiting,
                Ledger(*accounts),
            )


class _Sums:
    """Accounts summed over steps, as whole numbers, so that the means are exact."""

    def __init__(self, pool: int) -> None:
        self._pool = pool
        self.steps = self._batch = self._padding = 0
        self._accounts = [0] * 5

    def add(self, segment: Segment, sums: tuple[int, ...]) -> None:
        self.steps += segment.num_steps
        self._batch += segment.num_steps * segment.batch
        self._padding += segment.num_steps * segment.padding
        self._accounts = [a + b for a, b in zip(self._accounts, sums, strict=True)]

    @property
    def ledger(self) -> Ledger:
        if not self.steps:
            return Ledger(0, 0, 0, 0, self._pool)
        return Ledger(*(account / self.steps for account in self._accounts))

    @property
    def batch(self) -> float:
        return self._batch / max(1, self.steps)

    @property
    def padding(self) -> float:
        return self._padding / max(1, self.steps)


def _row(segment: Segment) -> tuple[float, ...]:
    free = segment.pool - segment.held
    external = free if free in segment.stuck else 0
    reserved = segment.held - segment.internal - segment.live
    accounts = (segment.live, reserved, segment.internal, external, free - external)
    head = (segment.step, segment.num_steps, segment.time_s, segment.batch, segment.waiting)
    return head + accounts
