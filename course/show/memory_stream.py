"""One stream of requests through several kinds of memory, slot by slot, for the memory map.

The memories are the policies of ``course.memory``; what is here is the day's run: who arrives, who
is let in, who writes a token, who leaves. Time goes in steps. In each step the finished leave, the
head of the queue enters if its memory is there (no overtaking), its prompt is written, and
everyone who was in already writes one token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course.memory.ledger import Holding, Ledger, take_ledger
from course.memory.policies import Contiguous, Paged, Policy, Slab, make_policy


@dataclass(frozen=True)
class Arrival:
    """A request: its letter, prompt and final length in tokens, and the step in which it comes."""

    name: str
    prompt: int
    final: int
    step: int = 0


@dataclass
class Snapshot:
    """One memory after one step: (kind, request) of each slot, the tokens that each running request
    has written, who waits, what happened, and the ledger."""

    slots: list[tuple[str, str]]
    running: dict[str, int]
    waiting: list[str]
    notes: list[str]
    ledger: Ledger


class _PagedReusedLast(Paged):
    """What is freed is handed out again last, so that the example's block ids stay in order."""

    def release(self, request_id: str) -> None:
        table = self._table(request_id)
        self.pool.free(table, keep=table)
        del self.tables[request_id]


def make_memory(
    name: str, pool: int, max_model_len: int, block_size: int, order: Iterable[int] | None
) -> Policy:
    """A policy by name; "arena" is first fit."""
    if name == "paged":
        return _PagedReusedLast(pool, max_model_len, block_size, order)
    return make_policy("first-fit" if name == "arena" else name, pool, max_model_len, block_size)


def run_stream(memory: Policy, stream: Sequence[Arrival], max_steps: int = 400) -> list[Snapshot]:
    """The snapshots of one memory, one a step, until everybody has left."""
    requests = {r.name: r for r in stream}
    if len(requests) != len(stream):
        raise ValueError("two requests of one stream have the same name")
    for r in stream:
        if not 1 <= r.prompt <= r.final:
            raise ValueError(f"{r.name}: a prompt of {r.prompt} and {r.final} tokens in the end")
        if not memory.possible(r.prompt, r.final - r.prompt):
            raise ValueError(f"{r.name} ({r.final} tokens) can never run in {memory.name} memory")
    written: dict[str, int] = {}
    waiting: list[Arrival] = []
    snapshots: list[Snapshot] = []
    for step in range(max_steps):
        notes = []
        for name in [n for n in written if written[n] >= requests[n].final]:
            memory.release(name)
            del written[name]
            notes.append(f"{name} leaves")
        before = list(written)
        waiting += [r for r in stream if r.step == step]
        while waiting and memory.admit(waiting[0].name, *_lengths(waiting[0])):
            request = waiting.pop(0)
            written[request.name] = request.prompt
            notes.append(f"{request.name} enters")
        for name in before:
            notes += _write(memory, name, written)
        coming = any(r.step > step for r in stream)
        if before == list(written) and before and not coming and _stuck(before, notes):
            raise ValueError(
                f"in step {step} nobody can go on: {', '.join(before)} hold all blocks and each "
                "needs one more. A server would preempt one; take a larger pool or shorter requests"
            )
        if waiting:
            notes.append(_refusal(memory, waiting[0]))
        holdings = [Holding(written[n], requests[n].final, memory.held(n)) for n in written]
        need = memory.asks(*_lengths(waiting[0])) if waiting else None
        ledger = take_ledger(memory.pool_tokens, holdings, need, next_fits=not waiting)
        queue = [r.name for r in waiting]
        slots = _slots(memory, requests, written, ledger.external > 0)
        snapshots.append(Snapshot(slots, dict(written), queue, notes, ledger))
        if not written and not waiting and all(r.step <= step for r in stream):
            return snapshots
    raise ValueError(f"the stream has not ended after {max_steps} steps")


def _lengths(request: Arrival) -> tuple[int, int]:
    return request.prompt, request.final - request.prompt


def _write(memory: Policy, name: str, written: dict[str, int]) -> list[str]:
    """One more token, if there is room; says what it took."""
    before = memory.spans(name)
    if not memory.grow(name, written[name] + 1):
        return [f"{name} stands still: no block is free"]
    written[name] += 1
    new = memory.spans(name)[len(before) :]
    if isinstance(memory, Paged) and new:
        blocks = ", ".join(str(start // memory.block_size) for start, _ in new)
        return [f"{name} takes block {blocks}"]
    return []


def _stuck(running: list[str], notes: list[str]) -> bool:
    return sum("stands still" in note for note in notes) == len(running)


def _refusal(memory: Policy, request: Arrival) -> str:
    need, free = memory.asks(*_lengths(request)), memory.num_free
    if isinstance(memory, Slab):
        return f"{request.name} waits: no slab of {need} is free"
    if isinstance(memory, Contiguous):
        hole = memory.arena.largest_hole
        return (
            f"{request.name} needs {need} in one piece: {free} are free, the longest hole is {hole}"
        )
    return f"{request.name} needs {need} slots: {free} are free"


def _slots(
    memory: Policy, requests: dict[str, Arrival], written: dict[str, int], stuck: bool
) -> list[tuple[str, str]]:
    slots = [("external" if stuck else "free", "")] * memory.pool_tokens
    for name, tokens in written.items():
        places = [s for start, count in memory.spans(name) for s in range(start, start + count)]
        for position, slot in enumerate(places):
            if position < tokens:
                kind = "live"
            else:
                kind = "reserved" if position < requests[name].final else "internal"
            slots[slot] = (kind, name)
    return slots
