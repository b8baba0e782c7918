"""course/memory/ledger.py: five accounts that always sum to the pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.memory.ledger import Holding, Ledger, take_ledger


@st.composite
def holdings(draw):
    final = draw(st.integers(0, 50))
    held = draw(st.integers(0, 60))
    return Holding(draw(st.integers(0, min(final, held))), final, held)


@given(
    st.lists(holdings(), max_size=8),
    st.integers(0, 100),
    st.none() | st.integers(1, 120),
    st.booleans(),
)
def test_it_always_sums_to_the_pool(held, spare, need, fits):
    pool = sum(h.held for h in held) + spare
    ledger = take_ledger(pool, held, need, fits)
    assert ledger.pool == pool
    assert ledger.held == sum(h.held for h in held)
    assert ledger.live == sum(h.written for h in held)
    assert ledger.external + ledger.free == spare
    assert ledger.external == (spare if need is not None and not fits and need <= spare else 0)


@given(st.lists(holdings(), max_size=6))
def test_reserved_and_internal_against_a_slot_by_slot_count(held):
    reserved = internal = 0
    for h in held:
        for slot in range(h.held):
            if slot >= h.final:
                internal += 1
            elif slot >= h.written:
                reserved += 1
    ledger = take_ledger(400, held)
    assert (ledger.reserved, ledger.internal) == (reserved, internal)


def test_a_full_pool_is_full_and_not_fragmented():
    ledger = take_ledger(64, [Holding(10, 30, 60)], next_need=5, next_fits=False)
    assert (ledger.external, ledger.free) == (0, 4)
    ledger = take_ledger(64, [Holding(10, 30, 60)], next_need=4, next_fits=False)
    assert (ledger.external, ledger.free) == (4, 0)


def test_more_than_the_pool_is_refused():
    with pytest.raises(ValueError, match="hold 70 slots of a pool of 64"):
        take_ledger(64, [Holding(1, 2, 35), Holding(1, 2, 35)])


@pytest.mark.parametrize("bad", [(-1, 3, 3), (4, 3, 9), (4, 9, 3)])
def test_a_holding_that_cannot_be_is_refused(bad):
    with pytest.raises(ValueError, match="tokens written"):
        Holding(*bad)


@pytest.mark.parametrize("bad", [(-1, 0, 0, 0, 1), (0, 0, 0, float("nan"), 0)])
def test_no_account_is_negative_or_unknown(bad):
    with pytest.raises(ValueError, match="0 or more"):
        Ledger(*bad)


def test_shares_and_units():
    ledger = Ledger(8, 24, 16, 8, 8)
    assert ledger.shares() == {
        "live": 0.125,
        "reserved": 0.375,
        "internal": 0.25,
        "external": 0.125,
        "free": 0.125,
    }
    assert ledger.wasted == 48
    assert ledger.scaled(1024) == Ledger(8192, 24576, 16384, 8192, 8192)
    assert set(Ledger(0, 0, 0, 0, 0).shares().values()) == {0.0}
    for factor in (0, -1, float("inf")):
        with pytest.raises(ValueError, match="factor"):
            ledger.scaled(factor)
