"""The scheduler: who computes how many tokens in the next step."""

from collections import deque

from course.engine.admission import longest_allowed, make_children
from course.engine.invariants import InvariantError, check_scheduler
from course.engine.kv_manager import KVManager
from course.engine.request import Request, RequestStatus
from course.engine.scheduler_types import RequestRefused, SchedulerConfig, Step
from course.engine.stop_rules import stop_reason

__all__ = ["RequestRefused", "Scheduler", "SchedulerConfig", "Step"]


class Scheduler:
    """Continuous batching: after every step the batch is put together anew.

    Invariant: `running` followed by `waiting` is in order of arrival, whatever was admitted,
    preempted or finished. Running requests are served from the oldest on and blocks are taken away
    from the newest, so a victim has never been scheduled in the same step. And the oldest always
    comes forward: with everybody else gone the pool is its own, and `add` saw to it that it fits.

    One round: step = schedule(); run the model on it; update(step, the sampled tokens).
    """

    def __init__(self, config: SchedulerConfig, kv_manager: KVManager):
        self.config = config
        self.kv_manager = kv_manager
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.num_preemptions = 0
        self._live: dict[str, Request] = {}  # every unfinished request, unforked children too
        self._step: Step | None = None  # scheduled and not yet updated
        self._fork_copies: list[tuple[Request, list[tuple[int, int]]]] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request. RequestRefused, and nothing changed, if it can never be served.

        For params.n > 1 its children are made here (request.children). With max_tokens=0 it is
        finished when `add` returns ("length", no output), and no step will mention it.
        """
        max_num_tokens = longest_allowed(request, self.config, self.kv_manager)
        children = make_children(request)
        for member in (request, *children):
            if member.request_id in self._live:
                raise RequestRefused(f"request id {member.request_id!r} is in use; choose another")
        request.children = children
        for member in (request, *children):
            member.max_num_tokens = max_num_tokens
            self._live[member.request_id] = member
        if request.params.max_tokens == 0:
            self.finish(request, "length")
        else:
            self.waiting.append(request)

    def schedule(self) -> Step:
        """Choose the work of the next step and take the blocks that it needs.

        Running requests first, the oldest first; then from the head of the queue while there are
        tokens, seats and blocks. RuntimeError if the last step was neither updated nor abandoned.
        """
        if self._step and not all(request.is_finished for request, _, _ in self._step.scheduled):
            raise RuntimeError("update(step, tokens) the last step first, or abandon() it")
        step = self._step = Step()
        for child, copies in self._fork_copies:
            step.copies += [] if child.is_finished else copies
        self._fork_copies.clear()
        budget = serve_running(self, step, self.config.max_num_batched_tokens)
        admit_waiting(self, step, budget)
        if self.has_work and not step.scheduled:
            raise InvariantError(
                f"no progress: {self.kv_manager.num_free} free blocks and {len(self.waiting)} "
                "requests waiting, none running: who else holds blocks of this pool?"
            )
        for row, (request, start, num_tokens) in enumerate(step.scheduled):
            if start + num_tokens == request.num_tokens:
                samplers = [request, *request.unforked_children]
                step.samples += samplers
                step.sample_rows += [row] * len(samplers)
        return step

    def update(self, step: Step, sampled: dict[str, int]) -> list[Request]:
        """Note what the step computed and sampled; return the requests that it finished.

        sampled: the new token id of each request in step.samples. Those of requests that finished
        since `schedule` may be missing and are ignored. ValueError, and nothing changed, if another
        is missing or foreign, or for a step that is not the latest.
        """
        if step is not self._step:
            raise ValueError("update() takes the step that schedule() returned last, and only once")
        tokens = step.checked_tokens(sampled)
        self._step = None
        return update_requests(self, step, tokens)

    def fork_children(self, step: Step) -> None:
        """The other samples of each prompt that a step has computed go on from there.

        Right behind their parent in `running`, and before it gets a token that is not theirs.
        """
        for parent in step.samples:
            for number, child in enumerate(parent.unforked_children, start=1):
                copies = self.kv_manager.fork(parent, child)
                if copies is None:
                    raise InvariantError(f"no room for {child!r}, which was promised at admission")
                child.status = RequestStatus.RUNNING
                self.running.insert(self.running.index(parent) + number, child)
                self._fork_copies.append((child, copies))

    def finish(self, request: Request, reason: str) -> None:
        """End a request now; its blocks are free at once. Children not yet forked end with it.

        Nothing happens to a request that has finished already.
        """
        for member in (request, *request.unforked_children):
            if member.is_finished:
                continue
            if member.status is RequestStatus.RUNNING:
                self.running.remove(member)
                self.kv_manager.release(member)
            elif member in self.waiting:
                self.waiting.remove(member)
            member.status = RequestStatus.FINISHED
            member.finish_reason = reason
            del self._live[member.request_id]

    def abort(self, request_id: str) -> bool:
        """End a request, waiting or running, and all its children; a child's id ends that child.

        Its output so far stays in it. False if no such request is unfinished (unknown, finished or
        aborted before): a caller cannot know what finishes while it makes up its mind.
        """
        family = [r for r in self._live.values() if request_id in (r.request_id, r.parent_id)]
        for request in family:
            self.finish(request, "abort")
        return bool(family)

    def abandon(self) -> None:
        """The last step failed before its update: forget it and compute what runs once more."""
        while self._step and self.running:
            preempt_newest(self)
        self._step = None

    def check_invariants(self) -> None:
        """Walk queues, tables and pool; InvariantError says what is wrong."""
        check_scheduler(self)


# ---- The parts of a round -----------------------------------------------------------------------


def preempt_newest(scheduler: "Scheduler") -> Request:
    """Take all blocks from the newest running request, the last of `running`, and return it.

    It goes to the front of `waiting`, because everybody there came later, with the status
    PREEMPTED. It keeps all its tokens, prompt and output, and none of them counts as computed any
    more. num_cached_tokens stays: it speaks of the first admission. The preemption is counted
    twice, in the request's num_preemptions and in the scheduler's.

    Example: A and B run with the tables [7, 1, 3] and [10, 12], C waits. Then B is preempted:
    A runs, B and C wait in this order, and blocks 10 and 12 are free.
    """
    victim = scheduler.running.pop()
    scheduler.kv_manager.release(victim)
    victim.status = RequestStatus.PREEMPTED
    victim.num_computed_tokens = 0
    victim.num_preemptions += 1
    scheduler.num_preemptions += 1
    scheduler.waiting.appendleft(victim)
    return victim


def serve_running(scheduler: "Scheduler", step: Step, budget: int) -> int:
    """Give the running requests their tokens, the oldest first; return what is left of the budget.

    A request computes all of its tokens that are not computed yet, or as many as the budget still
    allows: one row (request, start, num_tokens) in step.scheduled, never one of 0 tokens. What
    `grow` returns goes to step.copies.

    Where `grow` finds no room, the newest running request is preempted, noted in step.preempted,
    and `grow` is asked again. Whoever turns out to be the newest itself gets no row.

    Example: budget 8; A has 8 tokens of which 7 are computed, B has 3 and 1. The rows are (A, 7, 1)
    and (B, 1, 2), and 5 is returned.
    """
    num_served = 0
    while num_served < len(scheduler.running) and budget > 0:
        request = scheduler.running[num_served]
        start = request.num_computed_tokens
        num_tokens = min(request.num_tokens - start, budget)
        while (copies := scheduler.kv_manager.grow(request, start + num_tokens)) is None:
            victim = preempt_newest(scheduler)
            step.preempted.append(victim)
            if victim is request:  # everybody older is served, and nobody newer is left
                return budget
        step.copies += copies
        step.scheduled.append((request, start, num_tokens))
        budget -= num_tokens
        num_served += 1
    return budget


def admit_waiting(scheduler: "Scheduler", step: Step, budget: int) -> None:
    """Admit from the head of the queue while there are tokens, seats and blocks.

    Nobody comes in during a step that preempted. The first who does not fit ends it: no overtaking.

    Tokens: what the prefix cache holds (`cached_tokens`) need not be computed. All others of the
    request are wanted; if the budget is smaller, as many as it allows, provided that
    `config.may_split(number wanted)`. Seats: a request takes one, and one more for each of its
    unforked_children (lesson 07); all running ones together at most config.max_num_seqs. Blocks:
    `admit(request, number of tokens)` takes them for the cached tokens and those of this step, or
    says False.

    Whoever is admitted moves from `waiting` to the end of `running`, with the status RUNNING and a
    row (request, start, num_tokens) in step.scheduled.

    Example: C waits with 6 tokens, nothing is cached, the budget is 5. The row is (C, 0, 5).
    """
    if step.preempted:
        return
    config, kv_manager = scheduler.config, scheduler.kv_manager
    taken = sum(1 + len(request.unforked_children) for request in scheduler.running)
    while scheduler.waiting and budget > 0:
        request = scheduler.waiting[0]
        num_cached = kv_manager.cached_tokens(request)
        num_wanted = request.num_tokens - num_cached
        num_tokens = min(num_wanted, budget)
        if num_tokens < num_wanted and not config.may_split(num_wanted):
            return
        taken += 1 + len(request.unforked_children)
        if taken > config.max_num_seqs or not kv_manager.admit(request, num_cached + num_tokens):
            return
        scheduler.running.append(scheduler.waiting.popleft())
        request.status = RequestStatus.RUNNING
        step.scheduled.append((request, num_cached, num_tokens))
        budget -= num_tokens


def update_requests(scheduler: "Scheduler", step: Step, tokens: dict[str, int]) -> list[Request]:
    """Note what a step has computed and sampled; return the requests that it finished, in order.

    First every row: its tokens are computed now, and `publish(request)` lets others find the blocks
    that they fill. Then `scheduler.fork_children(step)`, where samples of one prompt part (lesson
    07). Then each of step.samples gets its token, tokens[request.request_id], and if
    `stop_reason(request)` now gives a reason, `scheduler.finish(request, reason)` ends it in this
    same step and frees its blocks.

    A request may have been aborted since the step was made (request.is_finished): leave it alone.
    `tokens` may also hold tokens of prompts that are not computed to their end: ignore them.

    Example: the rows (A, 7, 1), (B, 1, 2) and (C, 0, 5). A, B and C have then 8, 3 and 5 computed
    tokens; A and B get a token each, and C, whose prompt has 6 tokens, gets none.
    """
    for request, start, num_tokens in step.scheduled:
        if not request.is_finished:
            request.num_computed_tokens = start + num_tokens
            scheduler.kv_manager.publish(request)
    scheduler.fork_children(step)
    finished = []
    for request in step.samples:
        if request.is_finished:
            continue
        request.token_ids.append(tokens[request.request_id])
        if reason := stop_reason(request):
            scheduler.finish(request, reason)
            finished.append(request)
    return finished
