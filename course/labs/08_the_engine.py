# ---
# title: The engine
# uses: [BlockPool, blocks_needed, slot_mapping]
# ---

# %% [markdown]
# This lab is the last round: when a request ends, one forward pass, one step, and its clocks. Then
# everything that you passed, in all labs, is put together and serves a real model.
#
# Start small. After every new token somebody has to ask whether this was the last one.

# %% [markdown] exercise="8.1"
# Say whether a request ends with its newest token, and why. A wrong answer here is an engine that
# stops in mid-sentence, or one that never does.

# %% [markdown]
# ## Through the model
#
# The scheduler decides in requests. The model wants rows of tokens, and writes and reads memory as
# it goes. Between them stands the runner.

# %%
from dataclasses import fields
from inspect import signature

from course.engine import runner, sampler

print("prepare takes", ", ".join(signature(runner.prepare).parameters))
print("and gives", ", ".join(field.name for field in fields(runner.StepInputs)))
print("sample takes", ", ".join(signature(sampler.sample).parameters))

# %% [markdown] exercise="8.2"
# Write one forward pass. `prepare` lays out the batch for you and `_plan` makes the attention; what
# counts is the order in which memory is touched, and which rows get a token.

# %% [markdown] exercise="8.3"
# Now the step around it. Schedule, run, update is quickly written. Write it so that the engine is
# whole afterwards even when the model failed, or when somebody pressed stop.

# %% [markdown]
# ## Clocks
#
# Is it fast? For whom? A user feels two times, and the owner of the machine counts a third.

# %% [markdown] exercise="8.4"
# One of these per request: it is told when a token comes, and gives the two times that its user
# feels.

# %% [markdown] exercise="8.5"
# The owner's number, from the clocks of all requests. It looks like a mean. It is none.

# %% [markdown]
# ## The race
#
# Equal memory for two servers: one reserves a slab of `limit` tokens for each request, the other
# has pages. These requests all wait at the door when it opens.

# %%
from course.workload.lengths import mix

num_blocks, block_size, limit = 64, 8, 256
drawn = mix("azure_conv_2023").sample(28, seed=2)
lengths = [(max(1, prompt // 32), max(1, output // 32)) for prompt, output in drawn]
count, totals = len(lengths), [prompt + output for prompt, output in lengths]
print(f"{count} requests: {sum(p for p, _ in lengths) / count:.1f} prompt tokens in the mean,")
print(f"{sum(o for _, o in lengths) / count:.1f} output tokens, at most {max(totals)} in all")
print(f"memory of each server: {num_blocks * block_size} slots; limit: {limit} tokens")

# %% [markdown] exercise="8.6"
# While others wait, how many times as many requests run together with pages as with slabs? Give a
# number from what is printed above, before you run anything. Within 20 % will do: blocks are held
# whole, lengths differ, and the queue does not always have a request that just fits.

# %% [markdown]
# First the model is loaded, once; then both servers run, which takes up to a minute, on a slow or
# busy machine longer. Where its file is not installed, a tiny one with random weights serves: the
# engine's work is the same, the words mean nothing.

# %%
import os
import random

from course.engine import LLM, SamplingParams
from course.engine.loading.model_file import model_file

graded = "NBGRADER_EXECUTION" in os.environ  # nobody waits for a race then
name = "smollm2" if model_file() and not graded else "tiny"
if not model_file():
    print("SmolLM2 is not installed, so the tiny model serves. To get it: python -m course doctor")
loaded = LLM(name, dtype="float32", num_blocks=1)
model, vocab_size = (loaded.model, loaded.tokenizer), loaded.tokenizer.vocab_size
dice = random.Random(8)
prompts = [[dice.randrange(vocab_size // 2, vocab_size) for _ in range(p)] for p, _ in lengths]
params = [SamplingParams(max_tokens=output, ignore_eos=True) for _, output in lengths]


# %%
def serve(policy):
    """All requests through a new engine: (token ids, how many ran while others waited, stats)."""
    llm = LLM(model, block_size=block_size, num_blocks=num_blocks, max_model_len=limit,
              kv_policy=policy, prefix_caching=False)  # fmt: skip
    together = []

    def watch(llm):
        if llm.scheduler.waiting:
            together.append(len(llm.scheduler.running))

    answers = llm.generate(prompts, params, on_step=watch)
    return [answer.token_ids for answer in answers], sum(together) / len(together), llm.stats


# %%
results = {"slabs": serve("slab"), "pages": serve("paged")}

# %% [markdown]
# Now yours. Every piece that you passed stands in the place of ours, in this block and nowhere
# else. What you have not passed yet is ours.

# %% tags=["nbval-ignore-output"]
from course.practice import learner_engine

your_tokens = None
with learner_engine() as pieces:
    print(pieces)
    results["your engine"] = serve("paged")
    your_tokens = results["your engine"][0]

# %%
print("your engine's tokens and the reference's:", pieces.compare(results["pages"][0], your_tokens))
print("tokens of slabs and of pages: the same:", results["slabs"][0] == results["pages"][0])
print("server       run together  steps")
for server, (_, together, stats) in results.items():
    print(f"{server:12} {together:12.1f}  {stats.steps:5}")
print(f"pages : slabs  {results['pages'][1] / results['slabs'][1]:.1f}")

# %% tags=["nbval-ignore-output"]
print("server       first token, s  per token, s  tokens per s   (medians; this machine, this run)")
for server, (_, _, stats) in results.items():
    first, each = stats.time_to_first_token, stats.time_per_token
    print(f"{server:12} {first:14.2f}  {each:12.3f}  {stats.tokens_per_second:12.1f}")

# %% [markdown]
# More run together, in fewer steps; a step with more requests takes longer, so tokens per second
# gain less. And a user's time per token may be longer with pages, while the wait before the first
# one shrinks: fewer stand in the queue.

# %% [markdown]
# Is yours slower, with the same steps? A runner or a cache of yours is called in every layer, from
# Python. With ours on a CPU, the layers of a step are one call of compiled code
# (`course/engine/native/`), where that can be had.

# %% [markdown]
# ## A wrong piece in the engine
#
# What you saved has passed its check, so this engine is hard to break. Force two wrong pieces in,
# to see what happens. The first makes a request's table one block too short.


# %%
def full_blocks_only(num_tokens, block_size):
    return num_tokens // block_size


def never_comes_back(request):
    while True:
        pass


# %%
with learner_engine(force={"blocks_needed": full_blocks_only}) as pieces:
    serve("paged")

# %% [markdown]
# The error was seen far away from its cause. So the message does not trust the place: it runs the
# checks of the pieces again. The second one loops, and is stopped.

# %%
with learner_engine(force={"stop_reason": never_comes_back}, seconds=2) as pieces:
    serve("paged")

# %% [markdown]
# Look at your engine once more: your tokens, on a model that others trained, from a pool, tables,
# attention, a scheduler and a step that you wrote. Everything that a serving engine adds to this
# makes it faster or larger. None of it changes what a block table is.
