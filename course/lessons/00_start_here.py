# ---
# title: Start here
# summary: The finished thing, running on this machine, and how the course works
# minutes: 20
# after: []
# objectives:
#   - show a server that keeps a request waiting while its memory is nearly empty
#   - say what changes when the same memory is cut into blocks, and what does not
#   - tell what this machine can run, and find your way through the course
# ---

# %% [markdown]
# A language model reads and writes **tokens**: words, or pieces of words. A server that runs one
# keeps notes on every token of every conversation: two lists of numbers, called keys and values.
# (Lesson 01 says what they are for.) These notes are its **KV cache**.
#
# Here three requests, A, B and C, arrive at a server with a real model. Run the cell; the model
# takes some seconds to load.

# %%
from course.engine import LLM, SamplingParams
from course.memory.example import BLOCK_ORDER, BLOCK_SIZE, MAX_MODEL_LEN, NUM_BLOCKS, REQUESTS
from course.show import Recording, check_yourself, pool_film, predict, prediction_record, table

prompts = [r.prompt for r in REQUESTS]
limits = [SamplingParams(max_tokens=r.output_tokens, ignore_eos=True) for r in REQUESTS]
memory = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS}

slab_server = LLM("smollm2", kv_policy="slab", max_model_len=MAX_MODEL_LEN, **memory)
slabs = Recording("ABC")
slab_server.generate(prompts, limits, on_step=slabs)
pool_film(slabs, step=1, title="The memory is full, and C waits")

# %% [markdown]
# Each small box is a **slot**: room for the notes on one token. A strong box is written. A pale one
# is held and will be written, a hatched one is held and never will be.
#
# The server works in **steps**: in each, the model runs once and every running request gets its
# next token. Below, every step is a column; stripes and dots there only tell B and C from A. Move
# the step control: the pale part shrinks.

# %%
slots = NUM_BLOCKS * BLOCK_SIZE
written_at_first = slabs.frames[1].slots_written
c_starts_with_slabs = slabs.first_step("C")
print("slots held after the first step:   ", slabs.frames[1].blocks_held * BLOCK_SIZE)
print("slots written after the first step:", written_at_first, "of", slots)
print("C starts in step:                  ", c_starts_with_slabs)

# %% [markdown]
# All slots were taken after the first step, and {{ written_at_first }} of {{ slots }} were written.
# C stood at the door until step {{ c_starts_with_slabs }}.
#
# Nobody knows how long an answer gets. So this server reserves a **slab** for each request: slots
# in one piece for the longest conversation that it allows, here {{ MAX_MODEL_LEN }} tokens. Were
# the three so large? (To fit into a picture, their answers are cut off after a few tokens.)

# %%
rows = [(r.name, r.prompt, r.prompt_tokens, r.output_tokens, r.total_tokens) for r in REQUESTS]
table([("request", "prompt", "tokens in", "tokens out", "in all"), *rows])

# %%
needed = sum(r.total_tokens for r in REQUESTS)
print("slots needed by all three:", needed, "of", slots)

# %% [markdown]
# They need {{ needed }} slots at the very most, and there are {{ slots }}. A, B and C will be with
# you in every lesson.
#
# ## The same memory in blocks
#
# Now cut the same slots into **blocks** of {{ BLOCK_SIZE }}. A request takes a block when it
# needs one, and any free block will do. The list of its blocks, in order, is its **block table**.
# Memory that is handed out in this way is **paged**.

# %%
moments = ["at once", "when A has left", "when A and B have left"]
guess_start = predict("Same memory, same requests, blocks. When can C start now?", moments)

# %%
compared = ["fewer", "the same", "more"]
guess_steps = predict(f"Slabs took {slabs.num_steps} steps. How many will blocks take?", compared)

# %%
model = (slab_server.model, slab_server.tokenizer)
paged_server = LLM(model, block_order=BLOCK_ORDER, prefix_caching=False, **memory)
paged = Recording("ABC")
paged_server.generate(prompts, limits, on_step=paged)
pool_film(paged, step=1, title="The same memory in blocks, and C is in")

# %%
c_starts, c_ends = paged.first_step("C"), paged.last_step("C")
before_a_ends = paged.frames[paged.last_step("A") - 1]
table_of_a = before_a_ends.tables["A"]
most_held = max(frame.blocks_held for frame in paged.frames)
print("A's block table at its end:", table_of_a)
print("most blocks held at once:  ", most_held, "of", NUM_BLOCKS)
had_left = sum(paged.last_step(name) < c_starts for name in "AB")
guess_start.measured(moments[had_left], f"in step {c_starts}")
more = (paged.num_steps > slabs.num_steps) - (paged.num_steps < slabs.num_steps)
guess_steps.measured(compared[1 + more], f"{paged.num_steps} steps")

# %% [markdown]
# C started in step {{ c_starts }} and left after step {{ c_ends }}. A's notes ended up in blocks
# {{ table_of_a }}, in this order; block {{ table_of_a[2] }} had been C's. At most {{ most_held }}
# of {{ NUM_BLOCKS }} blocks were held at once: a fourth caller could have come.
#
# One thing did not change: the number of steps. **Paging buys room, not speed.** Speed comes from
# what a server does with the room; finding scattered blocks even costs a little.

# %% [markdown]
# ## Three questions, one batch
#
# Here is the same engine with a larger pool and with questions in the form that the model was
# trained on. All three are answered together, as one **batch**: each step adds one token to every
# answer. The part of a server that says who is in the batch is its **batcher**, or scheduler.

# %% tags=["nbval-ignore-output"]
llm = LLM(model)
questions = [
    "What is the capital of France?",
    "Name three primary colors.",
    "How many days are in a week?",
]
prompts = [llm.tokenizer.apply_chat_template([{"role": "user", "content": q}]) for q in questions]
answers = llm.generate(prompts, SamplingParams(max_tokens=32))
for question, answer in zip(questions, answers, strict=True):
    print(question, "\n   ", answer.text)

# %% tags=["nbval-ignore-output"]
stats = llm.stats
print(f"{stats.generated_tokens} tokens in {stats.steps} steps, {stats.seconds:.1f} s")
print(f"{stats.tokens_per_second:.0f} tokens per second, on this machine, in this run")

# %% [markdown]
# Tokens per second, over all requests together, are a server's **throughput**.
#
# Small models make things up; ours is here because it is real and quick, not because it is wise.
# Put in questions of your own and run the cell again.
#
# ## What you will build
#
# That engine, piece by piece. Each lesson ends on what is still wasted, and the next one starts
# there.

# %% [markdown]
# <!-- contents -->

# %% [markdown]
# ## Is this machine ready?
#
# A GPU is welcome and not needed: everything runs on a CPU. The **kernels**, programs written for a
# GPU, run there in an interpreter. The self-test says what is here and what to do about the rest.
# In a terminal, in the folder of the course, it is `python -m course doctor`.

# %% tags=["nbval-ignore-output"]
from course import doctor

doctor.report()

# %% [markdown]
# ## How the course works
#
# - **Guess** before you run. Nothing waits for you, but a guess makes you look.
# - **Run** the cells from top to bottom with Shift+Enter. Then change something and run it again.
#   If something is there already, or gone: "Restart Kernel and Run All Cells" in the menu Kernel.
# - **Trust** a number because a cell computes it. The last cell of each lesson computes all again.
#
# Guesses are kept until the kernel restarts. Each lesson ends on a table of them:

# %%
prediction_record()

# %% [markdown]
# - **Build** the piece in the lab, where a lesson has one: its first line has the link. In the
#   lesson itself nothing is left for you to write. Each exercise comes with a check; what passes is
#   saved and becomes part of your own engine.
# - **See where you stand** with `python -m course progress`, in a terminal in the folder of the
#   course: which exercises have passed, and which pieces of the engine are yours.

# %% [markdown]
# ## Check yourself
#
# Every choice answers back, the wrong ones too.

# %%
check_yourself(
    "With slabs, why did C have to wait?",
    {
        "The pool is too small for the three.": "Count again: they need fewer slots than it has.",
        "All slots were reserved, though few were written.": "A and B each held a slab for the "
        "longest conversation allowed, whatever they would really need.",
        "The model serves at most two requests at a time.": "With blocks it served three.",
        "C came last.": "It came last with blocks too, and started at once.",
    },
    right="All slots were reserved, though few were written.",
)

# %%
check_yourself(
    "Both servers took the same number of steps. What did blocks gain?",
    {
        "Nothing.": "C had its answer at the start rather than at the end, and there was "
        "room left.",
        "Each step ran faster.": "The same model read the same tokens. If anything, finding "
        "them in scattered blocks costs extra.",
        "Room: requests that would wait can run in the same steps.": "More requests share "
        "each step. That is where a server's throughput comes from.",
    },
    right="Room: requests that would wait can run in the same steps.",
)

# %%
check_yourself(
    "A's block table starts with 7, 1. Where are the notes on A's fifth token?",
    {
        "In block 5.": "A token's number is no address. Only the table knows its block.",
        "In block 1, first slot.": "The first block holds four tokens, so the fifth opens the "
        "second entry of the table, and that says 1.",
        "In block 7, fifth slot.": "A block of four slots has no fifth.",
        "In block 8, right after block 7.": "Blocks of one request need not be neighbours.",
    },
    right="In block 1, first slot.",
)

# %%
check_yourself(
    "A server says: memory 100 % reserved, two requests running. What do you look at first?",
    {
        "How much of what is reserved has been written.": "Reserved and used are two numbers. "
        "Only the second one tells whether memory is short.",
        "The batcher: it should put in more requests.": "It cannot, while nothing is free to be "
        "reserved. The batch is the symptom.",
        "A larger GPU.": "It would be reserved just as emptily, at a higher price.",
    },
    right="How much of what is reserved has been written.",
)

# %% [markdown]
# ## Common mistakes
#
# - *"The memory is full, so it is in use."* Full of reservations is not full of tokens. Ask which
#   of the two a display shows.
# - *"The batch is small, so the batcher is bad."* It takes in what the memory lets it take in.
# - *"Paging makes answers faster."* It makes room. The step count above did not move.
# - *"Token five is in block five."* A position becomes an address only through the block table.

# %% [markdown]
# ## Key takeaways
#
# - The KV cache holds keys and values of every token of every running request.
# - A slab for the longest possible conversation leaves most of itself empty, and keeps others
#   waiting.
# - Blocks are taken when needed and given back at once; the block table keeps their order.
# - What is still wasted? The tail of each last block, and whatever the tables cost to follow. Both
#   will be measured.

# %% [markdown]
# ## Further reading
#
# - W. Kwon and others, [Efficient Memory Management for Large Language Model Serving with
#   PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023: where the idea comes from.
# - L. Ben Allal and others, [SmolLM2](https://arxiv.org/abs/2502.02737), 2025: the model that
#   answers here.
