# ---
# title: The KV cache
# summary: What is kept of every token, why, how many bytes it takes, and what a batch shares
# minutes: 45
# after: []
# objectives:
#   - say what a KV cache saves, and why the tokens that come out stay the same
#   - compute a model's bytes per token from its shape, and catch a printed number that is wrong
#   - explain why decode waits for memory and prefill does not
#   - say which reads a batch shares, and which it does not
# builds: [kv_bytes_per_token, kv_bytes, decode_attention, generate]
# ---

# %% [markdown]
# A language model gives one token at a time. To find the next one it looks at all tokens so far,
# its own included. The plain way is to put all of them through the model again, each time. Here is
# request A, a prompt of {{ A.prompt_tokens }} tokens and an answer of {{ A.output_tokens }}, both
# ways. Count the strong squares.

# %%
from course.memory.example import A
from course.show import bar_plot, generation_work, line_plot, predict, roofline, table

generation_work(A.prompt_tokens, A.output_tokens)

# %% [markdown]
# Each row is a step and yields one token of the answer. (The last token has no column: nothing
# comes after it.) At the right, something is kept of each token, and each step computes the newest
# one alone. What is kept, why may it be kept, and what does it cost? That is this lesson, and the
# cost is the reason for all others.

# %% [markdown]
# ## With and without, on the real model
#
# In **attention** each token asks a question, its **query**. It compares it with the **key** of
# every token up to itself, and takes a mixture of their **values**, by how well the keys fit.
# Each of the three is a short list of numbers. A model is a stack of **layers**; each does this
# several times side by side, in **heads**. (Several query heads
# may share one head of keys and values: the second line below.)

# %%
import torch

torch.set_num_threads(1)  # one core for everything here, so that the clock runs evenly


def attention(q, k, v):
    """q [new tokens, heads, dim]; k, v [all tokens, KV heads, dim]; the new ones stand last."""
    queries_per_kv_head = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(queries_per_kv_head, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    up_to_itself = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    weights = scores.masked_fill(~up_to_itself, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


# %% [markdown]
# A query is used once, by its own token. Keys and values are used again by every later token. So
# these two are kept: that is the **KV cache**. Ours is as plain as can be, room in one piece per
# layer, and a length.


# %%
class Cache:
    def __init__(self, shape, room):
        size = (shape.num_layers, room, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = torch.zeros(size), torch.zeros(size)
        self.length = 0

    def attend(self, layer, q, k, v):
        end = self.length + len(q)
        self.keys[layer, self.length : end] = k
        self.values[layer, self.length : end] = v
        if layer == len(self.keys) - 1:  # the last layer of this step
            self.length = end
        return attention(q, self.keys[layer, :end], self.values[layer, :end])


# %% [markdown]
# The model of this course calls a function whenever it needs attention, and does not know what is
# behind it. `dense_attend` keeps nothing; `cache.attend` keeps everything. What comes out at the
# top is a score for each possible next token, its **logit**.

# %%
from course.engine import load_model
from course.engine.model import dense_attend

model, tokenizer = load_model("smollm2", dtype=torch.float32, device="cpu")
shape = model.config.shape


def logits_after(ids, start, attend):
    """Run ids, the first of which stands at position start: a score for each possible next."""
    positions = torch.arange(start, start + len(ids))
    hidden = model.forward(torch.tensor(ids), positions, attend)
    return model.logits(hidden[-1:])[0]


# %% [markdown]
# To generate, take the token with the highest score, put it at the end, and go on. Without a cache
# all tokens so far go in each time; with one, only those that it does not hold yet.


# %%
def generate(prompt, count, cache=None):
    ids, computed = list(prompt), 0
    attend = dense_attend() if cache is None else cache.attend
    for _ in range(count):
        start = 0 if cache is None else cache.length
        logits = logits_after(ids[start:], start, attend)
        computed += len(ids) - start
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :], computed


# %%
guess_same = predict("With a cache, do the same tokens come out?", ["all", "nearly all", "no"])

# %%
prompt = tokenizer.encode(A.prompt)
plain, work_plain = generate(prompt, A.output_tokens)
cached, work_cached = generate(prompt, A.output_tokens, Cache(shape, 32))
equal = sum(a == b for a, b in zip(plain, cached, strict=True))
guess_same.measured("all" if plain == cached else "nearly all" if equal > 15 else "no")
print("tokens put through the model without a cache:", work_plain)
print("                                with a cache:", work_cached)

# %% tags=["nbval-ignore-output"]
print(A.prompt + tokenizer.decode(cached))

# %% [markdown]
# {{ work_plain }} against {{ work_cached }}, as in the picture, and the same tokens. The cache is
# no approximation. (In shorter number formats sums round more coarsely, and two tokens that score
# almost alike may trade places. Here all is float32.) The text is odd at its start, as the prompt
# is not in the form that the model was trained on.

# %% [markdown]
# ## Quadratic against linear
#
# The longer the answer, the worse it gets. How much worse?

# %%
factors = ["about 2", "about 30", "about 500"]
guess_work = predict("1,000 tokens out. How many times the work without a cache?", factors)

# %%
lengths = range(0, 1001, 50)
prompt_length = A.prompt_tokens
without = [sum(prompt_length + step for step in range(n)) for n in lengths]
with_cache = [prompt_length + n - 1 if n else 0 for n in lengths]
_ = line_plot(
    {"without a cache": (lengths, without), "with a cache": (lengths, with_cache)},
    x="output tokens", y="tokens computed in all", title="Twice the answer, four times the work",
)  # fmt: skip

# %%
work_ratio = without[-1] / with_cache[-1]
guess_work.measured(
    factors[2 if work_ratio > 100 else 1], f"{without[-1]:,} against {with_cache[-1]:,}"
)

# %% [markdown]
# Without a cache the work grows with the *square* of the length, with a cache in proportion to it.
# At the end of this plot the ratio is {{ work_ratio:.0f}}.
#
# One part stays: each new query still meets all keys before it, so attention itself is quadratic
# over a whole answer either way. Short answers hardly feel it. You will measure it at the end of
# this lesson.

# %% [markdown]
# ## Why may they be kept?
#
# Keys and values may be kept if nothing that comes later can change them. Try it: change A's last
# word, then its first, and see whose keys move.

# %%
whose = ["all keys", "the last token's only", "none"]
guess_keys = predict("Change the last token of A's prompt. Which keys change?", whose)


# %%
def keys_of(ids):
    cache = Cache(shape, len(ids))
    logits_after(ids, 0, cache.attend)
    return cache.keys


def tokens_whose_keys_moved(before, after):
    moved = (before - after).abs().amax(dim=(0, 2, 3)) > 1e-3  # over layers, heads, dimensions
    return [position for position, has_moved in enumerate(moved) if has_moved]


# %%
other = tokenizer.encode(" red")[0]
keys = keys_of(prompt)
last_changed, first_changed = keys_of([*prompt[:-1], other]), keys_of([other, *prompt[1:]])
moved_last = tokens_whose_keys_moved(keys, last_changed)
print("last word changed, keys moved at:", moved_last)
print("first word changed, keys moved at:", tokens_whose_keys_moved(keys, first_changed))
in_layer = (keys - first_changed)[:, -1].abs().amax(dim=(1, 2)) > 1e-3
layers_moved = int(in_layer.sum())
print(f"... and the last token's key moved in {layers_moved} of {shape.num_layers} layers")
guess_keys.measured(whose[1] if moved_last == [len(prompt) - 1] else whose[0])

# %% [markdown]
# A token sees what stands before it, never what comes after. So the future cannot reach back into
# the cache, and what is written stays right for ever.
#
# The past does reach forward: change the first word, and every later key changes, in all layers
# but the lowest, which knows only the token and its place. Keys belong to a token *after this
# beginning*. Remember that when requests start to share them in lesson 07.

# %% [markdown]
# ## What a token costs
#
# A **KV head** is a head that has a key and a value for each token. Each key is *head dim* numbers
# long, each value too, and every layer keeps them for every token. A number usually takes two
# bytes:
#
#     2 x layers x KV heads x head dim x bytes per value = bytes per token

# %%
from course.sizing import KIB, MODELS, kv_bytes, kv_bytes_per_token

by_hand = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 2
print(f"SmolLM2: 2 x {shape.num_layers} x {shape.num_kv_heads} x {shape.head_dim} x 2 = {by_hand}")
print("the same from course.sizing:", kv_bytes_per_token(MODELS["SmolLM2-135M"]))

# %% [markdown]
# A model's fixed numbers, those that training found, are its **weights** or **parameters**. A
# model's name often counts them, in billions (B) or millions (M).

# %%
larger = ["7B from 2023", "405B from 2024", "the same, within 5 %"]
guess_larger = predict(
    "Llama-2-7B or Llama-3.1-405B: which keeps more bytes of each token?", larger
)

# %%
names = ["Llama-2-7B", "Llama-3.1-405B", "OPT-13B", "Llama-3-8B", "Qwen2.5-7B", "Gemma-3-27B"]
names += ["DeepSeek-V3 671B", "SmolLM2-135M"]
sizes = {f"{n} ({MODELS[n].attention_kind})": kv_bytes_per_token(MODELS[n]) / KIB for n in names}
bar_plot(sizes, "KiB", "KV cache of one token, two bytes a value", emphasis=list(sizes)[:2])

# %%
kib_7b, kib_405b = list(sizes.values())[:2]
apart = kib_7b / kib_405b
found_larger = larger[2] if 0.95 < apart < 1.05 else larger[0] if apart > 1 else larger[1]
guess_larger.measured(found_larger, f"{kib_7b:.0f} KiB and {kib_405b:.0f} KiB")

# %% [markdown]
# The far larger model keeps no more of a token. The letters behind the names say why.
#
# - **MHA**, multi-head attention: every query head has a KV head of its own.
# - **GQA**, grouped-query: a group of query heads shares one KV head. **MQA**, multi-query: all
#   share a single one.
# - **MLA**, multi-head latent: one short vector for all heads, from which keys and values are made
#   again, and a small key for the position. No factor 2.

# %% [markdown]
# These are decided before training. **Quantising**, fewer bytes per value, can be done later, and
# loses a little. Here is one model, Llama-2-7B, as if it had been built in each way, and in int8:
# one byte a value, and a scale for each key and each value.

# %%
from dataclasses import replace

from course.sizing import attention_flops_per_byte, quantised_kv_bytes_per_token

mha = MODELS["Llama-2-7B"]
built = {
    "MHA": mha,
    "GQA, 8 KV heads": replace(mha, num_kv_heads=8),
    "MQA": replace(mha, num_kv_heads=1),
    "MLA": replace(mha, kv_lora_rank=512, qk_rope_head_dim=64),
}
kib = {name: kv_bytes_per_token(s) / KIB for name, s in built.items()}
kib["MHA in int8, with scales"] = quantised_kv_bytes_per_token(mha) / KIB
bar_plot(kib, "KiB", "One token of Llama-2-7B, built in other ways", digits=0)

# %% [markdown]
# One more way, SWA in the first figure: layers with a **sliding window** look back only so far, and
# need no older keys. In Gemma-3-27B most layers are like that.

# %%
gemma = MODELS["Gemma-3-27B"]
window = gemma.sliding_window
inside = kv_bytes(gemma, window) - kv_bytes(gemma, window - 1)
beyond = kv_bytes(gemma, window + 1) - kv_bytes(gemma, window)
print(f"{gemma.num_window_layers} of {gemma.num_layers} layers have a window of {window:,} tokens")
print(f"token {window:,} costs {inside:,} bytes, token {window + 1:,} costs {beyond:,}")

# %% [markdown]
# So for this model "bytes per token" is two numbers: {{ inside:,}} within the window and
# {{ beyond:,}} after it. Lesson 09 measures what each of these ways saves and what it costs.
#
# ## Numbers that are wrong
#
# You will read sizes in papers and posts. Check them. First trap: is a KB a thousand bytes or
# {{ KIB:,}}?

# %%
rows = [("model", "bytes per token", "KB of 1,000", "KiB of 1,024")]
for name in ("OPT-13B", "Llama-3.1-405B", "DeepSeek-V3 671B"):
    size = kv_bytes_per_token(MODELS[name])
    rows.append((name, size, size / 1000, size / KIB))
table(rows)

# %% [markdown]
# The PagedAttention paper prints {{= 800 KB | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180),
# sec. 3 }} for OPT-13B: a KB of {{ KIB:,}}. A table by DeepSeek prints
# {{= 516.096 KB | [Zhao et al. 2025](https://arxiv.org/abs/2505.09343), Table 1 }} for
# Llama-3.1-405B: a KB of a thousand. Neither is wrong; side by side they mislead by a few percent.
#
# Others are wrong by more. Two that stood on public pages:

# %%
from course.sizing import GIB

token_70b = kv_bytes_per_token(MODELS["Llama-2-70B"])
chat_70b = kv_bytes(MODELS["Llama-3-70B"], 4096)
print(f"Llama-2-70B, a token: printed 65 KB, computed {token_70b / KIB:.0f} KiB")
print(f"   too small by a factor of {token_70b / 65e3:.1f}")
print(f"Llama-3-70B, 4,096 tokens: printed 5 GB, computed {chat_70b / GIB} GiB")
print(f"   too large by a factor of {5 * GIB / chat_70b:.0f}")
all_heads = replace(MODELS["Llama-3-70B"], num_kv_heads=64)
print(f"with a KV head for each query head: {kv_bytes(all_heads, 4096) / GIB:.0f} GiB")

# %% [markdown]
# Where do such numbers come from? Take query heads for KV heads and you get the last line. Forget
# the values besides, and half of it is left: the printed number.
#
# So it goes: a factor is lost, or a wrong one taken. The layers, the 2, query heads, a head dim
# computed as the model's width divided by its heads (Qwen3-32B has its own). Writing all five down
# is the cure.

# %% [markdown]
# ## Two kinds of step
#
# With a cache a request has two lives. **Prefill**: the prompt's tokens, all known, go through the
# model together. **Decode**: one new token a step, as each needs the one before.

# %%
cheaper = ["the same", "several times less", "several times more"]
guess_prefill = predict("A prompt of 256 tokens. Its time per token, against decode?", cheaper)

# %% tags=["nbval-ignore-output"]
from time import perf_counter


def best_of(repeats, work):
    """Seconds of the fastest run: the others were disturbed."""
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return min(seconds)


# %%
text = torch.randint(1000, 40_000, (1024,), generator=torch.Generator().manual_seed(0)).tolist()
cache = Cache(shape, 1024)
logits_after(text, 0, cache.attend)  # from here on the cache holds all of them


def one_step(num_tokens, context):
    """Compute the last num_tokens of a context; what stands before them is in the cache."""
    cache.length = context - num_tokens
    positions = torch.arange(cache.length, context)
    ids = torch.tensor(text[cache.length : context])
    return model.logits(model.forward(ids, positions, cache.attend))


# %% tags=["nbval-ignore-output"]
prefill = best_of(3, lambda: one_step(256, 256))
decode = best_of(10, lambda: one_step(1, 256))
print("on this machine, in this run:")
print(f"prefill: {1e3 * prefill:6.1f} ms for 256 tokens, {1e3 * prefill / 256:5.2f} ms each")
print(f"decode:  {1e3 * decode:6.1f} ms for   1 token")
ratio = decode / prefill * 256
found = cheaper[1] if ratio > 2 else cheaper[0] if ratio > 0.5 else cheaper[2]
guess_prefill.measured(found, f"decode takes {ratio:.1f} times as long")

# %% [markdown]
# The same weights, the same arithmetic per token. What differs is reading. A step reads every
# weight from memory once. Prefill uses it for all tokens of the prompt, decode for one.
#
# The measure of this is **arithmetic intensity**: operations on numbers (FLOP) per byte read. A
# weight of {{ weight_bytes }} bytes gives one multiplication and one addition a token. One token:
# one operation per byte. How many does a GPU need, so as not to wait for memory?

# %%
from course.sizing import ACCELERATORS, weights_flops_per_byte

weight_bytes = 2
h100 = ACCELERATORS["H100 SXM"]
points = {
    "decode, 1 request": weights_flops_per_byte(1, weight_bytes),
    "decode, 64 requests": weights_flops_per_byte(64, weight_bytes),
    "prefill, 1,024 tokens": weights_flops_per_byte(1024, weight_bytes),
}
_ = roofline(points, h100.flops_16bit, h100.bandwidth, "H100 SXM, 16 bits, data sheet")

# %%
ridge, idle = h100.ridge, 100 * (1 - 1 / h100.ridge)
print(f"{ridge:.0f} operations for each byte, or its arithmetic units wait")
print(f"decoding one request, they stand idle {idle:.1f} % of the time, at least")

# %% [markdown]
# This plot is a **roofline**. On the slope memory is too slow, on the flat part arithmetic is; they
# meet at {{ ridge:.0f}} operations per byte. Decode of one request sits far down the slope: it is
# **bandwidth-bound**. A long prompt lies on the flat part: it is **compute-bound**.
#
# And here? Measure the two limits of one core by two simple loops, and put our two steps under
# them.

# %% tags=["nbval-ignore-output"]
from math import prod

parameters = sum(prod(s) for s in model.config.weight_shapes().values())
numbers, square = torch.ones(2**26), torch.randn(2048, 2048)
bandwidth = numbers.nbytes / best_of(5, lambda: numbers.sum())
peak = 2 * 2048**3 / best_of(5, lambda: square @ square)
here = {
    "decode": (weights_flops_per_byte(1, 4), 2 * parameters / decode),
    "prefill, 256 tokens": (weights_flops_per_byte(256, 4), 2 * parameters * 256 / prefill),
}
_ = roofline(
    here, peak, bandwidth, "one core of this machine, fp32, both limits measured in this run"
)

# %% [markdown]
# A CPU has less arithmetic for each byte of bandwidth, so the ridge lies further left. Neither
# point reaches its roof, as small operations between the large ones cost time too. But the roofs
# differ: decode is under the slope, prefill under the flat part. (Both limits are measurements
# themselves; in a disturbed run a point can even lie above.)

# %% [markdown]
# ## One read for many
#
# In the first roofline, a batch of requests stood to the right of a single one: they share the
# read of the weights. That is what a **batch** is for. Eight times the requests, eight times the
# tokens per second?

# %%
gains = ["no more tokens per s", "more, though fewer than 8 times", "8 times or more"]
guess_batch = predict("8 requests in one step instead of 1, on this machine?", gains)

# %% tags=["nbval-ignore-output"]
from course.engine import LLM, SamplingParams


def tokens_per_second(batch):
    llm = LLM((model, tokenizer), num_blocks=64, prefix_caching=False)
    llm.generate([prompt] * batch, SamplingParams(max_tokens=16, ignore_eos=True))
    return llm.stats.tokens_per_second


# %% tags=["nbval-ignore-output"]
speed = {n: max(tokens_per_second(n) for _ in range(2)) for n in (1, 2, 4, 8)}
bars = {"1 request": speed[1]} | {f"{n} requests": speed[n] for n in (2, 4, 8)}
_ = bar_plot(
    bars, "tokens per s", "Decoding together", digits=0, note="one core of this machine, this run"
)
gain = speed[8] / speed[1]
print(f"each of 8 waits {8 / gain:.1f} times as long for its next token as one alone")
measured_gain = gains[0] if gain < 1.1 else gains[1] if gain < 8 else gains[2]
guess_batch.measured(measured_gain, f"{gain:.1f} times")

# %% [markdown]
# The batch came from the engine that you saw in lesson 00. Eight share a step that takes longer,
# but not eight times as long. On a CPU core arithmetic soon becomes the limit; on a GPU the slope
# is far longer.

# %% [markdown]
# ## What a batch does not share
#
# Weights are the same for all. The cache is not: each request reads *its own* keys and values, for
# itself alone. Take Llama-3-8B on that H100, each request {{ context:,}} tokens long, and count
# nothing but bytes.

# %%
llama, context = MODELS["Llama-3-8B"], 4096
weights = 2 * 8.03e9  # 8.03 billion parameters, counted from its shape, two bytes each
own = kv_bytes(llama, context)
batches = [1, 2, 4, 8, 16, 32, 64, 128]
shared_only = [n * h100.bandwidth / weights for n in batches]
with_own = [n * h100.bandwidth / (weights + n * own) for n in batches]
_ = line_plot(
    {"if weights were all": (batches, shared_only), "with each one's cache": (batches, with_own)},
    x="requests in the batch", y="tokens per second, at most",
    title="What a batch amortises, and what not", note="computed from the data sheet of an H100",
)  # fmt: skip

# %%
equal_at = weights / own
fit = int((h100.memory_bytes - weights) // own)
gain_32 = with_own[batches.index(32)] / with_own[0]
print(f"{equal_at:.0f} such caches are as large as the weights; {fit} fit beside them")
print(f"32 requests: {gain_32:.0f} times the tokens per second of one")
intensity = {name: attention_flops_per_byte(s) for name, s in built.items()}
print("attention, operations per byte, by how Llama-2-7B is built:")
print("  ", {name: round(value, 1) for name, value in intensity.items()})

# %% [markdown]
# From about {{ equal_at:.0f}} requests on, more is read of caches than of weights, and a larger
# batch gains little. Attention's intensity does not grow with the batch at all. It grows when query
# heads share what is read: GQA, MQA and MLA, in the last line.
#
# And memory ends the lower line before the plot does: {{ fit }} requests fit, if every byte is put
# to use. Is it? That is lesson 02.

# %% [markdown]
# ## Measured on the real model
#
# Back to where we started, with a clock. One more token after a context of so many tokens: all
# computed again, or read from the cache.

# %%
shapes = ["both rise alike", "steeply without, a little with", "both stay flat"]
guess_shape = predict("Time for one more token, as the context grows?", shapes)

# %% tags=["nbval-ignore-output"]
contexts = [16, 128, 256, 512, 1024]  # the long ones run once: they are slow enough to time
again = [
    1e3 * best_of(1 if n > 256 else 2, lambda n=n: logits_after(text[:n], 0, dense_attend()))
    for n in contexts
]
kept = [1e3 * best_of(8, lambda n=n: one_step(1, n)) for n in contexts]
_ = line_plot(
    {"without a cache": (contexts, again), "with a cache": (contexts, kept)},
    x="tokens in context", y="milliseconds for the next token", title="What the cache saves",
    note="SmolLM2-135M in float32, one core of this machine, this run",
)  # fmt: skip
print(f"with a cache: {kept[0]:.0f} ms after 16 tokens, {kept[-1]:.0f} ms after 1,024")
rises_more = again[-1] / again[0] > 3 * kept[-1] / kept[0]
guess_shape.measured(shapes[1] if rises_more else shapes[0])

# %% [markdown]
# The lower line is no constant, as the two printed times show: every step reads all keys and values
# so far, and compares the new query with each.
#
# Now the price. Choose a model, a length, a number of requests and a GPU's memory, and see whether
# they fit.

# %%
from course.show import kv_calculator

kv_calculator("Llama-2-7B", tokens=4096, batch=32, memory_gib=80)

# %% [markdown]
# ## What is still wasted
#
# Our `Cache` was made with a `room`. We knew how long A's answer would be. A server does not. How
# much room would you set aside for a request, when nobody can say how long it gets? Lesson 02 does
# what the first servers did, and looks at what it costs.

# %% tags=["nbval-ignore-output"]
from course.show import prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
from course.show import check_yourself

check_yourself(
    "Why are keys and values kept, and queries not?",
    {
        "Queries are larger.": "Often there are more of them, but that is not the reason: nobody "
        "will ask for them again.",
        "Later tokens need old keys and values; an old query is never used again.": "A query "
        "belongs to the token that asks. Its answer has gone into the next layer already.",
        "Queries change when new tokens come, keys do not.": "Nothing of an earlier token changes.",
        "To keep all three would be slower.": "It would only be useless. What counts is who reads "
        "them.",
    },
    right="Later tokens need old keys and values; an old query is never used again.",
)
check_yourself(
    "32 layers, 32 query heads, 8 KV heads, head dim 128, two bytes. Bytes per token?",
    {
        "4,096": "That is one layer: 2 x 8 x 128 x 2. There are 32.",
        "524,288": "You counted query heads. Only KV heads are kept.",
        "65,536": "A factor 2 is missing: keys and values.",
        "131,072": "2 x 32 x 8 x 128 x 2, or 128 KiB. It is Llama-3-8B.",
    },
    right="131,072",
)
check_yourself(
    "Decode of one request runs at 1 % of the GPU's arithmetic. What helps most?",
    {
        "A GPU with twice the arithmetic and the same memory.": "It would run at half a percent, "
        "as fast as before. The limit is reading.",
        "More requests in each step.": "They share the read of the weights, so each byte read does "
        "more work.",
        "A KV cache.": "It is there already: without one it would not be decode of one token.",
        "Shorter prompts.": "That helps the first token. Decode still reads all weights each step.",
    },
    right="More requests in each step.",
)
check_yourself(
    "The batch doubles from 64 to 128 long requests. Throughput gains a fifth. Why so little?",
    {
        "The weights are read twice.": "Once per step, however many requests there are.",
        "Each request reads its own cache, and that is most of what is read now.": "Twice the "
        "requests, twice the cache to read. Only the weights are shared.",
        "The batch is compute-bound.": "Attention in decode does a few operations per byte, far "
        "left of the ridge, at any batch size.",
    },
    right="Each request reads its own cache, and that is most of what is read now.",
)
check_yourself(
    "Somebody edits the first word of a long conversation. What of the cache is still right?",
    {
        "All but the first token.": "You saw the keys of all later tokens move. They have looked "
        "at that word.",
        "Nothing, but for the lowest layer.": "From the second layer on, each key depends on "
        "everything before it. Nobody keeps the lowest layer alone: compute it all again.",
        "The values, as only keys depend on the past.": "Both are made from the same vector.",
    },
    right="Nothing, but for the lowest layer.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"The cache makes answers a little different."* Compared in float32, not one token differs.
# - *"With a cache a step costs the same at any length."* It reads all keys and values so far. Long
#   contexts show it.
# - *"Bigger model, bigger cache."* Layers and KV heads decide. Count all five factors, the layers
#   too.
# - *"KB is KB."* Ask whether it is a thousand bytes or {{ KIB:,}}.
# - *"Head dim is hidden size divided by heads."* It is a field of its own in a model's config.
# - *"A batch shares everything."* It shares the weights. Caches are read one by one.

# %% [markdown]
# ## Key takeaways
#
# - Keys and values of past tokens never change, because no token sees what comes after it. So they
#   are computed once and kept.
# - The work of generating falls from quadratic to linear; the price is memory for every token of
#   every running request.
# - Bytes per token: two (key and value) x layers x KV heads x head dim x bytes per value. MLA and
#   windows bend it.
# - Decode reads much and computes little; prefill the other way round. A batch shares the read of
#   the weights, and its size is limited by the memory for caches.

# %% [markdown]
# ## Further reading
#
# - A. Vaswani and others, [Attention Is All You Need](https://arxiv.org/abs/1706.03762), 2017.
# - N. Shazeer, [Fast Transformer Decoding: One Write-Head is All You
#   Need](https://arxiv.org/abs/1911.02150), 2019: why decode waits for memory, and MQA.
# - J. Ainslie and others, [GQA](https://arxiv.org/abs/2305.13245), 2023.
# - DeepSeek-AI, [DeepSeek-V2](https://arxiv.org/abs/2405.04434), 2024: MLA, sec. 2.1.
# - R. Pope and others, [Efficiently Scaling Transformer
#   Inference](https://arxiv.org/abs/2211.05102), 2022: the same accounts for many chips.
# - S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
#   multicore architectures", Communications of the ACM 52(4), 2009.
