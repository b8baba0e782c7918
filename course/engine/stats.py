"""What an engine did: times, throughput, memory, preemptions, hits."""

from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter


@dataclass
class Timing:
    """Clock readings of one request, in seconds on `time.perf_counter`.

    A request that came at 10.0 and got tokens at 10.5, 10.6 and 10.9: its first token took 0.5 s,
    and from one token to the next it took 0.2 s, on average.
    """

    arrival: float = field(default_factory=perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    num_tokens: int = 0

    def token(self, now: float) -> None:
        """Note that a token came at `now`."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.num_tokens += 1

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token, waiting and prefill together; None before it."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def time_per_token(self) -> float | None:
        """Mean seconds between one token and the next, the first one left out; None before two."""
        if self.num_tokens < 2 or self.first_token is None or self.last_token is None:
            return None
        return (self.last_token - self.first_token) / (self.num_tokens - 1)


@dataclass(frozen=True)
class Stats:
    """A reading of the engine's counters. Times in seconds, rates per second of engine work."""

    steps: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float  # spent inside steps
    model_seconds: float  # of which inside the model and its attention
    tokens_per_second: float
    time_to_first_token: float | None  # median over finished requests
    time_per_token: float | None  # median over finished requests
    mean_batch: float  # requests per step
    preemptions: int
    hit_rate: float  # prompt tokens found in the prefix cache; recomputation not counted
    blocks: int
    blocks_live: int
    blocks_cached: int  # free to be taken, but their tokens can still be found
    blocks_free: int  # free and empty
    waste: float  # share of the slots in live blocks that hold no token
    kv_bytes: int

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        def show(value):
            return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else value

        return "\n".join(f"{name:>20}  {show(value)}" for name, value in self.as_dict().items())


class Recorder:
    """Collects while the engine runs; `stats` reads it."""

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        self.steps = self.rows = self.prompt_tokens = self.cached_tokens = self.generated = 0
        self.seconds = self.model_seconds = 0.0
        self.first_times: list[float] = []
        self.token_times: list[float] = []
        self.finished = 0

    def step(self, rows: int, seconds: float, model_seconds: float) -> None:
        self.steps += 1
        self.rows += rows
        self.seconds += seconds
        self.model_seconds += model_seconds

    def request_finished(self, request, timing: Timing, is_child: bool) -> None:
        self.finished += 1
        if not is_child:  # a further sample of a prompt that is counted already
            self.prompt_tokens += len(request.prompt_token_ids)
            self.cached_tokens += request.num_cached_tokens
        self.generated += len(request.output_token_ids)
        if timing.time_to_first_token is not None:
            self.first_times.append(timing.time_to_first_token)
        if timing.time_per_token is not None:
            self.token_times.append(timing.time_per_token)

    def stats(self, scheduler, cache) -> Stats:
        manager = scheduler.kv_manager
        live, cached = manager.pool.num_used, manager.num_cached
        slots = live * cache.block_size
        return Stats(
            steps=self.steps,
            finished=self.finished,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated,
            seconds=self.seconds,
            model_seconds=self.model_seconds,
            tokens_per_second=self.generated / self.seconds if self.seconds else 0.0,
            time_to_first_token=median(self.first_times) if self.first_times else None,
            time_per_token=median(self.token_times) if self.token_times else None,
            mean_batch=self.rows / self.steps if self.steps else 0.0,
            preemptions=scheduler.num_preemptions,
            hit_rate=manager.stats.total_hit_rate,
            blocks=manager.pool.num_blocks,
            blocks_live=live,
            blocks_cached=cached,
            blocks_free=manager.num_free - cached,
            waste=1 - written_slots(manager) / slots if slots else 0.0,
            kv_bytes=cache.num_bytes,
        )


def written_slots(manager) -> int:
    """Slots that hold a token of a running request; a shared block counts once."""
    written: dict[int, int] = {}
    for request_id, table in manager.tables.items():
        num_tokens = manager.requests[request_id].num_computed_tokens
        for logical_block, block_id in enumerate(table):
            filled = min(manager.block_size, num_tokens - logical_block * manager.block_size)
            if block_id >= 0 and filled > written.get(block_id, 0):
                written[block_id] = filled
    return sum(written.values())
