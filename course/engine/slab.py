"""The baseline that paging is measured against: one reserved run of memory per request."""

from course.engine.block_table import blocks_needed
from course.engine.kv_manager import KVManager
from course.engine.request import Request


class SlabKVManager(KVManager):
    """Reserves slots for max_model_len tokens, in one piece, when a request is admitted.

    Invariant: each table is one run of consecutive block ids, of the same length for all, and no
    block stands in two tables. So a table never grows, nothing is shared, and what a request does
    not use nobody else can have.

    It has the interface of `KVManager`, and the same memory cut into the same blocks, so that the
    engine above it stays as it is.
    """

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int):
        """ValueError if not even one slab fits into the pool."""
        super().__init__(num_blocks, block_size, prefix_caching=False)
        self.max_model_len = max_model_len
        self.slab_blocks = blocks_needed(max_model_len, block_size)
        if not 1 <= self.slab_blocks <= num_blocks:
            raise ValueError(
                f"a slab of max_model_len {max_model_len} takes {self.slab_blocks} blocks and the "
                f"pool has {num_blocks}: lower max_model_len or make the pool larger"
            )
        last_start = num_blocks - self.slab_blocks
        # Free slabs, by their first block. The last is popped first, so low addresses go first.
        self._free_slabs = list(range(0, last_start + 1, self.slab_blocks))[::-1]

    @property
    def max_samples(self) -> int:
        """Samples that one request can have: each takes a slab."""
        return self.pool.num_blocks // self.slab_blocks

    def longest_sequence(self, max_chunk: int) -> int:
        return self.max_model_len

    def admit(self, request: Request, num_tokens: int) -> bool:
        """Reserve a slab, and one for each child to come. False if so many are not free."""
        if request.request_id in self.tables:
            raise ValueError(f"request {request.request_id!r} is admitted already")
        num_promised = sum(len(other.unforked_children) for other in self.requests.values())
        if 1 + len(request.unforked_children) > len(self._free_slabs) - num_promised:
            return False
        self._take_slab(request)
        request.num_computed_tokens = 0
        return True

    def _take_slab(self, request: Request) -> None:
        start = self._free_slabs.pop()
        self.tables[request.request_id] = list(range(start, start + self.slab_blocks))
        self.requests[request.request_id] = request
        self.pool.claim(self.tables[request.request_id])

    def grow(self, request: Request, num_tokens: int) -> list[tuple[int, int]] | None:
        """Nothing to do: the slots were reserved at admission. ValueError past the slab."""
        if num_tokens > self.slab_blocks * self.block_size:
            raise ValueError(f"{num_tokens} tokens do not fit a slab of {self.max_model_len}")
        return []

    def fork(self, parent: Request, child: Request) -> list[tuple[int, int]] | None:
        """A slab for the child, and copies of the blocks that the parent has written.

        The copies must be made before the next write. None, and nothing changed: no slab is free.
        """
        if child.request_id in self.tables:
            raise ValueError(f"request {child.request_id!r} is admitted already")
        if not self._free_slabs:
            return None
        self._take_slab(child)
        child.num_computed_tokens = parent.num_computed_tokens
        num_written = blocks_needed(parent.num_computed_tokens, self.block_size)
        sources = self.tables[parent.request_id][:num_written]
        destinations = self.tables[child.request_id][:num_written]
        return list(zip(sources, destinations, strict=True))

    def release(self, request: Request) -> None:
        """Give the whole slab back."""
        table = self.tables.get(request.request_id)
        super().release(request)  # refuses a request without a table
        if table:
            self._free_slabs.append(table[0])
