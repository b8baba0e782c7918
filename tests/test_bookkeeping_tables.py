"""Block counts and slots (engine cases C, faults 42, 55, 57)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.engine.block_table import blocks_needed, slot_mapping
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams


def make(name, length):
    return Request(name, range(length), SamplingParams())


def written(kv, request, num_tokens):
    """Pretend that so many tokens are stored now."""
    request.token_ids += range(request.num_tokens, num_tokens)
    request.num_computed_tokens = num_tokens
    kv.publish(request)
    kv.check_invariants()


def test_C1_blocks_for_lengths():
    kv = KVManager(64, 16, prefix_caching=False)
    for number, (length, num_blocks) in enumerate([(1, 1), (16, 1), (129, 9)] * 2):
        before = kv.num_free
        assert blocks_needed(length, 16) == num_blocks
        assert kv.admit(make(f"r{number}", length), length)
        assert before - kv.num_free == num_blocks


@pytest.mark.parametrize("block_size", [1, 8])
@pytest.mark.parametrize("length", [1, 16, 129])
@pytest.mark.parametrize("more", [1, 16, 129])
@pytest.mark.parametrize("at_once", [True, False], ids=["C2-at once", "C4-token by token"])
def test_C2_growth(block_size, length, more, at_once):
    kv = KVManager(300, block_size)
    request = make("r", length)
    assert kv.admit(request, length)
    written(kv, request, length)
    for total in [length + more] if at_once else range(length + 1, length + more + 1):
        assert kv.grow(request, total) == []
        written(kv, request, total)
    assert len(kv.tables["r"]) == -(-(length + more) // block_size)
    assert kv.num_free == 300 - len(kv.tables["r"])


def test_C3_reserved_slots_need_no_further_block():
    kv = KVManager(16, 4)
    request = make("r", 5)
    assert kv.admit(request, 5 + 6)
    free = kv.num_free
    for total in range(6, 12):
        assert kv.grow(request, total) == []
        assert kv.num_free == free


def test_C5_F42_a_block_is_taken_when_the_next_token_needs_a_slot():
    kv = KVManager(16, 4)
    request = make("r", 4)
    assert kv.admit(request, 4)
    written(kv, request, 4)
    # The 5th token was sampled from the 4th. It gets its slot when it is computed, not before.
    free = kv.num_free
    used = []
    for total in (4, 5, 6, 7, 8, 9):
        assert kv.grow(request, total) == []
        used.append(free - kv.num_free)
        written(kv, request, total)
    assert used == [0, 1, 1, 1, 1, 2]


def test_B9_growing_to_less_than_it_has_is_no_growth():
    kv = KVManager(16, 4)
    request = make("r", 12)
    assert kv.admit(request, 12)
    written(kv, request, 12)
    free = kv.num_free
    assert kv.grow(request, 4) == []
    assert kv.num_free == free
    assert len(kv.tables["r"]) == 3


def test_C7_slots_out_of_order():
    assert slot_mapping([7, 1, 3], range(9), 4) == [28, 29, 30, 31, 4, 5, 6, 7, 12]


def test_C7_the_walk_of_the_papers_figure_6():
    # PagedAttention paper (Kwon et al. 2023), Fig. 6: physical blocks 7 and 1, then 3.
    from course.engine.block_pool import BlockPool

    kv = KVManager(9, 4, pool=BlockPool(9, order=[7, 1, 3, 0, 2, 4, 5, 6, 8]))
    request = make("figure 6", 7)
    assert kv.admit(request, 7)
    assert kv.tables["figure 6"] == [7, 1]
    written(kv, request, 7)
    free = kv.num_free
    assert kv.grow(request, 8) == []
    assert kv.num_free == free
    assert slot_mapping(kv.tables["figure 6"], [7], 4) == [7]
    written(kv, request, 8)
    assert kv.grow(request, 9) == []
    assert kv.tables["figure 6"] == [7, 1, 3]
    assert slot_mapping(kv.tables["figure 6"], [8], 4) == [12]


@pytest.mark.parametrize(
    ("table", "positions", "complaint"),
    [
        ([7, 1], [-1], "position -1 is outside"),
        ([7, 1], [0, 8], "position 8 is outside the table: 2 blocks of 4 hold 8 positions"),
        ([], [0], "position 0 is outside"),
        ([-1, 1], [3], "given back"),
    ],
    ids=["negative", "F55-F57-past the table", "no table", "window has passed"],
)
def test_slots_that_do_not_exist(table, positions, complaint):
    with pytest.raises(ValueError, match=complaint):
        slot_mapping(table, positions, 4)


def test_F55_the_last_position_of_a_full_table():
    assert slot_mapping([2, 0], [7], 4) == [3]
    assert slot_mapping([], [], 4) == []


def test_F58_F67_large_ids_do_not_wrap():
    assert slot_mapping([65_536], [1], 16) == [1_048_577]
    assert slot_mapping([2**31], [15], 16) == [2**35 + 15]


def test_bad_sizes():
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"block_size is {size}"):
            blocks_needed(1, size)
        with pytest.raises(ValueError, match=f"block_size is {size}"):
            slot_mapping([0], [0], size)
    with pytest.raises(ValueError, match="num_tokens is -1"):
        blocks_needed(-1, 4)


@given(st.integers(0, 10**12), st.integers(1, 512))
def test_blocks_needed_is_the_least_that_suffices(num_tokens, block_size):
    blocks = blocks_needed(num_tokens, block_size)
    assert blocks * block_size >= num_tokens > (blocks - 1) * block_size


@given(st.permutations(range(12)), st.integers(1, 7))
@settings(max_examples=40)
def test_slots_of_different_positions_differ(order, block_size):
    slots = slot_mapping(order, range(12 * block_size), block_size)
    assert sorted(slots) == list(range(12 * block_size))
    assert [slot // block_size for slot in slots[::block_size]] == order
