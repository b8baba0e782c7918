"""What must always be true of the pool, the tables and the queue, as code that says what is not.

Walks everything, so it costs O(size). The tests run it after every operation; `LLM` and the lessons
can run it at any moment between two calls.
"""

from collections import Counter
from typing import TYPE_CHECKING

from course.engine.prefix_cache import hash_blocks

if TYPE_CHECKING:
    from course.engine.block_pool import BlockPool
    from course.engine.kv_manager import KVManager
    from course.engine.scheduler import Scheduler


class InvariantError(AssertionError):
    """The bookkeeping contradicts itself; the message says where."""


def demand(condition: bool, message: str) -> None:
    """Like `assert`, but also under `python -O`."""
    if not condition:
        raise InvariantError(message)


def check_pool(pool: "BlockPool") -> None:
    """Free and used blocks are disjoint, complete and counted."""
    free = pool.free_blocks
    demand(
        len(free) == pool.num_free,
        f"the free list has {len(free)} blocks and counts {pool.num_free}",
    )
    twice = [block_id for block_id, times in Counter(free).items() if times > 1]
    demand(not twice, f"blocks {twice} are in the free list more than once")
    backwards = list(reversed(pool._free))
    demand(backwards == free[::-1], "the free list reads differently forwards and backwards")
    in_free_list = set(free)
    for block_id in range(pool.num_blocks):
        owners = pool.ref_count(block_id)
        demand(owners >= 0, f"block {block_id} has {owners} owners")
        demand(
            (owners == 0) == (block_id in in_free_list),
            f"block {block_id} has {owners} owner(s) and is "
            f"{'in' if block_id in in_free_list else 'not in'} the free list",
        )


def check_kv_manager(kv: "KVManager") -> None:
    """Owners equal reference counts, tables have the right length, hashes tell the truth."""
    kv.pool.check_invariants()
    owners = Counter(block for table in kv.tables.values() for block in table if block >= 0)
    for block_id in range(kv.pool.num_blocks):
        counted = kv.pool.ref_count(block_id)
        demand(
            owners[block_id] == counted,
            f"block {block_id} stands {owners[block_id]} time(s) in tables, counted {counted}",
        )
    demand(kv.tables.keys() == kv.requests.keys(), "a table without a request, or the reverse")
    for request_id, table in kv.tables.items():
        request = kv.requests[request_id]
        num_held = len(table) * kv.block_size
        demand(
            request.num_computed_tokens <= num_held,
            f"{request_id!r} has {request.num_computed_tokens} tokens stored in {num_held} slots",
        )
        block_hashes = hash_blocks(request.token_ids, kv.block_size, request.extra_key)
        for logical_block, block_id in enumerate(table):
            known = kv.prefix_cache.hash_of(block_id)
            written = (logical_block + 1) * kv.block_size <= request.num_computed_tokens
            demand(
                known is None
                or (written and [known] == block_hashes[logical_block : logical_block + 1]),
                f"block {block_id} of {request_id!r} is published with a hash that is not "
                f"the one of its tokens, or before it was full",
            )
    for block_id in kv.prefix_cache:
        demand(
            block_id in kv.prefix_cache.blocks_of(kv.prefix_cache.hash_of(block_id) or b""),
            f"block {block_id} has a hash that does not lead back to it",
        )
    listed = getattr(kv.prefix_cache, "_blocks", None)  # a cache of one's own may keep it otherwise
    demand(
        listed is None
        or (sum(map(len, listed.values())) == len(kv.prefix_cache) and all(listed.values())),
        "the prefix cache lists a block that has no hash, or a hash without a block",
    )


def check_scheduler(scheduler: "Scheduler") -> None:
    """Queues hold the right requests, in order; the step in progress writes only where it may."""
    kv, config = scheduler.kv_manager, scheduler.config
    kv.check_invariants()
    running = [request.request_id for request in scheduler.running]
    waiting = [request.request_id for request in scheduler.waiting]
    queued = running + waiting
    demand(len(set(queued)) == len(queued), f"a request is queued twice: {queued}")
    demand(set(running) == set(kv.tables), f"running {running}, with tables {list(kv.tables)}")
    for request in scheduler.running:
        demand(request.status.value == "running", f"among the running: {request!r}")
    for request in scheduler.waiting:
        demand(request.status.value in ("waiting", "preempted"), f"in the queue: {request!r}")
        demand(request.num_computed_tokens == 0, f"computed without blocks: {request!r}")
    unforked = [
        child
        for request in (*scheduler.running, *scheduler.waiting)
        for child in request.unforked_children
    ]
    expected = {*queued, *(child.request_id for child in unforked)}
    demand(
        expected == set(scheduler._live), f"queued {expected}, unfinished {set(scheduler._live)}"
    )
    arrivals = {request_id: place for place, request_id in enumerate(scheduler._live)}
    order = [arrivals[request_id] for request_id in queued]
    demand(order == sorted(order), f"not in order of arrival: {queued}")
    seats = sum(1 + len(request.unforked_children) for request in scheduler.running)
    demand(seats <= config.max_num_seqs, f"{seats} sequences, max_num_seqs {config.max_num_seqs}")
    step = scheduler._step
    if step is None:
        return
    demand(
        step.num_tokens <= config.max_num_batched_tokens,
        f"{step.num_tokens} tokens in a step, the budget is {config.max_num_batched_tokens}",
    )
    for request, start, num_tokens in step.scheduled:
        if request.is_finished:
            continue
        demand(num_tokens >= 1, f"{request!r} is scheduled for {num_tokens} tokens")
        table = kv.tables[request.request_id]
        first, last = start // kv.block_size, (start + num_tokens - 1) // kv.block_size
        demand(last < len(table), f"{request!r} writes past its table {table}")
        for block_id in table[first : last + 1]:
            # One owner, so no other request of this step writes or reads it.
            owners = kv.pool.ref_count(block_id)
            demand(owners == 1, f"{request!r} writes block {block_id}, which has {owners} owners")
            demand(block_id not in kv.prefix_cache, f"{request!r} overwrites published {block_id}")
