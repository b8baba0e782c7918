"""The trace tables of the course, from the raw traces, to 0.1 point; and from the shipped mixes."""

import csv
import io

import pytest
from raw_traces import FILES, raw_trace

from course.memory.emptiness import emptiness
from course.memory.prefix_hits import hit_curve
from course.workload.arrivals import arrival_stats
from course.workload.lengths import mix
from course.workload.requests import make_requests

pytestmark = pytest.mark.traces

# kept, dropped %, mean total, empty % at finish / per request / per step, exact %, pow2 %,
# block 16: paged % at finish over the pool / per request / per step, empty slots at the end, gain
WASTE = """\
azure_code_2023,2048,5452,38.18,857.4,58.14,58.75,58.5,7.15,11.64,0.87,2.39,0.88,7.55,2.39
azure_code_2023,4096,7562,14.25,1400.4,65.81,66.13,64.62,5.08,8.46,0.54,1.8,0.52,7.57,2.81
azure_code_2023,8192,8819,0.0,2075.7,74.66,74.83,73.98,3.52,5.97,0.37,1.57,0.35,7.64,3.83
azure_conv_2023,2048,16528,14.65,986.2,51.84,57.5,46.6,13.66,20.45,0.75,1.15,0.68,7.45,1.86
azure_conv_2023,4096,17754,8.32,1102.2,73.09,75.81,72.13,13.03,19.84,0.67,1.09,0.65,7.46,3.56
azure_conv_2023,8192,19365,0.01,1365.2,83.34,84.62,85.02,12.03,18.45,0.54,1.02,0.61,7.47,6.63
azure_conv_2023,16384,19366,0.0,1365.8,91.66,92.3,92.51,12.03,18.45,0.54,1.02,0.61,7.47,13.27
azure_conv_2023,32768,19366,0.0,1365.8,95.83,96.15,96.25,12.03,18.45,0.54,1.02,0.61,7.47,26.53
azure_conv_2023,131072,19366,0.0,1365.8,98.96,99.04,99.06,12.03,18.45,0.54,1.02,0.61,7.47,106.13
mooncake_conversation,2048,2424,79.85,1379.5,32.64,39.21,36.97,14.07,22.4,0.55,0.57,0.58,7.57,1.58
mooncake_conversation,4096,3873,67.81,1969.1,51.93,55.76,52.93,11.13,18.9,0.38,0.45,0.39,7.47,2.12
mooncake_conversation,8192,6461,46.3,3558.0,56.57,58.54,57.14,6.47,11.37,0.21,0.33,0.21,7.5,2.33
mooncake_conversation,16384,9206,23.48,6030.5,63.19,64.21,62.94,3.89,6.96,0.12,0.25,0.12,7.49,2.7
mooncake_conversation,32768,11185,7.03,8965.8,72.64,73.15,72.07,2.67,4.78,0.08,0.21,0.08,7.48,3.58
mooncake_conversation,131072,12031,0.0,12377.7,90.56,90.69,89.99,1.96,3.45,0.06,0.2,0.06,7.46,9.98
mooncake_synthetic,2048,1288,67.74,488.7,76.14,82.89,78.46,32.56,47.46,1.54,3.4,1.67,7.63,4.56
mooncake_synthetic,4096,1587,60.26,981.3,76.04,78.93,86.23,27.15,41.14,0.78,2.81,1.31,7.73,7.17
mooncake_synthetic,8192,1872,53.12,1723.1,78.97,80.28,88.89,18.36,29.68,0.45,2.4,0.82,7.72,8.93
mooncake_synthetic,16384,2385,40.27,4286.5,73.84,74.44,83.44,6.73,11.91,0.18,1.9,0.28,7.75,6.02
mooncake_synthetic,32768,3347,16.18,9427.7,71.23,71.49,81.44,2.92,5.37,0.08,1.36,0.12,7.69,5.38
mooncake_synthetic,131072,3983,0.25,15047.1,88.52,88.58,94.52,2.45,4.53,0.05,1.15,0.1,7.58,18.22
arxiv_summarization,2048,5145,81.79,1537.0,24.95,29.9,34.63,14.99,21.54,0.48,0.54,0.56,7.46,1.52
arxiv_summarization,4096,28257,0.0,2879.5,29.7,33.24,40.9,20.6,27.99,0.26,0.3,0.31,7.52,1.69
arxiv_summarization,8192,28257,0.0,2879.5,64.85,66.62,70.45,20.6,30.47,0.26,0.3,0.31,7.52,3.37
sharegpt_8k_filtered,2048,14568,52.6,1002.1,51.07,60.7,59.15,25.25,36.26,0.75,1.33,0.89,7.54,2.43
sharegpt_8k_filtered,4096,22776,25.89,1713.6,58.16,63.33,61.55,15.71,23.93,0.44,0.95,0.47,7.52,2.59
sharegpt_8k_filtered,8192,30731,0.0,2778.7,66.08,68.75,67.14,10.01,15.77,0.27,0.74,0.28,7.52,3.03
"""

# at a limit of 8,192, per block size: paged % at finish over the pool / per request / per step
BLOCKS = {
    "azure_code_2023": "8:0.17/0.79/0.16 16:0.37/1.57/0.35 32:0.73/2.91/0.72 64:1.51/5.35/1.47 "
    "128:3.04/9.02/2.93 256:6.09/15.01/5.87 512:11.53/23.24/11.08",
    "azure_conv_2023": "8:0.26/0.49/0.28 16:0.54/1.02/0.61 32:1.12/2.09/1.25 64:2.21/3.86/2.5 "
    "128:4.38/7.03/4.94 256:8.02/11.74/9.22 512:13.44/16.59/16.37",
    "mooncake_conversation": "8:0.1/0.15/0.1 16:0.21/0.33/0.21 32:0.43/0.67/0.44 "
    "64:0.88/1.35/0.89 128:1.77/2.7/1.79 256:3.42/4.93/3.47 512:6.57/8.94/6.79",
    "mooncake_synthetic": "8:0.21/1.12/0.38 16:0.45/2.4/0.82 32:0.89/4.19/1.67 "
    "64:1.85/7.71/3.33 128:3.66/13.02/6.52 256:7.02/20.89/12.54 512:13.39/30.57/23.8",
    "arxiv_summarization": "8:0.12/0.14/0.14 16:0.26/0.3/0.31 32:0.54/0.62/0.64 "
    "64:1.08/1.23/1.28 128:2.12/2.41/2.56 256:4.12/4.62/5.0 512:7.79/8.51/9.53",
    "sharegpt_8k_filtered": "8:0.13/0.35/0.13 16:0.27/0.74/0.28 32:0.56/1.45/0.57 "
    "64:1.13/2.79/1.16 128:2.24/5.02/2.3 256:4.43/8.91/4.53 512:8.54/14.96/8.76",
}

PREFIX = {
    "mooncake_conversation": (288_500, 182_790, [4.45, 6.53, 21.16, 32.57, 36.37, 36.64]),
    "mooncake_synthetic": (121_877, 43_924, [8.41, 19.06, 42.39, 62.42, 63.96, 63.96]),
}

# requests, span in s, requests per s: mean, busiest and quietest minute; cv of gaps; moments
ARRIVALS = {
    "azure_code_2023": (8819, 3435.9, 2.566, 10.533, 0.0, 13.15, 8819),
    "azure_conv_2023": (19366, 3501.7, 5.53, 8.45, 3.183, 1.09, 19366),
    "mooncake_conversation": (12031, 3537.0, 3.401, 4.117, 2.4, 3.03, 1180),
    "mooncake_synthetic": (3993, 1022.0, 3.906, 4.55, 3.467, 1.01, 3982),
}


def waste_rows():
    return list(csv.reader(io.StringIO(WASTE)))


def shares(e):
    """The eight shares of a row, in percent, in the order of the table."""
    return [
        100 * share
        for share in (
            e.at_finish,
            e.lifetime_per_request,
            e.lifetime_per_step,
            e.exact,
            e.pow2,
            e.paged_at_finish,
            e.paged_at_finish_per_request,
            e.paged,
        )
    ]


@pytest.mark.parametrize("row", waste_rows(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_waste_table(row):
    name, limit, kept, *numbers = row
    dropped, mean_total, *expected, empty_slots, gain = map(float, numbers)
    e = emptiness(raw_trace(name), int(limit))
    assert e.num_kept == int(kept)
    assert 100 * e.dropped_share == pytest.approx(dropped, abs=0.006)
    assert e.mean_total == pytest.approx(mean_total, abs=0.06)
    assert shares(e) == pytest.approx(expected, abs=0.1)
    assert e.mean_empty_slots_in_last_block == pytest.approx(empty_slots, abs=0.006)
    assert e.gain == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize("name", BLOCKS)
def test_block_sizes(name):
    requests = raw_trace(name)
    e = emptiness(requests, 8192, block_size=1)
    assert (e.paged, e.paged_at_finish, e.paged_at_finish_per_request) == (0, 0, 0)
    for entry in BLOCKS[name].split():
        block, expected = entry.split(":")
        e = emptiness(requests, 8192, int(block))
        got = [e.paged_at_finish, e.paged_at_finish_per_request, e.paged]
        assert [100 * share for share in got] == pytest.approx(
            [float(x) for x in expected.split("/")], abs=0.1
        )


@pytest.mark.parametrize("name", PREFIX)
def test_prefix_hits(name):
    references, unique, expected = PREFIX[name]
    curve = hit_curve(raw_trace(name), [1_000, 3_000, 10_000, 30_000, 100_000, None])
    assert {(h.num_blocks, h.num_unique) for h in curve} == {(references, unique)}
    assert [100 * h.hit_rate for h in curve] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals(name):
    s = arrival_stats(r.arrival_s for r in raw_trace(name))
    count, span, mean, busiest, quietest, cv, moments = ARRIVALS[name]
    assert (s.num_requests, s.distinct_times) == (count, moments)
    assert s.span_s == pytest.approx(span, abs=0.06)
    rates = (s.mean_rate, s.busiest_minute_rate, s.quietest_minute_rate)
    assert rates == pytest.approx((mean, busiest, quietest), abs=0.001)
    assert s.cv == pytest.approx(cv, abs=0.006)


@pytest.mark.parametrize("name", FILES)
def test_shipped_mixes_say_what_the_traces_say(name):
    raw = raw_trace(name)
    shipped = mix(name)
    lengths = [(r.prompt_tokens, r.output_tokens) for r in raw]
    for which, values in {
        "prompt": [p for p, _ in lengths],
        "output": [o for _, o in lengths],
        "total": [p + o for p, o in lengths],
    }.items():
        assert shipped.bounds[which] == [min(values), max(values)]
    # every request lies in a cell, and every cell holds as many as it says
    counts = {}
    for prompt, output in lengths:
        i = int((shipped.prompt_edges <= prompt).sum()) - 1
        j = int((shipped.output_edges <= output).sum()) - 1
        counts[i, j] = counts.get((i, j), 0) + 1
    assert counts == {(i, j): count for i, j, count in shipped.cells.tolist()}


@pytest.mark.parametrize("row", waste_rows(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_shipped_mixes_waste_as_the_traces_do(row):
    name, limit = row[0], int(row[1])
    sample = make_requests(mix(name).sample(40_000, seed=0))
    ours = emptiness(sample, limit)
    raw = emptiness(raw_trace(name), limit)
    difference = [a - b for a, b in zip(shares(ours), shares(raw), strict=True)]
    # The one exception: at 4,096 these lengths pile up just under the limit, inside a bin that
    # reaches past it.
    tolerance = 4 if (name, limit) == ("azure_conv_2023", 4096) else 1.5
    assert max(map(abs, difference)) < tolerance, difference
