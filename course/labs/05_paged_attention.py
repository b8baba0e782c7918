# ---
# title: Paged attention
# uses: [blocks_needed, slot_mapping]
# needs: CPU is enough; on a GPU the kernels run compiled
# ---

# %% [markdown]
# In the lesson you followed one key to its byte. Now you write what takes it there: the cache, the
# softmax that needs one look at each score, the heart of the real kernel, and the merge. At the end
# waits a kernel with a fault that real engines have had.
#
# A at its ninth token is the example again, in blocks 7, 1 and 3.

# %%
from course.memory.example import BLOCK_SIZE, TABLE_OF_A_AT_9_TOKENS

print("A's table:", TABLE_OF_A_AT_9_TOKENS)
print("A's slots:", slot_mapping(TABLE_OF_A_AT_9_TOKENS, range(9), BLOCK_SIZE))

# %% [markdown] exercise="5.1"
# The class is the engine's own. `check_slots` and `_slots_of` are given; the second walks a table.
# What is missing puts rows into the cache and takes them out again.
#
# What `check_slots` gives has three parts: `num_tokens`, how many tokens k and v must have;
# `slots`, one for each token that is written, so without any -1; `rows`, which rows of k and v
# those tokens are, or None: all.

# %% [markdown] exercise="5.2"
# A kernel never sees all scores of a query at once. Write the softmax that does not need to: one
# look at each tile, three numbers kept, and both sums moved along when the maximum changes.

# %% [markdown]
# ## Who reads what
#
# A kernel is many programs. Before you write one of them, decide what is its own.

# %% [markdown] exercise="5.3"
# In grouped-query attention several query heads ask the same keys. Bytes are what decode waits for,
# so each KV head is read once, for all of its group.

# %% [markdown]
# ## The kernel
#
# Now the two come together. On a GPU, kernels are compiled. Without one, Triton's interpreter runs
# them here, slowly: enough to know whether they are right. What it cannot do is said below.

# %%
from course.engine.triton_support import triton_status

status = triton_status()
if status.problem:
    print("Kernels cannot run here:", status.problem)
    print("You can write them all the same. Their checks will say 'not run here'.")
else:
    print(f"Triton {status.version}: {status.mode}")

# %% [markdown]
# To know of the interpreter:
#
# - A turn of a loop costs about the same for one position or for many: think in tiles.
# - It knows fp32 and fp16. bfloat16 gives wrong numbers, without a word.
# - It is Python, so you may `print` inside a kernel. The compiler, which sees your kernel too,
#   takes less: no `print`, no `break`.
# - A wrong address can end the process. So the check runs in a process of its own.

# %% [markdown] exercise="5.4"
# This is the engine's decode kernel. Its beginning finds out what belongs to the program, its end
# stores what came of it. The loop between them is yours: walk the tiles from `start` to `end`, and
# keep `running_max`, `running_sum` and `weighted_values`. `load_rows(cache_ptr, scale_ptr, offsets,
# scale_offsets, dim, in_context, HEAD_DIM, dtype)` loads a tile of keys or values, with zeros
# where `in_context` is False.

# %% [markdown] exercise="5.5"
# With splits, several programs each have an answer for their own tokens. Put two of them together.
# It is the online softmax once more, with parts for tiles, and some parts are empty.

# %% [markdown]
# ## A fault in a kernel
#
# This one is short: one query, one KV head, a block in each turn. Its scores are masked, it passed
# every test on a fresh cache, and one day a user's answer is NaN.


# %%
@triton.jit
def faulty_attend(
    out_ptr,
    q_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    context_len,
    scale,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One query over the cached tokens of one sequence, a block at a time."""
    row = tl.arange(0, BLOCK_SIZE)
    dim = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + dim)
    running_max = float("-inf")
    running_sum = 0.0
    weighted_values = tl.zeros([HEAD_DIM], tl.float32)
    for logical_block in range(0, tl.cdiv(context_len, BLOCK_SIZE)):
        block_id = tl.load(block_table_ptr + logical_block).to(tl.int64)
        in_context = logical_block * BLOCK_SIZE + row < context_len
        offsets = (block_id * BLOCK_SIZE + row)[:, None] * HEAD_DIM + dim[None, :]
        k = tl.load(key_ptr + offsets)
        v = tl.load(value_ptr + offsets)

        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(in_context, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=0))
        rescale = tl.exp(running_max - new_max)
        weights = tl.exp(scores - new_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=0)
        weighted_values = weighted_values * rescale + tl.sum(weights[:, None] * v, axis=0)
        running_max = new_max
    divisor = tl.where(running_sum == 0.0, 1.0, running_sum)
    tl.store(out_ptr + dim, weighted_values / divisor)


# %% [markdown]
# Its test, on a fresh cache with nine tokens of A:


# %% tags=["nbval-ignore-output"]
def try_kernel(kernel, context_len, poisoned_slot=None):
    """The kernel's answer for A, in a cache of zeros; NaN in one slot if you say so."""
    place = "cuda" if status.mode == "compiled" else "cpu"
    random = torch.Generator().manual_seed(5)
    keys, values = torch.zeros(2, 16, BLOCK_SIZE, 8)
    for slot in slot_mapping(TABLE_OF_A_AT_9_TOKENS, range(context_len), BLOCK_SIZE):
        for cache in (keys, values):
            cache.view(-1, 8)[slot] = torch.randn(8, generator=random)
    if poisoned_slot is not None:
        keys.view(-1, 8)[poisoned_slot] = values.view(-1, 8)[poisoned_slot] = float("nan")
    q, out = torch.randn(8, generator=random), torch.zeros(8)
    table = torch.tensor(TABLE_OF_A_AT_9_TOKENS, dtype=torch.int32)
    q, out, keys, values, table = (t.to(place) for t in (q, out, keys, values, table))
    kernel[(1,)](out, q, keys, values, table, context_len, 8**-0.5, BLOCK_SIZE=4, HEAD_DIM=8)
    return [round(number, 4) for number in out.tolist()]


if status.problem is None:
    print(try_kernel(faulty_attend, context_len=9))
else:
    print("not run:", status.problem)

# %% [markdown] exercise="5.6"
# Find the input that no test had: a context length of A, 0 to 12, and one slot of the cache, 0 to
# 63, to be filled with NaN. No token of the context may lie in that slot, and still the kernel must
# answer NaN. `try_kernel(faulty_attend, context_len, poisoned_slot)` shows you.

# %% [markdown] exercise="5.7"
# Now mend it, so that what was never written cannot matter, whatever lies there.

# %% [markdown]
# ## What is left
#
# Your kernel reads each key once, where it lies, for the whole group. Two things it cannot help:
# requests with the same prompt read the same bytes from two places (lesson 07), and a step with few
# requests reads all of the model's weights for them (lesson 06, which is next).
