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
        budget = self._schedule_running(step, self.config.max_num_batched_tokens)
        if self.waiting and not step.preempted:
            self._schedule_waiting(step, budget)
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

    def _schedule_running(self, step: Step, budget: int) -> int:
        """Serve the running requests; return what is left of the budget."""
        num_served = 0
        while num_served < len(self.running) and budget > 0:
            request = self.running[num_served]
            start = request.num_computed_tokens
            num_tokens = min(request.num_tokens - start, budget)
            while (copies := self.kv_manager.grow(request, start + num_tokens)) is None:
                victim = self._preempt_newest()
                step.preempted.append(victim)
                if victim is request:  # it was the newest itself: everybody else is served
                    return budget
            step.copies += copies
            step.scheduled.append((request, start, num_tokens))
            budget -= num_tokens
            num_served += 1
        return budget

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        """Admit from the head of the queue. The first that does not fit ends it: no overtaking."""
        seats = self.config.max_num_seqs
        seats -= sum(1 + len(request.unforked_children) for request in self.running)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            seats -= 1 + len(request.unforked_children)
            num_cached = self.kv_manager.cached_tokens(request)
            num_wanted = request.num_tokens - num_cached
            num_tokens = min(num_wanted, budget)
            if seats < 0 or (num_tokens < num_wanted and not self._may_split(num_wanted)):
                return
            if not self.kv_manager.admit(request, num_cached + num_tokens):
                return
            self.waiting.popleft()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            step.scheduled.append((request, num_cached, num_tokens))
            budget -= num_tokens

    def _may_split(self, num_tokens: int) -> bool:
        # Without chunked prefill a prompt waits for a step that has room for all of it. A preempted
        # request that has outgrown the whole budget would wait for ever, so it comes in pieces.
        return self.config.chunked_prefill or num_tokens > self.config.max_num_batched_tokens

    def _preempt_newest(self) -> Request:
        """Take all blocks from the newest running request; it will be computed again."""
        victim = self.running.pop()
        self.kv_manager.release(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(victim)
        return victim

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
        for request, start, num_tokens in step.scheduled:
            if not request.is_finished:
                request.num_computed_tokens = start + num_tokens
                self.kv_manager.publish(request)
        samplers = [request for request in step.samples if not request.is_finished]
        for request in samplers:
            if request.unforked_children:  # before a token is added that is not theirs
                self._fork_children(request)
        finished = []
        for request in samplers:
            request.token_ids.append(tokens[request.request_id])
            if reason := stop_reason(request):
                self.finish(request, reason)
                finished.append(request)
        return finished

    def _fork_children(self, parent: Request) -> None:
        """The prompt is computed: each child goes on from here, right behind its parent."""
        place = self.running.index(parent) + 1
        for number, child in enumerate(parent.unforked_children):
            copies = self.kv_manager.fork(parent, child)
            if copies is None:
                raise InvariantError(f"no room for {child!r}, which was promised at admission")
            child.status = RequestStatus.RUNNING
            self.running.insert(place + number, child)
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
        if self._step is not None:
            self._step = None
            while self.running:
                self._preempt_newest()

    def check_invariants(self) -> None:
        """Walk queues, tables and pool; InvariantError says what is wrong."""
        check_scheduler(self)
