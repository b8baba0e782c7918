"""The whole bookkeeping at work: any load, any pool, any moment of abort, against no cache at all.

Engine invariants 1 to 13 are checked after every step by the shadow engine and the checkers.
"""

import pytest
from bookkeeping_shadow import ShadowEngine, outcome, reference_outputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from course.engine.block_table import blocks_needed
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import RequestRefused
from course.engine.slab import SlabKVManager

SHARED = [1, 2, 3, 4, 5, 1, 2, 3]
LOAD = [  # (prompt, params)
    ([*SHARED, 4], {"max_tokens": 9, "ignore_eos": True}),
    ([*SHARED], {"max_tokens": 5, "seed": 3}),
    ([2], {"max_tokens": 12, "ignore_eos": True, "seed": 1}),
    ([*SHARED, 4, 4, 4], {"max_tokens": 4, "n": 3, "seed": 8, "ignore_eos": True}),
    ([*SHARED[:6]], {"max_tokens": 0}),
    ([*SHARED[:5]], {"max_tokens": 8, "n": 2, "seed": 5, "min_tokens": 3, "stop_token_ids": [2]}),
    ([*SHARED, 4], {"max_tokens": 9, "ignore_eos": True}),
]


def serve(engine, load, extra_keys=(None,)):
    """Serve all; returns what each should give and what it gave, without those refused."""
    budget = engine.scheduler.config.max_num_batched_tokens
    limit = engine.kv.longest_sequence(budget)
    if engine.scheduler.config.max_model_len:
        limit = min(limit, engine.scheduler.config.max_model_len)
    pairs = []
    for number, (prompt, params) in enumerate(load):
        key = extra_keys[number % len(extra_keys)]
        fresh = Request("", prompt, SamplingParams(**params), key)
        try:
            pairs.append((engine.add(f"r{number}", prompt, key, **params), fresh))
        except RequestRefused:
            assert (
                len(prompt) + 1 > limit
                or params.get("n", 1) > engine.scheduler.config.max_num_seqs
                or params.get("n", 1) > engine.kv.max_samples
                or (not engine.scheduler.config.chunked_prefill and len(prompt) > budget)
            )
    engine.drain()
    return [(outcome(request), reference_outputs(fresh, limit)) for request, fresh in pairs]


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "whole"])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_I13_every_pool_size_that_can_serve(block_size, caching, chunked):
    smallest = blocks_needed(len(SHARED) + 4, block_size)
    largest = blocks_needed(150, block_size)
    sizes = [*range(smallest, smallest + 8), *range(smallest + 8, largest, 5), largest]
    preemptions = []
    for num_blocks in sizes:
        engine = ShadowEngine(
            KVManager(num_blocks, block_size, caching), budget=12, chunked_prefill=chunked
        )
        results = serve(engine, LOAD)
        assert len(results) == len(LOAD)
        for got, expected in results:
            assert got == expected
        preemptions.append(engine.scheduler.num_preemptions)
        if caching:
            stats = engine.kv.stats  # children are not queries, recomputation is not either
            assert stats.num_requests == sum(params["max_tokens"] > 0 for _, params in LOAD)
            assert engine.kv.reset_prefix_cache()
    assert preemptions[0] > 0
    assert preemptions[-1] == 0


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_I13_windows(block_size, window):
    for num_blocks in range(blocks_needed(12, block_size), blocks_needed(60, block_size), 2):
        engine = ShadowEngine(KVManager(num_blocks, block_size, sliding_window=window), budget=12)
        for got, expected in serve(engine, LOAD):
            assert got == expected


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("num_blocks", [2, 3, 4])
def test_a_window_that_fits_serves_without_end(num_blocks, window):
    unbounded = 0
    for block_size in (1, 2, 3):
        for budget in range(1, 8):
            kv = KVManager(num_blocks, block_size, sliding_window=window)
            if kv.longest_sequence(budget) == num_blocks * block_size:
                continue
            unbounded += 1
            engine = ShadowEngine(kv, budget=budget)
            prompt = [1, 2, 3, 4, 5] * 4
            for got, expected in serve(engine, [(prompt, {"max_tokens": 9, "ignore_eos": True})]):
                assert got == expected
                assert len(got[0][0]) == 9
    assert unbounded or (num_blocks, window) == (2, 4)


@pytest.mark.parametrize("num_blocks", [8, 12, 17, 40])
def test_I13_slabs(num_blocks):
    engine = ShadowEngine(SlabKVManager(num_blocks, 4, 30), budget=12)
    results = serve(engine, LOAD)
    for got, expected in results:
        assert got == expected
    assert engine.scheduler.num_preemptions == 0
    assert len(results) == {8: 5, 12: 5, 17: 6, 40: 7}[num_blocks]  # n samples need n slabs


def test_salts_never_mix():
    engine = ShadowEngine(KVManager(20, 2), budget=12)
    for got, expected in serve(engine, LOAD, extra_keys=(None, "a", b"a", "")):
        assert got == expected


params_strategy = st.fixed_dictionaries(
    {"max_tokens": st.integers(0, 12), "n": st.sampled_from([1, 1, 1, 2, 3])},
    optional={
        "seed": st.integers(0, 3),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.lists(st.integers(1, 5), max_size=2),
    },
)
prompt_strategy = st.builds(
    lambda shared, own: SHARED[:shared] + own,
    st.integers(0, len(SHARED)),
    st.lists(st.integers(0, 5), min_size=1, max_size=7),
)
config_strategy = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(1, 16),
        "block_size": st.integers(1, 5),
        "caching": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.0, 0.2, 0.9]),
        "window": st.sampled_from([None, None, None, 1, 3, 6]),
        "seqs": st.integers(1, 6),
        "budget": st.integers(1, 20),
        "chunked": st.booleans(),
        "max_model_len": st.sampled_from([None, None, 9, 20]),
        "slab": st.sampled_from([False, False, False, True]),
    }
)


def make_engine(config) -> ShadowEngine:
    if config["slab"]:
        length = min(config["num_blocks"] * config["block_size"], 18)
        kv = SlabKVManager(config["num_blocks"], config["block_size"], length)
    else:
        kv = KVManager(
            config["num_blocks"],
            config["block_size"],
            config["caching"],
            config["watermark"],
            config["window"],
        )
    return ShadowEngine(
        kv,
        config["seqs"],
        config["budget"],
        config["chunked"],
        max_model_len=config["max_model_len"],
    )


@given(config_strategy, st.lists(st.tuples(prompt_strategy, params_strategy), max_size=7))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_load_through_any_engine(config, load):
    for got, expected in serve(make_engine(config), load):
        assert got == expected


class Serving(RuleBasedStateMachine):
    """Requests come, are served, aborted, cut short; steps fail; everything stays whole."""

    def __init__(self):
        super().__init__()
        self.engine = None
        self.asked: list[tuple[Request, Request]] = []
        self.cut: set[str] = set()  # ended from outside: the output is only a beginning

    @precondition(lambda self: self.engine is None)
    @rule(config=config_strategy)
    def begin(self, config):
        self.engine = make_engine(config)

    @precondition(lambda self: self.engine)
    @rule(prompt=prompt_strategy, params=params_strategy, salt=st.sampled_from([None, None, "s"]))
    def add(self, prompt, params, salt):
        name = f"r{len(self.asked)}"
        fresh = Request("", prompt, SamplingParams(**params), salt)
        try:
            self.asked.append((self.engine.add(name, prompt, salt, **params), fresh))
        except RequestRefused:
            self.engine.check()

    @precondition(lambda self: self.engine)
    @rule(count=st.integers(1, 6))
    def steps(self, count):
        for _ in range(count):
            self.engine.step()

    def _everyone(self):
        return [member for request, _ in self.asked for member in (request, *request.children)]

    def _abort(self, data):
        everyone = self._everyone()
        if not everyone:
            assert not self.engine.scheduler.abort("nobody")
            return
        request = data.draw(st.sampled_from(everyone))
        family = [request, *request.children]
        alive = [member for member in family if not member.is_finished]
        assert self.engine.scheduler.abort(request.request_id) == bool(alive)
        self.cut |= {member.request_id for member in alive}
        assert all(member.finish_reason == "abort" for member in alive)
        self.engine.check()

    @precondition(lambda self: self.engine)
    @rule(data=st.data())
    def abort(self, data):
        self._abort(data)

    @precondition(lambda self: self.engine)
    @rule(data=st.data())
    def abort_within_a_step(self, data):
        step = self.engine.schedule()
        tokens = self.engine.store.forward(step)
        self._abort(data)
        self.engine.scheduler.update(step, tokens)
        self.engine.check()

    @precondition(lambda self: self.engine)
    @rule(forward=st.booleans(), data=st.data())
    def a_step_fails(self, forward, data):
        step = self.engine.schedule()
        if forward:  # the cache was written, the tokens were lost
            self.engine.store.forward(step)
        self._abort(data)
        self.engine.scheduler.abandon()
        self.engine.check()
        assert not self.engine.kv.tables

    @precondition(lambda self: self.engine and self.engine.scheduler.running)
    @rule(data=st.data())
    def finish(self, data):
        request = data.draw(st.sampled_from(self.engine.scheduler.running))
        self.cut |= {r.request_id for r in (request, *request.unforked_children)}
        self.engine.scheduler.finish(request, "stop")
        self.engine.check()

    @invariant()
    def whole(self):
        if self.engine:
            self.engine.check()

    def teardown(self):
        if not self.engine:
            return
        self.engine.drain()
        config = self.engine.scheduler.config
        limit = self.engine.kv.longest_sequence(config.max_num_batched_tokens)
        limit = min(limit, config.max_model_len or limit)
        for request, fresh in self.asked:
            expected = reference_outputs(fresh, limit)
            members = (request, *request.children)
            for member, (output, reason) in zip(members, expected, strict=True):
                if member.request_id in self.cut:
                    assert member.output_token_ids == output[: member.num_output_tokens]
                else:
                    assert (member.output_token_ids, member.finish_reason) == (output, reason)


TestServing = Serving.TestCase
TestServing.settings = settings(
    max_examples=300,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
