# ---
# title: What a reservation wastes
# uses: [kv_bytes]
# ---

# %% [markdown]
# One slab of max_model_len for everybody, and most of it empty: you saw that in the lesson. Now you
# build the server that does it, and the books that show where every slot is. Both stay: the slabs
# as the rival that your engine races in lab 08, the books for all that comes before.

# %%
from course.memory import example

for request in example.REQUESTS:
    print(f"{request.name}: {request.prompt_tokens} tokens in, {request.output_tokens} out")
print(f"pool of {example.POOL_TOKENS} slots, limit {example.MAX_MODEL_LEN}")

# %% [markdown] exercise="2.1"
# The allocator that is easiest to write, and the one that all others are compared with. Two methods
# are yours. You may also throw the given lists away and keep others: the check looks only at what
# the methods do, never at which slab comes first.

# %% [markdown]
# ## The books
#
# A slot is in one of five accounts.

# %%
from inspect import getdoc

from course.memory.ledger import Holding, Ledger

print(getdoc(Ledger))
print()
print(getdoc(Holding))

# %% [markdown] exercise="2.2"
# Take the books of any server: of each running request you know what is written, what it will come
# to, and what it holds. Both examples are A and B after two steps of their answers, first in slabs,
# then with exactly their own lengths.

# %% [markdown]
# ## What it costs
#
# Memory decides how many requests run together, and a batch shares each read of the weights.

# %% [markdown] exercise="2.3"
# How many run together on a real model: with a slab each, and if somebody told the server every
# length in advance? Your `kv_bytes` of lab 01 gives the bytes of any length.

# %% [markdown]
# ## How empty
#
# "The slabs are half empty" is three statements, depending on when you look and whom you count.
# And each of them is about the requests that were served.

# %% [markdown] exercise="2.4"
# Write all three, and the share that was turned away beside them.

# %% [markdown]
# ## A server that stands still
#
# Requests wait in a queue. This function lets them in. It has run for a week, and lately nobody is
# let in any more, though nobody seems to be running either.

# %%
from course.memory import slab


def faulty_admit(slabs, queue):
    """Let requests, (name, total tokens), in from the head of the queue; drop who is too long."""
    admitted = []
    while queue:
        name, total = queue[0]
        if slabs.reserve(name) is None:
            break
        queue.pop(0)
        if total <= slabs.max_model_len:
            admitted.append(name)
    return admitted


slabs = slab.SlabAllocator(example.POOL_TOKENS, example.MAX_MODEL_LEN)
queue = [("A", 28), ("B", 27), ("C", 8)]
print("let in:", faulty_admit(slabs, queue), " waiting:", queue)

# %% [markdown] exercise="2.5"
# Find a queue that shows the fault, on an empty pool of two slabs of 32: its last request waits,
# although a version without the fault would let it in. Three requests are enough.

# %% [markdown] exercise="2.6"
# Now mend it. The docstring says all that is promised; the version above keeps most of it.

# %% [markdown]
# ## Two loads, one server
#
# The paper's server for OPT-13B, once more, under two loads. ShareGPT are chats; Alpaca are short
# questions with short answers. Lengths are geometric with the paper's means.

# %%
from course.memory.paper import MAX_MODEL_LEN, POOL_TOKENS
from course.workload import mix

print(f"pool of {POOL_TOKENS:,} slots, limit {MAX_MODEL_LEN:,}")
for name in ("ShareGPT", "Alpaca"):
    load = mix(f"paper_{name.lower()}")
    print(f"{name}: {load.mean_prompt} tokens in, {load.mean_output} out, in the mean")

# %% [markdown] exercise="2.7"
# The queue is never empty. How many requests run together with a slab each? How many Alpaca
# requests if each held only the slots that it has written? And with slabs, what percentage of the
# pool holds a token of Alpaca's? Half a request more or less will do for slabs, a fifth otherwise.

# %% [markdown]
# Measured, by running both loads to their ends:

# %%
from course.memory import Paged, Slab, simulate
from course.workload import make_requests

for name in ("ShareGPT", "Alpaca"):
    requests = make_requests(mix(f"paper_{name.lower()}").sample(4000, seed=0))
    in_slabs = simulate(requests, Slab(POOL_TOKENS, MAX_MODEL_LEN), all_at_once=True)
    written = simulate(requests, Paged(POOL_TOKENS, MAX_MODEL_LEN, 1), all_at_once=True)
    live = 100 * in_slabs.sustained.shares()["live"]
    print(f"{name}: {in_slabs.sustained_batch:.1f} together in slabs, {live:.1f} % live; "
          f"{written.sustained_batch:.0f} if only what is written were held")  # fmt: skip
