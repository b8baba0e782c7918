"""Sampling: the distributions that are promised, the ties, the seeds, the broken logits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.engine import sampler
from course.engine.sampler import BadLogits, make_generator, sample
from course.engine.sampling_params import SamplingParams

GREEDY = SamplingParams()
INF = float("inf")


def draws(row, params, count, seed=1):
    """`count` tokens of one row, drawn as one batch from one generator."""
    generator = make_generator(seed)
    logits = torch.tensor(row, dtype=torch.float32).expand(count, -1)
    return sample(logits, [params] * count, [generator] * count)


def allowed(row, temperature, top_k, top_p):
    """The probabilities that the definitions give, by enumeration in plain Python."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    weights = {i: math.exp((row[i] - max(row)) / temperature) for i in order}
    if top_k:
        weights = {i: weights[i] for i in order[:top_k]}
    total = sum(weights.values())
    kept, mass = {}, 0.0
    for i, weight in weights.items():
        kept[i] = weight
        mass += weight / total
        if mass >= top_p:
            break
    return {i: weight / sum(kept.values()) for i, weight in kept.items()}


ROW = [0.3, 2.0, -1.0, 1.1, 0.9, 2.0, -0.4, 0.0, 1.4, -3.0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("top_k", [0, 1, 2, 4, 10, 50])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.55, 0.05])
def test_frequencies_match_the_enumerated_probabilities(temperature, top_k, top_p):
    count = 4000
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    expected = allowed(ROW, temperature, top_k, top_p)
    tokens = draws(ROW, params, count)
    assert set(tokens) <= set(expected)
    chi_square = sum(
        (tokens.count(i) - count * p) ** 2 / (count * p) for i, p in expected.items() if p > 1e-3
    )
    # Mean and variance of chi-square with k degrees of freedom are k and 2 k; 5 sigma.
    freedom = len(expected) - 1
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom) + 1e-9


def test_the_chi_square_can_fail():
    """The same measure refuses a sampler that ignores its temperature."""
    count = 4000
    expected = allowed(ROW, 1.0, 0, 1.0)
    tokens = draws(ROW, SamplingParams(temperature=1.3), count)
    off = sum((tokens.count(i) - count * p) ** 2 / (count * p) for i, p in expected.items())
    assert off > 9 + 5 * math.sqrt(18)


@settings(deadline=None)
@given(
    row=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0]), min_size=2, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-6, 0.1, 0.35, 0.8, 0.99, 1.0]),
)
def test_ties_keep_the_lowest_ids(row, top_k, top_p):
    """Rows of few distinct values: a fine sweep of u finds the enumerated shares, ties included."""
    count = 2000
    params = SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p)
    u = (torch.arange(count, dtype=torch.float64)[:, None] + 0.5) / count
    scaled = (torch.tensor(row) - max(row)).expand(count, -1)
    found = sampler._draw_likely(scaled, [params] * count, u).tolist()

    def agrees(p):
        expected = allowed(row, 1.0, top_k, p)
        return set(found) <= set(expected) and all(
            abs(found.count(i) - count * share) <= 2 for i, share in expected.items()
        )

    # A sum that meets top_p exactly may round to either side.
    assert agrees(top_p) or agrees(top_p * (1 - 1e-6)) or agrees(top_p * (1 + 1e-6))


def test_ties_by_hand():
    flat = [0.0] * 6
    assert set(draws(flat, SamplingParams(temperature=1.0, top_k=2), 200)) == {0, 1}
    assert set(draws(flat, SamplingParams(temperature=1.0, top_p=0.4), 200)) == {0, 1, 2}
    assert sample(torch.tensor([[1.0, 3.0, 3.0, 3.0]]), [GREEDY], [None]) == [1]
    later = torch.zeros(1, 49152)
    later[0, [40000, 300, 7000]] = 5.0
    assert sample(later, [GREEDY], [None]) == [300]


def test_many_equals_keep_their_order():
    """Enough of them that an unstable sort would shuffle them."""
    u = (torch.arange(600, dtype=torch.float64)[:, None] + 0.5) / 600
    scaled = -(torch.arange(2000) % 2).float().expand(600, -1)
    params = [SamplingParams(temperature=1.0, top_k=300)] * 600
    found = sampler._draw_likely(scaled, params, u).tolist()
    assert found == [2 * (i // 2) for i in range(600)]  # of 1,000 equal even ids the first 300


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_no_weightless_token(u):
    weights = torch.tensor([[0.0, 0.0, 3.0, 0.0, 1.7, 0.0]])
    place = sampler.inverse_transform(weights, torch.tensor([[u]], dtype=torch.float64))
    assert place.item() == (2 if u == 0 else 4)


@pytest.mark.parametrize("first_look", [1, 3, 256])
def test_a_short_first_look_changes_nothing(monkeypatch, first_look):
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(temperature=1.0, top_p=0.999),
        SamplingParams(temperature=3.0, top_p=0.5),
        SamplingParams(temperature=1.0, top_k=700, top_p=0.9),
        SamplingParams(temperature=0.1, top_p=0.3),
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=9.0, top_k=4999),
    ]

    def run():
        return sample(logits, params, [make_generator(i) for i in range(6)])

    wide = run()
    monkeypatch.setattr(sampler, "_FIRST_LOOK", first_look)
    assert run() == wide


# Seeds and company


def test_a_seed_gives_the_same_tokens_in_any_company():
    vocab, steps = 3000, 5
    logits = torch.randn(steps, 8, vocab, generator=torch.Generator().manual_seed(3)) * 3
    params = [
        SamplingParams(temperature=0.7, seed=11),
        GREEDY,
        SamplingParams(temperature=1.5, top_k=40, seed=12),
        SamplingParams(temperature=1.0, top_p=0.9, seed=13),
        SamplingParams(temperature=0.2, top_k=900, top_p=0.99, seed=14),
        GREEDY,
        SamplingParams(temperature=30.0, top_p=0.97, seed=15),
        SamplingParams(temperature=1.0, seed=16),
    ]

    def run(rows):
        """The tokens of `rows`, all steps, when only they are in the batch."""
        generators = {r: make_generator(params[r].seed) for r in rows}
        found = {r: [] for r in rows}
        for step in range(steps):
            batch = sample(
                logits[step, rows], [params[r] for r in rows], [generators[r] for r in rows]
            )
            for r, token in zip(rows, batch, strict=True):
                found[r].append(token)
        return found

    together = run(list(range(8)))
    assert len(set(together[0])) > 1
    for r in range(8):
        assert run([r])[r] == together[r]
    assert run([5, 3, 0])[3] == together[3]
    assert run([7, 6, 5, 4, 3, 2, 1, 0]) == together


def test_seeds_differ_and_no_seed_differs_every_time():
    row = torch.zeros(1, 40000)
    params = [SamplingParams(temperature=1.0)]

    def one(seed):
        return sample(row, params, [make_generator(seed)])[0]

    assert one(5) == one(5)
    assert len({one(seed) for seed in range(20)}) > 15
    assert len({one(None) for _ in range(20)}) > 15


def test_one_draw_a_token_and_none_for_greedy():
    logits = torch.randn(1, 50)
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.5)):
        used, mirror = make_generator(9), make_generator(9)
        sample(logits, [params], [used])
        torch.rand((), dtype=torch.float64, generator=mirror)
        assert torch.equal(used.get_state(), mirror.get_state())
    untouched = make_generator(9)
    sample(logits, [GREEDY], [untouched])
    assert torch.equal(untouched.get_state(), make_generator(9).get_state())


# Extremes


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-30, 1e-6, 1e-3])
def test_tiny_temperatures_are_greedy(temperature):
    row = [1.0, -2e30, 3.0, 2.9, -40.0]
    assert set(draws(row, SamplingParams(temperature=temperature), 50)) == {2}


@pytest.mark.parametrize("temperature", [1e6, 1e38, 1e300])
def test_huge_temperatures_are_uniform(temperature):
    tokens = draws([5.0, -5.0, 0.0, 1.0], SamplingParams(temperature=temperature), 4000)
    assert all(900 < tokens.count(i) < 1100 for i in range(4))


def test_a_forbidden_token_is_never_drawn():
    row = [-INF, 0.0, -INF, 1.0]
    for params in (
        SamplingParams(temperature=1e30),
        SamplingParams(temperature=1e300),
        SamplingParams(temperature=1e30, top_k=3),
        SamplingParams(temperature=1e30, top_p=0.9999),
    ):
        assert set(draws(row, params, 300)) == {1, 3}
    assert draws([-INF, -INF, 7.0, -INF], SamplingParams(temperature=2.0, top_k=2), 9) == [2] * 9
    assert sample(torch.tensor([[-INF, 0.0]]), [GREEDY], [None]) == [1]


def test_logits_far_from_zero():
    for shift in (-1e30, 1e4):
        tokens = draws([shift, shift], SamplingParams(temperature=1.0), 400)
        assert 140 < tokens.count(0) < 260


@pytest.mark.parametrize("bad", [[float("nan"), 1.0], [1.0, INF], [-INF, -INF]])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, top_p=0.9)])
def test_broken_logits_name_their_rows(bad, params):
    logits = torch.tensor([[0.0, 1.0], bad, [1.0, 0.0], bad])
    with pytest.raises(BadLogits, match=r"rows \[1, 3\].*NaN") as caught:
        sample(logits, [params] * 4, [make_generator(0)] * 4)
    assert caught.value.rows == [1, 3]


def test_empty_batch_and_uneven_lists():
    assert sample(torch.zeros(0, 10), [], []) == []
    with pytest.raises(ValueError, match=r"2 rows.*1 params"):
        sample(torch.zeros(2, 10), [GREEDY], [None])


def test_one_token_vocabulary():
    params = SamplingParams(temperature=1.0, top_k=5, top_p=0.5)
    assert sample(torch.zeros(2, 1), [params, GREEDY], [make_generator(0), None]) == [0, 0]
