# ---
# title: Fragmentation
# ---

# %% [markdown]
# In the lesson an arena turned C away with enough slots free. Now you write that arena, measure it,
# break it on purpose, and find out why somebody else's loses memory.
#
# The day of the running example: two short visitors come, A and B come, the visitors leave, C asks.

# %%
from course.memory import arena, example

for action, name, size in example.ARENA_TRACE:
    print(f"{action:8} {name:14} {size or '':3}")

# %% [markdown] exercise="3.1"
# An arena hands out runs of any length and takes them back. Finding a hole is given: `FITS` holds
# one function for each kind of search. Yours is what happens to the hole, and what happens when a
# run leaves.
#
# You may keep runs and holes in another way: the check looks at what the methods return, at `holes`
# and at `num_free`.

# %% [markdown]
# This is the search that your arena used:

# %%
import inspect

print(inspect.getsource(arena.first_fit))

# %% [markdown] exercise="3.2"
# Write the other one. An arena with `fit="best"` asks it for the hole.

# %% [markdown] exercise="3.3"
# The share outside the longest hole does not know what is asked for. This measure does. To a short
# request many holes are no harm; to a long one a single border may be too many.

# %% [markdown]
# The holes of the running example, seen by requests of different lengths. Longer is not always
# worse: what counts is what is left over in each hole.

# %%
holes = [(0, 5), (33, 4)]
outside = arena.external_fragmentation(holes)
for request_size in (1, 2, 3, 4, 5, 6, 8):
    share = arena.unusable_share(holes, request_size)
    print(f"requests of {request_size}: {100 * share:5.1f} % useless; outside the longest hole: "
          f"{100 * outside:.1f} %")  # fmt: skip

# %% [markdown] exercise="3.4"
# Make a first-fit arena of 64 slots, empty at the start, refuse a request although as many slots
# are free: a list of calls of which the last is refused. Make it the smallest: as few calls as
# possible, and, when it is refused, as few slots in use as possible.

# %% [markdown]
# ## A release that goes wrong
#
# Here is another way to keep an arena: one list of **pieces**, runs and holes alike, in address
# order. What is next to what can then be read off the list. This function gives a run back. It
# gets through the day of the running example, and it is wrong.


# %%
def faulty_release(pieces, place):
    """Give back the run at `place`; it merges with the free pieces on either side."""
    size, owner = pieces[place]
    if owner is None:
        raise ValueError(f"The piece at place {place} is free already.")
    if place + 1 < len(pieces) and pieces[place + 1][1] is None:
        size += pieces.pop(place + 1)[0]
    if pieces[place - 1][1] is None:
        place -= 1
        size += pieces.pop(place)[0]
    pieces[place] = (size, None)


pieces = [(5, "v"), (28, "A"), (4, "w"), (27, "B")]
for place in (0, 2, 1):
    who = pieces[place][1]
    faulty_release(pieces, place)
    print(f"{who} leaves: {pieces}")

# %% [markdown] exercise="3.5"
# Find an arena in which it goes wrong: `(pieces, place)`, the pieces before and the place of the
# run that leaves. Wrong is: a run that stays is lost or moved, slots are lost, or two holes touch.
# Use as few pieces as you can.

# %% [markdown] exercise="3.6"
# Now mend it. What you found must not happen again, and everything that worked must go on working.

# %% [markdown]
# ## What compaction costs
#
# Compaction slides all runs to the low end. It is not the holes that are copied.

# %% [markdown] exercise="3.7"
# Before you measure it: 16 runs of 4 slots fill an arena. Some leave, drawn at random, and then it
# is compacted. What share of the slots still in use is copied, on average, if 1, 2, 4 or 8 of the
# runs have left? Within 0.05 of the measurement will do: that is wider than what chance does to it,
# and narrower than the step from one of these numbers to the next.

# %% [markdown]
# The measurement, over 1,000 days:

# %%
from random import Random

for leaving in (1, 2, 4, 8):
    random, copied, used = Random(3), 0, 0
    for _ in range(1000):
        memory = arena.Arena(64)
        offsets = [memory.allocate(4) for _ in range(16)]
        for offset in random.sample(offsets, leaving):
            memory.free(offset)
        used += memory.size - memory.num_free
        copied += sum(move.size for move in memory.compact())
    print(f"{leaving} of 16 have left: {copied / used:.3f} of the slots in use are copied")

# %% [markdown]
# ## Where do you look?
#
# Six servers, one moment each, all with a pool of the same size. "Not all of the memory holds
# tokens," say their owners, "and so few requests run." The readings are in slots. `external` are
# free slots that would suffice for the next in the queue and are in pieces too short; `free` are
# the other free ones. Readings are from simulated servers; where one gives out slabs, a slab is as
# long as the cell says.

# %%
from course.practice.bank.lab_03 import CAUSES, READINGS

print("slots of a pool: 32,768   slots of a slab: 4,096\n")
print("server", *(f"{name:>9}" for name in READINGS["P"]))
for server, reading in READINGS.items():
    print(f"{server:6}", *(f"{value:9,}" for value in reading.values()))
print()
for cause, meaning in CAUSES.items():
    print(f"{cause:12} {meaning}")

# %% [markdown] exercise="3.8"
# What keeps more requests from running? Give each server one of the five causes above. A cause may
# be right for more than one server.
