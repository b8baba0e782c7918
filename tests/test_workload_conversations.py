"""Synthetic conversations: prompts repeat what was said, and the hashes say exactly that."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.memory.prefix_hits import hit_curve, prefix_hits
from course.workload import Conversations, multi_turn


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.integers(0, 10_000), st.integers(0, 200), st.integers(1, 40))
def test_hashes_are_those_of_full_blocks_and_times_are_in_order(count, seed, system, block):
    requests = multi_turn(count, seed, Conversations(system_tokens=system), block)
    assert len(requests) >= count
    times = [r.arrival_s for r in requests]
    assert times == sorted(times)
    for request in requests:
        assert request.prompt_tokens > system
        assert request.prefix_hashes is not None
        assert len(request.prefix_hashes) == request.prompt_tokens // block
        assert len(set(request.prefix_hashes)) == len(request.prefix_hashes)


def test_equal_hashes_mean_equal_beginnings():
    """A hash stands in one place of a prompt, and behind one and the same beginning."""
    before: dict[int, tuple[int, ...]] = {}
    for request in multi_turn(200, seed=1):
        hashes = request.prefix_hashes or ()
        for place, block in enumerate(hashes):
            assert before.setdefault(block, hashes[:place]) == hashes[:place]


def test_a_later_turn_goes_on_from_the_earlier_one():
    one = multi_turn(1, 5, Conversations(mean_turns=50, system_tokens=0))
    assert len(one) > 5
    for earlier, later in pairwise(one):
        assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens
        assert (later.prefix_hashes or ())[: len(earlier.prefix_hashes or ())] == (
            earlier.prefix_hashes
        )


def test_means_are_those_that_were_asked_for():
    shape = Conversations(system_tokens=0, mean_turns=4, mean_message=60, mean_answer=200)
    requests = multi_turn(3000, 0, shape)
    assert len(requests) / 3000 == pytest.approx(4, rel=0.05)
    assert sum(r.output_tokens for r in requests) / len(requests) == pytest.approx(200, rel=0.05)


def test_hits_come_from_turns_and_system_prompts_and_from_nothing_else():
    alone = multi_turn(300, 0, Conversations(mean_turns=1, system_tokens=0))
    assert prefix_hits(alone).num_hits == 0
    system_only = Conversations(mean_turns=1, system_prompts=1, system_tokens=512)
    # 32 blocks are missed by the first and found by the 299 others
    assert prefix_hits(multi_turn(300, 0, system_only)).num_hits == 299 * 32
    assert prefix_hits(multi_turn(300, 0, Conversations(system_tokens=0))).hit_rate > 0.3
    rates = [c.hit_rate for c in hit_curve(multi_turn(300, 0), [64, 512, 4096, None])]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_the_same_seed_gives_the_same_day():
    assert multi_turn(50, 7) == multi_turn(50, 7) != multi_turn(50, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"system_prompts": 0},
        {"system_tokens": -1},
        {"mean_turns": 0.5},
        {"mean_message": 0},
        {"mean_pause_s": 0},
        {"rate_per_s": -1},
        {"mean_answer": float("nan")},
    ],
)
def test_a_shape_out_of_range_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Conversations(**wrong)


def test_counts_out_of_range_are_refused():
    with pytest.raises(ValueError, match="num_conversations"):
        multi_turn(-1, 0)
    with pytest.raises(ValueError, match="block_tokens"):
        multi_turn(1, 0, block_tokens=0)
