"""The KV manager: gives each request its blocks, as few and as late as possible."""

import sys

from course.engine.block_table import blocks_needed
from course.engine.invariants import check_kv_manager
from course.engine.kv_blocks import KVBlocks
from course.engine.request import Request, RequestStatus


class KVManager(KVBlocks):
    """Admits, grows, forks and releases requests; every decision is all or nothing.

    Invariant: a request has a table exactly while it runs, and the table covers the tokens that it
    has stored and those that it computes in this step. A request writes only into blocks that it
    alone owns.

    No block is set aside: a pool of `num_blocks` blocks holds num_blocks * block_size tokens.
    """

    @property
    def max_samples(self) -> int:
        """Samples that one request can have: no limit, as they share and can be preempted."""
        return sys.maxsize

    def longest_sequence(self, max_chunk: int) -> int:
        """Most tokens that one request can reach when it has the pool to itself.

        max_chunk: most tokens that it may compute in one step.
        """
        num_blocks = self.pool.num_blocks
        if self.sliding_window is not None:
            # A chunk and the window before it, at worst not aligned to blocks at the left end.
            span = (self.block_size - 1) + (self.sliding_window - 1) + max_chunk
            if blocks_needed(span, self.block_size) <= num_blocks:
                return sys.maxsize
        return num_blocks * self.block_size

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
        is_lone = not self.tables
        if num_left < 0 or (not is_lone and num_left / self.pool.num_blocks < self.watermark):
            return False
        if hit_blocks:
            self.pool.claim(hit_blocks)
        self.tables[request.request_id] = hit + self._allocate(num_new)
        self.requests[request.request_id] = request
        request.num_computed_tokens = len(hit) * self.block_size
        if request.status is RequestStatus.WAITING:  # and not a preempted one that comes back
            request.num_cached_tokens = request.num_computed_tokens
            if self.prefix_caching:
                self.stats.observe(1, request.num_tokens, request.num_cached_tokens)
        return True

    def grow(self, request: Request, num_tokens: int) -> list[tuple[int, int]] | None:
        """Make room for `num_tokens` tokens, those from num_computed_tokens on to be written.

        A block that will be written and has other owners is replaced, in this table, by a copy of
        its own; blocks that are missing are added at the end. A table never shrinks. Returns the
        copies (source, destination) that must be made before the write. None, and nothing changed,
        if the free blocks do not suffice for both.

        With blocks of 4, A and its child A/1 both have the table [7, 1] and 7 computed tokens:
        grow(A, 8) puts a fresh block 10 in the place of 1 and returns [(1, 10)]; grow(A/1, 8) then
        returns [], because block 1 is A/1's alone. Block 7 is full: nobody writes into it.
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

    def fork(self, parent: Request, child: Request) -> list[tuple[int, int]] | None:
        """The child gets the parent's table, a list of its own, and shares every block.

        Takes no block: each block counts one owner more. An entry of -1 stays -1 (it marks a block
        that was given back; lesson 09). The child's counts, num_computed_tokens and
        num_cached_tokens, are its parent's. Returns the copies to make before the next write: an
        empty list, as `grow` copies when it must.
        ValueError, and nothing changed, if the child has a table already.
        """
        if child.request_id in self.tables:
            raise ValueError(f"request {child.request_id!r} is admitted already")
        table = self.tables[parent.request_id]
        self.pool.share([block_id for block_id in table if block_id >= 0])
        self.tables[child.request_id] = list(table)
        self.requests[child.request_id] = child
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens
        return []

    def release(self, request: Request) -> None:
        """Give the request's blocks back, the last of its table first; entries of -1 are none.

        So among cached blocks of one age a block is always reused before the one it continues.
        ValueError, and nothing changed, if the request holds no table.
        """
        if request.request_id not in self.tables:
            raise ValueError(f"request {request.request_id!r} holds no blocks: released already?")
        del self.requests[request.request_id]
        table = self.tables.pop(request.request_id)
        self._free([block_id for block_id in reversed(table) if block_id >= 0])

    def check_invariants(self) -> None:
        """Walk everything; InvariantError says what is wrong."""
        check_kv_manager(self)
