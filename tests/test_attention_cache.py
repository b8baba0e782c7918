"""The paged cache: writes, gathers, copies and swaps, fp32 and int8 (cases O10, P; faults 5)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.engine.block_table import slot_mapping
from course.engine.kv_cache import PagedKVCache
from course.engine.paged_attention import paged_attention
from course.engine.quantized_kv import QuantizedPagedKVCache, dequantize, quantize
from course.sizing import ModelShape

SHAPE = ModelShape("small", 2, 6, 2, 8, 100)  # 2 layers, 2 KV heads of 8
NUM_BLOCKS, BS = 16, 4
TABLE = [12, 5, 3]
BOTH = pytest.mark.parametrize("kind", [PagedKVCache, QuantizedPagedKVCache])


def poisoned(kind=PagedKVCache, **options):
    cache = kind(SHAPE, NUM_BLOCKS, BS, **options)
    for tensor in cache._tensors:
        tensor.fill_(math.nan if tensor.is_floating_point() else 99)
    return cache


def draw(num_tokens, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(num_tokens, 2, 8, generator=random) for _ in range(2)]


def snapshot(cache):
    return [tensor.clone() for tensor in cache._tensors]


def unchanged(cache, before):
    return all(
        torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)) if a.is_floating_point() else a.equal(b)
        for a, b in zip(cache._tensors, before, strict=True)
    )


# --- write and gather ----------------------------------------------------------------------------


def test_a_write_lands_in_its_slot_and_nowhere_else():
    cache = poisoned()
    k, v = draw(2)
    cache.write(1, k, v, [TABLE[1] * BS + 2, TABLE[0] * BS])
    for tensor, rows in ((cache.keys, k), (cache.values, v)):
        assert torch.equal(tensor[1, 5, 2], rows[0])
        assert torch.equal(tensor[1, 12, 0], rows[1])
        assert int(tensor.isfinite().sum()) == rows.numel()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.permutations(range(NUM_BLOCKS)))
def test_tokens_written_in_pieces_come_back_in_order(pieces, table):
    """P1: whatever the pieces and the blocks, gather gives what a contiguous cache would hold."""
    total = min(sum(pieces), NUM_BLOCKS * BS)
    cache, (k, v), done = poisoned(), draw(total), 0
    for piece in pieces:
        end = min(done + piece, total)
        slots = slot_mapping(table, range(done, end), BS)
        cache.write(0, k[done:end], v[done:end], slots)
        done = end
    found_k, found_v = cache.gather(0, table, total)
    assert torch.equal(found_k, k)
    assert torch.equal(found_v, v)


@BOTH
def test_gather_reads_no_further_than_it_is_asked(kind):
    """Neither slots nor table entries: what follows the last token may be anything."""
    cache = poisoned(kind)
    k, v = draw(5)
    cache.write(0, k, v, slot_mapping(TABLE, range(5), BS))
    found, _ = cache.gather(0, [*TABLE[:2], -1, 10**9], 5)
    assert found.shape == (5, 2, 8)
    torch.testing.assert_close(found, k, atol=0.05 if kind is not PagedKVCache else 0, rtol=0)
    assert cache.gather(0, TABLE, 0)[0].shape == (0, 2, 8)
    as_tensor, _ = cache.gather(0, torch.tensor(TABLE), 5)
    assert torch.equal(as_tensor, found)


@BOTH
def test_gather_gives_a_copy(kind):
    cache = poisoned(kind)
    cache.write(0, *draw(4), range(4))
    before = snapshot(cache)
    for tensor in cache.gather(0, [0], 4):
        tensor.fill_(5)
    assert unchanged(cache, before)


@pytest.mark.parametrize(("table", "tokens"), [([5], 5), ([5, -1], 5), ([5, 16], 5), ([5], -1)])
def test_gather_refuses_what_is_not_there(table, tokens):
    with pytest.raises(ValueError, match=r"outside|given back|0 or more"):
        poisoned().gather(0, table, tokens)


@BOTH
@pytest.mark.parametrize("as_tensor", [False, True])
def test_slot_minus_one_is_not_written(kind, as_tensor):
    """O10, fault 51: as an index, -1 would be the last slot of the last block."""
    cache = poisoned(kind)
    before = snapshot(cache)
    slots = [-1, 21, -1, 4, -1]
    k, v = draw(5)
    cache.write(0, k, v, torch.tensor(slots, dtype=torch.int32) if as_tensor else slots)
    assert torch.equal(cache.keys[0, -1, -1].nan_to_num(7), before[0][0, -1, -1].nan_to_num(7))
    touched = [
        (layer, slot)
        for layer in range(2)
        for slot in range(NUM_BLOCKS * BS)
        if not torch.equal(
            cache.keys[layer].flatten(0, 1)[slot].nan_to_num(7e7),
            before[0][layer].flatten(0, 1)[slot].nan_to_num(7e7),
        )
    ]
    assert touched == [(0, 4), (0, 21)]
    if kind is PagedKVCache:
        assert torch.equal(cache.keys[0, 5, 1], k[1])
    cache.write(0, k[:2], v[:2], [-1, -1])
    cache.write(0, k[:0], v[:0], [])


@BOTH
@pytest.mark.parametrize(
    ("k_shape", "v_shape", "slots", "message"),
    [
        ((3, 2, 8), (3, 2, 8), [0, 1], "k has shape"),  # fault 53: more rows than slots
        ((2, 2, 8), (2, 2, 8), [0, 1, 2], "k has shape"),
        ((2, 2, 8), (2, 2, 7), [0, 1], "v has shape"),
        ((2, 3, 8), (2, 2, 8), [0, 1], "k has shape"),
        ((2, 16), (2, 16), [0, 1], "k has shape"),
        ((2, 2, 8), (2, 2, 8), [0, 64], "slot 64 is outside the cache: slots are 0 to 63"),
        ((2, 2, 8), (2, 2, 8), [0, -2], "slot -2 is outside"),
        ((2, 2, 8), (2, 2, 8), [0.0, 1.0], "one integer"),
        ((2, 2, 8), (2, 2, 8), [[0], [1]], "one integer"),
        ((2, 2, 8), (2, 2, 8), [True, False], "one integer"),
    ],
)
def test_a_write_that_does_not_fit_changes_nothing(kind, k_shape, v_shape, slots, message):
    """P2."""
    cache = poisoned(kind)
    before = snapshot(cache)
    with pytest.raises(ValueError, match=message):
        cache.write(0, torch.ones(k_shape), torch.ones(v_shape), slots)
    assert unchanged(cache, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_write_casts_to_the_cache(dtype):
    cache = PagedKVCache(SHAPE, NUM_BLOCKS, BS, dtype=dtype)
    k, v = (t.double() for t in draw(3))
    cache.write(0, k, v, [7, 8, 9])
    assert torch.equal(cache.gather(0, [1, 2], 8)[0][3:6], k.to(dtype))
    assert cache.num_bytes == 2 * 2 * NUM_BLOCKS * BS * 2 * 8 * dtype.itemsize


def test_slots_checked_once_serve_every_layer():
    cache, (k, v) = poisoned(), draw(3)
    checked = cache.check_slots([9, -1, 2])
    for layer in range(2):
        cache.write(layer, k + layer, v, checked)
        assert torch.equal(cache.keys[layer, 2, 1], k[0] + layer)
        assert torch.equal(cache.keys[layer, 0, 2], k[2] + layer)


def test_a_cache_that_cannot_be_is_refused():
    for blocks, size in ((0, 4), (4, 0), (-1, 4), (True, 4), (4, 2.0)):
        with pytest.raises(ValueError, match="at least 1"):
            PagedKVCache(SHAPE, blocks, size)
    latent = ModelShape("latent", 2, 6, 1, 8, 100, kv_lora_rank=4, qk_rope_head_dim=2)
    with pytest.raises(ValueError, match="latent of rank 4"):
        PagedKVCache(latent, 4, 4)


@pytest.mark.parametrize("blocks", [2**48, 2**80])
def test_a_cache_larger_than_any_memory_says_so(blocks):
    with pytest.raises(RuntimeError, match=r"no memory on cpu .* make the pool smaller"):
        PagedKVCache(SHAPE, blocks, 16)


# --- blocks that move ----------------------------------------------------------------------------


@BOTH
def test_copies_read_every_source_before_they_write(kind):
    cache = poisoned(kind)
    for layer in range(2):
        cache.write(layer, *draw(3 * BS, seed=layer), range(3 * BS))
    before = snapshot(cache)
    cache.copy_blocks([(0, 1), (1, 2), (2, 0), (0, 9)])
    for tensor, old in zip(cache._tensors, before, strict=True):
        for source, destination in ((0, 1), (1, 2), (2, 0), (0, 9)):
            assert torch.equal(tensor[:, destination], old[:, source])
        assert torch.equal(tensor[:, 3].nan_to_num(7e7), old[:, 3].nan_to_num(7e7))
    cache.copy_blocks([])


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 1), (0, 16)],
        [(0, 1), (-1, 2)],
        [(0, 1), (2, 1)],
        torch.tensor([[0, 1], [2, 1]]),  # whose elements hash apart
    ],
)
def test_copies_that_cannot_be_change_nothing(pairs):
    cache = poisoned()
    cache.write(0, *draw(BS), range(BS))
    before = snapshot(cache)
    with pytest.raises(ValueError, match=r"outside the cache|one block twice"):
        cache.copy_blocks(pairs)
    assert unchanged(cache, before)


@BOTH
def test_blocks_swapped_out_come_back_in_other_places(kind):
    """H7: contents equal, all layers, in the order of the ids."""
    cache = poisoned(kind)
    for layer in range(2):
        cache.write(layer, *draw(9, seed=layer), slot_mapping(TABLE, range(9), BS))
    before = [cache.gather(layer, TABLE, 9) for layer in range(2)]
    held = cache.read_blocks(TABLE)
    for tensor in cache._tensors:
        tensor.zero_()
    cache.write_blocks([0, 15, 7], held)
    for layer in range(2):
        for found, old in zip(cache.gather(layer, [0, 15, 7], 9), before[layer], strict=True):
            assert torch.equal(found, old)
    with pytest.raises(ValueError, match="expected"):
        cache.write_blocks([0, 1], held)
    with pytest.raises(ValueError, match="outside"):
        cache.read_blocks([16])


# --- int8 ----------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=64))
def test_no_value_is_off_by_more_than_half_a_step(row):
    rows = torch.tensor([row])
    stored, scale = quantize(rows)
    assert stored.dtype == torch.int8
    largest = rows.abs().max()
    if largest > 1e-30:  # below, the scale itself is rounded to a denormal number
        assert int(stored.abs().max()) == 127
    error = (dequantize(stored, scale, torch.float32) - rows).abs().max()
    assert error <= largest / 127 / 2 * (1 + 1e-5) + 1e-38


def test_int8_is_symmetric_and_has_a_scale_for_each_token_and_head():
    rows = torch.tensor([[[0.5, -2.0], [0.0, 0.0]], [[100.0, -50.0], [1e-3, 1e-3]]])
    stored, scale = quantize(rows)
    assert torch.equal(quantize(-rows)[0], -stored)
    assert stored.tolist() == [[[32, -127], [0, 0]], [[127, -64], [127, 127]]]
    torch.testing.assert_close(scale, torch.tensor([[2.0, 0.0], [100.0, 1e-3]]) / 127)


def test_an_int8_cache_is_smaller_and_nearly_the_same():
    exact, small = poisoned(), poisoned(QuantizedPagedKVCache)
    k, v = draw(9)
    for cache in (exact, small):
        cache.write(0, k, v, slot_mapping(TABLE, range(9), BS))
    assert small.num_bytes == 2 * 2 * NUM_BLOCKS * BS * 2 * (8 + 4)
    q = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    step = {
        "block_tables": torch.tensor([[*TABLE, -1]]),
        "context_lens": torch.tensor([9]),
        "query_start_loc": torch.tensor([0, 3]),
    }
    expected = paged_attention(q, *exact.layer(0), **step)
    for backend in ("reference", "torch", "auto"):
        keys, values, key_scales, value_scales = small.layer(0)
        out = paged_attention(
            q,
            keys,
            values,
            key_scales=key_scales,
            value_scales=value_scales,
            backend=backend,
            **step,
        )
        assert 0 < float((out - expected).abs().max()) < 0.05
    with pytest.raises(ValueError, match="int8 cache needs"):
        paged_attention(q, keys, values, **step)


def test_int8_decode_rows_agree_with_the_oracle():
    cache = poisoned(QuantizedPagedKVCache)
    cache.write(0, *draw(9), slot_mapping(TABLE, range(9), BS))
    keys, values, key_scales, value_scales = cache.layer(0)
    q = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(2))
    oracle, quick = (
        paged_attention(
            q, keys, values, torch.tensor([TABLE, TABLE]), torch.tensor([9, 2]), backend=backend,
            key_scales=key_scales, value_scales=value_scales,
        )
        for backend in ("reference", "torch")
    )  # fmt: skip
    torch.testing.assert_close(quick, oracle, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", [-1, SHAPE.num_layers])
def test_a_layer_that_is_not_there_is_not_written(layer):
    cache = poisoned()
    before = cache.keys.clone()
    with pytest.raises(ValueError, match=f"layer {layer} is outside"):
        cache.write(layer, *draw(1), [0])
    assert torch.equal(cache.keys.nan_to_num(7.0), before.nan_to_num(7.0))
