"""Decode graphs without a GPU: a tape stands for the CUDA graph, dense PyTorch for the kernels.

The tape does what a CUDA graph does. It records operations on tensors, with every number that the
host gave them, and replays those and nothing else: Python does not run again, and whoever asks a
tensor for its value while recording is refused. So a context length that is baked in stays baked
in here too. What only a GPU can show is the recording by CUDA itself, and the kernels under it.
"""

import math
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from course.engine.graphs import CudaGraph, DecodeGraphs, GraphRunner, use_graphs
from course.engine.kv_cache import PagedKVCache
from course.engine.llm import LLM, SamplingParams
from course.engine.native import linear
from course.engine.operations import TorchOperations
from course.engine.paged_attention import BackendUnavailable
from course.pins import ROOT


class Tape(TorchDispatchMode):
    """Stands for `CudaGraph`."""

    ASKS_FOR_VALUES = ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero")

    def __init__(self, work):
        super().__init__()
        self.entries, self.replays = [], 0
        work()  # as the real one does first
        with self:
            self.result = work()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.ASKS_FOR_VALUES:
            raise RuntimeError(f"{name} asks for a value while a graph is recorded")
        out = func(*args, **(kwargs or {}))
        self.entries.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        self.replays += 1
        now = {}

        def current(value):
            return now.get(id(value), value) if isinstance(value, torch.Tensor) else value

        for func, args, kwargs, then in self.entries:
            out = func(*tree_map(current, args), **tree_map(current, kwargs))
            many = isinstance(then, (tuple, list))
            pairs = zip(then, out, strict=True) if many else ((then, out),)
            now |= {id(a): b for a, b in pairs if isinstance(a, torch.Tensor)}
        return now[id(self.result)]


def dense_attention(buffers, block_size, sliding_window):
    """Stands for the kernels: reads tables and lengths from the buffers, whatever lies in them."""

    def attention(q, keys, values, *, scale):
        width = buffers.block_tables.shape[1]
        position = torch.arange(width * block_size)
        seen = position[None, :] < buffers.context_lens[:, None]
        if sliding_window is not None:
            seen = seen & (position[None, :] >= buffers.context_lens[:, None] - sliding_window)
        blocks = buffers.block_tables.long().repeat_interleave(block_size, 1)
        slots = torch.where(seen, blocks * block_size + position % block_size, 0)
        group = q.shape[1] // keys.shape[2]

        def rows(cache):
            found = cache.flatten(0, 1)[slots]  # [size, positions, num_kv_heads, head_dim]
            found = torch.where(seen[:, :, None, None], found, 0.0)  # NaN where nobody may read
            return found.repeat_interleave(group, 2)

        scores = torch.einsum("shd,sphd->shp", q, rows(keys)) * scale
        scores = scores.masked_fill(~seen[:, None, :], -1e30)
        weights = torch.where(seen[:, None, :], scores.softmax(-1), 0.0)
        return torch.einsum("shp,sphd->shd", weights, rows(values)), None

    return attention


class MaskingCache(PagedKVCache):
    """Leaves out slots of -1 on the device, as the write kernel does."""

    def _store(self, layer, k, v, slots):
        for cache, new in ((self.keys, k), (self.values, v)):
            rows = cache[layer].flatten(0, 1)
            kept = rows[slots.clamp(min=0)]
            is_new = (slots >= 0)[:, None, None]
            # Row 0 of the cache takes what is left out, as it is: unless a slot 0 is written too.
            order = (slots >= 0).to(torch.int64).argsort(stable=True)
            rows.index_put_((slots.clamp(min=0)[order],), torch.where(is_new, new, kept)[order])


def make_llm(**options):
    with mock.patch.object(linear, "can_pack", return_value=False):  # C code is not on the tape
        llm = LLM("tiny", num_blocks=64, block_size=4, max_num_seqs=6, **options)
    core = llm.core
    core.runner.model.ops = TorchOperations()
    cache = MaskingCache(core.cache.shape, 64, 4, dtype=core.cache.dtype, write_backend="torch")
    for tensor in (cache.keys, cache.values):
        tensor.fill_(math.nan)
    llm.cache = core.cache = core.runner.cache = cache
    return llm


SUBSTITUTES = {"make_graph": Tape, "make_attention": dense_attention}


@pytest.fixture
def pair():
    """The same engine with graphs and without."""
    llm = make_llm(attention_backend="torch", max_model_len=64)
    return (
        make_llm(attention_backend="torch", max_model_len=64),
        llm,
        use_graphs(llm, **SUBSTITUTES),
    )


def outputs(llm, prompts, params):
    return [done.token_ids for done in llm.generate(prompts, params)]


def test_the_same_tokens_and_contexts_grow_far_beyond_the_first(pair):
    """A context of 3 when the graph is recorded, of 50 when it is replayed last."""
    plain, llm, graphs = pair
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    assert outputs(llm, [[5, 6, 7]], params) == outputs(plain, [[5, 6, 7]], params)
    assert list(graphs.graphs) == [1]
    assert graphs.graphs[1][1].replays == 47  # the first token came with the prompt
    llm.check_invariants()


def test_batches_are_padded_and_shrink(pair):
    """Five requests in a graph of eight; they finish one after another, down to one."""
    plain, llm, graphs = pair
    prompts = [[n, n + 1, n + 2] * n for n in range(1, 6)]
    params = [SamplingParams(max_tokens=4 + 3 * n, ignore_eos=True) for n in range(5)]
    assert outputs(llm, prompts, params) == outputs(plain, prompts, params)
    assert sorted(graphs.graphs) == [1, 2, 4, 8]
    assert torch.equal(llm.cache.keys.isnan(), plain.cache.keys.isnan())  # no slot written besides
    for ours, theirs in (
        (llm.cache.keys, plain.cache.keys),
        (llm.cache.values, plain.cache.values),
    ):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_prompts_and_samples_mix_with_replays(pair):
    """Prompts run without a graph between replays; samples share blocks until one is copied."""
    plain, llm, _ = pair
    prompts = [[n, 3, 5, 8] * 5 for n in range(1, 5)]
    params = [
        SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.8, seed=n, n=1 + n % 2)
        for n in range(4)
    ]
    found, expected = (
        [[sample.token_ids for sample in done.samples] for done in engine.generate(prompts, params)]
        for engine in (llm, plain)
    )
    assert found == expected
    llm.check_invariants()


def hidden_states(llm, graphs=None):
    """Serve two requests; hidden states of every step of single tokens, by the graph or without."""
    seen = []
    model = llm.core.runner.model
    forward = model.forward

    def spying(token_ids, positions, attend):
        hidden = forward(token_ids, positions, attend)
        seen.append(hidden.clone())
        return hidden

    model.forward = spying
    llm.generate([[1, 2, 3], [4, 5, 6, 7, 8]], SamplingParams(max_tokens=20, ignore_eos=True))
    return seen


def test_hidden_states_agree_closely(pair):
    plain, llm, _ = pair
    ours, theirs = hidden_states(llm), hidden_states(plain)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_runs_without_a_graph(pair):
    plain, llm, graphs = pair
    graphs.max_model_len = 16  # as if the tables of the graphs were shorter than the engine's
    graphs.max_num_seqs = 2
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert outputs(llm, prompts, params) == outputs(plain, prompts, params)
    assert graphs.graphs == {}  # three at once
    assert outputs(llm, prompts[:1], params) == outputs(plain, prompts[:1], params)
    # Contexts of 4 to 16 were replayed, those of 17 to 22 were not.
    assert graphs.graphs[1][1].replays == 13


def test_an_error_in_a_replay_leaves_the_engine_whole(pair):
    plain, llm, graphs = pair
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    graph_of = graphs._record

    def failing(size):
        raise MemoryError("no room for a graph")

    graphs._record = failing
    with pytest.raises(MemoryError):
        llm.generate([[1, 2, 3]], params)
    llm.check_invariants()
    graphs._record = graph_of
    assert outputs(llm, [[1, 2, 3]], params) == outputs(plain, [[1, 2, 3]], params)


# --- and the tests can fail -----------------------------------------------------------------------


def test_a_length_that_is_baked_in_is_seen():
    """The fault itself: an attention made for the lengths that the graph was recorded with."""

    def baked(buffers, block_size, sliding_window):
        class Then:
            block_tables = buffers.block_tables
            context_lens = torch.full_like(buffers.context_lens, 4)

        return dense_attention(Then, block_size, sliding_window)

    llm = make_llm(attention_backend="torch")
    use_graphs(llm, make_graph=Tape, make_attention=baked)
    ours = hidden_states(llm)
    theirs = hidden_states(make_llm(attention_backend="torch"))
    assert any(
        (a - b).abs().max() > 1e-2 or a.isnan().any() for a, b in zip(ours, theirs, strict=True)
    )


def test_asking_for_a_length_while_recording_is_refused():
    def asking(buffers, block_size, sliding_window):
        attention = dense_attention(buffers, block_size, sliding_window)
        return lambda q, *cache, scale: (
            buffers.context_lens.max().item(),
            attention(q, *cache, scale=scale),
        )[1]

    llm = make_llm(attention_backend="torch")
    use_graphs(llm, make_graph=Tape, make_attention=asking)
    with pytest.raises(RuntimeError, match="asks for a value while a graph is recorded"):
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, ignore_eos=True))


def test_slots_of_an_earlier_step_that_stay_are_seen(monkeypatch):
    """Buffers that keep what finished requests left: their slots are written once more."""
    from course.engine.graphs import decode

    load = decode.Buffers.load

    def stale(self, inputs):
        before = self.slots.clone()
        load(self, inputs)
        self.slots[len(inputs.slots) :] = before[len(inputs.slots) :]

    monkeypatch.setattr(decode.Buffers, "load", stale)
    llm, plain = (make_llm(attention_backend="torch") for _ in range(2))
    graphs = use_graphs(llm, **SUBSTITUTES)
    prompts = [[n, n + 1] for n in range(1, 5)]
    params = [SamplingParams(max_tokens=8 if n < 3 else 4, ignore_eos=True) for n in range(4)]
    for engine in (llm, plain):
        outputs(engine, prompts, params)
    assert (graphs.graphs[4][0].slots[3:] >= 0).any()
    ours, theirs = (engine.cache.keys.nan_to_num() for engine in (llm, plain))
    assert not torch.equal(ours, theirs)


# --- where it is refused, and where it runs -------------------------------------------------------


def test_off_unless_asked_and_refused_on_a_cpu():
    llm = LLM("tiny", num_blocks=16)
    assert not isinstance(llm.core.runner, GraphRunner)
    with pytest.raises(BackendUnavailable, match="need an NVIDIA GPU"):
        use_graphs(llm)
    assert not isinstance(llm.core.runner, GraphRunner)
    assert DecodeGraphs.__init__.__defaults__[0] is CudaGraph


def test_refused_while_requests_are_served(pair):
    _, llm, graphs = pair
    assert use_graphs(llm) is graphs  # asking twice changes nothing
    other = make_llm(attention_backend="torch")
    stream = other.stream([1, 2, 3], SamplingParams(max_tokens=5))
    next(stream)
    with pytest.raises(RuntimeError, match="being served"):
        use_graphs(other, **SUBSTITUTES)
    stream.close()


@pytest.mark.slow
def test_the_kernels_over_static_buffers_in_the_interpreter():
    """The real attention and the real write kernel, by a stand-in that runs Python again."""
    pytest.importorskip("triton", reason="not run: triton is not installed here")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


INTERPRETED = """
import math
from course.engine.graphs import use_graphs
from course.engine.kv_cache import PagedKVCache
from course.engine.llm import LLM, SamplingParams

class Again:
    def __init__(self, work):
        self.replay = work
        work()

def serve(graphs):
    llm = LLM("tiny", num_blocks=32, block_size=4, max_num_seqs=4, max_model_len=48,
              attention_backend="triton" if graphs else "torch")
    core = llm.core
    writing = "triton" if graphs else "torch"
    cache = PagedKVCache(core.cache.shape, 32, 4, dtype=core.cache.dtype, write_backend=writing)
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.nan)
    llm.cache = core.cache = core.runner.cache = cache
    if graphs:
        graphs = use_graphs(llm, make_graph=Again)
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (12, 5, 8)]
    tokens = [done.token_ids for done in llm.generate([[1, 2, 3], [4, 5], [6] * 7], params)]
    if graphs:
        assert sorted(graphs.graphs) == [1, 2, 4], graphs.graphs
    return tokens, cache.keys.isnan()

(ours, written), (theirs, expected) = serve(True), serve(False)
assert ours == theirs, (ours, theirs)
assert (written == expected).all()
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: no NVIDIA GPU here")
def test_the_same_tokens_on_a_gpu():
    prompts = [[n, n + 1, n + 2] * n for n in range(1, 6)]
    params = [SamplingParams(max_tokens=10 + 5 * n, ignore_eos=True) for n in range(5)]
    plain, llm = (LLM("tiny", num_blocks=256, device="cuda") for _ in range(2))
    use_graphs(llm)
    for _ in range(2):
        assert outputs(llm, prompts, params) == outputs(plain, prompts, params)
