"""Blocks that remember what they hold: pool, tables and prefix cache put together."""

from course.engine.block_pool import BlockPool
from course.engine.block_table import blocks_needed
from course.engine.hit_stats import HitStats
from course.engine.prefix_cache import PrefixCache
from course.engine.request import Request
from course.engine.sliding_window import num_passed_blocks


class KVBlocks:
    """Who owns which block, and which content can be found again. `KVManager` decides on top of it.

    Invariant: the owners of a block are the tables it stands in, so its reference count is the
    number of times it stands in them. Only full, written blocks are published, and a published
    block is never written.

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
            raise ValueError(f"num_blocks is {num_blocks} and the pool has {pool.num_blocks}")
        blocks_needed(0, block_size)  # refuses a block size below 1
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.watermark = watermark
        self.sliding_window = sliding_window
        self.pool = BlockPool(num_blocks) if pool is None else pool
        self.prefix_cache = PrefixCache()
        self.stats = HitStats()
        self.tables: dict[str, list[int]] = {}  # request id -> block ids
        self.requests: dict[str, Request] = {}  # request id -> whose table it is

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached ones included: all of them can be taken."""
        return self.pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks without an owner whose content can still be found. O(blocks with a hash)."""
        return sum(self.pool.ref_count(block_id) == 0 for block_id in self.prefix_cache)

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request that need not be computed. Reads only.

        Whole blocks, and at least one token is left to compute: without it there are no logits.
        """
        return len(self._find_hit(request, request.num_tokens)) * self.block_size

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

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing changed, while a block has an owner."""
        if self.num_free < self.pool.num_blocks:
            return False
        self.prefix_cache.clear()
        return True

    def _is_published(self, block_id: int) -> bool:
        return block_id < 0 or block_id in self.prefix_cache

    def _find_hit(self, request: Request, num_tokens: int) -> list[int]:
        """Start of a table: the longest usable hit that leaves one of num_tokens to compute."""
        if not self.prefix_caching or len(self.prefix_cache) == 0:
            return []
        size, block_hashes = self.block_size, request.block_hashes(self.block_size)
        if self.sliding_window is None:
            return self.prefix_cache.longest_hit(block_hashes, size, num_tokens)
        block_hashes = block_hashes[: max(0, num_tokens - 1) // size]
        return self.prefix_cache.windowed_hit(block_hashes, size, self.sliding_window)

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
