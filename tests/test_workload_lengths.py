"""course/workload/lengths.py and requests.py: the shipped mixes and the paper's data sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.workload import load_workload
from course.workload.lengths import (
    PAPER_MIXES,
    GeometricMix,
    HistogramMix,
    mix,
    mix_names,
    trace_mixes,
)
from course.workload.requests import WorkloadRequest, make_requests, with_arrivals

# mean prompt, mean output and number of requests of the traces behind the mixes
TRACES = {
    "azure_code_2023": (2047.8, 27.9, 8_819),
    "azure_conv_2023": (1154.7, 211.1, 19_366),
    "mooncake_conversation": (12035.1, 342.6, 12_031),
    "mooncake_synthetic": (15325.5, 149.1, 3_993),
    "arxiv_summarization": (2588.1, 291.4, 28_257),
    "sharegpt_8k_filtered": (2340.0, 438.7, 30_731),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_sample_has_the_means_of_its_trace(name):
    prompt, output, count = TRACES[name]
    shipped = mix(name)
    assert isinstance(shipped, HistogramMix)
    assert shipped.num_requests == count == shipped.cells[:, 2].sum()
    lengths = np.array(shipped.sample(40_000, seed=1))
    for index, mean in enumerate((prompt, output)):
        error_of_the_mean = lengths[:, index].std() / 200
        within_bins = 0.015 * mean
        assert abs(lengths[:, index].mean() - mean) < 4 * error_of_the_mean + within_bins


@pytest.mark.parametrize("name", TRACES)
def test_every_cell_is_sampled_by_its_count_and_can_be(name):
    shipped = trace_mixes()[name]
    lengths = np.array(shipped.sample(60_000, seed=2))
    i = np.searchsorted(shipped.prompt_edges, lengths[:, 0], side="right") - 1
    j = np.searchsorted(shipped.output_edges, lengths[:, 1], side="right") - 1
    cells = {(a, b): count for a, b, count in shipped.cells.tolist()}
    drawn = set(zip(i.tolist(), j.tolist(), strict=True))
    assert drawn <= set(cells)
    top = max(cells, key=lambda cell: cells[cell])
    share = cells[top] / shipped.num_requests
    got = float(((i == top[0]) & (j == top[1])).mean())
    assert got == pytest.approx(share, abs=4 * (share / 60_000) ** 0.5)
    # a cell without a single allowed pair would make sampling loop for ever
    for a, b in cells:
        low = [max(shipped.prompt_edges[a], shipped.bounds["prompt"][0])]
        low.append(max(shipped.output_edges[b], shipped.bounds["output"][0]))
        high = [min(shipped.prompt_edges[a + 1] - 1, shipped.bounds["prompt"][1])]
        high.append(min(shipped.output_edges[b + 1] - 1, shipped.bounds["output"][1]))
        assert low[0] <= high[0]
        assert low[1] <= high[1]
        assert sum(low) <= shipped.bounds["total"][1]
        assert sum(high) >= shipped.bounds["total"][0]


@pytest.mark.parametrize("name", TRACES)
def test_bounds_hold(name):
    shipped = trace_mixes()[name]
    lengths = np.array(shipped.sample(20_000, seed=3))
    for which, values in (
        ("prompt", lengths[:, 0]),
        ("output", lengths[:, 1]),
        ("total", lengths.sum(axis=1)),
    ):
        low, high = shipped.bounds[which]
        assert low <= values.min()
        assert values.max() <= high


def test_mixes_state_their_source_and_licence():
    for name in mix_names():
        assert mix(name).name == name
        assert mix(name).title
        assert mix(name).source
    for shipped in trace_mixes().values():
        assert "commit" in shipped.source
        assert shipped.licence.split()[0] in ("CC-BY-4.0", "Apache-2.0", "MIT")
        assert shipped.cite


@pytest.mark.parametrize("name", mix_names())
def test_seeds(name):
    a, b, c = (mix(name).sample(200, seed) for seed in (5, 5, 6))
    assert a == b != c
    assert mix(name).sample(0, seed=5) == []
    assert all(type(number) is int for pair in a for number in pair)
    with pytest.raises(ValueError, match="num_requests is -1"):
        mix(name).sample(-1, seed=5)


def test_an_unknown_mix_lists_those_there_are():
    with pytest.raises(ValueError, match=r"no mix 'sharegpt'.*paper_sharegpt"):
        mix("sharegpt")


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("paper_sharegpt", 161.31, 337.99), ("paper_alpaca", 19.31, 58.45)],
)
def test_the_papers_means(name, prompt, output):
    lengths = np.array(PAPER_MIXES[name].sample(400_000, seed=0))
    assert lengths[:, 0].mean() == pytest.approx(prompt, rel=0.01)
    assert lengths[:, 1].mean() == pytest.approx(output, rel=0.01)
    assert lengths.min() == 1
    assert lengths.sum(axis=1).max() <= 2048
    # geometric: the standard deviation is about the mean
    assert lengths[:, 1].std() == pytest.approx(output, rel=0.08)


@settings(max_examples=15, deadline=None)
@given(st.floats(1, 60), st.floats(1, 60), st.integers(0, 10))
def test_means_survive_the_limit(mean_prompt, mean_output, seed):
    chosen = GeometricMix("any", "any", "any", mean_prompt, mean_output, 240)
    lengths = np.array(chosen.sample(40_000, seed))
    assert lengths.sum(axis=1).max() <= 240
    for index, mean in enumerate((mean_prompt, mean_output)):
        assert lengths[:, index].mean() == pytest.approx(mean, abs=5 * mean / 200 + 1e-9)


@pytest.mark.parametrize("means", [(0.5, 10), (10, 0.5), (600, 600)])
def test_means_that_the_limit_does_not_allow(means):
    with pytest.raises(ValueError, match="at most half the limit"):
        GeometricMix("any", "any", "any", *means, 2048).sample(1, 0)


@pytest.mark.parametrize(
    "bad", [(-1.0, 1, 1), (float("nan"), 1, 1), (float("inf"), 1, 1), (0.0, 0, 1), (0.0, 1, 0)]
)
def test_a_request_that_cannot_be(bad):
    with pytest.raises(ValueError, match=r"arrival_s|must be at least 1"):
        WorkloadRequest(*bad)


def test_putting_requests_together():
    requests = make_requests([(7, 21), (3, 24)], [0.5, 1.0])
    assert requests == [WorkloadRequest(0.5, 7, 21), WorkloadRequest(1.0, 3, 24)]
    assert requests[0].total_tokens == 28
    assert make_requests([(7, 21)]) == [WorkloadRequest(0.0, 7, 21)]
    hashed = [WorkloadRequest(9.0, 7, 21, (1, 2))]
    assert with_arrivals(hashed, [4.0]) == [WorkloadRequest(4.0, 7, 21, (1, 2))]
    with pytest.raises(ValueError, match="2 lengths and 1 arrival times"):
        make_requests([(7, 21), (3, 24)], [0.5])
    with pytest.raises(ValueError, match="1 requests and 0 arrival times"):
        with_arrivals(hashed, [])


def test_load_workload_takes_a_mix_or_a_file(tmp_path):
    drawn = load_workload("azure_conv_2023", limit=300, seed=4, rate_per_s=20)
    assert drawn == load_workload("azure_conv_2023", limit=300, seed=4, rate_per_s=20)
    assert drawn != load_workload("azure_conv_2023", limit=300, seed=5, rate_per_s=20)
    assert [(r.prompt_tokens, r.output_tokens) for r in drawn] == mix("azure_conv_2023").sample(
        300, seed=4
    )
    assert drawn[-1].arrival_s == pytest.approx(15, rel=0.3)
    assert len(load_workload("paper_alpaca")) == 1000
    (tmp_path / "lengths.csv").write_text("7,21\n3,24\n")
    assert load_workload(tmp_path / "lengths.csv", limit=1) == [WorkloadRequest(0.0, 7, 21)]
    with pytest.raises(FileNotFoundError, match=r"neither a trace file nor one of the mixes azure"):
        load_workload("sharegpt")
