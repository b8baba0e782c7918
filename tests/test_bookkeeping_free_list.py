"""The free list: order, links and count under every operation (engine cases A)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from course.engine.free_list import FreeList


def test_A1_one_block_stands_between_the_sentinels():
    free = FreeList(1)
    assert len(free) == 1
    assert list(free) == [0]
    assert free.links(1) == (0, 0)  # the sentinel: last and first block
    assert free.links(0) == (1, 1)


def test_A2_pop_remove_append_and_run_dry():
    free = FreeList(5)
    assert free.popleft() == 0
    assert (len(free), free.links(5)[1]) == (4, 1)
    free.remove(2)
    assert len(free) == 3
    assert free.links(1)[1] == 3
    assert free.links(3)[0] == 1
    free.append(2)
    assert len(free) == 4
    assert free.links(5)[0] == 2
    assert free.links(2)[0] == 4
    assert [free.popleft() for _ in range(4)] == [1, 3, 4, 2]
    assert len(free) == 0
    assert free.links(5) == (5, 5)
    with pytest.raises(IndexError, match="no free blocks"):
        free.popleft()
    assert len(free) == 0
    assert list(free) == []


def test_A3_append_n():
    free = FreeList(6, [])
    for block_ids in ([], [0], [4, 5], [1, 2, 3]):
        free.append_n(block_ids)
    assert list(free) == [0, 4, 5, 1, 2, 3]
    assert len(free) == 6


def test_A4_prepend_n():
    free = FreeList(6, [0])
    free.prepend_n([])
    assert list(free) == [0]
    free.prepend_n([4, 5])
    assert list(free) == [4, 5, 0]
    free.prepend_n([1, 2])
    assert list(free) == [1, 2, 4, 5, 0]
    assert [free.popleft() for _ in range(5)] == [1, 2, 4, 5, 0]


def test_A5_popleft_n_leaves_no_links():
    free = FreeList(6, [1, 3, 5, 4, 0, 2])
    popped, counts = [], []
    for count in range(4):
        popped.append(free.popleft_n(count))
        counts.append(len(free))
    assert popped == [[], [1], [3, 5], [4, 0, 2]]
    assert counts == [6, 5, 3, 0]
    assert all(free.links(block_id) == (None, None) for block_id in range(6))


def test_A6_popleft_n_of_too_many_takes_nothing():
    free = FreeList(3)
    for count in (4, -1):
        with pytest.raises(IndexError):
            free.popleft_n(count)
    assert list(free) == [0, 1, 2]


@pytest.mark.parametrize("block_id", [1, -1, 4, 5, 99], ids=lambda b: f"A7-block{b}")
def test_A7_remove_of_a_block_that_is_not_in_the_list(block_id):
    free = FreeList(4)  # 4 is the sentinel's place, and must not count as a block
    free.remove(1)
    with pytest.raises(ValueError, match="not in the free list"):
        free.remove(block_id)
    assert list(free) == [0, 2, 3]
    assert len(free) == 3


@pytest.mark.parametrize("block_ids", [[2], [1, 1], [1, 3], [1, 4], [-1], [1, -1]])
@pytest.mark.parametrize("end", ["append_n", "prepend_n"])
def test_A7_insertion_is_all_or_nothing(block_ids, end):
    free = FreeList(4)
    free.remove(1)
    with pytest.raises(ValueError, match=r"block|twice"):
        getattr(free, end)(block_ids)
    assert list(free) == [0, 2, 3]
    assert list(reversed(free)) == [3, 2, 0]
    assert len(free) == 3


def test_sizes():
    assert list(FreeList(0)) == []
    with pytest.raises(ValueError, match="num_blocks is -1"):
        FreeList(-1)


class AgainstAList(RuleBasedStateMachine):
    """A8: whatever is done, the list reads like a plain Python list and counts right."""

    SIZE = 9

    def __init__(self):
        super().__init__()
        self.free = FreeList(self.SIZE)
        self.model = list(range(self.SIZE))

    @rule(count=st.integers(0, 4))
    def popleft_n(self, count):
        if count > len(self.model):
            with pytest.raises(IndexError):
                self.free.popleft_n(count)
        else:
            assert self.free.popleft_n(count) == self.model[:count]
            del self.model[:count]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        block_id = data.draw(st.sampled_from(self.model))
        self.free.remove(block_id)
        self.model.remove(block_id)

    @rule(data=st.data(), at_front=st.booleans())
    def insert(self, data, at_front):
        outside = [b for b in range(self.SIZE) if b not in self.model]
        block_ids = data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []
        if at_front:
            self.free.prepend_n(block_ids)
            self.model[:0] = block_ids
        else:
            self.free.append_n(iter(block_ids))
            self.model += block_ids

    @rule(block_ids=st.lists(st.integers(-2, SIZE + 1), max_size=4))
    def insert_anything(self, block_ids):
        fits = set(block_ids) <= set(range(self.SIZE)) - set(self.model)
        if fits and len(set(block_ids)) == len(block_ids):
            self.free.append_n(block_ids)
            self.model += block_ids
        else:
            with pytest.raises(ValueError, match=r"block|twice"):
                self.free.append_n(block_ids)

    @invariant()
    def reads_alike(self):
        assert list(self.free) == self.model
        assert list(reversed(self.free)) == self.model[::-1]
        assert len(self.free) == len(self.model)
        for block_id in range(-1, self.SIZE + 2):
            assert (block_id in self.free) == (block_id in self.model)


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.permutations(range(7)), st.data())
@settings(max_examples=50, deadline=None)
def test_A8_removing_in_any_order(order, data):
    free = FreeList(7, order)
    left = list(order)
    for block_id in data.draw(st.permutations(range(7))):
        free.remove(block_id)
        left.remove(block_id)
        assert list(free) == left
        assert len(free) == len(left)
