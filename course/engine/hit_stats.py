"""How often the prefix cache helps, counted once per request."""

from collections import deque


class HitStats:
    """Tokens looked up in the prefix cache and tokens found there: in all, and lately.

    Only a request's first admission is counted. A preempted request finds its own blocks again when
    it comes back; counting those would make a crowded engine look like one that shares well.

    Invariant: the window holds at most `window` requests, or a single larger observation.
    """

    def __init__(self, window: int = 1000):
        """window: how many of the latest requests `hit_rate` looks at."""
        if window < 1:
            raise ValueError(f"window is {window}; it must be 1 or more requests")
        self.window = window
        self.reset()

    def reset(self) -> None:
        self.num_requests = self.queries = self.hits = 0  # since the last reset; tokens
        self._recent: deque[tuple[int, int, int]] = deque()
        self._sums = [0, 0, 0]  # of _recent

    def observe(self, num_requests: int, queries: int, hits: int) -> None:
        """Add requests that looked up `queries` tokens in all and found `hits` of them."""
        if num_requests == 0:
            return
        self.num_requests += num_requests
        self.queries += queries
        self.hits += hits
        self._add((num_requests, queries, hits), +1)
        self._recent.append((num_requests, queries, hits))
        while len(self._recent) > 1 and self._sums[0] > self.window:
            self._add(self._recent.popleft(), -1)

    def _add(self, observation: tuple[int, int, int], sign: int) -> None:
        self._sums = [old + sign * new for old, new in zip(self._sums, observation, strict=True)]

    @property
    def hit_rate(self) -> float:
        """Share of the tokens looked up lately that were found, 0 to 1; 0 before the first."""
        _, queries, hits = self._sums
        return hits / queries if queries else 0.0

    @property
    def total_hit_rate(self) -> float:
        """The same since the last reset."""
        return self.hits / self.queries if self.queries else 0.0
