"""Lab 02: right answers that are not in the course's memory, wrong ones, other right ones, why."""

from __future__ import annotations

from textwrap import indent

from course.memory.slab import SlabAllocator
from course.practice.compare import Parting
from course.practice.exercise import Alternative, Answers, Inputs, Mistake
from course.practice.source import clean
from course.sizing import ModelShape, kv_bytes

# ---- Answers that exist only for this lab -------------------------------------------------------


def batch_that_fits(
    shape: ModelShape, num_bytes: int, totals: list[int], max_model_len: int
) -> tuple[int, int]:
    """How many requests run together in num_bytes of KV cache: (a slab each, exact sizes).

    totals: tokens of each request at its end, prompt and answer, in the order of arrival. Who is
    longer than max_model_len is turned away, and the next one's turn comes. The first who does not
    fit waits, and so do all behind. A slab has room for max_model_len tokens; an exact reservation
    for the request's own total. Two bytes a value.

    >>> from course.sizing import GIB, MODELS
    >>> batch_that_fits(MODELS["Llama-2-7B"], 8 * GIB, [512] * 40, max_model_len=4096)
    (4, 32)
    """
    served = [total for total in totals if total <= max_model_len]
    with_slabs = min(len(served), num_bytes // kv_bytes(shape, max_model_len))
    exact = used = 0
    for total in served:
        used += kv_bytes(shape, total)
        if used > num_bytes:
            break
        exact += 1
    return with_slabs, exact


def slab_emptiness(lengths: list[tuple[int, int]], max_model_len: int) -> dict[str, float]:
    """How empty slabs are, as shares between 0 and 1, for requests of (prompt, output) tokens.

    dropped      of all requests, those longer than max_model_len; they are in no other number
    at_finish    empty share of a slab when its request ends, each request counted once
    per_request  empty share over a request's life, in the mean; each request counted once
    per_step     the same, each step of each request counted once

    A request lives for `output` steps. After step i, counted from 1, its slab holds prompt + i
    tokens. At least one request fits.

    >>> slab_emptiness([(7, 21), (3, 24), (6, 2)], 32)["at_finish"]  # A, B and C
    0.34375
    """
    kept = [(prompt, output) for prompt, output in lengths if prompt + output <= max_model_len]
    count, steps = len(kept), sum(output for _, output in kept)
    at_end = sum(prompt + output for prompt, output in kept)
    lived = [prompt + (output + 1) / 2 for prompt, output in kept]  # mean tokens over a life
    held = sum(tokens * output for tokens, (_, output) in zip(lived, kept, strict=True))
    return {
        "dropped": 1 - count / len(lengths),
        "at_finish": 1 - at_end / count / max_model_len,
        "per_request": 1 - sum(lived) / count / max_model_len,
        "per_step": 1 - held / steps / max_model_len,
    }


failing_queue = [("D", 33), ("A", 28), ("B", 27)]


def admit(slabs: SlabAllocator, queue: list[tuple[str, int]]) -> list[str]:
    """Let requests in from the head of the queue. Returns the names of those who got a slab.

    queue: (name, total tokens), first come first. Who is let in or dropped is taken out of it; the
    others stay, in their order. A request that is longer than a slab is dropped as soon as it is at
    the head, whether or not a slab is free, and holds nothing. Any other gets a slab; when there is
    none it waits, and whoever is behind it is not looked at.

    >>> slabs, queue = SlabAllocator(64, 32), [("D", 33), ("A", 28), ("B", 27), ("C", 8)]
    >>> admit(slabs, queue), queue
    (['A', 'B'], [('C', 8)])
    """
    admitted = []
    while queue:
        name, total = queue[0]
        fits = total <= slabs.max_model_len
        if fits and slabs.reserve(name) is None:
            break
        queue.pop(0)
        if fits:
            admitted.append(name)
    return admitted


predicted_batches = {
    "ShareGPT, a slab each": 7,
    "Alpaca, a slab each": 7,
    "Alpaca, only what is written": 202,
    "Alpaca, % live in slabs": 3.5,
}

# ---- 2.1 ----------------------------------------------------------------------------------------

RESERVE = """
def reserve(self, request_id):
    if request_id in self._slab_of:
        raise ValueError(f"{request_id} holds a slab")
    if not self._free:
        return None
    slab = self._free.pop(0)
    self._slab_of[request_id] = slab
    return slab * self.max_model_len
"""
RELEASE = """
def release(self, request_id):
    if request_id not in self._slab_of:
        raise ValueError(f"{request_id} holds no slab")
    self._free.append(self._slab_of.pop(request_id))
"""
GIVEN = """
def __init__(self, pool_tokens, max_model_len):
    self.pool_tokens = pool_tokens
    self.max_model_len = max_model_len
    self.num_slabs = pool_tokens // max_model_len
    self._free = list(range(self.num_slabs))
    self._slab_of = {}

@property
def num_free(self):
    return len(self._free)

@property
def slabs(self):
    return {request: slab * self.max_model_len for request, slab in self._slab_of.items()}

def first_slot(self, request_id):
    return self._slab_of[request_id] * self.max_model_len
"""


def an_allocator(reserve: str = RESERVE, release: str = RELEASE) -> str:
    """An allocator as somebody might write it: right but for the methods that are given."""
    methods = [clean(m) for m in (GIVEN, reserve, release)]
    return "class SlabAllocator:\n" + indent("\n\n".join(methods), "    ") + "\n"


def _reserve(old: str, new: str) -> str:
    assert old in RESERVE
    return an_allocator(reserve=RESERVE.replace(old, new))


def _release(old: str, new: str) -> str:
    assert old in RELEASE
    return an_allocator(release=RELEASE.replace(old, new))


_KNOWN = """    if request_id in self._slab_of:
        raise ValueError(f"{request_id} holds a slab")
"""
_TAKE = "    slab = self._free.pop(0)\n"
_UNKNOWN = """    if request_id not in self._slab_of:
        raise ValueError(f"{request_id} holds no slab")
"""
SLABS = Answers(
    mistakes=(
        Mistake(
            "the slab's number is given and not its first slot",
            "Slab 1 of 32 slots begins at slot 32: number times `max_model_len`.",
            code=_reserve("return slab * self.max_model_len", "return slab"),
        ),
        Mistake(
            "None is put down as somebody's slab",
            "A request that gets None holds nothing: it must not stand in `_slab_of`.",
            code=_reserve(
                "    if not self._free:\n        return None\n    slab = self._free.pop(0)\n",
                "    slab = self._free.pop(0) if self._free else None\n",
            ),
        ),
        Mistake(
            "a holder hears None instead of an error when nothing is free",
            "Who holds a slab and asks again has made a mistake, full or not. Refuse that first.",
            code=an_allocator(reserve=RESERVE.replace(_KNOWN, "").replace(_TAKE, _KNOWN + _TAKE)),
        ),
        Mistake(
            "the last slab is never given out",
            "A pool can be used to its end: only an empty list means that nothing is free.",
            code=_reserve("if not self._free:", "if len(self._free) <= 1:"),
        ),
        Mistake(
            "a full pool is an error",
            "To be full is what happens to a server every day. Its caller wants None, and lets "
            "the request wait.",
            code=_reserve("return None", 'raise ValueError("no slab is free")'),
        ),
        Mistake(
            "nobody asks whether a slab is free",
            "An empty list has nothing to take from. Give None before you try.",
            code=_reserve("    if not self._free:\n        return None\n", ""),
        ),
        Mistake(
            "a request can have two slabs",
            "Only one of them is remembered, and the other is never given back. Refuse it.",
            code=_reserve(_KNOWN, ""),
        ),
        Mistake(
            "a second reserve gives the same slab again",
            "Two callers then write to the same slots, under one name. It is a fault of whoever "
            "asks: say so with a ValueError.",
            code=_reserve(
                _KNOWN,
                "    if request_id in self._slab_of:\n"
                "        return self._slab_of[request_id] * self.max_model_len\n",
            ),
        ),
        Mistake(
            "the slab is given and stays in the list of free ones",
            "The next request gets the same one. Take it out.",
            code=_reserve("self._free.pop(0)", "self._free[0]"),
        ),
        Mistake(
            "a refused request is remembered as a holder",
            "It holds nothing, and when it asks again it must not be told that it does.",
            code=_reserve(
                "        return None\n",
                "        self._slab_of[request_id] = -1\n        return None\n",
            ),
        ),
        Mistake(
            "slabs are never given back",
            "The holder is forgotten and the slab belongs to nobody, not even to the free ones.",
            code=_release(
                "self._free.append(self._slab_of.pop(request_id))", "self._slab_of.pop(request_id)"
            ),
        ),
        Mistake(
            "the slab is free again and its holder is still on record",
            "It can then be given back twice, and two requests get it. Take the name out too.",
            code=_release("self._slab_of.pop(request_id)", "self._slab_of[request_id]"),
        ),
        Mistake(
            "a first slot is put among the numbers of free slabs",
            "The list counts slabs: 0, 1, 2. Multiplied a second time, a slot lies far outside "
            "the pool.",
            code=_release(
                "self._slab_of.pop(request_id)",
                "self._slab_of.pop(request_id) * self.max_model_len",
            ),
        ),
        Mistake(
            "a release by somebody unknown passes in silence",
            "Something thinks that it holds a slab and does not: the sooner it hears, the better.",
            code=_release('raise ValueError(f"{request_id} holds no slab")', "return"),
        ),
        Mistake(
            "a release by somebody unknown is a `KeyError`",
            "The docstring promises a ValueError. `first_slot` raises it, with a sentence.",
            code=_release(_UNKNOWN, ""),
        ),
    ),
    alternatives=(
        Alternative("first in, first out", code=an_allocator()),
        Alternative("last in, first out", code=_reserve("self._free.pop(0)", "self._free.pop()")),
        Alternative(
            "any free slab, at random",
            code="import random\n\n\n"
            + _reserve(
                "slab = self._free.pop(0)",
                "slab = random.choice(self._free)\n    self._free.remove(slab)",
            ),
        ),
        Alternative(
            "who holds each slab, in a list",
            code="""
            class SlabAllocator:
                def __init__(self, pool_tokens, max_model_len):
                    self.pool_tokens, self.max_model_len = pool_tokens, max_model_len
                    self.num_slabs = pool_tokens // max_model_len
                    self.holders = [None] * self.num_slabs

                @property
                def num_free(self):
                    return self.holders.count(None)

                @property
                def slabs(self):
                    return {
                        name: number * self.max_model_len
                        for number, name in enumerate(self.holders)
                        if name is not None
                    }

                def reserve(self, request_id):
                    if request_id in self.holders:
                        raise ValueError(request_id)
                    for number in reversed(range(self.num_slabs)):
                        if self.holders[number] is None:
                            self.holders[number] = request_id
                            return number * self.max_model_len
                    return None

                def release(self, request_id):
                    self.holders[self.holders.index(request_id)] = None

                def first_slot(self, request_id):
                    return self.slabs[request_id]
            """,
        ),
        Alternative(
            "first slots instead of numbers",
            code="""
            class SlabAllocator:
                def __init__(self, pool_tokens, max_model_len):
                    self.pool_tokens, self.max_model_len = pool_tokens, max_model_len
                    self.num_slabs = pool_tokens // max_model_len
                    end = self.num_slabs * max_model_len
                    self.starts = set(range(0, end, max_model_len))
                    self.slabs = {}

                @property
                def num_free(self):
                    return len(self.starts)

                def reserve(self, request_id):
                    if request_id in self.slabs:
                        raise ValueError(f"{request_id} holds {self.slabs[request_id]}")
                    if self.starts:
                        self.slabs[request_id] = self.starts.pop()
                        return self.slabs[request_id]

                def release(self, request_id):
                    if request_id not in self.slabs:
                        raise ValueError(f"{request_id} holds nothing")
                    self.starts.add(self.slabs.pop(request_id))

                def first_slot(self, request_id):
                    return self.slabs[request_id]
            """,
        ),
    ),
    why="""
    A slab is in exactly one of two places: in the list of free ones, or beside one name. Both
    methods move it from one to the other and refuse first, so that a refused call has changed
    nothing. All slabs are alike, so there is nothing to search and nothing to split: this is the
    simplest allocator that there is. What is wrong with it is not in its code: it is
    `max_model_len` in the last line of `reserve`, whoever asks.
    """,
    shown="the slab is free again and its holder is still on record",
    shown_part="release",
    equivalent={
        "SlabAllocator.reserve: slab = self._free.pop(0) -> slab = self._free.pop(-1)": (
            "any free slab will do"
        ),
    },
)

# ---- 2.2 ----------------------------------------------------------------------------------------

_LIVE = "live += holding.written"
_RESERVED = "reserved += min(holding.held, holding.final) - holding.written"
_INTERNAL = "internal += max(0, holding.held - holding.final)"
_REST = f"{_RESERVED}\n        {_INTERNAL}"
_STUCK = "stuck = next_need is not None and not next_fits and next_need <= free"
_RESULT = "return Ledger(live, reserved, internal, free if stuck else 0, 0 if stuck else free)"


def _all_internal(inputs: Inputs, parting: Parting) -> str:
    written, final, held = inputs["holdings"][0]
    return f"of {held} slots {written} are written, and {min(final, held) - written} will be"


LEDGER = Answers(
    mistakes=(
        Mistake(
            "all that is held and not written is called internal",
            "A part of it will be written before the request ends: that part is reserved, and "
            "internal is only what never will be.",
            edit=((_REST, "internal += holding.held - holding.written"),),
            arithmetic=_all_internal,
        ),
        Mistake(
            "all that is held and not written is called reserved",
            "Reserved is what the request will still write. Past its last token nothing is.",
            edit=((_REST, "reserved += holding.held - holding.written"),),
        ),
        Mistake(
            "reserved and internal trade places",
            "Reserved: it will be written. Internal: it never is.",
            edit=((_RESULT, _RESULT.replace("reserved, internal", "internal, reserved")),),
        ),
        Mistake(
            "the finished length is called live",
            "Live are the slots that hold a token *now*.",
            edit=(
                (_LIVE, "live += min(holding.held, holding.final)"),
                (_RESERVED, "reserved += 0"),
            ),
        ),
        Mistake(
            "every slot held is called live",
            "That is how a full server looks from outside. Live are only the written ones.",
            edit=(
                (_LIVE, "live += holding.held"),
                (_RESERVED, "reserved += 0"),
                (_INTERNAL, "internal += 0"),
            ),
        ),
        Mistake(
            "slots are reserved that the request does not hold",
            "It will need them, and has not got them: today they are somebody else's, or free. "
            "Take the smaller of `held` and `final`.",
            edit=((_RESERVED, "reserved += holding.final - holding.written"),),
        ),
        Mistake(
            "internal is allowed to be negative",
            "Who holds less than it will need wastes 0, and must not make up for the waste of "
            "others.",
            edit=((_INTERNAL, "internal += holding.held - holding.final"),),
        ),
        Mistake(
            "free slots are external as soon as somebody is refused",
            "When fewer are free than it asks for, the pool is simply full. External means enough "
            "in all, and in pieces too small.",
            edit=((_STUCK, "stuck = next_need is not None and not next_fits"),),
        ),
        Mistake(
            "free slots are external as soon as somebody waits",
            "If the next request could have them now, they are free.",
            edit=((_STUCK, "stuck = next_need is not None and next_need <= free"),),
        ),
        Mistake(
            "exactly enough is taken for too few",
            "A request for 9 could be served by 9 slots, if they lay together: `<=`.",
            edit=((_STUCK, _STUCK.replace("<=", "<")),),
        ),
        Mistake(
            "only the slots that were asked for are external",
            "None of the free slots can serve it: all of them lie in pieces too small.",
            edit=(
                (
                    _RESULT,
                    "external = next_need if stuck else 0\n"
                    "    return Ledger(live, reserved, internal, external, free - external)",
                ),
            ),
        ),
        Mistake(
            "external slots are counted as free as well",
            "The five accounts add up to the pool: each slot stands in one of them.",
            edit=((_RESULT, _RESULT.replace("0 if stuck else free", "free")),),
        ),
        Mistake(
            "a pool that is more than full is taken for full",
            "Then a slot belongs to two requests, and the ledger would hide it. Refuse it.",
            edit=(
                (
                    "free = pool_tokens - live - reserved - internal",
                    "free = max(0, pool_tokens - live - reserved - internal)",
                ),
            ),
        ),
        Mistake(
            "the holdings are read more than once",
            "Something that can be read once is empty the second time. One loop for all three "
            "sums, or a list of them first.",
            code="""
            def take_ledger(pool_tokens, holdings, next_need=None, next_fits=True):
                live = sum(h.written for h in holdings)
                reserved = sum(min(h.held, h.final) - h.written for h in holdings)
                internal = sum(max(0, h.held - h.final) for h in holdings)
                free = pool_tokens - live - reserved - internal
                if free < 0:
                    raise ValueError("more is held than there is")
                stuck = next_need is not None and not next_fits and next_need <= free
                external = free if stuck else 0
                return Ledger(live, reserved, internal, external, free - external)
            """,
        ),
    ),
    alternatives=(
        Alternative(
            "three sums over a list",
            code="""
            def take_ledger(pool_tokens, holdings, next_need=None, next_fits=True):
                holdings = list(holdings)
                live = sum(h.written for h in holdings)
                held = sum(h.held for h in holdings)
                internal = sum(h.held - h.final for h in holdings if h.held > h.final)
                free = pool_tokens - held
                if free < 0:
                    raise ValueError(f"{held} of {pool_tokens} slots are held")
                if next_fits or next_need is None or next_need > free:
                    return Ledger(live, held - live - internal, internal, 0, free)
                return Ledger(live, held - live - internal, internal, free, 0)
            """,
        ),
        Alternative(
            "slot by slot",
            code="""
            def take_ledger(pool_tokens, holdings, next_need=None, next_fits=True):
                accounts = dict(live=0, reserved=0, internal=0, external=0, free=pool_tokens)
                for holding in holdings:
                    for slot in range(holding.held):
                        if slot < holding.written:
                            accounts["live"] += 1
                        elif slot < holding.final:
                            accounts["reserved"] += 1
                        else:
                            accounts["internal"] += 1
                        accounts["free"] -= 1
                if next_need is not None and not next_fits and accounts["free"] >= next_need:
                    accounts["external"], accounts["free"] = accounts["free"], 0
                return Ledger(**accounts)  # refuses a negative account
            """,
        ),
        Alternative(
            "reserved as what is left over",
            edit=(
                ("live = reserved = internal = 0", "live = held = internal = 0"),
                (_RESERVED, "held += holding.held"),
                (
                    "free = pool_tokens - live - reserved - internal",
                    "free, reserved = pool_tokens - held, held - live - internal",
                ),
            ),
        ),
    ),
    why="""
    Three questions about each held slot, in order: is it written? will it be? is it held at all?
    The border between the second and the third is `min(held, final)`: a slab holds more than its
    request will need, a table of blocks holds less, and the same line is right for both. That is
    how one ledger can compare a slab server with a paged one. And the last two accounts split what
    nobody holds by a question about somebody else: could the next in line have it?
    """,
    shown="all that is held and not written is called internal",
    equivalent={
        f"take_ledger: {_RESERVED} -> reserved += min(holding.final, holding.held) - "
        "holding.written": "the smaller of two numbers, in either order",
        f"take_ledger: {_INTERNAL} -> internal += max(holding.held - holding.final, 0)": (
            "the larger of two numbers, in either order"
        ),
        **dict.fromkeys(
            (
                "take_ledger: if free < 0: -> (dropped)",
                "take_ledger: if free < 0: -> if free < -1:",
                "take_ledger: raise ValueError(f'The requests hold {pool_tokens - free} slots of a "
                "pool of {pool_tokens}: no slot belongs to two requests.') -> (dropped)",
            ),
            "a Ledger refuses the negative account itself, with a ValueError that says less",
        ),
    },
)

# ---- 2.3 ----------------------------------------------------------------------------------------

_SERVED = "served = [total for total in totals if total <= max_model_len]"
_SLAB = "min(len(served), num_bytes // kv_bytes(shape, max_model_len))"
_USED = "used += kv_bytes(shape, total)"


def _a_slab_of(inputs: Inputs, parting: Parting) -> str:
    return (
        ""
        if parting.path != ("a slab each",)
        else (
            f"{inputs['num_bytes']:,} // {inputs['max_model_len']} = "
            f"{inputs['num_bytes'] // inputs['max_model_len']:,}"
        )
    )


BATCH = Answers(
    mistakes=(
        Mistake(
            "bytes are divided by tokens",
            "A slab takes `max_model_len` tokens, and each of them many bytes. `kv_bytes` knows.",
            edit=(
                (_SLAB, "min(len(served), num_bytes // max_model_len)"),
                (_USED, "used += total"),
            ),
            arithmetic=_a_slab_of,
        ),
        Mistake(
            "a request of just the limit is turned away",
            "A slab of 32 slots has room for 32 tokens: `<=`.",
            edit=((_SERVED, "served = [total for total in totals if total < max_model_len]"),),
        ),
        Mistake(
            "the two numbers trade places",
            "First those with a slab each, then those of exact sizes.",
            edit=(("return with_slabs, exact", "return exact, with_slabs"),),
        ),
        Mistake(
            "short requests go first",
            "The queue has an order, that of arrival. Sorted, more would fit, and long requests "
            "would wait for ever.",
            edit=(("for total in served:", "for total in sorted(served):"),),
        ),
        Mistake(
            "those who are turned away are counted among the requests",
            "They are in no batch. No more slabs are used than requests are left.",
            edit=((_SLAB, "min(len(totals), num_bytes // kv_bytes(shape, max_model_len))"),),
        ),
        Mistake(
            "a request is taken for its tokens times the bytes of one",
            "A layer with a window stops growing: ask `kv_bytes` for the length.",
            edit=((_USED, "used += kv_bytes(shape, 1) * total"),),
        ),
        Mistake(
            "requests that are too long are let in",
            "No slab can hold it. It is turned away, in both countings.",
            edit=((_SERVED, "served = list(totals)"),),
        ),
        Mistake(
            "requests that are too long are turned away by slabs only",
            "The limit is the server's, however it reserves. Otherwise the two numbers are about "
            "different requests.",
            edit=(("for total in served:", "for total in totals:"),),
        ),
        Mistake(
            "a request that is too long stops the queue",
            "It will never fit, so there is nothing to wait for: the next one's turn comes.",
            edit=(
                (
                    _SERVED,
                    "served = []\n    for total in totals:\n        if total > max_model_len:\n"
                    "            break\n        served.append(total)",
                ),
            ),
        ),
        Mistake(
            "a request that does not fit is passed by others",
            "The queue has an order: the first who does not fit waits, and so do all behind. "
            "Otherwise long requests might wait for ever.",
            edit=(
                (
                    f"        {_USED}\n        if used > num_bytes:\n            break\n"
                    "        exact += 1",
                    "        if used + kv_bytes(shape, total) <= num_bytes:\n"
                    "            used += kv_bytes(shape, total)\n            exact += 1",
                ),
            ),
        ),
        Mistake(
            "memory may not be used to its last byte",
            "What just fits, fits. Only more than there is does not.",
            edit=(("if used > num_bytes:", "if used >= num_bytes:"),),
        ),
        Mistake(
            "the one that does not fit is counted",
            "Look before you count.",
            edit=(
                (
                    "        if used > num_bytes:\n            break\n        exact += 1",
                    "        exact += 1\n        if used > num_bytes:\n            break",
                ),
            ),
        ),
        Mistake(
            "more slabs are counted than there are requests",
            "Memory might hold more; a batch is made of requests.",
            edit=((_SLAB, "num_bytes // kv_bytes(shape, max_model_len)"),),
        ),
        Mistake(
            "a part of a slab is counted",
            "A request needs a whole one: divide with `//`.",
            edit=((_SLAB, "min(len(served), num_bytes / kv_bytes(shape, max_model_len))"),),
        ),
        Mistake(
            "the number of slabs is rounded to the nearest",
            "The part of a slab that is left over serves nobody: round down.",
            edit=((_SLAB, "min(len(served), round(num_bytes / kv_bytes(shape, max_model_len)))"),),
        ),
        Mistake(
            "a slab is made for the longest request that came",
            "A server cuts its slabs before anybody comes: for the limit.",
            edit=(
                (
                    _SLAB,
                    "min(len(served), num_bytes // kv_bytes(shape, max(served)))",
                ),
            ),
        ),
        Mistake(
            "exact sizes are counted by their mean",
            "The mean of all tells nothing of who comes first. Add them up in order.",
            edit=(
                (
                    "return with_slabs, exact",
                    "mean = sum(served) / len(served)\n"
                    "    fits = int(num_bytes / kv_bytes(shape, 1) / mean)\n"
                    "    return with_slabs, min(len(served), fits)",
                ),
            ),
        ),
        Mistake(
            "windows are forgotten",
            "A layer with a window stops growing, so a request is not tokens times a constant: ask "
            "`kv_bytes` for its length.",
            edit=(
                (_SLAB, "min(len(served), num_bytes // (kv_bytes(shape, 1) * max_model_len))"),
                (_USED, "used += kv_bytes(shape, 1) * total"),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "counted down",
            code="""
            def batch_that_fits(shape, num_bytes, totals, max_model_len):
                def together(size_of):
                    left, count = num_bytes, 0
                    for total in totals:
                        if total > max_model_len:
                            continue
                        left -= size_of(total)
                        if left < 0:
                            return count
                        count += 1
                    return count

                slab = kv_bytes(shape, max_model_len)
                return together(lambda total: slab), together(lambda n: kv_bytes(shape, n))
            """,
        ),
        Alternative(
            "running sums",
            code="""
            from itertools import accumulate


            def batch_that_fits(shape, num_bytes, totals, max_model_len):
                sizes = [kv_bytes(shape, n) for n in totals if n <= max_model_len]
                slab = kv_bytes(shape, max_model_len)
                exact = sum(used <= num_bytes for used in accumulate(sizes))
                slabs = sum((i + 1) * slab <= num_bytes for i in range(len(sizes)))
                return slabs, exact
            """,
        ),
        Alternative(
            "the longest beginning that fits",
            code="""
            def batch_that_fits(shape, num_bytes, totals, max_model_len):
                short = [n for n in totals if not n > max_model_len]
                exact = len(short)
                while sum(kv_bytes(shape, n) for n in short[:exact]) > num_bytes:
                    exact -= 1
                slabs = num_bytes // kv_bytes(shape, max_model_len)
                if slabs > len(short):
                    slabs = len(short)
                return slabs, exact
            """,
        ),
    ),
    why="""
    The two countings differ in one thing: what a request is asked to reserve. The limit, the order
    and the memory are the same, and so are the requests that are turned away; whoever compares two
    servers has to keep all of that equal. For chats of 512 tokens and a limit of 4,096 it is 4
    against 32. Knowing every length in advance is cheating, of course: no server can. Lesson 04
    gets there without knowing.
    """,
    shown="a request that does not fit is passed by others",
    equivalent={
        f"batch_that_fits: with_slabs = {_SLAB} -> with_slabs = "
        "min(num_bytes // kv_bytes(shape, max_model_len), len(served))": (
            "the smaller of two numbers, in either order"
        ),
    },
)

# ---- 2.4 ----------------------------------------------------------------------------------------

_KEPT = "if prompt + output <= max_model_len]"
_DROPPED = '"dropped": 1 - count / len(lengths)'
_LIVED = "prompt + (output + 1) / 2 for prompt, output in kept]"
_HELD = "held = sum(tokens * output for tokens, (_, output) in zip(lived, kept, strict=True))"

EMPTINESS = Answers(
    mistakes=(
        Mistake(
            "requests that are too long are counted as well",
            "They have no slab. Leave them out of the three metrics, and say how many they were.",
            edit=(
                (
                    "kept = [(prompt, output) for prompt, output in lengths " + _KEPT,
                    "kept = lengths\n"
                    "    fit = sum(prompt + output <= max_model_len for prompt, output in lengths)",
                ),
                (_DROPPED, '"dropped": 1 - fit / len(lengths)'),
            ),
        ),
        Mistake(
            "nobody is turned away",
            "Prompt and output together must not be more than `max_model_len`.",
            edit=((_KEPT, "]"),),
        ),
        Mistake(
            "the share of those who were served is given",
            "`dropped` are the others: 1 less that.",
            edit=((_DROPPED, '"dropped": count / len(lengths)'),),
        ),
        Mistake(
            "the two metrics over a life trade places",
            "`per_request` counts each request once, `per_step` each step of each.",
            edit=(
                ('"per_request": 1 - sum(lived)', '"per_step": 1 - sum(lived)'),
                ('"per_step": 1 - held', '"per_request": 1 - held'),
            ),
        ),
        Mistake(
            "a slab is looked at before each step and not after it",
            "After step i it holds prompt + i tokens. Steps are counted from 1: `range(output)` "
            "begins at 0.",
            edit=((_LIVED, "prompt + (output - 1) / 2 for prompt, output in kept]"),),
        ),
        Mistake(
            "a request that just fits is dropped",
            "A request of exactly `max_model_len` tokens fills its slab, and fits.",
            edit=((_KEPT, "if prompt + output < max_model_len]"),),
        ),
        Mistake(
            "a request is dropped by its prompt alone",
            "The answer goes into the same slab: prompt and output together.",
            edit=((_KEPT, "if prompt <= max_model_len]"),),
        ),
        Mistake(
            "the dropped are counted, and not their share",
            "A number between 0 and 1 is asked: of all requests.",
            edit=((_DROPPED, '"dropped": len(lengths) - count'),),
        ),
        Mistake(
            "the dropped are compared with the kept",
            "A share of all requests has all of them below the line.",
            edit=((_DROPPED, '"dropped": (len(lengths) - count) / count'),),
        ),
        Mistake(
            "the full share is given",
            "Asked is how empty they are: 1 less that.",
            edit=(
                ('"at_finish": 1 - at_end', '"at_finish": at_end'),
                ('"per_request": 1 - sum(lived)', '"per_request": sum(lived)'),
                ('"per_step": 1 - held', '"per_step": held'),
            ),
        ),
        Mistake(
            "a life is taken to begin with an empty slab",
            "The prompt is in it from the first step on. Only the answer grows.",
            edit=((_LIVED, "(prompt + output) / 2 for prompt, output in kept]"),),
        ),
        Mistake(
            "the mean of 1, 2, ..., n is taken to be n / 2",
            "After its first step a request holds prompt + 1 tokens, after its last prompt + n: "
            "the middle is at (n + 1) / 2. For short answers it shows.",
            edit=((_LIVED, "prompt + output / 2 for prompt, output in kept]"),),
        ),
        Mistake(
            "a slab is taken to be as full as at its end, all the time",
            "It is fullest when its request ends. Before that it holds less.",
            edit=((_LIVED, "prompt + output for prompt, output in kept]"),),
        ),
        Mistake(
            "every request weighs the same in the steps",
            "A request of 24 steps is seen 24 times by whoever looks at every step. Weigh it with "
            "`output`.",
            edit=((_HELD, "held = sum(lived) / count * steps"),),
        ),
        Mistake(
            "requests are weighted with all their tokens",
            "A prompt takes no steps of its own here. A request is seen once for each token of its "
            "*output*.",
            edit=(
                (
                    "steps = len(kept), sum(output for _, output in kept)",
                    "steps = len(kept), sum(prompt + output for prompt, output in kept)",
                ),
                (
                    _HELD,
                    "held = sum(t * (p + o) for t, (p, o) in zip(lived, kept, strict=True))",
                ),
            ),
        ),
        Mistake(
            "percent are given",
            "A share lies between 0 and 1.",
            edit=(
                ('"at_finish": 1 - at_end', '"at_finish": 100 - 100 * at_end'),
                ('"per_request": 1 - sum(lived)', '"per_request": 100 - 100 * sum(lived)'),
                ('"per_step": 1 - held', '"per_step": 100 - 100 * held'),
                (_DROPPED, '"dropped": 100 - 100 * count / len(lengths)'),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "step by step",
            code="""
            def slab_emptiness(lengths, max_model_len):
                ends, lives, every_step, dropped = [], [], [], 0
                for prompt, output in lengths:
                    if prompt + output > max_model_len:
                        dropped += 1
                        continue
                    empty = [1 - (prompt + i) / max_model_len for i in range(1, output + 1)]
                    ends.append(empty[-1])
                    lives.append(sum(empty) / len(empty))
                    every_step += empty

                def mean(values):
                    return sum(values) / len(values)

                return {
                    "dropped": dropped / len(lengths),
                    "at_finish": mean(ends),
                    "per_request": mean(lives),
                    "per_step": mean(every_step),
                }
            """,
        ),
        Alternative(
            "with NumPy",
            code="""
            import numpy as np


            def slab_emptiness(lengths, max_model_len):
                prompt, output = np.array(lengths, dtype=float).T
                fits = prompt + output <= max_model_len
                prompt, output = prompt[fits], output[fits]
                lived = prompt + (output + 1) / 2
                return {
                    "dropped": float(1 - fits.mean()),
                    "at_finish": float(np.mean(1 - (prompt + output) / max_model_len)),
                    "per_request": float(np.mean(1 - lived / max_model_len)),
                    "per_step": float(np.average(1 - lived / max_model_len, weights=output)),
                }
            """,
        ),
        Alternative(
            "empty slots, added up in whole numbers",
            code="""
            def slab_emptiness(lengths, max_model_len):
                kept = [pair for pair in lengths if sum(pair) <= max_model_len]
                n = len(kept)
                last = sum(max_model_len - p - o for p, o in kept)
                twice = [2 * (max_model_len - p) - o - 1 for p, o in kept]
                steps = sum(o for _, o in kept)
                weighted = sum(t * o for t, (_, o) in zip(twice, kept))
                return {
                    "per_step": weighted / (2 * max_model_len * steps),
                    "per_request": sum(twice) / (2 * max_model_len * n),
                    "at_finish": last / (max_model_len * n),
                    "dropped": (len(lengths) - n) / len(lengths),
                }
            """,
        ),
    ),
    why="""
    The three differ in *when* a slab is looked at and in *who* is counted how often. At the end it
    is fullest. Over a life the answer is half written in the mean. And who looks at the server at
    each step meets long answers more often than short ones, in proportion to their steps. None is
    wrong; a figure without its metric, and without the share that was dropped, is of little use.
    `course.memory.emptiness` computes the same for whole workloads.
    """,
    shown="every request weighs the same in the steps",
    equivalent={
        "slab_emptiness: held = sum((tokens * output for tokens, (_, output) in zip(lived, kept, "
        "strict=True))) -> held = sum((tokens * output for tokens, (_, output) in zip(lived, kept, "
        "strict=False)))": "both lists have one entry for each request",
    },
)

# ---- 2.5 ----------------------------------------------------------------------------------------


def _a_queue(*entries: tuple) -> str:
    return f"failing_queue = {list(entries)!r}\n"


QUEUE = Answers(
    mistakes=(
        Mistake(
            "nobody in the queue is too long",
            "Then both versions do the same. Make one request longer than a slab, 32 slots.",
            code=_a_queue(("A", 28), ("B", 27), ("C", 8)),
        ),
        Mistake(
            "a request of just the limit is taken to be too long",
            "32 tokens fit into 32 slots. One more does not.",
            code=_a_queue(("D", 32), ("A", 28), ("B", 27)),
        ),
        Mistake(
            "a slab is left over",
            "The pool has two. One is lost to the request that was dropped: let two more come.",
            code=_a_queue(("D", 33), ("A", 28)),
        ),
        Mistake(
            "the request that is too long comes last",
            "Nobody is behind it who could suffer. Let it come first.",
            code=_a_queue(("A", 28), ("B", 27), ("D", 33)),
        ),
        Mistake(
            "more requests are named than are needed",
            "One that is dropped and two that fit show it.",
            code=_a_queue(("D", 33), ("E", 40), ("A", 28), ("B", 27)),
        ),
        Mistake(
            "both slabs are really taken",
            "Three requests that fit are too many for two slabs, in any version.",
            code=_a_queue(("D", 33), ("A", 28), ("B", 27), ("C", 8)),
        ),
        Mistake(
            "prompt and answer are given as two numbers",
            "An entry is a name and the total: 7 + 21 is 28.",
            code=_a_queue(("A", 7, 21), ("B", 3, 24)),
        ),
    ),
    alternatives=(
        Alternative("two that are too long", code=_a_queue(("D", 33), ("E", 99), ("C", 8))),
        Alternative("one in between", code=_a_queue(("A", 28), ("D", 33), ("C", 1))),
        Alternative("as lists", code="failing_queue = [['x', 4096], ['y', 32], ['z', 1]]\n"),
    ),
    why="""
    `reserve` comes before the look at the length. So a request that is dropped takes a slab along,
    and nobody ever gives it back: it is in no list of running requests that could finish. The
    server loses a slab with every such caller, and stands still after as many of them as it has
    slabs. No single call looks wrong, which is why such faults live long: only a ledger that is
    taken again and again would show a slab without a request.
    """,
    shown="a slab is left over",
)

# ---- 2.6 ----------------------------------------------------------------------------------------


def _admit(body: str) -> str:
    return "def admit(slabs, queue):\n" + indent(clean(body), "    ") + "\n"


ADMIT = Answers(
    mistakes=(
        Mistake(
            "a request that is too long is given a slab before anybody looks at its length",
            "It is dropped and its slab is not given back: nobody will ever release it. Look "
            "first, then reserve.",
            edit=(
                (
                    "        fits = total <= slabs.max_model_len\n"
                    "        if fits and slabs.reserve(name) is None:\n",
                    "        if slabs.reserve(name) is None:\n",
                ),
                ("        if fits:\n", "        if total <= slabs.max_model_len:\n"),
            ),
        ),
        Mistake(
            "a request that is too long is only dropped while a slab is free",
            "It needs none. While it waits, it stands in the way of nobody today, but the caller "
            "waits for an answer that could be given at once.",
            code=_admit("""
            admitted = []
            while queue and slabs.num_free > 0:
                name, total = queue.pop(0)
                if total <= slabs.max_model_len:
                    slabs.reserve(name)
                    admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "a request that is too long stops the queue for ever",
            "It will never fit, so nobody should wait behind it. Take it out and go on.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                if total > slabs.max_model_len or slabs.reserve(name) is None:
                    break
                queue.pop(0)
                admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "a request that finds no slab is taken out of the queue all the same",
            "It is lost: neither running nor waiting. Take it out only when it has a slab.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue.pop(0)
                if total > slabs.max_model_len:
                    continue
                if slabs.reserve(name) is None:
                    break
                admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "everybody in the queue is looked at, also behind those who wait",
            "Whoever is behind a waiting request has time: its turn has not come.",
            code=_admit("""
            admitted = []
            for name, total in list(queue):
                if total > slabs.max_model_len:
                    queue.remove((name, total))
                elif slabs.reserve(name) is not None:
                    queue.remove((name, total))
                    admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "a request that just fits is dropped",
            "A slab holds as many tokens as it has slots.",
            edit=(("total <= slabs.max_model_len", "total < slabs.max_model_len"),),
        ),
        Mistake(
            "the slab that begins at slot 0 is taken for none",
            "0 counts as False. `reserve` gives None when there is no slab: ask `is None`.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                if total > slabs.max_model_len:
                    queue.pop(0)
                    continue
                if not slabs.reserve(name):
                    break
                queue.pop(0)
                admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "a request that is too long ends the round",
            "It is dropped, and there may be slabs for those behind: go on.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                if total > slabs.max_model_len:
                    queue.pop(0)
                    break
                if slabs.reserve(name) is None:
                    break
                queue.pop(0)
                admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "whole entries of the queue are returned",
            "Asked are the names alone.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                fits = total <= slabs.max_model_len
                if fits and slabs.reserve(name) is None:
                    break
                entry = queue.pop(0)
                if fits:
                    admitted.append(entry)
            return admitted
            """),
        ),
        Mistake(
            "one request is let in for each call",
            "As many as there are slabs: go on until one finds none.",
            code=_admit("""
            while queue:
                name, total = queue[0]
                if total > slabs.max_model_len:
                    queue.pop(0)
                    continue
                if slabs.reserve(name) is None:
                    return []
                queue.pop(0)
                return [name]
            return []
            """),
        ),
        Mistake(
            "the caller's queue is left as it is",
            "`queue = queue[1:]` is another list. The caller still has the old one, and lets the "
            "same requests in again.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                fits = total <= slabs.max_model_len
                if fits and slabs.reserve(name) is None:
                    break
                queue = queue[1:]
                if fits:
                    admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "the dropped are named among those let in",
            "Returned are the names of those who hold a slab.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                fits = total <= slabs.max_model_len
                if fits and slabs.reserve(name) is None:
                    break
                queue.pop(0)
                admitted.append(name)
            return admitted
            """),
        ),
        Mistake(
            "every slab is given back at once",
            "Only who is dropped must hold nothing. Who is let in keeps its slab.",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                if total <= slabs.max_model_len:
                    if slabs.reserve(name) is None:
                        break
                    slabs.release(name)
                    admitted.append(name)
                queue.pop(0)
            return admitted
            """),
        ),
    ),
    alternatives=(
        Alternative(
            "too long first",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                if total > slabs.max_model_len:
                    del queue[0]
                    continue
                if slabs.reserve(name) is None:
                    return admitted
                del queue[0]
                admitted.append(name)
            return admitted
            """),
        ),
        Alternative(
            "counted, then cut off",
            code=_admit("""
            done, admitted = 0, []
            for name, total in queue:
                if total <= slabs.max_model_len:
                    if slabs.num_free == 0:
                        break
                    slabs.reserve(name)
                    admitted.append(name)
                done += 1
            del queue[:done]
            return admitted
            """),
        ),
        Alternative(
            "reserved, looked at, and given back",
            code=_admit("""
            admitted = []
            while queue:
                name, total = queue[0]
                start = slabs.reserve(name)
                if total > slabs.max_model_len:
                    if start is not None:
                        slabs.release(name)
                elif start is None:
                    break
                else:
                    admitted.append(name)
                queue.pop(0)
            return admitted
            """),
        ),
    ),
    why="""
    Refuse before you take. Whatever can be known without a slab is asked before one is reserved;
    then there is nothing to give back on any way out of the loop. It could also be mended by a
    `release` where the request is dropped, and the next way out that somebody adds would leak
    again.

    The engine's scheduler refuses such requests when they are *added*, before they ever wait.
    """,
    shown="a request that is too long is only dropped while a slab is free",
)

# ---- 2.7 ----------------------------------------------------------------------------------------


def _prediction(chats: float, short: float, written: float, live: float) -> str:
    return (
        "predicted_batches = {\n"
        f'    "ShareGPT, a slab each": {chats},\n'
        f'    "Alpaca, a slab each": {short},\n'
        f'    "Alpaca, only what is written": {written},\n'
        f'    "Alpaca, % live in slabs": {live},\n'
        "}\n"
    )


PREDICTION = Answers(
    mistakes=(
        Mistake(
            "shorter requests are taken to run in a larger batch of slabs",
            "A slab is as large for a short request as for a long one. The pool holds as many, "
            "whoever comes.",
            code=_prediction(31.5, 202, 202, 95),
        ),
        Mistake(
            "only Alpaca is taken to run in a larger batch of slabs",
            "The limit is the same, so the slabs are, and their number is.",
            code=_prediction(7, 45, 202, 3.5),
        ),
        Mistake(
            "a part of a slab is taken to serve somebody",
            "What is left of the pool after the last whole slab is of no use to anybody.",
            code=_prediction(7.68, 7.68, 202, 3.5),
        ),
        Mistake(
            "answers are taken to be half written, whoever is looked at",
            "True for one request over its life. But at any moment long answers are more often "
            "among those that run, and these hold more: here it nearly makes up for it.",
            code=_prediction(7, 7, 320, 2.2),
        ),
        Mistake(
            "slots are taken to be no better used when only what is written is held",
            "Each slab is nearly empty. Without slabs the same pool holds many times as many.",
            code=_prediction(7, 7, 14, 3.5),
        ),
        Mistake(
            "the empty share is given",
            "Asked are the slots that hold a token.",
            code=_prediction(7, 7, 202, 96.5),
        ),
        Mistake(
            "a share is given in place of percent",
            "Multiply by a hundred.",
            code=_prediction(7, 7, 202, 0.035),
        ),
        Mistake(
            "the live share is taken from ShareGPT",
            "Its requests are more than six times as long. The slabs are the same.",
            code=_prediction(7, 7, 202, 22),
        ),
    ),
    alternatives=(
        Alternative(
            "computed",
            code="""
            _pool, _limit, _mean = 15_728, 2048, 19.31 + 58.45
            predicted_batches = {
                "ShareGPT, a slab each": _pool // _limit,
                "Alpaca, a slab each": _pool // _limit,
                "Alpaca, only what is written": _pool / _mean,
                "Alpaca, % live in slabs": 100 * (_pool // _limit) * _mean / _pool,
            }
            """,
        ),
        Alternative("in round numbers", code=_prediction(7, 7, 200, 4)),
        Alternative("a careful estimate", code=_prediction(7.2, 6.8, 230, 3.2)),
    ),
    why="""
    With slabs the batch is `pool // limit`, and nothing about the requests is in that formula:
    seven chats, or seven questions of a line. The paper measured 7.00 for both. So the same server
    is a fifth full with the one and nearly empty with the other, and where seven run, about two
    hundred could. That is the price of not knowing how long an answer will be, and it is paid by
    those who ask little.
    """,
    shown="shorter requests are taken to run in a larger batch of slabs",
)

ANSWERS = {
    "SlabAllocator": SLABS,
    "take_ledger": LEDGER,
    "batch_that_fits": BATCH,
    "slab_emptiness": EMPTINESS,
    "failing_queue": QUEUE,
    "admit": ADMIT,
    "predicted_batches": PREDICTION,
}
