"""A simulation of PyTorch's caching allocator for CUDA, as far as fragmentation needs it.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings: sizes are
rounded up to 512 bytes; requests of up to 1 MiB come from segments of 2 MiB, larger ones below
10 MiB from segments of 20 MiB, others from a segment of their own, rounded up to 2 MiB. A segment
is a piece of memory asked of the driver. Freed memory stays in its segment, merges with free
neighbours there, and is given out again, best fit first. Only when the driver has no more are
segments that are wholly free handed back, and the request tried once again.

Left out: streams, the settings of PYTORCH_CUDA_ALLOC_CONF (expandable segments among them), the
choice of which segments to give back (all that are free are), and time.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

MIB = 2**20
ROUND, SMALL, SMALL_SEGMENT, LARGE_SEGMENT, LARGE, ROUND_SEGMENT = (
    512, MIB, 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB,
)  # fmt: skip


class CacheStats(NamedTuple):
    """Bytes: ``allocated`` to tensors; ``reserved`` from the driver, so allocated or cached;
    ``inactive_split`` cached in segments that tensors also live in, so that the driver cannot have
    them back; ``largest_free`` piece in the cache."""

    allocated: int
    reserved: int
    inactive_split: int
    largest_free: int

    @property
    def cached(self) -> int:
        """Reserved and in no tensor."""
        return self.reserved - self.allocated


@dataclass
class _Segment:
    small: bool
    pieces: list[list[int]] = field(default_factory=list)  # [size, handle or 0], in address order

    @property
    def is_free(self) -> bool:
        return len(self.pieces) == 1 and self.pieces[0][1] == 0


class CachingAllocator:
    """``device_bytes`` of memory behind a cache of segments. ``allocate`` gives a handle, or None
    when neither cache nor device has room."""

    def __init__(self, device_bytes: int) -> None:
        if device_bytes < 1:
            raise ValueError(f"device_bytes is {device_bytes}: it must be at least 1.")
        self.device_bytes = device_bytes
        self._segments: list[_Segment] = []
        self._last_handle = 0

    def allocate(self, num_bytes: int) -> int | None:
        """A handle for a tensor of so many bytes."""
        if num_bytes < 1:
            raise ValueError(f"num_bytes is {num_bytes}: it must be at least 1.")
        size = -(-num_bytes // ROUND) * ROUND
        return self._from_cache(size) or self._from_device(size)

    def free(self, handle: int) -> None:
        """Put a tensor's bytes back into the cache; the device does not get them."""
        for segment in self._segments:
            for place, piece in enumerate(segment.pieces):
                if piece[1] == handle and handle:
                    piece[1] = 0
                    self._merge(segment.pieces, place)
                    return
        raise ValueError(f"No tensor has the handle {handle!r}: was it freed before?")

    def stats(self) -> CacheStats:
        """The counters, under the names that ``torch.cuda.memory_stats`` uses."""
        pieces = [(s, size, handle) for s in self._segments for size, handle in s.pieces]
        free = [(s, size) for s, size, handle in pieces if not handle]
        return CacheStats(
            allocated=sum(size for _, size, handle in pieces if handle),
            reserved=sum(size for _, size, _ in pieces),
            inactive_split=sum(size for s, size in free if not s.is_free),
            largest_free=max((size for _, size in free), default=0),
        )

    def segments(self) -> list[list[tuple[int, bool]]]:
        """(bytes, in use) of every piece of every segment, in address order."""
        return [[(size, handle > 0) for size, handle in s.pieces] for s in self._segments]

    def empty_cache(self) -> None:
        """Give every segment that is wholly free back to the device."""
        self._segments = [s for s in self._segments if not s.is_free]

    def _from_cache(self, size: int) -> int | None:
        small = size <= SMALL
        fitting = [
            (piece[0], index, place)
            for index, segment in enumerate(self._segments)
            if segment.small == small
            for place, piece in enumerate(segment.pieces)
            if not piece[1] and piece[0] >= size
        ]
        return self._take(*min(fitting)[1:], size) if fitting else None

    def _from_device(self, size: int) -> int | None:
        small = size <= SMALL
        if small:
            wanted = SMALL_SEGMENT
        elif size < LARGE:
            wanted = LARGE_SEGMENT
        else:
            wanted = -(-size // ROUND_SEGMENT) * ROUND_SEGMENT
        if self.stats().reserved + wanted > self.device_bytes:
            self.empty_cache()
        if self.stats().reserved + wanted > self.device_bytes:
            return None
        self._segments.append(_Segment(small, [[wanted, 0]]))
        return self._take(len(self._segments) - 1, 0, size)

    def _take(self, index: int, place: int, size: int) -> int:
        """Give out the low end of a free piece; the rest stays free if it is worth splitting."""
        segment = self._segments[index]
        piece = segment.pieces[place]
        self._last_handle += 1
        rest = piece[0] - size
        if rest >= ROUND if segment.small else rest > SMALL:
            segment.pieces.insert(place + 1, [rest, 0])
            piece[0] = size
        piece[1] = self._last_handle
        return self._last_handle

    @staticmethod
    def _merge(pieces: list[list[int]], place: int) -> None:
        if place + 1 < len(pieces) and not pieces[place + 1][1]:
            pieces[place][0] += pieces.pop(place + 1)[0]
        if place and not pieces[place - 1][1]:
            pieces[place - 1][0] += pieces.pop(place)[0]
