"""Four ways of batching: nothing is lost, nobody is early, and the known cases come out."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.memory.batching import BATCHING, TWELVE, BatchRun, Job, StepCost, run_batching

JOBS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 300)), min_size=1, max_size=9
).map(lambda rows: [Job(f"r{i}", *row) for i, row in enumerate(rows)])


def check(run: BatchRun, jobs, max_batch, token_budget):
    prompts, decodes = Counter(), Counter()
    clock = 0.0
    for tick in run.ticks:
        assert tick.start >= clock - 1e-9
        assert tick.duration > 0
        clock = tick.start + tick.duration
        assert 1 <= len(tick.rows) <= max_batch
        assert len({row.request for row in tick.rows}) == len(tick.rows)
        for row in tick.rows:
            if row.kind == "prefill":
                prompts[row.request] += row.tokens
            elif row.kind == "decode":
                assert row.tokens == 1
                decodes[row.request] += 1
            else:
                assert (row.kind, row.tokens) == ("idle", 0)
        if run.policy == "chunked":
            assert sum(row.tokens for row in tick.rows) <= token_budget
        if run.policy in ("continuous", "chunked"):
            assert all(row.kind != "idle" for row in tick.rows)
    for job in jobs:
        assert prompts[job.name] == job.prompt
        assert decodes[job.name] == job.output - 1  # the first token comes with the prompt
        ticks = [t for t in run.ticks if any(r.request == job.name for r in t.rows)]
        assert ticks[0].start >= job.arrival
        assert run.finish[job.name] == pytest.approx(ticks[-1].start + ticks[-1].duration)
        assert run.first_token[job.name] <= run.finish[job.name]
    assert 0 <= run.seats_idle < 1
    assert 0 <= run.gpu_idle < 1
    assert run.throughput * run.makespan / 1000 == pytest.approx(sum(j.output for j in jobs))


@settings(max_examples=60, deadline=None)
@given(JOBS, st.integers(1, 5), st.integers(0, 20))
def test_every_token_is_computed_once_and_nobody_is_early(jobs, max_batch, slack):
    for policy in BATCHING:
        run = run_batching(policy, jobs, max_batch, token_budget=max_batch + slack)
        check(run, jobs, max_batch, max_batch + slack)


def test_the_twelve_requests_tell_the_story():
    runs = {policy: run_batching(policy) for policy in BATCHING}
    latency = [runs[p].mean_latency for p in BATCHING]
    assert latency == sorted(latency, reverse=True)
    assert runs["continuous"].makespan < 0.5 * runs["static"].makespan
    assert runs["continuous"].throughput > 2 * runs["static"].throughput
    assert runs["chunked"].longest_gap < 0.5 * runs["continuous"].longest_gap
    assert runs["continuous"].seats_idle < runs["static"].seats_idle
    assert len(TWELVE) == 12
    assert [(j.name, j.prompt, j.output) for j in TWELVE[:3]] == [
        ("A", 7, 21), ("B", 3, 24), ("C", 6, 2),
    ]  # fmt: skip


def test_static_by_hand():
    """Two seats, equal prompts: 1 step of prompts, 3 of decodes; the short one's seat idles for 2
    steps, and both get their answers at the end."""
    run = run_batching("static", [Job("A", 4, 4), Job("B", 4, 2)], 2, cost=StepCost(10, 1))
    assert run.makespan == 40
    assert run.finish == {"A": 40, "B": 40}
    assert run.seats_idle == pytest.approx(2 / 8)
    assert [[row.kind for row in tick.rows] for tick in run.ticks] == [
        ["prefill", "prefill"], ["decode", "decode"], ["decode", "idle"], ["decode", "idle"],
    ]  # fmt: skip


def test_static_waits_for_a_full_batch_and_pads_its_prompts():
    jobs = [Job("A", 2, 1), Job("B", 30, 1, arrival=100)]
    run = run_batching("static", jobs, 2, cost=StepCost(10, 1))
    assert run.ticks[0].start == 100
    assert run.ticks[0].duration == 60  # 2 x 30 tokens, 28 of them padding
    assert run.gpu_idle == pytest.approx(100 / 160)
    dynamic = run_batching("dynamic", jobs, 2, max_wait=20, cost=StepCost(10, 1))
    assert [tick.start for tick in dynamic.ticks] == [20, 120]
    assert dynamic.mean_latency < run.mean_latency


def test_dynamic_starts_when_the_batch_is_full_or_patience_ends():
    full = run_batching("dynamic", [Job("A", 1, 1), Job("B", 1, 1, 5)], 2, max_wait=50)
    assert full.ticks[0].start == 5
    alone = run_batching("dynamic", [Job("A", 1, 1, 7)], 2, max_wait=50)
    assert alone.ticks[0].start == 57  # it cannot know that nobody else will come


def test_continuous_gives_a_seat_to_the_next_at_once():
    jobs = [Job("A", 4, 4), Job("B", 4, 2), Job("C", 4, 2)]
    run = run_batching("continuous", jobs, 2, cost=StepCost(10, 1))
    assert run.finish == {"A": 40, "B": 20, "C": 40}
    assert run.seats_idle == 0


def test_a_long_prompt_stalls_the_others_unless_it_is_chunked():
    jobs = [Job("A", 1, 10), Job("B", 100, 1, arrival=15)]
    whole = run_batching("continuous", jobs, 2, cost=StepCost(10, 1))
    assert whole.longest_gap == 101
    chunked = run_batching("chunked", jobs, 2, token_budget=20, cost=StepCost(10, 1))
    assert chunked.longest_gap == 20
    assert max(sum(r.tokens for r in t.rows) for t in chunked.ticks) == 20


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run_batching("greedy"), "no policy 'greedy'"),
        (lambda: run_batching("static", []), "no jobs"),
        (lambda: run_batching("static", [Job("A", 1, 1)] * 2), "same name"),
        (lambda: run_batching("static", max_batch=0), "max_batch is 0"),
        (lambda: run_batching("static", max_batch=True), "max_batch is True"),
        (lambda: run_batching("chunked", max_batch=8, token_budget=4), "token_budget is 4"),
        (lambda: run_batching("dynamic", max_wait=-1), "max_wait is -1"),
        (lambda: run_batching("dynamic", max_wait=float("nan")), "max_wait is nan"),
        (lambda: Job("A", 0, 1), "prompt is 0"),
        (lambda: Job("A", 1, 1.5), "output is 1.5"),
        (lambda: Job("A", 1, 1, -1), "arrival is -1"),
        (lambda: StepCost(0, 1), "read_ms is 0"),
        (lambda: StepCost(1, float("nan")), "token_ms is nan"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
