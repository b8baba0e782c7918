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
                known is None or (written and known == block_hashes[logical_block]),
                f"block {block_id} of {request_id!r} is published with a hash that is not "
                f"the one of its tokens, or before it was full",
            )
    for block_id in kv.prefix_cache:
        demand(
            block_id in kv.prefix_cache.blocks_of(kv.prefix_cache.hash_of(block_id) or b""),
            f"block {block_id} has a hash that does not lead back to it",
        )
    demand(
        sum(map(len, kv.prefix_cache._blocks.values())) == len(kv.prefix_cache)
        and all(kv.prefix_cache._blocks.values()),
        "the prefix cache lists a block that has no hash, or a hash without a block",
    )
