# ---
# title: The engine
# summary: All pieces put together, a real model served, and slabs against pages at equal memory
# minutes: 45
# after: [5, 6, 7]
# objectives:
#   - follow one step of the engine from the queue to a new token, by hand
#   - read time to first token, time per token and throughput, and say which of them a user feels
#   - predict what pages gain over slabs at equal memory, and measure it
#   - find the pieces of this engine again in vLLM and nano-vllm
# builds: [stop_reason, Runner, EngineCore, Timing, throughput]
# ---

# %% [markdown]
# Seven lessons made the parts: a cache, a ledger, pools and tables, attention, a scheduler,
# sharing. None of them has answered anybody. Load the model, and put A, B and C into one engine.

# %%
from course.engine import LLM, Request, SamplingParams
from course.memory.example import BLOCK_ORDER, BLOCK_SIZE, NUM_BLOCKS, REQUESTS

memory = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, "block_order": BLOCK_ORDER}
loaded = LLM("smollm2", dtype="float32", num_blocks=NUM_BLOCKS)
model = (loaded.model, loaded.tokenizer)
llm = LLM(model, max_num_batched_tokens=12, prefix_caching=False, **memory)
for r in REQUESTS:
    params = SamplingParams(max_tokens=r.output_tokens, ignore_eos=True)
    llm.scheduler.add(Request(r.name, llm.tokenizer.encode(r.prompt), params))

# %%
from course.show import block_grid

step = llm.scheduler.schedule()
sampled = llm.core.runner.run(step)
done = llm.scheduler.update(step, sampled)
tables = dict(llm.kv_manager.tables)
written = {r.request_id: r.num_computed_tokens for r in llm.scheduler.running}
block_grid(tables, written)

# %% [markdown]
# Three lines, and the engine has taken a step: **schedule** who computes what, **run** the model on
# it, **update** the books. Everything else in the engine is called from these three. A and B have
# their whole prompts in memory. C has {{ written["C"] }} tokens of its prompt: this engine was
# given a token budget of {{ llm.scheduler.config.max_num_batched_tokens }} a step, and that is what
# was left.

# %% [markdown]
# ## One step, opened
#
# Take the next step more slowly, and stop before the model runs.

# %%
from course.show import predict

guess_rows = predict("A and B decode, C has 4 prompt tokens left. Tokens through the model?")

# %%
from course.engine.runner import prepare
from course.show import table

step = llm.scheduler.schedule()
inputs = prepare(step, llm.kv_manager.tables, BLOCK_SIZE, llm.model.device)
rows = [("request", "first position", "tokens", "block table", "slots to write", "samples")]
first = 0
for request, start, count in step.scheduled:
    name, slots = request.request_id, inputs.slots[first : first + count].tolist()
    rows.append((name, start, count, str(llm.kv_manager.tables[name]), str(slots),
                 request in step.samples))  # fmt: skip
    first += count
table(rows)

# %%
guess_rows.measured(step.num_tokens, "1 for A, 1 for B, 4 for C")
flat = {
    "token ids": inputs.token_ids,
    "positions": inputs.positions,
    "slots": inputs.slots,
    "context lens": inputs.context_lens,
    "query start loc": inputs.query_start_loc,
    "rows to sample": inputs.sample_rows,
}
for name, values in flat.items():
    print(f"{name:16} {values.tolist()}")

# %% [markdown]
# This is all that the model and the kernels are told. The tokens of all requests lie end to end;
# a decode token is a prompt of length one. Each piece has its place:
#
# | what | from | built in |
# | --- | --- | --- |
# | slots | block tables and `slot_mapping` | lesson 04 |
# | query start loc, context lens | what the attention kernel asks for | lesson 05 |
# | who, from where, how many | scheduler and token budget | lesson 06 |
# | blocks to copy first, blocks already filled | sharing | lesson 07 |


# %%
def finish_by_hand(llm, step):
    requests = {request.request_id: request for request in llm.scheduler.running}
    while True:
        sampled = llm.core.runner.run(step)
        llm.scheduler.update(step, sampled)
        llm.check_invariants()
        if not llm.has_work:
            return {i: llm.tokenizer.decode(r.output_token_ids) for i, r in requests.items()}
        step = llm.scheduler.schedule()


by_hand = finish_by_hand(llm, step)
print("C wrote:", repr(by_hand["C"]))

# %%
prompts = [r.prompt for r in REQUESTS]
limits = [SamplingParams(max_tokens=r.output_tokens, ignore_eos=True) for r in REQUESTS]
alone = [loaded.generate(p, limit)[0].text for p, limit in zip(prompts, limits, strict=True)]
same_text = list(by_hand.values()) == alone
print("as if each had been alone, in a larger pool of larger blocks:", same_text)

# %% [markdown]
# Whoever shares the batch, however the prompt was cut, wherever the blocks lie: the text is that
# of a request alone. Keep this test. An engine that is fast and wrong is easy to build.

# %% [markdown]
# ## Too little memory
#
# Now ten blocks instead of {{ NUM_BLOCKS }}. A and B together will want more than that.

# %%
guess_same = predict("Somebody is preempted. Is the text still the same?", ["yes", "no"])

# %%
from course.show import Recording, pool_film

few = [block for block in BLOCK_ORDER if block < 10]
tight = LLM(model, block_size=BLOCK_SIZE, num_blocks=10, block_order=few, prefix_caching=False)
film = Recording("ABC")
answers = tight.generate(prompts, limits, on_step=film)
back_in_queue = next(i for i, f in enumerate(film.frames) if i > 1 and "B" in f.waiting)
pool_film(film, step=back_in_queue, title="Ten blocks: B is sent back to the queue")

# %%
same_when_tight = [a.text for a in answers] == alone
print("preemptions:", tight.stats.preemptions, " steps:", film.num_steps)
back_again = next(i for i, f in enumerate(film.frames) if i > back_in_queue and "B" in f.tables)
again_tokens = film.frames[back_again].written["B"]
guess_same.measured("yes" if same_when_tight else "no")

# %% [markdown]
# In step {{ back_in_queue }} the blocks ran out. B, the newer of the two, lost all of its own. It
# came back in step {{ back_again }}, and its {{ again_tokens }} tokens were computed once more, all
# in that step. This costs time and changes nothing in the answer.

# %% [markdown]
# ## Serving
#
# Real callers do not come all at once. Here are lengths from the Azure conversations, divided by
# {{ shrink }} so that a laptop can follow, with random words of that length as prompts. They arrive
# as independent users would. Then the same again, four times as fast.

# %%
from course.workload import make_requests, mix, poisson

shrink, limit = 16, 256
drawn = [(max(1, p // shrink), max(1, o // shrink)) for p, o in
         mix("azure_conv_2023").sample(24, seed=8)]  # fmt: skip
kept = [lengths for lengths in drawn if sum(lengths) <= limit]
callers = make_requests(kept[:12], poisson(12, rate_per_s=2.0, seed=8))
prompt_total = sum(r.prompt_tokens for r in callers)
output_total = sum(r.output_tokens for r in callers)
print(f"{len(callers)} callers, {prompt_total} prompt tokens, {output_total} output tokens")
print(f"{len(drawn) - len(kept)} of {len(drawn)} drawn is longer than {limit} tokens and left out")

# %% tags=["nbval-ignore-output"]
from statistics import median

from course.replay import replay

rows = [("arrivals", "first token, s", "per token, s", "tokens per s", "mean batch", "seconds")]
for name, speed in (("as drawn", 1), ("four times as fast", 4)):
    run = replay(LLM(model, num_blocks=64, max_model_len=limit), callers, speed=speed)
    first = round(median(run.time_to_first_token), 3)
    each = round(median(run.time_per_token), 3)
    rates = round(run.throughput, 1), round(run.mean_batch, 1), round(run.seconds, 1)
    rows.append((name, first, each, *rates))
table(rows, "Medians over requests, on this machine, in this run")

# %% [markdown]
# Three numbers, and they pull in different directions:
#
# - **Time to first token**: waiting and prompt together. It is what a user feels first.
# - **Time per token**: how fast the answer runs. Faster than reading is fast enough.
# - **Throughput**: output tokens per second, all users together. With few arrivals it only says how
#   few they were.
#
# When calls come faster, steps carry more requests. Look which of the three gained in your run, and
# which paid.

# %% [markdown]
# ## The race
#
# Equal memory: {{ race_slots:,}} slots, {{ race_mib:.0f}} MiB of keys and values. One server
# reserves a slab of {{ limit }} tokens for each request, the other has blocks. The same model,
# scheduler and kernel; everybody waits from the start.

# %%
race_blocks, race_slots = 64, 64 * 16
requests = make_requests(kept)
race = {policy: LLM(model, num_blocks=race_blocks, max_model_len=limit, kv_policy=policy,
                    prefix_caching=False) for policy in ("slab", "paged")}  # fmt: skip
race_mib = race["paged"].cache.num_bytes / 2**20
print(f"{len(requests)} requests, at most {max(r.total_tokens for r in requests)} tokens long,")
print(f"{sum(r.total_tokens for r in requests) / len(requests):.0f} tokens on average")
print(f"slabs that fit: {race_slots // limit}")

# %%
guess_race = predict("Slabs let 4 run together. How many run with blocks, while others wait?")

# %%
guess_speed = predict("And how many times fewer steps?")

# %%
from course.memory import Holding, Ledger, take_ledger


class Watch:
    """After each step in which somebody waits: how many run, and where the slots are."""

    def __init__(self):
        self.steps, self.batch, self.ledgers = 0, [], []

    def __call__(self, llm):
        self.steps += 1
        if llm.scheduler.waiting:
            self.batch.append(len(llm.scheduler.running))
            self.ledgers.append(ledger_of(llm.kv_manager))


# %%
def ledger_of(kv):
    holdings = []
    for name, r in kv.requests.items():
        final = len(r.prompt_token_ids) + r.params.max_tokens - 1  # the last one is never stored
        holdings.append(Holding(r.num_computed_tokens, final, len(kv.tables[name]) * kv.block_size))
    return take_ledger(kv.pool.num_blocks * kv.block_size, holdings)


def mean_ledger(ledgers):
    accounts = zip(*(ledger.as_dict().values() for ledger in ledgers), strict=True)
    return Ledger(*(sum(values) / len(ledgers) for values in accounts))


# %%
from course.replay import make_prompts
from course.show import waste_ledger

ids = list(make_prompts(requests, loaded.tokenizer.vocab_size))
lengths = [SamplingParams(max_tokens=r.output_tokens, ignore_eos=True) for r in requests]
watches = {policy: Watch() for policy in race}
finish = {
    name: server.generate(ids, lengths, on_step=watches[name]) for name, server in race.items()
}
ledgers = {name: mean_ledger(watch.ledgers) for name, watch in watches.items()}
longest_answer = max(r.output_tokens for r in requests)
waste_ledger(ledgers, title="While somebody waits")

# %%
batch = {name: sum(w.batch) / len(w.batch) for name, w in watches.items()}
live = {name: 100 * ledger.shares()["live"] for name, ledger in ledgers.items()}
race_steps = {name: watch.steps for name, watch in watches.items()}
same_tokens = [a.token_ids for a in finish["slab"]] == [b.token_ids for b in finish["paged"]]
rows = [("memory", "run together", "at most", "slots live, %", "steps")]
for name, watch in watches.items():
    rows.append(
        (name, round(batch[name], 1), max(watch.batch), round(live[name]), race_steps[name])
    )
table(rows, f"The same tokens from both: {'yes' if same_tokens else 'no'}")

# %%
guess_race.measured(round(batch["paged"], 1), "the mean, while somebody waited")
guess_speed.measured(round(race_steps["slab"] / race_steps["paged"], 1))

# %% [markdown]
# (`free`: given back in this step, or too little for the next in the queue.) Steps and batches the
# same on every machine. Seconds are not:

# %% tags=["nbval-ignore-output"]
rows = [("memory", "first token, s", "per token, s", "tokens per s", "seconds in steps")]
for name, server in race.items():
    s = server.stats
    first, each = round(s.time_to_first_token, 2), round(s.time_per_token, 3)
    rows.append((name, first, each, round(s.tokens_per_second, 1), round(s.seconds, 1)))
table(rows, "Medians over requests, on this machine, in this run")

# %% [markdown]
# While there was a queue, {{ batch["paged"] / batch["slab"]:.1f }} times as many ran together with
# pages. Steps fell only to {{ race_steps["paged"] }} from {{ race_steps["slab"] }}. Why not
# further? The longest answer has {{ longest_answer }} tokens, and a step gives it one. With an
# empty queue, room is worth nothing.
#
# And steps are not seconds. A fuller step computes more: compare seconds per token. On a GPU a
# decode step mostly waits for the weights, for four requests as for sixteen, and more of the gain
# arrives.

# %% [markdown]
# How much of this is paging and how much this workload? Set `limit` closer to the lengths and the
# gap shrinks; shrink the pool and both crawl. The paper reports
# {{= 2.7 to 8 times | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 6.2 }} the
# throughput of max-length reservation, and
# {{= 1.7 to 2.7 times | [Kwon et al. 2023](https://arxiv.org/abs/2309.06180), sec. 6.2 }} that of a
# server that knows all lengths in advance.

# %% [markdown]
# ## A shared prompt
#
# Four questions to the same assistant. All start with the same instructions.

# %%
rules = "You answer questions about the weather. " * 6
questions = ["Why does it rain?", "What is snow?", "What is fog?", "Why is it windy?"]
shared = [f"{rules}\nQ: {q}\nA:" for q in questions]
system_tokens = len(loaded.tokenizer.encode(rules))
print("tokens of the instructions:", system_tokens)

# %%
guess_hit = predict("Blocks of 16. How many prompt tokens does the second question find computed?")

# %%
short = SamplingParams(max_tokens=8)
rows = [("prefix cache", "prompt tokens", "found", "computed")]
said = {}
for caching in (False, True):
    server = LLM(model, num_blocks=64, prefix_caching=caching)
    replies = server.generate(shared[0], short) + server.generate(shared[1:], short)
    total = sum(len(reply.prompt_token_ids) for reply in replies)
    found = [reply.num_cached_tokens for reply in replies]
    said[caching] = [reply.text for reply in replies]
    rows.append(("on" if caching else "off", total, sum(found), total - sum(found)))
table(rows, f"The same answers: {'yes' if said[True] == said[False] else 'no'}")

# %%
hit_blocks = found[1] // 16
guess_hit.measured(found[1], f"{hit_blocks} whole blocks")
prompt_total_shared = total

# %% [markdown]
# The first question computed everything and left its blocks behind, named by their hashes. Each
# later one found {{ found[1] }} tokens: {{ hit_blocks }} whole blocks. Of {{ prompt_total_shared }}
# prompt tokens {{ sum(found) }} were not computed again. Random prompts would find nothing. This
# gain too is one of the workload.

# %% [markdown]
# ## Your pieces
#
# What you passed in the labs is in your own engine. Here it runs: `learner_engine` puts your pieces
# in the place of ours, for as long as the block lasts, and says which are whose. Should one of them
# fail, it is named, and the notebook goes on.

# %% tags=["nbval-ignore-output"]
from course.practice import learner_engine

texts = None
with learner_engine() as pieces:
    print(pieces)
    yours = LLM(model, prefix_caching=False, block_size=4, num_blocks=16)
    texts = [answer.text for answer in yours.generate(prompts, limits)]
print("the answers of before and these:", pieces.compare(alone, texts))

# %% [markdown]
# ## The same pieces elsewhere
#
# When you open a server that others run in earnest, look for these names.

# %% [markdown]
# | here | vLLM (V1) | nano-vllm |
# | --- | --- | --- |
# | `BlockPool` | `BlockPool` | in `BlockManager` |
# | `FreeList` | `FreeKVCacheBlockQueue` | `free_block_ids`, a deque |
# | `KVManager` | `KVCacheManager` | `BlockManager` |
# | `hash_blocks` | `hash_block_tokens` | `compute_hash` |
# | `Request` | `Request` | `Sequence` |
# | a list in `tables` | `BlockTable` | `block_table` of a sequence |
# | `Scheduler`, `Step` | `Scheduler`, `SchedulerOutput` | `Scheduler` |
# | `Runner`, `prepare` | `GPUModelRunner` | `ModelRunner` |
# | `PagedKVCache.write` | `reshape_and_cache_flash` | `store_kvcache` |
# | `paged_attention` | attention backends | FlashAttention, given a block table |
# | a shared prefix read once for all (`attention.h`) | `use_cascade_attention` | no |
# | `GraphRunner` | `CUDAGraphWrapper` | `capture_cudagraph` |
# | `EngineCore`, `LLM` | `EngineCore`, `LLM` | `LLMEngine`, `LLM` |

# %% [markdown]
# Some names are the same on purpose: slot mapping, `max_num_seqs`, `max_num_batched_tokens`.
#
# Where vLLM is installed beside the course, the next cell gives both the same eight requests, in
# turns, and prints the ratio of their tokens per second.

# %%
import os
import subprocess
import sys
from importlib.util import find_spec

if find_spec("vllm") is None:
    print("Not run: vLLM is not installed here.")
    print("`python -m course bench --engine vllm` gives it an environment of its own (some GB).")
else:
    case = "8 requests, 64 in, 64 out"
    bench = ["bench", "--engine", "vllm", "--rounds", "1", "--case", case]
    here = os.environ | {"COURSE_BENCH_PYTHON": sys.executable}
    command = [sys.executable, "-m", "course", *bench]
    done = subprocess.run(command, env=here, text=True, capture_output=True)
    print(done.stdout or done.stderr)

# %% [markdown]
# What ours does not do, and a server in earnest does: run over several GPUs; schedule the next step
# while this one runs; speculate on several tokens at once; hold quantised weights, adapters and
# images; speak HTTP to many users, with priorities among them. None of this changes what a block
# table is.

# %% [markdown]
# ## What is still wasted
#
# Every slot still holds keys and values of full width, from every token, for as long as the
# request runs. Must it? That is lesson 09.

# %%
from course.show import check_yourself, prediction_record

prediction_record()

# %% [markdown]
# ## Check yourself

# %%
check_yourself(
    "The queue is never empty. With pages four times as many requests run together, and "
    "throughput doubles. Where is the rest?",
    {
        "Paged attention is slow.": "It costs something, though not half of everything. Both "
        "servers here ran the same kernel.",
        "A step with more requests takes longer.": "Each step gives more tokens and takes more "
        "time. Only where a step waits for the weights alone does the batch come free.",
        "The measurement is wrong: it must be four times.": "That holds only if a step takes as "
        "long with sixteen requests as with four.",
    },
    right="A step with more requests takes longer.",
)
check_yourself(
    "A request was preempted and computed again. How does its text differ?",
    {
        "It may differ: the model starts again.": "It starts from the same tokens, its own "
        "output included. Keys and values come out as before.",
        "Not at all.": "Same tokens, same keys and values, same next token. With a temperature "
        "above 0 the request keeps its own random numbers too.",
        "It is cut where it was preempted.": "Its tokens are kept. Only their keys and values "
        "were thrown away.",
    },
    right="Not at all.",
)
check_yourself(
    "Users say that the first word takes too long. Which number do you look at, and what moves it?",
    {
        "Time per token; a faster kernel.": "That is how the answer runs once it has begun.",
        "Throughput; a larger batch.": "More throughput may even mean longer queues for each.",
        "Time to first token; less waiting and shorter prompts to compute.": "More room lets "
        "requests in sooner, and a prefix hit shortens the prompt.",
    },
    right="Time to first token; less waiting and shorter prompts to compute.",
)
check_yourself(
    "The prefix cache found nothing, though all four prompts were equal and sent at once. Why?",
    {
        "The cache is broken.": "Send one first and the others after it, and it finds them.",
        "They were computed in the same step, before any block was published.": "A hash is "
        "published when its block is written. In that step nothing was written yet.",
        "Equal prompts have different hashes.": "Equal tokens from the start have equal hashes.",
    },
    right="They were computed in the same step, before any block was published.",
)
check_yourself(
    "What does the model's code know of blocks?",
    {
        "Everything: it holds the cache.": "The runner hands it a function for attention. The "
        "cache is behind that.",
        "Nothing. It gets tokens, positions and a function to attend with.": "So the same model "
        "ran on slabs and on pages, and could be checked against itself.",
        "The block size, for its masks.": "The mask is in attention, and needs lengths only.",
    },
    right="Nothing. It gets tokens, positions and a function to attend with.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"Four times the batch is four times the speed."* It is four times the room. What a step costs
#   decides the rest.
# - *"Throughput is high, so users are happy."* They feel the first token. Look at both.
# - *"It answers, so it is right."* Compare with a request alone, token by token, in float32.
# - *"Slow arrivals show a slow engine."* Throughput counts the time in which nobody called.
# - *"My benchmark with equal prompts is fast."* It measured the prefix cache.

# %% [markdown]
# ## Key takeaways
#
# - An engine is a loop of three lines: schedule, run, update.
# - The model sees one flat batch; slots, tables and lengths tell whose token is whose.
# - At equal memory pages run several times as many requests together as slabs do. How many steps
#   and seconds that saves depends on the queue, the longest answers and the machine.
# - Preemption and sharing change when work is done, and never what is answered. Test that.

# %% [markdown]
# ## Further reading
#
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: sec. 5 and 6, the engine and its
#   measurements.
# - [vLLM](https://github.com/vllm-project/vllm): begin in `vllm/v1/core`.
# - [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm): the same in a small space.
# - A. Agrawal and others, [Taming Throughput-Latency Tradeoff in LLM Inference with
#   Sarathi-Serve](https://arxiv.org/abs/2403.02310), OSDI 2024: first token against throughput.
