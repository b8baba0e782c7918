# ---
# title: Continuous batching
# ---

# %% [markdown]
# A scheduler answers one question before every step: who computes how many tokens? Now you write
# the answer, in the three parts that a round has. First those who run, oldest first, and if memory
# is short the newest makes room. Then those who wait may come in. And after the model has run, the
# books are brought up to date.
#
# Each part is a function that gets the real `Scheduler`, and the engine will run with yours.

# %% [markdown]
# ## What a scheduler holds
#
# Two queues, a manager of blocks, and limits. `running` is a list, `waiting` a deque; one after the
# other they are in order of arrival, always. Here are A, B and C after two rounds with a budget of
# 8 tokens.

# %%
from course.engine import BlockPool, KVManager, Request, SamplingParams, Scheduler, SchedulerConfig
from course.memory.example import BLOCK_ORDER, REQUESTS


def example_server():
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8)
    pool = BlockPool(16, order=BLOCK_ORDER)
    server = Scheduler(config, KVManager(16, block_size=4, prefix_caching=False, pool=pool))
    for r in REQUESTS:
        params = SamplingParams(max_tokens=r.output_tokens)
        server.add(Request(r.name, range(r.prompt_tokens), params))
    return server


# %%
server = example_server()
for number in (1, 2):
    step = server.schedule()
    rows = [(request.request_id, start, num) for request, start, num in step.scheduled]
    server.update(step, {request.request_id: 0 for request in step.samples})
    print(f"round {number}: rows {rows}, tokens for {[r.request_id for r in step.samples]}")
for request in server.running:
    print(request, "table", server.kv_manager.tables[request.request_id])

# %% [markdown]
# A row `(request, start, num_tokens)` knows no prefill and no decode. A request has `num_tokens`
# tokens, prompt and output; the first `num_computed_tokens` of them are stored; the rest is to be
# computed. Keep these two counts apart, and the lab is half done. The tokens are one list,
# `token_ids`: the prompt, and behind it what was said so far.

# %% [markdown] exercise="6.1"
# When a block is needed and none is free, somebody has to give theirs back. Write what happens to
# them.

# %% [markdown] exercise="6.2"
# Now the first part of a round. Every running request gets a row, as long as there are tokens in
# the budget, and blocks for it, as long as somebody newer can be thrown out.
#
# `scheduler.kv_manager.grow(request, num_tokens)` makes room for so many tokens in all. It returns
# the copies to be made before the step, mostly `[]`; or `None`, and then nothing has changed.
# Whom to throw out is no question any more: call the `preempt_newest` that you have written.

# %% [markdown] exercise="6.3"
# The second part: the door. It is opened with what the first part left of the budget.

# %% [markdown] exercise="6.4"
# The third part comes after the model has run. `step.samples` are the requests whose last token was
# computed, so that they get a new one, at the end of their `token_ids`; `tokens` says which.

# %% [markdown]
# ## A fault that sleeps
#
# Somebody must hand the rows to the model: which token ids, at which positions? This function did
# it for weeks on a server with much memory. It is wrong.


# %%
def faulty_inputs(request, start, num_tokens):
    """Token ids of a row, and their positions in the request."""
    if request.num_output_tokens == 0:  # prefill: a prompt, or a piece of one
        positions = list(range(start, start + num_tokens))
        return request.token_ids[start : start + num_tokens], positions
    return request.token_ids[-1:], [request.num_tokens - 1]  # decode: the newest token


# %% [markdown]
# To see it fail you need no language model. `serve_day` runs the real scheduler on blocks of 4
# tokens, with a toy in place of the model: it keeps what it is handed, position by position, and
# says a number made of everything it should see by then.

# %%
from course.practice.bank.lab_06 import serve_day

print("room enough:", serve_day(faulty_inputs, 16, [(7, 4), (3, 4)]))
print("just enough:", serve_day(faulty_inputs, 5, [(7, 4), (3, 4)]))

# %% [markdown] exercise="6.5"
# No difference. Find a day whose answers differ from those with room enough: the number of blocks,
# and requests as `(prompt tokens, output tokens)`; the first is called A, the next B. Make it the
# smallest: as few requests, then as few blocks, then as few tokens in all as can be. Answer in the
# form `{"num_blocks": 16, "requests": [(7, 4), (3, 4)]}`. You may try things with `serve_day`.

# %% [markdown] exercise="6.6"
# Now mend it. It gets shorter.

# %% [markdown]
# ## Ten times
#
# You can now say where the famous factor comes from. The clock is the lesson's: a step takes 10
# milliseconds, or half a millisecond a token, whichever is longer.

# %%
from course.memory.batching import StepCost

cost = StepCost(read_ms=10.0, token_ms=0.5)
for tokens in (1, 4, 16, 20, 800):
    print(f"a step of {tokens:>3} tokens takes {cost(tokens):5.0f} ms")

# %% [markdown] exercise="6.7"
# How many times as many output tokens per second does continuous batching give as static batching?
# All requests are there from the start.
#
# | case | requests: prompt + output | seats, static | seats, continuous |
# | --- | --- | ---: | ---: |
# | alike | all 1 + 40 | 4 | 4 |
# | mixed | in turn 1 + 100, and three of 1 + 10 | 4 | 4 |
# | mixed, more seats | the same | 4 | 16 |
# | one token each, more seats | all 200 + 1 | 4 | 16 |
#
# Within 15 % of the measurement will do.

# %% [markdown]
# The measurement, on the very requests that the check used:

# %%
from course.practice.bank.lab_06 import CASES, measured_gain

for case, (lengths, static_seats, continuous_seats) in CASES.items():
    seats = f"{static_seats} and {continuous_seats} seats"
    print(f"{case:27} {len(lengths)} requests, {seats:14} {measured_gain(case):5.1f} times")
