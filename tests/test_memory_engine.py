"""The simulated server against the engine's own scheduler and block manager.

The engine counts a token when its keys and values are written, the simulation when it is
produced. So a request of prompt p in the engine behaves like one of prompt p - 1 here.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler, SchedulerConfig
from course.memory.policies import Paged, Slab
from course.memory.simulate import simulate, steps
from course.workload.requests import make_requests


def engine_steps(lengths, num_blocks, block_size, max_batch):
    """(batch, waiting, free blocks) in each step of the engine, and its preemptions."""
    manager = KVManager(num_blocks, block_size, prefix_caching=False)
    config = SchedulerConfig(max_batch, 10**6, chunked_prefill=False)
    scheduler = Scheduler(config, manager)
    for index, (prompt, output) in enumerate(lengths):
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        scheduler.add(Request(str(index), [1] * prompt, params))
    seen = []
    while scheduler.has_work:
        step = scheduler.schedule()
        seen.append((len(step.scheduled), len(scheduler.waiting), manager.num_free))
        scheduler.update(step, {request.request_id: 1 for request in step.samples})
    return seen, scheduler.num_preemptions


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 20), st.integers(1, 20)), min_size=1, max_size=25),
    st.integers(1, 6),
    st.integers(0, 20),
    st.sampled_from([2, 5, 100]),
)
def test_paged_simulation_and_engine_agree_in_every_step(lengths, block_size, spare, max_batch):
    num_blocks = -(-40 // block_size) + spare
    seen, preemptions = engine_steps(lengths, num_blocks, block_size, max_batch)
    requests = make_requests([(prompt - 1, output) for prompt, output in lengths])
    make = lambda: Paged(num_blocks * block_size, 100, block_size)  # noqa: E731
    run = [
        (step.batch, step.waiting, int(step.ledger.free + step.ledger.external) // block_size)
        for step in steps(requests, make(), max_batch=max_batch)
    ]
    assert run == seen
    assert simulate(requests, make(), max_batch=max_batch).num_preemptions == preemptions


def test_they_agree_on_a_longer_run_with_many_preemptions():
    lengths = np.random.default_rng(0).integers(2, 60, size=(150, 2)).tolist()
    seen, preemptions = engine_steps(lengths, 60, 4, 256)
    requests = make_requests([(prompt - 1, output) for prompt, output in lengths])
    run = list(steps(requests, Paged(240, 200, 4)))
    assert [(s.batch, s.waiting, int(s.ledger.free) // 4) for s in run] == seen
    assert preemptions > 50


def test_slabs_hold_as_many_as_the_engines_slabs():
    from course.engine.slab import SlabKVManager

    manager = SlabKVManager(num_blocks=48, block_size=4, max_model_len=64)
    slab = Slab(pool_tokens=48 * 4, max_model_len=64)
    admitted = []
    for number in range(5):
        request = Request(str(number), [1] * 5, SamplingParams(max_tokens=3))
        admitted.append((manager.admit(request, 5), slab.admit(str(number), 5, 3)))
    assert admitted == [(True, True)] * 3 + [(False, False)] * 2
