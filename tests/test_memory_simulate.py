"""course/memory/policies.py, server.py, simulate.py: against the same server run step by step."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_server import slow_steps

from course.memory import example
from course.memory.arena import Arena
from course.memory.buddy import BuddyArena
from course.memory.ledger import Ledger
from course.memory.policies import POLICY_NAMES, Contiguous, Paged, Slab, make_policy
from course.memory.simulate import simulate, steps
from course.workload.lengths import mix
from course.workload.requests import WorkloadRequest, make_requests

LIMIT = 24


@st.composite
def policy_makers(draw):
    """A function that makes a fresh policy, so that both servers get one."""
    pool = draw(st.integers(LIMIT, 90))
    kind = draw(st.sampled_from(["slab", "paged", "arena", "buddy"]))
    if kind == "slab":
        return lambda: Slab(pool, LIMIT)
    if kind == "paged":
        block_size = draw(st.integers(1, 7))
        return lambda: Paged(pool, LIMIT, block_size)
    rule = draw(st.sampled_from(["max", "pow2", "exact"]))
    if kind == "buddy":
        min_block = draw(st.sampled_from([1, 2, 8]))
        return lambda: Contiguous(rule, BuddyArena(pool, min_block), LIMIT)
    fit, compact = draw(st.sampled_from(["first", "best"])), draw(st.booleans())
    return lambda: Contiguous(rule, Arena(pool, fit), LIMIT, compact)


# times and step lengths are multiples of 1/4, so that both servers add them without rounding
workloads = st.lists(
    st.builds(
        WorkloadRequest,
        st.integers(0, 60).map(lambda quarter: quarter / 4),
        st.integers(1, 16),
        st.integers(1, 16),
    ),
    max_size=14,
)


@settings(max_examples=250, deadline=None)
@given(
    workloads,
    policy_makers(),
    st.sampled_from([0.25, 0.5, 1.0, 3.0, lambda batch: 0.25 * batch]),
    st.none() | st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["drop", "cut"]),
)
def test_fast_and_slow_agree_in_every_step(requests, maker, step_s, cap, at_once, over_limit):
    how = {
        "step_s": step_s,
        "max_batch": cap,
        "all_at_once": at_once,
        "over_limit": over_limit,
    }
    slow_policy, fast_policy = maker(), maker()
    slow = list(slow_steps(requests, slow_policy, **how))
    fast = list(steps(requests, fast_policy, **how))
    assert fast == slow
    assert all(step.ledger.pool == fast_policy.pool_tokens for step in fast)
    assert fast_policy.num_free == fast_policy.pool_tokens, "everything was given back"

    summary = simulate(requests, maker(), **how)
    assert summary.num_finished + summary.num_dropped == summary.num_requests == len(requests)
    assert summary.num_steps == len(slow)
    if slow:
        accounts = np.array([list(step.ledger.as_dict().values()) for step in slow])
        assert list(summary.mean.as_dict().values()) == pytest.approx(accounts.mean(axis=0))
        assert summary.mean_batch == pytest.approx(np.mean([step.batch for step in slow]))
        assert summary.peak_batch == max(step.batch for step in slow)
        pressed = [step for step in slow if step.waiting] or slow
        assert summary.sustained_batch == pytest.approx(np.mean([step.batch for step in pressed]))
        assert summary.stuck_share == pytest.approx((accounts[:, 3] > 0).mean())
        assert summary.timeline["num_steps"].sum() == len(slow)
        rows = summary.timeline[["live", "reserved", "internal", "external", "free"]].tolist()
        firsts = summary.timeline["step"].tolist()
        assert [tuple(slow[i].ledger.as_dict().values()) for i in firsts] == rows
    if isinstance(fast_policy, Contiguous):
        assert summary.moved_tokens == slow_policy.moved_tokens == fast_policy.moved_tokens


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(60, 200))
def test_fast_and_slow_agree_under_long_pressure(seed, block_size, pool):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 28, size=(60, 2)).tolist()
    requests = make_requests([tuple(pair) for pair in lengths])
    policies = [Paged(pool, 56, block_size) for _ in range(2)]
    assert list(steps(requests, policies[0])) == list(slow_steps(requests, policies[1]))


def test_preemption_by_hand():
    # 4 blocks of 2 slots. X and Y hold 2 blocks each after their prompts and first tokens.
    requests = make_requests([(3, 3), (3, 3)])
    run = list(steps(requests, Paged(8, 8, block_size=2)))
    assert [(s.batch, s.waiting) for s in run] == [(2, 0), (1, 1), (1, 1), (1, 0), (1, 0)]
    # step 1: X needs a third block, Y gives up two; X takes one of them
    assert run[1].ledger == Ledger(5, 1, 0, 0, 2)
    # Y comes back with 3 + 1 tokens to compute, and generates 2 more
    assert run[3].ledger == Ledger(5, 1, 0, 0, 2)
    summary = simulate(requests, Paged(8, 8, block_size=2))
    assert (summary.num_preemptions, summary.recomputed_tokens) == (1, 4)
    assert summary.num_finished == 2


def test_the_oldest_is_never_preempted_and_all_finish():
    requests = make_requests(mix("paper_sharegpt").sample(300, seed=1))
    summary = simulate(requests, Paged(2048, 2048, 16))
    assert summary.num_preemptions > 50
    assert summary.num_finished == 300


def test_the_running_example_in_three_ways():
    requests = make_requests([(r.prompt_tokens, r.output_tokens) for r in example.REQUESTS])
    pool, limit = example.POOL_TOKENS, example.MAX_MODEL_LEN
    slab = list(steps(requests, make_policy("slab", pool, limit)))
    assert slab[0][2:] == (2, 1, Ledger(live=12, reserved=43, internal=9, external=0, free=0))
    paged = list(steps(requests, make_policy("paged", pool, limit, example.BLOCK_SIZE)))
    assert paged[0][2:] == (3, 0, Ledger(live=19, reserved=1, internal=0, external=0, free=44))
    assert simulate(requests, make_policy("paged", pool, limit, 4)).num_preemptions == 0


def test_a_request_is_refused_with_room_and_compaction_makes_it_fit():
    # 5 + 28 + 4 + 27 fill 64; the first and third leave after one step, and 8 wants to come in
    lengths = [(4, 1), (7, 21), (3, 1), (3, 24), (6, 2)]
    requests = make_requests(lengths)
    for fit in ("first", "best"):
        run = list(steps(requests, Contiguous("exact", Arena(64, fit), 32)))
        assert run[0].ledger.external == 0
        assert (run[1].ledger.external, run[1].ledger.free) == (9, 0)
        policy = Contiguous("exact", Arena(64, fit), 32, compact=True)
        run = list(steps(requests, policy))
        assert run[1].batch == 3
        assert (policy.num_compactions, policy.moved_tokens) == (1, 28 + 27)


def test_too_few_free_slots_are_free_and_not_external():
    run = list(steps(make_requests([(7, 21), (3, 24)]), make_policy("slab", 60, 32)))
    assert run[0].ledger == Ledger(8, 20, 4, 0, 28)


def test_buddy_rounding_is_internal_and_counted_apart():
    requests = make_requests([(5, 4)])
    summary = simulate(requests, make_policy("buddy", 32, 32))
    assert summary.mean == Ledger(7.5, 1.5, 7, 0, 16)
    assert summary.padding == 7
    summary = simulate(requests, make_policy("pow2", 32, 32))
    assert (summary.mean.internal, summary.padding) == (7, 7)
    # the second comes after the first has left: 4 steps at 7 slots of padding, 4 at none
    summary = simulate(make_requests([(5, 4), (4, 4)], [0, 4]), make_policy("buddy", 32, 32))
    assert summary.num_steps == 8
    assert summary.padding == 3.5
    summary = simulate(make_requests([(5, 5)]), make_policy("pow2", 32, 32))  # asks for 5 + 8
    assert (summary.mean.internal, summary.padding) == (6, 3)


def test_over_limit():
    requests = make_requests([(10, 30), (40, 1), (5, 5), (32, 1)])
    drop = simulate(requests, make_policy("paged", 64, 32, 4))
    assert (drop.num_dropped, drop.num_cut, drop.num_finished) == (3, 0, 1)
    cut = simulate(requests, make_policy("paged", 64, 32, 4), over_limit="cut")
    assert (cut.num_dropped, cut.num_cut, cut.num_finished) == (2, 1, 2)
    assert cut.num_steps == 22


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_what_could_not_even_run_alone_is_dropped(name):
    requests = make_requests([(30, 10), (2, 2), (20, 20)])
    summary = simulate(requests, make_policy(name, 32, 64, 4))
    assert summary.num_dropped == (3 if name == "slab" else 2)
    assert summary.num_finished + summary.num_dropped == 3


def test_nothing_to_do():
    summary = simulate([], make_policy("paged", 64, 32, 4))
    assert (summary.num_steps, summary.mean_batch) == (0, 0)
    assert summary.mean == Ledger(0, 0, 0, 0, 64)
    assert list(steps([], make_policy("slab", 64, 32))) == []


def test_arrivals_are_waited_for():
    requests = make_requests([(2, 2), (2, 2)], [0.0, 10.0])
    run = list(steps(requests, make_policy("paged", 64, 32, 4), step_s=0.5))
    assert [(s.step, s.time_s, s.batch) for s in run] == [
        (0, 0.0, 1),
        (1, 0.5, 1),
        (2, 10.0, 1),
        (3, 10.5, 1),
    ]
    at_once = list(steps(requests, make_policy("paged", 64, 32, 4), all_at_once=True))
    assert [s.batch for s in at_once] == [2, 2]


def test_first_come_first_served_without_overtaking():
    # the second does not fit beside the first, so the small third waits behind it
    run = list(steps(make_requests([(10, 3), (20, 3), (1, 1)]), make_policy("first-fit", 30, 24)))
    assert [(s.batch, s.waiting) for s in run][:4] == [(1, 2), (1, 2), (1, 2), (2, 0)]


def test_progress_is_told_and_ends_at_all():
    requests = make_requests(mix("paper_alpaca").sample(500, seed=0))
    told = []
    simulate(requests, make_policy("paged", 4096, 2048), progress=lambda *now: told.append(now))
    assert told[-1] == (500, 500)
    assert 20 < len(told) < 150
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: make_policy("worst-fit", 64, 32), "no policy 'worst-fit'"),
        (lambda: Contiguous("half", Arena(64), 32), "rule is 'half'"),
        (lambda: Contiguous("exact", BuddyArena(64), 32, compact=True), "Only an Arena"),
        (lambda: Contiguous("exact", Arena(64), 0), "max_model_len is 0"),
        (lambda: Paged(3, 32, 4), "no room for one block of 4"),
        (lambda: Paged(64, 32, 0), "block_size is 0"),
        (lambda: simulate([], Slab(64, 32), over_limit="keep"), "over_limit is 'keep'"),
        (lambda: simulate([], Slab(64, 32), max_batch=0), "max_batch is 0"),
        (lambda: simulate(make_requests([(1, 1)]), Slab(64, 32), step_s=0), "A step takes 0 s"),
    ],
)
def test_arguments_are_checked(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_a_used_policy_is_refused():
    policy = make_policy("slab", 64, 32)
    policy.admit("A", 3, 3)
    with pytest.raises(ValueError, match="already holds 32 slots"):
        simulate([], policy)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_one_interface(name):
    policy = make_policy(name, 64, 32, 4)
    assert policy.name == name
    assert policy.num_free == policy.pool_tokens == 64
    assert policy.fits(7, 5)
    assert policy.admit("A", 7, 5)
    with pytest.raises(ValueError, match="'A'"):
        policy.admit("A", 7, 5)
    assert policy.held("A") == sum(size for _, size in policy.spans("A")) >= 8
    assert policy.num_free == 64 - policy.held("A")
    assert policy.grow("A", 12)
    assert policy.held("A") >= 12
    before = policy.spans("A")
    assert not policy.grow("A", 65)
    assert policy.spans("A") == before
    policy.release("A")
    assert policy.num_free == 64
    for call in (policy.release, policy.held, policy.spans):
        with pytest.raises(ValueError, match="'A'"):
            call("A")
    assert not policy.possible(30, 3)
    assert policy.possible(30, 2)


def test_paged_hands_out_blocks_in_the_given_order():
    policy = Paged(64, 32, 4, order=example.BLOCK_ORDER)
    for request in example.REQUESTS:
        policy.admit(request.name, request.prompt_tokens, request.output_tokens)
    # with room for the first output token C's 7 tokens and A's 8 still take two blocks, B's 4 one
    assert policy.tables == example.TABLES
    policy.grow("A", 9)
    assert policy.tables["A"] == example.TABLE_OF_A_AT_9_TOKENS
    assert policy.spans("A") == [(28, 4), (4, 4), (12, 4)]


def cpu_seconds(num_requests, name):
    requests = make_requests(mix("paper_sharegpt").sample(num_requests, seed=0))
    start = time.process_time()
    summary = simulate(requests, make_policy(name, 15_728, 2048), all_at_once=True)
    assert summary.num_finished == num_requests
    return time.process_time() - start


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_twenty_thousand_requests_take_under_five_seconds(name):
    assert cpu_seconds(20_000, name) < 5


@pytest.mark.slow
def test_a_hundred_thousand_requests_take_under_twenty_seconds():
    # the slowest policy: blocks run out all the time, and requests are preempted
    assert cpu_seconds(100_000, "paged") < 20


def test_import_brings_in_neither_torch_nor_triton():
    code = (
        "import sys, course.memory, course.memory.paper, course.memory.example, course.workload; "
        "bad = [m for m in ('torch', 'triton', 'matplotlib', 'pandas') if m in sys.modules]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
