# ---
# title: Smaller and farther
# summary: int8 keys and values, windows, latents and the host's memory; what each saves and costs
# minutes: 40
# after: [4, 5, 8]
# objectives:
#   - compute what int8 saves, scales included, and measure what it does to outputs and texts
#   - say which blocks a sliding window gives back and when, and what mixed layers save
#   - show that absorbing MLA's up-projection changes the sizes and not the output
#   - choose between swapping a request out and computing it again, with numbers
# builds: [quantize, dequantize, QuantizedPagedKVCache, num_passed_blocks, free_passed]
# ---

# %% [markdown]
# After eight lessons hardly a slot is empty. Good. Now send one request of {{ far:,}} tokens.

# %%
from course.show import bar_plot
from course.sizing import GIB, MODELS, kv_bytes, kv_bytes_per_token

far = 131_072
names = ("Llama-3.1-405B", "Qwen2.5-72B", "Gemma-3-27B", "DeepSeek-V3 671B")
gib = {name: kv_bytes(MODELS[name], far) / GIB for name in names}
bar_plot(gib, "GiB", f"KV cache of one request of {far:,} tokens, 16 bits a number")

# %% [markdown]
# Every slot of that is live. Paging has nothing left to win: it removes empty slots and makes no
# full slot smaller. And yet the largest of these models has the smallest cache. A cache is a
# product:
#
#     tokens kept x layers x numbers per token and layer x bytes per number
#
# and it sits on the GPU for some time. This lesson pulls at four of these: bytes (int8), tokens
# kept (windows), numbers (MLA), and where it sits (swap).

# %% [markdown]
# ## Fewer bytes: int8
#
# **Quantising** stores each number as a whole number of steps. Take a key. Choose the step so that
# its largest number, sign aside, is {{ most_steps }} steps, the most that one byte can hold on both
# sides of 0. Round each number to a step. Keep the size of a step as well, the **scale**, or nobody
# can read it back.

# %%
import torch

from course.engine.quantized_kv import dequantize, quantize

most_steps = torch.iinfo(torch.int8).max
key = torch.tensor([[0.5, -2.0, 1.0, 0.01]])
int8_key, key_scale = quantize(key)
print("stored:   ", int8_key.tolist(), " scale:", round(key_scale.item(), 4))
print("read back:", [round(x, 3) for x in dequantize(int8_key, key_scale, key.dtype)[0].tolist()])
small_number = round(key[0, 3].item(), 2)

# %% [markdown]
# The small number suffered most: {{ small_number }} came back as the nearest step. One large number
# in a row makes the steps coarse for all its neighbours. So each token and head has its own scale.
#
# Here is the real model, and a pool of each kind.

# %%
from course.show import predict

guess_bytes = predict("int8 with scales: what part of a 16-bit cache does it take?", unit="%")

# %%
guess_text = predict(
    "Eight prompts, 48 tokens each, always the likeliest token. Does any text change?",
    ["yes", "no"],
)

# %%
from course.engine import LLM, PagedKVCache, QuantizedPagedKVCache, SamplingParams
from course.show import table
from course.sizing import quantised_kv_bytes_per_token

loaded = LLM("smollm2", dtype="float32", device="cpu", num_blocks=64)
model, tokenizer = loaded.model, loaded.tokenizer
shape = model.config.shape
exact = PagedKVCache(shape, 16, 16)
small = QuantizedPagedKVCache(shape, 16, 16)
half = PagedKVCache(shape, 16, 16, dtype=torch.float16)

# %%
rows = [("cache", "bytes", "bytes per token")]
for name, cache in (("fp32", exact), ("fp16", half), ("int8", small)):
    rows.append((name, cache.num_bytes, cache.num_bytes // cache.num_slots))
table(rows, f"SmolLM2-135M: {small.num_slots} slots")

# %%
int8_share = 100 * small.num_bytes / half.num_bytes
llama = MODELS["Llama-3-8B"]
llama_share = 100 * quantised_kv_bytes_per_token(llama) / kv_bytes_per_token(llama)
guess_bytes.measured(round(int8_share), "not 50: the scales are bytes too")
print(f"{llama.name}, with heads of {llama.head_dim}: {llama_share:.0f} %")

# %% [markdown]
# Now what it does to attention. Both caches get the same keys and values, both are asked with the
# same queries, in every layer. The model goes on with the exact answer, so that each layer's error
# is its own. The error is the length of the difference, in percent of the length of the output.


# %%
from course.engine import AttentionPlan, slot_mapping

sentence = "The rain falls on the hills and the river carries it back to the sea. "
ids = tokenizer.encode(sentence * 12)[:200]
block_table = [(7 * i + 3) % 16 for i in range(13)]
plan = AttentionPlan([block_table], [len(ids)], [0, len(ids)], block_size=16)
slots = slot_mapping(block_table, range(len(ids)), 16)

# %%
errors = []


def attend_both(layer, q, k, v):
    for cache in (exact, small):
        cache.write(layer, k, v, slots)
    a, b = (plan.attend(q, *cache.layer(layer)) for cache in (exact, small))
    errors.append(100 * ((a - b).norm() / a.norm()).item())
    return a


# %%
from statistics import median

positions = torch.arange(len(ids))
errors.clear()
with torch.inference_mode():
    hidden = model.forward(torch.tensor(ids), positions, attend_both)
print(f"error of attention outputs against fp32, {len(errors)} layers, {len(ids)} tokens:")
print(f"median {median(errors):.0f} %, largest {max(errors):.0f} %")

# %% [markdown]
# A small error in every layer. Is it small enough? The model decides. The engine of lesson 08,
# once with each cache; nothing else is changed.

# %%
prompts = ["The capital of France is", "Once upon a time there was a little",
           "To make bread you need", "The sun is a star because", "def add(a, b):",
           "In the year 1969", "My favourite animal is", "Water boils when"]  # fmt: skip
limits = SamplingParams(max_tokens=48, ignore_eos=True)


# %%
from itertools import pairwise
from time import perf_counter


def timed(server):
    ends = []
    answers = server.generate(prompts, limits, on_step=lambda _: ends.append(perf_counter()))
    return answers, 1000 * min(b - a for a, b in pairwise(ends))


# %%
texts, step_ms = {}, {}
for name in ("fp32", "int8"):
    server = LLM((model, tokenizer), num_blocks=64, prefix_caching=False)
    if name == "int8":
        server.core.runner.cache = QuantizedPagedKVCache(shape, 64, 16)
    texts[name], step_ms[name] = timed(server)

# %% tags=["nbval-ignore-output"]
rows = [("prompt", "the same for", "fp32 goes on", "int8 goes on")]
first_change = []
for prompt, a, b in zip(prompts, texts["fp32"], texts["int8"], strict=True):
    pairs = list(zip(a.token_ids, b.token_ids, strict=True))
    same = next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
    first_change.append(same)
    ends = [repr(tokenizer.decode(r.token_ids[same : same + 4])) for r in (a, b)]
    rows.append((prompt, same, *(ends if same < len(pairs) else ("the same", "the same"))))
table(rows, "Tokens until the first difference, on this machine")
print("fastest step:", ", ".join(f"{name} {ms:.0f} ms" for name, ms in step_ms.items()))

# %% tags=["nbval-ignore-output"]
from course.engine.model import dense_attend

rows = [("prompt", "likeliest token", "%", "second", "%")]
for prompt, run, same in zip(prompts, texts["fp32"], first_change, strict=True):
    if same < 48:
        before_fork = torch.tensor(run.prompt_token_ids + run.token_ids[:same])
        with torch.inference_mode():
            top = model.forward(before_fork, torch.arange(len(before_fork)), dense_attend())[-1:]
            best = model.logits(top).softmax(-1)[0].topk(2)
        (p1, p2), (t1, t2) = (100 * best.values).tolist(), best.indices.tolist()
        first, second = (repr(tokenizer.decode([t])) for t in (t1, t2))
        rows.append((prompt, first, round(p1, 1), second, round(p2, 1)))
table(rows, "Where a text forks: the exact model's probabilities")

# %%
guess_text.measured("yes" if min(first_change) < 48 else "no")

# %% [markdown]
# Some texts stay, some fork. A text forks where the best tokens were almost equally likely. From
# there on every token has another context. A fork is not yet a worse answer. To know that, run a
# benchmark of *your* task on *your* model. Eight prompts prove that texts can change, and nothing
# more.

# %% [markdown]
# Compare the steps, too. Fewer bytes are not faster by themselves: this attention turns them back
# into floats first. On a GPU it helps to read less, if the kernel converts as it reads.

# %% [markdown]
# ## Fewer tokens: sliding windows
#
# In some models a token sees only the last W tokens, itself included: a **sliding window**. What no
# later token can see need not be kept. With blocks, giving it back is easy. Here the window is
# {{ window }} tokens, in blocks of {{ BLOCK_SIZE }}.

# %%
guess_window = predict("Window of 8, blocks of 4. At most how many blocks are held after a step?")

# %%
from course.engine import KVManager, Request
from course.engine.block_pool import BlockPool
from course.memory.example import BLOCK_ORDER, BLOCK_SIZE, NUM_BLOCKS

# %%


def blocks_held(window, num_tokens):
    pool = BlockPool(NUM_BLOCKS, order=BLOCK_ORDER)
    manager = KVManager(NUM_BLOCKS, BLOCK_SIZE, False, sliding_window=window, pool=pool)
    request = Request("A", list(range(num_tokens)), SamplingParams())
    manager.admit(request, 1)
    held = []
    for n in range(1, num_tokens + 1):
        manager.grow(request, n)
        request.num_computed_tokens = n
        manager.publish(request)  # what the window has passed goes back to the pool here
        held.append(sum(block >= 0 for block in manager.tables["A"]))
    return held, manager


# %%
from course.show import block_grid, line_plot

window, steps = 8, list(range(1, 41))
held_full, _ = blocks_held(None, 40)
held_window, slid = blocks_held(window, 40)
line_plot(
    {"every token": (steps, held_full), "window of 8": (steps, held_window)},
    "tokens computed", "blocks held", "With a window the table stops growing", steps=True,
)  # fmt: skip

# %%
print("table:", slid.tables["A"])
most_held = max(held_window)
guess_window.measured(most_held, "a window may lie across two boundaries")
block_grid(slid.tables, {"A": 40})

# %% [markdown]
# The -1 entries keep the places: a position is still in the same logical block, so `divmod` needs
# no change. The window is {{ window // BLOCK_SIZE }} blocks long, and yet {{ most_held }} are held
# whenever it lies across two boundaries.
#
# Is anything lost? Overwrite what was given back with NaN, and ask attention.

# %%
generator = torch.Generator().manual_seed(9)
q, k, v = (torch.randn(40, 2, 16, generator=generator) for _ in range(3))
keys, values = (torch.zeros(10, 4, 2, 16) for _ in range(2))
keys.view(40, 2, 16)[:], values.view(40, 2, 16)[:] = k, v
one_query = {"block_size": 4, "sliding_window": window}
whole = AttentionPlan([list(range(10))], [40], [0, 1], **one_query).attend(q[39:], keys, values)
passed = slid.tables["A"].count(-1)
keys[:passed], values[:passed] = float("nan"), float("nan")
gaps = [-1] * passed + list(range(passed, 10))
freed = AttentionPlan([gaps], [40], [0, 1], **one_query).attend(q[39:], keys, values)
print(f"{passed} blocks gone; the same output: {torch.equal(whole, freed)}")

# %% [markdown]
# Nothing, *for a model that was trained so*. A window is the model's, not the server's choice.
#
# Real models mix layers. In {{ gemma.name }}, {{ gemma.num_window_layers }} of
# {{ gemma.num_layers }} layers see {{ gemma.sliding_window:,}} tokens, the others see all.

# %%
guess_gemma = predict(
    "At 131,072 tokens, how many times smaller do its windows make Gemma 3's cache?"
)

# %%
from dataclasses import replace

gemma = MODELS["Gemma-3-27B"]
all_full = replace(gemma, sliding_window=None, num_window_layers=0)
lengths = [512 * 2**i for i in range(9)]
sizes = {
    name: [kv_bytes(s, n) / GIB for n in lengths]
    for name, s in (("all layers full", all_full), ("as it is", gemma))
}
line_plot({name: (lengths, ys) for name, ys in sizes.items()}, "tokens (log scale)",
          "GiB (log scale)", "Gemma 3 27B, one request", log="xy")  # fmt: skip

# %%
gemma_times = {n: kv_bytes(all_full, n) / kv_bytes(gemma, n) for n in (1024, 4096, far)}
guess_gemma.measured(round(gemma_times[far], 1))
table([("tokens", "times smaller"), *((n, round(t, 1)) for n, t in gemma_times.items())])

# %% [markdown]
# Up to the window it saves nothing. Far beyond it the full layers are all that counts, and they are
# a sixth. Where layers differ, a server needs a table for each kind of layer. Our engine has one
# table for all, and frees blocks only when every layer has the window.
#
# The cost: a windowed layer cannot look up what was said before. And a shared prompt is a hit only
# while its last blocks are still there.

# %% [markdown]
# ## Fewer numbers: latents
#
# Lesson 01 had GQA: several query heads share a key. **Multi-head latent attention** (MLA) goes
# another way ([DeepSeek-V2 report](https://arxiv.org/abs/2405.04434), sec. 2.1). Per token and
# layer it stores one short vector, the **latent**, and one key with the position in it. From the
# latent a matrix makes all heads' keys, another all values.

# %%
from course.sizing import attention_flops_per_byte, saving_against_mha

v3 = MODELS["DeepSeek-V3 671B"]
rows = [("model", "kind", "bytes per token", "smaller than MHA by", "FLOPs per byte")]
for name in ("Llama-2-7B", "Llama-3.1-405B", "DeepSeek-V3 671B"):
    s = MODELS[name]
    intensity = round(attention_flops_per_byte(s))
    times = round(saving_against_mha(s), 1)
    rows.append((name, s.attention_kind, kv_bytes_per_token(s), times, intensity))
table(rows, "16 bits a number")
v3_times, v3_bytes = saving_against_mha(v3), kv_bytes_per_token(v3)

# %% [markdown]
# DeepSeek-V3 keeps `512 + 64` numbers per layer, {{ v3_bytes:,}} bytes a token in all. As MHA with
# {{ v3.num_attention_heads }} heads it would be {{ v3_times:.0f}} times that.

# %% [markdown]
# But must decode not rebuild every key of every head, for every old token, in every step? Look at
# one score, with the key made from latent `c` by matrix `U`:
#
#     q · (U c)  =  (Uᵀ q) · c
#
# Multiply the *query* instead, once. Values likewise: weigh the latents first, multiply after. This
# is called **absorbing** the up-projection.

# %%
guess_absorb = predict("Does absorbing change the output?", ["no, up to rounding", "a little"])

# %%
heads, width, rank, context = 8, 16, 32, 100
g = torch.Generator().manual_seed(4)


def rand(*size):
    return torch.randn(*size, generator=g, dtype=torch.float64)


latents, query = rand(context, rank), rand(heads, width)
up_k, up_v = rand(heads, width, rank), rand(heads, width, rank)
old_keys = torch.einsum("hdr,tr->thd", up_k, latents)
old_values = torch.einsum("hdr,tr->thd", up_v, latents)
scores = torch.einsum("hd,thd->ht", query, old_keys) / width**0.5
rebuilt = torch.einsum("ht,thd->hd", scores.softmax(-1), old_values)

# %%
latent_query = torch.einsum("hd,hdr->hr", query, up_k)
latent_scores = torch.einsum("hr,tr->ht", latent_query, latents) / width**0.5
latent_out = torch.einsum("ht,tr->hr", latent_scores.softmax(-1), latents)
absorbed = torch.einsum("hr,hdr->hd", latent_out, up_v)
difference = (rebuilt - absorbed).abs().max().item()
print("the same output, to 10 digits:", bool(difference < 1e-10 * rebuilt.abs().max()))
print(f"rebuilt:  {old_keys.numel() + old_values.numel():,} numbers made, for old tokens")
print(f"absorbed: {latents.numel():,} numbers read, and nothing rebuilt")
guess_absorb.measured("no, up to rounding")

# %%
from course.sizing import ACCELERATORS

h100 = ACCELERATORS["H100 SXM"]
ready = 2 * (v3.head_dim + v3.qk_rope_head_dim + v3.head_dim)
in_latents = 2 * (v3.kv_lora_rank + v3.qk_rope_head_dim + v3.kv_lora_rank)
mla_work = in_latents / ready
print("FLOPs for one head and one old token, DeepSeek-V3:")
print(f"keys and values at hand {ready:,}, absorbed {in_latents:,}: {mla_work:.1f} times")

# %% [markdown]
# Now all heads read the same latent, as in MQA with one wide head. The price is arithmetic: dot
# products as long as the latent, {{ mla_work:.1f}} times the FLOPs. Decode could spare them. An
# H100 can do {{ h100.ridge:.0f}} FLOPs in the time of reading one byte, and the last column of the
# table above says how few MHA asks for.

# %% [markdown]
# The rotary key is stored apart for one reason: rotation depends on the position, stands between
# `U` and the query, and cannot be absorbed. Our small example leaves it out. And MLA, like a
# window, is trained in. You choose it with the model.

# %% [markdown]
# ## Farther: swap to the host
#
# Lesson 06 threw a preempted request's blocks away and computed them again. The other way is to
# **swap**: copy the blocks to the host's memory, and later back, into whichever blocks are free.

# %%
guess_place = predict("Do they have to come back to the same blocks?", ["yes", "no"])

# %%
used, elsewhere = block_table, [b for b in range(40) if b not in block_table][:13]
pool = PagedKVCache(shape, 40, 16)
for layer in range(shape.num_layers):
    pool.write(layer, *exact.gather(layer, block_table, len(ids)), slots)
before = [pool.gather(layer, used, len(ids)) for layer in range(shape.num_layers)]
on_host = pool.read_blocks(used)
pool.keys.fill_(float("nan"))  # others have used the memory meanwhile
pool.values.fill_(float("nan"))
pool.write_blocks(elsewhere, on_host)
after = [pool.gather(layer, elsewhere, len(ids)) for layer in range(shape.num_layers)]
pairs = zip(before, after, strict=True)
unchanged = all(torch.equal(x, y) for b, a in pairs for x, y in zip(b, a, strict=True))
swap_bytes = sum(part.numel() * part.element_size() for part in on_host)
print(f"{swap_bytes:,} bytes out and in again; {used[:3]}.. became {elsewhere[:3]}..")
print("every key and value unchanged:", unchanged)

# %%
guess_place.measured("no", "only the table must be changed")
guess_swap = predict("Out and in again, or compute the prompt anew: which is faster here?",
                     ["swap", "recompute"])  # fmt: skip


# %% tags=["nbval-ignore-output"]
def plain_attend(layer, q, k, v):
    pool.write(layer, k, v, slots)
    return plan.attend(q, *pool.layer(layer))


@torch.inference_mode()
def recompute():
    model.forward(torch.tensor(ids), positions, plain_attend)


# %% tags=["nbval-ignore-output"]
took = {}
for name, work in (("swap out", lambda: pool.read_blocks(used)),
                   ("swap in", lambda: pool.write_blocks(used, on_host)),
                   ("recompute", recompute)):  # fmt: skip
    times = []
    for _ in range(3):
        start = perf_counter()
        work()
        times.append(1000 * (perf_counter() - start))
    took[name] = round(min(times), 1)
table([("work", "ms"), *took.items()], f"{len(ids)} tokens, best of 3, on this machine")

# %%
guess_swap.measured("swap" if took["swap out"] + took["swap in"] < took["recompute"] else
                    "recompute")  # fmt: skip

# %% [markdown]
# Do not carry this home. Here "host" and "GPU" are the same memory, and the processor computes
# slowly. On a server blocks cross a bus, and the GPU computes fast. Put in the peaks: a bus of
# {{= 64 GB/s | PCIe 5.0, 16 lanes, one direction, peak }} and an H100. Computing a token takes two
# FLOPs for each of the eight billion weights.

# %%
bus = 64e9
swap_us = 1e6 * 2 * kv_bytes_per_token(llama) / bus
recompute_us = 1e6 * 2 * 8e9 / h100.flops_16bit
rows = [("per token", "µs"), ("swap out and in", round(swap_us, 1))]
table([*rows, ("recompute", round(recompute_us, 1))], f"{llama.name}, at the peaks of the H100")

# %% [markdown]
# At peaks swap would win. Real transfers are far from peak when pieces are small: one block of
# one layer, keys and values apart, is {{ piece_kib:.0f}} KiB in our layout. The PagedAttention
# paper measured swap as worse for small blocks, and the two as about equal for blocks of
# {{= 16 to 64 | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 7.3 }}. Recomputing also
# needs no host memory, and less work where the prompt is in the prefix cache.

# %%
piece_kib = 16 * llama.num_kv_heads * llama.head_dim * 2 / 1024
int8_out = QuantizedPagedKVCache(shape, 16, 16).read_blocks(range(13))
int8_bytes = sum(part.numel() * part.element_size() for part in int8_out)
print(f"the same 13 blocks in int8: {int8_bytes:,} bytes, {swap_bytes / int8_bytes:.1f} times less")

# %% [markdown]
# The ways multiply: an int8 block is also cheaper to move.

# %% [markdown]
# ## What each saves and costs

# %%
off_by = f"outputs {median(errors):.0f} % off; some texts fork"
more_work = f"{mla_work:.1f} x the FLOPs"
rows = [("way", "saves", "how much", "costs", "who decides")]
rows += [
    ("int8", "bytes a number", f"{int8_share:.0f} % of fp16", off_by, "server"),
    ("window", "tokens kept", f"{gemma_times[far]:.1f} x at {far:,}, {gemma_times[1024]:.0f} x "
     "at 1,024", "layers that forget", "model"),
    ("MLA", "numbers a token", f"{v3_times:.0f} x against MHA", more_work, "model"),
    ("swap", "GPU memory, while away", "no change in contents", "host memory, bus", "server"),
]  # fmt: skip
table(rows)

# %% [markdown]
# ## What none of them helps
#
# - The weights: they are read in each step, and take their memory, whatever the cache does.
# - Computing a long prompt. int8 and swap leave its arithmetic as it is. Windows spare some of the
#   attention, none of the rest.
# - The longest answer: one token a step.
# - Fragmentation and reservations. A slab of int8 is as empty as one of fp16.
# - Growth. Full layers still grow with each token, only less steeply.

# %% [markdown]
# You began with a server that kept most of its memory empty, and ended with one whose slots are
# full, shared, smaller and able to leave. What is a block table, after all of this? Still a list
# that says where things are.

# %%
from course.show import check_yourself, prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
check_yourself(
    "A cache goes from fp16 to int8 with one fp32 scale per token and head, heads of 64. How much "
    "smaller?",
    {
        "By half.": "The numbers are. But each 64 of them bring 4 bytes of scale: 68 for 128.",
        "A little less than by half: 68 bytes for 128.": "53 %. With heads of 128 it is 52 %.",
        "By three quarters.": "That is fp32 to int8, without the scales. Name what you compare "
        "with.",
    },
    right="A little less than by half: 68 bytes for 128.",
)
check_yourself(
    "With int8 a greedy text forks at token 20. What does that prove?",
    {
        "The quantised model is worse.": "It is different. Worse or not is a question for a "
        "benchmark of your task.",
        "There is a bug: errors so small change no argmax.": "They do where two tokens are almost "
        "equally likely, and long texts have such places.",
        "Somewhere two tokens were close, and the error tipped it.": "All later tokens follow from "
        "another context, so they differ too.",
    },
    right="Somewhere two tokens were close, and the error tipped it.",
)
check_yourself(
    "A model has a window of 1,024 in every layer. Your requests have 600 tokens. What is saved?",
    {
        "Nothing.": "No block has been passed by the window yet.",
        "About half.": "A window frees what lies behind it. At 600 tokens nothing does.",
        "All but 1,024 tokens.": "There are only 600.",
    },
    right="Nothing.",
)
check_yourself(
    "You want MLA's small cache. Your model has GQA. What do you change in the server?",
    {
        "The cache and the kernel.": "The latent comes from matrices that the model was trained "
        "with. Yours has none.",
        "Nothing: it is the model's, so another model.": "Like windows. The server decides on "
        "int8 and on swap.",
        "The block size.": "It decides how memory is cut, not what a token needs.",
    },
    right="Nothing: it is the model's, so another model.",
)
check_yourself(
    "A swapped request comes back into other blocks. What must be corrected?",
    {
        "The positions inside its keys.": "The rotation in a key is by position in the request, "
        "and that did not change. Blocks have no place in it.",
        "Its block table.": "New ids, in the same order. Nothing else knows where blocks are.",
        "Nothing.": "Its table still names the old blocks, which belong to somebody else now.",
    },
    right="Its block table.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"int8 is half."* Count the scales.
# - *"Half the bytes is twice the speed."* It is room. Speed only if the kernel reads bytes and the
#   step waited for them.
# - *"The text changed, so the answer is worse"*, and *"it did not, so all is well"*. A few prompts
#   show neither.
# - *"MLA keeps keys and values, so times two."* One latent serves as both.
# - *"I set a window on any model and save."* It was not trained to forget.
# - *"Swap is always better: nothing is computed twice."* Compare bytes over the bus with FLOPs.

# %% [markdown]
# ## Key takeaways
#
# - Cache = tokens kept x layers x numbers x bytes. Each way pulls at one factor, so they multiply.
# - int8 takes a little over half of fp16. Its errors are small, and visible in some greedy texts.
# - Windows save nothing up to the window; then the full layers are what is left.
# - Absorbed MLA gives the same output and reads one latent for all heads.
# - Swap returns every bit and needs a bus; recomputing needs FLOPs. Measure on your machine.

# %% [markdown]
# ## Further reading
#
# - W. Kwon and others, [PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: sec. 4.5 and
#   7.3, swap against recompute.
# - Z. Liu and others, [KIVI](https://arxiv.org/abs/2402.02750), ICML 2024: two bits, and why keys
#   and values want different scales.
# - DeepSeek-AI, [DeepSeek-V2](https://arxiv.org/abs/2405.04434): MLA in sec. 2.1.
# - A. Q. Jiang and others, [Mistral 7B](https://arxiv.org/abs/2310.06825): windows in each layer.
# - Gemma Team, [Gemma 3 Technical Report](https://arxiv.org/abs/2503.19786): one full layer to
#   five with windows.
