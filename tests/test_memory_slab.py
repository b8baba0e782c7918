"""course/memory/slab.py: one slab of max_model_len for each request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.memory.slab import SlabAllocator


def test_reserve_and_release():
    slabs = SlabAllocator(64, 32)
    assert (slabs.num_slabs, slabs.num_free) == (2, 2)
    assert [slabs.reserve("A"), slabs.reserve("B"), slabs.reserve("C")] == [0, 32, None]
    assert slabs.slabs == {"A": 0, "B": 32}
    slabs.release("A")
    assert slabs.reserve("C") == 0
    assert slabs.num_free == 0


def test_the_lowest_free_slab_is_given():
    slabs = SlabAllocator(64, 16)
    for name in "ABCD":
        slabs.reserve(name)
    for name in "CAB":
        slabs.release(name)
    assert [slabs.reserve(name) for name in "EFG"] == [0, 16, 32]
    assert slabs.first_slot("D") == 48


def test_errors_leave_everything_as_it_was():
    slabs = SlabAllocator(64, 32)
    slabs.reserve("A")
    with pytest.raises(ValueError, match="'A' already holds a slab"):
        slabs.reserve("A")
    with pytest.raises(ValueError, match="'B' holds no slab"):
        slabs.release("B")
    assert (slabs.slabs, slabs.num_free) == ({"A": 0}, 1)
    slabs.release("A")
    with pytest.raises(ValueError, match="'A' holds no slab"):
        slabs.release("A")


def test_a_request_that_was_refused_holds_nothing():
    slabs = SlabAllocator(32, 32)
    slabs.reserve("A")
    assert slabs.reserve("B") is None
    with pytest.raises(ValueError, match="'B' holds no slab"):
        slabs.release("B")


def test_a_pool_shorter_than_one_slab_serves_nobody():
    assert SlabAllocator(31, 32).reserve("A") is None


@pytest.mark.parametrize("bad", [0, -3, 1.0, True, None, "8"])
def test_sizes_are_checked(bad):
    with pytest.raises(ValueError, match="pool_tokens"):
        SlabAllocator(bad, 8)
    with pytest.raises(ValueError, match="max_model_len"):
        SlabAllocator(8, bad)


@given(
    st.integers(1, 90),
    st.integers(1, 20),
    st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60),
)
def test_slabs_never_overlap_and_none_is_lost(pool, length, actions):
    slabs = SlabAllocator(pool, length)
    live: dict[str, int] = {}
    for reserve, number in actions:
        name = str(number)
        if reserve and name not in live:
            start = slabs.reserve(name)
            assert (start is None) == (len(live) == pool // length)
            if start is not None:
                assert start % length == 0
                assert 0 <= start <= pool - length
                assert start not in live.values()
                live[name] = start
        elif not reserve and name in live:
            slabs.release(name)
            del live[name]
        assert slabs.slabs == live
        assert slabs.num_free == pool // length - len(live)
