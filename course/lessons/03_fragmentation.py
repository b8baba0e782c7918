# ---
# title: Fragmentation
# summary: "Free bytes that nobody can have: holes, how to search them, and what closing them costs"
# minutes: 45
# objectives:
#   - show a request that is refused although enough slots are free, and say why
#   - tell internal from external fragmentation in a ledger
#   - compare first fit, best fit, a buddy allocator and compaction by what each costs
#   - find out why a batch is small although the memory looks free
# builds: [Arena, best_fit, unusable_share]
# ---

# %% [markdown]
# Slabs are too long. So give each request only what it needs. Suppose somebody tells us in advance
# how long every answer will be; nobody can, but suppose. Then no slot is reserved for nothing.
#
# Here is the running example under this rule. Two short visitors came, A and B came, the visitors
# left. Now C asks for {{ refusal.size }} slots.

# %%
from course.memory.example import ARENA_TRACE, POOL_TOKENS
from course.show import arena_playground

names = {"first visitor": "v", "second visitor": "w"}
trace = [(action, names.get(name, name), size) for action, name, size in ARENA_TRACE]
playground = arena_playground(trace)

# %% [markdown]
# Refused, with {{ refusal.num_free }} slots free. They lie in two **holes**, on either side of A,
# and a request wants its slots in one piece.
#
# A memory that hands out pieces of any length is an **arena**. Work the controls: free A, ask
# again, press Compact. Can you have C refused in some other way?

# %% [markdown]
# ## By hand
#
# The same day in code, one line for each event. `free` and `longest` are those after it.

# %%
from course.memory import Arena, play

arena, offsets = Arena(POOL_TOKENS), {}
for event in play(arena, ARENA_TRACE):
    offsets[event.name] = event.offset
    where = "refused" if event.offset is None else f"at {event.offset}"
    print(f"{event.action:8} {event.name:14} {event.size:3} slots {where:8}"
          f" free {event.num_free:2}, longest {event.largest_hole}")  # fmt: skip
refusal = event
print("holes (offset, size):", arena.holes)

# %% [markdown]
# A leaves. Before you run the next cell: what do the holes look like then?

# %%
from course.show import predict

guess_holes = predict("A lies between two holes. How many holes once A has left?", [1, 2, 3])

# %%
arena.free(offsets["A"])
hole_after = arena.holes[0]
print("holes after A has left:", arena.holes)
guess_holes.measured(len(arena.holes), "neighbours merge")
print("C gets offset", arena.allocate(refusal.size))

# %% [markdown]
# Freed slots merge with free neighbours: this is **coalescing**. Without it the arena would
# remember a border that nobody needs, and {{ hole_after[1] }} slots in a row would count as three
# pieces. Coalescing helps when the right request leaves. Nobody can order it to.

# %% [markdown]
# ## Two kinds of fragmentation
#
# Fragmentation is memory that is lost to the way it is handed out. Lesson 02 met the inner kind.
# Here are both, two steps on, when A has written {{ written[A] }} tokens and B {{ written[B] }}. In
# slabs C waits, and in the arena C waits, too.

# %%
from course.memory import Holding, take_ledger
from course.memory.example import MAX_MODEL_LEN, A, B
from course.show import waste_ledger

written = {A: 9, B: 5}
slabs = [Holding(n, r.total_tokens, MAX_MODEL_LEN) for r, n in written.items()]
exact = [Holding(n, r.total_tokens, r.total_tokens) for r, n in written.items()]
in_slabs = take_ledger(POOL_TOKENS, slabs, next_need=MAX_MODEL_LEN, next_fits=False)
in_arena = take_ledger(POOL_TOKENS, exact, next_need=refusal.size, next_fits=False)
_ = waste_ledger({"slab": in_slabs, "arena": in_arena})

# %%
print("slots  slab internal: ", in_slabs.internal, " external:", in_slabs.external)
print("slots  arena internal:", in_arena.internal, " external:", in_arena.external)

# %% [markdown]
# - **Internal fragmentation** is inside a reservation: the request holds slots that it never
#   writes. Slabs lose {{ in_slabs.internal }} slots so.
# - **External fragmentation** is between reservations: slots are free, and in pieces too short for
#   whoever waits. The arena loses {{ in_arena.external }} slots so.
#
# Exact lengths have not saved these slots (the example is made so that the numbers agree). They
# have moved outside, where they look free. And the largest part, reserved for later, is unchanged.

# %% [markdown]
# ## Three ways to search
#
# An arena chooses a hole. So far it went by the first of these rules:
#
# - **First fit** takes the first hole that is long enough.
# - **Best fit** takes the shortest that is. It leaves long holes whole, and crumbs.
# - A **buddy allocator** rounds each size up to a power of two and cuts the arena in halves, and
#   halves of halves. A freed half merges with its free twin. Holes stay useful; the rounding is
#   paid inside.
#
# The same events:

# %%
from course.memory import BuddyArena

for name, fresh in (("first fit", Arena(POOL_TOKENS)), ("best fit", Arena(POOL_TOKENS, "best")),
                    ("buddy", BuddyArena(POOL_TOKENS))):  # fmt: skip
    events = [e for e in play(fresh, ARENA_TRACE) if e.action == "allocate"]
    out = [f"{e.name} ({e.size} asked, {e.num_free} left)" for e in events if e.offset is None]
    print(f"{name:9} refuses: {', '.join(out)}")

# %%
buddy = BuddyArena(POOL_TOKENS)
size_of_a, size_of_b = A.total_tokens, B.total_tokens
held_by_a = buddy.held(buddy.allocate(size_of_a))

# %% [markdown]
# Best fit has no better hole to choose. The buddy refuses B, not C: it rounded A's
# {{ size_of_a }} slots up to {{ held_by_a }}, and B's {{ size_of_b }} too.

# %% [markdown]
# ## How often?
#
# Our arena was built to fail. Now a random stream: sizes drawn evenly around a mean, departures in
# any order, so many requests that want to be in at a time. The **load** is what these would need
# together, as a share of the arena. "Refused with room to spare" means: enough slots were free, and
# no hole was long enough. At which load does that begin?

# %%
loads = ["below 50 %", "between 50 and 75 %", "only above 75 %"]
guess_load = predict("At which load is one request in 100 refused with room to spare?", loads)

# %%
from course.memory import random_operations

SIZE, MEAN = 1024, 64  # slots of the arena, slots of a request on average
ALIVE = (4, 6, 8, 9, 10, 12, 14, 16)  # requests that want to be in at a time


def refused(make, alive):
    asked = with_room = refusals = 0
    for seed in range(4):
        for event in play(make(), random_operations(2000, MEAN, alive, seed)):
            asked += event.action == "allocate"
            refusals += event.action == "allocate" and event.offset is None
            with_room += event.refused_with_room
    return 100 * with_room / asked, 100 * refusals / asked


# %%
from course.show import line_plot

makers = {"first fit": lambda: Arena(SIZE), "best fit": lambda: Arena(SIZE, "best"),
          "buddy": lambda: BuddyArena(SIZE)}  # fmt: skip
counted = {name: [refused(make, alive) for alive in ALIVE] for name, make in makers.items()}
load = [100 * alive * MEAN / SIZE for alive in ALIVE]
_ = line_plot(
    {name: (load, [room for room, _ in shares]) for name, shares in counted.items()},
    "load, % of the arena", "refused although enough slots were free, % of all requests",
    "Fragmentation begins long before the memory is full", note="random stream, simulated",
)  # fmt: skip

# %%
first_fit = [room for room, _ in counted["first fit"]]
begins = next(at for at, room in zip(load, first_fit, strict=True) if room > 1)
verdict = loads[(begins > 50) + (begins > 75)]
guess_load.measured(verdict, f"first fit: {begins:g} % is the first load tried that passes it")
full = {name: shares[-1] for name, shares in counted.items()}
share_with_room = 100 * full["first fit"][0] / full["first fit"][1]
for name, (room, every) in full.items():
    print(f"{name:9} at full load: {every:4.1f} % refused, {room:4.1f} % with room to spare")

# %% [markdown]
# With first fit at full load, {{ share_with_room:.0f }} % of the refusals happen with enough slots
# free. In this stream "out of memory" nearly always means "out of long holes".
#
# At full load the buddy has the lowest line, and that is no merit: it refuses the most in all. It
# rounds up, so it is really full sooner.

# %% [markdown]
# ## The same with real lengths
#
# Conversations on Azure, every length known in advance, a queue that never empties: everybody waits
# from the start, and whoever fits next comes in. Two more memories run along, for later.

# %%
from course.memory import Contiguous, make_policy, simulate
from course.workload import make_requests, mix

chats = mix("azure_conv_2023")
requests = make_requests(chats.sample(2000, seed=4))
limit, pool_tokens = 4096, 65_536
print("lengths:", chats.title, "|", chats.cite)

# %%
policies = {
    n: make_policy(n, pool_tokens, limit) for n in ("slab", "first-fit", "best-fit", "buddy")
}
policies["compacting"] = Contiguous("exact", Arena(pool_tokens), limit, compact=True)
policies["paged"] = make_policy("paged", pool_tokens, limit, 16)
runs = {name: simulate(requests, policy, all_at_once=True) for name, policy in policies.items()}
arenas = ("first-fit", "best-fit", "buddy")
_ = waste_ledger({name: runs[name].sustained for name in ("slab", *arenas)})

# %%
from course.show import table

rows = [("memory", "running together", "steps for all", "stuck, % of the steps")]
for name in ("slab", *arenas):
    run = runs[name]
    stuck = round(100 * run.stuck_share)
    rows.append((name, round(run.sustained_batch, 1), run.num_steps, stuck))
table(rows, "Stuck: the next request was refused although as many slots were free")

# %%
external = {name: 100 * runs[name].sustained.shares()["external"] for name in arenas}
internal_of_buddy = 100 * runs["buddy"].sustained.shares()["internal"]
stuck_first = 100 * runs["first-fit"].stuck_share
batch = {name: run.sustained_batch for name, run in runs.items()}

# %% [markdown]
# Under first fit, in {{ stuck_first:.0f }} % of the steps, the next request had to wait with enough
# slots free. Of the pool, {{ external["first-fit"]:.0f }} % is external under first fit and
# {{ external["best-fit"]:.0f }} % under best fit. The buddy has only {{ external["buddy"]:.0f }} %,
# and {{ internal_of_buddy:.0f }} % internal: it turned one kind into the other.
#
# Searching more cleverly gained {{ external["first-fit"] - external["best-fit"]:.0f }} points.
# Whatever the rule, it can only choose among holes that others left.

# %% [markdown]
# ## Closing the holes
#
# If the holes are the trouble, push everything together. That is **compaction**: slide all runs to
# the low end, and one hole remains.

# %%
guess_moved = predict(
    "Compacting whenever it helps: how many slots are copied for each token?", unit="slots"
)

# %%
compacting = runs["compacting"]
served = sum(r.total_tokens for r in requests)
copies = compacting.moved_tokens / served
guess_moved.measured(round(copies, 1))
print(f"compactions: {compacting.num_compactions} in {compacting.num_steps:,} steps")
print(f"slots moved: {compacting.moved_tokens:,}; tokens served: {served:,}")
for name in ("first-fit", "compacting", "paged"):
    print(f"{name:10} {runs[name].sustained_batch:4.1f} running together")

# %% [markdown]
# It works: nobody is refused with room to spare, and {{ batch["compacting"]:.0f }} run together
# where {{ batch["first-fit"]:.0f }} did. But {{ moved_share:.0f }} % of the pool moves each time.
# (One could stop once the hole is long enough, or leave out slots not yet written, and move less.)
# In bytes and in time, for two models and a GPU at its peak bandwidth, each byte read once and
# written once:

# %%
from course.sizing import ACCELERATORS, GIB, MODELS, kv_bytes_per_token

gpu = ACCELERATORS["A100 80GB"]
moved_share = 100 * compacting.moved_tokens / compacting.num_compactions / pool_tokens
rows = [("model", "moved in all, GiB", "each time, GiB", "pause, ms", "pauses in all, s")]
pauses = {}
for name in ("Llama-3-8B", "Llama-2-7B"):
    moved = compacting.moved_tokens * kv_bytes_per_token(MODELS[name])
    each, in_all = moved / compacting.num_compactions, 2 * moved / gpu.bandwidth
    pauses[name] = 1000 * in_all / compacting.num_compactions
    numbers = (moved / GIB, each / GIB, pauses[name], in_all)
    rows.append((name, *(round(number, 1) for number in numbers)))
table(rows, f"Computed for {gpu.name}, not measured: {gpu.bandwidth / 1e9:,.0f} GB/s")

# %% [markdown]
# A pause of {{ pauses["Llama-3-8B"]:.0f }} or {{ pauses["Llama-2-7B"]:.0f }} ms, at best, for
# everybody who is being answered. That may be worth it. But there is more to pay, and some of the
# waste is left:
#
# - Every address changes. No kernel may be running, and everything that remembers an address must
#   be told.
# - The slots reserved for later stay reserved.
# - We still cheat: lengths known in advance.
#
# The last line printed above, `paged`, needs none of this. It is lesson 04.

# %% [markdown]
# ## The bar that misleads
#
# Three servers. A monitor adds up what is used and what is free. How many of them can take a
# request of {{ next_asks }} slots?


# %%
def arena_of(*pieces):
    """Runs and holes in turn, a run first."""
    made = Arena(sum(pieces))
    offsets = [made.allocate(size) for size in pieces]
    for offset in offsets[1::2]:
        made.free(offset)
    return made


# %%
servers = {
    "server 1": arena_of(48, 16),
    "server 2": arena_of(16, 10, 32, 6),
    "server 3": arena_of(10, 4, 9, 3, 10, 4, 9, 3, 10, 2),
}
next_asks = 8
print({name: f"{a.size - a.num_free} used, {a.num_free} free" for name, a in servers.items()})

# %%
how_many = ["none", "one", "two", "all three"]
guess_fits = predict("How many of the three can take it?", how_many)

# %%
from course.show import memory_bars

_ = memory_bars(servers, ask=next_asks)
guess_fits.measured(how_many[sum(a.fits(next_asks) for a in servers.values())])

# %%
from course.memory import external_fragmentation, smallest_refused, unusable_share

rows = [
    ("", "free", "outside the longest hole, %", f"useless for {next_asks}, %", "smallest refused")
]
for name, arena in servers.items():
    outside = 100 * external_fragmentation(arena.holes)
    useless = 100 * unusable_share(arena.holes, next_asks)
    least = smallest_refused(arena.holes) or "none"
    rows.append((name, arena.num_free, f"{outside:.1f}", f"{useless:.1f}", least))
table(rows)

# %% [markdown]
# Three monitors, one and the same bar. A sum cannot see where the bytes are. Ask for the longest
# hole, or better: for what share of the free bytes is useless *for the size that comes next*.
# Fragmentation is not a property of memory alone.
#
# The bar misleads the other way, too. A server that takes its whole pool at the start shows a full
# GPU even while nobody is there.

# %% [markdown]
# ## The allocator under your tensors
#
# PyTorch does not ask the GPU's driver for each tensor. It takes **segments** of memory and keeps
# them. A freed tensor's bytes go back to its segment, not to the GPU. Inside a segment pieces are
# split, merged and searched by best fit: a segment is an arena.
#
# Here is a **simulation**, by the rules of PyTorch's source code. A large buffer is freed; five
# tensors are cut from its segment; two are freed; one more is asked for.

# %%
from course.memory import CachingAllocator
from course.show import segment_figure

MIB = 2**20


def fragment(cache):
    cache.free(cache.allocate(200 * MIB))
    tensors = [cache.allocate(size * MIB) for size in (40, 30, 40, 30, 40)]
    cache.free(tensors[0])
    cache.free(tensors[2])
    before = cache.stats()
    cache.allocate(60 * MIB)
    return before, cache.stats()


# %%
grows = ["no: enough is cached", "yes: by 60 MiB", "it fails"]
simulated = CachingAllocator(2**30)
before, after = fragment(simulated)
cached = before.cached // MIB
guess_driver = predict(
    f"{cached} MiB are cached, 60 are asked for. Must PyTorch ask the driver for more?", grows
)

# %%
_ = segment_figure(simulated.segments(), "Simulation: after the tensor of 60 MiB")

# %%
rows = [("simulation, MiB", "allocated", "reserved", "cached", "longest free piece")]
for name, s in (("before", before), ("after", after)):
    numbers = (s.allocated, s.reserved, s.cached, s.largest_free)
    rows.append((name, *(n // MIB for n in numbers)))
table(rows)
taken = (after.reserved - before.reserved) // MIB
guess_driver.measured(grows[taken == 60], f"longest free piece: {before.largest_free // MIB} MiB")

# %% [markdown]
# {{ cached }} MiB were cached, and still {{ taken }} more were taken from the GPU. Had they not
# been there: out of memory, with {{ cached }} MiB in hand. PyTorch's message then says how much is
# "reserved by PyTorch but unallocated".
#
# And on this machine? The next cell does the same with real tensors and reads PyTorch's own
# counters, if there is a GPU.

# %% tags=["nbval-ignore-output"]
import torch

if torch.cuda.is_available():
    from course.show import TorchCache

    real = fragment(TorchCache())
    print(f"measured on {torch.cuda.get_device_name()}, PyTorch {torch.__version__}:")
    for when, s in zip(("before", "after"), real, strict=True):
        print(f"  {when:6} allocated {s.allocated // MIB} MiB, reserved {s.reserved // MIB} MiB")
else:
    print("Not run: no CUDA device here. All that you saw of PyTorch above is the simulation.")

# %% [markdown]
# On a server of your own read `torch.cuda.memory_allocated()` (in tensors) and `memory_reserved()`
# (taken from the driver). Far apart, they mean a large cache: left from a peak, or in crumbs. If
# `num_alloc_retries` in `memory_stats()` rises meanwhile, it was no use when needed. (The setting
# `expandable_segments` lets segments grow and avoids much of it.)
#
# The KV pool of a serving engine escapes this: it is *one* tensor, allocated once. Who gets which
# of its slots is the engine's business, and ours.

# %% [markdown]
# ## The memory looks free and the batch is small
#
# Where do you look? Four servers with equal pools. Each one's owner says: "Not all of the memory is
# in use, and so few run." Here are means over a simulated run of each, and how often somebody
# waited.

# %%
from course.workload import poisson

calm = make_requests(chats.sample(2000, seed=4), poisson(2000, 1.0, seed=4))
cap = 16
cases = {
    "W": runs["slab"],
    "X": simulate(
        requests, make_policy("paged", pool_tokens, limit), all_at_once=True, max_batch=cap
    ),
    "Y": runs["first-fit"],
    "Z": simulate(calm, make_policy("paged", pool_tokens, limit), step_s=0.03),
}

# %%
accounts = ("live", "reserved", "internal", "external", "free")
rows = [("server", "batch", *(f"{name}, %" for name in accounts), "somebody waits, %")]
share = {}
for name, run in cases.items():
    share[name] = {account: round(100 * part) for account, part in run.mean.shares().items()}
    waits = round(100 * run.waiting_share)
    rows.append((name, round(run.mean_batch, 1), *share[name].values(), waits))
table(rows)
in_no_reservation = share["Y"]["external"] + share["Y"]["free"]

# %% [markdown]
# Three questions, in this order, find the cause:
#
# 1. **Does anybody wait?** If not, nothing is wrong.
# 2. **Do the free slots suffice for the head of the queue?** If so, ask whether they are in one
#    piece. If they are, something other than memory holds the request back.
# 3. **If they do not suffice, what is in the held ones?** Live: the memory is really full.
#    Internal or reserved: the reservation is too long.
#
# Now you.

# %%
from course.show import check_yourself

check_yourself(
    f"Server W: {share['W']['live']} % of its slots hold a token. What do you change?",
    {
        "Buy a larger GPU.": "It would be filled with the same emptiness: "
        f"{share['W']['internal']} % of this pool is held and never written.",
        "The search, from first fit to best fit.": "No slot is external here. There is nothing to "
        "search among: slabs are all alike.",
        "The reservation.": "Internal is the largest account. A shorter `max_model_len` helps at "
        "the price of those it turns away; not reserving at all helps everybody.",
        "The batcher.": "It seats whoever gets memory. There was no slab to give.",
    },
    right="The reservation.",
)
check_yourself(
    f"Server X: {share['X']['free']} % of the pool is free, and nearly always somebody waits. "
    "What holds them back?",
    {
        "External fragmentation.": "The external account is zero: the next request could have "
        "had its slots at any time.",
        "A limit that is not memory.": f"Its batch stands at {cap} all day. Look for a cap such as "
        "`max_num_seqs`. Here, for once, the batcher's setting is to blame.",
        "Too little load.": "Then nobody would wait.",
        "Too long a reservation.": "What is held is nearly all live. Reserved and internal are "
        "about zero.",
    },
    right="A limit that is not memory.",
)
check_yourself(
    f"Server Y: {in_no_reservation} % of the pool is in no reservation, and nearly always somebody "
    "waits. What helps?",
    {
        "Admit more: there is room.": "Nearly all of it is external: in pieces, "
        "and none is long enough for the head of the queue.",
        "The holes: compact, or stop asking for one piece.": "The lengths are exact and nothing is "
        "internal. What is lost is lost between the reservations.",
        "Shorten `max_model_len`.": "Nobody reserves by it here; each has just what it needs.",
        "Free the cache of the framework.": "The pool is one allocation. Its holes are inside it, "
        "and the framework does not know them.",
    },
    right="The holes: compact, or stop asking for one piece.",
)
check_yourself(
    f"Server Z: {share['Z']['free']} % is free, and its batch is the smallest. What is wrong?",
    {
        "Nothing: nobody waits.": "Requests come slowly and leave quickly. A small batch is what "
        "a quiet day looks like.",
        "The scheduler is too careful.": "It has nobody to be careful with. Look at the last "
        "column.",
        "The memory leaks.": "Then free would be small.",
        "Fragmentation.": "One block is as good as another here, and nobody was refused.",
    },
    right="Nothing: nobody waits.",
)

# %% [markdown]
# **What is still wasted?** With exact lengths, which nobody has, {{ external["first-fit"]:.0f }} %
# of the pool lies in holes. All of it comes from one demand: that a request's slots be in one
# piece. Drop it, and there is no such thing as a hole too short. That is the next lesson.

# %%
from course.show import prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
check_yourself(
    "Holes of 5 and 4 slots. What is the smallest request that is refused although it would fit "
    "into the free slots?",
    {
        "4": "The hole of 4 takes it, and the hole of 5 as well.",
        "6": "One more than the longest hole, and 9 are free.",
        "9": "It is refused, and so are 6, 7 and 8. The smallest is one above the longest hole.",
        "10": "It is refused because only 9 are free. That is a full memory, not a fragmented one.",
    },
    right="6",
)
check_yourself(
    "Why does best fit not end external fragmentation?",
    {
        "It searches too slowly.": "How long a search takes changes nothing about the holes.",
        "It takes the wrong hole.": "There is no right one: what the next request will need, and "
        "who leaves next, is not known yet.",
        "It chooses among the holes that are there, and cannot join them.": "Only a departure "
        "between two holes joins them, or a copy.",
    },
    right="It chooses among the holes that are there, and cannot join them.",
)
check_yourself(
    "A buddy allocator shows little external fragmentation. Is its memory well used?",
    {
        "Yes, that is the point of it.": "Compare the batch: of the three arenas its is the "
        "smallest.",
        "No: the rounding is inside the reservations.": "A request of 28 holds 32. What you do not "
        "see as holes you find as internal.",
        "Yes, twins always merge.": "Only when both are free. And merging does not give back what "
        "was rounded up.",
    },
    right="No: the rounding is inside the reservations.",
)
check_yourself(
    "All requests have exactly the same length. Can the arena refuse one with room to spare?",
    {
        "Yes, after enough random departures.": "Each hole is a whole number of lengths. Whatever "
        "leaves makes room for exactly one more.",
        "Never by more than the rest at the end.": "If the arena is no multiple of the length, the "
        "rest is lost, and nothing else. Equal pieces do not fragment: keep that in mind.",
        "Yes, if first fit is used.": "With equal sizes every rule finds a hole, if there is one.",
    },
    right="Never by more than the rest at the end.",
)
check_yourself(
    "`memory_reserved()` is far above `memory_allocated()`. What do you know?",
    {
        "There is a leak.": "A leak shows in `memory_allocated()`: tensors that somebody holds.",
        "That much can be allocated at once.": "Only if it is in one piece. The gap is a sum, and "
        "sums do not know about holes.",
        "PyTorch keeps that much in its cache, in pieces of unknown length.": "It may be one good "
        "piece or a hundred crumbs; `memory_snapshot()` shows them.",
    },
    right="PyTorch keeps that much in its cache, in pieces of unknown length.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"Free memory means spare capacity."* It means bytes. Capacity is what the next request can
#   have.
# - *"GPUs cannot fragment: they have virtual memory."* Whoever hands out parts of one long
#   allocation makes the holes, inside it. No page table below sees them.
# - *"The batcher is to blame when the batch is small."* Look at the ledger first. Of our four
#   servers it was guilty in one.
# - *"Internal and external are two words for waste."* One is held and never written, the other free
#   and of no use. They have different remedies.
# - *"Just compact."* That copied {{ moved_share:.0f }} % of the pool while everybody waited, again
#   and again.

# %% [markdown]
# ## Key takeaways
#
# - A request for one piece is refused when no hole is long enough, however much is free in all.
# - Exact lengths end internal waste and create external waste. A buddy allocator trades one back
#   for the other.
# - Better search gains little. Compaction closes the holes and pays in copies and pauses.
# - A bar of used and free cannot show it. Ask who waits, what the head of the queue needs, and in
#   how many pieces the free slots are.
# - Pieces that are all alike do not fragment.

# %% [markdown]
# ## Further reading
#
# - D. Knuth, *The Art of Computer Programming*, vol. 1, sec. 2.5: first fit, best fit, buddies, and
#   how holes and runs balance.
# - P. Wilson, M. Johnstone, M. Neely, D. Boles, *Dynamic Storage Allocation: A Survey and Critical
#   Review*, IWMM 1995: why random streams are only half the truth.
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: sec. 3.1, the two kinds in
#   serving.
# - PyTorch, [Understanding CUDA Memory
#   Usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html): snapshots of the caching
#   allocator, and how to read them.
