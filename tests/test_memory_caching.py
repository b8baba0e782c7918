"""The simulated caching allocator follows the rules that it names; the real one is read alike."""

import random
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest

from course.memory import CacheStats, CachingAllocator

MIB = 2**20


def test_sizes_of_segments_follow_the_size_of_the_request():
    cases = [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB),
             (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)]  # fmt: skip
    for asked, reserved in cases:
        cache = CachingAllocator(100 * MIB)
        assert cache.allocate(asked)
        assert cache.stats().reserved == reserved, asked
        assert cache.stats().allocated >= asked


def test_freed_bytes_stay_reserved_and_are_used_again():
    cache = CachingAllocator(100 * MIB)
    cache.free(cache.allocate(40 * MIB))
    assert cache.stats() == CacheStats(0, 40 * MIB, 0, 40 * MIB)
    cache.allocate(30 * MIB)
    assert cache.stats() == CacheStats(30 * MIB, 40 * MIB, 10 * MIB, 10 * MIB)
    cache.empty_cache()  # a tensor lives in the segment: nothing to give back
    assert cache.stats().reserved == 40 * MIB


def test_holes_of_a_segment_merge_and_do_not_reach_into_the_next():
    cache = CachingAllocator(400 * MIB)
    cache.free(cache.allocate(200 * MIB))
    a, b, c, d, e = (cache.allocate(n * MIB) for n in (40, 30, 40, 30, 40))
    cache.free(a)
    cache.free(c)
    assert cache.segments() == [
        [(40 * MIB, False), (30 * MIB, True), (40 * MIB, False), (30 * MIB, True),
         (40 * MIB, True), (20 * MIB, False)]
    ]  # fmt: skip
    cache.allocate(60 * MIB)  # 100 MiB are cached, in pieces of 40
    assert cache.stats().reserved == 260 * MIB
    cache.free(b)
    assert cache.stats().largest_free == 110 * MIB
    assert cache.allocate(110 * MIB)
    assert cache.stats().reserved == 260 * MIB
    assert d != e


def test_a_full_device_gets_free_segments_back_before_it_refuses():
    cache = CachingAllocator(100 * MIB)
    first, second = cache.allocate(50 * MIB), cache.allocate(50 * MIB)
    assert cache.allocate(20 * MIB) is None
    cache.free(first)
    assert cache.allocate(60 * MIB) is None  # 50 were given back, and are too few
    assert cache.stats().reserved == 50 * MIB
    cache.free(second)
    assert cache.allocate(100 * MIB)


def test_small_and_large_requests_do_not_share_segments():
    cache = CachingAllocator(100 * MIB)
    cache.free(cache.allocate(20 * MIB))
    cache.allocate(1000)
    assert len(cache.segments()) == 2


def test_faults_are_refused():
    with pytest.raises(ValueError, match="device_bytes"):
        CachingAllocator(0)
    cache = CachingAllocator(10 * MIB)
    with pytest.raises(ValueError, match="num_bytes"):
        cache.allocate(0)
    handle = cache.allocate(100)
    cache.free(handle)
    for wrong in (handle, 0, 77):
        with pytest.raises(ValueError, match="handle"):
            cache.free(wrong)


def test_books_stay_in_order_under_a_random_stream():
    rng = random.Random(5)
    cache, alive = CachingAllocator(120 * MIB), {}
    refused = 0
    for _ in range(600):
        if alive and rng.random() < 0.5:
            cache.free(alive_handle := rng.choice(list(alive)))
            del alive[alive_handle]
        else:
            size = rng.choice([1, 700, MIB, 3 * MIB, 15 * MIB, 37 * MIB])
            handle = cache.allocate(size)
            refused += handle is None
            if handle is not None:
                alive[handle] = size
        stats = cache.stats()
        pieces = [piece for segment in cache.segments() for piece in segment]
        assert stats.allocated == sum(size for size, busy in pieces if busy) >= sum(alive.values())
        assert sum(busy for _, busy in pieces) == len(alive)
        assert stats.inactive_split <= stats.cached
        assert stats.reserved <= 120 * MIB
        for segment in cache.segments():  # two free neighbours would have merged
            assert all(one[1] or two[1] for one, two in pairwise(segment))
    assert refused


class FakeCuda:
    """The four calls of torch.cuda that are used, over the simulation."""

    OutOfMemoryError = MemoryError

    def __init__(self):
        self.cache = CachingAllocator(100 * MIB)
        self.cache.allocate(30 * MIB)  # somebody else's

    is_available = staticmethod(lambda: True)
    empty_cache = staticmethod(lambda: None)

    def memory_stats(self):
        stats = self.cache.stats()
        names = ("allocated", "reserved", "inactive_split")
        return {f"{name}_bytes.all.current": getattr(stats, name) for name in names}

    def memory_snapshot(self):
        states = {True: "active_allocated", False: "inactive"}
        return [
            {"blocks": [{"size": size, "state": states[busy]} for size, busy in segment]}
            for segment in self.cache.segments()
        ]


class FakeTensor:
    def __init__(self, cache, size):
        self.cache, self.handle = cache, cache.allocate(size)
        if self.handle is None:
            raise MemoryError

    def __del__(self):
        if getattr(self, "handle", None):
            self.cache.free(self.handle)


def test_the_real_allocator_is_read_through_the_same_interface(monkeypatch):
    from course.show import TorchCache

    cuda = FakeCuda()
    make = lambda size, dtype, device: FakeTensor(cuda.cache, size)  # noqa: E731
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, uint8=0, empty=make))
    real = TorchCache()
    assert real.stats()[:3] == (0, 0, 0)
    handle = real.allocate(20 * MIB)
    assert real.stats() == CacheStats(20 * MIB, 20 * MIB, 0, 0)
    assert real.allocate(200 * MIB) is None
    real.free(handle)
    assert real.stats() == CacheStats(0, 20 * MIB, 0, 20 * MIB)
    assert real.segments() == [[(30 * MIB, True)], [(20 * MIB, False)]]
    with pytest.raises(ValueError, match="handle"):
        real.free(handle)


def test_on_a_gpu_the_simulation_and_pytorch_agree():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("not run: there is no CUDA device here")
    from course.show import TorchCache

    seen = []
    for cache in (CachingAllocator(2**30), TorchCache()):
        cache.free(cache.allocate(200 * MIB))
        handles = [cache.allocate(n * MIB) for n in (40, 30, 40, 30, 40)]
        cache.free(handles[0])
        cache.free(handles[2])
        cache.allocate(60 * MIB)
        seen.append(cache.stats()[:3])
    assert seen[0] == seen[1]


def test_without_a_gpu_it_says_so(monkeypatch):
    from course.show import TorchCache

    absent = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", absent)
    with pytest.raises(RuntimeError, match="a simulation"):
        TorchCache()
