# ---
# title: Sharing
# summary: One block in many tables; fork, copy-on-write, and a cache that costs no memory
# minutes: 45
# objectives:
#   - follow reference counts through a fork, a copy-on-write and a release
#   - say which blocks of a new prompt can be taken from the cache, and why the hashes are chained
#   - say which cached block goes first when memory is short
#   - read a hit-rate curve, and say when sharing brings nothing
# builds: [KVManager, hash_blocks, PrefixCache, FreeList]
# ---

# %% [markdown]
# Somebody asks for three answers to one question, to choose the best. The server admits A three
# times, as A, A/1 and A/2. Look at what it stores.

# %%
from course.engine import BlockPool, KVManager, Request, SamplingParams
from course.memory.example import BLOCK_ORDER, BLOCK_SIZE, NUM_BLOCKS, A
from course.show import block_grid, line_plot, predict, table


def new_manager():
    pool = BlockPool(NUM_BLOCKS, order=BLOCK_ORDER)
    return KVManager(NUM_BLOCKS, BLOCK_SIZE, pool=pool)


apart = new_manager()
for name in ("A", "A/1", "A/2"):
    apart.admit(Request(name, range(A.prompt_tokens), SamplingParams()), A.prompt_tokens)
blocks_apart = apart.pool.num_used
block_grid(apart.tables, dict.fromkeys(apart.tables, A.prompt_tokens), NUM_BLOCKS, BLOCK_SIZE)

# %% [markdown]
# {{ blocks_apart }} blocks for the same {{ A.prompt_tokens }} tokens three times, and each prompt
# was computed. Keys and values depend on a token and on what stands before it, on nothing else. So
# these blocks hold the same numbers, and a table is only a list of block ids. Why not the same ids?

# %% [markdown]
# ## Fork
#
# To **fork** a request is to copy its table and no block. Each block gets a **reference count**:
# the number of tables that it stands in. It is free when that count is 0.

# %%
kv = new_manager()
a = Request("A", range(A.prompt_tokens), SamplingParams())
kv.admit(a, a.num_tokens)
a.num_computed_tokens = a.num_tokens  # the model has written the prompt
family = [a]
for name in ("A/1", "A/2"):
    child = Request(name, a.token_ids, SamplingParams())
    kv.fork(a, child)
    family.append(child)
blocks_forked = kv.pool.num_used
full, part = kv.tables["A"]
owners_forked = kv.pool.ref_count(full)
block_grid(kv.tables, dict.fromkeys(kv.tables, a.num_tokens), NUM_BLOCKS, BLOCK_SIZE)

# %% [markdown]
# {{ blocks_forked }} blocks, each with {{ owners_forked }} owners. Block {{ full }} is full and
# will only be read: no danger. Block {{ part }} has one slot free, and all three are about to write
# their own eighth token into it.
#
# ## Copy-on-write
#
# The rule: **write only into a block that is yours alone.** If it has other owners, take a free
# block, copy, put the copy into your table, and leave the old one to the others.

# %%
counts = [0, 1, 2, 3]
guess_copies = predict("All three write token 8. How many blocks are copied?", counts)

# %%
rows = [("who writes", "copied", "its table now", f"owners of {full}", f"owners of {part}")]
copies_made = []
for number, request in enumerate(family):
    request.token_ids.append(100 + number)  # three different samples
    copies = kv.grow(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    copies_made += copies
    said = ", ".join(f"{source} to {destination}" for source, destination in copies) or "nothing"
    owners = [kv.pool.ref_count(block) for block in (full, part)]
    rows.append((request.request_id, said, str(kv.tables[request.request_id]), *owners))
table(rows)
guess_copies.measured(counts[2], "the last owner left writes in place")

# %%
block_grid(kv.tables, dict.fromkeys(kv.tables, 8), NUM_BLOCKS, BLOCK_SIZE, highlight=[10, 12])

# %% [markdown]
# {{ len(copies_made) }} copies for three writers: the third was the only owner left of block
# {{ part }} and wrote in place. Copies are made in all layers and *before* the step writes. That is
# why `grow` returns them and the engine runs them first.
#
# From now on each writes into blocks of its own. Block {{ full }} stays shared until the last of
# them ends.

# %% [markdown]
# ## Beams: sharing that changes all the time
#
# **Beam search** keeps the likeliest few sequences. After each step some die and others have two
# children. Say A/1 is out and A goes on twice:

# %%
kv.release(family[1])
twice = Request("A/3", a.token_ids, SamplingParams())
kv.fork(a, twice)
alive = [a, family[2], twice]
beam_copies = []
for number, request in enumerate(alive):
    request.token_ids.append(200 + number)
    beam_copies += kv.grow(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
kv.check_invariants()
print("tables:", kv.tables)
print("copies:", beam_copies)
print("owners:", {block: kv.pool.ref_count(block) for block in (full, 10, part)})

# %% [markdown]
# A/1's own block went back; block {{ full }} only lost an owner. And this time nothing was copied:
# the shared blocks are full, and a full block is never written again. In contiguous memory every
# such turn would copy whole sequences.
#
# How much does it save? Alpaca's lengths, `block_size=16`, the same bookkeeping run to the end;
# beams choose their parents at random, which is an assumption.

# %%
import numpy as np

from course.memory import sharing
from course.memory.sharing import PAPER_SAVED, PAPER_SEQUENCES, blocks_held
from course.workload import mix

lengths, dice = mix("paper_alpaca").sample(60, seed=0), np.random.default_rng(0)
parents = {
    "parallel": lambda output, width: sharing.samples(output, width),
    "beam": lambda output, width: sharing.random_beams(output, width, dice),
}

# %%
ours = {}
for kind, choose in parents.items():
    for width in PAPER_SEQUENCES:
        held = [blocks_held(p, o, choose(o, width), block_size=16) for p, o in lengths]
        ours.setdefault(kind, []).append(100 * sharing.saved(held))

# %%
rows = [
    (kind, width, round(mine, 1), paper)
    for kind in ours
    for width, mine, paper in zip(PAPER_SEQUENCES, ours[kind], PAPER_SAVED[kind], strict=True)
]
table([("", "sequences", "% of blocks saved, here", "in the paper, Fig. 15"), *rows])

# %% [markdown]
# Parallel samples share only the full blocks of the prompt, and Alpaca's prompts are short: little
# to gain. Beams share most of their answers too. Ours come out somewhat higher than the paper's:
# the lengths are drawn with its means only, and random parents let beams meet sooner. On ShareGPT,
# with longer prompts, the paper saves
# {{= 16.2 | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 6.3 }} to {{= 30.5 }} % with
# samples and {{= 44.3 }} to {{= 66.3 }} % with beams.

# %% [markdown]
# ## The same beginning, another day
#
# Fork needs a parent at hand. But most equal beginnings come from strangers: the same system
# prompt, or the same user, one turn later. The server has to *recognise* them.
#
# Give each full block a **prefix hash**: of its tokens and of the hash before it. Equal hashes then
# mean equal beginnings up to there.

# %%
survivors = ["none", "the second", "both"]
guess_chain = predict("Only the first word changes. Which hashes of two blocks stay?", survivors)

# %%
from course.engine import hash_blocks

vocabulary = {}


def ids_of(text):
    return [vocabulary.setdefault(word, len(vocabulary)) for word in text.split()]


# %%
prompts = [
    "Tell me why the sky is blue today",
    "Tell me why the sky is red today",
    "Ask me why the sky is blue today",
    "Tell me why the sky is",
]
chains = [[h.hex()[:8] for h in hash_blocks(ids_of(p), BLOCK_SIZE)] for p in prompts]

# %%
rows = [(p, *[*chain, "-"][:2]) for p, chain in zip(prompts, chains, strict=True)]
table([("prompt", "hash of block 0", "hash of block 1"), *rows])
guess_chain.measured(survivors[0], "the chain carries the change to the right")

# %% [markdown]
# "sky is blue today" has two hashes here, and must: its keys and values differ, since its tokens
# have seen another first word. A hash of the block's own tokens alone would hand out wrong memory,
# and no error would say so. The last prompt has one full block; a block that is not full has no
# hash.

# %% [markdown]
# ## Publish after write
#
# A block may be found once its keys and values are *there*. Two requests with one prompt arrive in
# the same step:

# %%
found = [0, 4, 7]
guess_found = predict("A is written. A stranger sends A's prompt. Tokens found?", found)

# %%
cached = new_manager()
prompt = ids_of(A.prompt)
first, stranger = (Request(name, prompt, SamplingParams()) for name in ("A", "stranger"))
cached.admit(first, first.num_tokens)
before_write = cached.cached_tokens(stranger)
first.num_computed_tokens = first.num_tokens  # the step has run
cached.publish(first)
after_write = cached.cached_tokens(stranger)
exact = cached.cached_tokens(Request("exact", prompt[:4], SamplingParams()))
guess_found.measured(found[1], "full blocks only")
print("found before the write:", before_write)
print("found after it:        ", after_write, "of", len(prompt))
print("found by a prompt of just these four tokens:", exact)

# %% [markdown]
# Three rules in three numbers. Nothing is found before it is written: {{ before_write }}. Only
# full blocks are found: {{ after_write }} of {{ len(prompt) }}. And at least one token is left to
# compute, because the next token is sampled from its output: {{ exact }} for a prompt that ends
# where the block does.

# %% [markdown]
# ## What goes first?
#
# A runs to its end and leaves. Its blocks are free. Free does not mean forgotten: their content
# stays until somebody takes the block. So the cache uses only memory that nobody needs.


# %%
def serve(manager, name, token_ids):
    request = Request(name, token_ids, SamplingParams())
    manager.admit(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens  # the model writes
    manager.publish(request)
    return request


# %%
cached.release(first)
answer = list(range(1000, 1000 + A.output_tokens - 1))  # the last token is never stored
a = serve(cached, "A", prompt + answer)
table_of_a = list(cached.tables["A"])
cached.release(a)
free_order = cached.pool.free_blocks
print("A's table was:", table_of_a)
print("free, the next to be taken first:", free_order)

# %% [markdown]
# Read the list of free blocks from its left. First come the blocks that hold nothing worth finding.
# Then A's full blocks, **from its last to its first**: children before parents. A visitor takes
# twelve blocks:

# %%
lost = ["the first ones", "the last ones", "all of them"]
guess_lost = predict("A has six blocks in the cache, two must go. Which?", lost)

# %%
visitor = serve(cached, "v", range(2000, 2046))
kept = [block for block in table_of_a if block not in cached.tables["v"]]
back = Request("A again", [*a.token_ids, 3000, 3001], SamplingParams())
found_again = cached.cached_tokens(back)
guess_lost.measured(lost[1], f"{len(kept)} blocks, {found_again} tokens are found")
block_grid(cached.tables, {"v": 46}, NUM_BLOCKS, BLOCK_SIZE, highlight=kept,
           caption=f"Framed: free, with A's first {found_again} tokens in them.")  # fmt: skip

# %% [markdown]
# A comes back with a longer conversation and finds {{ found_again }} tokens. What if its *first*
# block had been taken instead?

# %%
from course.engine import PrefixCache

cache = PrefixCache()
hashes = hash_blocks(a.token_ids, BLOCK_SIZE)
for block, block_hash in zip(table_of_a, hashes, strict=False):
    cache.publish(block, block_hash)
cache.forget(table_of_a[0])
orphans = len(cache)
usable = cache.longest_hit(hashes, BLOCK_SIZE)
print(f"{orphans} blocks are still in the cache; usable: {usable}")

# %% [markdown]
# {{ orphans }} blocks kept and none of use: a prefix begins at the beginning. Hence the order:
# requests give their blocks back in reverse, and the list is used from its oldest end. That is
# **LRU**, *least recently used*, with children before parents. A block that is found leaves the
# list from the middle and comes back young. A preempted request often finds its own blocks so.

# %% [markdown]
# ## How large must a cache be?
#
# Chats repeat themselves: each turn sends all before it. No raw trace is shipped, so this day is
# **synthetic**, drawn by `multi_turn` with a seed: {{ num_chats:,}} conversations, four turns on
# average, one of four system prompts, a minute between turns.

# %%
shares = ["under 20 %", "about half", "over 70 %"]
guess_hits = predict("With unlimited memory: share of prompt blocks found?", shares)

# %%
from course.memory.prefix_hits import hit_curve
from course.workload import Conversations, multi_turn

num_chats = 1000
sizes = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
days = {
    "chats with system prompts": Conversations(),
    "chats without": Conversations(system_tokens=0),
    "single questions": Conversations(system_tokens=0, mean_turns=1),
}
drawn = {name: multi_turn(num_chats, 0, shape) for name, shape in days.items()}
curves = {name: [100 * c.hit_rate for c in hit_curve(day, sizes)] for name, day in drawn.items()}

# %%
_ = line_plot(
    {name: (sizes, curve) for name, curve in curves.items()},
    x="blocks of 16 tokens in the cache", y="blocks found, %", log="x",
    title="Hit rate over cache size", note="synthetic conversations, LRU",
)  # fmt: skip

# %%
chats = drawn["chats with system prompts"]
(endless,) = hit_curve(chats, [None])
top_share, small_share = 100 * endless.hit_rate, curves["chats with system prompts"][0]
num_requests, enough = len(chats), 8192
at_enough = curves["chats with system prompts"][sizes.index(enough)]
guess_hits.measured(shares[2], f"{top_share:.0f} %")
print(f"{num_requests} requests, {endless.num_unique} different blocks")
print(
    f"found: {small_share:.0f} % with {sizes[0]} blocks, {at_enough:.0f} % with {enough}, ", end=""
)
print(f"{top_share:.0f} % with all")

# %% [markdown]
# {{ enough:,}} blocks find {{ at_enough:.0f}} %; all {{ endless.num_unique:,}} could find
# {{ top_share:.0f}} %. A cache must hold the chats of the last minutes, not the day. Two things
# make the curve: system prompts, few and hot, come early; the chats' own past needs room.
#
# Single questions find nothing at any size.

# %% [markdown]
# Our chats are tidier than life. A recorded day, Mooncake's conversation trace, same LRU, blocks of
# {{= 512 | [Mooncake](https://github.com/kvcache-ai/Mooncake), conversation trace, FAST 2025 }}
# tokens:
#
# | blocks | found |
# | --- | --- |
# | {{= 1,000 }} | {{= 4.5 }} % |
# | {{= 10,000 }} | {{= 21.2 }} % |
# | without bound | {{= 36.6 }} % |

# %%
from course.sizing import MODELS, kv_bytes_per_token

llama = MODELS["Llama-3-8B"]
gib = [blocks * 512 * kv_bytes_per_token(llama) / 2**30 for blocks in (1000, 10_000)]
print(f"{llama.name}: 1,000 such blocks take {gib[0]:.0f} GiB, 10,000 take {gib[1]:.0f} GiB")

# %% [markdown]
# So the small cache is most of a large GPU already, at {{ gib[0]:.0f}} GiB, and the larger one, at
# {{ gib[1]:.0f}} GiB, is beyond any. This is why servers keep old blocks in the host's memory or on
# disk, which is a matter for lesson 09.

# %% [markdown]
# ## On the real model, and what did not improve
#
# A system prompt and two questions, with the cache and without. The text must not change.

# %%
from course.engine import LLM

loaded = LLM("smollm2", num_blocks=64)
model = (loaded.model, loaded.tokenizer)
rules = "You answer briefly, in one sentence, and you never make things up. " * 10
asked = ["What is the capital of France?", "How many days are in a week?"]
limits = SamplingParams(max_tokens=12)
results = {}
for caching in (False, True):
    llm = LLM(model, num_blocks=64, prefix_caching=caching)
    results[caching] = [
        llm.chat([{"role": "system", "content": rules}, {"role": "user", "content": q}], limits)
        for q in asked
    ]

# %%
same_text = all(
    with_cache.token_ids == without.token_ids
    for with_cache, without in zip(results[True], results[False], strict=True)
)
second = results[True][1]
found_live, prompt_live = second.num_cached_tokens, len(second.prompt_token_ids)
print("same tokens with and without:", same_text)
print(f"second question: {found_live} of {prompt_live} prompt tokens found")

# %% tags=["nbval-ignore-output"]
for caching, (_, answer) in results.items():
    print("with cache:   " if caching else "without cache:", end=" ")
    print(f"first token after {1e3 * answer.time_to_first_token:6,.0f} ms, ", end="")
    print(f"then {1e3 * answer.time_per_token:4.0f} ms per token")
print("the second question, on this machine, in this run")

# %% [markdown]
# The first token comes much sooner: {{ found_live }} of {{ prompt_live }} tokens are not computed.
# The tokens after it gain nothing: each still reads the whole context, shared or not. In the paper
# a shared prefix of {{= 80 | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 6.4 }}
# tokens gave {{= 1.67 }} times the throughput, one of {{= 341 }} tokens {{= 3.58 }} times; without
# equal beginnings there is only the hashing to pay.
#
# **What is still wasted?** You have seen the pieces one by one. Lesson 08 asks whether the whole
# keeps their promise.

# %%
from course.show import prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
from course.show import check_yourself

check_yourself(
    "Two requests share a block that is full. One decodes on. What is copied?",
    {
        "The shared block.": "Nobody writes into a full block. Copies are for blocks that will be "
        "written.",
        "The whole table's blocks.": "That is what contiguous memory would have to do.",
        "Nothing.": "Its next token goes into a new block of its own.",
    },
    right="Nothing.",
)

# %%
check_yourself(
    "Four samples share a half-filled last block. All write. How many copies?",
    {
        "One.": "A copy has one owner, its maker. The other three still share the old block.",
        "Three.": "The fourth is the only owner left and writes in place.",
        "Four.": "When the last one writes, nobody else owns the old block any more.",
        "None.": "Then they would overwrite each other's tokens.",
    },
    right="Three.",
)

# %%
check_yourself(
    "A block's tokens equal those of a cached block, but stand in another conversation. Reuse it?",
    {
        "Yes, equal tokens have equal keys and values.": "In the first layer, perhaps. Above it "
        "they depend on everything to the left.",
        "No: what stands before them differs.": "That is what the chain is for: the hash of a "
        "block carries the hash of all before it.",
        "Yes, if it is a full block.": "Full is necessary and does not suffice.",
    },
    right="No: what stands before them differs.",
)

# %%
check_yourself(
    "The prefix cache holds 90 % of the blocks, and nobody runs. How much memory is free?",
    {
        "10 %.": "Cached blocks without an owner are free: anybody may take them.",
        "All of it.": "A cached block without an owner is a free block that is remembered.",
        "None, until the cache is cleared.": "It need not be cleared; blocks are taken from its "
        "old end as they are needed.",
    },
    right="All of it.",
)

# %%
check_yourself(
    "Why is a child evicted before its parent?",
    {
        "It is older.": "It was written later, if anything.",
        "Without the parent it cannot be found.": "Evicting the parent first would leave a block "
        "in the cache that no lookup ever reaches.",
        "It has fewer tokens.": "All cached blocks are full.",
        "It is used less by chance.": "It is no chance: whoever uses a child uses its parent too.",
    },
    right="Without the parent it cannot be found.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"Fork copies the cache."* It copies a table and raises counts. Blocks are copied one at a time,
#   when somebody writes into one that is shared.
# - *"Freeing a request frees its blocks."* It takes one owner from each. Only the last one frees.
# - *"Publish at admission."* Then a stranger in the same step reads what is not written yet.
# - *"Hash the block's own tokens."* Right tokens behind the wrong beginning: wrong memory, no
#   error.
# - *"A full hit needs no computing."* One token must be computed, or there is nothing to sample
#   from.
# - *"The cache takes memory from requests."* It remembers free blocks until they are needed.

# %% [markdown]
# ## Key takeaways
#
# - A block may stand in many tables; its reference count is how many. At 0 it is free.
# - Copy-on-write: before writing into a shared block, take a copy. Full blocks never need it.
# - Prefix hashes are chained. A block is published after it is written and found whole or not at
#   all.
# - Eviction is LRU, children before parents.
# - Sharing saves prefill and memory where beginnings are equal. It saves no decoding.
# - What is still wasted? That is for the whole engine to show.

# %% [markdown]
# ## Further reading
#
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: sec. 4.4 on sharing, 6.3 and 6.4
#   on what it saves.
# - L. Zheng and others, [SGLang: Efficient Execution of Structured Language Model
#   Programs](https://arxiv.org/abs/2312.07104), 2024: prefixes in a radix tree instead of a chain.
# - R. Qin and others, [Mooncake: A KVCache-centric Disaggregated Architecture for LLM
#   Serving](https://arxiv.org/abs/2407.00079), 2025: a prefix cache as large as a data centre.
