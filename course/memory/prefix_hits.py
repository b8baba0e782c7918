"""How often a cache of prefix blocks would have been hit, over a trace with block hashes."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course.workload.requests import WorkloadRequest


@dataclass(frozen=True)
class PrefixHits:
    """Hits of one replay. ``capacity`` in blocks; None is a cache without bound."""

    capacity: int | None
    num_blocks: int
    num_hits: int
    num_unique: int

    @property
    def hit_rate(self) -> float:
        """Hits over block references; 0 for a trace without any."""
        return self.num_hits / self.num_blocks if self.num_blocks else 0.0


def prefix_hits(requests: Iterable[WorkloadRequest], capacity: int | None = None) -> PrefixHits:
    """Replay the block hashes of a trace, in order, through an LRU cache of ``capacity`` blocks.

    A hit is a block of the longest prefix that is in the cache; what lies behind the first miss
    must be computed again even if it is there. After the request all its blocks are in the cache,
    touched from the last to the first, so that a block is evicted before the one it continues.
    Requests follow each other: nothing is in use while it is evicted.
    """
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity is {capacity}: it must be at least 1 block, or None for all.")
    cache: OrderedDict[int, None] = OrderedDict()
    seen: set[int] = set()
    num_blocks = num_hits = 0
    for request in requests:
        hashes = request.prefix_hashes
        if hashes is None:
            raise ValueError(
                "A request has no block hashes: prefix hits need a trace that carries them, "
                "such as Mooncake's."
            )
        num_blocks += len(hashes)
        seen.update(hashes)
        for block in hashes:
            if block not in cache:
                break
            num_hits += 1
        for block in reversed(hashes):
            cache[block] = None
            cache.move_to_end(block)
            if capacity is not None and len(cache) > capacity:
                cache.popitem(last=False)
    return PrefixHits(capacity, num_blocks, num_hits, len(seen))


def hit_curve(
    requests: Sequence[WorkloadRequest], capacities: Iterable[int | None]
) -> list[PrefixHits]:
    """``prefix_hits`` for each capacity."""
    return [prefix_hits(requests, capacity) for capacity in capacities]
