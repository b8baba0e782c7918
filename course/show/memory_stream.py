"""One stream of requests through three kinds of memory, slot by slot, for the memory map.

The allocators are the course's own (``SlabAllocator``, ``Arena``, ``BlockPool``); what is here is
only the day's run: who arrives, who is let in, who writes a token, who leaves. Time goes in steps.
In each step the finished leave, the head of the queue enters if its memory is there (no
overtaking), its prompt is written, and everyone who was already in writes one token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from course.engine.block_pool import BlockPool
from course.engine.block_table import blocks_needed
from course.memory.arena import Arena
from course.memory.ledger import Holding, Ledger, take_ledger
from course.memory.slab import SlabAllocator


@dataclass(frozen=True)
class Arrival:
    """A request: its letter, prompt and final length in tokens, and the step in which it comes."""

    name: str
    prompt: int
    final: int
    step: int = 0


@dataclass
class Snapshot:
    """One policy after one step: (kind, request) of each slot, who runs, who waits, what happened,
    the ledger, and how many tokens each running request has written."""

    slots: list[tuple[str, str]]
    running: dict[str, int]
    waiting: list[str]
    notes: list[str]
    ledger: Ledger
    finished: list[str] = field(default_factory=list)


class SlabMemory:
    """A whole slab of max_model_len for each request."""

    title = "slab"

    def __init__(self, pool: int, max_model_len: int):
        self.slabs, self.width = SlabAllocator(pool, max_model_len), max_model_len
        self.start: dict[str, int] = {}

    def enter(self, request: Arrival) -> bool:
        start = self.slabs.reserve(request.name)
        if start is not None:
            self.start[request.name] = start
        return start is not None

    def need(self, request: Arrival) -> int:
        """Slots that it must have to enter."""
        return self.width

    def refusal(self, request: Arrival, free: int) -> str:
        return f"{request.name} waits: no slab of {self.width} is free"

    def write(self, request: Arrival, tokens: int) -> str:
        return ""

    def leave(self, request: Arrival) -> None:
        self.slabs.release(request.name)
        del self.start[request.name]

    def places(self, request: Arrival) -> list[int]:
        """The request's slots in the order of its positions."""
        start = self.start[request.name]
        return list(range(start, start + self.width))


class ArenaMemory:
    """One run of slots, exactly as long as the request will become (nobody knows that in truth)."""

    title = "arena"

    def __init__(self, pool: int):
        self.arena = Arena(pool)
        self.start: dict[str, int] = {}

    def enter(self, request: Arrival) -> bool:
        start = self.arena.allocate(request.final)
        if start is not None:
            self.start[request.name] = start
        return start is not None

    def need(self, request: Arrival) -> int:
        return request.final

    def refusal(self, request: Arrival, free: int) -> str:
        return (
            f"{request.name} needs {request.final} in one piece: {free} slots are free, "
            f"the longest hole is {self.arena.largest_hole}"
        )

    def write(self, request: Arrival, tokens: int) -> str:
        return ""

    def leave(self, request: Arrival) -> None:
        self.arena.free(self.start.pop(request.name))

    def places(self, request: Arrival) -> list[int]:
        start = self.start[request.name]
        return list(range(start, start + request.final))


class PagedMemory:
    """Blocks when they are needed, wherever they are free. What is freed is reused last."""

    title = "paged"

    def __init__(self, num_blocks: int, block_size: int, order: Sequence[int] | None):
        self.pool, self.block_size = BlockPool(num_blocks, order), block_size
        self.tables: dict[str, list[int]] = {}

    def enter(self, request: Arrival) -> bool:
        need = blocks_needed(request.prompt, self.block_size)
        if need > self.pool.num_free:
            return False
        self.tables[request.name] = self.pool.allocate(need)
        return True

    def need(self, request: Arrival) -> int:
        return blocks_needed(request.prompt, self.block_size) * self.block_size

    def refusal(self, request: Arrival, free: int) -> str:
        need = blocks_needed(request.prompt, self.block_size)
        return f"{request.name} waits: {need} blocks needed, {self.pool.num_free} free"

    def write(self, request: Arrival, tokens: int) -> str | None:
        """Make room for so many tokens; says which block it took, None if there is none left."""
        table = self.tables[request.name]
        need = blocks_needed(tokens, self.block_size) - len(table)
        if need <= 0:
            return ""
        if need > self.pool.num_free:
            return None
        new = self.pool.allocate(need)
        table += new
        return f"{request.name} takes block {', '.join(map(str, new))}"

    def leave(self, request: Arrival) -> None:
        table = self.tables.pop(request.name)
        self.pool.free(table, keep=table)

    def places(self, request: Arrival) -> list[int]:
        return [
            block * self.block_size + row
            for block in self.tables[request.name]
            for row in range(self.block_size)
        ]


def run_stream(
    memory, stream: Sequence[Arrival], pool: int, max_steps: int = 200
) -> list[Snapshot]:
    """The snapshots of one policy, one a step, until everybody has left."""
    written: dict[str, int] = {}
    requests = {r.name: r for r in stream}
    if len(requests) != len(stream):
        raise ValueError("two requests of one stream have the same name")
    waiting: list[Arrival] = []
    snapshots: list[Snapshot] = []
    finished: list[str] = []
    for step in range(max_steps):
        notes = []
        for name in [n for n in written if written[n] >= requests[n].final]:
            memory.leave(requests[name])
            del written[name]
            finished.append(name)
            notes.append(f"{name} leaves")
        before = list(written)
        waiting += [r for r in stream if r.step == step]
        while waiting and memory.enter(waiting[0]):
            request = waiting.pop(0)
            written[request.name] = request.prompt
            notes.append(f"{request.name} enters")
        for name in before:
            written[name] += 1
            note = memory.write(requests[name], written[name])
            if note is None:
                written[name] -= 1
                note = f"{name} stands still: no block is free"
            if note:
                notes.append(note)
        held = {n: len(memory.places(requests[n])) for n in written}
        holdings = [Holding(written[n], requests[n].final, held[n]) for n in written]
        free = pool - sum(held.values())
        need = memory.need(waiting[0]) if waiting else None
        if waiting:
            notes.append(memory.refusal(waiting[0], free))
        ledger = take_ledger(pool, holdings, need, next_fits=not waiting)
        snapshots.append(
            Snapshot(
                _slots(memory, requests, written, pool, ledger.external > 0),
                dict(written), [r.name for r in waiting], notes, ledger, list(finished),
            )
        )  # fmt: skip
        arrived = all(r.step <= step for r in stream)
        if arrived and not waiting and not written:
            return snapshots
    raise ValueError(f"the stream has not ended after {max_steps} steps: a request can never enter")


def _slots(memory, requests, written, pool: int, stuck: bool) -> list[tuple[str, str]]:
    slots = [("external" if stuck else "free", "")] * pool
    for name, tokens in written.items():
        for position, slot in enumerate(memory.places(requests[name])):
            if position < tokens:
                kind = "live"
            else:
                kind = "reserved" if position < requests[name].final else "internal"
            slots[slot] = (kind, name)
    return slots
