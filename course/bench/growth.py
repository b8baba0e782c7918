"""What must not grow: the time of one operation, as the pool, the cache or the queue gets longer.

`python -m course bench --growth` prints the table. Times are of this machine, in one process; what
the table is read for is the last column, how much longer an operation takes at the largest size.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time

from course.engine.block_pool import BlockPool
from course.engine.kv_manager import KVManager
from course.engine.prefix_cache import PrefixCache
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler, SchedulerConfig
from course.memory.arena import Arena
from course.memory.buddy import BuddyArena
from course.memory.policies import Paged
from course.memory.simulate import simulate
from course.workload import make_requests, mix

OPERATIONS = 2_000  # timed together, so that the clock's own step does not count
BLOCK = 16


@dataclass(frozen=True)
class Growth:
    """Microseconds of CPU for one operation, by size."""

    what: str
    unit: str
    microseconds: dict[int, float]

    @property
    def ratio(self) -> float:
        """How many times as long at the largest size as at the smallest."""
        sizes = sorted(self.microseconds)
        return self.microseconds[sizes[-1]] / self.microseconds[sizes[0]]


def pool(size: int) -> float:
    """Take a block, share it, give it up twice."""
    blocks = BlockPool(size)
    held = blocks.allocate(size // 2)

    def work() -> int:
        for _ in range(OPERATIONS):
            (block,) = blocks.allocate()
            blocks.share([block])
            blocks.free([block])
            blocks.free([block])
        return OPERATIONS

    micros = per_operation(work)
    blocks.free(held)
    return micros


def prefix_cache(size: int) -> float:
    """Publish a block, find it by its hash, forget it, in a cache that holds `size`."""
    cache = PrefixCache()
    for block in range(size):
        cache.publish(block, block.to_bytes(32, "big"))
    new = [(size + i, (size + i).to_bytes(32, "big")) for i in range(OPERATIONS)]

    def work() -> int:
        for block, block_hash in new:
            cache.publish(block, block_hash)
            cache.lookup(block_hash)
            cache.forget(block)
        return OPERATIONS

    return per_operation(work)


def arena(make: Callable[[int], Arena | BuddyArena]) -> Callable[[int], float]:
    """Reserve a run and free it, in an arena with `size` runs of which every other was freed."""

    def measure(size: int) -> float:
        memory = make(4 * size)
        for run in [memory.allocate(4) for _ in range(size)][::2]:
            assert run is not None
            memory.free(run)

        def work() -> int:
            count = OPERATIONS if size <= 10_000 else 20
            for _ in range(count):
                offset = memory.allocate(4)
                assert offset is not None  # half of it is free
                memory.free(offset)
            return count

        return per_operation(work)

    return measure


def queue(size: int) -> float:
    """One request served, from `add` to its last token, with `size` requests offered at once."""
    manager = KVManager(64 * 8, BLOCK)
    scheduler = Scheduler(SchedulerConfig(64, 2_048), manager)
    params = SamplingParams(max_tokens=4, ignore_eos=True)

    def work() -> int:
        for i in range(size):
            scheduler.add(Request(f"r{i}", [i * 7 % 997 + j for j in range(40)], params))
        while scheduler.has_work:
            step = scheduler.schedule()
            scheduler.update(step, {r.request_id: 1 for r in step.samples})
        return size

    return per_operation(work, rounds=1 if size > 1_000 else 3)


def running(size: int) -> float:
    """One decode step's bookkeeping for one of `size` running requests: schedule and update."""
    scheduler = Scheduler(SchedulerConfig(size, 64 * size), KVManager(8 * size, BLOCK))
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for i in range(size):
        scheduler.add(Request(f"r{i}", [i % 997 + j for j in range(40)], params))

    def step() -> int:
        made = scheduler.schedule()
        scheduler.update(made, {r.request_id: 1 for r in made.samples})
        return len(made.scheduled)

    step()  # the prompts
    return per_operation(lambda: sum(step() for _ in range(8)), rounds=3)


def simulator(size: int) -> float:
    """One request of the memory simulator, ShareGPT lengths, pages."""
    requests = make_requests(mix("sharegpt_8k_filtered").sample(size, seed=0))

    def work() -> int:
        simulate(requests, Paged(160_000, 8_192, BLOCK), all_at_once=True)
        return size

    return per_operation(work, rounds=1)


def per_operation(work: Callable[[], int], rounds: int = 3) -> float:
    """Microseconds of CPU for one operation: the least of a few rounds of `work`."""
    best = float("inf")
    gc.collect()
    gc.disable()  # a collection walks every object that there is, also those of the rest
    try:
        for _ in range(rounds):
            started = process_time()
            count = work()
            best = min(best, (process_time() - started) / count)
    finally:
        gc.enable()
    return best * 1e6


LADDER = (1_000, 10_000, 100_000, 1_000_000)
MEASURES: tuple[tuple[str, str, Callable[[int], float], tuple[int, ...]], ...] = (
    ("pool: allocate, share, free twice", "blocks", pool, LADDER),
    ("prefix cache: publish, look up, forget", "hashes", prefix_cache, LADDER),
    ("buddy arena: allocate, free", "runs", arena(BuddyArena), LADDER),
    ("arena, first fit: allocate, free", "runs", arena(Arena), LADDER[:3]),
    ("scheduler: a request from add to finish", "queued", queue, (10, 100, 1_000, 10_000)),
    ("scheduler: a running request's share of a step", "running", running, (10, 100, 1_000)),
    ("simulator: a request", "requests", simulator, LADDER[:3]),
)


def measure(say: Callable[[str], None] = lambda text: None) -> list[Growth]:
    """All of them; takes a minute or two."""
    table = []
    for what, unit, how, sizes in MEASURES:
        found = {}
        for size in sizes:
            say(f"{what}: {size:,} {unit}")
            found[size] = how(size)
        table.append(Growth(what, unit, found))
    return table


def markdown(table: list[Growth]) -> str:
    """The measurements as a table."""
    lines = [
        "| operation | size: microseconds of CPU | largest / smallest |",
        "| --- | --- | ---: |",
    ]
    for row in table:
        steps = ", ".join(f"{n:,} {row.unit}: {t:.1f}" for n, t in row.microseconds.items())
        lines.append(f"| {row.what} | {steps} | {row.ratio:.2f} |")
    return "\n".join(lines) + "\n"
