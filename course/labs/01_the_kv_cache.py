# ---
# title: The KV cache
# ---

# %% [markdown]
# In the lesson you saw what a cache saves. Now you write it: its size, to the byte; attention that
# reads it; generation that fills it and gives the same tokens as without. Every later lesson moves
# this cache about in memory, and none changes what it holds.
#
# ## How large
#
# These numbers of a model decide it. Everything about `ModelShape` is in `help(ModelShape)`.

# %%
from course.sizing import MODELS

for name in ("Llama-2-7B", "Llama-3-8B", "Gemma-3-27B", "DeepSeek-V3 671B"):
    shape = MODELS[name]
    heads = f"{shape.num_attention_heads} heads on {shape.num_kv_heads}, dim {shape.head_dim}"
    print(f"{name}: {shape.attention_kind}, {shape.num_layers} layers, {heads}")
    if shape.num_window_layers:
        print(f"    {shape.num_window_layers} layers: a window of {shape.sliding_window}")
    if shape.kv_lora_rank:
        print(f"    latent {shape.kv_lora_rank}, rotary key {shape.qk_rope_head_dim}")

# %% [markdown] exercise="1.1"
# How many bytes does one token take? All that follows in this course is a multiple of this number.
# `bytes_of(count, bytes_per_value)` is given: it makes bytes of a count of numbers, and refuses
# what cannot be the size of one.

# %% [markdown] exercise="1.2"
# And a whole request? It would be a product, if there were no windows. Use your
# `kv_bytes_per_token`. The line that refuses negative lengths is given.

# %% [markdown]
# ## Reading it
#
# A decode step has one new token, and so one query for each head. It reads the keys and values of
# everything before it, and its own.

# %% [markdown] exercise="1.3"
# Write that read, for one layer. The cache is larger than what is in it: `context_len` says how
# many rows count. Any way of writing it is welcome, from three loops to three lines.

# %% [markdown]
# ## Filling it
#
# Here is a cache as plain as can be. `attend` is what the model calls in every layer: it stores the
# keys and values of the new tokens, and lets each of them look back with *your* `decode_attention`.
# A prompt is several new tokens, each of which sees one token more.
#
# It never moves `length`. All layers write to the same rows, so whoever runs the step moves it,
# once, when all of them have written.


# %%
from course.engine import load_model


class ContiguousCache:
    """Room for so many tokens in one piece a layer. The first `length` of them are stored."""

    def __init__(self, shape, room):
        size = (shape.num_layers, room, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = torch.zeros(size), torch.zeros(size)
        self.length = 0

    def attend(self, layer, q, k, v):
        keys, values, start = self.keys[layer], self.values[layer], self.length
        keys[start : start + len(k)] = k
        values[start : start + len(v)] = v
        seen = [decode_attention(q[i], keys, values, start + i + 1) for i in range(len(q))]
        return torch.stack(seen)


# for the example of 1.4; run this cell again for an empty cache
model, tokenizer = load_model("tiny", device="cpu")
cache = ContiguousCache(model.config.shape, room=16)


# %% [markdown] exercise="1.4"
# Generate with it. All tokens must be those that come out without a cache, and each must go through
# the model once. The check watches both. Its model is small, with weights drawn at random: what
# comes out is nonsense, but always the same nonsense, and another one after the first error.

# %% [markdown]
# Now on request A, with the course's real model where it is installed. Run this cell again when
# your check passes: your attention and your loop give the answer.

# %% tags=["nbval-ignore-output"]
from course.engine import load_model
from course.engine.loading.model_file import model_file
from course.memory.example import A

model, tokenizer = load_model("smollm2" if model_file() else "tiny", device="cpu")
prompt = tokenizer.encode(A.prompt)
cache = ContiguousCache(model.config.shape, room=len(prompt) + A.output_tokens)
try:
    answer = generate(model, cache, prompt, A.output_tokens)
    print(A.prompt + tokenizer.decode(answer))
    print("tokens stored:", cache.length)
except NotImplementedError as not_yet:
    print("not yet,", not_yet)

# %% [markdown]
# ## What it saves
#
# The lesson counted for one prompt and one length. What if the prompt is long, or the answer short?

# %% [markdown] exercise="1.5"
# How many times as many tokens go through the model without a cache as with one? Write a number for
# each pair of prompt and answer, before you compute anything. Within 10 % will do.

# %% [markdown]
# Counted, step by step:

# %%
for prompt_tokens, output_tokens in [(10, 100), (2000, 100), (2000, 1)]:
    without = sum(prompt_tokens + step for step in range(output_tokens))
    with_cache = prompt_tokens + output_tokens - 1
    print(f"{prompt_tokens:5} in, {output_tokens:3} out: {without:7,} tokens without a cache, "
          f"{with_cache:5,} with one, {without / with_cache:5.1f} times")  # fmt: skip

# %% [markdown]
# One thing was easy here: the cache was made with exactly the room that it needs, since you knew
# how long the answer would be. A server does not. Lesson 02 is about that room.
