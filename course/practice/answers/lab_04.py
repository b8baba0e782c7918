"""Lab 04: right answers that are not in the engine, wrong ones, other right ones, and why."""

from __future__ import annotations

from collections import Counter
from textwrap import indent

from course.engine.block_pool import BlockPool, OutOfBlocks  # noqa: F401 (offered to 4.5)
from course.engine.block_table import blocks_needed
from course.practice.compare import Parting
from course.practice.exercise import Alternative, Answers, Inputs, Mistake
from course.practice.source import clean

# ---- Answers that exist only for this lab -------------------------------------------------------

failing_calls = [("A", 17), ("B", 1)]


def grow_table(pool: BlockPool, table: list[int], num_tokens: int, block_size: int) -> bool:
    """Make room in one request's table for `num_tokens` tokens in all.

    Takes the blocks that are missing, as few as possible, and adds them to the table. A table never
    shrinks. False: there is no room, and nothing has changed.

    >>> pool, table = BlockPool(4, order=[2, 0, 1, 3]), []
    >>> grow_table(pool, table, 7, block_size=4), table
    (True, [2, 0])
    """
    num_missing = blocks_needed(num_tokens, block_size) - len(table)
    if num_missing > pool.num_free:
        return False
    if num_missing > 0:
        table += pool.allocate(num_missing)
    return True


def find_fault(pool: BlockPool, tables: dict[str, list[int]]) -> str | None:
    """What is wrong with a pool and the tables of its requests, in a sentence; None: nothing.

    Looks at `pool.num_blocks`, `pool.num_free`, `pool.free_blocks` (a list of ids) and
    `pool.ref_count(block_id)`, and changes nothing. The owners of a block are the places where it
    stands in a table: a block that stands in the tables of A and C has two. Within one table it
    stands once: two logical blocks in the same place would write over each other.

    >>> pool = BlockPool(4, order=[2, 0, 1, 3])
    >>> find_fault(pool, {"A": pool.allocate(2)})
    >>> find_fault(pool, {"A": []})
    'block 0 has 0 owners in tables, and counts 1'
    """
    free = pool.free_blocks
    owners = Counter(block_id for table in tables.values() for block_id in table)
    if len(free) != pool.num_free:
        return f"{len(free)} blocks are in the free list, and num_free is {pool.num_free}"
    if len(set(free)) != len(free):
        return f"a block is in the free list twice: {free}"
    for block_id in [*free, *owners]:
        if not 0 <= block_id < pool.num_blocks:
            return f"block {block_id} does not exist"
    for name, table in tables.items():
        if len(set(table)) != len(table):
            return f"a block is in the table of {name} twice: {table}"
    for block_id in range(pool.num_blocks):
        count = pool.ref_count(block_id)
        if owners[block_id] != count:
            return f"block {block_id} has {owners[block_id]} owners in tables, and counts {count}"
        if (count == 0) != (block_id in free):
            return f"block {block_id} counts {count} owners; is it in the free list? {free}"
    return None


predicted_empty_slots = {1: 0, 4: 1.5, 16: 7.5, 64: 31.5}

# ---- 4.1 ----------------------------------------------------------------------------------------

INIT = """
def __init__(self, num_blocks, order=None):
    self.num_blocks = num_blocks
    self._ref_counts = [0] * num_blocks
    self._free = list(order if order is not None else range(num_blocks))
"""
NUM_FREE = """
@property
def num_free(self):
    return len(self._free)
"""
REF_COUNT = """
def ref_count(self, block_id):
    if not 0 <= block_id < self.num_blocks:
        raise ValueError(f"block {block_id} is outside the pool")
    return self._ref_counts[block_id]
"""
ALLOCATE = """
def allocate(self, count=1):
    if count < 0:
        raise ValueError(f"cannot allocate {count} blocks")
    if count > len(self._free):
        raise OutOfBlocks(f"{count} wanted, {len(self._free)} free")
    block_ids = [self._free.pop() for _ in range(count)]
    for block_id in block_ids:
        self._ref_counts[block_id] = 1
    return block_ids
"""
SHARE = """
def share(self, block_ids):
    block_ids = list(block_ids)
    for block_id in block_ids:
        if self.ref_count(block_id) == 0:
            raise ValueError(f"block {block_id} is free")
    for block_id in block_ids:
        self._ref_counts[block_id] += 1
"""
FREE = """
def free(self, block_ids, keep=()):
    block_ids = list(block_ids)
    for block_id in set(block_ids):
        if block_ids.count(block_id) > self.ref_count(block_id):
            raise DoubleFree(f"block {block_id} has {self.ref_count(block_id)} owners")
    for block_id in block_ids:
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] == 0:
            self._free.append(block_id)
"""


def a_pool(
    init: str = INIT,
    num_free: str = NUM_FREE,
    ref_count: str = REF_COUNT,
    allocate: str = ALLOCATE,
    share: str = SHARE,
    free: str = FREE,
) -> str:
    """A pool as somebody might write it: right but for the methods that are given."""
    methods = [clean(m) for m in (init, num_free, ref_count, allocate, share, free)]
    return "class BlockPool:\n" + indent("\n\n".join(methods), "    ") + "\n"


_PARTIAL = a_pool(
    allocate="""
    def allocate(self, count=1):
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        block_ids = []
        for _ in range(count):
            if not self._free:
                raise OutOfBlocks("no free block")
            block_ids.append(self._free.pop())
            self._ref_counts[block_ids[-1]] = 1
        return block_ids
    """
)
_CHECKS_AS_IT_GOES = a_pool(
    free="""
    def free(self, block_ids, keep=()):
        for block_id in block_ids:
            if self.ref_count(block_id) == 0:
                raise DoubleFree(f"block {block_id} is free")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)
    """
)
_EACH_ON_ITS_OWN = a_pool(
    free="""
    def free(self, block_ids, keep=()):
        block_ids = list(block_ids)
        for block_id in block_ids:
            if self.ref_count(block_id) == 0:
                raise DoubleFree(f"block {block_id} is free")
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)
    """
)
_NO_DOUBLE_FREE = a_pool(
    free="""
    def free(self, block_ids, keep=()):
        for block_id in block_ids:
            self.ref_count(block_id)
            self._ref_counts[block_id] -= 1
            self._free.append(block_id)
    """
)
_IGNORES_OWNERS = a_pool(
    free="""
    def free(self, block_ids, keep=()):
        block_ids = list(block_ids)
        for block_id in set(block_ids):
            if block_ids.count(block_id) > self.ref_count(block_id):
                raise DoubleFree(f"block {block_id}")
        for block_id in set(block_ids):
            self._ref_counts[block_id] = 0
            self._free.append(block_id)
    """
)
_LEAKS = a_pool(
    free="""
    def free(self, block_ids, keep=()):
        block_ids = list(block_ids)
        for block_id in set(block_ids):
            if block_ids.count(block_id) > self.ref_count(block_id):
                raise DoubleFree(f"block {block_id}")
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
    """
)
_FREE_AT_ONE = a_pool(free=FREE.replace("[block_id] == 0:", "[block_id] <= 1:"))
_NOT_COUNTED = a_pool(
    allocate=ALLOCATE.replace(
        "    for block_id in block_ids:\n        self._ref_counts[block_id] = 1\n", ""
    )
)
_SHARES_ANYTHING = a_pool(
    share="""
    def share(self, block_ids):
        block_ids = list(block_ids)
        for block_id in block_ids:
            self.ref_count(block_id)
        for block_id in block_ids:
            self._ref_counts[block_id] += 1
    """
)
_SHARES_AS_IT_GOES = a_pool(
    share="""
    def share(self, block_ids):
        for block_id in block_ids:
            if self.ref_count(block_id) == 0:
                raise ValueError(f"block {block_id} is free")
            self._ref_counts[block_id] += 1
    """
)
_SHARED_IS_TWO = a_pool(
    share=SHARE.replace("self._ref_counts[block_id] += 1", "self._ref_counts[block_id] = 2")
)
_NO_BOUNDS = a_pool(
    ref_count="""
    def ref_count(self, block_id):
        return self._ref_counts[block_id]
    """
)
_READS_TWICE = a_pool(
    share=SHARE.replace("    block_ids = list(block_ids)\n", ""),
    free=FREE.replace("block_ids = list(block_ids)", "counts = Counter(block_ids)").replace(
        """for block_id in set(block_ids):
        if block_ids.count(block_id) > self.ref_count(block_id):""",
        """for block_id in counts:
        if counts[block_id] > self.ref_count(block_id):""",
    ),
)
_FREE_READS_TWICE = a_pool(
    free=FREE.replace("block_ids = list(block_ids)", "counts = Counter(block_ids)").replace(
        """for block_id in set(block_ids):
        if block_ids.count(block_id) > self.ref_count(block_id):""",
        """for block_id in counts:
        if counts[block_id] > self.ref_count(block_id):""",
    )
)
_LAST_REFUSED = a_pool(
    allocate=ALLOCATE.replace("count > len(self._free)", "count >= len(self._free)")
)
_LENDS_ITS_LIST = a_pool(
    allocate="""
    def allocate(self, count=1):
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise OutOfBlocks(f"{count} wanted, {len(self._free)} free")
        if count == len(self._free):
            block_ids = self._free
        else:
            block_ids = self._free[:count]
            self._free = self._free[count:]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids
    """
)

_WHOLE_LIST = """        for block_id, times in Counter(block_ids).items():
            owners = self.ref_count(block_id)
            if times > owners:
                raise DoubleFree(
                    f"block {block_id} is freed {times} time(s) and has {owners} owner(s): "
                    "each owner frees a block once"
                )
        ownerless = []
        for block_id in block_ids:
"""

POOL = Answers(
    mistakes=(
        Mistake(
            "blocks are taken one by one until none is left, and the error comes only then",
            "Whoever gets the error holds those blocks and does not know their ids: they are lost. "
            "Compare `count` with `num_free` before you take the first.",
            code=_PARTIAL,
        ),
        Mistake(
            "nobody asks whether so many blocks are free",
            "The free list then raises an `IndexError` of its own. Callers wait for OutOfBlocks: "
            "compare `count` with `num_free` first.",
            edit=(
                (
                    """        if count > self.num_free:
            raise OutOfBlocks(
                f"{count} blocks wanted, {self.num_free} of {self.num_blocks} free: "
                "wait for a request to finish, preempt one, or make the pool larger"
            )
""",
                    "",
                ),
            ),
        ),
        Mistake(
            "a negative count is left to the free list",
            "It raises an `IndexError`. Whoever asks for -1 blocks has made a mistake: the "
            "docstring promises a ValueError.",
            edit=(
                (
                    """        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks; ask for 0 or more")
""",
                    "",
                ),
            ),
        ),
        Mistake(
            "the last free block is never given out",
            "A pool whose free blocks are all asked for can give them all: `>` and not `>=`.",
            code=_LAST_REFUSED,
        ),
        Mistake(
            "a block that is handed out is not counted",
            "It then looks as free as before: it cannot be shared, and freeing it is refused. A "
            "block has one owner from the moment it is handed out.",
            code=_NOT_COUNTED,
        ),
        Mistake(
            "the first of two owners frees a block for both",
            "The other owner still reads it. Count one owner less; the block goes back at 0.",
            code=_IGNORES_OWNERS,
        ),
        Mistake(
            "a block goes back to the free list while one owner is left",
            "After the subtraction the count is what is left: 1 is an owner, 0 is none.",
            code=_FREE_AT_ONE,
        ),
        Mistake(
            "nothing asks whether the block has an owner at all",
            "Freed twice, it stands in the free list twice, and two requests will write into it. "
            "Ask before you change anything.",
            code=_NO_DOUBLE_FREE,
        ),
        Mistake(
            "each block is checked just before it is freed",
            "When the third of three is refused, the first two are gone already. Check the whole "
            "list first, then free the whole list.",
            code=_CHECKS_AS_IT_GOES,
        ),
        Mistake(
            "a refusal comes when part of the list is counted down already",
            "The blocks before the refused one have lost an owner. Check the whole list first, "
            "then count.",
            edit=(
                (
                    _WHOLE_LIST,
                    """        ownerless = []
        for block_id in block_ids:
            if self.ref_count(block_id) == 0:
                raise DoubleFree(f"block {block_id} is free")
""",
                ),
            ),
        ),
        Mistake(
            "a count may go below 0, and nobody says so",
            "A block that is freed once too often is a fault of its caller, who must hear of it. "
            "Look at the counts before you change them.",
            edit=((_WHOLE_LIST, "        ownerless = []\n        for block_id in block_ids:\n"),),
        ),
        Mistake(
            "every block of the list goes back, whether or not an owner is left",
            "Only a block whose count has come down to 0 has no owner.",
            edit=(
                (
                    "            if self._ref_counts[block_id] == 0:\n"
                    "                ownerless.append(block_id)\n",
                    "            ownerless.append(block_id)\n",
                ),
            ),
        ),
        Mistake(
            "a double free is refused with another error",
            "The docstring names it: DoubleFree.",
            edit=(("raise DoubleFree(", "raise ValueError("),),
        ),
        Mistake(
            "each block of the list is checked on its own",
            "Listed twice with one owner, it passes both times and goes to -1. Count how often the "
            "list names it: `Counter(block_ids)`.",
            code=_EACH_ON_ITS_OWN,
        ),
        Mistake(
            "freed blocks are counted down and never put back",
            "A block without owners must be in the free list again, or the pool shrinks with every "
            "request that leaves.",
            code=_LEAKS,
        ),
        Mistake(
            "a free block can be shared",
            "It holds nothing to share, and it is still in the free list: the next request gets it "
            "too. Refuse it.",
            code=_SHARES_ANYTHING,
        ),
        Mistake(
            "sharing stops half-way through its list",
            "The blocks before the refused one have an owner too many, who will never free them. "
            "Look at all of them first.",
            code=_SHARES_AS_IT_GOES,
        ),
        Mistake(
            "sharing sets the count to 2",
            "That is right for the second owner and loses the third. Add one.",
            code=_SHARED_IS_TWO,
        ),
        Mistake(
            "an id outside the pool is used as an index as it is",
            "In Python -1 is the last entry of a list, so a wrong id quietly changes a right "
            "block. `ref_count` refuses it: ask it first.",
            code=_NO_BOUNDS,
        ),
        Mistake(
            "`share` looks an id up in the list of counts as it is",
            "In Python -1 is the last entry of a list: a wrong id quietly shares another block. "
            "`self.ref_count` refuses it.",
            edit=(
                (
                    "if self.ref_count(block_id) == 0:\n                raise ValueError",
                    "if self._ref_counts[block_id] == 0:\n                raise ValueError",
                ),
            ),
        ),
        Mistake(
            "`share` reads its ids twice, from something that can be read once",
            "The second loop sees no id at all, and nothing is shared. Make a list of them first.",
            code=a_pool(share=SHARE.replace("    block_ids = list(block_ids)\n", "")),
        ),
        Mistake(
            "`free` reads its ids twice, from something that can be read once",
            "The second loop sees no id at all, and nothing is freed. Make a list of them first.",
            code=_FREE_READS_TWICE,
        ),
        Mistake(
            "the ids are read twice, from something that can be read once",
            "The second loop then sees no id at all, and nothing is freed. Make a list of them "
            "first.",
            code=_READS_TWICE,
        ),
        Mistake(
            "the pool hands out its own free list",
            "What the caller does with the list then happens to the pool. Give a list of its own.",
            code=_LENDS_ITS_LIST,
        ),
    ),
    alternatives=(
        Alternative("last in, first out: a plain list", code=a_pool()),
        Alternative(
            "first in, first out",
            code=a_pool(allocate=ALLOCATE.replace("self._free.pop()", "self._free.pop(0)")),
        ),
        Alternative(
            "any free block, at random",
            code="import random\n\n\n"
            + a_pool(
                allocate=ALLOCATE.replace(
                    "[self._free.pop() for _ in range(count)]",
                    "random.sample(self._free, count)\n"
                    "    self._free = [b for b in self._free if b not in block_ids]",
                )
            ),
        ),
        Alternative(
            "counts in a dict, fresh ids made when needed",
            code="""
            class BlockPool:
                def __init__(self, num_blocks, order=None):
                    self.num_blocks = num_blocks
                    self.owners = {}
                    self.used_before = []
                    self.fresh = iter(range(num_blocks) if order is None else order)

                @property
                def num_free(self):
                    return self.num_blocks - len(self.owners)

                def ref_count(self, block_id):
                    if block_id < 0 or block_id >= self.num_blocks:
                        raise ValueError(block_id)
                    return self.owners.get(block_id, 0)

                def allocate(self, count=1):
                    if count < 0:
                        raise ValueError(count)
                    if self.num_free < count:
                        raise OutOfBlocks(count)
                    taken = []
                    while len(taken) < count:
                        taken.append(self.used_before.pop() if self.used_before
                                     else next(self.fresh))
                    self.owners.update(dict.fromkeys(taken, 1))
                    return taken

                def share(self, block_ids):
                    wanted = Counter(block_ids)
                    if any(self.ref_count(block_id) < 1 for block_id in wanted):
                        raise ValueError("a free block")
                    for block_id, times in wanted.items():
                        self.owners[block_id] += times

                def free(self, block_ids, keep=()):
                    given = Counter(block_ids)
                    if any(times > self.ref_count(b) for b, times in given.items()):
                        raise DoubleFree(dict(given))
                    for block_id, times in given.items():
                        left = self.owners.pop(block_id) - times
                        if left:
                            self.owners[block_id] = left
                        else:
                            self.used_before.append(block_id)
            """,
        ),
        Alternative(
            "the given free list, freed blocks at its end",
            edit=(
                (
                    "self._free.prepend_n([block_id for block_id in ownerless if block_id not in "
                    "keep])",
                    "self._free.append_n([block_id for block_id in ownerless if block_id not in "
                    "keep])",
                ),
            ),
        ),
    ),
    why="""
    Every method first looks at the whole list and may refuse it, and only then changes anything,
    in loops that cannot fail. So an error leaves the pool exactly as it was, and the caller can
    wait, preempt somebody, or give up, without knowing how far the pool had come.

    The count is what makes sharing possible: a block is free when *nobody* owns it, not when
    *somebody* gives it back. In lesson 07 the same two methods carry prefix caching and forks.
    """,
    shown="each block of the list is checked on its own",
    shown_part="free",
)

# ---- 4.2 ----------------------------------------------------------------------------------------

_RETURN = "return (num_tokens + block_size - 1) // block_size"
NEEDED = Answers(
    mistakes=(
        Mistake(
            "only full blocks are counted",
            "The tokens that are left over need a block too, though they do not fill it.",
            edit=((_RETURN, "return num_tokens // block_size"),),
            arithmetic=lambda i, p: f"{i['num_tokens']} // {i['block_size']} = {p.got}",
        ),
        Mistake(
            "one block is always added",
            "When the last block is just full there is nothing left over. Or did you count the "
            "token that comes next? A block is taken when it is needed, and not before.",
            edit=((_RETURN, "return num_tokens // block_size + 1"),),
            arithmetic=lambda i, p: f"{i['num_tokens']} // {i['block_size']} + 1 = {p.got}",
        ),
        Mistake(
            "the quotient is rounded to the nearest whole number",
            "One token in a block of 16 is 0.06 of it, and still needs all of it: round up.",
            edit=((_RETURN, "return round(num_tokens / block_size)"),),
        ),
        Mistake(
            "3 is added, as if every block had 4 slots",
            "Blocks have `block_size` slots. What must be added so that rounding down lands right?",
            edit=((_RETURN, "return (num_tokens + 3) // block_size"),),
        ),
        Mistake(
            "the division is done in floating point",
            "A float has 53 bits for its digits: beyond that, tokens get lost. `//` on whole "
            "numbers is exact at any size.",
            code="""
            import math


            def blocks_needed(num_tokens: int, block_size: int) -> int:
                if num_tokens < 0:
                    raise ValueError(f"num_tokens is {num_tokens}")
                if block_size < 1:
                    raise ValueError(f"block_size is {block_size}")
                return math.ceil(num_tokens / block_size)
            """,
        ),
        Mistake(
            "`/` is used, which gives a float",
            "Blocks are counted, so the result is an int: divide with `//`.",
            edit=((_RETURN, "return (num_tokens + block_size - 1) / block_size"),),
        ),
        Mistake(
            "even an empty request gets a block",
            "No token, no block: a request takes its first block with its first token.",
            edit=((_RETURN, "return max(1, (num_tokens + block_size - 1) // block_size)"),),
        ),
        Mistake(
            "slots are counted instead of blocks",
            "That is the room the blocks have. How many blocks is it?",
            edit=((_RETURN, "return -(-num_tokens // block_size) * block_size"),),
        ),
        Mistake(
            "the remainder is returned",
            "`%` says how full the last block is; how many blocks are there?",
            edit=((_RETURN, "return num_tokens % block_size"),),
        ),
        Mistake(
            "impossible sizes are taken as they come",
            "A negative number of tokens is a fault somewhere else. Say so here, where it is "
            "seen, before it becomes a negative number of blocks.",
            code="""
            def blocks_needed(num_tokens: int, block_size: int) -> int:
                return (num_tokens + block_size - 1) // block_size if block_size else 0
            """,
        ),
    ),
    alternatives=(
        Alternative("minus, twice", edit=((_RETURN, "return -(-num_tokens // block_size)"),)),
        Alternative(
            "divmod and a test",
            code="""
            def blocks_needed(num_tokens, block_size):
                if num_tokens < 0 or block_size < 1:
                    raise ValueError((num_tokens, block_size))
                full, rest = divmod(num_tokens, block_size)
                if rest:
                    full += 1
                return full
            """,
        ),
        Alternative(
            "from the last token's block",
            edit=((_RETURN, "return (num_tokens - 1) // block_size + 1 if num_tokens else 0"),),
        ),
    ),
    why="""
    `//` rounds down, so add just enough that every begun block is pushed over the next whole
    number and an exactly full one is not: `block_size - 1`. It stays in whole numbers, so it is
    exact for any size. What must be *taken* is the difference to what a request holds:
    `blocks_needed(num_tokens, block_size) - len(table)`.
    """,
    shown="one block is always added",
)

# ---- 4.3 ----------------------------------------------------------------------------------------

_SLOT = "slots.append(block_id * block_size + row)"


def _contiguous(inputs: Inputs, parting: Parting) -> str:
    place = parting.path[-1]
    if not isinstance(place, int):
        return ""
    first, size = inputs["blocks"][0], inputs["block_size"]
    position = inputs["positions"][place]
    logical = position // size
    return (
        f"{first} * {size} + {position} = {first * size + position}. The table says that logical "
        f"block {logical} lives in physical block {inputs['blocks'][logical]}"
    )


def _added(inputs: Inputs, parting: Parting) -> str:
    place = parting.path[-1]
    if not isinstance(place, int):
        return ""
    logical, row = divmod(inputs["positions"][place], inputs["block_size"])
    return f"{inputs['blocks'][logical]} + {row} = {parting.got}"


SLOTS = Answers(
    mistakes=(
        Mistake(
            "the second block is taken to lie right after the first",
            "Ask the table for each position's block.",
            edit=((_SLOT, "slots.append(int(block_ids[0]) * block_size + position)"),),
            arithmetic=_contiguous,
        ),
        Mistake(
            "the position itself is taken for the slot",
            "A position counts within the request, a slot counts over the whole pool. The table "
            "leads from one to the other.",
            edit=((_SLOT, "slots.append(logical_block * block_size + row)"),),
        ),
        Mistake(
            "the row is added to the block's number",
            "Block 7 begins at slot 7 * block_size, not at slot 7.",
            edit=((_SLOT, "slots.append(block_id + row)"),),
            arithmetic=_added,
        ),
        Mistake(
            "the block is returned, without the row in it",
            "Each block holds block_size tokens; the row says which of its slots is meant.",
            edit=((_SLOT, "slots.append(block_id)"),),
        ),
        Mistake(
            "every token goes to its block's first slot",
            "Tokens of one block would overwrite each other. Add the row.",
            edit=((_SLOT, "slots.append(block_id * block_size)"),),
        ),
        Mistake(
            "row and block have changed places in the sum",
            "The block is multiplied: it is `block_size` slots long. The row is added.",
            edit=((_SLOT, "slots.append(row * block_size + block_id)"),),
        ),
        Mistake(
            "the whole position is added, and not its row",
            "The block is found by the table already. Inside it only the row counts.",
            edit=((_SLOT, "slots.append(block_id * block_size + position)"),),
        ),
        Mistake(
            "block 0 is taken for none",
            "0 is a block like any other. A block that was given back is -1.",
            edit=(("if block_id < 0:", "if block_id <= 0:"),),
        ),
        Mistake(
            "a table is refused as soon as one of its blocks was given back",
            "Only a position *in* that block has no slot. The others have theirs.",
            edit=(
                (
                    "    slots = []\n",
                    "    slots = []\n    if min(block_ids) < 0:\n"
                    "        raise ValueError(block_ids)\n",
                ),
            ),
        ),
        Mistake(
            "row and logical block have changed places",
            "`position // block_size` says which block, `position % block_size` which row of it.",
            code="""
            def slot_mapping(block_ids, positions, block_size):
                slots = []
                for position in positions:
                    if not 0 <= position < len(block_ids) * block_size:
                        raise ValueError(f"position {position} is outside the table")
                    row, logical_block = divmod(position, block_size)
                    block_id = block_ids[logical_block % len(block_ids)]
                    if block_id < 0:
                        raise ValueError("given back")
                    slots.append(block_id * block_size + row)
                return slots
            """,
        ),
        Mistake(
            "positions are counted from 1",
            "The first token of a request has position 0, and goes into row 0 of its first block.",
            code="""
            def slot_mapping(block_ids, positions, block_size):
                slots = []
                for position in positions:
                    if not 0 <= position < len(block_ids) * block_size:
                        raise ValueError(f"position {position} is outside the table")
                    logical_block, row = divmod(position - 1, block_size)
                    if block_ids[logical_block] < 0:
                        raise ValueError("given back")
                    slots.append(block_ids[logical_block] * block_size + row)
                return slots
            """,
        ),
        Mistake(
            "the block's number is multiplied by the length of the table",
            "A block is block_size slots long, however many blocks the request has.",
            edit=((_SLOT, "slots.append(block_id * len(block_ids) + row)"),),
        ),
        Mistake(
            "a position past the table is left to Python",
            "Its IndexError says nothing of positions. And with a request's last block missing, "
            "the caller must grow the table first: say so.",
            edit=(("if not 0 <= position < num_slots:", "if position < 0:"),),
        ),
        Mistake(
            "a negative position reaches the list",
            "Python counts negative indices from the end: the token would go into the request's "
            "last block, in silence.",
            edit=(("if not 0 <= position < num_slots:", "if position >= num_slots:"),),
        ),
        Mistake(
            "a block that was given back is used all the same",
            "-1 times block_size is a negative slot, which most arrays take for one near their "
            "end: somebody else's.",
            edit=(("if block_id < 0:", "if block_id < -1:"),),
        ),
        Mistake(
            "the loop stops after the first token",
            "`return` inside the loop ends it. Collect the slots, return them after it.",
            edit=((_SLOT, _SLOT + "\n        break"),),
        ),
    ),
    alternatives=(
        Alternative(
            "checks first, then one expression",
            code="""
            def slot_mapping(block_ids, positions, block_size):
                positions = list(positions)
                for p in positions:
                    if p < 0 or p >= len(block_ids) * block_size or block_ids[p // block_size] < 0:
                        raise ValueError(f"position {p}")
                return [block_ids[p // block_size] * block_size + p % block_size
                        for p in positions]
            """,
        ),
        Alternative(
            "all slots of the table, written out",
            code="""
            def slot_mapping(block_ids, positions, block_size):
                all_slots = []
                for block in block_ids:
                    for row in range(block_size):
                        all_slots.append(block * block_size + row if block >= 0 else None)
                found = []
                for position in positions:
                    if position not in range(len(all_slots)) or all_slots[position] is None:
                        raise ValueError(position)
                    found.append(all_slots[position])
                return found
            """,
        ),
        Alternative(
            "with NumPy",
            code="""
            import numpy as np


            def slot_mapping(block_ids, positions, block_size):
                table, places = np.array(block_ids, dtype=np.int64), np.array(list(positions))
                if places.size == 0:
                    return []
                if places.min() < 0 or places.max() >= len(table) * block_size:
                    raise ValueError("outside the table")
                blocks = table[places // block_size]
                if (blocks < 0).any():
                    raise ValueError("given back")
                return (blocks * block_size + places % block_size).tolist()
            """,
        ),
    ),
    why="""
    Two numbers name a token's place in its request: the logical block and the row. The table
    changes the first into a physical block and leaves the second alone. Nothing else in paging is
    more than this line; the kernel of lesson 05 does the same arithmetic for reading.

    The refusals are there because Python would not refuse: a negative index reads from the end,
    and a slot of -1 is a real place in most arrays.
    """,
    shown="the second block is taken to lie right after the first",
)

# ---- 4.4 ----------------------------------------------------------------------------------------


def _answer(text: str) -> str:
    return f"failing_calls = {text}\n"


CALLS = Answers(
    mistakes=(
        Mistake(
            "a single refusal is taken for the fault",
            "Refusing is right: there is no room. What the refusal leaves behind is wrong, and it "
            "takes a second call to see it.",
            code=_answer('[("A", 17)]'),
        ),
        Mistake(
            "the pool is simply full",
            "The first call got what it asked for, so the second must be refused by any version.",
            code=_answer('[("A", 16), ("B", 1)]'),
        ),
        Mistake(
            "nothing is refused",
            "The fault sits in the way out that returns False. Make the first call take it: the "
            "pool has room for 16 tokens, 4 a block.",
            code=_answer('[("A", 9), ("B", 4)]'),
        ),
        Mistake(
            "the request that was refused asks again, for less",
            "It holds those blocks already, so it is content. Somebody else has to ask.",
            code=_answer('[("A", 17), ("A", 16)]'),
        ),
        Mistake(
            "the second request asks for too much as well",
            "That is refused by any version. Ask for what an empty pool surely has.",
            code=_answer('[("A", 17), ("B", 17)]'),
        ),
        Mistake(
            "two requests block each other, as in a real server",
            "It shows the fault, and it is how it was found: each holds a part and waits for the "
            "rest. But two calls are enough.",
            code=_answer('[("A", 9), ("B", 12), ("A", 16)]'),
        ),
    ),
    alternatives=(
        Alternative("just too much", code=_answer('[("A", 17), ("B", 4)]')),
        Alternative("far too much", code=_answer('[("first", 1000), ("second", 16)]')),
        Alternative("as lists", code=_answer('[["C", 20], ["A", 9]]')),
    ),
    why="""
    The first call cannot succeed and is refused, as it should be. But the loop had taken all four
    blocks by then, and they stay in A's table. The second call asks for one block of a pool that
    nobody uses, and there is none.

    In a server it takes longer to show: two requests each hold a part and wait for the rest, and
    nothing moves any more.
    """,
    shown="the pool is simply full",
)

# ---- 4.5 ----------------------------------------------------------------------------------------

_HEAD = '''
def grow_table(pool: BlockPool, table: list[int], num_tokens: int, block_size: int) -> bool:
    """Make room in one request's table for `num_tokens` tokens in all.

    Takes the blocks that are missing, as few as possible, and adds them to the table. A table never
    shrinks. False: there is no room, and nothing has changed.

    >>> pool, table = BlockPool(4, order=[2, 0, 1, 3]), []
    >>> grow_table(pool, table, 7, block_size=4), table
    (True, [2, 0])
    """
'''


def _growth(body: str) -> str:
    return clean(_HEAD) + "\n" + indent(clean(body), "    ") + "\n"


GROWTH = Answers(
    mistakes=(
        Mistake(
            "a refused request keeps the blocks it got before the pool ran out",
            "The promise is: False, and nothing has changed. Know how many are missing before you "
            "take the first.",
            code=_growth("""
            while len(table) < blocks_needed(num_tokens, block_size):
                if pool.num_free == 0:
                    return False
                table += pool.allocate(1)
            return True
            """),
        ),
        Mistake(
            "a new block is only taken when the remainder is 1",
            "That holds when tokens come one at a time and a block has more than one slot. A "
            "prompt brings many at once: compare the two counts instead.",
            code=_growth("""
            if num_tokens % block_size == 1:
                if pool.num_free == 0:
                    return False
                table += pool.allocate(1)
            return True
            """),
        ),
        Mistake(
            "all that is wanted is compared with what is free",
            "The table holds some of it already. Compare what is missing.",
            code=_growth("""
            num_wanted = blocks_needed(num_tokens, block_size)
            if num_wanted > pool.num_free:
                return False
            while len(table) < num_wanted:
                table += pool.allocate(1)
            return True
            """),
        ),
        Mistake(
            "a block is taken for each token",
            "A block has room for `block_size` tokens: `blocks_needed` counts blocks.",
            code=_growth("""
            num_missing = num_tokens - len(table)
            if num_missing > pool.num_free:
                return False
            if num_missing > 0:
                table += pool.allocate(num_missing)
            return True
            """),
        ),
        Mistake(
            "blocks that are given back again stay in the table",
            "Their next owner writes into them, and this request reads that. Take them out of the "
            "table, too.",
            code=_growth("""
            before = len(table)
            while len(table) < blocks_needed(num_tokens, block_size):
                if pool.num_free == 0:
                    pool.free(table[before:])
                    return False
                table += pool.allocate(1)
            return True
            """),
        ),
        Mistake(
            "the table forgets blocks that it never gave back",
            "Nobody knows them any more, and the pool has lost them. Free them, too.",
            code=_growth("""
            before = len(table)
            while len(table) < blocks_needed(num_tokens, block_size):
                if pool.num_free == 0:
                    del table[before:]
                    return False
                table += pool.allocate(1)
            return True
            """),
        ),
        Mistake(
            "all the blocks are taken again at every call",
            "`blocks_needed` counts what is wanted in all. The table holds some of it: take the "
            "difference.",
            code=_growth("""
            num_wanted = blocks_needed(num_tokens, block_size)
            if num_wanted > pool.num_free:
                return False
            table += pool.allocate(num_wanted)
            return True
            """),
        ),
        Mistake(
            "room for the next token is taken too",
            "The next token takes its block when it comes. At the boundary, a block taken one "
            "token early is a block that somebody else waits for.",
            code=_growth("""
            num_missing = blocks_needed(num_tokens + 1, block_size) - len(table)
            if num_missing > pool.num_free:
                return False
            if num_missing > 0:
                table += pool.allocate(num_missing)
            return True
            """),
        ),
        Mistake(
            "the number of missing blocks may be negative",
            "A table that is longer than needed has none missing, not minus one: take blocks only "
            "when the difference is above 0.",
            code=_growth("""
            num_missing = blocks_needed(num_tokens, block_size) - len(table)
            if num_missing > pool.num_free:
                return False
            table += pool.allocate(num_missing)
            return True
            """),
        ),
        Mistake(
            "the table is rebound and not changed",
            "`table = table + ...` makes a new list that only this function sees. `+=` and "
            "`extend` change the caller's.",
            code=_growth("""
            num_missing = blocks_needed(num_tokens, block_size) - len(table)
            if num_missing > pool.num_free:
                return False
            if num_missing > 0:
                table = table + pool.allocate(num_missing)
            return True
            """),
        ),
        Mistake(
            "the whole table is given back and taken anew",
            "The request's keys and values are in the old blocks. A table grows at its end; its "
            "entries stay.",
            code=_growth("""
            num_missing = blocks_needed(num_tokens, block_size) - len(table)
            if num_missing > pool.num_free:
                return False
            if num_missing > 0:
                wanted = len(table) + num_missing
                pool.free(table[::-1])
                table[:] = pool.allocate(wanted)[::-1]
            return True
            """),
        ),
        Mistake(
            "a refusal gives back all that the request had",
            "Undo what this call did, not what the calls before it did.",
            code=_growth("""
            while len(table) < blocks_needed(num_tokens, block_size):
                if pool.num_free == 0:
                    pool.free(table)
                    table.clear()
                    return False
                table += pool.allocate(1)
            return True
            """),
        ),
        Mistake(
            "the pool's error is passed on",
            "The docstring promises False. Whoever calls this has no `try`.",
            code=_growth("""
            num_missing = blocks_needed(num_tokens, block_size) - len(table)
            if num_missing > 0:
                table += pool.allocate(num_missing)
            return True
            """),
        ),
        Mistake(
            "the way out that succeeds returns nothing",
            "A function without `return` gives None, which counts as False where it is asked.",
            code=_growth("""
            num_missing = blocks_needed(num_tokens, block_size) - len(table)
            if num_missing > pool.num_free:
                return False
            if num_missing > 0:
                table += pool.allocate(num_missing)
            """),
        ),
    ),
    alternatives=(
        Alternative(
            "the pool refuses all of it at once",
            code=_growth("""
            num_missing = blocks_needed(num_tokens, block_size) - len(table)
            try:
                table.extend(pool.allocate(max(0, num_missing)))
            except OutOfBlocks:
                return False
            return True
            """),
        ),
        Alternative(
            "one by one, and undone",
            code=_growth("""
            taken = []
            while len(table) + len(taken) < blocks_needed(num_tokens, block_size):
                if pool.num_free == 0:
                    pool.free(taken)
                    return False
                taken += pool.allocate(1)
            table += taken
            return True
            """),
        ),
        Alternative(
            "as one condition",
            code=_growth("""
            need = max(blocks_needed(num_tokens, block_size) - len(table), 0)
            fits = need <= pool.num_free
            if fits:
                for block in pool.allocate(need):
                    table.append(block)
            return fits
            """),
        ),
    ),
    why="""
    Two named counts, compared once: what is wanted in all and what the table holds. Their
    difference is known before anything is taken, so the refusal has nothing to undo. The same
    comparison is right for a prompt of many tokens, for one token at a time and for a block size
    of 1: there is no remainder to think about.
    """,
    shown="a new block is only taken when the remainder is 1",
    equivalent={
        "grow_table: if num_missing > 0: -> if num_missing >= 0:": "allocate(0) gives no block",
        "grow_table: if num_missing > 0: -> if num_missing > -1:": "allocate(0) gives no block",
    },
)

# ---- 4.6 ----------------------------------------------------------------------------------------

_FAULT_HEAD = """
def find_fault(pool, tables):
    free = pool.free_blocks
    owners = Counter(block_id for table in tables.values() for block_id in table)
"""
_LENGTH = """
if len(free) != pool.num_free:
    return f"{len(free)} blocks are free, and num_free is {pool.num_free}"
"""
_TWICE = """
if len(set(free)) != len(free):
    return f"a block is in the free list twice: {free}"
"""
_EXISTS = """
for block_id in [*free, *owners]:
    if not 0 <= block_id < pool.num_blocks:
        return f"block {block_id} does not exist"
"""
_COUNTS = """
for block_id in range(pool.num_blocks):
    if owners[block_id] != pool.ref_count(block_id):
        return f"block {block_id} is counted {pool.ref_count(block_id)} times"
"""
_FREE_IFF = """
for block_id in range(pool.num_blocks):
    if (pool.ref_count(block_id) == 0) != (block_id in free):
        return f"block {block_id}: free or not?"
"""


_REPEATED = """
for name, table in tables.items():
    if len(set(table)) != len(table):
        return f"a block is in the table of {name} twice"
"""


def _finder(*parts: str, head: str = _FAULT_HEAD, repeated: str = _REPEATED) -> str:
    body = "\n".join(clean(part) for part in (*parts, repeated, "return None"))
    return clean(head) + "\n" + indent(body, "    ") + "\n"


_ONE_TABLE = """
for block_id, count in owners.items():
    if count > 1:
        return f"block {block_id} is in two tables"
"""
FIND_FAULT = Answers(
    mistakes=(
        Mistake(
            "two requests with the same block are taken for a fault",
            "Sharing is what the counts are for. A block in two tables is right when it counts two "
            "owners.",
            code=_finder(_ONE_TABLE, _LENGTH, _TWICE, _EXISTS, _COUNTS, _FREE_IFF),
        ),
        Mistake(
            "nothing is ever found",
            "A right pool passes, and a broken one as well. Begin with the walk over all blocks.",
            code=_finder(repeated=""),
        ),
        Mistake(
            "a block may stand in one table twice",
            "Two owners are two requests. Where one table names a block twice, the tokens of two "
            "logical blocks go to the same slots, and the later ones write over the earlier.",
            code=_finder(_LENGTH, _TWICE, _EXISTS, _COUNTS, _FREE_IFF, repeated=""),
        ),
        Mistake(
            "there is a sentence for a right pool, too",
            "None says that nothing is wrong. Whoever calls this asks `is None`.",
            code=_finder(
                _LENGTH, _TWICE, _EXISTS, _COUNTS, _FREE_IFF, _REPEATED + '\nreturn "all is well"'
            ),
        ),
        Mistake(
            "the free list is not looked at",
            "A block can be right in the counts and missing there, or stand there twice, or be "
            "free too early.",
            code=_finder(_COUNTS),
        ),
        Mistake(
            "nobody looks for ids outside the pool",
            "The walk over all blocks never meets them. Look at the ids in the tables as well.",
            code=_finder(_LENGTH, _TWICE, _COUNTS, _FREE_IFF),
        ),
        Mistake(
            "counts are not held against the tables",
            "How many owners a block has stands in the tables. Pool and counts can agree with "
            "each other and be wrong about that.",
            code=_finder(_LENGTH, _TWICE, _EXISTS, _FREE_IFF),
        ),
        Mistake(
            "only the numbers are added up",
            "Free and used blocks may add up to the pool while the wrong ones are in each: look at "
            "every block.",
            code=_finder(
                _LENGTH,
                """
                used = len([b for b in range(pool.num_blocks) if pool.ref_count(b) > 0])
                if used + pool.num_free != pool.num_blocks:
                    return "free and used blocks are not the pool"
                """,
            ),
        ),
        Mistake(
            "the free list is only looked at as a set",
            "A set holds each block once, whatever the list does. Freed twice, a block stands in "
            "it twice, and two requests will get it. Compare the two lengths.",
            code=_finder(
                _EXISTS,
                _COUNTS,
                _FREE_IFF,
                """
                if len(set(free)) > pool.num_free:
                    return "num_free is too small"
                """,
            ),
        ),
        Mistake(
            "nobody asks whether a block is in the free list twice",
            "Freed twice, it stands there twice, and two requests will get it. `in` does not see "
            "that: compare the length of the list with that of its set.",
            code=_finder(_LENGTH, _EXISTS, _COUNTS, _FREE_IFF),
        ),
        Mistake(
            "blocks in the free list are not asked whether they have an owner",
            "A block that is free too early will be given to a second request.",
            code=_finder(_LENGTH, _TWICE, _EXISTS, _COUNTS, _FREE_IFF.replace(") != (", ") > (")),
        ),
        Mistake(
            "blocks without an owner are not looked for in the free list",
            "In no table and not free: such a block is lost for ever.",
            code=_finder(_LENGTH, _TWICE, _EXISTS, _COUNTS, _FREE_IFF.replace(") != (", ") < (")),
        ),
        Mistake(
            "`num_free` is believed",
            "It is a counter of its own in some pools, and it drifts. Count the free list.",
            code=_finder(_TWICE, _EXISTS, _COUNTS, _FREE_IFF),
        ),
        Mistake(
            "only blocks that stand in a table are looked at",
            "What nobody owns can be wrong too: leaked, or still counted after its request left.",
            code=_finder(
                _LENGTH,
                _TWICE,
                _EXISTS,
                """
                for block_id in owners:
                    if owners[block_id] != pool.ref_count(block_id) or block_id in free:
                        return f"block {block_id} is wrong"
                """,
            ),
        ),
        Mistake(
            "the count is only asked whether it is 0",
            "A count of 2 for one owner is a block that is never freed; a count of 1 for two is "
            "freed too early. It must be equal to the number of owners.",
            code=_finder(
                _LENGTH,
                _TWICE,
                _EXISTS,
                """
                for block_id in range(pool.num_blocks):
                    if (owners[block_id] > 0) != (pool.ref_count(block_id) > 0):
                        return f"block {block_id} is wrong"
                """,
                _FREE_IFF,
            ),
        ),
        Mistake(
            "the tables are not looked at",
            "Pool and counts can agree with each other and be wrong about the requests.",
            code=_finder(_LENGTH, _TWICE, _FREE_IFF),
        ),
        Mistake(
            "the free list and the counts are not held against each other",
            "A block is in the free list exactly when it counts no owner: two ways to be wrong, "
            "leaked and freed too early.",
            code=_finder(_LENGTH, _TWICE, _EXISTS, _COUNTS),
        ),
        Mistake(
            "a block that does not exist stops the search with an error",
            "`ref_count` refuses an id outside the pool. Look whether ids exist before you ask.",
            code=_finder(
                _LENGTH,
                _TWICE,
                """
                for block_id in [*free, *owners]:
                    if owners[block_id] != pool.ref_count(block_id):
                        return f"block {block_id} is wrong"
                """,
                _COUNTS,
                _FREE_IFF,
            ),
        ),
        Mistake(
            "a pool with no free block is taken for broken",
            "Full is the best that a pool can be. `if not free` asks for something else.",
            code=_finder(
                """
                if not free:
                    return "there is no free block"
                """,
                _LENGTH,
                _TWICE,
                _EXISTS,
                _COUNTS,
                _FREE_IFF,
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "one thing after another", code=_finder(_TWICE, _LENGTH, _EXISTS, _COUNTS, _FREE_IFF)
        ),
        Alternative(
            "what the pool should be, built and compared",
            code="""
            def find_fault(pool, tables):
                counts = [0] * pool.num_blocks
                for name, table in tables.items():
                    if sorted(set(table)) != sorted(table):
                        return f"{name} names a block twice"
                    for block in table:
                        if block < 0 or block >= pool.num_blocks:
                            return f"{name} names block {block}"
                        counts[block] += 1
                expected_free = [b for b in range(pool.num_blocks) if counts[b] == 0]
                if sorted(pool.free_blocks) != expected_free:
                    return f"free should be {expected_free}"
                if pool.num_free != len(expected_free):
                    return "num_free is off"
                if counts != [pool.ref_count(b) for b in range(pool.num_blocks)]:
                    return "counts are off"
            """,
        ),
        Alternative(
            "all faults, joined",
            code="""
            def find_fault(pool, tables):
                problems = []
                everything = [b for table in tables.values() for b in table]
                inside = range(pool.num_blocks)
                if any(b not in inside for b in everything + pool.free_blocks):
                    problems.append("an id outside the pool")
                if pool.num_free != len(pool.free_blocks):
                    problems.append("num_free")
                if any(table.count(b) > 1 for table in tables.values() for b in table):
                    problems.append("twice in a table")
                for b in inside:
                    if pool.free_blocks.count(b) != (everything.count(b) == 0):
                        problems.append(f"{b} in the free list")
                    if pool.ref_count(b) != everything.count(b):
                        problems.append(f"count of {b}")
                return ", ".join(problems) or None
            """,
        ),
    ),
    why="""
    One sentence says it all: *a block is in the free list, once, exactly when no table names it,
    and its count is the number of places where a table does.* The walk over all blocks checks it
    from both sides; what a walk over real blocks cannot see is left to the checks before it: a
    counter that drifted, a block listed twice, an id that does not exist, a table that names a
    block twice.

    The engine runs the same checks after every step of its tests (`course/engine/invariants.py`).
    """,
    shown="two requests with the same block are taken for a fault",
    equivalent={
        "find_fault: return None -> (dropped)": "a function without a return gives None",
    },
)

# ---- 4.7 ----------------------------------------------------------------------------------------


def _guess(one: float, four: float, sixteen: float, many: float) -> str:
    return f"predicted_empty_slots = {{1: {one}, 4: {four}, 16: {sixteen}, 64: {many}}}\n"


PREDICTION = Answers(
    mistakes=(
        Mistake(
            "half a block is taken to be empty",
            "Nearly. A last block is never all empty, so it is the mean of 0 to block size - 1. "
            "With small blocks the difference shows.",
            code=_guess(0.5, 2, 8, 32),
        ),
        Mistake(
            "every request is taken to be as unlucky as can be",
            "block size - 1 is the most that can be empty; lengths fall on all remainders.",
            code=_guess(0, 3, 15, 63),
        ),
        Mistake(
            "blocks are taken to waste nothing",
            "Between blocks nothing is lost any more. In the last block of each request it still "
            "is.",
            code=_guess(0, 0, 0, 0),
        ),
        Mistake(
            "a whole block is taken to be empty",
            "A block is taken when its first token comes, so at least one slot of it is full.",
            code=_guess(1, 4, 16, 64),
        ),
        Mistake(
            "the share of the block is given and not the slots",
            "Asked is the number of empty slots. Multiply by the block size.",
            code=_guess(0, 0.375, 0.469, 0.492),
        ),
        Mistake(
            "the full slots of the last block are counted",
            "Those are the tokens in it. The empty ones are the rest.",
            code=_guess(1, 2.5, 8.5, 32.5),
        ),
    ),
    alternatives=(
        Alternative(
            "in fractions",
            code="predicted_empty_slots = {n: (n - 1) / 2 for n in (1, 4, 16, 64)}\n",
        ),
        Alternative("rounded", code=_guess(0, 1.5, 7.5, 32)),
        Alternative("a careful estimate", code=_guess(0.1, 1.6, 7, 30)),
    ),
    why="""
    The last block holds 1 to `block_size` tokens, all about equally often, so 0 to
    `block_size - 1` slots are empty: `(block_size - 1) / 2` in the mean, for any mix of lengths
    that does not favour a remainder. A slab wasted thousands of slots a request; this is what is
    left. Smaller blocks waste less and make longer tables, and lesson 05 pays for those.
    """,
    shown="half a block is taken to be empty",
)

ANSWERS = {
    "BlockPool": POOL,
    "blocks_needed": NEEDED,
    "slot_mapping": SLOTS,
    "failing_calls": CALLS,
    "grow_table": GROWTH,
    "find_fault": FIND_FAULT,
    "predicted_empty_slots": PREDICTION,
}
