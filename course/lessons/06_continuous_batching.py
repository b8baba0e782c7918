# ---
# title: Continuous batching
# summary: Who computes in the next step; four ways to batch, and what happens when memory runs out
# minutes: 50
# objectives:
#   - read a timeline of static, dynamic, continuous and chunked batching, and say what each wastes
#   - follow a scheduler's step and tell who gets tokens, who waits and who loses their blocks
#   - cost a preemption by recomputing and by swapping
#   - say when a tenfold gain over static batching is real, and when there is none
# builds: [preempt_newest, serve_running, admit_waiting, update_requests]
# ---

# %% [markdown]
# A GPU that answers one person reads all weights for one token. Lesson 01 found the way out: let
# several requests share the read. So who is in the batch? The oldest answer: wait until all seats
# are taken, run until the last one has ended, hand out everything. That is **static batching**.
# Here are twelve requests on four seats; A, B and C are the first three.

# %%
from course.memory.batching import BATCHING, TWELVE, Job, StepCost, run_batching
from course.show import line_plot, predict, scheduler_timeline, table

static = run_batching("static", TWELVE, max_batch=4)
scheduler_timeline({"static": static})

# %% [markdown]
# C wants two tokens, has them early, and keeps its seat until B has all of its own: a crossed bar
# is a seat held for nothing. E waits beside it, on the dotted line.

# %%
idle_static = 100 * static.seats_idle
latency_c = static.latencies["C"]
turns = [t for t in static.ticks for row in t.rows if row.request == "C" and row.tokens]
last_token_c = turns[-1].start + turns[-1].duration
print(f"seat time in which nothing was computed: {idle_static:.0f} %")
print(f"C's last token was there after {last_token_c:.0f} ms, handed out after {latency_c:.0f} ms")

# %% [markdown]
# {{ idle_static:.0f}} % of all seat time is empty, and C's answer, complete after
# {{ last_token_c:.0f}} ms, was kept back until {{ latency_c:.0f}} ms.
#
# ## Four ways to batch
#
# The clock is a model, and you should know it. A step reads the weights once, or computes its
# tokens, whichever takes longer. Small steps cost the same however many tokens they hold. Static
# and dynamic batches also fill up short prompts to the longest.

# %%
cost = StepCost(read_ms=10.0, token_ms=0.5)
for tokens in (1, 4, 20, 40, 96):
    print(f"a step of {tokens:>2} tokens takes {cost(tokens):4.0f} ms")

# %% [markdown]
# - **Dynamic batching** waits too, but not for ever: after {{ patience_ms }} ms it starts with
#   whoever is there.
# - **Continuous batching** decides before *every step*: the finished leave, the waiting enter. The
#   field also says *iteration-level scheduling*.
# - **Chunked prefill** adds a **token budget**: at most so many tokens a step. Decodes go first;
#   what is left goes to prompts, in pieces.

# %%
factors = ["about 1.2", "about 2", "about 10"]
guess_factor = predict(
    "Same seats, same clock. Continuous over static, tokens per second?", factors
)

# %%
patience_ms = 50
limits = {"max_batch": 4, "token_budget": 32, "max_wait": patience_ms}
runs = {policy: run_batching(policy, TWELVE, **limits) for policy in BATCHING}
scheduler_timeline(runs)

# %%
factor = runs["continuous"].throughput / static.throughput
faster = static.mean_latency / runs["continuous"].mean_latency
gap_continuous = runs["continuous"].longest_gap
gap_chunked = runs["chunked"].longest_gap
guess_factor.measured(factors[1], f"{factor:.1f} times")

# %% [markdown]
# Dynamic hardly helps once requests queue: seats still wait for the longest answer. Continuous
# gives {{ factor:.1f}} times the tokens per second, and the mean answer comes {{ faster:.1f}} times
# sooner. Two gains at once, because what it removed was pure waiting.
#
# It has a flaw. When G's long prompt enters, everybody's next token waits for all of it: the
# longest pause within an answer is {{ gap_continuous:.1f}} ms. Chunked: {{ gap_chunked:.1f}} ms.

# %% [markdown]
# ## The token budget
#
# A budget is a promise about the length of a step. How small should it be?

# %%
sizes = ["the smallest", "one in the middle", "the largest"]
guess_budget = predict("Budgets of 6 to 96 tokens. Which gives the soonest first token?", sizes)

# %%
budgets = [6, 8, 12, 16, 24, 32, 48, 64, 96]
swept = [run_batching("chunked", TWELVE, max_batch=4, token_budget=b) for b in budgets]
_ = line_plot(
    {
        "mean first token": (budgets, [run.mean_first_token for run in swept]),
        "longest pause": (budgets, [run.longest_gap for run in swept]),
    },
    x="token budget", y="milliseconds", title="What a token budget trades",
)  # fmt: skip

# %%
best = min(swept, key=lambda run: run.mean_first_token)
best_budget = budgets[swept.index(best)]
per_s_best, per_s_small = best.throughput, swept[0].throughput
free_tokens = cost.read_ms / cost.token_ms
guess_budget.measured(sizes[1], f"{best_budget} tokens")
print(f"budget {budgets[0]}: {per_s_small:.0f} tokens per s; {best_budget}: {per_s_best:.0f}")

# %% [markdown]
# Under {{ free_tokens:.0f}} tokens a step costs the same as a full read of the weights, so a tiny
# budget pays for reads and leaves them unused: {{ per_s_small:.0f}} tokens per second, where
# {{ best_budget }} tokens a step give {{ per_s_best:.0f}}. Above, first tokens come no sooner and
# pauses grow with the budget. Set it a little above the point where compute overtakes the read.

# %% [markdown]
# ## The real scheduler, one step at a time
#
# Enough of models. `course.engine.Scheduler` is what serves in lesson 08. It needs no language
# model: it counts tokens and blocks. We give it A, B and C and a budget of
# {{ example_budget }}, and answer every request for a sample with token 0.

# %%
from course.engine import BlockPool, KVManager, Request, SamplingParams, Scheduler, SchedulerConfig
from course.memory.example import BLOCK_ORDER, BLOCK_SIZE, REQUESTS

# %%
example_budget = 8


def example_scheduler(num_blocks):
    order = [block for block in BLOCK_ORDER if block < num_blocks]
    pool = BlockPool(num_blocks, order=order)
    manager = KVManager(num_blocks, BLOCK_SIZE, prefix_caching=False, pool=pool)
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=example_budget)
    scheduler = Scheduler(config, manager)
    for r in REQUESTS:
        params = SamplingParams(max_tokens=r.output_tokens, ignore_eos=True)
        scheduler.add(Request(r.name, range(r.prompt_tokens), params))
    return scheduler


# %%
scheduler = example_scheduler(16)
for number in range(1, 4):
    step = scheduler.schedule()
    print(f"step {number}: {step.num_tokens} tokens; tables {scheduler.kv_manager.tables}")
    for request, start, num_tokens in step.scheduled:
        says = "gets a token" if request in step.samples else "prompt not done"
        print(f"   {request.request_id}: tokens {start} to {start + num_tokens - 1}, {says}")
    scheduler.update(step, {request.request_id: 0 for request in step.samples})

# %% [markdown]
# Step 1: A's prompt fits whole, B gets the one token that is left of the budget, C waits. Step 2: A
# decodes first, B's prompt ends, C gets the rest.
#
# A row of a `Step` is `(request, start, num_tokens)`. It knows no prefill and no decode: a request
# has tokens not computed yet, many or one. It gets a new token exactly when the last of them is
# computed.

# %% [markdown]
# ## When memory runs out
#
# Nobody reserved anything. What happens when a block is needed and none is left?

# %%
happens = ["an error", "the oldest loses its blocks", "the newest loses its blocks"]
guess_full = predict("A pool of 12 blocks is full, and A needs one more. What happens?", happens)


# %%
def serve(scheduler):
    days, steps = [], []
    while scheduler.has_work:
        step = scheduler.schedule()
        days.append([(r.request_id, kind_of(r, start, n), n) for r, start, n in step.scheduled])
        steps.append(step)
        scheduler.update(step, {r.request_id: 0 for r in step.samples})
    return days, steps


def kind_of(request, start, num_tokens):
    return "decode" if num_tokens == 1 and start >= request.num_prompt_tokens else "prefill"


# %%
full_day, full_steps = serve(example_scheduler(12))
large_day, large_steps = serve(example_scheduler(16))
scheduler_timeline({"16 blocks": large_day, "12 blocks": full_day})

# %%
lost = next(i for i, step in enumerate(full_steps) if step.preempted)
victim = full_steps[lost].preempted[0].request_id
again = sum(step.num_tokens for step in full_steps) - sum(step.num_tokens for step in large_steps)
extra_steps = len(full_steps) - len(large_steps)
guess_full.measured(happens[2], f"{victim} in step {lost + 1}")
print(f"{victim} is preempted in step {lost + 1}")
print(f"{again} tokens are computed a second time, in {extra_steps} more steps")

# %% [markdown]
# **Preemption**: {{ victim }}, the newest, loses all its blocks and goes to the front of the queue.
# Its tokens are kept; their keys and values are gone. Once A has left, {{ again }} tokens are
# computed again, in chunks, and {{ victim }} goes on.
#
# Why the newest? The oldest always comes forward, so everybody ends some day.

# %% [markdown]
# ## Admission: how full is full enough?
#
# Preemption is a repair. The door can be stricter too: a **watermark** is a share of the blocks
# that must stay free when somebody enters. If the head of the queue does not fit, nobody overtakes
# it. All twelve requests at once, twelve seats, {{ door_blocks }} blocks:

# %%
with_watermark = ["fewer steps", "as many", "more steps"]
guess_watermark = predict("Keep 40 % of the blocks free at admission. Steps?", with_watermark)


# %%
door_blocks = 32


def admit_with(watermark):
    manager = KVManager(door_blocks, BLOCK_SIZE, prefix_caching=False, watermark=watermark)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=32), manager)
    for job in TWELVE:
        params = SamplingParams(max_tokens=job.output, ignore_eos=True)
        scheduler.add(Request(job.name, range(job.prompt), params))
    steps = serve(scheduler)[1]
    return len(steps), scheduler.num_preemptions, sum(step.num_tokens for step in steps)


# %%
admitted = {watermark: admit_with(watermark) for watermark in (0.0, 0.1, 0.2, 0.4)}
rows = [(f"{watermark:.0%}", *row) for watermark, row in admitted.items()]
table([("watermark", "steps", "preemptions", "tokens computed"), *rows])

# %%
useful = sum(job.prompt + job.output - 1 for job in TWELVE)
greedy, careful = admitted[0.0], admitted[0.4]
guess_watermark.measured(with_watermark[0], f"{greedy[0]} without, {careful[0]} with 40 %")
print("tokens that have to be computed at least:", useful)

# %% [markdown]
# The greedy server computed {{ greedy[2] }} tokens where {{ useful }} were needed: it let requests
# in, threw them out {{ greedy[1] }} times, and paid for each. A larger batch on paper, less done.
#
# Careful has its price too: with room enough a watermark only keeps people waiting. Engines default
# to about one percent and rely on preemption being rare.

# %% [markdown]
# ## What a preemption costs
#
# Two ways to bring a victim back. **Recompute**: run its tokens through the model again. **Swap**:
# copy its blocks to the host's memory and back. Here is a formula for each. Its assumptions stand
# on top, and you may change them.

# %%
from course.sizing import MODELS, kv_bytes_per_token

parameters = 13e9  # OPT-13B, two bytes each
read = 1.555e12  # bytes per s from GPU memory: A100-40GB, data sheet
compute = 0.5 * 312e12  # operations per s: half the data sheet's peak in 16 bits
link = 25e9  # bytes per s between GPU and host: PCIe 4, what is left of 32
per_copy = 10e-6  # s to start one copy; one for keys, one for values, per layer and block
opt = MODELS["OPT-13B"]
a100 = StepCost(read_ms=1e3 * 2 * parameters / read, token_ms=1e3 * 2 * parameters / compute)


def swap_ms(tokens, block_size):
    moved = tokens * kv_bytes_per_token(opt) / link
    started = -(-tokens // block_size) * opt.num_layers * 2 * per_copy
    return 1e3 * 2 * (moved + started)  # out and in


# %%
winners = ["recompute, clearly", "about equal", "swap, clearly"]
guess_swap = predict("1,024 tokens of a 13B model, blocks of 16. Which is quicker?", winners)

# %%
blocks = [1, 2, 4, 8, 16, 32, 64, 128, 256]
recompute = a100(1024)
swaps = [swap_ms(1024, b) for b in blocks]
lines = {"recompute": (blocks, [recompute] * len(blocks)), "swap": (blocks, swaps)}
_ = line_plot(
    lines, x="block size, tokens", y="milliseconds", log="xy",
    title="Bringing 1,024 tokens back", note="computed from the assumptions above",
)  # fmt: skip

# %%
swap_16, swap_1, swap_256 = swap_ms(1024, 16), swaps[0], swaps[-1]
guess_swap.measured(winners[1], f"{recompute:.0f} ms and {swap_16:.0f} ms")
print(f"recompute {recompute:.0f} ms; swap at block size 1, 16, 256:", end=" ")
print(f"{swap_1:.0f}, {swap_16:.0f}, {swap_256:.0f} ms")

# %% [markdown]
# Recomputing takes {{ recompute:.0f}} ms whatever the block size. Swapping takes {{ swap_1:,.0f}}
# ms with blocks of one token, mostly to start tiny copies, and {{ swap_256:.0f}} ms with large
# ones. At the usual size they are close; the paper measured the same shape ([Kwon et al.
# 2023](https://arxiv.org/abs/2309.06180), sec. 7.3).
#
# They spend different things: recompute takes the GPU from others, swap takes the link and host
# memory. Fewer KV heads make swap cheaper and leave recompute as it is.

# %% [markdown]
# Now both for real, on this machine and the real model. The swap must bring back every bit, though
# into other blocks:

# %%
import torch

from course.engine import LLM

llm = LLM("smollm2", num_blocks=64, prefix_caching=False)
prompt = (llm.tokenizer.encode("Tell me why the sky is blue. ") * 40)[:256]
seen = []
_ = llm.generate(
    prompt, SamplingParams(max_tokens=2, ignore_eos=True),
    on_step=lambda engine: seen.extend(map(list, engine.kv_manager.tables.values())),
)  # fmt: skip
old = seen[0][:16]  # the table after the first step

# %%
new = [block + 32 for block in old]
llm.cache.write_blocks(new, llm.cache.read_blocks(old))  # out, and in again elsewhere
last_layer = llm.model.config.shape.num_layers - 1
before, after = (llm.cache.gather(last_layer, table_of, 256) for table_of in (old, new))
print("keys and values come back equal:", all(map(torch.equal, before, after)))

# %% tags=["nbval-ignore-output"]
from time import perf_counter

start = perf_counter()
llm.generate(prompt, SamplingParams(max_tokens=1))
middle = perf_counter()
llm.cache.write_blocks(new, llm.cache.read_blocks(old))
end = perf_counter()
print(
    f"on this machine ({llm.model.device}), 256 tokens: recompute {1e3 * (middle - start):,.0f} ms"
)
print(f"                                  swap out and in {1e3 * (end - middle):,.1f} ms")

# %% [markdown]
# On a CPU swap wins by far, and for a reason that does not carry over: compute is slow here, and
# "host memory" is the memory where the cache lies already. No link is crossed. The engine of this
# course recomputes; lesson 09 adds swap.

# %% [markdown]
# ## A day of real lengths
#
# Now lengths drawn from Azure's conversation trace of 2023, arriving at random, on
# {{ settings["max_batch"] }} seats and the A100 of the formula above. The load grows to the right.

# %%
from course.workload import load_workload, mix


def arriving(rate):
    requests = load_workload("azure_conv_2023", limit=200, seed=0, rate_per_s=rate)
    return [Job(str(i), r.prompt_tokens, r.output_tokens, 1e3 * r.arrival_s)
            for i, r in enumerate(requests)]  # fmt: skip


settings = {"max_batch": 32, "token_budget": 256, "max_wait": 1000, "cost": a100}
rates = [0.25, 0.5, 1, 2, 3, 4]
loads = {p: [run_batching(p, arriving(rate), **settings) for rate in rates] for p in BATCHING}

# %%
_ = line_plot(
    {p: (rates, [run.mean_latency / 1e3 for run in loads[p]]) for p in BATCHING},
    x="requests per second", y="mean seconds until the whole answer", log="y",
    title="The same load, four batchers", note="simulated: memory without limit, steps as above",
)  # fmt: skip

# %%
at_three = {p: dict(loads[p][rates.index(3)].summary()) for p in BATCHING}
columns = ["tokens per s", "mean latency, ms", "mean first token, ms", "longest gap, ms"]
rows = [(p, *(round(numbers[c]) for c in columns)) for p, numbers in at_three.items()]
table([("3 requests per second", *columns), *rows])

# %%
whole, chunks = at_three["continuous"], at_three["chunked"]
gap_whole, gap_chunks = whole["longest gap, ms"], chunks["longest gap, ms"]
more = chunks["tokens per s"] / at_three["static"]["tokens per s"]
static_top = max(run.throughput for run in loads["static"])
idle_load = [f"{loads[p][0].throughput:.0f}" for p in BATCHING]
print(f"chunked over static at 3 requests per second: {more:.1f} times the tokens")
print(f"at {rates[0]}, tokens per s:", ", ".join(idle_load))

# %% [markdown]
# Static is slow at both ends: at low load it waits for seats to fill, at high load it cannot go
# beyond {{ static_top:.0f}} tokens per second and the queue grows.
#
# At the low end all four give about the same *throughput*. Nobody can serve requests that have not
# come; batching shows there only as latency. And chunking does not add tokens while there is room:
# it cuts the longest pause, from {{ gap_whole:.0f}} to {{ gap_chunks:.0f}} ms.

# %% [markdown]
# ## Ten times? Twenty?
#
# You will read that continuous batching gives ten or twenty times the throughput. Let us try. The
# seats are the mean batches that the paper measured for a reserving and for a paged server
# (Fig. 13).

# %%
from course.memory.paper import FIG13


def all_waiting(name):
    lengths = mix(name).sample(1500, seed=0)
    return [Job(str(i), prompt, output) for i, (prompt, output) in enumerate(lengths)]


reserving = round(FIG13["ShareGPT"]["Orca (Max)"])
paged_chat, paged_short = round(FIG13["ShareGPT"]["vLLM"]), round(FIG13["Alpaca"]["vLLM"])
chat, short = all_waiting("paper_sharegpt"), all_waiting("paper_alpaca")
alike = [Job(str(i), 128, 128) for i in range(700)]
lonely = [Job(str(i), 128, 128, arrival=10_000.0 * i) for i in range(20)]

# %%
sides = ["same lengths", "same seats", "one at a time", "more seats"]
guess_ten = predict("Which case comes near twenty times?", sides)


# %%
def gain(jobs, seats_static, seats_continuous):
    before = run_batching("static", jobs, seats_static, cost=a100)
    after = run_batching("chunked", jobs, seats_continuous, token_budget=256, cost=a100)
    return after.throughput / before.throughput


cases = [
    ("one at a time, empty server", lonely, 7, 7),
    ("all lengths alike", alike, 7, 7),
    ("chat lengths, same seats", chat, reserving, reserving),
    ("long prompts, short answers (code)", all_waiting("azure_code_2023"), reserving, paged_chat),
    ("chat lengths, pages give seats", chat, reserving, paged_chat),
    ("short instructions, pages give seats", short, reserving, paged_short),
]
gains = [gain(*case[1:]) for case in cases]

# %%
table([("case", "static seats", "continuous seats", "times the throughput"),
       *((c[0], c[2], c[3], round(g, 1)) for c, g in zip(cases, gains, strict=True))])  # fmt: skip
guess_ten.measured(sides[3], f"{gains[5]:.1f} times, with {paged_short} seats for {reserving}")

# %%
from course.memory.paper import POOL_TOKENS

full_pool = POOL_TOKENS * kv_bytes_per_token(opt)
longer = full_pool / (2 * parameters)
print(f"reading a full pool takes {100 * longer:.0f} % of the time of reading the weights")

# %% [markdown]
# Factors of ten and twenty are there, and scheduling is the smaller part: on equal seats it gives
# {{ gains[2]:.1f}} times. The rest is seats, and **seats come from memory**: pages hold
# {{ paged_short }} requests where slabs hold {{ reserving }}. Equal lengths gain
# {{ gains[1]:.1f}} times, which is nothing.
#
# And the clock flatters: it reads weights, not the cache. A full pool would make each step up to
# {{ 100 * longer:.0f}} % longer, so take up to a third off the last two rows.

# %% [markdown]
# So the claim needs four conditions: answers of very different lengths, a full queue, prompts short
# enough that decoding is limited by the read, and memory for many more seats. Take one away and the
# factor shrinks; the code row has the seats and not the decodes.
#
# **What is still wasted?** Many of those prompts begin with the same words, and each request
# computes and stores them again. That is the next lesson.

# %%
from course.show import prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
from course.show import check_yourself

check_yourself(
    "In static batching, why does C's answer come so late?",
    {
        "C is computed last.": "It is computed in the very first steps, together with A and B.",
        "The batch is handed out when its longest answer is done.": "C's seat is held, and its "
        "answer kept, until B has its last token.",
        "C's prompt is too long.": "It is six tokens. Prompts matter in the first step only.",
        "The GPU is too slow.": "It would shorten everything alike; C would still wait for B.",
    },
    right="The batch is handed out when its longest answer is done.",
)

# %%
check_yourself(
    "Chunked prefill: what does it chiefly improve?",
    {
        "Throughput.": "Nearly the same tokens per second came out. Splitting a prompt does not "
        "make it less work.",
        "The longest pause within answers that have begun.": "No step is longer than the budget "
        "allows, so nobody stands still while a long prompt is computed.",
        "Memory.": "The same keys and values are stored in the end.",
        "The first token of the request whose prompt is split.": "Its prompt is spread over more "
        "steps: if anything its own first token comes later.",
    },
    right="The longest pause within answers that have begun.",
)

# %%
check_yourself(
    "A step computes tokens 5 to 7 of a prompt of ten. Does the request get a new token?",
    {
        "Yes, every scheduled request does.": "Only what has been computed to its end can say "
        "what comes next.",
        "Yes, one for each computed token.": "Those tokens are given; nothing is asked there.",
        "No: tokens are left to compute.": "It comes with the step that computes token 9.",
    },
    right="No: tokens are left to compute.",
)

# %%
check_yourself(
    "A request was preempted and recomputed. What did its user lose?",
    {
        "The tokens that had been sent.": "The ids are kept; only their keys and values are gone.",
        "Time.": "The text goes on where it stopped, after a pause.",
        "Its place in the queue.": "It goes to the front, before everybody who waits.",
        "Nothing at all, since swap would do the same.": "Both take time; they take it from "
        "different parts of the machine.",
    },
    right="Time.",
)

# %%
check_yourself(
    "A service classifies texts: long prompts, one token out. Should it expect ten times?",
    {
        "Yes, continuous batching always gives that.": "Look at the code row: hardly any decodes, "
        "hardly any gain from sharing the read.",
        "Yes, if it gets enough seats.": "Seats share reads of the weights. Long prompts are "
        "limited by arithmetic, which is not shared.",
        "No: its time is prefill, and batching cannot share that.": "Padding can be saved, and "
        "waiting. The arithmetic stays.",
    },
    right="No: its time is prefill, and batching cannot share that.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"The batcher is to blame for a small batch."* It seats whom the memory holds. Most of the
#   tenfold gain above came from seats.
# - *"Dynamic batching is continuous batching."* Dynamic decides when a batch *starts*; continuous
#   decides again before every step. Some texts use one word for both.
# - *"A smaller budget is always kinder."* Below the point where the read dominates it only wastes
#   reads, and first tokens come later.
# - *"Prefill and decode are two modes."* To the scheduler both are tokens not computed yet.
# - *"Full is best."* Letting in all who fit right now brings preemptions later.

# %% [markdown]
# ## Key takeaways
#
# - Static and dynamic batches hold seats for finished requests; continuous batching fills them at
#   the next step.
# - A token budget bounds the length of a step. Chunked prefill spends what decodes leave of it.
# - Blocks are taken when needed, so memory can run out; then the newest loses its blocks and is
#   computed again, or swapped.
# - The factor over static batching is seats times scheduling. With equal lengths, an empty queue or
#   prompts that dominate there is little to gain.
# - What is still wasted? Equal beginnings, stored once for each request.

# %% [markdown]
# ## Further reading
#
# - G.-I. Yu and others, [Orca: A Distributed Serving System for Transformer-Based Generative
#   Models](https://www.usenix.org/conference/osdi22/presentation/yu), OSDI 2022: iteration-level
#   scheduling.
# - A. Agrawal and others, [Taming Throughput-Latency Tradeoff in LLM Inference with
#   Sarathi-Serve](https://arxiv.org/abs/2403.02310), OSDI 2024: chunked prefill.
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: preemption in sec. 4.5, its
#   cost in sec. 7.3.
# - C. Daniel and others, [How continuous batching enables 23x throughput in LLM
#   inference](https://www.anyscale.com/blog/continuous-batching-llm-inference), 2023: a favourable
#   case, measured.
