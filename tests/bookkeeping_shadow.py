"""A model and a KV store of plain Python, to see through what the bookkeeping does.

The store keeps, for each slot, which tokens led up to what is stored there. So a read of a slot
that is unwritten, stale or somebody else's shows at once, as do a write into a shared block and two
writes to one slot. The next token is computed from what the *store* says, never from the request,
as a real model would.
"""

from hashlib import blake2b

from course.engine.block_table import blocks_needed, slot_mapping
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler, SchedulerConfig
from course.engine.sliding_window import num_passed_blocks

VOCAB = 6
EOS = 0


def digest(before: bytes, token_id: int) -> bytes:
    return blake2b(before + token_id.to_bytes(4, "little"), digest_size=16).digest()


def prefix_digests(request: Request) -> list[bytes]:
    """What each position of the request stands for: its token and everything to the left."""
    state = repr(request.extra_key).encode()
    digests = []
    for token_id in request.token_ids:
        state = digest(state, token_id)
        digests.append(state)
    return digests


def next_token(state: bytes, seed: int | None) -> int:
    return digest(state, 0 if seed is None else seed + 1)[0] % VOCAB


def reference_outputs(request: Request, limit: int) -> list[tuple[list[int], str]]:
    """(output, finish reason) of each sample of a fresh request, with no cache and no neighbours.

    limit: longest sequence allowed, prompt and output.
    """
    params = request.params
    results = []
    for sample in range(params.n):
        seed = None if params.seed is None else params.seed + sample
        state = prefix_digests(request)[-1]
        output: list[int] = []
        reason = "length" if params.max_tokens == 0 else ""
        while not reason:
            output.append(next_token(state, seed))
            state = digest(state, output[-1])
            stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
            if len(output) >= params.min_tokens and output[-1] in stops:
                reason = "stop"
            elif (
                len(output) == params.max_tokens or request.num_prompt_tokens + len(output) == limit
            ):
                reason = "length"
        results.append((output, reason))
    return results


class ShadowStore:
    """slot -> digest of the tokens whose key and value it holds."""

    def __init__(self, kv: KVManager):
        self.kv = kv
        self.slots: dict[int, bytes] = {}

    def copy_blocks(self, copies):
        size = self.kv.block_size
        destinations = [destination for _, destination in copies]
        assert len(set(destinations)) == len(destinations), "two copies into one block"
        read = [[self.slots.get(src * size + row) for row in range(size)] for src, _ in copies]
        for (source, destination), content in zip(copies, read, strict=True):
            assert source != destination
            for row, what in enumerate(content):
                self.slots.pop(destination * size + row, None)
                if what is not None:
                    self.slots[destination * size + row] = what

    def forward(self, step) -> dict[str, int]:
        kv, size = self.kv, self.kv.block_size
        self.copy_blocks(step.copies)
        written: set[int] = set()
        writes: dict[int, bytes] = {}
        last_states = []
        for request, start, num_tokens in step.scheduled:
            table = kv.tables[request.request_id]
            states = prefix_digests(request)
            first_visible = 0
            if kv.sliding_window is not None:
                first_visible = max(0, start - kv.sliding_window + 1)
            positions = range(first_visible, start)
            # Read before any write of this step: a hit must rest on what was there already.
            for position, slot in zip(positions, slot_mapping(table, positions, size), strict=True):
                assert self.slots.get(slot) == states[position], (
                    f"{request!r} position {position} slot {slot}: unwritten, stale or foreign"
                )
            positions = range(start, start + num_tokens)
            for position, slot in zip(positions, slot_mapping(table, positions, size), strict=True):
                assert kv.pool.ref_count(slot // size) == 1, f"{request!r} writes a shared block"
                assert slot // size not in kv.prefix_cache, f"{request!r} writes a published block"
                assert slot not in written, f"slot {slot} is written twice in a step"
                written.add(slot)
                writes[slot] = states[position]
            last_states.append((table, start + num_tokens - 1))
        self.slots |= writes
        tokens = {}
        for request, row in zip(step.samples, step.sample_rows, strict=True):
            table, position = last_states[row]
            (slot,) = slot_mapping(table, [position], size)
            tokens[request.request_id] = next_token(self.slots[slot], request.params.seed)
        return tokens


class ShadowEngine:
    """Scheduler, store and every check after every step."""

    def __init__(self, kv: KVManager, max_num_seqs=8, budget=16, chunked_prefill=True, **config):
        self.kv = kv
        config = SchedulerConfig(max_num_seqs, budget, chunked_prefill, **config)
        self.scheduler = Scheduler(config, kv)
        self.store = ShadowStore(kv)
        self.parent_hash: dict[bytes, bytes] = {}
        self.num_steps = 0

    def add(self, name: str, prompt, extra_key=None, **params) -> Request:
        request = Request(name, prompt, SamplingParams(**params), extra_key, EOS)
        self.scheduler.add(request)
        self.check()
        return request

    def schedule(self):
        had_work = self.scheduler.has_work
        running_before = list(self.scheduler.running)
        preempted_before = self.scheduler.num_preemptions
        step = self.scheduler.schedule()
        self.check()
        assert step.scheduled or not had_work, "no progress"
        scheduled = [request for request, _, _ in step.scheduled]
        assert len(set(scheduled)) == len(scheduled)
        assert not set(scheduled) & set(step.preempted)
        assert self.scheduler.num_preemptions - preempted_before == len(step.preempted)
        if step.preempted:  # newest first, and nobody is let in
            assert step.preempted == running_before[: -len(step.preempted) - 1 : -1]
            assert set(scheduled) <= set(running_before)
        if self.scheduler.config.max_num_batched_tokens >= len(running_before):
            # Nobody who runs is kept waiting by somebody else's prompt.
            assert set(running_before) <= {*scheduled, *step.preempted}
        for request, start, num_tokens in step.scheduled:
            assert request.num_computed_tokens == start
            assert num_tokens >= 1
            assert start + num_tokens <= request.num_tokens
            if type(self.kv) is KVManager:  # a block is taken when it is needed and not before
                table = self.kv.tables[request.request_id]
                assert len(table) == blocks_needed(start + num_tokens, self.kv.block_size)
        return step

    def step(self) -> list[Request]:
        step = self.schedule()
        tokens = self.store.forward(step)
        finished = self.scheduler.update(step, tokens)
        for request in finished:
            assert request.is_finished
            assert request.request_id not in self.kv.tables
        for request, start, num_tokens in step.scheduled:
            assert request.is_finished or request.num_computed_tokens == start + num_tokens
            table = self.kv.tables.get(request.request_id, [])
            num_passed = num_passed_blocks(
                request.num_computed_tokens, self.kv.block_size, self.kv.sliding_window
            )
            assert [entry < 0 for entry in table[:num_passed]] == [True] * len(table[:num_passed])
            assert all(entry >= 0 for entry in table[num_passed:])
        self.check()
        self.num_steps += 1
        return finished

    def drain(self, max_steps: int = 5000) -> None:
        while self.scheduler.has_work:
            self.step()
            max_steps -= 1
            assert max_steps > 0, "does not end"
        self.check_idle()

    def check_idle(self) -> None:
        assert not self.kv.tables
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        assert self.kv.num_free == self.kv.pool.num_blocks
        assert len(self.kv.prefix_cache) == self.kv.num_cached

    def check(self) -> None:
        self.scheduler.check_invariants()
        if self.kv.sliding_window is not None:
            return
        for request in self.kv.requests.values():
            hashes = request.block_hashes(self.kv.block_size)
            self.parent_hash.update(zip(hashes[1:], hashes, strict=False))
        for block_id in self.kv.prefix_cache:  # children are evicted before their parents
            parent = self.parent_hash.get(self.kv.prefix_cache.hash_of(block_id))
            assert parent is None or self.kv.prefix_cache.blocks_of(parent), "parent evicted first"


def outcome(request: Request) -> list[tuple[list[int], str | None]]:
    """(output, finish reason) of each sample."""
    return [(r.output_token_ids, r.finish_reason) for r in (request, *request.children)]
