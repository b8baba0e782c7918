"""Serve a workload on a real engine: prompts of the recorded lengths, arriving as recorded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np

from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import RequestRefused
from course.engine.stats import Stats
from course.workload import MOONCAKE_BLOCK_TOKENS


@dataclass
class ReplayResult:
    """What came of a replay. Times in seconds."""

    served: int
    refused: int  # requests that this engine can never hold, dropped and counted
    seconds: float
    prompt_tokens: int
    output_tokens: int
    mean_batch: float
    peak_batch: int
    time_to_first_token: list[float]  # of each served request
    time_per_token: list[float]  # of each served request with two tokens or more
    stats: Stats

    @property
    def throughput(self) -> float:
        """Output tokens per second of the whole run, waiting for arrivals included."""
        return self.output_tokens / self.seconds if self.seconds else 0.0


def make_prompts(
    requests: Sequence, vocab_size: int, seed: int = 0, block_tokens: int = MOONCAKE_BLOCK_TOKENS
) -> Iterator[list[int]]:
    """Random token ids of the recorded lengths.

    A trace that names prefix blocks by hash gets equal ids for equal hashes, so that prefixes are
    shared in the replay as they were in the recording. `block_tokens` is what one hash covers.
    """
    rng = np.random.default_rng(seed)
    # Ids are drawn from the upper nine tenths: special tokens sit at the low end.
    low = vocab_size // 10
    for request in requests:
        ids: list[int] = []
        for block_hash in request.prefix_hashes or ():
            if len(ids) >= request.prompt_tokens:
                break
            block = np.random.default_rng([seed, block_hash])
            ids += block.integers(low, vocab_size, block_tokens).tolist()
        missing = max(0, request.prompt_tokens - len(ids))
        ids += rng.integers(low, vocab_size, missing).tolist()
        yield ids[: request.prompt_tokens]


def replay(
    llm,
    requests: Sequence,
    *,
    speed: float | None = None,
    seed: int = 0,
    block_tokens: int = MOONCAKE_BLOCK_TOKENS,
    on_progress: Callable[[int, int], None] | None = None,
) -> ReplayResult:
    """Serve `requests` (WorkloadRequest records, in order of arrival) and measure.

    `speed` plays the recorded arrivals that many times faster; None lets all arrive at once. Every
    request generates exactly its recorded number of tokens. `block_tokens` is what one prefix hash
    of the trace covers. `on_progress(done, total)` is called
    after every step.
    """
    if speed is not None and not speed > 0:
        raise ValueError(f"speed={speed} must be above 0, or None for all at once")
    prompts = make_prompts(requests, llm.tokenizer.vocab_size, seed, block_tokens)
    todo = list(zip(requests, prompts, strict=True))[::-1]
    first_arrival = requests[0].arrival_s if requests else 0.0
    jobs, batches = [], []
    done = refused = 0
    started = perf_counter()
    try:
        while todo or llm.has_work:
            clock = perf_counter() - started
            while todo and (
                speed is None or (todo[-1][0].arrival_s - first_arrival) / speed <= clock
            ):
                request, prompt = todo.pop()
                params = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True)
                try:
                    jobs += llm.core.submit(prompt, params)
                except RequestRefused:
                    refused += 1
            if llm.has_work:
                finished = llm.step()
                done += len(finished)
                batches.append(len(llm.scheduler.running) + len(finished))
            elif todo and speed is not None:
                due = (todo[-1][0].arrival_s - first_arrival) / speed
                sleep(max(0.0, min(0.05, due - clock)))
            if on_progress is not None:
                on_progress(done + refused, len(requests))
        seconds = perf_counter() - started
    finally:
        llm.core.drop(jobs)
    first = [j.timing.time_to_first_token for j in jobs]
    per_token = [j.timing.time_per_token for j in jobs]
    return ReplayResult(
        served=len(jobs),
        refused=refused,
        seconds=seconds,
        prompt_tokens=sum(len(j.request.prompt_token_ids) for j in jobs),
        output_tokens=sum(len(j.request.output_token_ids) for j in jobs),
        mean_batch=float(np.mean(batches)) if batches else 0.0,
        peak_batch=max(batches, default=0),
        time_to_first_token=[t for t in first if t is not None],
        time_per_token=[t for t in per_token if t is not None],
        stats=llm.stats,
    )
