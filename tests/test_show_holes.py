"""What a monitor shows and what is there; the segments of a caching allocator."""

import pytest

from course.memory import Arena, CachingAllocator
from course.show import memory_bars, segment_figure


def arena(*sizes):
    """Runs and holes in turn, beginning with a run."""
    made = Arena(sum(sizes))
    offsets = [made.allocate(size) for size in sizes]
    for offset in offsets[1::2]:
        made.free(offset)
    return made


def test_equal_monitors_and_unequal_memory():
    shown = memory_bars({"one": arena(10, 6), "two": arena(5, 3, 5, 3)}, ask=4, show=False)
    assert shown.picture.table[1:] == [("one", 6, 1, 6, True), ("two", 6, 2, 3, False)]
    assert "two: 6 free in 2 holes, longest 3, refused" in shown.alt
    assert shown.picture.data.count(">monitor: 10 used<") == 2


def test_segments_to_scale():
    cache = CachingAllocator(100 * 2**20)
    cache.free(cache.allocate(40 * 2**20))
    cache.allocate(30 * 2**20)
    shown = segment_figure(cache.segments(), "Title", show=False)
    assert shown.picture.table[1] == (1, "40 MiB", "30 MiB", "10 MiB", "10 MiB")
    assert 'width="534"' in shown.picture.data  # three quarters of 712
    assert "30 MiB used, 10 MiB cached" in shown.alt


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no arena"):
        memory_bars({}, ask=4)
    with pytest.raises(ValueError, match="no segment"):
        segment_figure([])
