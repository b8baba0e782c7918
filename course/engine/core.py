"""The heart of the engine: schedule, run, update, once a step, for all requests together."""

from itertools import count
from time import perf_counter

from course.engine.interrupts import interrupts_held
from course.engine.request import Request
from course.engine.runner import Runner
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler
from course.engine.stats import Recorder, Stats, Timing
from course.engine.text_output import TextOutput


class Job:
    """One sequence that somebody waits for: the request, its text so far, its clock."""

    def __init__(self, request: Request, tokenizer, is_child: bool = False):
        self.request, self.is_child = request, is_child
        self.output = TextOutput(tokenizer, request.params.stop)
        self.timing = Timing()
        self.fresh: list[str] = []  # pieces of text that no stream has taken yet

    def take_text(self) -> str:
        """The text that has become safe to show since the last call."""
        text = "".join(self.fresh)
        self.fresh.clear()
        return text


class EngineCore:
    """Requests in, tokens out; knows nothing of prompts as text or of who asked.

    Invariant: between calls nothing is half done. Every request is waiting, running or finished,
    and `check_invariants()` holds, also after an error in the model or an interrupt, which waits
    for the end of the step.
    """

    def __init__(self, model, tokenizer, cache, scheduler: Scheduler, backend: str = "auto"):
        self.tokenizer, self.cache, self.scheduler = tokenizer, cache, scheduler
        self.runner = Runner(model, cache, scheduler.kv_manager.tables, backend)
        self.recorder = Recorder()
        self.jobs: dict[str, Job] = {}
        self._ids = count()

    def submit(self, prompt_token_ids: list[int], params: SamplingParams, extra_key=None):
        """Queue one prompt; return its jobs, one a sample. Raises RequestRefused."""
        request = Request(
            f"request-{next(self._ids)}",
            prompt_token_ids,
            params,
            extra_key=extra_key,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        self.scheduler.add(request)
        try:
            jobs = [Job(request, self.tokenizer)]
            jobs += [Job(child, self.tokenizer, is_child=True) for child in request.children]
        except BaseException:  # a tokenizer that cannot decode: nobody would wait for the request
            self.scheduler.abort(request.request_id)
            raise
        self.jobs |= {job.request.request_id: job for job in jobs}
        return jobs

    def step(self) -> list[Request]:
        """Run one step; return the requests that finished in it."""
        with interrupts_held():
            return self._step()

    def _step(self) -> list[Request]:
        """Schedule, run the model, update the books, hand out the tokens.

        The runner runs only if somebody is scheduled. If scheduling or the model fails, in whatever
        way (an interrupt too), scheduler and runner `abandon()` the step, so that what was half
        computed is computed once more, and the error goes on.

        What finished, by a token or by a stop string, is retired in the same step and returned.
        `model_started` and `now` are what the clock says before and after the model ran.
        """
        started = perf_counter()
        try:
            step = self.scheduler.schedule()
            model_started = perf_counter()
            tokens = self.runner.run(step) if step.scheduled else {}
        except BaseException:
            self.scheduler.abandon()
            self.runner.abandon()
            raise
        now = perf_counter()
        finished = self.scheduler.update(step, tokens)
        finished += self._deliver(tokens, now)
        for request in finished:
            self._retire(request)
        self.recorder.step(len(step.scheduled), perf_counter() - started, now - model_started)
        return finished

    def _deliver(self, tokens: dict[str, int], now: float) -> list[Request]:
        """Give each job its token and the time; return the requests that a stop string ended.

        Comes after `update`: only then is it known whether a token ended its request.
        """
        stopped = []
        for request_id, token_id in tokens.items():
            job = self.jobs.get(request_id)
            if job is None:
                continue  # dropped while the model ran: a stream that nobody holds any more
            job.timing.token(now)
            if job.request.finish_reason == "stop":
                continue  # the token that ended it is no part of the text
            job.fresh.append(job.output.push(token_id))
            if job.output.stopped and job.request.finish_reason is None:
                self.scheduler.finish(job.request, "stop")
                stopped.append(job.request)
        return stopped

    def _retire(self, request: Request) -> None:
        """A request has finished: its last text, its dice, its place in the statistics."""
        job = self.jobs[request.request_id]
        job.fresh.append(job.output.finish())
        self.runner.forget(request.request_id)
        self.recorder.request_finished(request, job.timing, job.is_child)

    def drop(self, jobs: list[Job]) -> None:
        """Forget these jobs; abort those that have not finished."""
        with interrupts_held():
            for job in jobs:
                self.scheduler.abort(job.request.request_id)  # nothing happens to a finished one
                self.runner.forget(job.request.request_id)
                self.jobs.pop(job.request.request_id, None)

    @property
    def stats(self) -> Stats:
        return self.recorder.stats(self.scheduler, self.cache)

    def check_invariants(self) -> None:
        """Raise if the books do not agree: owners and ref counts, free and used, hashes, queues."""
        self.scheduler.check_invariants()
