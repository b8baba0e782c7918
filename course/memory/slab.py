"""One slab of max_model_len slots for every request: the simplest reservation, and the baseline."""

from bisect import insort


class SlabAllocator:
    """Cuts a pool into slabs of ``max_model_len`` slots and gives each request a whole one.

    Invariant: a slab is either free or belongs to exactly one request. What is left of the pool
    after the last whole slab is never used.
    """

    def __init__(self, pool_tokens: int, max_model_len: int) -> None:
        for name, value in (("pool_tokens", pool_tokens), ("max_model_len", max_model_len)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}: it must be a whole number of at least 1.")
        self.pool_tokens = pool_tokens
        self.max_model_len = max_model_len
        self.num_slabs = pool_tokens // max_model_len
        self._free = list(range(self.num_slabs))  # in order: the lowest slab is given first
        self._slab_of: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        """Slabs that nobody holds."""
        return len(self._free)

    @property
    def slabs(self) -> dict[str, int]:
        """First slot of each live request's slab."""
        return {request: slab * self.max_model_len for request, slab in self._slab_of.items()}

    def reserve(self, request_id: str) -> int | None:
        """The first slot of a slab that is now this request's; None when no slab is free.

        Any free slab will do. A request that gets None holds nothing, and may ask again later.
        ValueError: it holds a slab already.

        >>> slabs = SlabAllocator(pool_tokens=64, max_model_len=32)  # slabs begin at 0 and at 32
        >>> [slabs.reserve("A"), slabs.reserve("B"), slabs.reserve("C")]
        [0, 32, None]
        """
        if request_id in self._slab_of:
            raise ValueError(
                f"Request {request_id!r} already holds a slab: release it before it reserves again."
            )
        if not self._free:
            return None
        slab = self._free.pop(0)
        self._slab_of[request_id] = slab
        return slab * self.max_model_len

    def release(self, request_id: str) -> None:
        """Give the request's slab back, for anybody to have.

        ValueError, and nothing has changed: the request holds no slab.
        """
        self.first_slot(request_id)
        insort(self._free, self._slab_of.pop(request_id))

    def first_slot(self, request_id: str) -> int:
        """Where the slab of a live request begins."""
        if request_id not in self._slab_of:
            raise ValueError(
                f"Request {request_id!r} holds no slab: it never reserved one, or has already "
                "released it."
            )
        return self._slab_of[request_id] * self.max_model_len
