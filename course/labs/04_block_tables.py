# ---
# title: Block tables
# ---

# %% [markdown]
# In the lesson, equal blocks and a table per request did away with holes. Now you write them: the
# pool, the arithmetic that everything else stands on, and a check that notices when somebody got it
# wrong.
#
# Requests **A**, **B** and **C** are those of the lesson. The pool hands its blocks out in the
# order below. It is not 0, 1, 2: a position taken for an address should be seen to go wrong.

# %%
from course.memory import example

print("order of the blocks:", list(example.BLOCK_ORDER))
print("A's table after its prompt:", example.TABLES["A"])

# %% [markdown] exercise="4.1"
# A pool knows how many owners each block has, and nothing of tokens. Its difficulty is in the
# errors: whatever is refused must leave the pool as it was, because the caller goes on.
#
# Three methods are yours. `self._free` is a `FreeList` (lab 07): `popleft_n(count)` takes from its
# front, `remove(block_id)` from anywhere. In `free`, `ownerless` lists the ids whose count fell to
# 0, in the order given. A free list of your own is welcome, too.

# %% [markdown] exercise="4.2"
# How many blocks do so many tokens fill or begin? It is one line, and every off-by-one of this
# subject is in it.

# %% [markdown] exercise="4.3"
# The kernel of lesson 05 will not read block tables for writing. It wants, for each new token, the
# one slot where its key and value go.

# %% [markdown]
# ## Growth, and a fault in it
#
# A request grows by a token a step, or by a whole prompt at once. This function makes room for it.
# It has run for a week on a quiet server. It is wrong.

# %%
from course.engine import block_pool, block_table


def faulty_growth(pool, table, num_tokens, block_size):
    """Make room for num_tokens tokens in all. False: there is no room, and nothing has changed."""
    while len(table) < block_table.blocks_needed(num_tokens, block_size):
        if pool.num_free == 0:
            return False
        table += pool.allocate(1)
    return True


pool, tables = block_pool.BlockPool(4, order=[2, 0, 1, 3]), {"A": [], "B": []}
print("A to 9 tokens:", faulty_growth(pool, tables["A"], 9, block_size=4), tables["A"])
print("B to 4 tokens:", faulty_growth(pool, tables["B"], 4, block_size=4), tables["B"])

# %% [markdown] exercise="4.4"
# Find calls that show the fault, on an empty pool of 4 blocks of 4 tokens: a list of
# `(request, num_tokens)`, made in order, whose last call is refused although a growth that keeps
# its promise would grant it. Two calls are enough.

# %% [markdown] exercise="4.5"
# Now mend it. What you found must not happen again, and everything that worked must go on working.

# %% [markdown]
# ## What catches a broken pool
#
# You know the faults that you thought of. A check that walks the whole pool after each step finds
# the others, weeks before a user of your engine sees a wrong word.

# %% [markdown] exercise="4.6"
# Write that check. It will be shown right pools, about which it must say nothing, and what twelve
# broken allocators leave behind, each of which it must notice. The pool can be anybody's: only the
# four names in the docstring are there.

# %% [markdown]
# ## What is left
#
# Blocks have no holes between them. But the last block of a table is seldom full.

# %% [markdown] exercise="4.7"
# Before you measure it: for blocks of 1, 4, 16 and 64 tokens, how many slots at the end of its
# table does a request leave empty, in the mean? Lengths are those of the Azure conversations of
# lesson 02. Within 10 % of the measurement will do.

# %% [markdown]
# The measurement, over the same 2,000 requests that the check used:

# %%
from course.workload.lengths import mix

totals = [prompt + output for prompt, output in mix("azure_conv_2023").sample(2000, seed=4)]
print("block size  empty slots  share of the table")
for block_size in (1, 4, 16, 64):
    empty = [-total % block_size for total in totals]
    mean, held = sum(empty) / len(empty), sum(totals) + sum(empty)
    print(f"{block_size:10}  {mean:11.2f}  {100 * sum(empty) / held:17.2f} %")
