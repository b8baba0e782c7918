# ---
# title: Paged attention
# summary: Scattered keys, read where they lie; the kernel line by line, and what each byte costs
# minutes: 60
# objectives:
#   - follow one key from its request, token and head to its byte and to the program that reads it
#   - compute attention in tiles, and say why the sum so far must be rescaled
#   - merge two partial results, and say when splitting a context helps
#   - test a kernel so that reading a wrong slot cannot go unnoticed
# needs: CPU is enough; on a GPU the kernel runs compiled
# builds: [PagedKVCache, online_softmax, attend_by_group, paged_decode_kernel,
#          merge_attention_states]
# ---

# %% [markdown]
# Lesson 04 bought room and paid with order. A is at its ninth token. Where are its keys?

# %%
from course.engine.block_table import slot_mapping
from course.memory.example import BLOCK_SIZE, NUM_BLOCKS, TABLE_OF_A_AT_9_TOKENS
from course.show import block_table_figure

tables = {"A": TABLE_OF_A_AT_9_TOKENS, "B": [10, 14], "C": [12, 5]}
lengths = {"A": 9, "B": 5, "C": 6}
print("slots of A:", slot_mapping(tables["A"], range(lengths["A"]), BLOCK_SIZE))
block_table_figure(tables, lengths, follow="A")

# %% [markdown]
# Every attention routine that you know wants the keys of a sequence in one piece, in order. A's lie
# in three places, the first of them last. You could collect them first and then compute. Or you
# could read them where they lie: that is **paged attention**. This lesson does the first, uses it
# to check the second, and counts what each byte costs.

# %% [markdown]
# ## Write, then read everything back
#
# Here is a cache with one layer, two KV heads and six query heads. Before anything is written we
# fill it with NaN, "not a number". Any sum that touches a NaN becomes NaN, so whoever reads a slot
# that was not written will show it. We call this **poison**.

# %%
import torch

from course.engine.kv_cache import PagedKVCache
from course.sizing import ModelShape

small = ModelShape("small", 1, num_attention_heads=6, num_kv_heads=2, head_dim=8, max_model_len=64)
cache = PagedKVCache(small, NUM_BLOCKS, BLOCK_SIZE)
cache.keys.fill_(float("nan"))
cache.values.fill_(float("nan"))
print("keys of one layer [blocks, block size, KV heads, head dim]:", list(cache.keys[0].shape))

# %% [markdown]
# Now the requests' keys and values, in one piece each, as a model would give them. All of them go
# to their slots, except A's ninth token, which has only just been sampled.

# %%
generator = torch.Generator().manual_seed(5)
contiguous, written = {}, {"A": 8, "B": 5, "C": 6}
for name, length in lengths.items():
    k, v = torch.randn(2, length, 2, 8, generator=generator)
    contiguous[name] = k, v
    slots = slot_mapping(tables[name], range(written[name]), BLOCK_SIZE)
    cache.write(0, k[: written[name]], v[: written[name]], slots)

# %%
from course.show import predict

guess_reads = predict("A's 9th token goes through a layer. How many slots are read for A?")

# %% [markdown]
# Each sequence brings one query for each head: its newest token asks, all its tokens answer. We
# run the engine's slow, clear version, the **oracle**, twice: too early, and after the write.

# %%
from course.engine.paged_attention import paged_attention

queries = torch.randn(3, 6, 8, generator=generator)  # newest token of A, of B, of C
step = (list(tables.values()), list(lengths.values()))


def attend(backend):
    return paged_attention(queries, *cache.layer(0), *step, backend=backend)


# %%
too_early = attend("reference")
(new_slot,) = slot_mapping(tables["A"], [8], BLOCK_SIZE)
cache.write(0, contiguous["A"][0][8:], contiguous["A"][1][8:], [new_slot])
oracle = attend("reference")
for row, name in enumerate(tables):
    print(name, "NaN before:", bool(too_early[row].isnan().any()), end=", ")
    print("after:", bool(oracle[row].isnan().any()))
guess_reads.measured(lengths["A"], "all its tokens, itself included; one slot was written")

# %% [markdown]
# So a step does two things in every layer, in this order: **write** the new token's key and value
# to one slot, then **read** all slots of the sequence, the new one too. One write, and as many
# reads as there are tokens. Writing is cheap. The rest of this lesson is about reading.

# %% [markdown]
# ## Gather: the checkpoint
#
# The safe way is to collect the scattered rows into one piece, by the table. If that gives the
# contiguous rows back, bit for bit, then writing and tables are right.

# %%
k, v = cache.gather(0, tables["A"], lengths["A"])
is_same = [torch.equal(*pair) for pair in zip((k, v), contiguous["A"], strict=True)]
print("keys and values equal the contiguous ones:", is_same)

start = tables["A"][0] * BLOCK_SIZE
counted_on = cache.keys[0].flatten(0, 1)[start : start + lengths["A"]]
poisoned = int(counted_on.isnan().any(dim=(1, 2)).sum())
print(f"counting on from slot {start}: {poisoned} of {lengths['A']} rows are NaN")

# %% [markdown]
# With rows in one piece, PyTorch's own attention works, and must agree with the oracle:

# %%
import torch.nn.functional as F

whole = F.scaled_dot_product_attention(
    queries[:1, :, None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], enable_gqa=True
)
print("as the oracle:", torch.allclose(whole[0, :, 0], oracle[0], atol=1e-6))

# %% [markdown]
# Why not stop here? Count the bytes. Gathering reads every key and value and writes a copy, and
# then attention reads the copy.

# %%
from course.show import table
from course.sizing import MODELS, kv_bytes

llama, batch, context = MODELS["Llama-3-8B"], 32, 2048
once = batch * kv_bytes(llama, context)
h100_bandwidth = 3.35e12  # bytes per second, NVIDIA's data sheet of the H100 SXM
rows = [("way", "GiB moved per step", "ms at least on an H100")]
for way, times in (("read in place", 1), ("gather, then read", 3)):
    rows.append((way, times * once / 2**30, round(1000 * times * once / h100_bandwidth, 1)))
table(rows, f"{llama.name}, {batch} requests of {context:,} tokens, all layers, fp16")

# %% [markdown]
# Three times the traffic, for each token, and nothing learned from it. Decode is bound by memory
# traffic (lesson 01), so this is close to three times the time. Gather stays what it is good at: a
# checkpoint.

# %% [markdown]
# ## Softmax in one pass
#
# To read in place, we take the keys tile by tile, as the table gives them, and never hold all
# scores. But softmax divides by a sum over *all* of them, and to be safe subtracts the largest
# first. Why the largest? Half precision ends early:

# %%
scores_fp16 = torch.tensor([12.0, 11.0], dtype=torch.float16)
print("exp of the scores:         ", scores_fp16.exp().tolist())
print("exp after subtracting 12:  ", [round(x, 3) for x in (scores_fp16 - 12).exp().tolist()])

# %% [markdown]
# In fp32 the end comes later, but it comes. So take four scores in two tiles of two, and keep three
# numbers while you go: `m`, the largest score so far; `l`, the sum of the weights so far; `acc`,
# the weighted sum of the values so far. Both sums are taken relative to `m`.

# %%
guess_rescale = predict(
    "Tile 1 has largest score 3, tile 2 has 5. What happens to l and acc of tile 1?",
    ["they stay", "times exp(3 - 5)", "times exp(5 - 3)", "start again from tile 1"],
)

# %%
from math import exp, inf

tiles = [([1.0, 3.0], [10.0, 20.0]), ([2.0, 5.0], [30.0, 40.0])]
m, l_sum, acc = -inf, 0.0, 0.0
rows = [("after tile", "m", "rescale by", "l", "acc", "acc / l")]
for number, (scores, values) in enumerate(tiles, 1):
    new_m = max(m, *scores)
    rescale = exp(m - new_m)
    weights = [exp(score - new_m) for score in scores]
    l_sum = l_sum * rescale + sum(weights)
    acc = acc * rescale + sum(w * x for w, x in zip(weights, values, strict=True))
    m = new_m
    rows.append((number, m, round(rescale, 4), *(round(x, 4) for x in (l_sum, acc, acc / l_sum))))
table(rows, "Online softmax: one look at each score")

# %%
guess_rescale.measured("times exp(3 - 5)", "they were relative to 3 and must be relative to 5")
all_scores = torch.tensor(tiles[0][0] + tiles[1][0])
all_values = torch.tensor(tiles[0][1] + tiles[1][1])
at_once = float(torch.softmax(all_scores, 0) @ all_values)
online = acc / l_sum
print(f"softmax over all four at once: {at_once:.4f}")
print(f"online:                        {online:.4f}")

not_rescaled = [
    sum(exp(s - max(t[0])) * x for t in tiles for s, x in zip(*t, strict=True)),
    sum(exp(s - max(t[0])) for t in tiles for s in t[0]),
]
wrong = not_rescaled[0] / not_rescaled[1]
print(f"without the rescaling:         {wrong:.4f}")

# %% [markdown]
# The reason is one line of school algebra: `exp(s - 5) = exp(s - 3) * exp(3 - 5)`. One factor
# moves a whole sum from the old reference to the new. `acc / l` after a tile is the exact answer
# for the tokens seen so far. Before the first tile `m` is minus infinity, and `exp(-inf)` is 0:
# nothing, times 0.
#
# Forget the factor and you get {{ wrong:.1f }} where {{ online:.1f }} is right: a plausible number,
# no error.

# %% [markdown]
# ## The oracle and the kernel
#
# Now the real code. The oracle computes one query after another and looks every slot up by itself:

# %%
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent


def show_code(module, first, last):
    """Print the engine's own lines, from the one that holds `first` to the one with `last`."""
    lines = Path(find_spec(f"course.engine.{module}").origin).read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i in range(start, len(lines)) if last in lines[i])
    print(f"# {module}.py\n" + dedent("\n".join(lines[start : end + 1])))


show_code("attention_reference", "slots = []", "slots.append")
show_code("attention_reference", "slots = torch.tensor", "lse[row] = ")

# %% [markdown]
# The kernel is written in **Triton**: Python in form, compiled for the GPU. Many copies of it, its
# **programs**, run at once. Each learns from three numbers which part is its own.

# %%
show_code("triton_decode", "seq = tl.program_id(0)", "num_splits = tl.num_programs(2)")

# %% [markdown]
# One program for one sequence, one KV head and one *split*, a share of the context; for now there
# is one split. It loops over its share in tiles. Each turn starts with the walk that you know from
# lesson 04, for all tokens of the tile at once:

# %%
show_code("triton_decode", "position = tile_start", "offsets += kv_head * stride_kv_head")

# %% [markdown]
# Position, block id, row, address: the oracle's `divmod` in three lines. `in_context` is the mask:
# a position past the end loads no table entry and, below, no key. The id is made `int64` before it
# is multiplied, since the offsets in a large cache outgrow `int32`.

# %%
show_code("triton_decode", "# The product is summed", "scores = tl.where")

# %% [markdown]
# Masked positions were loaded as zeros. A zero key has score 0, which is a vote, so the last line
# turns it into minus infinity. Masking the load keeps the poison out; masking the score keeps the
# zeros out. A kernel needs both.

# %%
show_code("triton_decode", "# Online softmax", "weights = tl.exp(scores")
print("...")
show_code("triton_decode", "running_max = new_max", "weighted_values = tl.dot(weights")

# %% [markdown]
# These are the lines of your table above, with `running_max` for `m`, `running_sum` for `l` and
# `weighted_values` for `acc`, for all query heads of the program at once. After the loop comes one
# division.

# %% [markdown]
# ## Run it, with poison
#
# Without a GPU, Triton can interpret its kernels on the CPU: slow, but the same source. The setting
# must be made before Triton is imported.

# %% tags=["nbval-ignore-output"]
from course.engine.triton_support import triton_status, use_interpreter_without_gpu

use_interpreter_without_gpu()
status = triton_status()
print(f"Triton {status.version}: {status.mode}. {status.problem or ''}")


def run_kernel(q, keys, values, tables, lengths, **more):
    """The Triton kernel's answer, or None where it cannot run."""
    if status.problem:
        return None
    place = "cuda" if status.mode == "compiled" else "cpu"
    moved = [tensor.to(place) for tensor in (q, keys, values)]
    return paged_attention(*moved, tables, lengths, backend="triton", **more).cpu()


# %%
guess_nan = predict("44 of the 64 slots hold NaN. NaN in the kernel's answer?", ["yes", "no"])

# %% tags=["nbval-ignore-output"]
kernel_out = run_kernel(queries, *cache.layer(0), *step)
if kernel_out is None:
    print("not run:", status.problem)
else:
    kernel_error = float((kernel_out - oracle).abs().max())
    print("NaN in the answer:", bool(kernel_out.isnan().any()))
    print(f"largest difference from the oracle: {kernel_error:.1e}")

# %% [markdown]
# The PyTorch backend, which our engine has for CPUs, gets the same test. Then a fault on purpose:
# one wrong entry in A's table, which names a free block.

# %%
poison_slots = int(cache.keys[0].isnan().any(dim=(2, 3)).sum())
torch_out = attend("torch")
print("poisoned slots:", poison_slots, "of", cache.num_slots)
torch_error = float((torch_out - oracle).abs().max())
print("torch backend agrees to 1e-6:", torch_error < 1e-6)
wrong_tables = [[7, 1, 4], *step[0][1:]]
fault = paged_attention(queries, *cache.layer(0), wrong_tables, step[1], backend="torch")
print("one wrong entry, rows with NaN:", fault.isnan().any(dim=(1, 2)).tolist())
guess_nan.measured("no", "it reads its own slots and nothing else")

# %% [markdown]
# Had the cache been zeros, A's answer would have been a number like any other, and nothing in it
# would have said that it is wrong. Two habits make a kernel's test worth having: poison wherever
# nobody may read, and ids out of order.

# %% [markdown]
# ## Every pointer, to the byte
#
# Choose a request, a token and a KV head, and see where that key is and who reads it. First, guess.

# %%
guess_byte = predict("A's token at position 8, KV head 1, fp16. At which byte does its key begin?")

# %%
from course.show import address_microscope

scope = address_microscope("A", token=8, head=1)

# %%
address = scope.address()
guess_byte.measured(address["first byte"], f"slot {address['slot']}, second of two heads")
for name, number in address.items():
    print(f"{name:20} {number}")

# %% [markdown]
# The layout decides what is near. The last dimension is a head's values: they are neighbours, so a
# program reads a key in one sweep. Then come the other heads of the same token, read by *other*
# programs. The next token of the same block is one step of `num_kv_heads * head_dim` further. Only
# from block to block is there a jump.
#
# Who reads what? Ask the microscope for all keys. Its tiles are one block; the kernel's are longer.

# %%
from collections import Counter

readers, byte_ranges = Counter(), set()
for row, (name, length) in enumerate(lengths.items()):
    for token in range(length):
        for head in range(small.num_kv_heads):
            a = address_microscope(name, token, head, show=False).address()
            readers[row, head, a["split"]] += a["bytes"]
            byte_ranges.add(a["first byte"])
rows = [("program", "reads", "bytes of keys")]
names = list(lengths)
rows += [(str(ids), f"{names[ids[0]]}, KV head {ids[1]}", n) for ids, n in readers.items()]
table(rows, "paged_decode_kernel (sequence, KV head, split), one layer")

# %%
keys_read = sum(readers.values()) // address["bytes"]
print(f"{keys_read} keys read, {len(byte_ranges)} different ones: each key by one program, once")

# %% [markdown]
# ## One program for a whole group
#
# The small model has six query heads and two KV heads: three query heads ask the same keys. This is
# grouped-query attention (lesson 01). One could start a program for each *query* head.

# %%
guess_gqa = predict("Llama 3 8B: 32 query heads, 8 KV heads. A program a query head reads how many "
                    "times the bytes?", unit="times")  # fmt: skip

# %%
context = 8192
rows = [("model", "query heads", "KV heads", "MiB, one a query head", "MiB, packed", "FLOP/byte")]
for name in ("Llama-2-7B", "Llama-3-8B", "Qwen2.5-7B", "Llama-3.1-405B"):
    s = MODELS[name]
    per_head = 2 * context * s.head_dim * 2 / 2**20  # keys and values, fp16
    unpacked, packed = s.num_attention_heads * per_head, s.num_kv_heads * per_head
    flops = 4 * context * s.head_dim * s.num_attention_heads  # two products, a multiply-add each
    numbers = (unpacked, packed, flops / (packed * 2**20))
    rows.append((name, s.num_attention_heads, s.num_kv_heads, *(round(n) for n in numbers)))
table(rows, f"Keys and values asked for in one layer, one request of {context:,} tokens")

# %%
group = llama.num_attention_heads // llama.num_kv_heads
guess_gqa.measured(group, "once for each head of the group, instead of once for the group")

# %% [markdown]
# Our kernel packs: it loads a tile of keys once and multiplies it with all query heads of the group
# in one `tl.dot`. (The unpacked version may find some of the repeats in the GPU's cache. It asks
# for them all the same.)
#
# The last column says why it matters: work per byte *is* the group size, and a GPU could do
# hundreds of FLOP in the time of one byte. Look at the padding with that in mind:

# %%
show_code("triton_config", "padded = next_power_of_two(head_dim)", "padded = next")
show_code("triton_config", '"GROUP_PADDED"', '"GROUP_PADDED"')
show_code("triton_config", "def next_power_of_two", "return max(16")

# %% [markdown]
# A group of {{ group }} is padded to the smallest tile that a tensor core multiplies, and most of
# that product is thrown away. It costs arithmetic, which is idle anyway, and not one byte.

# %% [markdown]
# ## When one program is not enough
#
# One user, one long document, batch 1. An H100 SXM has
# {{= 132 | NVIDIA, H100 Tensor Core GPU Architecture }} processors.

# %%
guess_busy = predict("Llama 3 8B, batch 1, no splits: how many of 132 processors have work?")

# %%
from course.show import split_figure

split_figure(llama.num_kv_heads, processors=132, context=32_768, splits=(1, 16))

# %%
guess_busy.measured(llama.num_kv_heads, "one program for each KV head")

# %% [markdown]
# Sequences times KV heads: with a large batch that fills a GPU. With one request it does not, and
# eight processors alone cannot draw the memory's full bandwidth. So cut the context into splits, a
# program for each: **split-KV**, or Flash-Decoding. The walk is the same. But now each program has
# the answer for its own tokens only.
#
# How do you put two answers together? A's first two blocks hold eight tokens, its third holds one.

# %%
guess_merge = predict(
    "Two partial results, over 8 tokens and over 1. How to merge their outputs?",
    ["plain mean", "weights 8 : 1", "weights by the sum under each softmax"],
)

# %%
from course.engine.paged_attention import merge_attention_states


def part_of_a(block_ids, num_tokens):
    return paged_attention(
        queries[:1], *cache.layer(0), [block_ids], [num_tokens], backend="reference",
        return_lse=True,
    )  # fmt: skip


# %%
out_8, lse_8 = part_of_a([7, 1], 8)
out_1, lse_1 = part_of_a([3], 1)
merged, lse = merge_attention_states(out_8, lse_8, out_1, lse_1)
attempts = {"plain mean": (out_8 + out_1) / 2, "weights 8 : 1": (8 * out_8 + out_1) / 9}
for name, attempt in (attempts | {"merged": merged}).items():
    print(f"{name:14} largest error {float((attempt - oracle[:1]).abs().max()):.4f}")

# %%
weight_of_1 = torch.exp(lse_1 - lse)[0].tolist()
rows = [("query head", "lse of 8 tokens", "lse of 1 token", "weight of the 1")]
for head, weight in enumerate(weight_of_1):
    parts = (float(lse_8[0, head]), float(lse_1[0, head]))
    rows.append((head, *(round(x, 2) for x in (*parts, weight))))
table(rows, "A's two parts: every head weighs them in its own way")

# %%
guess_merge.measured("weights by the sum under each softmax")
lightest, heaviest = min(weight_of_1), max(weight_of_1)

# %% [markdown]
# Each part brings its output and one more number per head: its **lse**, the logarithm of the sum
# under its softmax (`m + log(l)`). A part weighs `exp(lse)`. Here the single token weighs between
# {{ 100 * lightest:.0f }} % and {{ 100 * heaviest:.0f }} %. Counting tokens cannot know that.
#
# It is the online softmax again, with parts for tiles. So order does not matter, and a part that
# saw no token, with an lse of minus infinity, weighs nothing, whatever its output holds:

# %%
swapped, _ = merge_attention_states(out_1, lse_1, out_8, lse_8)
print("order does not matter:", torch.equal(merged, swapped))
nothing, lse_nothing = part_of_a([], 0)
print("lse of an empty part: ", lse_nothing[0, 0].item())
poisoned_out = torch.full_like(out_8, float("nan"))
kept, _ = merge_attention_states(out_8, lse_8, poisoned_out, lse_nothing)
print("merged with it, even with NaN in its output:", torch.allclose(kept, out_8))

# %% [markdown]
# Empty parts are not rare: in a batch of one long and one short context, the short one has nothing
# for most of its splits. The kernel with one, two and three splits, poison everywhere else:

# %%
import random

long_cache = PagedKVCache(small, 64, 16)
long_cache.keys.fill_(float("nan"))
long_cache.values.fill_(float("nan"))
ids = random.Random(5).sample(range(64), 64)
long_tables, long_lengths = [ids[:38], ids[38:40]], [600, 20]
for block_ids, length in zip(long_tables, long_lengths, strict=True):
    k, v = torch.randn(2, length, 2, 8, generator=generator)
    long_cache.write(0, k, v, slot_mapping(block_ids, range(length), 16))

# %% tags=["nbval-ignore-output"]
long_step = (queries[:2], *long_cache.layer(0), long_tables, long_lengths)
expected = paged_attention(*long_step, backend="reference")
for num_splits in (1, 2, 3):
    out = run_kernel(*long_step, num_splits=num_splits)
    said = "not run" if out is None else f"difference {float((out - expected).abs().max()):.1e}"
    print(f"{num_splits} splits: {said}")

# %% [markdown]
# Splits are not free: each writes a partial result that a second kernel reads. The engine splits
# only until the processors are busy, and never below a share worth having. With a large batch it
# does not split at all.

# %%
show_code("triton_config", "PROGRAMS_PER_PROCESSOR =", "TOKENS_PER_SPLIT =")
show_code("triton_config", "to_fill = ", "return max(1")

# %% [markdown]
# ## Compiled for a GPU that is not here
#
# The interpreter says whether a kernel is right. It says nothing about speed. But the compiler
# needs no GPU either: it writes machine code for any, and we can read back what it cost. A few
# seconds:

# %% tags=["nbval-ignore-output"]
from course.kernel_report import compile_kernels, configurations, format_table

report = []
if find_spec("triton") is None:
    print("not run: Triton is not installed here")
else:
    configs = configurations(("decode",), ("sm_80", "sm_90"), ("fp16",))
    configs += configurations(("decode",), ("sm_90",), ("fp16",), block_sizes=(1, 128))
    report = compile_kernels(configs)
    print(format_table(report))

# %% tags=["nbval-ignore-output"]
for row in report:
    threads = 32 * row["num_warps"]
    fit = 65_536 // (row["registers"] * threads)
    name = f"{row['target']}, block size {row['block_size']}"
    print(f"{name}: registers for {fit} programs side by side; {row['spill_bytes']} bytes spilled")

# %% [markdown]
# How to read it. `sm_80` is an A100, `sm_90` an H100. A processor of either has
# {{= 65,536 | CUDA C++ Programming Guide, compute capabilities }} **registers**, so the count per
# thread limits how many programs share it; while one waits for keys, another computes.
# **Spills** did not fit and go through memory: there should be none. **Shared memory** holds tiles
# on their way. **Loads** are counted by width in bits: the widest carries eight fp16 values, and
# keys come that way. Narrow ones fetch lengths and table entries.

# %% [markdown]
# Compare the last rows. From the smallest block to the largest the loads are as wide: a load lies
# inside one head's values, and those are always neighbours. What a small block costs is in the
# lookups and in how far apart the pieces are, and the compiler does not show that.

# %% [markdown]
# ## The honest price
#
# So measure: four sequences, one layer in the shape of SmolLM2's, on this CPU. Rows already in one
# piece, rows gathered first, and the paged PyTorch backend.

# %%
guess_block = predict(
    "On this CPU: is gathering from blocks of 1 much slower than from blocks of 256?",
    ["over twice the time", "within a factor of 2"],
)

# %%
from course.engine.paged_attention import AttentionPlan


def case(block_size, length=2048, batch=4):
    """Contiguous keys and values, their slots, and a plan of the paged backend."""
    layer = ModelShape("one layer", 1, 9, 3, 64, 8192)
    num_blocks = batch * length // block_size
    cache = PagedKVCache(layer, num_blocks, block_size)
    ids = torch.randperm(num_blocks, generator=generator).view(batch, -1).tolist()
    slots = torch.tensor([slot_mapping(row, range(length), block_size) for row in ids])
    contiguous = torch.randn(2, batch, length, 3, 64, generator=generator)
    cache.write(0, *contiguous.flatten(1, 2), slots.flatten())
    plan = AttentionPlan(ids, [length] * batch, block_size=block_size, backend="torch")
    return cache, contiguous, slots, plan


# %%
from statistics import median
from time import perf_counter

q = torch.randn(4, 9, 64, generator=generator)


def dense(k, v):
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


# %%
def milliseconds(function):
    times = []
    for _ in range(9):
        start = perf_counter()
        function()
        times.append(1000 * (perf_counter() - start))
    return round(median(times[1:]), 2)


# %%
def time_all(block_size):
    paged_cache, contiguous, slots, plan = case(block_size)
    layer = paged_cache.layer(0)

    def gather():
        return [tensor.flatten(0, 1)[slots] for tensor in layer]

    return (
        milliseconds(lambda: dense(*contiguous)),
        milliseconds(gather),
        milliseconds(lambda: dense(*gather())),
        milliseconds(lambda: plan.attend(q, *layer)),
    )


# %% tags=["nbval-ignore-output"]
timings = {block_size: time_all(block_size) for block_size in (1, 16, 256)}
head = ("block size", "contiguous, ms", "gather alone, ms", "gather + attention, ms", "paged, ms")
table([head, *((b, *t) for b, t in timings.items())], f"{torch.get_num_threads()} threads, median")

# %% tags=["nbval-ignore-output"]
slowdown = timings[1][1] / timings[256][1]
print(f"gather, blocks of 1 : blocks of 256 = {slowdown:.1f}")
guess_block.measured("over twice the time" if slowdown > 2 else "within a factor of 2")
for block_size, (whole, _, gathered, paged) in timings.items():
    print(f"block size {block_size}: gathered {gathered / whole:.1f} x the contiguous time, "
          f"paged {paged / whole:.1f} x")  # fmt: skip

# %% [markdown]
# Rows in one piece are hard to beat. In the smallest blocks each row is a jump of its own; what
# that costs varies from run to run. The paged backend copies the keys, but reads values where they
# lie.
#
# On a GPU the paper's kernel was
# {{= 20 to 26 % | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 7.1 }} slower than a
# contiguous one. Attention is only a part of a step, and the gain is elsewhere: many more requests
# in the same memory.

# %% [markdown]
# ### What was measured where
#
# A course should say what it knows and from where. This table fills itself in:

# %% tags=["nbval-ignore-output"]
places = {"interpreter": "Triton's interpreter, this CPU", "compiled": "this GPU"}
ran = status.problem is None
targets = " and ".join(sorted({row["target"] for row in report}))
spilled = sum(row["spill_bytes"] for row in report)

# %% tags=["nbval-ignore-output"]
table([
    ("what", "where", "result"),
    ("gather gives the contiguous rows", "this CPU", "bit for bit" if all(is_same) else "no"),
    ("torch backend against the oracle", "this CPU, NaN poison", f"differs by {torch_error:.1e}"),
    ("kernel against the oracle", places.get(status.mode, "-"),
     f"differs by {kernel_error:.1e}" if ran else "not run"),
    ("kernel compiles for " + (targets or "a GPU"), "compiler only, no GPU used",
     f"{spilled} bytes spilled" if report else "not run"),
    ("time of the PyTorch ways", "this CPU", "the table above"),
    ("time of the kernel", "on a GPU", "not measured in this lesson"),
    ("20 to 26 % slower kernel", "the paper's GPU", "given, not ours"),
], "What this run knows")  # fmt: skip

# %% [markdown]
# ## What is still wasted
#
# - Attention now reads each key once. But the model's *weights* are read once per step too, however
#   few requests take part. Who keeps the batch full when requests come and go? That is lesson 06.
# - Two requests with the same prompt read the same bytes from two places. That is lesson 07.

# %% tags=["nbval-ignore-output"]
from course.show import check_yourself, prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
check_yourself(
    "A kernel passes its test. The cache was filled with zeros and block ids were 0, 1, 2, ... "
    "What do you know?",
    {
        "The table walk is right.": "With rising ids, a kernel that ignores the table reads the "
        "same slots. Shuffle them.",
        "Little: wrong reads could go unseen.": "Zeros are quiet and rising ids hide a missing "
        "lookup. Fill with NaN, shuffle the ids, and give every slot another value.",
        "Nothing, since zeros make all answers zero.": "Written slots hold real values, so the "
        "sums are real. It is the reads beyond them that stay invisible.",
    },
    right="Little: wrong reads could go unseen.",
)
check_yourself(
    "In the online softmax, a new tile's scores are all smaller than m. By what is l multiplied?",
    {
        "By 1.": "m does not change, so the sum so far is already relative to the right number: "
        "exp(m - m) is 1.",
        "By 0.": "That is the case before the first tile, when m is minus infinity.",
        "By something below 1, since the tile adds weight.": "What the tile adds is added. "
        "Rescaling only follows a change of m.",
    },
    right="By 1.",
)
check_yourself(
    "Two programs each had half of a context. Their outputs are to be merged. What else is needed?",
    {
        "Nothing: equal halves, so take the mean.": "Equal in tokens, not in weight: one half may "
        "hold the token that the query looks for.",
        "The lse of each, per query head.": "exp(lse) is the sum under each softmax, so it is what "
        "each part weighs. Heads differ.",
        "All scores of both halves.": "They would do, but one number per head says all that the "
        "merge needs of them.",
    },
    right="The lse of each, per query head.",
)
check_yourself(
    "Batch of 256 requests on one GPU, each of 500 tokens. Should each context be split in 16?",
    {
        "Yes, more programs are faster.": "There are enough: 256 sequences times the KV heads. "
        "Splits would only add partial results to write, read and merge.",
        "No, the processors are busy already.": "Splitting helps when sequences times KV heads "
        "are fewer than the processors can hold, and the context is long.",
        "No, because the merge would change the result.": "Up to rounding, it does not.",
    },
    right="No, the processors are busy already.",
)
check_yourself(
    "Why does one program serve all query heads of a KV head?",
    {
        "To save registers.": "It needs more of them: a sum for each head.",
        "So that each key is loaded once for the group.": "Bytes bound decode attention. The "
        "multiplications that packing adds are on units that would idle.",
        "Because the heads have the same scores.": "They have the same keys. Queries and so scores "
        "differ.",
    },
    right="So that each key is loaded once for the group.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"Mask the scores and NaN is harmless."* A weight of zero times a value that is NaN is NaN. Mask
#   the loads.
# - *"Masked loads give zero, so no mask on the scores."* A score of zero is a vote like any other.
# - *"Paging makes attention faster."* It makes room. The kernel works to lose little.
# - *"The new token is attended to in the next step."* It sees itself: write first, then read.
# - *"The context length does not count this step's token."* Here it does; one off, and the newest
#   key is ignored without a word.
# - *"It runs in the interpreter, so it compiles."* The two accept different things. Do both.

# %% [markdown]
# ## Key takeaways
#
# - A step writes one slot for each new token and reads all slots of its sequence, by the table.
# - Gather is the checkpoint, at three times the traffic. The kernel reads in place.
# - Online softmax keeps `m`, `l` and `acc`, and moves both sums to the new `m` by one factor.
# - One program for a KV head reads its keys once for the whole group.
# - Partial results merge by their lse. Split long contexts when the batch is too small to fill a
#   GPU.
# - Say where a number was measured, and "not run" where it was not.

# %% [markdown]
# ## Further reading
#
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: sec. 4.1 for the algorithm.
# - M. Milakov and N. Gimelshein, [Online normalizer calculation for
#   softmax](https://arxiv.org/abs/1805.02867), 2018: where the running sum comes from.
# - T. Dao and others, [FlashAttention](https://arxiv.org/abs/2205.14135), 2022: attention in tiles.
# - T. Dao and others, [Flash-Decoding for long-context
#   inference](https://pytorch.org/blog/flash-decoding/), 2023: the splits.
# - J. Ainslie and others, [GQA](https://arxiv.org/abs/2305.13245), 2023: groups of query heads.
# - Z. Ye and others, [FlashInfer](https://arxiv.org/abs/2501.01005), 2025: attention states and
#   their merge as building blocks.
