"""The KV manager: which request owns which blocks. Pool, tables and prefix cache put together."""

import sys

from course.engine.block_pool import BlockPool
from course.engine.block_table import blocks_needed
from course.engine.hit_stats import HitStats
from course.engine.invariants import check_kv_manager
from course.engine.prefix_cache import PrefixCache
from course.engine.request import Request, RequestStatus
from course.engine.sliding_window import num_passed_blocks


class KVManager:
    """Gives each request a block table and keeps it long enough, and never longer than needed.

    Invariant: the owners of a block are the tables it stands in, so its reference count is the
    number of times it stands in them. A request writes only into blocks that it alone owns.

    With `sliding_window=W` a token sees itself and the W - 1 tokens before it. A block that no
    later token of its request can see is given back, and its table entry becomes -1.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        watermark: float = 0.0,
        sliding_window: int | None = None,
        pool: BlockPool | None = None,
    ):
        """watermark: share of the blocks, 0 up to 1, that an admission must leave free.

        pool: blocks to use instead of a new BlockPool(num_blocks), for another order of ids.
        """
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"watermark is {watermark}; it is a share of the pool, 0 up to 1")
        if sliding_window is not None and sliding_window < 1:
            raise ValueError(f"sliding_window is {sliding_window}; it must be 1 or more tokens")
        if pool is not None and pool.num_blocks != num_blocks:
            raise ValueError(f"num_blocks is {num_blocks}, the pool has {pool.num_blocks}")
        blocks_needed(0, block_size)  # refuses a block size below 1
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.watermark = watermark
        self.sliding_window = sliding_window
        self.pool = BlockPool(num_blocks) if pool is None else pool
        self.prefix_cache = PrefixCache()
        self.stats = HitStats()
        self.tables: dict[str, list[int]] = {}  # request id -> block ids
        self.requests: dict[str, Request] = {}  # whose tables they are

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached ones included: all of them can be taken."""
        return self.pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks without an owner whose content can still be found. O(blocks with a hash)."""
        return sum(self.pool.ref_count(block_id) == 0 for block_id in self.prefix_cache)

    @property
    def max_samples(self) -> int:
        """Samples that one request can have: no limit, as they share and can be preempted."""
        return sys.maxsize

    def longest_sequence(self, max_chunk: int) -> int:
        """Most tokens that one request can reach when it has the pool to itself.

        max_chunk: most tokens it may compute in one step.
        """
        num_blocks = self.pool.num_blocks
        if self.sliding_window is not None:
            # A chunk sees its own tokens and a window before them, not aligned to blocks.
            span = self.sliding_window - 1 + max_chunk + self.block_size - 1
            if blocks_needed(span, self.block_size) <= num_blocks:
                return sys.maxsize
        return num_blocks * self.block_size

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request that need not be computed. Reads only.

        Whole blocks, and at least one token is left to compute: without it there are no logits.
        """
        return len(self._find_hit(request, request.num_tokens)) * self.block_size

    def admit(self, request: Request, num_tokens: int) -> bool:
        """Give the request a table with slots for its first `num_tokens` tokens, cached included.

        Sets request.num_computed_tokens to the tokens found in the prefix cache. False, and nothing
        changed, if the free blocks do not suffice. The watermark is not applied to a lone request.
        """
        if request.request_id in self.tables:
            raise ValueError(f"request {request.request_id!r} is admitted already")
        hit = self._find_hit(request, min(num_tokens, request.num_tokens))
        hit_blocks = [block_id for block_id in hit if block_id >= 0]
        num_new = blocks_needed(num_tokens, self.block_size) - len(hit)
        # A hit block that nobody owns is counted among the free ones: it will be taken too.
        num_ownerless = sum(self.pool.ref_count(block_id) == 0 for block_id in hit_blocks)
        num_left = self.num_free - num_new - num_ownerless
        if num_left < 0 or (self.tables and num_left / self.pool.num_blocks < self.watermark):
            return False
        if hit_blocks:
            self.pool.claim(hit_blocks)
        self.tables[request.request_id] = hit + self._allocate(num_new)
        self.requests[request.request_id] = request
        request.num_computed_tokens = len(hit) * self.block_size
        if request.status is RequestStatus.WAITING:  # not a preempted one that comes back
            request.num_cached_tokens = request.num_computed_tokens
            if self.prefix_caching:
                self.stats.observe(1, request.num_tokens, request.num_cached_tokens)
        return True

    def grow(self, request: Request, num_tokens: int) -> list[tuple[int, int]] | None:
        """Make room for `num_tokens` tokens, those from num_computed_tokens on to be written.

        A block that will be written and has other owners is replaced by a copy of its own. Returns
        the copies (source, destination) that must be made before the write. None, and nothing
        changed, if the free blocks do not suffice.
        """
        table = self.tables[request.request_id]
        num_blocks_wanted = blocks_needed(num_tokens, self.block_size)
        num_blocks_held = len(table)
        first_written = request.num_computed_tokens // self.block_size
        shared = [
            logical_block
            for logical_block in range(first_written, min(num_blocks_wanted, num_blocks_held))
            if self.pool.ref_count(table[logical_block]) > 1
        ]
        num_new = max(0, num_blocks_wanted - num_blocks_held)
        if num_new + len(shared) > self.num_free:
            return None
        copies = []
        for logical_block in shared:
            source, (destination,) = table[logical_block], self._allocate(1)
            table[logical_block] = destination
            self._free([source])
            copies.append((source, destination))
        if num_new:
            table += self._allocate(num_new)
        return copies

    def publish(self, request: Request) -> None:
        """Note that the first num_computed_tokens tokens are written.

        Full blocks can be found by others from now on; blocks that the window has passed are freed.
        """
        table = self.tables[request.request_id]
        if self.prefix_caching:
            logical_block = request.num_computed_tokens // self.block_size - 1
            # What is published is the start of the table, so walk back to the last of it.
            while logical_block >= 0 and not self._is_published(table[logical_block]):
                block_hash = request.block_hashes(self.block_size)[logical_block]
                self.prefix_cache.publish(table[logical_block], block_hash)
                logical_block -= 1
        num_passed = num_passed_blocks(
            request.num_computed_tokens, self.block_size, self.sliding_window
        )
        passed = [block_id for block_id in reversed(table[:num_passed]) if block_id >= 0]
        if passed:
            table[:num_passed] = [-1] * num_passed
            self._free(passed)

    def _is_published(self, block_id: int) -> bool:
        return block_id < 0 or block_id in self.prefix_cache

    def fork(self, parent: Request, child: Request) -> list[tuple[int, int]] | None:
        """The child gets the parent's table and shares every block; takes no block.

        Returns the copies to make before the next write: none, as `grow` copies when it must.
        """
        if child.request_id in self.tables:
            raise ValueError(f"request {child.request_id!r} is admitted already")
        table = self.tables[parent.request_id]
        self.pool.share(block_id for block_id in table if block_id >= 0)
        self.tables[child.request_id] = list(table)
        self.requests[child.request_id] = child
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens
        return []

    def release(self, request: Request) -> None:
        """Give the request's blocks back, the last of its table first.

        So among cached blocks of one age a block is always reused before the one it continues.
        """
        if request.request_id not in self.tables:
            raise ValueError(f"request {request.request_id!r} holds no blocks: released already?")
        del self.requests[request.request_id]
        table = self.tables.pop(request.request_id)
        self._free([block_id for block_id in reversed(table) if block_id >= 0])

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing changed, while a block has an owner."""
        if self.num_free < self.pool.num_blocks:
            return False
        self.prefix_cache.clear()
        return True

    def check_invariants(self) -> None:
        """Walk everything; InvariantError says what is wrong."""
        check_kv_manager(self)

    def _find_hit(self, request: Request, num_tokens: int) -> list[int]:
        """Start of a table: the longest usable hit that leaves one of num_tokens to compute."""
        if not self.prefix_caching or len(self.prefix_cache) == 0:
            return []
        max_blocks = max(0, num_tokens - 1) // self.block_size
        block_hashes = request.block_hashes(self.block_size)[:max_blocks]
        return self.prefix_cache.longest_hit(block_hashes, self.block_size, self.sliding_window)

    def _allocate(self, count: int) -> list[int]:
        block_ids = self.pool.allocate(count)
        for block_id in block_ids:
            self.prefix_cache.forget(block_id)  # evicted: it is about to hold something else
        return block_ids

    def _free(self, block_ids: list[int]) -> None:
        if self.prefix_caching:
            self.pool.free(block_ids, keep=self.prefix_cache)
        else:
            self.pool.free(block_ids)  # nothing to keep, so any pool will do
