"""The C operations: right against PyTorch, and politely absent where they cannot be."""

import contextlib
import copy
import ctypes
import gc
import os
import pickle
import platform
import re
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.engine import LLM, SamplingParams, kv_cache, runner
from course.engine.attention_plan import AttentionPlan
from course.engine.native import attention, large_pages, library, linear
from course.engine.native import operations as native_operations
from course.engine.native.attention import can_copy, copy_to_slots
from course.engine.native.library import native_problem
from course.engine.native.operations import inverse_transform, largest
from course.engine.native.runner import NativeRunner
from course.engine.operations import NativeOperations, TorchOperations, operations
from course.engine.sampler import sample

PROBLEM = native_problem()
needs_native = pytest.mark.skipif(PROBLEM is not None, reason=f"no C operations: {PROBLEM}")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def draw(*shape, dtype=torch.float32, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def close(found, expected, dtype):
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected.double(), rtol=4 * eps, atol=4 * eps)


# --- the operations --------------------------------------------------------------------------


@needs_native
@DTYPES
@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("width", [1, 7, 64, 576])
def test_norm_and_swiglu(dtype, rows, width):
    native, plain = NativeOperations(dtype), TorchOperations()
    x, weight = draw(rows, width, dtype=dtype, seed=1), draw(width, dtype=dtype, seed=2)
    expected = plain.rms_norm(x.double(), weight.double(), 1e-5)
    close(native.rms_norm(x, weight, 1e-5), expected, dtype)
    both = draw(rows, 2 * width, dtype=dtype, seed=3, scale=5.0)
    before = both.clone()
    close(native.silu_mul(both), plain.silu_mul(both.double()), dtype)
    assert torch.equal(both, before)


@needs_native
def test_swiglu_at_the_ends():
    """Where exp would overflow or vanish, and NaN, which must not be swallowed."""
    gate = torch.tensor([[-3e38, -200.0, -88.0, -0.0, 88.0, 200.0, 1e30, float("nan")]])
    found = NativeOperations(torch.float32).silu_mul(torch.cat([gate, torch.ones(1, 8)], dim=1))
    expected = torch.nn.functional.silu(gate)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    odd = torch.full((1, 34), -1, dtype=torch.int32).view(torch.float32)  # any NaN, not only one
    assert NativeOperations(torch.float32).silu_mul(odd).isnan().all()


@needs_native
@DTYPES
@pytest.mark.parametrize("head_dim", [2, 6, 16, 64, 80])
def test_rope_turns_the_heads_asked_for_and_no_others(dtype, head_dim):
    positions = torch.tensor([0, 1, 2, 500, 8191])
    rate = 10000.0 ** (-torch.arange(head_dim // 2, dtype=torch.float64) / (head_dim // 2))
    x = draw(5, 7, head_dim, dtype=dtype, seed=4)
    native, plain = NativeOperations(dtype), TorchOperations()
    exact = plain.rope(x.double(), 4, plain.rope_angles(positions, rate, torch.float64))
    rest = x[:, 4:].clone()
    turned = native.rope(x, 4, native.rope_angles(positions, rate, dtype))
    close(turned, exact, dtype)
    assert torch.equal(x[:, 4:], rest)


@needs_native
@DTYPES
def test_rows_are_copied_to_their_slots_and_nowhere_else(dtype):
    keys = torch.full((2, 6, 4, 3, 8), float("nan"), dtype=dtype)
    values = keys.clone()
    qkv = draw(5, 9, 8, dtype=dtype, seed=5)
    k, v, slots = qkv[:, 3:6], qkv[:, 6:], torch.tensor([23, 0, 7, 8, 4])
    assert can_copy(keys, k, v)
    assert not can_copy(keys, k.double(), v)
    assert not can_copy(keys, k.transpose(1, 2), v)
    copy_to_slots(keys, values, 1, k, v, slots)
    assert torch.equal(keys[1].flatten(0, 1)[slots], k)
    assert torch.equal(values[1].flatten(0, 1)[slots], v)
    assert int((~keys.isnan()).sum()) == k.numel() == int((~values.isnan()).sum())


@needs_native
@pytest.mark.parametrize("slots", [[0, -1], [24, 1], [1 << 40, 0], [0, -(1 << 40)]])
def test_a_slot_outside_the_cache_is_an_error_and_not_a_crash(slots):
    """Whoever calls this has checked; a learner's cache may not have."""
    keys, values = torch.zeros(2, 6, 4, 1, 8), torch.zeros(2, 6, 4, 1, 8)
    rows = draw(2, 1, 8)
    with pytest.raises(IndexError, match=r"outside 0\.\.23"):
        copy_to_slots(keys, values, 0, rows, rows, torch.tensor(slots))
    with pytest.raises(ValueError, match="one int64"):
        copy_to_slots(keys, values, 0, rows, rows, torch.tensor([1, 2, 3]))
    assert not keys.any()
    assert not values.any()


@needs_native
@settings(max_examples=60, deadline=None)
@given(st.floats(-87, 88))
def test_bfloat16_is_rounded_to_nearest_even(number):
    """As PyTorch rounds; a norm of a row of one number is its sign, times the weight."""
    x, weight = torch.ones(1, 1, dtype=torch.bfloat16), torch.tensor([number]).bfloat16()
    assert NativeOperations(torch.bfloat16).rms_norm(x, weight, 0.0) == weight


def test_float16_and_other_devices_stay_with_pytorch():
    assert isinstance(operations(torch.device("cpu"), torch.float16), TorchOperations)
    assert isinstance(operations(torch.device("meta"), torch.float32), TorchOperations)


# --- the compiler --------------------------------------------------------------------------------

SCRIPT = """
import torch
from course.engine import LLM, SamplingParams
from course.engine.native.library import native_problem
from course.engine.native.operations import inverse_transform, largest
from course.engine.native.runner import NativeRunner
print(native_problem())
print(LLM("tiny").generate("abc", SamplingParams(max_tokens=8))[0].token_ids)
"""


def in_a_process(cache: Path, **changes) -> tuple[str, str]:
    """What native_problem says in a fresh process, and the tokens of a tiny model."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache)} | changes
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    problem, tokens = done.stdout.splitlines()
    return problem, tokens


def fake_compiler(tmp_path: Path, body: str) -> str:
    path = tmp_path / "fakecc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def problem_with(tmp_path, monkeypatch):
    """What loading says under changed variables, with a cache folder of its own."""

    def problem(**changes) -> str | None:
        for name, value in {"XDG_CACHE_HOME": str(tmp_path), **changes}.items():
            monkeypatch.setenv(name, value)
        try:
            library.load.__wrapped__(torch.float32)
        except library.NativeUnavailable as error:
            return str(error)
        return None

    problem.folder = tmp_path / "paged-attention-course"
    return problem


@needs_native
def test_without_a_compiler_the_engine_runs_and_gives_the_same_tokens(tmp_path):
    compiled, tokens = in_a_process(tmp_path / "a")
    assert compiled == "None"
    problem, same = in_a_process(tmp_path / "b", PATH="/nowhere", CC="nothing-there")
    assert "no C compiler" in problem
    assert same == tokens


@needs_native
def test_what_was_compiled_is_used_again_and_nothing_half_made_is_left(problem_with):
    assert problem_with() is None
    assert [path.suffix for path in problem_with.folder.iterdir()] == [".so"]
    assert problem_with(PATH="/nowhere", CC="nothing-there") is None
    assert "COURSE_NATIVE=0" in problem_with(COURSE_NATIVE="0")


@needs_native
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'fakecc: no licence' >&2; exit 1", "no licence"),
        ("for last; do :; done; echo nonsense > $last", "cannot be loaded"),
        ("exit 0", "cannot be loaded"),
    ],
)
def test_a_compiler_that_fails_is_said_to(tmp_path, problem_with, body, said):
    assert said in problem_with(CC=fake_compiler(tmp_path, body))


@needs_native
def test_a_damaged_file_in_the_cache_is_compiled_again(problem_with):
    assert problem_with() is None
    (made,) = problem_with.folder.iterdir()
    whole = made.read_bytes()
    for damaged in (whole[:1000], b"", bytes(len(whole))):
        made.unlink()  # written over, it would change under this process, which has it loaded
        made.write_bytes(damaged)
        assert problem_with() is None
        assert made.stat().st_size == len(whole)


@needs_native
def test_a_cache_folder_that_cannot_be_written(problem_with):
    problem_with.folder.write_text("a file where the folder should be")
    assert problem_with() is None


@needs_native
def test_code_that_computes_wrongly_is_refused(tmp_path, monkeypatch):
    for path in library.sources():
        text = path.read_text().replace("squares / width", "squares")
        (tmp_path / path.name).write_text(text)
    source = tmp_path / "kernels.c"
    monkeypatch.setattr(library, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(library.NativeUnavailable, match="something else than PyTorch"):
        library.load.__wrapped__(torch.float32)


@needs_native
def test_one_openmp_in_the_process():
    """A second one would bring threads that fight PyTorch's for the cores."""
    script = textwrap.dedent("""
        import torch
        from course.engine.native.library import load
        load(torch.float32)
        with open("/proc/self/maps") as maps:
            print(len({line.split()[-1] for line in maps if "libgomp" in line}))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr


@needs_native
def test_every_function_has_a_signature():
    """A missing one would pass 64-bit addresses as 32-bit numbers."""
    names = set(library.SIGNATURES)
    text = library.SOURCE.read_text()
    defined = {
        line.split("(")[0].split()[-1]
        for line in text.splitlines()
        if line.startswith(("void ", "i64 "))
    }
    assert defined == names
    for name, letters in library.SIGNATURES.items():
        function = getattr(library.load(torch.float32), name)
        assert len(function.argtypes) == len(letters)
        assert (function.restype is None) == (f"void {name}(" in text)
        declared = text.split(f" {name}(", 1)[1].split(")")[0].split(",")
        kinds = ["p" if "*" in a else "i" if "i64" in a else "f" for a in declared]
        assert "".join(kinds) == letters
    assert ctypes.sizeof(ctypes.c_int64) == 8


@needs_native
@pytest.mark.parametrize(
    ("structure", "name"),
    [(library.Attention, "attention"), (library.Layer, "layer"), (library.Model, "model")],
)
def test_every_structure_has_the_fields_of_c(structure, name):
    text = "".join(path.read_text() for path in library.sources())
    body = text.split(f"}} {name};")[0].rsplit("typedef struct {", 1)[1]
    declared = []
    for line in re.sub(r"//.*", "", body).split(";")[:-1]:
        kind = "p" if "*" in line else "i" if "i64" in line else "f"
        declared += [(word.split()[-1].strip("*"), kind) for word in line.split(",")]
    kinds = {ctypes.c_int64: "i", ctypes.c_float: "f"}
    assert [(field, kinds.get(kind, "p")) for field, kind in structure._fields_] == declared


# --- all layers in one call ----------------------------------------------------------------------


def engine(dtype, **more):
    torch.manual_seed(0)
    return LLM("tiny", dtype=dtype, num_blocks=200, block_size=4, **more)


PROMPTS = [[7] * 3, list(range(50, 91)), [9, 8, 7, 6], list(range(60))]


def logits_of(llm, prompts, params):
    """All logits that the engine samples from, by request."""
    seen = []
    sampled = runner.sample

    def note(logits, *rest):
        seen.append(logits.clone())
        return sampled(logits, *rest)

    with mock.patch.object(runner, "sample", note):
        tokens = [answer.token_ids for answer in llm.generate(prompts, params)]
    return seen, tokens


@needs_native
@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("more", [{}, {"max_num_batched_tokens": 16}])
def test_one_call_computes_what_the_layers_do_one_by_one(dtype, threads, more):
    """Bit for bit: prompts, chunks of prompts, decode, blocks in any order."""
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3)).tolist()
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        llm = engine(dtype, block_order=order, **more)
        assert isinstance(llm.core.runner, NativeRunner)
        llm.cache.keys.fill_(float("nan"))
        llm.cache.values.fill_(float("nan"))
        whole, tokens = logits_of(llm, PROMPTS, params)
        other = engine(dtype, block_order=order, **more)
        other.core.runner = runner.Runner(
            other.model, other.cache, other.kv_manager.tables, "native"
        )
        one_by_one, same_tokens = logits_of(other, PROMPTS, params)
    finally:
        torch.set_num_threads(before)
    assert tokens == same_tokens
    assert len(whole) == len(one_by_one)
    for a, b in zip(whole, one_by_one, strict=True):
        assert torch.equal(a, b)
    assert not any(logits.isnan().any() for logits in whole)


@needs_native
@DTYPES
def test_a_decoded_token_does_not_depend_on_its_company(dtype):
    """Sums are added in the same order whoever shares the batch, so even the bits are the same."""
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    together, _ = logits_of(engine(dtype, max_num_batched_tokens=1024), PROMPTS, params)
    for number, prompt in enumerate(PROMPTS):
        alone, _ = logits_of(engine(dtype), [prompt], params)
        for step, (a, b) in enumerate(zip(together, alone, strict=True)):
            assert torch.equal(a[number], b[0]), (number, step)


def attended(lens, tables, counts, q, keys, values, backend="native", **more):
    """Attention of sequences that have such lengths, tables and numbers of query tokens."""
    starts = torch.tensor([0, *counts]).cumsum(0)
    plan = AttentionPlan(tables, lens, starts, block_size=keys.shape[1], backend=backend, **more)
    return plan.attend(q, keys, values, return_lse=True)


@needs_native
@DTYPES
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_shared_prefix_is_read_once_and_changes_no_bit(dtype, data):
    """Tokens whose tables begin alike go through the prefix together: each row's result is the one
    it has alone. Beside them others, prompts too; blocks anywhere, NaN in what nobody sees."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    group, num_kv_heads = data.draw(
        st.sampled_from([(1, 2), (2, 1), (3, 3), (5, 1), (8, 2), (64, 1)])
    )
    block_size = data.draw(st.sampled_from([1, 5, 16, 40]))
    head_dim = data.draw(st.sampled_from([16, 40, 64, 128]))
    prefix = data.draw(st.integers(0, 150))
    family = data.draw(st.integers(1, 45))
    lens = [prefix + int(n) for n in rng.integers(1, 50, family)] + [
        int(n) for n in rng.integers(1, 90, 3)
    ]
    counts = [1] * family + [1, int(rng.integers(1, lens[-2] + 1)), 1]
    need = [-(-n // block_size) for n in lens]
    ids = rng.permutation(sum(need)).tolist()
    tables = [[ids.pop() for _ in range(n)] for n in need]
    for table in tables[1:family]:
        whole = prefix // block_size
        table[:whole] = tables[0][:whole]
    order = rng.permutation(len(lens)).tolist()
    lens, tables, counts = ([x[i] for i in order] for x in (lens, tables, counts))
    shape = sum(need), block_size, num_kv_heads, head_dim
    keys, values = (
        torch.full(shape, torch.nan, dtype=dtype),
        torch.full(shape, torch.nan, dtype=dtype),
    )
    for length, table in zip(lens, tables, strict=True):
        for block, first in zip(table, range(0, length, block_size), strict=True):
            used = min(block_size, length - first)
            for cache in keys, values:
                seed = int(rng.integers(2**31))
                new = draw(used, num_kv_heads, head_dim, dtype=dtype, seed=seed)
                cache[block, :used] = torch.where(
                    cache[block, :used].isnan(), new, cache[block, :used]
                )
    q = draw(sum(counts), group * num_kv_heads, head_dim, dtype=dtype, seed=family)
    out, lse = attended(lens, tables, counts, q, keys, values)
    alone = [
        attended([n], [table], [count], rows, keys, values)
        for n, table, count, rows in zip(lens, tables, counts, q.split(counts), strict=True)
    ]
    assert torch.equal(out, torch.cat([each for each, _ in alone]))
    assert torch.equal(lse, torch.cat([each for _, each in alone]))
    expected, their_lse = attended(lens, tables, counts, q, keys, values, "reference")
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out, expected, rtol=8 * eps, atol=16 * eps)
    torch.testing.assert_close(lse, their_lse, rtol=1e-5, atol=1e-5)


def items_of(tables, lens, group=3, **more):
    plan = AttentionPlan(tables, lens, block_size=16, backend="native", **more)
    made = attention.NativeAttention(plan.batch, torch.device("cpu"))
    parts, _ = made._parts(attention.MOST_ROWS // group)
    parts, items = made._items(parts, group)
    return [(parts[a : a + n, 0].tolist(), shared) for a, n, shared in items.tolist()]


@needs_native
def test_who_reads_a_prefix_together():
    shared = [7, 3, 9, 5]  # 64 tokens, which is two tiles
    tables = [[*shared, 20 + i] for i in range(4)] + [[8, 6]] + [[7, 3, 40 + i] for i in range(2)]
    lens = [65, 70, 66, 80, 32, 33, 34]
    assert sorted(items_of(tables[:5], lens[:5])) == [([0, 1, 2, 3], 64), ([4], 0)]
    # All that begin alike are one family, whose prefix is the shortest: 32 tokens, a tile.
    assert sorted(items_of(tables, lens)) == [([0, 1, 2], 32), ([3, 5, 6], 32), ([4], 0)]
    two = items_of(tables[:2], lens[:2])  # six rows: as quick alone
    assert sorted(two) == [([0], 0), ([1], 0)]
    window = items_of(tables[:4], lens[:4], sliding_window=20)
    assert sorted(window) == [([i], 0) for i in range(4)]
    many = items_of([[*shared, 20 + i] for i in range(64)], [65] * 64)
    assert sorted(i for members, _ in many for i in members) == list(range(64))
    assert max(len(members) for members, _ in many) * 3 <= attention.MOST_ROWS
    assert {shared for _, shared in many} == {64}


@needs_native
@DTYPES
def test_a_row_of_a_chunk_is_the_same_as_decoded(dtype):
    """Prefill and decode go through the same tiles in the same order."""
    keys, values = (draw(9, 16, 3, 64, dtype=dtype, seed=n) for n in (1, 2))
    q = draw(130, 9, 64, dtype=dtype, seed=3)
    table = [4, 0, 8, 2, 6, 1, 7, 3, 5]
    whole, _ = attended([130], [table], [130], q, keys, values)
    for position in (0, 1, 30, 31, 32, 63, 64, 100, 129):
        row = q[position : position + 1]
        one, _ = attended([position + 1], [table], [1], row, keys, values)
        assert torch.equal(one[0], whole[position]), position


@needs_native
def test_who_puts_something_else_in_its_place_is_served_by_it():
    llm = engine(torch.float32)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    expected = llm.generate([[1, 2, 3]], params)[0].token_ids
    calls = []

    def write(layer, *rest):
        calls.append(layer)
        return type(llm.cache).write(llm.cache, layer, *rest)

    llm.cache.write = write
    llm.kv_manager.reset_prefix_cache()
    assert llm.generate([[1, 2, 3]], params)[0].token_ids == expected
    assert calls
    del llm.cache.write
    calls.clear()
    llm.cache.keys = llm.cache._tensors[0] = llm.cache.keys.clone()  # a new place in memory
    llm.kv_manager.reset_prefix_cache()
    assert llm.generate([[1, 2, 3]], params)[0].token_ids == expected


@needs_native
def test_a_learners_runner_or_cache_does_its_own_work(tmp_path, monkeypatch):
    from course.practice import learner_engine

    monkeypatch.setenv("COURSE_MY_ENGINE", str(tmp_path))

    class Runner(runner.Runner):
        def run(self, step):
            return super().run(step)

    class PagedKVCache(kv_cache.PagedKVCache):
        def write(self, *args):
            return super().write(*args)

    def used(**how) -> str:
        with learner_engine(**how):
            return type(engine(torch.float32).core.runner).__name__
        raise AssertionError("the block was closed")

    assert used() == "NativeRunner"
    assert type(engine(torch.float32).core.runner) is NativeRunner
    for mine in (Runner, PagedKVCache):
        assert used(force={mine.__name__: mine}) == "Runner"


@needs_native
def test_weights_that_are_replaced_are_used():
    """Not the old ones, whose memory may be somebody else's by now."""
    params = SamplingParams(max_tokens=3, ignore_eos=True)

    def changed(llm):
        llm.generate([[1, 2, 3]], params)
        layer = llm.model.layers[1]
        layer.attention_norm = layer.attention_norm * 2
        layer.mlp_norm.data = torch.cat([layer.mlp_norm * 3] * 2)[::2]  # not contiguous
        o = draw(layer.o.out_features, layer.o.in_features, seed=1)
        layer.o = linear.Linear(o)
        llm.model.layers[0].down.weight = draw(
            layer.down.out_features, layer.down.in_features, seed=2
        )  # as a checkpoint has it
        llm.kv_manager.reset_prefix_cache()
        return logits_of(llm, [[1, 2, 3]], params)

    plain = engine(torch.float32)
    plain.core.runner = runner.Runner(plain.model, plain.cache, plain.kv_manager.tables, "native")
    (found, tokens), (expected, same) = changed(engine(torch.float32)), changed(plain)
    assert tokens == same
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=0, atol=0)


@needs_native
@pytest.mark.parametrize("where", ["forward", "logits", "_norm", "subclass", "class", "layer", "o"])
def test_hooks_are_called(where):
    calls = []

    def hooked(method):
        def call(*args, **kwargs):
            calls.append(1)
            return method(*args, **kwargs)

        return call

    llm = engine(torch.float32)
    model = llm.model
    if where == "subclass":
        owner = type("Mine", (type(model),), {"forward": hooked(type(model).forward)})
        model.__class__ = owner
        llm = LLM((model, llm.tokenizer), num_blocks=20)
    elif where == "layer":
        llm.cache.layer = hooked(llm.cache.layer)
    elif where == "o":
        model.layers[0].o = hooked(model.layers[0].o)
    elif where != "class":
        setattr(model, where, hooked(getattr(model, where)))
    patch = mock.patch.object(type(model), "forward", hooked(type(model).forward))
    with patch if where == "class" else contextlib.nullcontext():
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True))
    assert calls


@needs_native
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_users_default_dtype_changes_nothing(dtype):
    """Results are written by address: a tensor of another width would be garbage, or overrun."""
    x, weight = draw(3, 8), draw(70, 8, seed=1)
    q, cache = draw(1, 2, 16), draw(2, 4, 1, 16)
    plans = {
        backend: AttentionPlan([[0]], [3], block_size=4, backend=backend)
        for backend in ("reference", "native")
    }
    expected = plans["reference"].attend(q, cache, cache, return_lse=True)
    torch.set_default_dtype(dtype)
    try:
        found = linear.Linear(weight).floats(x)
        attended = plans["native"].attend(q, cache, cache, return_lse=True)
        assert library.load.__wrapped__(torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, x @ weight.T)
    torch.testing.assert_close(attended, expected)


@needs_native
@pytest.mark.parametrize("make", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_an_engine_can_be_copied(make):
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    llm = engine(torch.float32)
    expected = llm.generate(PROMPTS, params)
    other = make((llm.model, llm.tokenizer))
    again = LLM(other, num_blocks=200, block_size=4)
    if make is copy.deepcopy:
        again = make(llm)
        again.kv_manager.reset_prefix_cache()
        assert again.core.runner.model.cache is again.cache is not llm.cache
    assert isinstance(again.core.runner, NativeRunner)
    found = again.generate(PROMPTS, params)
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="not run: needs Linux's mprotect")
@DTYPES
@pytest.mark.parametrize("head_dim", [8, 40, 64, 100])
def test_nothing_behind_the_cache_is_read(dtype, head_dim):
    """The cache ends where memory does: one cell further and this process of its own dies."""
    script = textwrap.dedent(f"""
        import ctypes, mmap
        import torch
        from course.engine.attention_plan import AttentionPlan
        libc, page = ctypes.CDLL(None), mmap.PAGESIZE
        dtype, head_dim, size = {dtype}, {head_dim}, {dtype}.itemsize

        def at_the_end(*shape):
            count = torch.Size(shape).numel()
            pages = -(-count * size // page)
            memory = mmap.mmap(-1, (pages + 1) * page)
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            end = whole.data_ptr() + pages * page
            assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0
            begin = pages * page - count * size
            return whole[begin : begin + count * size].view(dtype).view(shape), memory

        for length, queries in ((5, 1), (10, 3), (35, 1), (35, 2), (40, 40), (70, 20)):
            blocks = length // 5  # the last token is in the last slot of all
            (keys, one), (values, two) = (at_the_end(blocks, 5, 1, head_dim) for _ in "kv")
            keys[:], values[:] = 0.5, torch.randn(values.shape)
            plan = AttentionPlan(
                torch.arange(blocks).int()[None], torch.tensor([length]),
                torch.tensor([0, queries]), block_size=5, backend="native",
            )
            q = torch.randn(queries, 3, head_dim).to(dtype)
            assert plan.attend(q, keys, values).isfinite().all()
        print("alive")
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "alive\n", f"{done.returncode}: {done.stderr[-600:]}"


@needs_native
def test_a_thread_with_a_small_stack():
    """What attention keeps for itself is larger than this stack. In a process, for it would die."""
    script = textwrap.dedent("""
        import threading
        from course.engine import LLM, SamplingParams
        llm = LLM("tiny", num_blocks=100, block_size=4)
        threading.stack_size(256 * 1024)
        thread = threading.Thread(
            target=lambda: print(llm.generate([[7] * 40], SamplingParams(max_tokens=4)))
        )
        thread.start()
        thread.join()
    """)
    env = os.environ | {"OMP_STACKSIZE": "256k"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Completion" in done.stdout


@needs_native
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    script = textwrap.dedent("""
        import os
        import torch
        from course.engine import LLM, SamplingParams
        torch.set_num_threads(2)
        params = SamplingParams(max_tokens=2)
        llm = LLM("tiny", num_blocks=100)
        expected = llm.generate([[7] * 200], params)[0].token_ids
        child = os.fork()
        if child == 0:
            llm.kv_manager.reset_prefix_cache()
            os._exit(llm.generate([[7] * 200], params)[0].token_ids != expected)
        print(os.waitpid(child, 0)[1], flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.communicate(timeout=60)[0].strip() == "0"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the child, too


@needs_native
def test_a_user_without_a_home(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(library.Path, "home", no_home)
    folder = library._cache_folder()
    assert folder.parent.is_dir()
    folder.parent.rmdir()


@needs_native
def test_a_norm_weight_of_another_width_is_an_error():
    norm = NativeOperations(torch.float32).rms_norm
    with pytest.raises(ValueError, match="rows of 8"):
        norm(draw(2, 8), draw(7), 1e-5)
    spread = torch.ones(1).expand(8)
    assert torch.equal(norm(draw(2, 8), spread, 1e-5), norm(draw(2, 8), torch.ones(8), 1e-5))


@needs_native
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_another_backend_has_the_plain_runner(backend):
    llm = engine(torch.float32, attention_backend=backend)
    assert type(llm.core.runner) is runner.Runner


@needs_native
@DTYPES
def test_a_row_of_a_product_is_the_same_among_any_number_of_rows(dtype):
    """However rows are put into tiles: 17 of them, say, are not two tiles and a row alone."""
    x, product = draw(60, 800, dtype=dtype, seed=1), linear.Linear(draw(70, 800, dtype=dtype) / 20)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in range(1, 61):
        assert torch.equal(product(x[:rows]), alone[:rows]), rows


@needs_native
@pytest.mark.skipif(platform.machine() != "x86_64", reason="not run: flags of x86-64")
@pytest.mark.parametrize(
    ("dtype", "processor"),
    [
        (torch.float32, "x86-64"),
        (torch.bfloat16, "haswell"),
        (torch.bfloat16, "skylake-avx512"),
    ],
)
def test_as_other_processors_would_be_given_it(dtype, processor, tmp_path, monkeypatch):
    """Without the instructions of this one: compiled for an older one, and run here if it can."""
    flags = Path("/proc/cpuinfo").read_text()
    needed = {"haswell": "avx2", "skylake-avx512": "avx512bw"}.get(processor, "")
    if needed not in flags:
        pytest.skip(f"not run: this processor has no {needed}")
    march = tuple(f.replace("native", processor) for f in library.FLAGS)
    monkeypatch.setattr(library, "FLAGS", (*march, "-Wno-psabi"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = library.load.__wrapped__(dtype)
    monkeypatch.setattr(linear, "load", lambda _: other)
    for rows in (1, 3, 4, 5, 8, 13, 17, 18, 100):
        x, weight = draw(rows, 400, dtype=dtype, seed=6), draw(70, 400, dtype=dtype, seed=7) / 20
        found = linear.Linear(weight)(x)
        exact = x.double() @ weight.double().T
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), exact, rtol=4 * eps, atol=16 * eps)
    monkeypatch.setattr(attention, "load", lambda _: other)
    for group, head_dim, window in ((1, 64, None), (3, 80, None), (4, 128, 9), (7, 16, None)):
        q = draw(2 * 5, 2 * group, head_dim, dtype=dtype, seed=8)
        keys, values = (draw(20, 8, 2, head_dim, dtype=dtype, seed=n) for n in (9, 10))
        about = [[3, 19, 0, 7, 11], [5, 2, 8, 1, 17]], [40, 33], [0, 1, 10]
        plans = [
            AttentionPlan(*about, block_size=8, sliding_window=window, backend=backend)
            for backend in ("native", "reference")
        ]
        found, exact = (plan.attend(q, keys, values) for plan in plans)
        torch.testing.assert_close(found, exact, rtol=4 * eps, atol=8 * eps)


# --- the choice of a token -----------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("width", [1, 5, 63, 64, 65, 500, 49152])
def test_the_largest_of_a_row_as_pytorch_finds_it(width):
    generator = torch.Generator().manual_seed(width)
    x = torch.randint(-3, 3, (9, width), generator=generator).float()  # with many equals
    x[1] = float("-inf")
    x[2, width // 2] = float("inf")
    x[3, width - 1], x[3, width // 3] = float("nan"), float("nan")
    x[4] = -0.0
    x[5, -1] = 7.0
    for found, expected in zip(largest(x), x.max(dim=-1), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@needs_native
@DTYPES
def test_logits_as_floats_are_the_same_numbers(dtype):
    x, weight = draw(5, 64, dtype=dtype, seed=8), draw(100, 64, dtype=dtype, seed=9)
    product = linear.Linear(weight)
    assert torch.equal(product.floats(x), product(x).float())
    plain = linear.Linear(weight.half())
    assert torch.equal(plain.floats(x.half()), plain(x.half()).float())


@needs_native
@DTYPES
@pytest.mark.parametrize("rows", [1, 5, 97, 200])
@pytest.mark.parametrize("cols", [1, 31, 32, 200, 1000])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_largest_is_found_on_the_way(dtype, rows, cols, threads):
    """With the values 0, 1 and 2 there are many equals, and any thread may come to one first."""
    generator = torch.Generator().manual_seed(rows * cols)
    x = torch.zeros(rows, 8, dtype=dtype)
    x[torch.arange(rows), torch.arange(rows) % 8] = 1.0
    weight = torch.randint(0, 3, (cols, 8), generator=generator).to(dtype)
    weight[:, 1] = -weight[:, 1]  # with -0 among them
    weight[:, 2], weight[cols // 2, 3] = float("-inf"), float("inf")
    weight[cols - 1, 4], weight[cols // 3, 4] = float("nan"), float("nan")
    weight[:, 2:5] = torch.where(weight[:, 2:5] == 0, 1.0, weight[:, 2:5])
    x = torch.where(x == 0, torch.zeros((), dtype=dtype), x)
    product, before = linear.Linear(weight), torch.get_num_threads()
    out = torch.full((rows, cols), 99.0)
    torch.set_num_threads(threads)
    try:
        found = product.floats_and_largest(x, out)
    finally:
        torch.set_num_threads(before)
    assert found[0] is out
    torch.testing.assert_close(out, product.floats(x), rtol=0, atol=0, equal_nan=True)
    for got, expected in zip(found[1:], out.max(dim=-1), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@needs_native
def test_what_is_known_of_logits_is_known_of_no_others():
    """A step asks for the largest of its own logits; whoever changes logits gets what they hold."""
    llm = LLM("tiny", num_blocks=64, block_size=4)
    asked = []

    def sampled(logits, *args):
        known = native_operations._known
        asked.append(known is not None and known[0]() is logits)
        found, expected = largest(logits), logits.max(dim=-1)
        assert all(map(torch.equal, found, expected))
        return sample(logits, *args)

    with mock.patch.object(runner, "sample", sampled):
        llm.generate([[7] * 9, [5] * 3], SamplingParams(max_tokens=5, ignore_eos=True))
    assert asked == [True] * 5
    assert native_operations._known is None
    hidden = torch.randn(3, llm.model.config.hidden_size, dtype=llm.model.dtype)
    logits = llm.core.runner.model.logits(hidden)
    logits[:, 11] = 1e6
    assert largest(logits)[1].tolist() == [11] * 3
    failing = mock.patch.object(runner, "sample", side_effect=ZeroDivisionError)
    with failing, pytest.raises(ZeroDivisionError):
        llm.generate([[7] * 9])
    assert native_operations._known is None


# --- large pages ---------------------------------------------------------------------------------


@pytest.fixture
def no_region(monkeypatch):
    monkeypatch.setattr(large_pages, "_region", None)
    monkeypatch.setattr(large_pages, "_used", 0)


def test_tensors_in_large_pages_are_the_same_and_keep_apart(no_region):
    sizes = [
        large_pages.SMALLEST,
        large_pages.SMALLEST + 2,
        3 << 20,
        large_pages.REGION + 2,
        1 << 20,
    ]
    made = [draw(size // 2, dtype=torch.bfloat16, seed=size) for size in sizes * 4]
    moved = [large_pages.in_large_pages(tensor) for tensor in made]
    assert all(map(torch.equal, made, moved))
    places = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in moved)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))
    assert all(begin % large_pages.ALIGNMENT == 0 for begin, _ in places)
    small = draw(8)
    assert large_pages.in_large_pages(small) is small
    if sys.platform == "linux":
        assert moved[0] is not made[0]
    shaped = draw(40, 70, 30)
    assert torch.equal(large_pages.in_large_pages(shaped), shaped)
    again = pickle.loads(pickle.dumps(moved[1]))
    assert torch.equal(again, made[1])
    assert torch.equal(copy.deepcopy(moved[2]), made[2])


@pytest.mark.parametrize("why", ["another system", "refused"])
def test_where_there_are_no_large_pages_tensors_stay_where_they_are(no_region, monkeypatch, why):
    if why == "another system":
        monkeypatch.setattr(large_pages.sys, "platform", "darwin")
    else:
        refusing = mock.Mock()
        refusing.madvise.return_value = -1
        monkeypatch.setattr(large_pages.ctypes, "CDLL", lambda name: refusing)
    tensor = draw(1 << 20)
    assert large_pages.in_large_pages(tensor) is tensor


def test_a_region_is_given_back_with_the_last_of_its_tensors(no_region):
    first = large_pages.in_large_pages(draw(1 << 20))
    if sys.platform != "linux":
        pytest.skip("not run: large pages are of Linux")
    alive = weakref.ref(first.untyped_storage())
    rest = [large_pages.in_large_pages(draw(4 << 20)) for _ in range(3)]  # 48 MiB: another region
    assert alive() is not None
    del first, rest
    large_pages._region = None
    gc.collect()
    assert alive() is None


# --- threads -------------------------------------------------------------------------------------


@needs_native
def test_more_threads_than_processors_wait_for_each_other_politely():
    """Each phase waits for a thread that may have no processor: those that wait give theirs. Where
    they do not, this takes a hundred times the work of one thread."""
    llm, before = LLM("tiny", num_blocks=400), torch.get_num_threads()
    prompts = [[n] * 150 for n in range(5, 15)]
    params = SamplingParams(max_tokens=8, ignore_eos=True)

    def serve(threads):
        torch.set_num_threads(threads)
        llm.kv_manager.reset_prefix_cache()
        worked = time.process_time()
        tokens = [c.token_ids for c in llm.generate(prompts, params)]
        return tokens, time.process_time() - worked

    try:
        serve(1)  # what is done once is done
        expected, alone = serve(1)
        found, crowded = serve(4 * (os.cpu_count() or 1))
    finally:
        torch.set_num_threads(before)
    assert found == expected
    assert crowded < 40 * alone


@needs_native
@pytest.mark.parametrize("width", [1, 7, 256, 257, 5000])
def test_the_place_that_a_number_falls_on(width, monkeypatch):
    generator = torch.Generator().manual_seed(width)
    weights = torch.rand(200, width, generator=generator)
    weights[weights < 0.3] = 0.0
    weights[:, width // 2] += 0.5
    u = torch.rand(200, 1, dtype=torch.float64, generator=generator)
    u[:3, 0] = torch.tensor([0.0, 1 - 2**-53, 0.5])
    found = inverse_transform(weights, u)
    assert (weights.gather(1, found) > 0).all()
    monkeypatch.setattr("course.engine.native.operations._is_ours", lambda _: False)
    same = found == inverse_transform(weights, u)
    same[1] = True  # so near to 1 that the order of the sums decides
    assert same.all()
