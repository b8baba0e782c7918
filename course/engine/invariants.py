"""What must always be true of the pool, the tables and the queue, as code that says what is not.

Walks everything, so it costs O(size). The tests run it after every operation; `LLM` and the lessons
can run it at any moment between two calls.
"""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course.engine.block_pool import BlockPool


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
