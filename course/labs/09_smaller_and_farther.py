# ---
# title: Smaller and farther
# ---

# %% [markdown]
# In the lesson a cache became smaller in three ways and left for the host in a fourth. Two of them
# are the server's to do, and those you write: int8 with its scales, and blocks that a window has
# passed.

# %%
one_token = torch.tensor([[0.5, -2.0, 1.1], [0.0, 0.1, 0.02]])  # 2 KV heads of 3 numbers
largest = one_token.abs().amax(dim=-1)
print("a step of each head:", [round(x, 4) for x in (largest / 127).tolist()])

# %% [markdown] exercise="9.1"
# Keys and values come in as rows, one for each token and KV head. Store each as whole numbers of
# steps, and say how large a step is.

# %% [markdown] exercise="9.2"
# The way back. It is one line, and the line runs without an error when it is wrong.

# %% [markdown]
# ## Scales need slots
#
# A scale belongs to one token and one head. So it must be found where the token is found, and move
# when its block moves. This class has the tensors for it; what writes and reads them is missing.

# %%
from course.engine import quantized_kv
from course.sizing import ModelShape

tiny = ModelShape("tiny", 1, 4, 2, 8, 64)  # 1 layer, 4 query heads, 2 KV heads of 8
cache = quantized_kv.QuantizedPagedKVCache(tiny, num_blocks=16, block_size=4)
for name, part in zip(
    ("keys", "values", "key scales", "value scales"), cache.layer(0), strict=True
):
    print(f"{name:12} {part.dtype!s:14} {list(part.shape)}")

# %% [markdown] exercise="9.3"
# Two methods are yours. `write`, `copy_blocks` and all the rest come from `PagedKVCache`, and work
# on every tensor that is listed in `_tensors`.

# %% [markdown] exercise="9.4"
# Before you measure it: how many percent of an fp16 cache does int8 take, scales included, with
# heads of 16, 64 and 128 numbers? Half a percent off will do.

# %% [markdown]
# The measurement, by the same caches that the check used:

# %%
from course.engine import kv_cache

print("head dim   int8 bytes   fp16 bytes   percent")
for head_dim in (16, 64, 128):
    shape = ModelShape("any", 2, 4, 2, head_dim, 64)
    int8_bytes = quantized_kv.QuantizedPagedKVCache(shape, 16, 4).num_bytes
    fp16_bytes = kv_cache.PagedKVCache(shape, 16, 4, dtype=torch.float16).num_bytes
    print(
        f"{head_dim:8}   {int8_bytes:10,}   {fp16_bytes:10,}   {100 * int8_bytes / fp16_bytes:7.1f}"
    )

# %% [markdown]
# ## Windows
#
# Where a model sees only its last tokens, the blocks before them can go. When exactly? One token
# too late is waste. One too early is a wrong word.

# %% [markdown] exercise="9.5"
# How many blocks at the start of a table will never be read again? Count to the token.

# %% [markdown]
# Somebody has written the function that gives them back. It is quick, it looks at one entry only,
# and token by token it is right. It is wrong.

# %%
from course.engine import block_pool, sliding_window


def faulty_free_passed(pool, table, num_computed_tokens, block_size, window):
    """Give back what the window has passed; called after every step."""
    num_passed = sliding_window.num_passed_blocks(num_computed_tokens, block_size, window)
    if num_passed and table[num_passed - 1] >= 0:
        pool.free([table[num_passed - 1]])
        table[num_passed - 1] = -1


pool = block_pool.BlockPool(8, order=[7, 1, 3, 0, 2, 5, 4, 6])
table = []
for computed in range(1, 20):
    if computed > 4 * len(table):
        table += pool.allocate(1)
    faulty_free_passed(pool, table, computed, block_size=4, window=8)
print("19 tokens, one at a time:", table, " free:", pool.num_free)

# %% [markdown] exercise="9.6"
# With a window of 8 and blocks of 4, find steps of one request after which it holds a block that no
# later token sees. A step may compute any number of tokens. Take as few tokens in all as will do.

# %% [markdown] exercise="9.7"
# Now mend it. It is called after every step, whatever the step computed.

# %% [markdown]
# With your last lines a request of any length fits into a pool of a few blocks, and a window of
# int8 into half of that. The other two ways of the lesson, latents and swap, need a model that was
# trained so, or a second memory.
