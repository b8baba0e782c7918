# ---
# title: Block tables
# summary: Equal blocks and a table per request; where a token goes, and when a block is taken
# minutes: 40
# objectives:
#   - turn a position in a request into a slot of the pool
#   - say in which phase of which step a request takes its next block
#   - choose a block size for a workload and say what it wastes and what it costs
#   - name the check that notices when two requests believe they own one block
# builds: [BlockPool, blocks_needed, slot_mapping, grow_table, find_fault]
# ---

# %% [markdown]
# Lesson 03 left the arena in this state:

# %%
from course.memory import Arena, play
from course.memory.example import ARENA_TRACE, POOL_TOKENS

refusal = list(play(Arena(POOL_TOKENS), ARENA_TRACE))[-1]
print(f"{refusal.name} wants {refusal.size} slots in one piece")
print(f"free: {refusal.num_free} slots; longest hole: {refusal.largest_hole}")

# %% [markdown]
# So stop asking for one long hole. Cut the memory into **blocks** of {{ BLOCK_SIZE }} slots, all
# alike. Give a request *any* block that is free, and write down which ones, in order. That list is
# its **block table**.

# %%
from course.engine.block_pool import BlockPool
from course.engine.block_table import blocks_needed
from course.memory.example import BLOCK_ORDER, BLOCK_SIZE, NUM_BLOCKS, REQUESTS
from course.show import block_table_figure

pool = BlockPool(NUM_BLOCKS, order=BLOCK_ORDER)
tables, stored = {}, {}
for r in REQUESTS:
    stored[r.name] = r.prompt_tokens
    tables[r.name] = pool.allocate(blocks_needed(r.prompt_tokens, BLOCK_SIZE))
words = {r.name: r.prompt.split() for r in REQUESTS}
words["A"] += ["8th", "9th"]  # tokens of A's answer, to come
block_table_figure(tables, stored, words=words, follow="A")

# %%
print("tables:     ", tables)
print("free blocks:", pool.num_free, "of", pool.num_blocks)

# %% [markdown]
# The upper half is how each request sees itself: its tokens in order, cut into **logical blocks**
# 0, 1, 2 and so on. The lower half is where they are: **physical blocks**, numbered by address. The
# block table is all that connects the two.
#
# Two things are gone. No block is too short, because all are alike: as long as one is free, a
# request can have it. And nothing was reserved for later: each holds what its prompt needs.

# %% [markdown]
# ## Where is a token?
#
# The pool's slots are numbered through: block 0 has the first {{ BLOCK_SIZE }}, block 1 the next,
# and so on. C's table is {{ table_of_c }}. Its fifth token, "about", is at position
# {{ position_of_about }}, since we count from 0.

# %%
from course.show import predict

guess_slot = predict("In which slot are the key and value of C's token at position 4?")

# %%
table_of_c, position_of_about = tables["C"], 4
logical_block, row = divmod(position_of_about, BLOCK_SIZE)
physical_block = table_of_c[logical_block]
slot = physical_block * BLOCK_SIZE + row
print(f"position {position_of_about} is row {row} of logical block {logical_block}")
print(f"logical block {logical_block} lives in physical block {physical_block}")
print(f"slot {physical_block} * {BLOCK_SIZE} + {row} = {slot}")
guess_slot.measured(slot)

# %% [markdown]
# Three steps, and the table is used in the middle one:
#
# 1. `logical_block, row = divmod(position, block_size)`
# 2. `physical_block = table[logical_block]`
# 3. `slot = physical_block * block_size + row`
#
# The tempting short cut is to start at the first block and count on. See where it leads:

# %%
from course.engine.block_table import slot_mapping

short_cut = table_of_c[0] * BLOCK_SIZE + position_of_about
stranger = short_cut // BLOCK_SIZE
print("by the table:     slot", slot_mapping(table_of_c, [position_of_about], BLOCK_SIZE)[0])
print("by counting on:   slot", short_cut, "in block", stranger)
print("tables that hold block", stranger, "now:", pool.ref_count(stranger))

# %% [markdown]
# Block {{ stranger }} is free today and somebody else's tomorrow. No error would be raised: C would
# read a stranger's keys and go on writing fluent nonsense. This is why our pool never hands out 0,
# 1, 2 in order. With those ids the wrong sum comes out right.
#
# ## When is a block taken?
#
# A holds {{ stored["A"] }} tokens in two blocks. Its next token is on its way.

# %%
guess_8th = predict(
    "A has 7 tokens and 2 blocks of 4. Its 8th arrives. A new block?", ["yes", "no"]
)

# %%
guess_9th = predict("And its 9th token: a new block then?", ["yes", "no"])

# %%
block_counts = {n: blocks_needed(n, BLOCK_SIZE) for n in (7, 8, 9)}
print("tokens -> blocks needed:", block_counts)
yes_no = ["no", "yes"]
guess_8th.measured(yes_no[block_counts[8] > block_counts[7]], "it takes A's last empty slot")
guess_9th.measured(yes_no[block_counts[9] > block_counts[8]], "a third block, for one token")

# %% [markdown]
# These are the steps that the PagedAttention paper walks through in its Fig. 6
# ([Kwon et al. 2023](https://arxiv.org/abs/2309.06180)): the same sizes, the same block ids. Here
# they are for A. First the last free row is filled, then the table grows.

# %%
block_table_figure({"A": [7, 1]}, {"A": 8}, words=words)

# %%
block_table_figure({"A": [7, 1, 3]}, {"A": 9}, words=words)

# %% [markdown]
# ### Is the sampled token already counted?
#
# People ask this most about block tables. It has two right answers, because there are two counts:
#
# - `num_tokens`: all tokens of the request, the one just sampled too.
# - `num_computed`: those whose keys and values are in memory.
#
# A token is *sampled*, that is, chosen by the model's scores, at the end of a step. Its key and
# value are *written* in the next one, when it goes through the model itself. In between, the first
# count is one ahead.

# %% [markdown]
# Each step of the server has four phases. **Schedule**: who runs, and which slots will be written.
# **Write**: the keys and values of the newest tokens go to these slots. **Sample**: the next token
# is chosen. **Append**: it joins the list. Step through them; before each, say whether it takes a
# new block. The clinic keeps the score.

# %%
from course.show import boundary_clinic, table

clinic = boundary_clinic(block_size=4, tokens=range(6, 14), step=12)

# %%
rows = [("num_tokens", "num_computed before the step", "blocks needed", "blocks held", "take")]
for n in range(6, 14):
    held = blocks_needed(n - 1, BLOCK_SIZE)
    need = blocks_needed(n, BLOCK_SIZE)
    rows.append((n, n - 1, need, held, need - held))
table(rows, "At the schedule phase of each step")

# %% [markdown]
# One rule covers every row, and long prompts too:
#
#     need = blocks_needed(num_tokens, block_size) - len(table)
#
# It is asked in the schedule phase and nowhere else. `num_tokens` is right here, with the sampled
# token in it: that token is about to be written, so it must have a slot. It was *not* needed one
# phase earlier, when it was sampled.
#
# Then there is a token that never needs a slot at all.

# %%
guess_last = predict("A's 9th token is its last. Does A ever hold a third block?", ["yes", "no"])

# %%
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler, SchedulerConfig
from course.memory.example import A, B, C


def new_manager():
    pool = BlockPool(NUM_BLOCKS, order=BLOCK_ORDER)
    return KVManager(NUM_BLOCKS, BLOCK_SIZE, prefix_caching=False, pool=pool)


def new_request(example, max_tokens):
    ids = list(range(example.prompt_tokens))
    return Request(example.name, ids, SamplingParams(max_tokens=max_tokens))


# %% [markdown]
# The engine's own scheduler decides (lesson 06; its two limits are out of reach here). In place of
# the model we sample token 0 each time: for block tables it does not matter what a token says.


# %%
def life_of(a):
    manager = new_manager()
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64), manager)
    for request in (a, new_request(B, B.output_tokens), new_request(C, C.output_tokens)):
        scheduler.add(request)
    while not a.is_finished:
        step = scheduler.schedule()
        last_table = list(manager.tables["A"])
        scheduler.update(step, {r.request_id: 0 for r in step.samples})
        print(f"  {a.num_tokens} tokens, {a.num_computed_tokens} stored, table {last_table}")
    return last_table


# %%
print("A ends with its 9th token:")
short_life = life_of(new_request(A, max_tokens=2))
print("A ends with its 10th token:")
longer_life = life_of(new_request(A, max_tokens=3))

# %%
guess_last.measured(yes_no[len(short_life) > 2], f"its table stays {short_life}")
stored_at_end = A.total_tokens - 1
print(f"In its full life A gets {A.total_tokens} tokens and stores {stored_at_end}.")

# %% [markdown]
# The last token is given to the user and read by nobody, so its key and value are never computed. A
# server that takes a block as soon as a token is *sampled* takes one too many whenever a request
# ends one token past a boundary.
#
# And why {{ longer_life }} this time? C ended a step earlier. The last block of its table,
# {{ longer_life[-1] }}, is the first to be used again. Any free block will do.

# %% [markdown]
# ## The ledger again
#
# Now real lengths: conversations on Azure, drawn from the length mix that lesson 02 used. Three
# servers with the same memory serve the same requests. One reserves slabs. One is told each length
# in advance, which no server is, and keeps a buddy arena. One has blocks.

# %%
from course.memory import make_policy, simulate
from course.sizing import MODELS, kv_bytes_per_token
from course.workload import make_requests, mix

chats = mix("azure_conv_2023")
requests = make_requests(chats.sample(2000, seed=4))
limit, pool_tokens, block_size = 4096, 65_536, 16
per_token = kv_bytes_per_token(MODELS["Llama-3-8B"])
print("lengths:", chats.title, "|", chats.cite)
pool_gib = pool_tokens * per_token / 2**30
print(f"pool: {pool_tokens:,} slots; for Llama 3 8B that is {pool_gib:.0f} GiB")
print(f"slabs of {limit:,} that fit: {pool_tokens // limit}")

# %%
guess_batch = predict("Slabs: 16 run together. How many with blocks, on average?", unit="requests")

# %%
from course.show import waste_ledger

runs = {
    name: simulate(requests, make_policy(name, pool_tokens, limit, block_size), all_at_once=True)
    for name in ("slab", "buddy", "paged")
}
waste_ledger({name: run.sustained for name, run in runs.items()})

# %%
slab, buddy, paged = (runs[name] for name in ("slab", "buddy", "paged"))
rows = [("memory", "running together", "steps for all", "requests preempted", "tokens recomputed")]
for name, run in runs.items():
    batch = round(run.sustained_batch, 1)
    rows.append((name, batch, run.num_steps, run.num_preemptions, run.recomputed_tokens))
table(rows, f"{slab.num_finished} requests; {slab.num_dropped} longer than {limit} were dropped")

# %%
guess_batch.measured(round(paged.sustained_batch, 1))
live = {name: 100 * run.sustained.shares()["live"] for name, run in runs.items()}
recomputed_share = paged.recomputed_tokens / sum(r.total_tokens for r in requests)
held_unwritten = 100 * paged.sustained.reserved / paged.sustained.held

# %% [markdown]
# Each bar is the mean over all steps in which somebody waited. With slabs
# {{ live["slab"]:.0f }} % of it is live. With blocks it is {{ live["paged"]:.0f }} %, and
# {{ paged.sustained_batch / slab.sustained_batch:.1f }} times as many requests run. Of the slots
# that they hold, {{ held_unwritten:.1f }} % are not written yet.

# %% [markdown]
# It did not come free. Blocks let in whoever fits *now*. Later all want to grow, the pool is dry,
# and somebody is **preempted**: gives back all blocks and starts over, when there is room again.
# That happened {{ paged.num_preemptions }} times. The tokens computed again are as many as
# {{ 100 * recomputed_share:.0f }} % of all that were asked for. See lesson 06.

# %% [markdown]
# ## How large should a block be?
#
# Only a table's last block can have empty slots. Small blocks leave less at the end. So why not
# blocks of one token?

# %%
guess_16 = predict("Blocks of 16. Empty slots in a request's last block, on average?", unit="slots")

# %%
from course.memory import emptiness

sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
names = {"Azure code": "azure_code_2023", "Azure chat": "azure_conv_2023"}
names |= {"ShareGPT": "sharegpt_8k_filtered", "Alpaca": "paper_alpaca"}
streams = {label: make_requests(mix(name).sample(2000, seed=4)) for label, name in names.items()}
sweeps = {label: [emptiness(s, 8192, b) for b in sizes] for label, s in streams.items()}

# %%
from course.show import line_plot

waste = {label: [100 * e.paged for e in sweep] for label, sweep in sweeps.items()}
line_plot(
    {label: (sizes, shares) for label, shares in waste.items()},
    "tokens in a block (log scale)",
    "empty slots, % of those held",
    "Larger blocks waste more, most where requests are short",
    log="x",
)

# %%
at_16 = {label: sweep[sizes.index(16)] for label, sweep in sweeps.items()}
chat_empty = at_16["Azure chat"].mean_empty_slots_in_last_block
guess_16.measured(round(chat_empty, 1), "Azure chat, when a request ends")
rows = [("mix", "mean tokens", "empty, slots", "empty, % per step", "empty, % per request")]
for label, e in at_16.items():
    shares = (round(100 * e.paged, 1), round(100 * e.paged_at_finish_per_request, 1))
    rows.append((label, round(e.mean_total), round(e.mean_empty_slots_in_last_block, 1), *shares))
table(rows, "Blocks of 16 tokens")

# %% [markdown]
# The empty tail is {{ chat_empty:.1f }} slots on average: half a block, about
# `(block_size - 1) / 2`, whatever the lengths. What share that is depends on what stands before it:
# {{ at_16["Azure chat"].paged * 100:.1f }} % for long chats,
# {{ at_16["Alpaca"].paged * 100:.1f }} % for Alpaca's short questions. And again the metric must be
# named: per request the short ones count as much as the long.
#
# (Of Alpaca we know the paper's mean prompt and mean answer, and draw lengths from these alone. The
# other mixes are counted from traces.)

# %% [markdown]
# ### What a table costs
#
# An entry is one 32-bit number. Here is one request of {{ longest:,}} tokens, in blocks of several
# sizes.

# %%
from course.sizing import kv_bytes

shape, longest = MODELS["Llama-3-8B"], 8192
cache_bytes = kv_bytes(shape, longest)
rows = [("block size", "entries", "table, bytes", "table : cache", "32 requests, entries")]
for b in (1, 4, 16, 64, 256):
    entries = blocks_needed(longest, b)
    rows.append((b, entries, 4 * entries, f"1 : {cache_bytes // (4 * entries):,}", 32 * entries))
table(rows, f"{shape.name}: {cache_bytes / 2**30:.0f} GiB of KV cache for {longest:,} tokens")

# %% [markdown]
# In bytes the table is nothing, even with blocks of one. The cost is elsewhere. Every step sends
# the tables to the attention kernel. Every layer looks every entry up, and fetches memory in pieces
# of one block: small pieces are slow to fetch. Large blocks match a shared prompt less often, since
# only whole blocks are shared (lesson 07).

# %% [markdown]
# The paper measured both ends: best were blocks of
# {{= 16 to 128 | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 7.2 }} on ShareGPT and
# {{= 16 to 32 | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 7.2 }} on Alpaca; it
# chose {{= 16 }}. Its kernel was
# {{= 20 to 26 % | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 7.1 }} slower than one
# over contiguous memory. Paging buys room and pays for it in speed. You can measure the price in
# lesson 05.

# %% [markdown]
# ## Who notices a fault?
#
# For each block the pool counts the tables that hold it: its **reference count**. Here is a fault
# of one missing line. A is sent away and gives its blocks back, but its table stays. Then C comes.
# (Where both claim a block, their letters alternate.)

# %%
from course.show import block_grid

manager = new_manager()
a, c = new_request(A, 2), new_request(C, 2)
manager.admit(a, a.num_tokens)
manager.pool.free(reversed(manager.tables["A"]))  # and the line that forgets the table is missing
manager.admit(c, c.num_tokens)
block_grid(manager.tables, {"A": a.num_tokens, "C": c.num_tokens}, highlight=[7, 1])

# %%
guess_books = predict("Look at the pool alone. Are its books in order?", ["yes", "no"])

# %%
from course.engine.invariants import InvariantError

in_order = {}
for who, check in (
    ("the pool", manager.pool.check_invariants),
    ("pool and tables", manager.check_invariants),
):
    try:
        check()
        in_order[who] = "yes"
        print(f"{who}: in order")
    except InvariantError as error:
        in_order[who] = "no"
        print(f"{who}: {error}")
guess_books.measured(in_order["the pool"], "each block is free or held, and all are counted")

# %% [markdown]
# A and C would now write into the same slots, and nothing would crash. The pool alone looks well.
# Only a rule that spans both sees it:
#
# **A block's reference count is the number of table entries that name it.**
#
# A rule that holds between any two operations is an **invariant**. A check that walks everything
# after each step finds faults that nobody thought of. In the lab you write one, and it meets a row
# of broken allocators.

# %% [markdown]
# ## What is still wasted
#
# - The tail of each last block: half a block per request.
# - Order: the keys of one request are no longer next to each other, and somebody has to go and find
#   them. That is lesson 05.
# - Repetition: two requests with the same prompt store it twice. But now that a block has a *name*,
#   two tables could hold the same name. That is lesson 07.

# %%
from course.show import check_yourself, prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
check_yourself(
    "Block size 4. A request's 13th token has just been sampled. How many blocks does it hold?",
    {
        "Four, because it has 13 tokens.": "It has, but only 12 are stored. The block for the "
        "13th is taken when the next step is scheduled.",
        "Three, and it takes the fourth in the next step, if there is one.": "If the 13th token "
        "was the last, its key and value are never computed and no fourth block is taken.",
        "Three, and it takes the fourth when the 14th is sampled.": "By then the 13th has been "
        "written, and it needed a slot for that.",
    },
    right="Three, and it takes the fourth in the next step, if there is one.",
)
check_yourself(
    "Block size 4, table [7, 1, 3]. In which slot is position 8?",
    {
        "Slot 8.": "That is a position. Slots are counted over the whole pool.",
        "Slot 36.": "That is 7 * 4 + 8: it takes the blocks to be neighbours. Ask the table.",
        "Slot 12.": "Position 8 is row 0 of logical block 2, which lives in block 3: 3 * 4 + 0.",
        "Slot 3.": "That is the number of the block. The slot is its first: block times size.",
    },
    right="Slot 12.",
)
check_yourself(
    "Do blocks do away with internal fragmentation?",
    {
        "Yes, that is what they are for.": "They do away with external fragmentation: no hole is "
        "too short. The empty tail of the last block stays.",
        "No, but it is at most one block's tail per request.": "Block size minus one slots at the "
        "most, half of that on average, however long the request may become.",
        "No, it is as large as with slabs.": "A slab's tail is as long as the longest answer "
        "allowed. A block's tail ends with the block.",
    },
    right="No, but it is at most one block's tail per request.",
)
check_yourself(
    "A server has 100 free blocks of 16 and a request of 1,000 tokens comes. Can it be refused "
    "because of fragmentation?",
    {
        "Yes, if the free blocks are scattered.": "Any free block will do. Scattered is what they "
        "are allowed to be.",
        "No. It needs 63 blocks, and any 63 will do.": "Whether it fits is a comparison of two "
        "counts. That is the whole gain.",
        "Yes, if no 1,000 slots are in one piece.": "That was the arena. Nobody asks for one "
        "piece here.",
    },
    right="No. It needs 63 blocks, and any 63 will do.",
)
check_yourself(
    "Most requests have 50 tokens. You go from blocks of 16 to blocks of 256. What happens?",
    {
        "Fewer lookups, and much of the pool is empty.": "Each request holds 256 slots for about "
        "50 tokens. You have built small slabs.",
        "Fewer lookups, and nothing else: paging wastes nothing.": "It wastes the tail of the "
        "last block. Here the last block is the only one.",
        "The tables become too large.": "They become smaller: one entry for each request.",
    },
    right="Fewer lookups, and much of the pool is empty.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"The sampled token is stored."* It is counted, and stored one step later; the last one never.
# - *"One more token, one more block if `num_tokens % block_size == 0`."* That is right for some
#   counts and wrong for prompts that arrive in pieces. Compare `blocks_needed` with the table.
# - *"Block ids rise along a request."* They are in the order in which blocks happened to be free.
# - *"Blocks make reads contiguous."* Only inside a block.
# - *"Freed, so gone."* A table that still names a freed block is a fault that no exception reports.

# %% [markdown]
# ## Key takeaways
#
# - Equal blocks end external fragmentation: fitting becomes a comparison of two counts.
# - Position to slot: `divmod`, look up, multiply and add.
# - A block is taken in the schedule phase, when `blocks_needed(num_tokens)` exceeds the table, and
#   at no other moment.
# - The waste is half a block per request: the share depends on block size *and* on lengths.
# - Room, not speed. And with everybody let in, somebody will have to be preempted.

# %% [markdown]
# ## Further reading
#
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: sec. 4 for blocks and tables,
#   Fig. 6 for the walk, sec. 7 for block sizes.
# - R. Prabhu and others, [vAttention: Dynamic Memory Management for Serving LLMs without
#   PagedAttention](https://arxiv.org/abs/2405.04437), ASPLOS 2025: another way, where the GPU's
#   own page tables do the work and the kernel sees contiguous memory.
# - P. Patel and others, [Splitwise](https://arxiv.org/abs/2311.18677), ISCA 2024: where the
#   Azure traces come from.
