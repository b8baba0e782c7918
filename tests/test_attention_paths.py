"""The readable and the quick CPU attention against dense float64 (engine cases O, faults 5, 6)."""

import math
import warnings

import numpy as np
import pytest
import torch
from attention_cases import make_case
from hypothesis import given, settings
from hypothesis import strategies as st

from course.engine import attention_torch
from course.engine.paged_attention import (
    AttentionPlan,
    BackendUnavailable,
    available_backends,
    merge_attention_states,
    paged_attention,
)

# "native" is there where a C compiler is; test_native.py says what happens where none is.
NAMES = ["reference", "torch", *["native"][: available_backends()["native"] == "ok"]]
BOTH = pytest.mark.parametrize("backend", NAMES)
BS = 4  # the block size of most cases here


def run(case, backend, **options):
    return paged_attention(
        case.q,
        case.keys,
        case.values,
        **case.arguments,
        backend=backend,
        return_lse=True,
        **options,
    )


# --- against dense attention ---------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_edge_of_a_block_in_one_batch(backend, dtype):
    """O3, O4, O8, fault 62: lengths around the block, NaN in every slot not seen, -1 and worse."""
    lens = [1, BS - 1, BS, BS + 1, 2 * BS, 2 * BS + 1, 13]
    case = make_case(lens, block_size=BS, dtype=dtype, seed=1)
    case.check(*run(case, backend))


@BOTH
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 100, 256])
def test_block_sizes(backend, block_size):
    """O2, fault 61: also not powers of two, and longer than the sequence."""
    case = make_case([1, 33, 300], [1, 5, 1], block_size=block_size, head_dim=16, seed=2)
    case.check(*run(case, backend))


@BOTH
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_head_dims(backend, head_dim, group):
    """O9, fault 68."""
    case = make_case([5, 18], [1, 4], block_size=BS, head_dim=head_dim, group=group, seed=3)
    case.check(*run(case, backend))


@BOTH
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16, 32])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_groups(backend, group, num_kv_heads):
    """O9, faults 69 and 71: each query head reads its own KV head."""
    case = make_case(
        [5, 9], [1, 3], block_size=BS, head_dim=16, group=group, num_kv_heads=num_kv_heads, seed=4
    )
    case.check(*run(case, backend))


@BOTH
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 1000])
def test_sliding_windows_do_not_read_what_they_have_passed(backend, window):
    """A token sees itself and the W - 1 before it; passed blocks are -1 or worse in the table."""
    case = make_case([1, 4, 5, 30, 23], [1, 4, 1, 6, 1], block_size=BS, window=window, seed=5)
    case.check(*run(case, backend))


@pytest.mark.parametrize(
    "triples", [[(1, 1328), (5, 18), (129, 463)], [(1, 523), (1, 37), (1, 2011)]]
)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (5, 1)])
@pytest.mark.parametrize("window", [None, 64, 128, 256])
def test_mixed_batches_of_prefill_and_decode(triples, heads, window):
    """O1: (query, context) triples in one batch, bf16 and head dim 128, the quick path."""
    counts, lens = zip(*triples, strict=True)
    case = make_case(
        lens, counts, head_dim=128, num_kv_heads=heads[1], group=heads[0] // heads[1],
        dtype=torch.bfloat16, window=window, seed=6,
    )  # fmt: skip
    for backend in NAMES[1:]:
        case.check(*run(case, backend))


@BOTH
def test_a_chunk_sees_the_cached_tokens_and_itself_up_to_the_row(backend):
    """Fault 73: 4 queries after 4 cached tokens; row i sees 4 + i + 1 keys."""
    case = make_case([8, 4], [4, 4], block_size=BS, seed=7)
    case.check(*run(case, backend))
    whole, _ = run(case, backend)
    changed = case.values.clone()
    last_slot = (int(case.block_tables[0, 1]), 3)  # position 7, which only the last row sees
    changed[last_slot] += 100
    out = paged_attention(case.q, case.keys, changed, **case.arguments, backend=backend)
    assert torch.equal(out[:3], whole[:3])
    assert not torch.allclose(out[3], whole[3])


@BOTH
def test_an_empty_context_gives_zeros(backend):
    """Fault 64: zeros and lse -inf, alone or beside others; an empty batch is no error either."""
    case = make_case([0, 9, 0, 6], [1, 1, 2, 3], block_size=BS, seed=8)
    out, lse = run(case, backend)
    case.check(out, lse)
    assert (out[0] == 0).all()
    assert (lse[0] == -math.inf).all()
    nobody = make_case([0], block_size=BS, seed=8)
    nobody.check(*run(nobody, backend))
    empty = paged_attention(
        case.q[:0], case.keys, case.values, torch.zeros((0, 1), dtype=torch.int32),
        torch.zeros(0, dtype=torch.int32), backend=backend,
    )  # fmt: skip
    assert empty.shape == (0, 4, 64)


@BOTH
def test_sequences_without_a_query_in_this_step(backend):
    case = make_case([7, 9, 5], [1, 0, 2], block_size=BS, seed=9)
    case.check(*run(case, backend))


@BOTH
def test_where_the_blocks_lie_changes_no_bit(backend):
    """O5: the same content in block order 0, 1, 2 and in random order."""
    sizes = {"context_lens": [1, 30, 17], "num_queries": [1, 1, 5], "block_size": BS, "seed": 10}
    in_order, scattered = (make_case(**sizes, shuffled=s) for s in (False, True))
    assert torch.equal(in_order.q, scattered.q)
    assert not torch.equal(in_order.block_tables, scattered.block_tables)
    assert torch.equal(run(in_order, backend)[0], run(scattered, backend)[0])


@BOTH
def test_scores_beyond_the_range_of_half_precision(backend):
    """Fault 75: q . k is 102,400 where half precision ends at 65,504; scaled it is 12,800."""
    case = make_case([9, 6], [1, 3], block_size=BS, dtype=torch.float16, seed=11)
    q, keys = torch.full_like(case.q, 40), case.keys.clone()
    keys[~keys.isnan()] = 40
    out = paged_attention(q, keys, case.values, **case.arguments, backend=backend)
    for seq, rows in ((0, [9]), (1, [4, 5, 6])):  # equal scores: out is the mean of the values
        first = int(case.query_start_loc[seq])
        for row, visible in enumerate(rows):
            blocks = case.block_tables[seq, : -(-visible // BS)].long()
            v = case.values[blocks].flatten(0, 1)[:visible].double().mean(0)
            expected = v.repeat_interleave(2, dim=0)
            assert torch.allclose(out[first + row].double(), expected, atol=4e-3)


@BOTH
def test_a_block_id_past_65535(backend):
    """Fault 58: no 16 bits anywhere."""
    block_id = 65_536
    keys = torch.zeros(block_id + 1, 1, 1, 16)
    keys[block_id] = 1
    out = paged_attention(
        torch.ones(1, 1, 16), keys, keys, torch.tensor([[block_id]]), torch.tensor([1]),
        backend=backend,
    )  # fmt: skip
    assert (out == 1).all()


@BOTH
def test_scale_is_a_factor_and_has_a_default(backend):
    case = make_case([9], block_size=BS, head_dim=16, seed=12)
    doubled = paged_attention(case.q * 2, case.keys, case.values, **case.arguments, backend=backend)
    by_scale = paged_attention(
        case.q, case.keys, case.values, **case.arguments, backend=backend, scale=2 * 16**-0.5
    )
    assert torch.allclose(doubled, by_scale, atol=1e-6)
    assert not torch.allclose(by_scale, run(case, backend)[0], atol=1e-3)


@BOTH
@pytest.mark.parametrize("scale", [0.0, -0.5, -2.0])
@pytest.mark.parametrize("cached", [0, 3])
def test_a_scale_of_zero_or_less_does_not_bring_back_what_is_masked(backend, scale, cached):
    """Fault 64: a mask of -inf times such a scale is NaN or +inf."""
    case = make_case([13 + cached, 2], [13, 1], block_size=BS, head_dim=16, seed=21)
    turned = make_case([13 + cached, 2], [13, 1], block_size=BS, head_dim=16, seed=21)
    out, lse = run(case, backend, scale=scale)
    turned.q *= scale  # the same scores by another way
    expected, expected_lse = run(turned, "reference", scale=1.0)
    assert torch.isfinite(out).all()
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(lse, expected_lse, atol=1e-5)


@BOTH
def test_q_may_be_a_slice_of_a_wider_tensor(backend):
    """A fused projection gives q, k and v as views into one tensor."""
    case = make_case([9, 4], [1, 2], block_size=BS, seed=13)
    wide = torch.full((3, 4, 200), math.nan)
    wide[:, :, 40:104] = case.q
    case.q = wide[:, :, 40:104]
    assert not case.q.is_contiguous()
    case.check(*run(case, backend))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_quick_path_on_any_batch(data):
    """Random sequences, heads, blocks, windows and dtypes."""
    draw = data.draw
    window = draw(st.none() | st.integers(1, 40))
    num_seqs = draw(st.integers(1, 6))
    counts = [draw(st.sampled_from([1, 1, 1, 0, 2, 7])) for _ in range(num_seqs)]
    lens = [
        draw(st.sampled_from([0, n, n + 1, n + 9, n + draw(st.integers(0, 60))])) for n in counts
    ]
    case = make_case(
        lens, counts, block_size=draw(st.sampled_from([1, 2, 3, 5, 16, 64])),
        num_kv_heads=draw(st.integers(1, 3)), group=draw(st.integers(1, 7)),
        head_dim=draw(st.sampled_from([8, 16, 40, 64])), window=window,
        dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        seed=draw(st.integers(0, 2**32)),
    )  # fmt: skip
    case.check(*run(case, "torch"))


# --- groups of decode rows ------------------------------------------------------------------------


def test_very_different_lengths_are_computed_in_groups(monkeypatch):
    """Short sequences are not padded to the longest one, and every row comes back to its place."""
    lens = [3, 900, 5, 880, 0, 4, 910, 7, *range(1, 20)]
    case = make_case(lens, block_size=16, head_dim=16, seed=14)
    plan = AttentionPlan(**case.arguments, block_size=16, backend="torch")
    case.check(*plan.attend(case.q, case.keys, case.values, return_lse=True))
    groups = attention_torch.group_by_length(np.flatnonzero(np.array(lens)), np.array(lens))
    assert sorted(np.concatenate(groups).tolist()) == [i for i, n in enumerate(lens) if n]
    padding = sum(max(lens[i] for i in g) * len(g) - sum(lens[i] for i in g) for g in groups)
    assert padding <= attention_torch.PADDING_ALLOWED * len(groups)
    assert len(groups) == 2
    monkeypatch.setattr(attention_torch, "TOKENS_AT_ONCE", 40)
    monkeypatch.setattr(attention_torch, "PADDING_ALLOWED", 3)
    case.check(*run(case, "torch"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200))
def test_groups_hold_everyone_once_and_stay_small(lens):
    lens = np.array(lens)
    groups = attention_torch.group_by_length(np.arange(len(lens)), lens)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lens)))
    for group in groups:
        longest = lens[group].max()
        assert len(group) == 1 or longest * len(group) <= attention_torch.TOKENS_AT_ONCE
        assert longest * len(group) - lens[group].sum() <= attention_torch.PADDING_ALLOWED


def test_one_plan_serves_every_layer():
    case = make_case([9, 30, 6], [1, 1, 4], block_size=BS, seed=15)
    other = make_case([9, 30, 6], [1, 1, 4], block_size=BS, seed=16)
    plan = AttentionPlan(**case.arguments, block_size=BS)
    case.check(plan.attend(case.q, case.keys, case.values))
    moved = torch.full_like(other.keys, math.nan), torch.full_like(other.values, math.nan)
    for seq, length in enumerate([9, 30, 6]):  # the other content at this plan's blocks
        for logical in range(-(-length // BS)):
            mine, its = case.block_tables[seq, logical], other.block_tables[seq, logical]
            moved[0][mine], moved[1][mine] = other.keys[its], other.values[its]
    other.check(plan.attend(other.q, *moved))


def test_lists_do_as_well_as_tensors():
    case = make_case([9, 3], block_size=BS, seed=17)
    tables = [case.block_tables[0, :3].tolist(), case.block_tables[1, :1].tolist()]  # uneven
    plan = AttentionPlan(tables, [9, 3], block_size=BS)
    case.check(plan.attend(case.q, case.keys, case.values))
    for kind in (torch.int64, torch.int32):  # fault 59: 64-bit metadata is not misread
        out = paged_attention(
            case.q, case.keys, case.values, case.block_tables.to(kind), case.context_lens.to(kind)
        )
        case.check(out)


def test_no_warnings():
    case = make_case([9, 30, 0, 6], [1, 1, 1, 4], block_size=BS, seed=18)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(case, "torch")


# --- merging ------------------------------------------------------------------------------------


def parts(count=3, seed=0, tokens=5, heads=4, dim=8):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=random)

    return [(draw(tokens, heads, dim), 4 * draw(tokens, heads)) for _ in range(count)]


def test_merged_halves_are_the_whole():
    """A decode query over tokens 0-12 and 13-29, merged, is the query over tokens 0-29."""
    case = make_case([30], block_size=1, head_dim=16, seed=20)
    table = case.block_tables[:, :30]
    one = lambda t: paged_attention(  # noqa: E731
        case.q, case.keys, case.values, t, torch.tensor([t.shape[1]]), backend="reference",
        return_lse=True,
    )  # fmt: skip
    out, lse = merge_attention_states(*one(table[:, :13]), *one(table[:, 13:]))
    case.check(out, lse)


def test_merging_is_commutative_and_associative():
    """O7."""
    a, b, c = parts()
    for left, right in (
        (merge_attention_states(*a, *b), merge_attention_states(*b, *a)),
        (
            merge_attention_states(*merge_attention_states(*a, *b), *c),
            merge_attention_states(*a, *merge_attention_states(*b, *c)),
        ),
    ):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("junk", [0.0, math.nan, math.inf, -math.inf, 1e38])
def test_a_part_that_saw_nothing_weighs_nothing(junk):
    """O6, O7: lse -inf is the identity, whatever its out holds; two such parts give zeros."""
    (out, lse), _, _ = parts()
    nothing = torch.full_like(out, junk), torch.full_like(lse, -math.inf)
    for merged in (
        merge_attention_states(out, lse, *nothing),
        merge_attention_states(*nothing, out, lse),
    ):
        torch.testing.assert_close(merged, (out, lse), atol=1e-6, rtol=1e-6)
    zeros, minus_infinity = merge_attention_states(*nothing, *nothing)
    assert (zeros == 0).all()
    assert (minus_infinity == -math.inf).all()


def test_merging_far_apart_parts_does_not_overflow():
    (a, lse), (b, _), _ = parts()
    out, merged = merge_attention_states(a, lse + 1e4, b, lse - 1e4)
    torch.testing.assert_close(out, a)
    torch.testing.assert_close(merged, lse + 1e4)


def test_merging_keeps_the_dtype_and_refuses_other_shapes():
    (a, lse_a), (b, lse_b), _ = parts()
    out, lse = merge_attention_states(a.half(), lse_a, b.half(), lse_b)
    assert (out.dtype, lse.dtype) == (torch.float16, torch.float32)
    exact, _ = merge_attention_states(a, lse_a, b, lse_b)
    torch.testing.assert_close(out.float(), exact, atol=4e-3, rtol=4e-3)
    with pytest.raises(ValueError, match="expected out"):
        merge_attention_states(a, lse_a[:, :2], b, lse_b)


# --- what is refused ----------------------------------------------------------------------------


def call(case, **changes):
    arguments = case.arguments | {"q": case.q, "keys": case.keys, "values": case.values} | changes
    return paged_attention(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context_lens": torch.tensor([21, 5])}, r"context_lens\[0\] = 21 does not fit .* grow"),
        ({"context_lens": torch.tensor([-1, 5])}, r"context_lens\[0\] = -1 is negative"),
        ({"context_lens": torch.tensor([9.0, 5.0])}, "must be integers"),
        ({"context_lens": torch.tensor([9])}, "need 2 context_lens"),
        ({"query_start_loc": torch.tensor([0, 1])}, "need 2 context_lens"),
        ({"query_start_loc": torch.tensor([1, 2, 3])}, "start at 0"),
        ({"query_start_loc": torch.tensor([0, 2, 1])}, "never fall"),
        ({"query_start_loc": torch.tensor([0, 1, 3])}, "q has 2 rows"),
        ({"query_start_loc": torch.tensor([0, 0, 8])}, r"context_lens\[1\] = 5 is less than"),
        ({"block_tables": torch.tensor([[0, -1, 2], [5, 6, 0]])}, r"block_tables\[0, 1\]"),
        ({"block_tables": torch.tensor([[0, 1, 2], [5, 99, 0]])}, "name block 99"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"num_splits": 0}, "num_splits=0"),
        ({"backend": "cuda"}, "backend 'cuda'"),
        ({"q": torch.zeros(2, 4, 32)}, "heads of 32"),
        ({"q": torch.zeros(2, 3, 64)}, "3 heads"),
        ({"q": torch.zeros(2, 64)}, "expected"),
        ({"q": torch.zeros(2, 4, 64, dtype=torch.int32)}, "use fp32"),
        ({"values": torch.zeros(3, BS, 2, 64)}, "expected"),
        ({"key_scales": torch.ones(1)}, "int8"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(changes, message):
    case = make_case([9, 5], block_size=BS, seed=21)  # tables of 5 blocks
    call(case)
    with pytest.raises(ValueError, match=message):
        call(case, **changes)


def test_a_context_that_fills_its_table_is_allowed():
    """Fault 55: the last slot of the last block."""
    case = make_case([8], block_size=BS, seed=22)
    case.block_tables = case.block_tables[:, :2]
    case.check(call(case))


def test_a_backend_that_cannot_run_says_why():
    known = available_backends()
    assert known["reference"] == known["torch"] == "ok"
    case = make_case([9], block_size=BS, seed=23)
    if known["triton"] == "ok" and torch.cuda.is_available():
        with pytest.raises(BackendUnavailable, match="move them to cuda"):
            call(case, backend="triton")
    else:
        assert len(known["triton"]) > 20
        with pytest.raises(BackendUnavailable, match="cannot run here: ") as error:
            call(case, backend="triton")
        assert known["triton"] in str(error.value)
    case.check(call(case, backend="auto"))
