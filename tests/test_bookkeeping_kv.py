"""Fork, copy on write, admission, and the manager as a whole (engine cases G, I1, J, faults 21)."""

from itertools import permutations

import pytest
from bookkeeping_shadow import ShadowStore
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from course.engine.block_pool import BlockPool
from course.engine.block_table import blocks_needed
from course.engine.invariants import InvariantError
from course.engine.kv_manager import KVManager
from course.engine.request import Request, RequestStatus
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler_types import Step
from course.engine.slab import SlabKVManager
from course.engine.sliding_window import num_passed_blocks


def make(name, tokens):
    return Request(name, tokens, SamplingParams())


def start(kv, name, tokens):
    request = make(name, tokens)
    assert kv.admit(request, request.num_tokens)
    return computed(kv, request)


def computed(kv, request):
    request.num_computed_tokens = request.num_tokens
    kv.publish(request)
    kv.check_invariants()
    return request


def append(kv, request, tokens):
    request.token_ids += tokens
    copies = kv.grow(request, request.num_tokens)
    assert copies is not None
    computed(kv, request)
    return copies


def fork(kv, parent, name):
    child = make(name, parent.token_ids)
    assert kv.fork(parent, child) == []
    kv.check_invariants()
    return child


@pytest.mark.parametrize("parent_first", [True, False])
@pytest.mark.parametrize("block_size", [1, 8])
@pytest.mark.parametrize("length", [1, 9, 129])
def test_G1_fork_takes_nothing(length, block_size, parent_first):
    kv = KVManager(200, block_size)
    parent = start(kv, "p", range(length))
    free = kv.num_free
    child = fork(kv, parent, "c")
    assert kv.num_free == free
    assert kv.tables["c"] == kv.tables["p"]
    assert kv.tables["c"] is not kv.tables["p"]
    assert {kv.pool.ref_count(block) for block in kv.tables["p"]} == {2}
    assert child.num_computed_tokens == length
    first, second = (parent, child) if parent_first else (child, parent)
    kv.release(first)
    assert kv.num_free == free
    kv.check_invariants()
    kv.release(second)
    assert kv.num_free == 200
    kv.check_invariants()


@pytest.mark.parametrize("appender", ["p", "c"])
@pytest.mark.parametrize("more", [1, 16, 129])
@pytest.mark.parametrize("length", [1, 16, 129])
def test_G2_copy_on_write(length, more, appender):
    kv = KVManager(64, 8)
    parent = start(kv, "p", range(length))
    child = fork(kv, parent, "c")
    before = list(kv.tables["p"])
    free = kv.num_free
    copies = append(kv, parent if appender == "p" else child, range(5000, 5000 + more))
    extra = blocks_needed(length + more, 8) - length // 8
    assert free - kv.num_free == extra
    assert len(copies) == (1 if length % 8 else 0)
    for source, destination in copies:
        assert source == before[-1]
        assert destination == kv.tables[appender][length // 8]
        assert destination not in before
    assert kv.tables["c" if appender == "p" else "p"] == before
    kv.release(parent)
    kv.release(child)
    assert kv.num_free == 64


def test_G3_the_last_owner_writes_in_place():
    kv = KVManager(8, 4)
    parent = start(kv, "p", range(3))
    child = fork(kv, parent, "c")
    free = kv.num_free
    ((source, destination),) = append(kv, child, [7])
    assert source != destination
    assert free - kv.num_free == 1
    assert kv.pool.ref_count(source) == 1
    assert append(kv, parent, [8]) == []
    assert free - kv.num_free == 1


def test_G4_no_room_for_the_copy_changes_nothing():
    kv = KVManager(1, 4)
    parent = start(kv, "p", range(3))
    child = fork(kv, parent, "c")
    for request in (parent, child):
        assert kv.grow(request, 4) is None
        assert kv.tables == {"p": [0], "c": [0]}
        assert kv.pool.ref_count(0) == 2
    kv.check_invariants()
    kv.release(child)
    assert kv.grow(parent, 4) == []


def test_G5_F50_both_survivors_come_from_beam_one():
    kv = KVManager(16, 4)
    store = ShadowStore(kv)

    def compute(beam, token=None):
        """Append a token, make room, write what is new and read everything before it."""
        copies = []
        if token is not None:
            beam.token_ids.append(token)
            copies = kv.grow(beam, beam.num_tokens)
        start = beam.num_computed_tokens
        scheduled = [(beam, start, beam.num_tokens - start)]
        store.forward(Step(scheduled=scheduled, copies=copies))
        computed(kv, beam)

    beams = [make("0", range(6)), make("1", range(50, 57))]
    for beam in beams:
        assert kv.admit(beam, beam.num_tokens)
        compute(beam)
    survivors = [fork(kv, beams[1], "2"), beams[1]]
    kv.release(beams[0])
    for token in (8, 9, 7, 6):
        for number, beam in enumerate(survivors):
            compute(beam, token + 10 * number)
    assert kv.tables["2"][0] == kv.tables["1"][0]
    assert kv.tables["2"][1] != kv.tables["1"][1]


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_G6_F21_forks_of_forks_freed_in_any_order(order):
    kv = KVManager(32, 4)
    family = [start(kv, "0", range(10))]
    family.append(fork(kv, family[0], "1"))
    append(kv, family[1], [20, 21])
    family.append(fork(kv, family[1], "2"))
    family.append(fork(kv, family[0], "3"))
    append(kv, family[2], [30])
    for number in order:
        kv.release(family[number])
        kv.check_invariants()
    assert kv.num_free == 32


@pytest.mark.parametrize("parent_first", [True, False], ids=["J4-F21-parent", "J4-F21-child"])
def test_J4_fork_of_a_table_that_a_window_has_passed(parent_first):
    kv = KVManager(12, 2, sliding_window=4)
    parent = start(kv, "p", range(12))
    assert kv.tables["p"][:4] == [-1] * 4
    child = fork(kv, parent, "c")
    append(kv, child, [50])
    append(kv, parent, [60, 61, 62])
    for request in (parent, child) if parent_first else (child, parent):
        kv.release(request)
        kv.check_invariants()
    assert kv.num_free == 12


@pytest.mark.parametrize(("watermark", "fit"), [(0.0, 4), (0.25, 3)], ids=["I1-0", "I1-0.25"])
def test_I1_watermark(watermark, fit):
    kv = KVManager(4, 4, watermark=watermark)
    admitted = [kv.admit(make(str(i), range(10 * i, 10 * i + 4)), 4) for i in range(5)]
    assert admitted == [True] * fit + [False] * (5 - fit)


def test_I1_the_watermark_is_a_share_of_the_pool_exactly():
    # 0.1 * 30 is more than 3 in floating point.
    kv = KVManager(30, 1, watermark=0.1)
    assert kv.admit(make("0", range(1)), 1)
    assert kv.admit(make("1", range(50, 76)), 26)
    assert kv.num_free == 3
    assert not kv.admit(make("2", [9]), 1)


def test_F46_a_lone_request_may_use_the_watermark_and_every_block():
    kv = KVManager(4, 4, watermark=0.5)
    assert kv.admit(make("0", range(16)), 16)
    assert kv.num_free == 0


def test_refusals_of_the_manager():
    kv = KVManager(4, 4)
    request = start(kv, "0", range(4))
    with pytest.raises(ValueError, match="admitted already"):
        kv.admit(request, 4)
    with pytest.raises(ValueError, match="admitted already"):
        kv.fork(request, request)
    kv.release(request)
    with pytest.raises(ValueError, match="holds no blocks"):  # F25: released twice
        kv.release(request)
    kv.check_invariants()


@pytest.mark.parametrize(
    "arguments",
    [
        {"watermark": 1.0},
        {"watermark": -0.1},
        {"watermark": float("nan")},
        {"sliding_window": 0},
        {"block_size": 0},
        {"num_blocks": 0},
        {"pool": BlockPool(3)},
    ],
    ids=lambda arguments: str(arguments).partition(" object")[0],  # an address differs per process
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments)).replace("pool", "num_blocks is 4")):
        KVManager(**{"num_blocks": 4, "block_size": 4, **arguments})


def test_a_pool_of_ones_own_needs_only_five_names_without_prefix_cache():
    class Plain:
        """What a learner builds in lesson 04: random order, no claim, no keep."""

        def __init__(self, num_blocks):
            self.num_blocks, self.owners = num_blocks, [0] * num_blocks

        @property
        def num_free(self):
            return self.owners.count(0)

        def allocate(self, count=1):
            block_ids = [b for b in range(self.num_blocks) if not self.owners[b]][::-1][:count]
            self.share(block_ids)
            return block_ids

        def share(self, block_ids):
            for block_id in block_ids:
                self.owners[block_id] += 1

        def free(self, block_ids):
            for block_id in block_ids:
                self.owners[block_id] -= 1

        def ref_count(self, block_id):
            return self.owners[block_id]

    kv = KVManager(6, 4, prefix_caching=False, pool=Plain(6))
    parent = make("0", range(6))
    assert kv.admit(parent, 6)
    parent.num_computed_tokens = 6
    child = make("1", range(6))
    kv.fork(parent, child)
    child.token_ids.append(9)
    assert kv.grow(child, 7) == [(4, 3)]
    kv.publish(child)
    kv.release(parent)
    kv.release(child)
    assert kv.num_free == 6


class TestCheckerSeesDamage:
    def manager(self):
        kv = KVManager(6, 4)
        start(kv, "0", range(9))
        return kv

    @pytest.mark.parametrize(
        ("damage", "complaint"),
        [
            (lambda kv: kv.tables["0"].append(kv.tables["0"][0]), "stands 2 time"),
            (lambda kv: kv.pool.share([1]), "counted 2"),
            (lambda kv: kv.tables.update({"1": []}), "table without a request"),
            (lambda kv: kv.pool.free([kv.tables["0"].pop()]), "9 tokens stored in 8 slots"),
            (lambda kv: kv.prefix_cache.publish(2, b"x"), "published with a hash"),
            (lambda kv: kv.requests["0"].token_ids.__setitem__(0, 77), "published with a hash"),
            (lambda kv: kv.prefix_cache._blocks.clear(), "does not lead back"),
            (lambda kv: kv.prefix_cache._blocks.update({b"z": {}}), "without a block"),
        ],
        ids=[
            "I1-owners",
            "I1-count",
            "table",
            "I4-length",
            "I6-early",
            "I6-hash",
            "I7",
            "I7-empty",
        ],
    )
    def test_damage(self, damage, complaint):
        kv = self.manager()
        damage(kv)
        with pytest.raises(InvariantError, match=complaint):
            kv.check_invariants()


class TestSlab:
    def test_a_run_of_neighbours_for_each(self):
        kv = SlabKVManager(10, 4, max_model_len=12)
        assert kv.max_samples == 3
        requests = [make(str(i), range(5)) for i in range(4)]
        assert [kv.admit(request, 5) for request in requests] == [True] * 3 + [False]
        assert list(kv.tables.values()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert kv.num_free == 1  # the rest is too short for a slab
        kv.check_invariants()
        assert kv.grow(requests[0], 12) == []
        with pytest.raises(ValueError, match="13 tokens do not fit a slab of 12"):
            kv.grow(requests[0], 13)
        kv.release(requests[1])
        assert kv.admit(requests[3], 5)
        assert kv.tables["3"] == [3, 4, 5]
        assert kv.cached_tokens(requests[1]) == 0
        for request in (requests[0], requests[2], requests[3]):
            kv.release(request)
        assert kv.num_free == 10
        assert kv.reset_prefix_cache() is True
        kv.check_invariants()

    def test_fork_copies_what_is_written(self):
        kv = SlabKVManager(9, 4, max_model_len=12)
        parent = make("p", range(5))
        assert kv.admit(parent, 5)
        parent.num_computed_tokens = 5
        child = make("c", range(5))
        assert kv.fork(parent, child) == [(0, 3), (1, 4)]
        assert child.num_computed_tokens == 5
        kv.check_invariants()
        assert kv.admit(make("x", [1]), 1)
        assert kv.fork(parent, make("d", range(5))) is None
        kv.check_invariants()

    @pytest.mark.parametrize(("num_blocks", "length"), [(3, 13), (2, 9), (3, 0)])
    def test_no_slab_fits(self, num_blocks, length):
        with pytest.raises(ValueError, match=rf"slab of max_model_len {length}"):
            SlabKVManager(num_blocks, 4, max_model_len=length)

    def test_refusals(self):
        kv = SlabKVManager(3, 4, 12)
        request = make("0", [1])
        assert kv.admit(request, 1)
        with pytest.raises(ValueError, match="admitted already"):
            kv.admit(request, 1)
        with pytest.raises(ValueError, match="admitted already"):
            kv.fork(request, request)
        kv.release(request)
        with pytest.raises(ValueError, match="holds no blocks"):
            kv.release(request)
        assert kv.admit(request, 1)


class Manager(RuleBasedStateMachine):
    """Tables with hits, growth, fork, copy on write, windows: every slot means what it should."""

    def __init__(self):
        super().__init__()
        self.kv = None
        self.live: list[Request] = []
        self.gone: list[Request] = []
        self.names = 0

    @precondition(lambda self: self.kv is None)
    @rule(
        num_blocks=st.integers(1, 9),
        block_size=st.integers(1, 3),
        caching=st.booleans(),
        window=st.sampled_from([None, None, 1, 3, 4]),
        watermark=st.sampled_from([0.0, 0.3]),
    )
    def begin(self, num_blocks, block_size, caching, window, watermark):
        self.kv = KVManager(num_blocks, block_size, caching, watermark, window)
        self.store = ShadowStore(self.kv)

    def _state(self):
        kv = self.kv
        tables = {name: list(table) for name, table in kv.tables.items()}
        return kv.pool.free_blocks, tables, sorted(kv.prefix_cache), kv.stats.queries

    def _compute(self, request, num_tokens, copies=()):
        start = request.num_computed_tokens
        self.store.forward(Step(scheduled=[(request, start, num_tokens)], copies=list(copies)))
        request.num_computed_tokens = start + num_tokens
        self.kv.publish(request)

    @precondition(lambda self: self.kv)
    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from([None, "s"]),
        again=st.booleans(),
        data=st.data(),
    )
    def admit(self, tokens, salt, again, data):
        kv = self.kv
        if again and self.gone:  # a preempted request comes back
            request = self.gone.pop()
            request.status = RequestStatus.PREEMPTED
        else:
            request = Request(f"r{self.names}", tokens, SamplingParams(), salt)
            self.names += 1
        cached_before = request.num_cached_tokens
        hit = kv.cached_tokens(request)
        assert hit % kv.block_size == 0
        assert 0 <= hit < request.num_tokens
        chunk = data.draw(st.integers(1, request.num_tokens - hit))
        before, free = self._state(), kv.num_free
        if not kv.admit(request, hit + chunk):
            assert self._state() == before
            assert request.num_computed_tokens == 0
            return
        table = kv.tables[request.request_id]
        assert len(table) == blocks_needed(hit + chunk, kv.block_size)
        assert request.num_computed_tokens == hit
        if request.status is RequestStatus.PREEMPTED:
            assert request.num_cached_tokens == cached_before
            assert kv.stats.queries == before[3]
        if len(self.live):
            assert kv.num_free / kv.pool.num_blocks >= kv.watermark
        assert free - kv.num_free <= len(table)
        self.live.append(request)
        self._compute(request, chunk)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=4))
    def grow(self, data, tokens):
        kv = self.kv
        request = data.draw(st.sampled_from(self.live))
        request.token_ids += tokens
        left = request.num_tokens - request.num_computed_tokens
        if left == 0:
            return
        chunk = data.draw(st.integers(1, left))
        end = request.num_computed_tokens + chunk
        before, free, held = self._state(), kv.num_free, len(kv.tables[request.request_id])
        copies = kv.grow(request, end)
        if copies is None:
            assert self._state() == before
            return
        need = max(0, blocks_needed(end, kv.block_size) - held)
        assert free - kv.num_free == need + len(copies)
        self._compute(request, chunk, copies)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self.live))
        child = Request(f"r{self.names}", parent.token_ids, SamplingParams(), parent.extra_key)
        self.names += 1
        free = self.kv.num_free
        assert self.kv.fork(parent, child) == []
        assert self.kv.num_free == free
        self.live.append(child)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), comes_back=st.booleans())
    def release(self, data, comes_back):
        request = data.draw(st.sampled_from(self.live))
        self.kv.release(request)
        self.live.remove(request)
        request.num_computed_tokens = 0
        if comes_back:
            self.gone.append(request)

    @precondition(lambda self: self.kv)
    @rule()
    def reset(self):
        assert self.kv.reset_prefix_cache() == (self.kv.num_free == self.kv.pool.num_blocks)

    @invariant()
    def whole(self):
        if self.kv is None:
            return
        kv = self.kv
        kv.check_invariants()
        assert len(kv.prefix_cache) - kv.num_cached <= kv.pool.num_used
        for request in self.live:
            num_passed = num_passed_blocks(
                request.num_computed_tokens, kv.block_size, kv.sliding_window
            )
            table = kv.tables[request.request_id]
            assert [b < 0 for b in table] == [i < num_passed for i in range(len(table))]

    def teardown(self):
        for request in self.live:
            self.kv.release(request)
        if self.kv:
            assert self.kv.num_free == self.kv.pool.num_blocks
            self.kv.check_invariants()


TestManager = Manager.TestCase
TestManager.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
