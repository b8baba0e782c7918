# ---
# title: Sharing
# uses: [blocks_needed]
# ---

# %% [markdown]
# In the lesson one block came to stand in many tables, and a free block was found again by what it
# holds. Now you write the bookkeeping: forks and copies, the hashes, the cache, and the queue that
# decides what is lost first.
#
# **A** is the request of the lesson, and **A/1** and **A/2** are its samples. This is where they
# begin:

# %%
from course.memory import example

print("A's prompt:", example.A.prompt)
print("A's table after its prompt:", example.TABLES["A"], "in blocks of", example.BLOCK_SIZE)

# %% [markdown] exercise="7.1"
# Three methods of the KV manager are yours. `admit` is given: read it first.
#
# `self.tables` and `self.requests` go by request id. `self.pool` is the pool of lab 04.
# `self._allocate(count)` takes blocks and lets the cache forget what they held;
# `self._free(block_ids)` gives blocks back, in your order. Which ids you get is the pool's matter:
# the check looks at owners and copies, and at what each request reads.

# %% [markdown]
# ## What is it worth?
#
# That depends on the requests. Three mixes of lengths, which you know from the lessons:

# %%
from course.workload.lengths import mix

mixes = {"azure": "azure_conv_2023", "sharegpt": "paper_sharegpt", "alpaca": "paper_alpaca"}
lengths = {name: mix(key).sample(200, seed=7) for name, key in mixes.items()}
for name, pairs in lengths.items():
    prompt, output = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    print(f"{name:9} prompt {prompt:6.0f} tokens, answer {output:4.0f} tokens, in the mean")

# %% [markdown] exercise="7.2"
# Four samples of each prompt run to their end, in blocks of 16. How many percent of the blocks that
# four separate requests would hold are saved, over all 200 requests of a mix? Before you measure:
# within 3 points will do, since a mean does not say how prompts fall into blocks.

# %% [markdown]
# The measurement, with real forks and copies. It holds one request at a time, to its end:

# %%
from course.engine import Request, SamplingParams, kv_manager


def held_at_the_end(prompt, output, samples=4, block_size=16):
    num_blocks = samples * -(-(prompt + output) // block_size)
    kv = kv_manager.KVManager(num_blocks, block_size, prefix_caching=False)
    family = [Request(f"A/{n}", [0] * prompt, SamplingParams()) for n in range(samples)]
    kv.admit(family[0], prompt)
    family[0].num_computed_tokens = prompt
    for child in family[1:]:
        kv.fork(family[0], child)
    for sample in family:
        kv.grow(sample, prompt + output)
    return kv.pool.num_used, num_blocks


# %%
for name, pairs in lengths.items():
    held = [held_at_the_end(prompt, output) for prompt, output in pairs]
    shared, apart = (sum(column) for column in zip(*held, strict=True))
    saved = 100 * (1 - shared / apart)
    print(f"{name:9} {shared:6} blocks instead of {apart:6}: {saved:.1f} % saved")

# %% [markdown]
# ## Found by what it holds
#
# A fork needs a parent at hand. A stranger who begins alike has none: its blocks must be
# recognised.

# %% [markdown] exercise="7.3"
# Write the chain. What stands before the first block is given: `root_hash(extra_key)`. `struct` and
# `sha256` are imported. Which digest you take is your own affair: the check only asks which hashes
# are equal.

# %% [markdown] exercise="7.4"
# Which block holds which content? Three methods are yours. Equal prompts can be computed in one
# step, so two blocks may hold the same; each is evicted on its own.
#
# If you change the two dicts of `__init__`, write the methods that read them anew as well.

# %% [markdown]
# ## A fault that nobody sees
#
# A server computes long prompts in pieces. A request gets all its blocks when it is admitted. After
# each step this function lets others find what is full. It has passed every test so far, and it is
# wrong.


# %%
def faulty_publish(kv, request):
    """Make the request's full blocks findable, after a step has computed some of its tokens."""
    table = kv.tables[request.request_id]
    block_hashes = request.block_hashes(kv.block_size)
    for logical_block in range(request.num_tokens // kv.block_size):
        kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])


# %%
sentences = {
    "A": "Tell me why the sky is blue",
    "stranger": "Tell me why the sky is blue today",
}
words = sentences["stranger"].split()


# %%
def run(steps, publish):
    """Steps (request, num_tokens): it computes at most so many of its tokens, then publishes."""
    kv, live = kv_manager.KVManager(16, block_size=4), {}
    for name, num_tokens in steps:
        if name not in live:
            ids = [words.index(word) for word in sentences[name].split()]
            live[name] = Request(name, ids, SamplingParams())
            kv.admit(live[name], len(ids))
            print(f"{name} is admitted and finds {live[name].num_computed_tokens} tokens")
        one = live[name]
        one.num_computed_tokens = min(one.num_computed_tokens + num_tokens, one.num_tokens)
        publish(kv, one)
        print(f"    {name} has {one.num_computed_tokens} of its {one.num_tokens} tokens")


run([("A", 7), ("stranger", 4)], faulty_publish)

# %% [markdown]
# That was right: A had written all four tokens that the stranger found.

# %% [markdown] exercise="7.5"
# Find steps that show the fault: a list of `(request, num_tokens)`, made in order, in whose *last*
# step a request is admitted and finds tokens that nobody has written. Two steps are enough. Try
# them with `run(..., faulty_publish)`.

# %% [markdown] exercise="7.6"
# Now mend it. What is full and written must still be found, and at once.

# %% [markdown]
# ## What is lost first
#
# A block that is taken is forgotten. So the queue of free blocks decides what the cache loses.
# Blocks that hold nothing go to its front, cached ones to its end as they are given back, and a hit
# takes a block out of the middle.

# %%
from course.engine import block_pool

pool = block_pool.BlockPool(example.NUM_BLOCKS, order=example.BLOCK_ORDER)
kv = kv_manager.KVManager(example.NUM_BLOCKS, example.BLOCK_SIZE, pool=pool)
for name in ("A", "A again"):
    one = Request(name, range(14), SamplingParams())
    kv.admit(one, one.num_tokens)
    found, one.num_computed_tokens = one.num_computed_tokens, one.num_tokens
    kv.publish(one)
    print(f"{name} finds {found} tokens and has the table {kv.tables[name]}")
    print("    free while it runs:", pool.free_blocks)
    kv.release(one)
    print("    free when it is gone:", pool.free_blocks)

# %% [markdown] exercise="7.7"
# Two methods do all of this, `_insert` and `_unlink`; the others are given. Nothing may be searched
# for: a hit has to cost the same in a pool of a million blocks. That is why each block knows its
# two neighbours.

# %% [markdown]
# ## What is left
#
# You have the pool, the tables, the scheduler, forks and the cache. Nothing of it has been tried
# together yet. In lab 08 your pieces serve a model.
