"""The scheduler on a fake model and a shadow store (engine cases H, I, K, L, P; faults 8 to 48).

Engines with a null block have one block more in the cases; here the pool is what can be used.
"""

from time import perf_counter

import pytest
from bookkeeping_shadow import EOS, ShadowEngine, outcome, reference_outputs

from course.engine.invariants import InvariantError
from course.engine.kv_manager import KVManager
from course.engine.request import Request, RequestStatus
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import RequestRefused, Scheduler, SchedulerConfig
from course.engine.slab import SlabKVManager


def scheduler(num_blocks=16, block_size=4, seqs=8, budget=64, chunked=True, max_len=None, **kv):
    config = SchedulerConfig(seqs, budget, chunked, max_model_len=max_len)
    return Scheduler(config, KVManager(num_blocks, block_size, **kv))


def make(name, prompt, eos=None, **params):
    prompt = range(100, 100 + prompt) if isinstance(prompt, int) else prompt
    return Request(name, prompt, SamplingParams(**params), eos_token_id=eos)


def add(s, name, prompt, eos=None, **params):
    request = make(name, prompt, eos, **params)
    s.add(request)
    return request


def step(s, *tokens):
    """One round in which the requests that sample get the given tokens, or 7."""
    made = s.schedule()
    s.check_invariants()
    tokens = tokens or (7,) * len(made.samples)
    names = [request.request_id for request in made.samples]
    finished = s.update(made, dict(zip(names, tokens, strict=True)))
    s.check_invariants()
    return made, finished


def amounts(made):
    return [(request.request_id, start, count) for request, start, count in made.scheduled]


def drain(s):
    while s.has_work:
        step(s)
    assert s.kv_manager.num_free == s.kv_manager.pool.num_blocks
    assert not s.kv_manager.tables


class TestPreemption:
    def crowded(self):
        s = scheduler(10, 16, budget=160, prefix_caching=False)
        first, second = (add(s, name, 80, max_tokens=5) for name in "01")
        made, _ = step(s, 41, 42)
        assert amounts(made) == [("0", 0, 80), ("1", 0, 80)]
        assert s.kv_manager.num_free == 0
        return s, first, second

    def test_H1_the_81st_token_takes_the_newest_ones_blocks(self):
        s, first, second = self.crowded()
        made, _ = step(s, 43)
        assert amounts(made) == [("0", 80, 1)]
        assert made.preempted == [second]
        assert s.running == [first]
        assert second.status is RequestStatus.PREEMPTED
        assert second.output_token_ids == [42]
        assert s.num_preemptions == second.num_preemptions == 1
        drain(s)
        assert second.output_token_ids[0] == 42
        assert [len(r.output_token_ids) for r in (first, second)] == [5, 5]

    def test_H2_F39_back_to_the_front_and_computed_again_from_the_start(self):
        s, _, second = self.crowded()
        third = add(s, "2", 8, max_tokens=1)
        step(s)
        assert list(s.waiting) == [second, third]
        while second.status is not RequestStatus.RUNNING:
            made, _ = step(s)
        assert ("1", 0, 81) in amounts(made)  # prompt and the one generated token
        assert second.num_output_tokens == 2
        drain(s)
        assert second.num_output_tokens == 5
        assert second.finish_reason == "length"

    def test_H2_F38_a_resumed_request_finds_its_own_blocks(self):
        s = scheduler(6, 4, budget=64)
        add(s, "0", range(50, 57), max_tokens=6)
        second = add(s, "1", range(80, 92), max_tokens=8)
        step(s)
        step(s)
        made, _ = step(s)  # "0" needs its third block
        assert made.preempted == [second]
        assert second.num_computed_tokens == 0
        while second.status is RequestStatus.PREEMPTED:
            made, _ = step(s)
        assert amounts(made) == [("1", 12, 2)]  # three of its own blocks were still there
        assert second.num_computed_tokens == 14
        drain(s)
        assert second.num_output_tokens == 8

    def test_F8_F9_a_hit_is_reported_once_and_stays(self):
        s = scheduler(6, 4, budget=64)
        add(s, "seed", range(8), max_tokens=1)
        drain(s)
        first = add(s, "0", [*range(8), 50], max_tokens=12)
        second = add(s, "1", [*range(8), 60], max_tokens=12)
        step(s)
        stats = s.kv_manager.stats
        before = stats.num_requests, stats.queries, stats.hits
        assert second.num_cached_tokens == 8
        while not s.num_preemptions:
            step(s)
        drain(s)
        assert second.num_preemptions > 0
        assert first.num_cached_tokens == second.num_cached_tokens == 8
        assert (stats.num_requests, stats.queries, stats.hits) == before == (3, 26, 16)

    def test_H6_the_victim_is_the_requester_itself(self):
        s = scheduler(5, 4, budget=64, prefix_caching=False)
        add(s, "0", range(5), max_tokens=4)
        second = add(s, "1", range(50, 62), max_tokens=4)
        step(s)
        waiting = add(s, "2", [9], max_tokens=1)
        made, _ = step(s)  # "1" needs a fourth block; "0" has two, of which it fills the second
        assert made.preempted == [second]
        assert amounts(made) == [("0", 5, 1)]
        assert list(s.waiting) == [second, waiting]  # and nobody is let in
        drain(s)

    def test_F43_whole_blocks_come_back(self):
        s = scheduler(4, 4, prefix_caching=False)
        add(s, "0", range(8), max_tokens=4)
        second = add(s, "1", range(50, 55), max_tokens=2)
        step(s)
        made, _ = step(s)
        assert made.preempted == [second]
        assert s.kv_manager.num_free == 1  # two came back, one was taken

    def test_F48_pool_for_two_of_three(self):
        s = scheduler(4, 4, prefix_caching=False)
        requests = [add(s, str(i), range(10 * i, 10 * i + 7), max_tokens=5) for i in range(3)]
        drain(s)
        assert [r.num_output_tokens for r in requests] == [5, 5, 5]

    @pytest.mark.parametrize("caching", [True, False])
    def test_F40_F45_each_holds_half_of_what_both_need(self, caching):
        s = scheduler(4, 4, budget=4, prefix_caching=caching)
        requests = [add(s, str(i), range(20 * i, 20 * i + 12), max_tokens=3) for i in range(2)]
        while s.has_work:
            made, _ = step(s)
            assert made.scheduled
        assert [r.num_output_tokens for r in requests] == [3, 3]

    def test_F29_F37_output_under_pressure_is_the_output_alone(self):
        alone = ShadowEngine(KVManager(40, 4))
        crowded = ShadowEngine(KVManager(7, 4))
        results = []
        for engine in (alone, crowded):
            added = []
            for i in range(4):
                added.append(engine.add(str(i), range(i, i + 8), max_tokens=12, ignore_eos=True))
                if engine is alone:
                    engine.drain()
            engine.drain()
            results.append([outcome(request) for request in added])
        assert crowded.scheduler.num_preemptions > 0
        assert results[0] == results[1]
        assert all(len(output) == 12 for ((output, _),) in results[1])

    def test_two_rounds_at_once_are_refused(self):
        s = scheduler()
        add(s, "0", 5)
        made = s.schedule()
        with pytest.raises(RuntimeError, match=r"update\(step, tokens\) the last step first"):
            s.schedule()
        s.update(made, {"0": 7})
        with pytest.raises(ValueError, match="and only once"):
            s.update(made, {"0": 7})
        assert s.running[0].output_token_ids == [7]

    def test_P6_a_step_that_fails_is_abandoned_and_done_again(self):
        s = scheduler(prefix_caching=False)
        requests = [add(s, str(i), 5 + i, max_tokens=3, n=1 + i) for i in range(2)]
        step(s)
        s.schedule()
        s.abandon()
        s.check_invariants()
        assert not s.running
        assert s.kv_manager.num_free == 16
        s.abandon()
        assert [r.request_id for r in s.waiting] == ["0", "1", "1/1"]
        drain(s)
        family = [*requests, *requests[1].children]
        assert [r.num_output_tokens for r in family] == [3, 3, 3]

    def test_blocks_held_by_somebody_else_are_an_error_not_a_standstill(self):
        s = scheduler(2, 4)
        s.kv_manager.pool.allocate(2)
        add(s, "0", 5)
        with pytest.raises(InvariantError, match="no progress: 0 free blocks and 1 requests"):
            s.schedule()


class TestRefusals:
    @pytest.mark.parametrize(
        ("length", "fits"),
        [(17, False), (16, False), (15, True)],
        ids=["I3-F30-17", "I4-F30-16", "I5-15"],
    )
    def test_prompt_against_the_pool(self, length, fits):
        s = scheduler(4, 4)
        behind = make("behind", 3, max_tokens=2)
        if fits:
            request = add(s, "0", length, max_tokens=9)
            s.add(behind)
            drain(s)
            assert request.num_output_tokens == 1
            assert request.finish_reason == "length"
        else:
            with pytest.raises(RequestRefused, match=rf"{length} tokens.* is 16 tokens: give it"):
                add(s, "0", length)
            s.add(behind)
            drain(s)
        assert s.num_preemptions == 0
        assert behind.num_output_tokens == 2

    def test_I4_1007_of_1008(self):
        s = scheduler(63, 16, budget=2000)
        with pytest.raises(RequestRefused, match="1008"):
            add(s, "0", 1008)
        request = add(s, "1", 1007)
        drain(s)
        assert request.num_output_tokens == 1

    def test_F31_growth_past_the_pool_is_cut(self):
        s = scheduler(2, 4)
        with pytest.raises(RequestRefused, match="9 tokens"):
            add(s, "0", 9)
        request = add(s, "1", 7, max_tokens=4)
        drain(s)
        assert (request.num_output_tokens, request.finish_reason) == (1, "length")

    @pytest.mark.parametrize("length", [19, 20, 21], ids=lambda n: f"I6-F32-{n}of20")
    def test_prompt_against_max_model_len(self, length):
        s = scheduler(max_len=20)
        if length < 20:
            request = add(s, "0", length, max_tokens=9)
            drain(s)
            assert (request.num_output_tokens, request.finish_reason) == (1, "length")
        else:
            with pytest.raises(RequestRefused, match=r"max_model_len is 20 tokens: raise"):
                add(s, "0", length)
        assert not s.has_work

    @pytest.mark.parametrize("max_tokens", [14, 15, 16], ids=lambda n: f"F33-{n}")
    def test_output_against_max_model_len(self, max_tokens):
        s = scheduler(max_len=20)
        request = add(s, "0", 5, max_tokens=max_tokens)
        drain(s)
        assert request.num_output_tokens == min(max_tokens, 15)
        assert request.finish_reason == "length"

    def test_I7_F34_empty_prompt(self):
        s = scheduler()
        with pytest.raises(RequestRefused, match="the prompt is empty"):
            add(s, "0", [])
        assert not s.has_work

    @pytest.mark.parametrize("n", [1, 3])
    def test_I7_F35_max_tokens_zero(self, n):
        s = scheduler()
        request = add(s, "0", 5, max_tokens=0, n=n)
        assert outcome(request) == [([], "length")] * n
        assert not s.has_work
        s.check_invariants()
        add(s, "0", 5, max_tokens=1)  # the id is free again
        drain(s)

    def test_without_chunks_a_prompt_must_fit_the_budget(self):
        s = scheduler(budget=8, chunked=False)
        with pytest.raises(
            RequestRefused,
            match=r"9 tokens and without chunked prefill at most max_num_batched_tokens=8",
        ):
            add(s, "0", 9)
        add(s, "1", 8, max_tokens=2)
        drain(s)

    def test_more_samples_than_seats(self):
        s = scheduler(seqs=3)
        with pytest.raises(RequestRefused, match=r"n=4 .* max_num_seqs is 3"):
            add(s, "0", 5, n=4)
        add(s, "0", 5, n=3)
        drain(s)
        slabs = Scheduler(SchedulerConfig(8, 64), SlabKVManager(8, 4, 16))
        with pytest.raises(RequestRefused, match=r"n=3 .* slabs is 2"):
            add(slabs, "0", 5, n=3)

    def test_ids_in_use(self):
        s = scheduler()
        first = add(s, "0", 5, max_tokens=1, n=3)
        for taken in ("0", "0/1", "0/2"):
            with pytest.raises(RequestRefused, match=f"'{taken}' is in use"):
                add(s, taken, 5)
        child_clash = make("1", 5, n=2)
        add(s, "1/1", 5, max_tokens=1)
        with pytest.raises(RequestRefused, match="'1/1' is in use"):
            s.add(child_clash)
        assert child_clash.children == []
        s.check_invariants()
        drain(s)
        with pytest.raises(RequestRefused, match="make a new Request"):
            s.add(first)
        add(s, "0", 5, max_tokens=1)
        drain(s)

    @pytest.mark.parametrize("budget", [4, 64])
    def test_a_window_lets_a_sequence_outgrow_the_pool(self, budget):
        engine = ShadowEngine(KVManager(6, 4, sliding_window=8), budget=budget)
        prompts = [range(30)] if budget == 4 else [range(23)]
        for prompt in prompts:
            request = engine.add("0", prompt, max_tokens=50, ignore_eos=True)
            limit = engine.kv.longest_sequence(budget)
            expected = reference_outputs(make("", prompt, max_tokens=50, ignore_eos=True), limit)
            engine.drain()
            assert outcome(request) == expected
        # With a large budget one chunk could need more than the pool: then the pool is the limit.
        assert request.num_output_tokens == (50 if budget == 4 else 1)


class TestBudget:
    def test_K1_a_chunk_takes_all_that_is_left(self):
        # An engine with a cap of 400 on long prompts would give 400/400/224. There is no cap here.
        s = scheduler(200, 16, budget=1024)
        for name in "012":
            add(s, name, range(1000 * int(name), 1000 * int(name) + 800), max_tokens=3)
        steps = [amounts(step(s)[0]) for _ in range(3)]
        assert [[count for _, _, count in made] for made in steps] == [
            [800, 224],
            [1, 576, 447],
            [1, 1, 353],
        ]

    def test_K2_one_token_after_the_last_chunk(self):
        s = scheduler(budget=4)
        request = add(s, "0", 10, max_tokens=2)
        sampled = []
        while s.has_work:
            made, _ = step(s)
            sampled.append(len(made.samples))
        assert sampled == [0, 0, 1, 1]
        assert request.num_output_tokens == 2

    def test_K2_a_token_for_an_unfinished_prompt_is_ignored(self):
        s = scheduler(budget=4)
        request = add(s, "0", 6, max_tokens=1)
        assert s.update(s.schedule(), {"0": 9}) == []
        assert request.output_token_ids == []
        assert s.update(s.schedule(), {"0": 8}) == [request]
        assert request.output_token_ids == [8]

    def test_K5_a_long_prompt_does_not_hold_up_a_decode(self):
        s = scheduler(30, 4, budget=8)
        add(s, "0", 4, max_tokens=12)
        step(s)
        add(s, "1", range(64), max_tokens=1)
        for number in range(9):
            made, _ = step(s)
            assert amounts(made)[0] == ("0", 4 + number, 1)
            assert made.num_tokens == 8
        assert amounts(made)[1] == ("1", 56, 7)

    def test_more_running_than_budget_serves_the_oldest(self):
        s = scheduler(budget=3)
        request = add(s, "0", 3, max_tokens=3, n=5)
        while s.has_work:
            made, _ = step(s)
            assert made.num_tokens <= 3
        assert [r.num_output_tokens for r in (request, *request.children)] == [3] * 5

    def test_no_overtaking(self):
        s = scheduler(4, 4, prefix_caching=False)
        add(s, "0", 9, max_tokens=4)
        large, small = add(s, "1", range(8), max_tokens=1), add(s, "2", [1], max_tokens=1)
        made, _ = step(s)
        assert amounts(made) == [("0", 0, 9)]
        assert list(s.waiting) == [large, small]
        drain(s)

    def test_seats(self):
        s = scheduler(seqs=3)
        for name, n in (("0", 2), ("1", 2), ("2", 1)):
            add(s, name, 5, max_tokens=2, n=n)
        assert amounts(step(s)[0]) == [("0", 0, 5)]  # "1" needs two seats, one is left
        assert len(s.running) == 2
        drain(s)

    def test_without_chunks_a_prompt_waits_for_room(self):
        s = scheduler(budget=8, chunked=False)
        add(s, "0", range(5), max_tokens=2)
        add(s, "1", range(50, 57), max_tokens=2)
        assert amounts(step(s)[0]) == [("0", 0, 5)]
        assert amounts(step(s)[0]) == [("0", 5, 1), ("1", 0, 7)]
        drain(s)

    def test_without_chunks_a_preempted_request_may_outgrow_the_budget(self):
        s = scheduler(5, 4, budget=8, chunked=False, prefix_caching=False)
        requests = [add(s, str(i), range(9 * i, 9 * i + 6), max_tokens=10) for i in range(2)]
        seen = []
        while s.has_work:
            seen += amounts(step(s)[0])
        assert s.num_preemptions > 0
        # Nine tokens to compute again and a budget of eight: in two pieces, or it would never end.
        place = seen.index(("1", 0, 8))
        assert seen[place + 1] == ("1", 8, 1)
        assert [r.num_output_tokens for r in requests] == [10, 10]

    def test_F12_chunks_give_the_same_output(self):
        results = []
        for budget in (4, 64):
            engine = ShadowEngine(KVManager(16, 4), budget=budget)
            results.append(engine.add("0", range(10), max_tokens=8, ignore_eos=True))
            engine.drain()
        assert outcome(results[0]) == outcome(results[1])

    def test_an_idle_scheduler(self):
        s = scheduler()
        made, finished = step(s)
        assert not made.scheduled
        assert finished == []
        assert made.num_tokens == 0


class TestStops:
    def served(self, tokens, **params):
        s = scheduler()
        request = add(s, "0", 5, eos=1, **params)
        for number, token in enumerate(tokens, start=1):
            _, finished = step(s, token)
            if finished:
                assert finished == [request]
                assert request.status is RequestStatus.FINISHED
                assert s.kv_manager.num_free == 16  # in the same step
                assert number == request.num_output_tokens
                break
        return request.output_token_ids, request.finish_reason

    def test_L1_eos_first(self):
        assert self.served([1]) == ([1], "stop")

    def test_L2_ignore_eos(self):
        assert self.served([1, 1, 5], ignore_eos=True, max_tokens=3) == ([1, 1, 5], "length")

    def test_L3_stop_token(self):
        assert self.served([10, 42, 12], stop_token_ids=[42]) == ([10, 42], "stop")
        assert self.served([10, 42], stop_token_ids=[42], ignore_eos=True) == ([10, 42], "stop")

    def test_L4_max_tokens(self):
        assert self.served([10, 11, 12], max_tokens=2) == ([10, 11], "length")

    def test_L5_min_tokens(self):
        tokens = [1, 42, 1, 42, 1]
        assert self.served(tokens, min_tokens=5, stop_token_ids=[42]) == (tokens, "stop")
        assert self.served(tokens, min_tokens=5, max_tokens=5, ignore_eos=True) == (
            tokens,
            "length",
        )

    def test_a_stop_at_the_last_token_is_a_stop(self):
        assert self.served([10, 1], max_tokens=2) == ([10, 1], "stop")

    def test_no_eos_known(self):
        s = scheduler()
        request = add(s, "0", 5, max_tokens=2)
        drain(s)
        assert request.finish_reason == "length"

    def test_finish_from_outside(self):
        s = scheduler()
        first, second = add(s, "0", 5), add(s, "1", 6)
        step(s)
        s.finish(first, "stop")  # a stop text was found
        s.finish(first, "abort")
        s.check_invariants()
        assert (first.finish_reason, s.running) == ("stop", [second])
        drain(s)

    @pytest.mark.parametrize(
        ("tokens", "complaint"),
        [
            ({}, "not so for"),
            ({"0": 1, "x": 2}, "'x'"),
            ({"0": -1}, "token -1"),
            ({"0": 2**32}, "outside"),
        ],
    )
    def test_tokens_that_do_not_fit_the_step(self, tokens, complaint):
        s = scheduler()
        request = add(s, "0", 5, max_tokens=1)
        made = s.schedule()
        with pytest.raises(ValueError, match=complaint):
            s.update(made, tokens)
        assert request.num_computed_tokens == 0
        assert s.update(made, {"0": 3}) == [request]


class TestAbort:
    @pytest.mark.parametrize(
        "state", ["waiting", "running", "mid-prompt", "preempted", "in a step"]
    )
    def test_F24_F25_F27_in_each_state(self, state):
        s = scheduler(10, 16, budget=160 if state != "mid-prompt" else 100, prefix_caching=False)
        add(s, "0", 80, max_tokens=5)
        target = add(s, "1", 80, max_tokens=5)
        if state != "waiting":
            step(s)
        if state == "preempted":
            step(s)
            assert target.status is RequestStatus.PREEMPTED
        made = s.schedule() if state == "in a step" else None
        assert s.abort("1") is True
        s.check_invariants()
        assert (target.status, target.finish_reason) == (RequestStatus.FINISHED, "abort")
        if made:
            assert "1" not in s.kv_manager.tables
            s.update(made, {request.request_id: 7 for request in made.samples})
        outputs = target.output_token_ids
        assert s.abort("1") is False  # twice
        assert s.abort("nobody") is False
        drain(s)
        assert target.output_token_ids == outputs

    def test_tokens_of_an_aborted_request_may_be_left_out(self):
        s = scheduler()
        add(s, "0", 5)
        other = add(s, "1", 5)
        made = s.schedule()
        s.abort("0")
        s.update(made, {"1": 7})
        assert other.output_token_ids == [7]
        s.abort("1")
        s.schedule()  # a step of which nobody is left holds up nothing
        assert s.kv_manager.num_free == 16

    def test_after_all_of_a_step_are_gone_the_next_may_be_scheduled(self):
        s = scheduler()
        add(s, "0", 5, n=2)
        s.schedule()
        s.abort("0")
        later = add(s, "1", 5, max_tokens=1)
        drain(s)
        assert later.num_output_tokens == 1

    def test_a_family(self):
        s = scheduler()
        first = add(s, "0", 5, n=3, max_tokens=4)
        second = add(s, "1", 5, n=3, max_tokens=4)
        made = s.schedule()
        assert s.abort("0/1") is True  # not forked yet
        assert s.abort("1") is True
        s.check_invariants()
        s.update(made, {request.request_id: 7 for request in made.samples})
        assert [r.finish_reason for r in (second, *second.children)] == ["abort"] * 3
        assert [r.num_output_tokens for r in (first, *first.children)] == [1, 0, 1]
        s.finish(first, "stop")
        assert s.abort("0") is True  # of a parent that is done: the children that are not
        assert first.finish_reason == "stop"
        assert first.children[1].finish_reason == "abort"
        assert not s.has_work
        assert s.kv_manager.num_free == 16

    def test_finish_of_a_parent_before_its_children_exist(self):
        s = scheduler()
        parent = add(s, "0", 5, n=2)
        s.finish(parent, "stop")
        s.check_invariants()
        assert not s.has_work
        assert parent.children[0].finish_reason == "stop"


class TestSamples:
    def test_children_share_the_prompt_and_sample_from_its_last_row(self):
        s = scheduler(block_size=4)
        other = add(s, "a", range(3), max_tokens=3)
        parent = add(s, "p", range(50, 56), n=3, seed=9, max_tokens=3)
        assert [child.params.seed for child in parent.children] == [10, 11]
        assert {child.params.n for child in parent.children} == {1}
        made, _ = step(s, 7, 1, 2, 3)
        assert made.samples == [other, parent, *parent.children]
        assert made.sample_rows == [0, 1, 1, 1]
        assert [r.output_token_ids for r in (parent, *parent.children)] == [[1], [2], [3]]
        assert s.running == [other, parent, *parent.children]
        tables = [list(s.kv_manager.tables[name]) for name in ("p", "p/1", "p/2")]
        assert tables[0] == tables[1] == tables[2]
        free = s.kv_manager.num_free
        made, _ = step(s)
        # Two get a copy of the half-full block, the last owner writes in place.
        tail = tables[0][1]
        assert [source for source, _ in made.copies] == [tail, tail]
        assert free - s.kv_manager.num_free == 2
        assert s.kv_manager.tables["p/2"][1] == tail
        drain(s)

    def test_a_full_last_block_needs_no_copy(self):
        s = scheduler(block_size=4)
        add(s, "p", range(8), n=2, max_tokens=3)
        step(s)
        made, _ = step(s)
        assert made.copies == []
        drain(s)

    def test_a_parent_that_ends_at_once_leaves_its_children_whole(self):
        s = scheduler()
        parent = add(s, "p", 6, eos=1, n=2, max_tokens=3)
        _, finished = step(s, 1, 5)
        assert finished == [parent]
        assert s.running == parent.children
        drain(s)
        assert parent.children[0].num_output_tokens == 3

    def test_a_parent_preempted_before_its_fork(self):
        s = scheduler(6, 4, budget=8, prefix_caching=False)
        add(s, "0", range(7), max_tokens=10)
        parent = add(s, "p", range(50, 65), n=2, max_tokens=3)
        drain(s)
        assert parent.num_preemptions > 0
        assert [r.num_output_tokens for r in (parent, *parent.children)] == [3, 3]

    def test_seeds_stay_in_range(self):
        s = scheduler()
        parent = add(s, "p", 3, n=2, seed=2**63 - 1)
        assert parent.children[0].params.seed == 0

    def test_slab_children_get_slabs_and_copies(self):
        engine = ShadowEngine(SlabKVManager(12, 4, 16))
        family = engine.add("p", range(6), n=2, seed=3, max_tokens=6, ignore_eos=True)
        other = engine.add("a", range(5), max_tokens=6, ignore_eos=True)
        late = engine.add("b", range(5), max_tokens=6, ignore_eos=True)
        engine.step()
        assert len(engine.kv.tables) == 3
        assert list(engine.scheduler.waiting) == [late]
        step_made = engine.schedule()
        assert len(step_made.copies) == 2
        engine.scheduler.abandon()
        engine.drain()
        for request, params in ((family, {"n": 2, "seed": 3}), (other, {}), (late, {})):
            prompt = request.prompt_token_ids
            fresh = make("", prompt, max_tokens=6, ignore_eos=True, **params)
            assert outcome(request) == reference_outputs(fresh, 16)


class TestCheckerSeesDamage:
    @pytest.mark.parametrize(
        ("damage", "complaint"),
        [
            (lambda s: s.waiting.append(s.running[0]), "queued twice"),
            (lambda s: s.running.pop(), "with tables"),
            (lambda s: s.running.reverse(), "order of arrival"),
            (lambda s: setattr(s.running[0], "status", RequestStatus.WAITING), "among the running"),
            (lambda s: setattr(s.waiting[0], "status", RequestStatus.RUNNING), "in the queue"),
            (lambda s: setattr(s.waiting[0], "num_computed_tokens", 3), "computed without blocks"),
            (lambda s: s._live.pop("2"), "unfinished"),
            (lambda s: object.__setattr__(s.config, "max_num_seqs", 1), "max_num_seqs 1"),
            (lambda s: object.__setattr__(s.config, "max_num_batched_tokens", 1), "budget is 1"),
            (lambda s: s._step.scheduled.append((s.running[0], 6, 0)), "for 0 tokens"),
            (lambda s: s._step.scheduled.append((s.running[0], 5, 9)), "past its table"),
            (lambda s: s._step.scheduled.append((s.running[0], 0, 1)), "overwrites published"),
            (lambda s: s.kv_manager.fork(s.running[0], make("x", range(6))), "with tables"),
        ],
    )
    def test_damage(self, damage, complaint):
        s = scheduler(seqs=2)
        for i in range(3):
            add(s, str(i), range(10 * i, 10 * i + 6))
        step(s)
        s.schedule()
        s.check_invariants()
        damage(s)
        with pytest.raises(InvariantError, match=complaint):
            s.check_invariants()


def test_a_step_over_a_thousand_running_requests_is_quick():
    s = Scheduler(SchedulerConfig(1000, 100_000), KVManager(20_000, 16))
    for i in range(1000):
        s.add(make(str(i), [i] * 40, max_tokens=40, eos=EOS))
    times = []
    for _ in range(30):
        started = perf_counter()
        made = s.schedule()
        s.update(made, {request.request_id: 7 for request in made.samples})
        times.append(perf_counter() - started)
        assert len(made.scheduled) == 1000
    # About 4 ms on a quiet core. The best of thirty, as other work on the machine only adds.
    assert min(times) < 0.020, f"best step {min(times) * 1e3:.1f} ms"
