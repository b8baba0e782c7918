"""The loop behind ``simulate``: a server that admits, lets grow, preempts and finishes requests.

Between two events (an arrival, an admission, a finish, a block that cannot be had) every account
of the ledger is a straight line or a sum over a periodic pattern, so the loop goes from event to
event and not from step to step. What lies between can be written out exactly, step by step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from course.engine.block_table import blocks_needed
from course.memory.policies import Paged, Policy
from course.workload.requests import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Segment:
    """``num_steps`` steps in which nobody comes, goes or is refused.

    ``live`` and ``held`` are those of the first step. In each further one every request writes a
    token, and ``taken[k]`` slots more than at first are held in step k (None: none in any).
    ``padding`` is the part of ``internal`` that the allocator added by rounding up. While the
    number of free slots is in ``stuck``, the next waiting request cannot have the slots that it
    asks for, although they are free.
    """

    step: int
    num_steps: int
    time_s: float
    step_s: float
    batch: int
    waiting: int
    pool: int
    live: int
    held: int
    internal: int
    padding: int
    stuck: range
    taken: np.ndarray | None

    def accounts(self) -> np.ndarray:
        """[num_steps, 5]: live, reserved, internal, external and free in each step."""
        columns = np.empty((self.num_steps, 5), dtype=np.int64)
        live, free = columns[:, 0], columns[:, 4]
        live[:] = self.live + self.batch * np.arange(self.num_steps)
        held = self.held if self.taken is None else self.held + self.taken
        columns[:, 1] = held - self.internal - live
        columns[:, 2] = self.internal
        free[:] = self.pool - held
        is_stuck = (free >= self.stuck.start) & (free < self.stuck.stop)
        columns[:, 3] = np.where(is_stuck, free, 0)
        free[is_stuck] = 0
        return columns

    def sums(self) -> tuple[int, int, int, int, int]:
        """The columns of ``accounts`` summed over the steps, without writing them out."""
        n = self.num_steps
        held = n * self.held + (0 if self.taken is None else int(self.taken.sum()))
        live = n * self.live + self.batch * (n * (n - 1) // 2)
        internal = n * self.internal
        free = n * self.pool - held
        if not self.stuck:
            external = 0
        elif self.taken is None:
            external = free if self.pool - self.held in self.stuck else 0
        else:
            external = int(self.accounts()[:, 3].sum())
        return live, held - live - internal, internal, external, free - external


class _Waiting(NamedTuple):
    index: int
    prompt: int  # after a preemption: prompt and what was generated, to be computed again
    output: int  # still to be generated


class _Running(NamedTuple):
    admitted: int  # step
    prompt: int
    output: int
    held: int  # slots at admission
    asked: int  # what it asked for, before the allocator rounded up
    finish: int  # its last step


class Server:
    """One run of a workload under one policy. ``segments`` may be called once."""

    def __init__(
        self,
        requests: Sequence[WorkloadRequest],
        policy: Policy,
        step_s: float | Callable[[int], float] = 1.0,
        max_batch: int | None = None,
        all_at_once: bool = False,
        over_limit: str = "drop",
    ) -> None:
        if over_limit not in ("drop", "cut"):
            raise ValueError(f'over_limit is {over_limit!r}: choose "drop" or "cut".')
        if max_batch is not None and max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}: it must be at least 1, or None.")
        self.policy = policy
        self.paged = policy if isinstance(policy, Paged) else None
        self.step_s = step_s
        self.max_batch = max_batch
        self.num_dropped = self.num_cut = self.num_finished = 0
        self.num_preemptions = self.recomputed_tokens = 0
        self.time_s = 0.0
        self._arrivals: deque[tuple[float, _Waiting]] = deque()
        order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
        for index in order:
            request = requests[index]
            entry = self._checked(index, request, over_limit == "cut")
            if entry is None:
                self.num_dropped += 1
            else:
                self._arrivals.append((0.0 if all_at_once else request.arrival_s, entry))
        self._queue: deque[_Waiting] = deque()
        self._running: dict[int, _Running] = {}  # oldest admission first
        self._finishes: list[tuple[int, int]] = []  # heap of (last step, index)
        # sums over the running requests
        self._live_base = 0  # live = base + batch * step
        self._held = self._internal = self._padding = 0
        # paged only
        self._free_blocks = self.paged.pool.num_free if self.paged else 0
        self._phases = np.zeros(self.paged.block_size if self.paged else 1, dtype=np.int64)
        self._last_blocks: list[tuple[int, int, int]] = []  # heap of (step, index, admitted)
        if held := policy.pool_tokens - policy.num_free:
            raise ValueError(f"The policy already holds {held} slots: give each run a fresh one.")

    def _checked(self, index: int, request: WorkloadRequest, cut: bool) -> _Waiting | None:
        prompt, output = request.prompt_tokens, request.output_tokens
        room = self.policy.max_model_len - prompt
        if cut and 1 <= room < output:
            output = room
            self.num_cut += 1
        return _Waiting(index, prompt, output) if self.policy.possible(prompt, output) else None

    def segments(self) -> Iterator[Segment]:
        """The whole run, in order; counters are right after the last one."""
        step = 0
        while self._arrivals or self._queue or self._running:
            self._arrive()
            if not self._queue and not self._running:
                self.time_s = self._arrivals[0][0]  # nothing to do until then
                self._arrive()
            preempted = self._grow(step)
            if not preempted:
                self._admit(step)
            self._enter_last_blocks(step)
            segment = self._segment(step)
            yield segment
            step += segment.num_steps
            self.time_s += segment.num_steps * segment.step_s
            self._finish(step)

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.time_s:
            self._queue.append(self._arrivals.popleft()[1])

    def _admit(self, step: int) -> None:
        """First come, first served: the head of the queue or nobody."""
        while self._queue and (self.max_batch is None or len(self._running) < self.max_batch):
            index, prompt, output = self._queue[0]
            if self.paged:
                blocks = blocks_needed(prompt + 1, self.paged.block_size)
                if blocks > self._free_blocks:
                    return
                self._free_blocks -= blocks
                held = blocks * self.paged.block_size
                asked = held
            else:
                if not self.policy.admit(str(index), prompt, output):
                    return
                held = self.policy.held(str(index))
                if held < prompt + output:
                    raise ValueError(
                        f"The policy {self.policy.name!r} gave {held} slots to a request that"
                        f" writes {prompt + output}: what is simulated either reserves all at"
                        " admission, or is Paged."
                    )
                asked = self.policy.asks(prompt, output)
            self._queue.popleft()
            run = _Running(step, prompt, output, held, asked, step + output - 1)
            self._running[index] = run
            self._live_base += prompt + 1 - step
            self._held += held
            heappush(self._finishes, (run.finish, index))
            if self.paged:
                self._phases[self._phase(run)] += 1
                heappush(self._last_blocks, (self._last_block_step(run), index, step))
            else:
                self._internal += held - min(held, prompt + output)
                self._padding += held - asked

    def _grow(self, step: int) -> bool:
        """Each running request takes a block if its next token needs one; True: some lost theirs.

        In order of admission; while no block is free, the newest request gives up all of its own,
        and goes back to the front of the queue to be computed again.
        """
        if not self.paged:
            return False
        phase = step % self.paged.block_size
        wanted = int(self._phases[phase])
        if wanted <= self._free_blocks:
            self._free_blocks -= wanted
            self._held += wanted * self.paged.block_size
            return False
        for index in list(self._running):
            if index not in self._running or self._phase(self._running[index]) != phase:
                continue
            while self._free_blocks == 0:
                newest = next(reversed(self._running))
                self._preempt(newest, step)
                if newest == index:
                    break
            else:
                self._free_blocks -= 1
                self._held += self.paged.block_size
        return True

    def _preempt(self, index: int, step: int) -> None:
        run = self._running[index]
        generated = step - run.admitted
        # it has not grown in this step, so it holds what the last one needed
        self._leave(index, step - 1)
        self._queue.appendleft(_Waiting(index, run.prompt + generated, run.output - generated))
        self.num_preemptions += 1
        self.recomputed_tokens += run.prompt + generated

    def _finish(self, step: int) -> None:
        while self._finishes and self._finishes[0][0] < step:
            finish, index = heappop(self._finishes)
            run = self._running.get(index)
            if run is not None and run.finish == finish:  # else it was preempted meanwhile
                self._leave(index, finish)
                self.num_finished += 1

    def _leave(self, index: int, last_step: int) -> None:
        """Take a request out of all sums; ``last_step`` is the last one that it grew in."""
        run = self._running.pop(index)
        self._live_base -= run.prompt + 1 - run.admitted
        if self.paged:
            written = run.prompt + 1 + last_step - run.admitted
            blocks = blocks_needed(written, self.paged.block_size)
            self._free_blocks += blocks
            self._held -= blocks * self.paged.block_size
            self._phases[self._phase(run)] -= 1
            if self._last_block_step(run) <= last_step:
                self._internal -= self._unused_at_end(run)
        else:
            self.policy.release(str(index))
            self._held -= run.held
            self._internal -= run.held - min(run.held, run.prompt + run.output)
            self._padding -= run.held - run.asked

    # A request admitted in step a with prompt p has written p + 1 + s - a tokens in step s.

    def _phase(self, run: _Running) -> int:
        """It takes a block in every later step s with s % block_size equal to this."""
        assert self.paged
        return (run.admitted - run.prompt) % self.paged.block_size

    def _last_block_step(self, run: _Running) -> int:
        """The step in which it takes the last block that it will need."""
        assert self.paged
        before = (blocks_needed(run.prompt + run.output, self.paged.block_size) - 1) * (
            self.paged.block_size
        )
        return max(run.admitted, run.admitted + before - run.prompt)

    def _unused_at_end(self, run: _Running) -> int:
        assert self.paged
        return -(run.prompt + run.output) % self.paged.block_size

    def _enter_last_blocks(self, step: int) -> None:
        while self._last_blocks and self._last_blocks[0][0] <= step:
            _, index, admitted = heappop(self._last_blocks)
            run = self._running.get(index)
            if run is not None and run.admitted == admitted:
                self._internal += self._unused_at_end(run)

    def _segment(self, step: int) -> Segment:
        """What happens from this step on until something changes."""
        batch = len(self._running)
        step_s = self.step_s(batch) if callable(self.step_s) else self.step_s
        if not (math.isfinite(step_s) and step_s > 0):
            raise ValueError(f"A step takes {step_s} s: it must be above 0, and finite.")
        steps = self._steps_until_event(step, step_s)
        taken = None
        if self.paged and steps > 1:
            later = self._phases[(step + np.arange(steps)) % self.paged.block_size]
            later[0] = 0  # this step's blocks are already taken
            taken = np.cumsum(later)
            # the first step that finds too few blocks belongs to the next segment
            steps = min(steps, int(np.searchsorted(taken, self._free_blocks, side="right")))
            taken = taken[:steps]
            self._free_blocks -= int(taken[-1])
            taken *= self.paged.block_size
        segment = Segment(
            step=step,
            num_steps=steps,
            time_s=self.time_s,
            step_s=step_s,
            batch=batch,
            waiting=len(self._queue),
            pool=self.policy.pool_tokens,
            live=self._live_base + batch * step,
            held=self._held,
            internal=self._internal,
            padding=self._padding,
            stuck=self._stuck(),
            taken=taken,
        )
        if taken is not None:
            self._held += int(taken[-1])
        return segment

    def _steps_until_event(self, step: int, step_s: float) -> int:
        while self._finishes:  # drop what was preempted meanwhile
            finish, index = self._finishes[0]
            run = self._running.get(index)
            if run is not None and run.finish == finish:
                break
            heappop(self._finishes)
        steps = self._finishes[0][0] - step + 1
        if self._last_blocks:
            steps = min(steps, self._last_blocks[0][0] - step)
        if self._arrivals:
            wait = (self._arrivals[0][0] - self.time_s) / step_s
            steps = min(steps, max(1, math.ceil(wait)))
        return steps

    def _stuck(self) -> range:
        """Numbers of free slots that would do for the head of the queue, and yet it is refused."""
        if not self._queue:
            return range(0)
        _, prompt, output = self._queue[0]
        asks = self.policy.asks(prompt, output)
        if not self.paged:
            fits = self.policy.fits(prompt, output)
            return range(0) if fits else range(asks, self.policy.pool_tokens + 1)
        # only slots behind the last whole block can be free and of no use
        size = self.paged.block_size
        behind = self.paged.pool_tokens - self.paged.pool.num_blocks * size
        return range(asks, blocks_needed(asks, size) * size) if behind else range(0)
