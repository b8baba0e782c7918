# ---
# title: What a reservation wastes
# summary: One slab for the longest possible answer; how empty it stays, and three ways to say so
# minutes: 40
# objectives:
#   - compute how much memory a reserved slab takes and how little of it is used
#   - name three metrics of emptiness and say why they differ on the same requests
#   - tell apart slots that are live, reserved for later, and never used
#   - predict what a longer limit does to the batch and to the waste
# builds: [SlabAllocator, take_ledger, batch_that_fits, slab_emptiness]
# ---

# %% [markdown]
# A request arrives. Its prompt has {{ prompt_of_a }} tokens. How long will the answer be? Nobody
# knows, not even the model. The simplest server plays safe: it sets aside room for the longest
# conversation that it allows. That limit is **max_model_len**, and the room is a **slab**: slots in
# one piece, for this request alone.
#
# Here is our pool of {{ POOL_TOKENS }} slots under that rule. A, B and C want to run.

# %%
from course.memory.example import MAX_MODEL_LEN, POOL_TOKENS, REQUESTS
from course.show import Arrival, memory_map

prompt_of_a = REQUESTS[0].prompt_tokens
stream = [Arrival(r.name, r.prompt_tokens, r.total_tokens) for r in REQUESTS]
memory_map(stream, policies=("slab",), step=0)

# %% [markdown]
# The pool has room for {{ slabs.num_slabs }} slabs. (This picture gives a slot to every token. In
# lesson 04 you will see that the very last one never needs it.) Here is the rule in code.

# %%
from course.memory import SlabAllocator

slabs = SlabAllocator(POOL_TOKENS, MAX_MODEL_LEN)
given = {r.name: slabs.reserve(r.name) for r in REQUESTS}
print("first slot of each slab:", given)
written_at_start = sum(r.prompt_tokens for r in REQUESTS[:2])
print("slots that hold a token:", written_at_start, "of", POOL_TOKENS)

# %% [markdown]
# C gets `None`. Two requests hold everything, and {{ written_at_start }} slots hold a token. A
# useful picture: a hotel that keeps, for every guest, the rooms of the longest stay that anyone
# ever booked. (The picture breaks later: rooms do not scatter, memory does.)

# %% [markdown]
# ## The same with real sizes
#
# Take a real model, Llama-2-7B, and chats of {{ live }} tokens each on a server that allows
# {{ limit:,}}. Guess first.

# %%
from course.show import predict

guess_empty = predict("How much of each slab stays empty?", ["a quarter", "half", "most of it"])

# %%
from course.show import table
from course.sizing import GIB, MIB, MODELS, kv_bytes_per_token

llama = MODELS["Llama-2-7B"]
per_token, limit, live, chats = kv_bytes_per_token(llama), 4096, 512, 8
table(
    {
        "one token": f"{per_token / MIB} MiB",
        "one slab": f"{limit * per_token / GIB} GiB",
        "what the chat uses of it": f"{live * per_token / MIB} MiB",
        "eight chats reserve": f"{chats * limit * per_token / GIB} GiB",
        "eight chats use": f"{chats * live * per_token / GIB} GiB",
    },
    caption=f"{llama.name}, keys and values in 2 bytes",
)

# %%
from course.show import slab_figure

slab_figure([live] * chats, limit)

# %%
empty_share = 1 - live / limit
guess_empty.measured("most of it", detail=f"{100 * empty_share:.1f} % of each slab is empty")

# %% [markdown]
# {{ 100 * empty_share:.1f }} % empty. The model is not to blame: a smaller cache per token makes
# both numbers smaller and leaves their ratio alone. The waste comes from the reservation.

# %%
for name in ("Llama-2-7B", "Llama-3-8B", "SmolLM2-135M"):
    size = kv_bytes_per_token(MODELS[name])
    slab, used = limit * size, live * size
    print(f"{name:14} slab {slab / MIB:7.1f} MiB   used {used / MIB:6.1f} MiB"
          f"   empty {100 * (1 - used / slab):.1f} %")  # fmt: skip

# %% [markdown]
# ## Four where sixteen would fit
#
# Empty memory would be harmless if nobody wanted it. But memory decides how many requests run
# together, the **batch**, and a batch shares each read of the model's weights. Give this server
# {{ budget_gib }} GiB for keys and values.

# %%
guess_fit = predict("8 GiB for slabs of 4,096. How many chats run together?", unit="chats")

# %%
budget_gib = 8
budget = budget_gib * GIB
fit_slabs = budget // (limit * per_token)
fit_lived = budget // (live * per_token)
fit_generous = budget // (1024 * per_token)
print("requests that run together, one slab each:         ", fit_slabs)
print("if each held what a 512-token chat needs:          ", fit_lived)
print("if each held 1,024 tokens, twice what it will need:", fit_generous)
guess_fit.measured(fit_slabs)

# %% [markdown]
# A batch of {{ fit_slabs }} where {{ fit_generous }} would fit with room to spare, on the same GPU.
# When people say that their GPU is full and its batch is small, this is often the reason.

# %% [markdown]
# ## How empty, on real lengths?
#
# Real chats are not all equally long, and a slab fills while its answer is written. So "how empty?"
# needs a moment, and a way to average. Three ways are common:
#
# - **When it ends**, each request counted once.
# - **Over its life**, each request counted once.
# - **Over its life, each step counted once**: what a monitor shows that looks at every step.
#
# Here is each of A, B and C in its slab.

# %%
from course.memory.emptiness import emptiness
from course.workload import WorkloadRequest, make_requests, mix

abc = {r.name: WorkloadRequest(0.0, r.prompt_tokens, r.output_tokens) for r in REQUESTS}
alone = {name: emptiness([request], MAX_MODEL_LEN) for name, request in abc.items()}
rows = [("request", "empty when it ends, %", "empty over its life, %", "steps")]
for name, request in abc.items():
    ends, life = alone[name].at_finish, alone[name].lifetime_per_request
    rows.append((name, round(100 * ends, 1), round(100 * life, 1), request.output_tokens))
table(rows)

# %%
together = emptiness(abc.values(), MAX_MODEL_LEN)
ends, life, steps = (
    100 * share
    for share in (together.at_finish, together.lifetime_per_request, together.lifetime_per_step)
)
print(f"when it ends, each request once:  {ends:.0f} %")
print(f"over its life, each request once: {life:.0f} %")
print(f"over its life, each step once:    {steps:.0f} %")

# %% [markdown]
# Three numbers for one server, and all are right. Over a life slabs are emptier than at its end,
# since the answer is still to be written: from {{ ends:.0f}} to {{ life:.0f}} %. By steps they look
# fuller again, {{ steps:.0f}} %. C has the emptiest slab and is gone after {{ steps_of_c }} steps,
# so in most steps nobody sees it.

# %% [markdown]
# Now many requests: conversations on Azure in 2023 (Azure Public Dataset, CC BY 4.0; Patel et al.,
# Splitwise, ISCA 2024). The course ships their lengths as counts, so many requests in each range,
# and draws from those.

# %%
moments = ["when it ends", "over a life, by request", "over a life, by step"]
guess_lowest = predict("Azure conversations: which of the three comes out lowest?", moments)

# %%
steps_of_c = abc["C"].output_tokens
chats_2023 = make_requests(mix("azure_conv_2023").sample(20_000, seed=0))
at_2048 = emptiness(chats_2023, max_model_len=2048)
three = (at_2048.at_finish, at_2048.lifetime_per_request, at_2048.lifetime_per_step)
rows = [(moment, round(100 * share, 1)) for moment, share in zip(moments, three, strict=True)]
table([("metric", "empty, %"), *rows], caption="Azure conversations, slabs of 2,048")
guess_lowest.measured(moments[three.index(min(three))])

# %% [markdown]
# By steps the slabs look fuller than at their very ends. How can that be? An average by request
# counts a short answer as much as a long one. An average by step counts a request as often as it
# takes steps: long answers stay longest, and they sit in the fullest slabs.
#
# A figure without its metric says little. And it does not say who was left out.

# %%
guess_dropped = predict("Which share of requests is longer than 2,048?", unit="%")

# %%
dropped_at_2048 = 100 * at_2048.dropped_share
guess_dropped.measured(round(dropped_at_2048, 1))

# %% [markdown]
# {{ dropped_at_2048:.1f }} % of the requests do not fit into a slab of that size and are in none of
# the three numbers. Move the limit, and the waste changes partly because other requests are
# counted. So always show the dropped share beside it.

# %% [markdown]
# ## Is it always the same?
#
# You will read that reservations waste
# {{= 60 to 80 % | [vLLM's blog, June 2023](https://blog.vllm.ai/2023/06/20/vllm.html) }} of the
# memory. The number comes from the paper that introduced paged attention. In the servers that it
# measured,
# {{= 20.4 | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 1 }} to {{= 38.2 }} % of the
# memory held tokens; so {{ paper_empty[0]:.1f}} to {{ paper_empty[1]:.1f}} % did not. Is that a
# constant?

# %%
from course.memory.paper import FIG2

paper_empty = [100 - FIG2[system][0] for system in ("Orca (Oracle)", "Orca (Max)")]
spreads = ["always 60 to 80 %", "about 50 to 90 %", "from below 40 to above 80 %"]
guess_spread = predict(
    "Four workloads, limits from 2,048 to 8,192: empty share of a slab?", spreads
)

# %%
workloads = {
    "Azure code": "azure_code_2023",
    "Azure chat": "azure_conv_2023",
    "ShareGPT": "sharegpt_8k_filtered",
    "arXiv summaries": "arxiv_summarization",
}
limits = (2048, 4096, 8192)
waste, dropped = {}, {}
for title, mix_name in workloads.items():
    drawn = make_requests(mix(mix_name).sample(20_000, seed=0))
    for max_len in limits:
        found = emptiness(drawn, max_len)
        waste[title, max_len] = 100 * found.lifetime_per_step
        dropped[title, max_len] = 100 * found.dropped_share

# %%
from course.show import line_plot

_ = line_plot(
    {title: (limits, [waste[title, n] for n in limits]) for title in workloads},
    "max_model_len", "empty share of a slab over its life, each step once, %",
    "The waste depends on the workload and on the limit", log="x",
)  # fmt: skip

# %%
rows = [("workload", "limit", "empty, %", "dropped, %")]
rows += [(*key, round(waste[key], 1), round(dropped[key], 1)) for key in waste]
table(rows, caption="The same, and the requests that are too long for the limit")
lowest, highest = min(waste.values()), max(waste.values())
found_spread = spreads[2 if lowest < 40 and highest > 80 else 1 if lowest < 60 else 0]
guess_spread.measured(found_spread, f"{lowest:.0f} to {highest:.0f} %")
off_limit = 4096
off_empty, off_dropped = waste["Azure chat", off_limit], dropped["Azure chat", off_limit]

# %% [markdown]
# From {{ lowest:.0f }} to {{ highest:.0f }} %. Whoever quotes one number should say for which
# workload and which limit.
#
# One row is off, and the others lie close to the traces that they stand for. For Azure chat at
# {{ off_limit:,}} the trace itself gives
# {{= 72.1 % | the Azure trace of 2023, all its requests }} empty and {{= 8.3 % }} dropped, our
# lengths {{ off_empty:.1f}} and {{ off_dropped:.1f}} %. Many of these conversations end just above
# that limit, and counts by range blur the place.

# %% [markdown]
# ## Move the limit
#
# Now let these requests queue for a pool like the paper's for the model OPT-13B:
# {{ pool_gib }} GiB, which are {{ pool_slots:,}} slots
# ({{= 15.7K | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), Table 1 }} there).

# %%
sooner = ["it stays", "it doubles", "it more than doubles"]
guess_half = predict("From a limit of 4,096 to 2,048: what happens to the batch?", sooner)

# %% [markdown]
# Turn the dial. Watch the batch, who is turned away, and how empty the slabs are.

# %%
from course.show import limit_dial

pool_gib = 12
pool_slots = pool_gib * GIB // kv_bytes_per_token(MODELS["OPT-13B"])
dial = limit_dial(chats_2023[:2000], pool_slots, (1024, 2048, 4096, 8192), start=4096)

# %%
batches = {limit: round(batch, 1) for limit, (_, batch, _) in dial.results.items()}
turned_away = {limit: round(100 * d, 1) for limit, (d, _, _) in dial.results.items()}
shortest, longest = min(batches), max(batches)
print("batch:        ", batches)
print("turned away, %:", turned_away)
gain = batches[2048] / batches[4096]
guess_half.measured(sooner[(gain > 1.5) + (gain > 2.05)], f"{batches[4096]} to {batches[2048]}")

# %% [markdown]
# Each doubling of the limit halves the batch, or more, as the rest of the pool is too short for a
# slab. At {{ longest:,}} nobody is turned away and the batch is {{ batches[longest] }}; at
# {{ shortest:,}} it is {{ batches[shortest] }}, and {{ turned_away[shortest] }} % hear "too long".
#
# Nor do the slabs get steadily fuller: at the shortest limit they are emptier than at the next, as
# only short requests are left to sit in them. There is no good place for the dial.

# %% [markdown]
# ## Where does every slot go?
#
# The paper that introduced paged attention splits what is empty. A slot is **live** when it holds a
# token; **reserved** when its request will still write it; **internal**, for internal
# fragmentation, when its request never will. Free slots in too small pieces are **external** (the
# next lesson). A and B at the start:

# %%
from course.memory import Holding, take_ledger

holds = [Holding(r.prompt_tokens, r.total_tokens, MAX_MODEL_LEN) for r in REQUESTS[:2]]
take_ledger(POOL_TOKENS, holds, next_need=MAX_MODEL_LEN, next_fits=False)

# %% [markdown]
# Its Fig. 2 measured a server of its day, Orca, with three ways to reserve.
#
# - **Max**: a slab of max_model_len.
# - **Pow2**: room for the next power of two above the answer.
# - **Oracle**: exactly the room that the answer will need, which no real server knows.
#
# The fourth row is vLLM, the server that the paper introduces. It has blocks.

# %%
guess_oracle = predict(
    "The oracle wastes nothing inside. How much of its memory is live?", unit="%"
)

# %%
from course.memory.paper import fig2

rows2 = fig2(num_requests=2000)
table(
    [("system", "slots", "here, %", "paper, %")]
    + [(r.system, r.account, round(r.ours, 1), "not given" if r.paper is None else r.paper)
       for r in rows2],
    caption="Fig. 2 simulated: OPT-13B, ShareGPT lengths with the paper's means",
)  # fmt: skip

# %%
from course.memory import Ledger
from course.show import waste_ledger

percent = {
    s: [r.ours for r in rows2 if r.system == s] for s in dict.fromkeys(r.system for r in rows2)
}
ledgers = {s: Ledger(*v[:3], external=v[3], free=0) for s, v in percent.items()}
waste_ledger(ledgers, unit="% of the pool", title="Where the slots of each server are")

# %%
worst_difference = max(abs(r.difference) for r in rows2 if r.difference is not None)
guess_oracle.measured(round(percent["Orca (Oracle)"][0], 1))

# %% [markdown]
# Read the first row: {{ percent["Orca (Max)"][0]:.0f }} % of the memory holds tokens. Even the
# oracle keeps only {{ percent["Orca (Oracle)"][0]:.0f }} % live. Nothing is internal, but it holds
# what it will write later, and loses {{ percent["Orca (Oracle)"][3]:.0f }} % between its
# reservations. The last row is where this course is going.

# %% [markdown]
# The paper does not print all its lengths. Ours are random with its means, the queue never empties,
# and room is handed out by a buddy allocator (lesson 03). So our rows differ, by at most
# {{ worst_difference:.1f }} points.

# %%
from course.show import prediction_record

prediction_record()

# %% [markdown]
# **What is still wasted?** The oracle shows it: even with perfect knowledge, one piece of memory
# for each request leaves gaps between them that nobody can use. That is the next lesson.

# %% [markdown]
# ## Check yourself

# %%
from course.show import check_yourself

check_yourself(
    "Your new model has a cache a quarter as large per token. What happens to the empty share?",
    {
        "It falls to a quarter": "The bytes do. But the slab and its live part both shrink by the "
        "same factor, so their ratio stays.",
        "It stays": "Only the size per token changed. More slabs fit, each as empty as before.",
        "It grows": "It would if the limit grew. The limit counts tokens, and it is unchanged.",
    },
    right="It stays",
)
check_yourself(
    "A monitor says slabs are 47 % empty; a report on the same server says 58 %. Who is wrong?",
    {
        "The monitor": "It averages over steps, so long answers count more often. That is a fair "
        "question, and a different one.",
        "The report": "It counts each request once, over its life. That is fair too.",
        "Neither": "They use different metrics. Ask both for theirs, and who was dropped.",
    },
    right="Neither",
)

# %%
check_yourself(
    "Slots that a running request will write in ten steps: which account?",
    {
        "internal": "Internal slots are never written by their owner. These will be.",
        "reserved": "They are held now and used later. Only time separates them from live ones.",
        "free": "They have an owner. Nobody else can have them now.",
    },
    right="reserved",
)
check_yourself(
    "You lower max_model_len from 4,096 to 2,048 and the waste falls. Has the server improved?",
    {
        "Yes, less waste is less waste": "Look at who was served: the long requests were turned "
        "away, and they are missing from the figure.",
        "It depends on the requests that are now turned away": "A larger batch, "
        "for those who still fit. Show the dropped share beside the waste, always.",
        "No, nothing changed": "The batch doubled, which is something. The price is who waits "
        "outside.",
    },
    right="It depends on the requests that are now turned away",
)

# %% [markdown]
# ## Common mistakes
#
# - *"A long-context model wastes more."* The limit that you reserve wastes, not the model.
# - *"Reservations waste a fixed share of the memory."* On some workload, at some limit. You
#   computed a table of others.
# - *"All unused reservation is internal fragmentation."* Part of it will be written later: that
#   part is reserved, and a scheduler could lend it out meanwhile.
# - *"The batcher is to blame for the small batch."* It cannot admit whom memory has no slab for.

# %% [markdown]
# ## Key takeaways
#
# - A slab is sized for the longest possible request; the empty share is one minus lived length over
#   limit, whatever the model.
# - Name the metric: at the end, over a life by request, over a life by step. Show who was dropped.
# - live, reserved, internal, external and free always add up to the pool.
# - The cost of the waste is the batch.

# %% [markdown]
# ## Further reading
#
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*,
#   SOSP 2023, [arXiv 2309.06180](https://arxiv.org/abs/2309.06180): sections 1 and 3, Fig. 2.
# - Yu et al., *Orca: A Distributed Serving System for Transformer-Based Generative Models*,
#   OSDI 2022: the servers that Fig. 2 measures.
# - Patel et al., *Splitwise: Efficient Generative LLM Inference Using Phase Splitting*, ISCA 2024,
#   [arXiv 2311.18677](https://arxiv.org/abs/2311.18677): where the Azure lengths come from.
