"""PyTorch's caching allocator itself, behind the interface of the simulation of it.

TorchCache()      on a machine with a CUDA device; elsewhere ``course.memory.CachingAllocator``
"""

from course.memory.caching import CacheStats


class TorchCache:
    """Tensors on a GPU, and PyTorch's own counters. Same methods as ``CachingAllocator``.

    ``stats`` are what changed since this object was made, so that whatever the process had on the
    device before does not count; ``largest_free`` and ``segments`` are read from PyTorch's
    snapshot and include all of the cache. RuntimeError where there is no CUDA device.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("There is no CUDA device here: use CachingAllocator, a simulation.")
        self._torch = torch
        self._tensors: dict[int, object] = {}
        self._last_handle = 0
        torch.cuda.empty_cache()
        self._before = CacheStats(0, 0, 0, 0)
        self._before = self.stats()

    def allocate(self, num_bytes: int) -> int | None:
        """A handle for a tensor of so many bytes; None when PyTorch is out of memory."""
        try:
            tensor = self._torch.empty(num_bytes, dtype=self._torch.uint8, device="cuda")
        except self._torch.cuda.OutOfMemoryError:
            return None
        self._last_handle += 1
        self._tensors[self._last_handle] = tensor
        return self._last_handle

    def free(self, handle: int) -> None:
        """Drop the tensor; PyTorch keeps its bytes in the cache."""
        if handle not in self._tensors:
            raise ValueError(f"No tensor has the handle {handle!r}: was it freed before?")
        del self._tensors[handle]

    def stats(self) -> CacheStats:
        """PyTorch's counters, less what they were at first."""
        counters, before = self._torch.cuda.memory_stats(), self._before
        free = [size for pieces in self.segments() for size, busy in pieces if not busy]
        return CacheStats(
            allocated=counters.get("allocated_bytes.all.current", 0) - before.allocated,
            reserved=counters.get("reserved_bytes.all.current", 0) - before.reserved,
            inactive_split=counters.get("inactive_split_bytes.all.current", 0)
            - before.inactive_split,
            largest_free=max(free, default=0),
        )

    def segments(self) -> list[list[tuple[int, bool]]]:
        """(bytes, in use) of every piece of every segment, in address order."""
        snapshot = self._torch.cuda.memory_snapshot()
        return [[(b["size"], b["state"] != "inactive") for b in s["blocks"]] for s in snapshot]
