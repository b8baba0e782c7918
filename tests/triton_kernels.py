"""The Triton kernels against dense float64. Not collected by its name: test_attention_kernels.py
runs it in a process of its own, where TRITON_INTERPRET is set before triton is imported.

On a machine with a GPU the same tests run compiled. In the interpreter an iteration of a loop costs
about 2 ms, so the matrix is small; each row of it joins several properties (see MATRIX).
"""

import ctypes
import math
import mmap

import pytest
import torch
from attention_cases import make_case

from course.engine import triton_config
from course.engine.kv_cache import PagedKVCache
from course.engine.paged_attention import AttentionPlan, available_backends, paged_attention
from course.engine.quantized_kv import QuantizedPagedKVCache
from course.engine.triton_attention import TritonAttention
from course.engine.triton_support import triton_status
from course.engine.triton_write import write_to_slots
from course.sizing import ModelShape

MODE = triton_status().mode
DEVICE = "cuda" if MODE == "compiled" else "cpu"
HALF, FULL = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in a short context; tiles that are not a whole number of blocks."""
    if MODE == "interpreter":
        monkeypatch.setattr(triton_config, "INTERPRETER_TILE", 32)


def run(case, **options):
    return paged_attention(
        case.q, case.keys, case.values, **case.arguments, backend="triton", **options
    )


def check(case, **options):
    case.check(*run(case, return_lse=True, **options))


def test_the_kernels_run_here():
    assert MODE in ("compiled", "interpreter")
    assert available_backends()["triton"] == "ok"


# --- decode --------------------------------------------------------------------------------------

# Every block size, group and head dim once with each other kind of property, not with each value.
# block size, KV heads, group, head dim, dtype, window, splits
MATRIX = [
    (1, 1, 1, 64, FULL, None, 1),
    (3, 2, 3, 64, HALF, None, 2),
    (4, 1, 5, 80, FULL, 5, 1),
    (8, 2, 2, 96, HALF, 64, 3),
    (16, 3, 3, 64, FULL, None, 2),
    (16, 1, 6, 112, HALF, 1, 7),
    (16, 2, 4, 128, HALF, None, 1),
    (7, 1, 7, 128, FULL, 33, 2),
    (32, 1, 8, 256, HALF, None, 3),
    (100, 2, 1, 80, HALF, None, 2),
    (256, 1, 16, 64, FULL, 100, 1),
    (16, 1, 32, 64, HALF, None, 2),
    (16, 1, 17, 16, FULL, None, 40),
]


@pytest.mark.parametrize("row", MATRIX, ids=str)
def test_decode(row):
    """O2, O3, O4, O8, O9, faults 61, 62, 68, 69, 71, 72: odd lengths, NaN around, any table end."""
    block_size, num_kv_heads, group, head_dim, dtype, window, splits = row
    lens = [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1, 77]
    lens = [min(n, 150) for n in lens]  # 0 is among them with block size 1
    case = make_case(
        lens, block_size=block_size, num_kv_heads=num_kv_heads, group=group, head_dim=head_dim,
        dtype=dtype, window=window, device=DEVICE, seed=len(str(row)),
    )  # fmt: skip
    check(case, num_splits=splits)


def test_more_splits_than_tiles():
    """O6, fault 64: an empty split weighs nothing."""
    case = make_case([1, 0, 40, 90], block_size=4, head_dim=16, device=DEVICE, seed=1)
    for splits in (2, 5, 17, 50):
        check(case, num_splits=splits)


@pytest.mark.parametrize("splits", [1, 3])
def test_an_empty_context_gives_zeros(splits):
    case = make_case([0, 9, 0], [1, 1, 3], block_size=4, head_dim=16, device=DEVICE, seed=2)
    out, lse = run(case, return_lse=True, num_splits=splits)
    case.check(out, lse)
    assert (out[[0, 2, 3, 4]] == 0).all()
    assert (lse[0] == -math.inf).all()
    nobody = make_case([0, 0], block_size=4, head_dim=16, device=DEVICE, seed=2)
    check(nobody, num_splits=splits)
    empty = paged_attention(
        nobody.q[:0], nobody.keys, nobody.values, nobody.block_tables[:0], nobody.context_lens[:0],
        backend="triton",
    )  # fmt: skip
    assert empty.shape == (0, 4, 16)


def test_scores_beyond_the_range_of_half_precision():
    """Fault 75: equal scores of 102,400 before they are scaled; out is the mean of the values."""
    case = make_case([9, 9], [1, 3], block_size=4, dtype=HALF, device=DEVICE, seed=3)
    q, keys = torch.full_like(case.q, 40), case.keys.clone()
    keys[~keys.isnan()] = 40
    out = paged_attention(q, keys, case.values, **case.arguments, backend="triton")
    for token, seq, visible in ((0, 0, 9), (1, 1, 7), (3, 1, 9)):
        blocks = case.block_tables[seq, : -(-visible // 4)].long()
        mean = case.values[blocks].flatten(0, 1)[:visible].float().mean(0)
        torch.testing.assert_close(
            out[token].float(), mean.repeat_interleave(2, 0), atol=4e-3, rtol=4e-3
        )


@pytest.mark.parametrize("options", [{}, {"num_splits": 3}])
def test_where_the_blocks_lie_changes_no_bit(options):
    """O5."""
    sizes = {"context_lens": [40, 17], "num_queries": [1, 5], "block_size": 4, "device": DEVICE}
    in_order, scattered = (make_case(**sizes, shuffled=s, seed=4) for s in (False, True))
    assert not torch.equal(in_order.block_tables, scattered.block_tables)
    assert torch.equal(run(in_order, **options), run(scattered, **options))


def test_offsets_have_64_bits():
    """Fault 67: block 131,072 of 16 x 8 x 128 values starts at 2^31, one past what 32 bits hold.

    The keys are 4 GiB of address space of which a few pages are ever touched.
    """
    num_blocks, shape = 131_074, (16, 8, 128)
    try:
        keys = torch.empty((num_blocks, *shape), dtype=HALF, device=DEVICE)
    except (RuntimeError, MemoryError) as error:
        pytest.skip(f"not run: no 4 GiB of address space ({error})")
    table = [num_blocks - 1, num_blocks - 2]
    random = torch.Generator().manual_seed(5)
    content = torch.randn(2, *shape, generator=random).to(HALF)
    for block_id, block in zip(table, content, strict=True):
        keys[block_id] = block.to(DEVICE)
    q = torch.randn(6, 8, 128, generator=random).to(HALF).to(DEVICE)
    step = {
        "block_tables": torch.tensor([table, table], dtype=torch.int32, device=DEVICE),
        "context_lens": torch.tensor([20, 20], dtype=torch.int32, device=DEVICE),
        "query_start_loc": torch.tensor([0, 1, 6], dtype=torch.int32, device=DEVICE),
    }
    low = content.to(DEVICE)
    near = step | {"block_tables": torch.tensor([[0, 1]] * 2, dtype=torch.int32, device=DEVICE)}
    expected = paged_attention(q, low, low, **near, backend="torch")
    for backend in ("triton", "torch"):
        out = paged_attention(q, keys, keys, **step, backend=backend)
        torch.testing.assert_close(out, expected, atol=4e-3, rtol=4e-3)
    last = num_blocks * 16 - 1
    k = torch.randn(2, 8, 128, generator=random).to(HALF).to(DEVICE)
    write_to_slots(keys, keys, k, k, torch.tensor([last, last - 16], device=DEVICE))
    assert torch.equal(keys[-1, -1], k[0])
    assert torch.equal(keys[-2, -1], k[1])


def at_the_end_of_memory(tensor):
    """The same tensor right before a page that nobody may touch: reading on ends the process."""
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    forbidden = ctypes.c_void_p(start + pages * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(forbidden, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    flat = torch.frombuffer(
        memory, dtype=tensor.dtype, count=tensor.numel(), offset=pages * mmap.PAGESIZE - size
    )
    return flat.view(tensor.shape).copy_(tensor)


@pytest.mark.skipif(MODE != "interpreter", reason="not run: needs the interpreter's host memory")
@pytest.mark.parametrize("counts", [[1, 1], [5, 3]])
def test_nothing_is_read_past_the_end(counts):
    """Faults 55 and 72: a context that fills its table, in the last block of the cache."""
    case = make_case([12, 8], counts, block_size=4, head_dim=80, group=3, num_kv_heads=1, seed=13)
    last_block = int(case.block_tables[1, 1])
    order = [i for i in range(len(case.keys)) if i != last_block] + [last_block]
    place = {old: new for new, old in enumerate(order)}
    case.keys, case.values = (
        at_the_end_of_memory(cache[torch.tensor(order)]) for cache in (case.keys, case.values)
    )
    tables = [[place.get(entry, -1) for entry in row[:3]] for row in case.block_tables.tolist()]
    tables[1][2] = -1
    case.q = at_the_end_of_memory(case.q)
    case.context_lens = at_the_end_of_memory(case.context_lens.flip(0))  # the long one comes last
    tables = at_the_end_of_memory(torch.tensor(tables[::-1], dtype=torch.int32))
    starts = at_the_end_of_memory(torch.tensor([0, counts[1], sum(counts)], dtype=torch.int32))
    q = torch.cat([case.q[counts[0] :], case.q[: counts[0]]])
    attention = TritonAttention(tables, case.context_lens, starts, 4, None, num_splits=2)
    out, lse = attention(at_the_end_of_memory(q), case.keys, case.values, scale=80**-0.5)
    case.check(torch.cat([out[counts[1] :], out[: counts[1]]]), lse)


# --- chunks and mixed batches --------------------------------------------------------------------

CHUNKS = [
    # block size, KV heads, group, head dim, dtype, window
    (4, 2, 2, 64, FULL, None),
    (16, 1, 3, 80, HALF, None),
    (3, 1, 7, 16, FULL, 6),
    (16, 3, 1, 128, HALF, 40),
    (1, 1, 5, 96, HALF, None),
    (100, 1, 32, 64, FULL, 33),
    (16, 1, 8, 256, HALF, None),
]


@pytest.mark.parametrize("row", CHUNKS, ids=str)
def test_prefill_chunks_and_decode_rows_in_one_batch(row):
    """O1 and fault 73: whole prompts, chunks after cached tokens, and single decode tokens."""
    block_size, num_kv_heads, group, head_dim, dtype, window = row
    lens = [33, 18, block_size, 5, 50, 70]
    counts = [1, 5, min(block_size, 17), 5, 0, 12]
    case = make_case(
        lens, counts, block_size=block_size, num_kv_heads=num_kv_heads, group=group,
        head_dim=head_dim, dtype=dtype, window=window, device=DEVICE, seed=len(str(row)),
    )  # fmt: skip
    check(case, num_splits=2)


def test_a_long_chunk_takes_several_tiles_of_queries():
    """O1, scaled down: 129 queries after 334 tokens, beside a long decode row."""
    case = make_case(
        [166, 18, 150], [1, 5, 129], num_kv_heads=1, group=4, head_dim=16, device=DEVICE, seed=6
    )
    check(case)
    check(make_case([90], [90], num_kv_heads=1, group=3, head_dim=16, device=DEVICE, seed=7))


def test_only_prefill_and_only_decode_agree_on_the_last_token():
    """One query row through the decode kernel, and as the last row of a chunk."""
    case = make_case([30], [4], block_size=4, head_dim=16, device=DEVICE, seed=8)
    whole = run(case)
    last = paged_attention(
        case.q[3:], case.keys, case.values, case.block_tables, case.context_lens, backend="triton"
    )
    torch.testing.assert_close(last, whole[3:], atol=1e-5, rtol=1e-5)


def test_one_plan_serves_every_layer_and_any_strides():
    case = make_case([9, 30, 6], [1, 1, 4], block_size=4, head_dim=16, device=DEVICE, seed=9)
    plan = AttentionPlan(**case.arguments, block_size=4, backend="triton", device=DEVICE)
    wide = torch.full((6, 4, 40), math.nan, device=DEVICE)
    wide[:, :, 8:24] = case.q
    for q in (case.q, wide[:, :, 8:24]):
        case.check(plan.attend(q, case.keys, case.values))
    # keys and values as two halves of one tensor, heads outside of slots
    both = torch.stack([case.keys, case.values]).transpose(2, 3).contiguous().transpose(2, 3)
    assert both[0].stride() != case.keys.stride()
    case.check(plan.attend(case.q, both[0], both[1]))


def test_bfloat16_is_refused_rather_than_wrong():
    case = make_case([9], block_size=4, head_dim=16, dtype=torch.bfloat16, device=DEVICE, seed=10)
    if MODE == "compiled":
        check(case)
        return
    with pytest.raises(ValueError, match="bfloat16 gives wrong numbers"):
        run(case)
    with pytest.raises(ValueError, match="bfloat16 gives wrong numbers"):
        write_to_slots(case.keys, case.values, case.q[:, :2], case.q[:, :2], torch.tensor([0]))


@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_an_int8_cache(dtype):
    """Rows are scaled back as they are loaded; the oracle does the same in fp32."""
    shape = ModelShape("small", 1, 6, 2, 16, 100)
    cache = QuantizedPagedKVCache(shape, 40, 4, device=DEVICE)
    for tensor in (cache.key_scales, cache.value_scales):
        tensor.fill_(math.nan)
    random = torch.Generator().manual_seed(11)
    k, v = (torch.randn(80, 2, 16, generator=random).to(DEVICE) for _ in range(2))
    cache.write(0, k, v, list(range(3, 83)))
    q = torch.randn(7, 6, 16, generator=random).to(dtype).to(DEVICE)
    keys, values, key_scales, value_scales = cache.layer(0)
    outs = [
        paged_attention(
            q, keys, values, [[*range(1, 13), -1], [*range(13, 20)]], [46, 25],
            query_start_loc=[0, 1, 7], key_scales=key_scales, value_scales=value_scales,
            backend=backend, num_splits=2,
        )
        for backend in ("reference", "triton")
    ]  # fmt: skip
    torch.testing.assert_close(outs[1], outs[0], atol=4e-3 if dtype == HALF else 1e-5, rtol=4e-3)


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [16, 80])
@pytest.mark.parametrize("dtype", [FULL, HALF])
def test_the_write_kernel_masks_its_slots(head_dim, dtype):
    """O10, fault 51: -1 is never written, nor a slot past the cache; values are cast."""
    shape = (5, 3, 2, head_dim)
    keys, values = (torch.full(shape, 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
    random = torch.Generator().manual_seed(12)
    k, v = (torch.randn(6, 2, head_dim, generator=random).to(DEVICE) for _ in range(2))
    slots = [-1, 14, 4, -1, 15, 0]
    write_to_slots(keys, values, k, v, torch.tensor(slots, device=DEVICE))
    for cache, rows in ((keys, k), (values, v)):
        expected = torch.full_like(cache, 7.0)
        for token, slot in ((1, 14), (2, 4), (5, 0)):
            expected[slot // 3, slot % 3] = rows[token].to(dtype)
        assert torch.equal(cache, expected)


def test_a_cache_that_writes_with_the_kernel():
    shape = ModelShape("small", 2, 4, 2, 16, 100)
    cache = PagedKVCache(shape, 6, 4, dtype=HALF, device=DEVICE, write_backend="triton")
    for tensor in (cache.keys, cache.values):
        tensor.fill_(7)
    fused = torch.randn(5, 3, 2, 16).to(DEVICE)  # k and v are views into one tensor
    k, v = fused[:, 1], fused[:, 2]
    cache.write(1, k, v, [20, -1, 3, 4, 9])
    found, _ = cache.gather(1, [5, 0, 1, 2], 16)
    for row, token in ((0, 0), (7, 2), (8, 3), (13, 4)):
        assert torch.equal(found[row], k[token].to(HALF))
    assert int((cache.values != 7).sum()) == 4 * 32
    cache.write(0, k[:0], v[:0], [])
    if MODE == "compiled":  # slots that the host has not seen: the kernel masks them
        cache.write(0, k, v, torch.tensor([20, -1, 3, 4, 9], device=DEVICE))
        assert torch.equal(cache.keys[0], cache.keys[1])
