"""The block pool: owners, all-or-nothing, speed (engine cases B, faults 21, 22)."""

from collections import Counter
from time import perf_counter

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from course.engine.block_pool import BlockPool, DoubleFree, OutOfBlocks
from course.engine.invariants import InvariantError


def test_B1_all_blocks_out_and_back():
    pool = BlockPool(4)
    taken = []
    for left in (3, 2, 1, 0):
        taken += pool.allocate()
        assert pool.num_free == left
    assert sorted(taken) == [0, 1, 2, 3]
    with pytest.raises(OutOfBlocks, match=r"1 blocks wanted, 0 of 4 free"):
        pool.allocate()
    for left, block_id in enumerate(taken, start=1):
        pool.free([block_id])
        assert pool.num_free == left
    for block_id in taken:
        with pytest.raises(DoubleFree, match=f"block {block_id} "):
            pool.free([block_id])
    assert pool.num_free == 4
    pool.check_invariants()


@pytest.mark.parametrize("listed", [2, 3], ids=["B2-F22-twice", "B2-three times"])
def test_B2_a_block_listed_more_often_than_it_has_owners(listed):
    pool = BlockPool(4)
    block_id, other = pool.allocate(2)
    with pytest.raises(DoubleFree, match=rf"freed {listed} time"):
        pool.free([other] + [block_id] * listed)
    assert pool.num_free == 2
    assert pool.ref_count(block_id) == pool.ref_count(other) == 1
    pool.check_invariants()


def test_B3_a_block_listed_as_often_as_it_has_owners():
    pool = BlockPool(4)
    (block_id,) = pool.allocate()
    pool.share([block_id])
    pool.free([block_id, block_id])
    assert pool.num_free == 4
    assert pool.free_blocks.count(block_id) == 1
    pool.check_invariants()


def test_B4_free_takes_any_iterable_and_each_block_lands_once():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.share([first])
    pool.free(block_id for block_id in (first, second, first))
    assert pool.num_free == 4
    assert Counter(pool.free_blocks) == Counter(range(4))
    pool.check_invariants()


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_F22_ids_that_are_not_plain_numbers(make):
    """Two elements of a tensor are two objects that hash apart, though their number is the same."""
    pool = BlockPool(4, order=make([2, 0, 1, 3]))
    taken = pool.allocate(2)
    with pytest.raises(DoubleFree, match="freed 2 time"):
        pool.free(make([taken[0], taken[0]]))
    pool.check_invariants()
    pool.free(make(taken))
    pool.check_invariants()
    assert {type(block_id) for block_id in pool.free_blocks} == {int}


def test_B5_no_block_is_set_aside():
    # Engines with a null block keep one back; here the whole pool can be used.
    assert sorted(BlockPool(3).allocate(3)) == [0, 1, 2]


def test_B7_usage():
    pool = BlockPool(10)
    assert pool.usage == 0.0
    blocks = pool.allocate(4)
    assert pool.usage == 0.4
    assert pool.num_used == 4
    pool.share(blocks)  # a shared block is used once
    assert pool.usage == 0.4


@pytest.mark.parametrize("count", [5, 6, 10**9])
def test_B8_too_many_takes_nothing(count):
    pool = BlockPool(6)
    pool.allocate(2)
    before = pool.free_blocks
    with pytest.raises(OutOfBlocks, match=f"{count} blocks wanted, 4 of 6"):
        pool.allocate(count)
    assert pool.free_blocks == before
    pool.check_invariants()


@pytest.mark.parametrize("block_id", [-1, 4, 10**9])
@pytest.mark.parametrize("operation", ["free", "share", "claim"])
def test_ids_outside_the_pool(operation, block_id):
    pool = BlockPool(4)
    (good,) = pool.allocate()
    with pytest.raises(ValueError, match=f"block {block_id} is outside the pool"):
        getattr(pool, operation)([good, block_id])
    with pytest.raises(ValueError, match="outside the pool"):
        pool.ref_count(block_id)
    assert pool.ref_count(good) == 1
    assert pool.num_free == 3
    pool.check_invariants()


def test_share_of_a_free_block_changes_nothing():
    pool = BlockPool(4)
    (good,) = pool.allocate()
    free_one = pool.free_blocks[0]
    with pytest.raises(ValueError, match=f"block {free_one} is free"):
        pool.share([good, free_one])
    assert pool.ref_count(good) == 1


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_needs_blocks(size):
    with pytest.raises(ValueError, match=f"num_blocks is {size}"):
        BlockPool(size)
    with pytest.raises(ValueError, match="cannot allocate -1"):
        BlockPool(2).allocate(-1)
    assert BlockPool(2).allocate(0) == []


def test_order_of_fresh_blocks():
    pool = BlockPool(4, order=[2, 0, 3, 1])
    assert pool.allocate(3) == [2, 0, 3]
    for order in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4]):
        with pytest.raises(ValueError, match=r"order|twice|outside"):
            BlockPool(4, order=order)


def test_split_policy_reuses_kept_blocks_last_and_oldest_first():
    pool = BlockPool(6)
    a, b, c, d, e, f = pool.allocate(6)
    pool.free([b, a], keep={a, b})
    pool.free([d, c], keep=())
    pool.free([f, e], keep={e})
    assert pool.free_blocks == [f, d, c, b, a, e]


def test_the_checker_sees_damage():
    pool = BlockPool(3)
    pool.allocate(1)
    pool._ref_counts[2] = 1
    with pytest.raises(InvariantError, match=r"block 2 has 1 owner\(s\) and is in the free list"):
        pool.check_invariants()
    pool = BlockPool(3)
    pool._free._count = 4
    with pytest.raises(InvariantError, match="has 3 blocks and counts 4"):
        pool.check_invariants()
    pool = BlockPool(3)
    pool._free.remove(1)
    with pytest.raises(InvariantError, match=r"block 1 has 0 owner\(s\) and is not in"):
        pool.check_invariants()
    pool = BlockPool(3)
    pool._free._prev[2] = 0
    with pytest.raises(InvariantError, match="differently forwards and backwards"):
        pool.check_invariants()


class AgainstCounts(RuleBasedStateMachine):
    """The pool against a plain dict of owners."""

    SIZE = 7
    ids = st.lists(st.integers(-1, SIZE), max_size=5)

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(self.SIZE)
        self.owners = Counter()

    def _valid(self, block_ids):
        return all(0 <= block_id < self.SIZE for block_id in block_ids)

    @rule(count=st.integers(0, 4))
    def allocate(self, count):
        num_free = self.SIZE - len(+self.owners)
        if count > num_free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        block_ids = self.pool.allocate(count)
        assert len(set(block_ids)) == count
        assert not any(self.owners[block_id] for block_id in block_ids)
        self.owners.update(block_ids)

    @rule(block_ids=ids)
    def share(self, block_ids):
        if self._valid(block_ids) and all(self.owners[block_id] for block_id in block_ids):
            self.pool.share(block_ids)
            self.owners.update(block_ids)
        else:
            with pytest.raises(ValueError, match="block"):
                self.pool.share(block_ids)

    @rule(block_ids=ids)
    def claim(self, block_ids):
        if self._valid(block_ids):
            self.pool.claim(block_ids)
            self.owners.update(block_ids)
        else:
            with pytest.raises(ValueError, match="block"):
                self.pool.claim(block_ids)

    @rule(block_ids=ids, keep=st.sets(st.integers(0, SIZE - 1)))
    def free(self, block_ids, keep):
        if self._valid(block_ids) and not Counter(block_ids) - self.owners:
            self.pool.free(block_ids, keep)
            self.owners.subtract(block_ids)
        else:
            with pytest.raises(ValueError, match="block"):  # DoubleFree is one
                self.pool.free(block_ids, keep)

    @rule(data=st.data())
    def free_what_is_owned(self, data):
        owned = sorted(self.owners.elements())
        if owned:
            block_ids = data.draw(st.lists(st.sampled_from(owned), unique=True))
            self.pool.free(block_ids)
            self.owners.subtract(block_ids)

    @invariant()
    def counts_agree(self):
        self.pool.check_invariants()
        for block_id in range(self.SIZE):
            assert self.pool.ref_count(block_id) == self.owners[block_id]
        assert self.pool.num_free + self.pool.num_used == self.SIZE


TestAgainstCounts = AgainstCounts.TestCase
TestAgainstCounts.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def _microseconds_per_operation(size: int) -> float:
    pool = BlockPool(size)
    held = pool.allocate(size // 2)
    best = float("inf")
    for _ in range(5):
        started = perf_counter()
        for block_id in held[1000:1500]:
            pool.free([block_id])
            pool.claim([block_id])  # out of the middle or the front
            pool.share([block_id])
            pool.free([block_id])
        pool.free(pool.allocate(500))
        best = min(best, (perf_counter() - started) / 2500)
    return best * 1e6


def test_operations_do_not_slow_down_with_the_size_of_the_pool():
    started = perf_counter()
    BlockPool(1_000_000)
    assert perf_counter() - started < 2.0
    small, large = _microseconds_per_operation(2_000), _microseconds_per_operation(1_000_000)
    # Loose, for a busy machine: a walk over a million blocks would be 500 times slower.
    assert large < 20 * small + 20, f"{small:.1f} us at 2,000 blocks, {large:.1f} at 1,000,000"
