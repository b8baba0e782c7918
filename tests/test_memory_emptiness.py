"""course/memory/emptiness.py and prefix_hits.py, by hand and by brute force, without any trace."""

import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.memory.emptiness import emptiness
from course.memory.prefix_hits import hit_curve, prefix_hits
from course.workload.requests import WorkloadRequest, make_requests


def test_the_three_metrics_differ_by_hand():
    # (1, 1) lives one step at 2 tokens; (1, 7) seven steps at 2 to 8
    e = emptiness(make_requests([(1, 1), (1, 7), (5, 20)]), max_model_len=10, block_size=4)
    assert (e.num_requests, e.num_kept) == (3, 2)
    assert e.dropped_share == pytest.approx(1 / 3)
    assert e.at_finish == pytest.approx(1 - 5 / 10)
    assert e.lifetime_per_request == pytest.approx(1 - (2 + 5) / 2 / 10)
    assert e.lifetime_per_step == pytest.approx(1 - (2 + 35) / 80)
    assert e.paged == pytest.approx(1 - 37 / (4 + 3 * 4 + 4 * 8))
    assert e.exact == pytest.approx(1 - 37 / (2 + 7 * 8))
    assert e.pow2 == pytest.approx(1 - 37 / (2 + 7 * 9))
    assert e.paged_at_finish == pytest.approx(1 - 10 / 12)
    assert e.paged_at_finish_per_request == pytest.approx(0.25)
    assert e.mean_empty_slots_in_last_block == 1
    assert e.gain == pytest.approx(80 / 48)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(2, 40),
    st.integers(1, 9),
)
def test_against_counting_step_by_step(lengths, limit, block):
    e = emptiness(make_requests(lengths), limit, block)
    kept = [(p, o) for p, o in lengths if p + o <= limit]
    assert e.num_kept == len(kept)
    if not kept:
        assert math.isnan(e.at_finish)
        assert math.isnan(e.gain)
        assert e.dropped_share == 1
        return
    live = slab = paged = exact = pow2 = 0
    per_request = []
    for p, o in kept:
        tokens = [p + i for i in range(1, o + 1)]
        power = 1
        while power < o:
            power *= 2
        live += sum(tokens)
        slab += limit * o
        exact += (p + o) * o
        pow2 += min(p + power, limit) * o
        paged += sum(math.ceil(t / block) * block for t in tokens)
        per_request.append(1 - sum(tokens) / o / limit)
    assert e.lifetime_per_step == pytest.approx(1 - live / slab)
    assert e.lifetime_per_request == pytest.approx(sum(per_request) / len(kept))
    assert e.exact == pytest.approx(1 - live / exact)
    assert e.pow2 == pytest.approx(1 - live / pow2)
    assert e.paged == pytest.approx(1 - live / paged)
    assert e.gain == pytest.approx(slab / paged)
    assert e.at_finish == pytest.approx(1 - sum(p + o for p, o in kept) / len(kept) / limit)


def test_one_token_blocks_waste_nothing():
    e = emptiness(make_requests([(3, 4), (1, 9)]), 32, block_size=1)
    assert e.paged == e.paged_at_finish == e.mean_empty_slots_in_last_block == 0


def test_it_knows_its_arguments():
    e = emptiness(make_requests([(3, 4)]), 32, 8)
    assert (asdict(e)["max_model_len"], asdict(e)["block_size"]) == (32, 8)
    with pytest.raises(ValueError, match="no requests"):
        emptiness([], 32)
    for limit, block in ((0, 16), (32, 0)):
        with pytest.raises(ValueError, match="both must be at least 1"):
            emptiness(make_requests([(3, 4)]), limit, block)


def trace(*rows):
    return [WorkloadRequest(0.0, 512 * len(row), 1, row) for row in rows]


def test_hits_are_the_longest_cached_prefix():
    hits = prefix_hits(trace((1, 2, 3), (1, 2, 4), (9, 2, 3), (1, 2, 3)))
    # third row: its first block misses, so 2 and 3 are of no use to it
    assert (hits.num_blocks, hits.num_hits, hits.num_unique) == (12, 2 + 0 + 3, 5)
    assert hits.hit_rate == pytest.approx(5 / 12)


def test_the_least_recently_used_block_goes_and_children_before_parents():
    rows = trace((1, 2, 3), (7,), (1, 2, 3))
    assert prefix_hits(rows, capacity=3).num_hits == 2  # 3 made room for 7
    assert prefix_hits(rows, capacity=4).num_hits == 3
    assert prefix_hits(trace((1,), (2,), (1,), (3,), (1,)), capacity=2).num_hits == 2


def test_a_prompt_longer_than_the_cache_keeps_its_beginning():
    assert prefix_hits(trace((1, 2, 3, 4), (1, 2, 3, 4)), capacity=2).num_hits == 2


def test_prefix_hits_without_hashes_or_room():
    assert prefix_hits([]).hit_rate == 0
    with pytest.raises(ValueError, match="no block hashes"):
        prefix_hits(make_requests([(3, 4)]))
    with pytest.raises(ValueError, match="capacity is 0"):
        prefix_hits([], capacity=0)


prefixes = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@settings(max_examples=60)
@given(st.lists(prefixes, max_size=25))
def test_a_larger_cache_never_hits_less_and_an_endless_one_misses_each_block_once(paths):
    # a block is named by all that leads to it, as in a hash chain
    names: dict[tuple[int, ...], int] = {}
    rows = []
    for path in paths:
        chain = [tuple(path[: i + 1]) for i in range(len(path))]
        rows.append(tuple(names.setdefault(prefix, len(names)) for prefix in chain))
    curve = hit_curve(trace(*rows), [1, 2, 3, 5, 8, 1000, None])
    hits = [point.num_hits for point in curve]
    assert hits == sorted(hits)
    assert hits[-1] == hits[-2] == curve[-1].num_blocks - len(names)
