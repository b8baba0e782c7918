"""Lab 07: right answers that are not in the engine, wrong ones, other right ones, and why."""

from __future__ import annotations

from textwrap import indent

from course.engine.kv_blocks import KVBlocks
from course.engine.request import Request
from course.practice.exercise import Alternative, Answers, Mistake
from course.practice.source import clean

# ---- Answers that exist only for this lab -------------------------------------------------------

predicted_saved = {"azure": 63.5, "sharegpt": 23, "alpaca": 11.5}

failing_steps = [("A", 2), ("stranger", 1)]


def publish_blocks(kv: KVBlocks, request: Request) -> None:
    """Make the request's full blocks findable, after a step has computed some of its tokens.

    The request has its table, kv.tables[request.request_id], and may have more blocks in it than it
    has used. `request.block_hashes(kv.block_size)` gives the hashes of all its full blocks.
    `kv.prefix_cache.publish(block_id, block_hash)` makes one block findable; doing it again changes
    nothing.

    A has 7 tokens and the table [7, 1], blocks of 4: its block 7 can be found when 4 of its tokens
    are computed, and not before. Block 1 is not full.
    """
    num_written = request.num_computed_tokens // kv.block_size
    table = kv.tables[request.request_id]
    block_hashes = request.block_hashes(kv.block_size)
    for logical_block in range(num_written):
        kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])


# ---- 7.1 ----------------------------------------------------------------------------------------

_GROW_BODY = """\
        num_blocks_wanted = blocks_needed(num_tokens, self.block_size)
        num_blocks_held = len(table)
        first_written = request.num_computed_tokens // self.block_size
        shared = [
            logical_block
            for logical_block in range(first_written, min(num_blocks_wanted, num_blocks_held))
            if self.pool.ref_count(table[logical_block]) > 1
        ]
        num_new = max(0, num_blocks_wanted - num_blocks_held)
        if num_new + len(shared) > self.num_free:
            return None
        copies = []
        for logical_block in shared:
            source, (destination,) = table[logical_block], self._allocate(1)
            table[logical_block] = destination
            self._free([source])
            copies.append((source, destination))
        if num_new:
            table += self._allocate(num_new)
        return copies
"""
_FORK_BODY = """\
        table = self.tables[parent.request_id]
        self.pool.share([block_id for block_id in table if block_id >= 0])
        self.tables[child.request_id] = list(table)
        self.requests[child.request_id] = child
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens
        return []
"""
_RELEASE_BODY = """\
        del self.requests[request.request_id]
        table = self.tables.pop(request.request_id)
        self._free([block_id for block_id in reversed(table) if block_id >= 0])"""


def _body(text: str) -> str:
    return indent(clean(text), " " * 8) + "\n"


MANAGER = Answers(
    mistakes=(
        Mistake(
            "the child gets its parent's own list as its table",
            "One list under two names: what one request adds or replaces, the other has too. Give "
            "the child a list of its own.",
            edit=(("= list(table)", "= table"),),
        ),
        Mistake(
            "a fork does not count the new owner",
            "The first of the two to leave then frees the blocks that the other still reads, and "
            "nobody sees that a block is shared. `self.pool.share` counts.",
            edit=(
                (
                    "        self.pool.share([block_id for block_id in table if block_id >= 0])\n",
                    "",
                ),
            ),
        ),
        Mistake(
            "a fork copies every block",
            "That is what tables were to save. Full blocks are only read; and the last one is "
            "copied by whoever writes first.",
            edit=(
                (
                    _FORK_BODY,
                    _body("""
                    table = self.tables[parent.request_id]
                    if len(table) > self.num_free:
                        return None
                    own = self._allocate(len(table))
                    self.tables[child.request_id] = own
                    self.requests[child.request_id] = child
                    child.num_computed_tokens = parent.num_computed_tokens
                    child.num_cached_tokens = parent.num_cached_tokens
                    return list(zip(table, own))
                    """),
                ),
            ),
        ),
        Mistake(
            "the half-filled block is copied at the fork already",
            "It may never be written by two: the parent can end first. `grow` copies when "
            "somebody does write, so a fork takes no block.",
            edit=(
                (
                    _FORK_BODY,
                    _body("""
                    table = list(self.tables[parent.request_id])
                    copies = []
                    full = parent.num_computed_tokens // self.block_size
                    self.pool.share([block_id for block_id in table[:full] if block_id >= 0])
                    for logical_block in range(full, len(table)):
                        (own,) = self._allocate(1)
                        copies.append((table[logical_block], own))
                        table[logical_block] = own
                    self.tables[child.request_id] = table
                    self.requests[child.request_id] = child
                    child.num_computed_tokens = parent.num_computed_tokens
                    child.num_cached_tokens = parent.num_cached_tokens
                    return copies
                    """),
                ),
            ),
        ),
        Mistake(
            "the child begins with nothing computed",
            "The blocks that it shares hold its keys and values already. Take the parent's count "
            "along, or it will write all of them again.",
            edit=(("        child.num_computed_tokens = parent.num_computed_tokens\n", ""),),
        ),
        Mistake(
            "the child's two counts stay as they were",
            "The blocks that it shares hold its keys and values already, and some of them may have "
            "come from the cache. Take both counts along from the parent.",
            edit=(
                ("        child.num_computed_tokens = parent.num_computed_tokens\n", ""),
                ("        child.num_cached_tokens = parent.num_cached_tokens\n", ""),
            ),
        ),
        Mistake(
            "an entry of -1 is shared like a block",
            "It stands where a block was given back. There is nothing to count: leave it out.",
            edit=(
                (
                    "self.pool.share([block_id for block_id in table if block_id >= 0])",
                    "self.pool.share(table)",
                ),
            ),
        ),
        Mistake(
            "a child that has a table already gets another",
            "Its old blocks then have an owner whom nobody knows: they are never freed. Refuse, "
            "before anything is counted.",
            edit=(
                (
                    "        if child.request_id in self.tables:\n            raise ValueError("
                    'f"request {child.request_id!r} is admitted already")\n',
                    "",
                ),
            ),
        ),
        Mistake(
            "the blocks are shared before the child is looked at",
            "When the child is refused, every block has counted one owner too many. Refuse first.",
            edit=(
                (
                    "        if child.request_id in self.tables:\n            raise ValueError("
                    'f"request {child.request_id!r} is admitted already")\n' + _FORK_BODY,
                    _body("""
                    table = self.tables[parent.request_id]
                    self.pool.share([block_id for block_id in table if block_id >= 0])
                    if child.request_id in self.tables:
                        raise ValueError("admitted already")
                    self.tables[child.request_id] = list(table)
                    self.requests[child.request_id] = child
                    child.num_computed_tokens = parent.num_computed_tokens
                    child.num_cached_tokens = parent.num_cached_tokens
                    return []
                    """),
                ),
            ),
        ),
        Mistake(
            "the child is not put on record",
            "`self.requests` has a request for each table. Without it nobody can say whose table "
            "that is.",
            edit=(("        self.requests[child.request_id] = child\n", ""),),
        ),
        Mistake(
            "the last owner copies as well",
            "A block with one owner is written by that owner alone. More than one: `> 1`.",
            edit=(
                (
                    "self.pool.ref_count(table[logical_block]) > 1",
                    "self.pool.ref_count(table[logical_block]) >= 1",
                ),
            ),
        ),
        Mistake(
            "every shared block is copied, those too that are only read",
            "Tokens that are computed are not written again. Begin with the block of the first "
            "token that is not: `num_computed_tokens // block_size`.",
            edit=(
                (
                    "range(first_written, min(num_blocks_wanted, num_blocks_held))",
                    "range(min(num_blocks_wanted, num_blocks_held))",
                ),
            ),
        ),
        Mistake(
            "writing is taken to begin at the last token that is computed",
            "That one is stored. With a block just full it lies in a block that nobody writes; the "
            "next token goes into the block after it.",
            edit=(
                (
                    "first_written = request.num_computed_tokens // self.block_size",
                    "first_written = max(0, request.num_computed_tokens - 1) // self.block_size",
                ),
            ),
        ),
        Mistake(
            "only the block of the last token is looked at",
            "A step can write many tokens. Every block from the first of them on will be written.",
            edit=(
                (
                    "first_written = request.num_computed_tokens // self.block_size",
                    "first_written = (num_tokens - 1) // self.block_size",
                ),
            ),
        ),
        Mistake(
            "only the first of the shared blocks is copied",
            "A step that writes many tokens can reach several. All of them are read by others.",
            edit=(
                (
                    "        num_new = max(0,",
                    "        shared = shared[:1]\n        num_new = max(0,",
                ),
            ),
        ),
        Mistake(
            "shared blocks are written as they are",
            "The other owners then read tokens that are not theirs. Before a write: more than one "
            "owner? Then take a copy.",
            edit=(("        num_new = max(0,", "        shared = []\n        num_new = max(0,"),),
        ),
        Mistake(
            "the copies are forgotten when room is looked for",
            "Each copy takes a block, as a new one does. Compare their sum with the free blocks.",
            edit=(("if num_new + len(shared) > self.num_free:", "if num_new > self.num_free:"),),
        ),
        Mistake(
            "nobody looks whether there is room",
            "The pool then refuses, perhaps in the middle. `grow` says None, and nothing has "
            "changed: count the new blocks and the copies, and compare with `self.num_free`.",
            edit=(
                (
                    "        if num_new + len(shared) > self.num_free:\n            return None\n",
                    "",
                ),
            ),
        ),
        Mistake(
            "the last free block is never given away",
            "As many as are free can be taken. Only more than that is too many: `>`, not `>=`.",
            edit=(
                ("num_new + len(shared) > self.num_free", "num_new + len(shared) >= self.num_free"),
            ),
        ),
        Mistake(
            "a table that is long enough already gets fewer than no blocks",
            "A table may be longer than these tokens need, and never shrinks: `max(0, ...)` blocks "
            "are new.",
            edit=(
                (
                    "max(0, num_blocks_wanted - num_blocks_held)",
                    "num_blocks_wanted - num_blocks_held",
                ),
            ),
        ),
        Mistake(
            "blocks behind the wanted tokens are copied as well",
            "A table may be longer than these tokens need. What lies behind them is not written in "
            "this step: stop at the blocks that are wanted.",
            edit=(("min(num_blocks_wanted, num_blocks_held))", "num_blocks_held)"),),
        ),
        Mistake(
            "blocks are taken until none is left, and the refusal comes only then",
            "What was taken by then stays in the table, and copies are lost. Count first, then "
            "take.",
            edit=(
                (
                    _GROW_BODY,
                    _body("""
                    copies = []
                    first_written = request.num_computed_tokens // self.block_size
                    for logical_block in range(first_written, blocks_needed(num_tokens,
                                                                            self.block_size)):
                        if logical_block < len(table):
                            source = table[logical_block]
                            if self.pool.ref_count(source) > 1:
                                if self.num_free == 0:
                                    return None
                                (own,) = self._allocate(1)
                                table[logical_block] = own
                                self._free([source])
                                copies.append((source, own))
                        elif self.num_free == 0:
                            return None
                        else:
                            table += self._allocate(1)
                    return copies
                    """),
                ),
            ),
        ),
        Mistake(
            "the old block keeps the owner that left it",
            "It is in one table less now. Give it back once, or it is never free again.",
            edit=(("            self._free([source])\n", ""),),
        ),
        Mistake(
            "the copy is told the wrong way round",
            "(source, destination): from the shared block into the fresh one. The other way, "
            "everybody's block is filled with what the fresh one held.",
            edit=(
                ("copies.append((source, destination))", "copies.append((destination, source))"),
            ),
        ),
        Mistake(
            "the fresh block does not get into the table",
            "The request goes on writing into the shared block, and the fresh one belongs to "
            "nobody who uses it.",
            edit=(("            table[logical_block] = destination\n", ""),),
        ),
        Mistake(
            "the copies are not returned",
            "The engine makes the copies that `grow` tells it of. Without them the fresh block "
            "lacks the tokens before the new one.",
            edit=(("        return copies\n", "        return []\n"),),
        ),
        Mistake(
            "blocks are taken from the pool behind the cache's back",
            "A free block may still be known for what it held. `self._allocate` takes it and lets "
            "the cache forget it; else a stranger finds your tokens under that hash.",
            edit=(
                (
                    "table[logical_block], self._allocate(1)",
                    "table[logical_block], self.pool.allocate(1)",
                ),
                ("table += self._allocate(num_new)", "table += self.pool.allocate(num_new)"),
            ),
        ),
        Mistake(
            "all blocks that are wanted are added to those that are there",
            "What must be taken is the difference: blocks wanted less blocks held.",
            edit=(
                (
                    "num_new = max(0, num_blocks_wanted - num_blocks_held)",
                    "num_new = num_blocks_wanted",
                ),
            ),
        ),
        Mistake(
            "`num_tokens` is taken for the tokens that are added",
            "It counts all tokens of the request, those in the table included.",
            edit=(
                (
                    "blocks_needed(num_tokens, self.block_size)\n        num_blocks_held",
                    "blocks_needed(\n            request.num_computed_tokens + num_tokens, "
                    "self.block_size\n        )\n        num_blocks_held",
                ),
            ),
        ),
        Mistake(
            "blocks are given back from the first of the table on",
            "The first block then is the oldest in the cache and goes first, and without it no "
            "later one can be found. Give the last of the table back first.",
            edit=(("for block_id in reversed(table) if", "for block_id in table if"),),
        ),
        Mistake(
            "blocks are given to the pool without saying that the cache knows them",
            "They are then reused at once, and what they hold is lost, while empty blocks wait. "
            "`self._free` tells the pool which to keep till last.",
            edit=(
                (
                    "self._free([block_id for block_id in reversed(table) if block_id >= 0])",
                    "self.pool.free([block_id for block_id in reversed(table) if block_id >= 0])",
                ),
            ),
        ),
        Mistake(
            "an entry of -1 is given back like a block",
            "It stands where a block was given back before. There is nothing to free: leave it "
            "out.",
            edit=(
                (
                    "[block_id for block_id in reversed(table) if block_id >= 0]",
                    "list(reversed(table))",
                ),
            ),
        ),
        Mistake(
            "a request without a table ends in a KeyError",
            "That is how a dict says it. Whoever releases twice should read whose table is "
            "missing: look first, and raise ValueError.",
            edit=(
                (
                    "        if request.request_id not in self.tables:\n"
                    "            raise ValueError("
                    'f"request {request.request_id!r} holds no blocks: released already?")\n',
                    "",
                ),
            ),
        ),
        Mistake(
            "a second release is passed over in silence",
            "It is a fault of the caller, and the next time it is somebody else's table. Say so.",
            edit=(
                (
                    "            raise ValueError("
                    'f"request {request.request_id!r} holds no blocks: released already?")\n',
                    "            return\n",
                ),
            ),
        ),
        Mistake(
            "the request that left stays on record",
            "Table and record go together: remove both.",
            edit=(("        del self.requests[request.request_id]\n", ""),),
        ),
    ),
    alternatives=(
        Alternative(
            "one pass that plans, one that acts",
            edit=(
                (
                    _GROW_BODY,
                    _body("""
                    wanted = blocks_needed(num_tokens, self.block_size)
                    begin = request.num_computed_tokens // self.block_size
                    plan = []
                    for place in range(begin, wanted):
                        if place >= len(table):
                            plan.append((place, None))
                        elif self.pool.ref_count(table[place]) != 1:
                            plan.append((place, table[place]))
                    if len(plan) > self.num_free:
                        return None
                    copies = []
                    for (place, old), fresh in zip(plan, self._allocate(len(plan))):
                        if old is None:
                            table.append(fresh)
                        else:
                            table[place] = fresh
                            copies.append((old, fresh))
                    self._free([old for old, _ in copies])
                    return copies
                    """),
                ),
            ),
        ),
        Alternative(
            "new blocks first, copies from the last to the first",
            edit=(
                (
                    _GROW_BODY,
                    _body("""
                    wanted = blocks_needed(num_tokens, self.block_size)
                    held = len(table)
                    to_copy = []
                    logical = min(held, wanted) - 1
                    while logical >= request.num_computed_tokens // self.block_size:
                        if self.pool.ref_count(table[logical]) >= 2:
                            to_copy.append(logical)
                        logical -= 1
                    missing = wanted - held if wanted > held else 0
                    if self.num_free < missing + len(to_copy):
                        return None
                    table.extend(self._allocate(missing))
                    pairs = []
                    for logical in to_copy:
                        pairs.append((table[logical], self._allocate(1)[0]))
                        table[logical] = pairs[-1][1]
                        self.pool.free([pairs[-1][0]])
                    return pairs
                    """),
                ),
            ),
        ),
        Alternative(
            "the pool's refusal is caught, and all is made undone",
            edit=(
                (
                    _GROW_BODY,
                    _body("""
                    begin = request.num_computed_tokens // self.block_size
                    end = blocks_needed(num_tokens, self.block_size)
                    shared = [i for i in range(begin, min(end, len(table)))
                              if self.pool.ref_count(table[i]) > 1]
                    try:
                        fresh = self._allocate(len(shared) + max(0, end - len(table)))
                    except RuntimeError:
                        return None
                    old = [table[i] for i in shared]
                    for i in shared:
                        table[i] = fresh.pop()
                    table += fresh
                    self._free(old)
                    return [(o, table[i]) for o, i in zip(old, shared)]
                    """),
                ),
            ),
        ),
        Alternative(
            "fork and release, written differently",
            edit=(
                (
                    _FORK_BODY,
                    _body("""
                    self.tables[child.request_id] = self.tables[parent.request_id][:]
                    self.requests[child.request_id] = child
                    for block_id in self.tables[child.request_id]:
                        if block_id != -1:
                            self.pool.share([block_id])
                    child.num_cached_tokens = parent.num_cached_tokens
                    child.num_computed_tokens = parent.num_computed_tokens
                    return []
                    """),
                ),
                (
                    _RELEASE_BODY,
                    _body("""
                    table = self.tables[request.request_id]
                    for block_id in table[::-1]:
                        if block_id >= 0:
                            self._free([block_id])
                    del self.tables[request.request_id], self.requests[request.request_id]
                    """),
                ),
            ),
        ),
    ),
    why="""
    A fork is a list and a count, nothing else, so it costs the same for a prompt of ten tokens and
    of ten thousand. All that is hard is put off to the moment of writing, and there it is one
    question for each block that will be written: am I its only owner? At most one block of a forked
    request is both shared and begun, so that is what a sample costs; `grow` asks it of every block,
    because a caller may reserve room ahead.

    What is wanted is counted in full, new blocks and copies, before the first is taken: a refusal
    has nothing to undo. And `release` gives back the end of a table first, which costs nothing and
    keeps the beginnings, without which nothing is found, longest.
    """,
    shown="only the block of the last token is looked at",
    shown_part="grow",
    equivalent={
        "KVManager.grow: shared = [logical_block for logical_block in range(first_written, "
        "min(num_blocks_wanted, num_blocks_held)) if self.pool.ref_count(table[logical_block]) > "
        "1] -> shared = [logical_block for logical_block in range(first_written, "
        "min(num_blocks_held, num_blocks_wanted)) if self.pool.ref_count(table[logical_block]) > "
        "1]": "the smaller of two numbers, in either order",
        "KVManager.grow: num_new = max(0, num_blocks_wanted - num_blocks_held) -> num_new = "
        "max(num_blocks_wanted - num_blocks_held, 0)": "the larger of two numbers, in either order",
        "KVManager.grow: if num_new: -> if True:": "allocating 0 blocks adds nothing",
    },
)

# ---- 7.2 ----------------------------------------------------------------------------------------


def _guess(azure: float, sharegpt: float, alpaca: float) -> str:
    return f'predicted_saved = {{"azure": {azure}, "sharegpt": {sharegpt}, "alpaca": {alpaca}}}\n'


PREDICTION = Answers(
    mistakes=(
        Mistake(
            "all but one of the four are taken to cost nothing",
            "75 % would be saved if they shared everything. Their answers are their own.",
            code=_guess(75, 75, 75),
        ),
        Mistake(
            "half-filled blocks are counted as shared",
            "For long prompts one block more or less is nothing. A prompt of 20 tokens has one "
            "full block of 16, and its 4 other tokens are copied by everybody who writes on.",
            code=_guess(64.2, 24.5, 18.7),
        ),
        Mistake(
            "what is left is given and not what is saved",
            "Saved are the blocks that are *not* needed: 100 less the share that is held.",
            code=_guess(36.5, 77, 88.5),
        ),
        Mistake(
            "the share of the prompt in the tokens is given",
            "Of four prompts one must be kept: saved are three quarters of that.",
            code=_guess(85.6, 32.6, 25),
        ),
        Mistake(
            "a share between 0 and 1 is given",
            "Asked is percent: times 100.",
            code=_guess(0.635, 0.23, 0.115),
        ),
        Mistake(
            "a quarter is taken to be saved",
            "A quarter of the prompts is *kept*. Three of four are saved.",
            code=_guess(21.2, 7.7, 3.8),
        ),
        Mistake(
            "sharing is taken to save nothing",
            "A prompt is stored once and not four times.",
            code=_guess(0, 0, 0),
        ),
    ),
    alternatives=(
        Alternative(
            "from the means",
            code="""
            means = {"azure": (1191, 200), "sharegpt": (167, 346), "alpaca": (20, 60)}
            predicted_saved = {
                name: 100 * 3 * (p - 7.5) / (4 * (p + o + 7.5)) for name, (p, o) in means.items()
            }
            """,
        ),
        Alternative("rounded", code=_guess(64, 24, 10)),
        Alternative("a careful estimate", code=_guess(61, 21, 13)),
    ),
    why="""
    Three of four prompts are saved, as far as they fill blocks; the answers are everybody's own. So
    what counts is how long the prompt is beside the answer: a chat that sends its whole history
    saves two thirds, an instruction of 20 tokens next to nothing. The paper found 8.5 % on Alpaca's
    lengths, summed over all steps and not at the end.

    Three points of tolerance are for the spread that a mean hides: most prompts end somewhere
    inside a block, and what is in it is not shared.
    """,
    shown="half-filled blocks are counted as shared",
)

# ---- 7.3 ----------------------------------------------------------------------------------------

_DIGEST = 'parent = sha256(b"block" + parent + packed).digest()'
_LOOP = "for start in range(0, len(token_ids) - block_size + 1, block_size):"
_PACK = 'packed = struct.pack(f"<{block_size}I", *block)'


def _hashing(body: str, imports: str = "") -> str:
    head = "def hash_blocks(token_ids, block_size, extra_key=None, parent=None):\n"
    head += '    if block_size < 1:\n        raise ValueError(f"block_size is {block_size}")\n'
    found = head + indent(clean(body), "    ") + "\n"
    return f"{imports}\n\n\n{found}" if imports else found


_CHECKED = """
for token_id in token_ids:
    if not isinstance(token_id, int | np.integer) or not 0 <= token_id < 2**32:
        raise ValueError(f"{token_id!r} is no token id")
"""


def _checked(body: str) -> str:
    return _hashing(clean(_CHECKED) + "\n" + clean(body), "import numpy as np")


HASHES = Answers(
    mistakes=(
        Mistake(
            "a block's hash covers its own tokens and nothing before them",
            "The same words behind another beginning have other keys and values. Let each hash "
            "cover the hash of the block before it.",
            edit=((_DIGEST, 'parent = sha256(b"block" + packed).digest()'),),
        ),
        Mistake(
            "the first block is keyed, and no later block knows of it",
            "Two tenants would share every block but the first. The hash before must go into each "
            "hash: then the key is carried along.",
            edit=(
                (_DIGEST, 'hashes.append(sha256(b"block" + parent + packed).digest())'),
                ("        hashes.append(parent)\n", '        parent = b""\n'),
            ),
        ),
        Mistake(
            "extra_key goes into every block, and the block before into none",
            "That keeps tenants apart, and not beginnings. Chain: the digest is the next block's "
            "parent.",
            edit=(
                (_DIGEST, 'hashes.append(sha256(b"block" + parent + packed).digest())'),
                ("        hashes.append(parent)\n", ""),
            ),
        ),
        Mistake(
            "the tokens of the block before go in, and not its hash",
            "What stands two blocks back is then lost. The hash of the block before knows all of "
            "it, in 32 bytes.",
            edit=(
                (
                    _DIGEST,
                    "hashes.append(sha256(parent + packed).digest())\n"
                    '        parent = packed if len(hashes) else b""',
                ),
                ("        hashes.append(parent)\n", ""),
            ),
        ),
        Mistake(
            "the block's place stands for what is before it",
            "Block 1 of two prompts is at one place, behind different words.",
            edit=(
                (
                    _DIGEST,
                    'hashes.append(sha256(parent + struct.pack("<Q", start) + packed).digest())',
                ),
                ("        hashes.append(parent)\n", ""),
            ),
        ),
        Mistake(
            "extra_key is left out",
            "Two adapters compute different keys and values from the same tokens. `root_hash("
            "extra_key)` is where the chain begins.",
            edit=(("parent = root_hash(extra_key)", "parent = root_hash(None)"),),
        ),
        Mistake(
            "`parent` is not used when it is given",
            "Then a request that fills its next block would begin a new chain, and its block is "
            "never found.",
            edit=(("    if parent is None:\n        parent =", "    if True:\n        parent ="),),
        ),
        Mistake(
            "every hash begins again at the first token",
            "It tells beginnings apart, and cannot go on from a hash: each new block would cost "
            "the whole prompt again. The hash before holds all of it.",
            edit=(
                (
                    _DIGEST,
                    'packed = struct.pack(f"<{start + block_size}I", *token_ids[: start + '
                    "block_size])\n"
                    '        hashes.append(sha256(b"block" + parent + packed).digest())',
                ),
                ("        hashes.append(parent)\n", ""),
            ),
        ),
        Mistake(
            "a last block that is not full gets a hash too",
            "More tokens will come into it and change what it holds. Only full blocks can be "
            "shared.",
            edit=(
                (_LOOP, "for start in range(0, len(token_ids), block_size):"),
                (_PACK, 'packed = struct.pack(f"<{len(block)}I", *block)'),
            ),
        ),
        Mistake(
            "the last block is left out even when it is full",
            "With 8 tokens in blocks of 4, the second block begins at 4 = 8 - 4: `range` stops "
            "*before* its end.",
            edit=((_LOOP, "for start in range(0, len(token_ids) - block_size, block_size):"),),
        ),
        Mistake(
            "Python's own `hash()` is used",
            "It is a number of 64 bits, and for text another one in each process. Equal hashes "
            "must mean equal tokens, everywhere: use a digest.",
            code=_checked("""
            parent = hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                parent = hash((parent, *(int(t) for t in token_ids[start : start + block_size])))
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "Python's own `hash()` is used, filled up to 32 bytes",
            "Zeros add nothing: it is still a number of 64 bits, which somebody can steer, and two "
            "prompts with one number share their memory. Use a digest.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                block = tuple(int(t) for t in token_ids[start : start + block_size])
                number = hash((int.from_bytes(parent), *block)) % 2**64
                parent = number.to_bytes(32)
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "ids are written one after another, with nothing between them",
            '"1" and "23" make the same text as "12" and "3". Give each id the same width: four '
            "bytes.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                text = "".join(str(int(t)) for t in token_ids[start : start + block_size])
                parent = sha256(parent + text.encode()).digest()
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "each id gets as many bytes as it needs",
            "257 in two bytes is the same as 1 and 1 in one each. Give each id the same width: "
            "four bytes.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                packed = b""
                for token_id in token_ids[start : start + block_size]:
                    token_id = int(token_id)
                    packed += token_id.to_bytes(max(1, (token_id.bit_length() + 7) // 8), "little")
                parent = sha256(parent + packed).digest()
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "ids are cut to 16 bits",
            "Vocabularies of today go beyond 65,535, and 65,543 is then taken for 7. Give each id "
            "four bytes.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                block = np.asarray(token_ids[start : start + block_size], dtype=np.int64)
                parent = sha256(parent + block.astype(np.uint16).tobytes()).digest()
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "what is no token id is hashed all the same",
            "As text, -1 and 1.5 hash as well as 1 does, and nobody learns that something is "
            "wrong. `struct.pack` would have said so.",
            code="""
            def hash_blocks(token_ids, block_size, extra_key=None, parent=None):
                parent = root_hash(extra_key) if parent is None else parent
                hashes = []
                for start in range(0, len(token_ids) - block_size + 1, block_size):
                    text = ",".join(str(t) for t in token_ids[start : start + block_size])
                    parent = sha256(parent + text.encode()).digest()
                    hashes.append(parent)
                return hashes
            """,
        ),
        Mistake(
            "extra_key goes into every block's hash once more",
            "It is in the first by `root_hash`, and in all later ones by the chain. Whoever goes "
            "on from `parent` need not know it, and would get another hash.",
            edit=(
                (
                    _DIGEST,
                    'parent = sha256(b"block" + parent + packed + repr(extra_key).encode())'
                    ".digest()",
                ),
            ),
        ),
        Mistake(
            "the text of the list is hashed, brackets and all",
            "A tuple and an array print differently, so the same ids get other hashes. Turn every "
            "id into the same bytes, whatever holds it.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                text = str(token_ids[start : start + block_size])
                parent = sha256(parent + text.encode()).digest()
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "the text of the ids is hashed, as each of them prints",
            "NumPy prints `np.int64(31)` where Python prints `31`. Turn every id into the same "
            "bytes, whatever its type.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                text = ",".join(map(repr, token_ids[start : start + block_size]))
                parent = sha256(parent + text.encode()).digest()
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "an array's bytes are taken in whatever type it has",
            "An id takes 1, 4 or 8 bytes there. Choose one width, and turn everything into it.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                block = np.asarray(token_ids[start : start + block_size])
                parent = sha256(parent + block.tobytes()).digest()
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "the ids are rolled into one number, h * 31 + id",
            "7 * 31 + 5 = 6 * 31 + 36: other tokens, the same number. It was the fault of a real "
            "server. Use a digest.",
            code=_checked("""
            parent = root_hash(extra_key) if parent is None else parent
            hashes = []
            for start in range(0, len(token_ids) - block_size + 1, block_size):
                number = int.from_bytes(parent)
                for token_id in token_ids[start : start + block_size]:
                    number = number * 31 + int(token_id)
                parent = (number % 2**256).to_bytes(32)
                hashes.append(parent)
            return hashes
            """),
        ),
        Mistake(
            "the order of the tokens is lost",
            'A model reads "dog bites man" and "man bites dog" differently. Hash the ids as they '
            "stand.",
            edit=((_PACK, 'packed = struct.pack(f"<{block_size}I", *sorted(block))'),),
        ),
        Mistake(
            "what is no token id is passed on to Python's own errors",
            "`struct.error` says nothing of tokens, and is not the ValueError that is promised.",
            edit=(
                (
                    "except (struct.error, TypeError) as error:",
                    "except ZeroDivisionError as error:",
                ),
            ),
        ),
        Mistake(
            "the hash is given as text",
            "`hexdigest` gives 64 letters; asked are the 32 bytes themselves: `digest`.",
            edit=(
                (_DIGEST, 'parent = sha256(b"block" + parent + packed).digest()'),
                ("hashes.append(parent)", "hashes.append(parent.hex())"),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "blake2b, ids joined by commas",
            code=_hashing(
                """
                parent = root_hash(extra_key) if parent is None else parent
                hashes = []
                for block in range(len(token_ids) // block_size):
                    digest = blake2b(parent, digest_size=32)
                    for token_id in token_ids[block * block_size : (block + 1) * block_size]:
                        try:
                            number = index(token_id)
                        except TypeError as error:
                            raise ValueError(f"{token_id!r}") from error
                        if not 0 <= number <= 0xFFFFFFFF:
                            raise ValueError(f"{token_id} is no token id")
                        digest.update(f"{number},".encode())
                    parent = digest.digest()
                    hashes.append(parent)
                return hashes
                """,
                "from hashlib import blake2b\nfrom operator import index",
            ),
        ),
        Alternative(
            "four bytes an id, by to_bytes",
            code=_hashing("""
            if parent is None:
                parent = root_hash(extra_key)
            hashes, block = [], b""
            for place, token_id in enumerate(token_ids, start=1):
                try:
                    block += int.to_bytes(int(token_id) if token_id == int(token_id) else -1, 4,
                                          "big")
                except (OverflowError, TypeError, ValueError):
                    raise ValueError(f"{token_id!r} is no token id") from None
                if isinstance(token_id, str):
                    raise ValueError("text is no token id")
                if place % block_size == 0:
                    hashes.append(sha256(parent + block).digest())
                    parent, block = hashes[-1], b""
            return hashes
            """),
        ),
        Alternative(
            "an array of 64-bit numbers, and sha3",
            code=_hashing(
                """
                ids = []
                for token_id in token_ids:
                    if isinstance(token_id, bool | str | float) or token_id is None:
                        raise ValueError(f"{token_id!r} is no token id")
                    ids.append(int(token_id))
                if any(not 0 <= token_id < 2**32 for token_id in ids):
                    raise ValueError("out of range")
                table = np.array(ids, dtype="<i8")
                hashes = [root_hash(extra_key) if parent is None else parent]
                while len(hashes) * block_size <= len(table):
                    end = len(hashes) * block_size
                    part = table[end - block_size : end].tobytes()
                    hashes.append(sha3_256(hashes[-1] + part).digest())
                return hashes[1:]
                """,
                "from hashlib import sha3_256\n\nimport numpy as np",
            ),
        ),
    ),
    why="""
    Keys and values of a token depend on the token and on everything before it. The chain puts just
    that into 32 bytes: a block's hash covers its own tokens and, through the hash before it, all
    that came earlier, the extra key at the very beginning included. So a request that fills one
    more block needs one hash more, from `parent`, and not the whole prompt again.

    A digest and a fixed width for each id, because equal hashes must mean equal tokens: whoever
    could make two prompts collide would read another user's memory, and nothing would crash.
    """,
    shown="a block's hash covers its own tokens and nothing before them",
)

# ---- 7.4 ----------------------------------------------------------------------------------------

_HIT = """\
        if num_tokens is not None:
            block_hashes = block_hashes[: max(0, num_tokens - 1) // block_size]
        blocks = []
        for block_hash in block_hashes:
            block_id = self.lookup(block_hash)
            if block_id is None:
                break
            blocks.append(block_id)
        return blocks
"""
_PUBLISH = """\
        known = self._hashes.setdefault(block_id, block_hash)
        if known != block_hash:
            raise ValueError(f"block {block_id} is published with other content; forget it first")
        self._blocks.setdefault(block_hash, {})[block_id] = None
"""
_FORGET = """\
        block_hash = self._hashes.pop(block_id, None)
        if block_hash is not None:
            blocks = self._blocks[block_hash]
            del blocks[block_id]
            if not blocks:
                del self._blocks[block_hash]
"""


def _hit(text: str) -> tuple[tuple[str, str], ...]:
    return ((_HIT, _body(text)),)


CACHE = Answers(
    mistakes=(
        Mistake(
            "the newest block of a hash takes the place of the others",
            "When it is evicted, the hash is gone, though another block still holds the same. Keep "
            "all of them.",
            edit=(
                (
                    "self._blocks.setdefault(block_hash, {})[block_id] = None",
                    "self._blocks[block_hash] = {block_id: None}",
                ),
                ("del blocks[block_id]", "blocks.pop(block_id, None)"),
                ("del self._blocks[block_hash]", "self._blocks.pop(block_hash, None)"),
                ("blocks = self._blocks[block_hash]", "blocks = self._blocks.get(block_hash, {})"),
            ),
        ),
        Mistake(
            "a hash leads to one block, and not to a set of them",
            "`lookup` and `blocks_of` read a dict of blocks there, because a hash can have two. "
            "`setdefault(block_hash, {})` gives the one that is there, or a new one.",
            edit=(
                (
                    "self._blocks.setdefault(block_hash, {})[block_id] = None",
                    "self._blocks[block_hash] = block_id",
                ),
                (
                    "            blocks = self._blocks[block_hash]\n"
                    "            del blocks[block_id]\n"
                    "            if not blocks:\n"
                    "                del self._blocks[block_hash]\n",
                    "            del self._blocks[block_hash]\n",
                ),
            ),
        ),
        Mistake(
            "a second block with the same hash is not kept",
            "It holds the same, and will be there when the first is evicted. Keep both.",
            edit=(
                (
                    _PUBLISH,
                    _body("""
                    if self._hashes.get(block_id, block_hash) != block_hash:
                        raise ValueError(f"block {block_id} holds something else")
                    if block_hash in self._blocks:
                        return
                    self._hashes[block_id] = block_hash
                    self._blocks[block_hash] = {block_id: None}
                    """),
                ),
            ),
        ),
        Mistake(
            "forgetting one block forgets its hash, whoever else has it",
            "The other block holds the same content still. Take only this block out of the set.",
            edit=(
                (
                    _FORGET,
                    _body("""
                    block_hash = self._hashes.pop(block_id, None)
                    if block_hash is not None:
                        self._blocks.pop(block_hash, None)
                    """),
                ),
            ),
        ),
        Mistake(
            "the block keeps its hash after it is forgotten",
            "It is about to hold something else, and would be refused as published with other "
            "content. Take it out of both dicts.",
            edit=(
                ("self._hashes.pop(block_id, None)", "self._hashes.get(block_id)"),
                ("del blocks[block_id]", "blocks.pop(block_id, None)"),
                ("blocks = self._blocks[block_hash]", "blocks = self._blocks.get(block_hash, {})"),
                ("del self._blocks[block_hash]", "self._blocks.pop(block_hash, None)"),
            ),
        ),
        Mistake(
            "the hash still leads to the block after it is forgotten",
            "Whoever finds it reads what somebody else writes there. Take it out of both dicts.",
            edit=((_FORGET, _body("self._hashes.pop(block_id, None)")),),
        ),
        Mistake(
            "a block without a hash cannot be forgotten",
            "Every block that is taken is forgotten first, whether or not it was published. Then "
            "nothing happens.",
            edit=(("self._hashes.pop(block_id, None)", "self._hashes.pop(block_id)"),),
        ),
        Mistake(
            "a hash stays on record when its last block is gone",
            "The dict then grows with every prompt there ever was. Remove what is empty.",
            edit=(
                (
                    "            if not blocks:\n                del self._blocks[block_hash]\n",
                    "",
                ),
            ),
        ),
        Mistake(
            "other content replaces the hash in silence",
            "The old hash still leads to this block, which holds something else now. Refuse it: "
            "somebody forgot to forget.",
            edit=(
                (
                    _PUBLISH,
                    _body("""
                    self._hashes[block_id] = block_hash
                    self._blocks.setdefault(block_hash, {})[block_id] = None
                    """),
                ),
                ("del blocks[block_id]", "blocks.pop(block_id, None)"),
            ),
        ),
        Mistake(
            "publishing the same again is refused",
            "It is true still, so nothing changes and nothing is wrong.",
            edit=(
                (
                    "known = self._hashes.setdefault(block_id, block_hash)\n"
                    "        if known != block_hash:",
                    "if block_id in self._hashes:",
                ),
                (
                    "        self._blocks.setdefault(block_hash, {})[block_id] = None",
                    "        self._hashes[block_id] = block_hash\n"
                    "        self._blocks.setdefault(block_hash, {})[block_id] = None",
                ),
            ),
        ),
        Mistake(
            "the block is noted before the refusal",
            "The error comes too late: the new hash leads to the block already. Look first.",
            edit=(
                (
                    _PUBLISH,
                    _body("""
                    self._blocks.setdefault(block_hash, {})[block_id] = None
                    known = self._hashes.setdefault(block_id, block_hash)
                    if known != block_hash:
                        raise ValueError(f"block {block_id} holds something else")
                    """),
                ),
            ),
        ),
        Mistake(
            "block 0 is taken for a miss",
            "0 is a block like any other, and `not 0` is true. Only None means that nothing was "
            "found: ask `is None`.",
            edit=_hit("""
            if num_tokens is not None:
                block_hashes = block_hashes[: max(0, num_tokens - 1) // block_size]
            blocks = []
            for block_hash in block_hashes:
                block_id = self.lookup(block_hash)
                if not block_id:
                    break
                blocks.append(block_id)
            return blocks
            """),
        ),
        Mistake(
            "`num_tokens` is taken for a number in any case",
            "It may be None, and then there is no bound. Look before you subtract.",
            edit=_hit("""
            blocks = []
            for block_hash in block_hashes[: max(0, num_tokens - 1) // block_size]:
                block_id = self.lookup(block_hash)
                if block_id is None:
                    break
                blocks.append(block_id)
            return blocks
            """),
        ),
        Mistake(
            "other content moves the block to its new hash",
            "Nobody has said that the old content is gone. Two holders of one block is a fault "
            "somewhere: refuse it, and let `forget` be called first.",
            edit=(
                (
                    _PUBLISH,
                    _body("""
                    if self._hashes.get(block_id) != block_hash:
                        self.forget(block_id)
                        self._hashes[block_id] = block_hash
                        self._blocks.setdefault(block_hash, {})[block_id] = None
                    """),
                ),
            ),
        ),
        Mistake(
            "the newest block of a hash pushes out the others, which cannot be forgotten then",
            "`= {block_id: None}` makes a new set each time. `setdefault(block_hash, {})` gives "
            "the one that is there, or a new one.",
            edit=(
                (
                    "self._blocks.setdefault(block_hash, {})[block_id] = None",
                    "self._blocks[block_hash] = {block_id: None}",
                ),
            ),
        ),
        Mistake(
            "blocks behind a gap are used as well",
            "Their tokens would be right and their places wrong: the table has a hole that nobody "
            "computes. A prefix ends at the first miss.",
            edit=(("                break\n", "                continue\n"),),
        ),
        Mistake(
            "a hash that is found is taken to prove all before it",
            "It proves that they were *computed* once. Any of them may have been evicted since.",
            edit=_hit("""
            if num_tokens is not None:
                block_hashes = block_hashes[: max(0, num_tokens - 1) // block_size]
            blocks = [self.lookup(block_hash) for block_hash in block_hashes]
            while blocks and blocks[-1] is None:
                blocks.pop()
            return blocks
            """),
        ),
        Mistake(
            "a prompt may be found whole",
            "Then nothing is computed, and there is no output to sample the next token from. Cut "
            "at `num_tokens - 1`.",
            edit=(("max(0, num_tokens - 1) // block_size", "num_tokens // block_size"),),
        ),
        Mistake(
            "the last block is never used",
            "One *token* must be left to compute, not a block: with 9 tokens, two blocks of 4 can "
            "be found.",
            edit=(
                (
                    "max(0, num_tokens - 1) // block_size",
                    "max(0, num_tokens // block_size - 1)",
                ),
            ),
        ),
        Mistake(
            "a request without a token is cut at -1",
            "In Python `[:-1]` is all but the last. Nothing can be found for no token: `max(0, "
            "...)`.",
            edit=(("max(0, num_tokens - 1) // block_size", "(num_tokens - 1) // block_size"),),
        ),
        Mistake(
            "no `num_tokens` is taken for none",
            "None means that there is no bound: every hash of the chain may be used.",
            edit=(
                (
                    "        if num_tokens is not None:\n            block_hashes",
                    "        num_tokens = num_tokens or 0\n        if 1:\n            block_hashes",
                ),
            ),
        ),
        Mistake(
            "the number of blocks is given",
            "The request needs the blocks themselves: they are the start of its table.",
            edit=(("        return blocks\n", "        return len(blocks)\n"),),
        ),
    ),
    alternatives=(
        Alternative(
            "sets, and two dicts of its own",
            code="""
            class PrefixCache:
                def __init__(self):
                    self.by_hash = {}
                    self.by_block = {}

                def __len__(self):
                    return len(self.by_block)

                def __contains__(self, block_id):
                    return block_id in self.by_block

                def __iter__(self):
                    return iter(self.by_block)

                def hash_of(self, block_id):
                    return self.by_block.get(block_id)

                def blocks_of(self, block_hash):
                    return list(self.by_hash.get(block_hash, set()))

                def lookup(self, block_hash):
                    return min(self.by_hash.get(block_hash, {None}))

                def longest_hit(self, block_hashes, block_size, num_tokens=None):
                    found = []
                    while len(found) < len(block_hashes):
                        if num_tokens is not None and (len(found) + 1) * block_size >= num_tokens:
                            break
                        block = self.lookup(block_hashes[len(found)])
                        if block is None:
                            break
                        found.append(block)
                    return found

                def publish(self, block_id, block_hash):
                    if block_id in self.by_block and self.by_block[block_id] != block_hash:
                        raise ValueError("holds something else")
                    self.by_block[block_id] = block_hash
                    self.by_hash.setdefault(block_hash, set()).add(block_id)

                def forget(self, block_id):
                    if block_id in self.by_block:
                        block_hash = self.by_block.pop(block_id)
                        self.by_hash[block_hash].remove(block_id)
                        if not self.by_hash[block_hash]:
                            self.by_hash.pop(block_hash)

                def clear(self):
                    self.__init__()
            """,
        ),
        Alternative(
            "one dict, and a walk for the other direction",
            code="""
            class PrefixCache:
                def __init__(self):
                    self._hashes = {}

                def __len__(self):
                    return len(self._hashes)

                def __contains__(self, block_id):
                    return block_id in self._hashes

                def __iter__(self):
                    return iter(self._hashes)

                def hash_of(self, block_id):
                    return self._hashes.get(block_id)

                def blocks_of(self, block_hash):
                    return [b for b, known in self._hashes.items() if known == block_hash]

                def lookup(self, block_hash):
                    return (self.blocks_of(block_hash) or [None])[-1]

                def longest_hit(self, block_hashes, block_size, num_tokens=None):
                    hit = []
                    for block_hash in block_hashes:
                        covered = block_size * (len(hit) + 1)
                        left = 1 if num_tokens is None else num_tokens - covered
                        if left < 1 or self.lookup(block_hash) is None:
                            return hit
                        hit.append(self.lookup(block_hash))
                    return hit

                def publish(self, block_id, block_hash):
                    if self._hashes.get(block_id) not in (None, block_hash):
                        raise ValueError(block_id)
                    self._hashes[block_id] = block_hash

                def forget(self, block_id):
                    if block_id in self:
                        del self._hashes[block_id]

                def clear(self):
                    self._hashes = {}
            """,
        ),
        Alternative(
            "takewhile, and a bound in blocks",
            edit=_hit("""
            from itertools import takewhile

            bound = len(block_hashes)
            if num_tokens is not None:
                bound = min(bound, -(-num_tokens // block_size) - 1)
            there = takewhile(lambda h: h in self._blocks, block_hashes[: max(bound, 0)])
            return [self.blocks_of(h)[0] for h in there]
            """),
        ),
    ),
    why="""
    Two dicts, always changed together: from a hash to *all* blocks that hold it, from a block to
    its one hash. Equal prompts computed in one step give two blocks with one hash, and each is
    evicted on its own. Nothing in here counts owners: a block in use and a free one are found
    alike, and the pool knows the difference.

    The hit walks from the beginning because a table does: position 0 lies in its first block. It
    stops one token short, so a request whose prompt fills its last block computes that block again.
    """,
    shown="a hash that is found is taken to prove all before it",
    shown_part="longest_hit",
    equivalent={
        "PrefixCache.longest_hit: block_hashes = block_hashes[:max(0, num_tokens - 1) // "
        "block_size] -> block_hashes = block_hashes[:max(num_tokens - 1, 0) // block_size]": (
            "the larger of two numbers, in either order"
        ),
    },
)

# ---- 7.5 ----------------------------------------------------------------------------------------


def _answer(text: str) -> str:
    return f"failing_steps = {text}\n"


STEPS = Answers(
    mistakes=(
        Mistake(
            "A computes its whole prompt first",
            "Then all that is published is written. The fault shows when the blocks are known and "
            "the tokens in them are not computed yet.",
            code=_answer('[("A", 7), ("stranger", 8)]'),
        ),
        Mistake(
            "A computes just one block",
            "Its four tokens are written, so finding them is right. One fewer.",
            code=_answer('[("A", 4), ("stranger", 4)]'),
        ),
        Mistake(
            "the stranger comes alone",
            "Nobody has published anything before it. Somebody must be there first.",
            code=_answer('[("stranger", 2)]'),
        ),
        Mistake(
            "A finds its own blocks",
            "A request looks into the cache when it is admitted, in its first step only.",
            code=_answer('[("A", 2), ("A", 2)]'),
        ),
        Mistake(
            "the stranger is there before the fault",
            "It looks once, in its first step, when nothing is published. Let A begin.",
            code=_answer('[("stranger", 2), ("A", 2), ("stranger", 2)]'),
        ),
        Mistake(
            "A has caught up by then",
            "A wrote the rest of its block in its second step. Let the stranger come between.",
            code=_answer('[("A", 2), ("A", 5), ("stranger", 1)]'),
        ),
        Mistake(
            "a longer story is told than is needed",
            "It shows the fault. But two steps are enough: leave out what adds nothing.",
            code=_answer('[("A", 1), ("A", 1), ("stranger", 8)]'),
        ),
    ),
    alternatives=(
        Alternative("one token is enough", code=_answer('[("A", 1), ("stranger", 8)]')),
        Alternative("three are still too few", code=_answer('[("A", 3), ("stranger", 1)]')),
        Alternative("the other way round", code=_answer('[["stranger", 3], ["A", 7]]')),
    ),
    why="""
    A is admitted with all of its blocks and computes two tokens. Its first block is full in the
    sense that four tokens *belong* there; two of them are written. Published all the same, it is
    found by the stranger, who takes four tokens as computed and reads two slots in which somebody
    else's keys and values lie.

    Chunked prefill makes this an everyday case. So does a request that is aborted after its
    admission: it leaves a published block behind that nobody will ever fill.
    """,
    shown="A computes just one block",
)

# ---- 7.6 ----------------------------------------------------------------------------------------

_PUBLISH_HEAD = '''
def publish_blocks(kv: KVBlocks, request: Request) -> None:
    """Make the request's full blocks findable, after a step has computed some of its tokens.

    The request has its table, kv.tables[request.request_id], and may have more blocks in it than it
    has used. `request.block_hashes(kv.block_size)` gives the hashes of all its full blocks.
    `kv.prefix_cache.publish(block_id, block_hash)` makes one block findable; doing it again changes
    nothing.

    A has 7 tokens and the table [7, 1], blocks of 4: its block 7 can be found when 4 of its tokens
    are computed, and not before. Block 1 is not full.
    """
'''


def _publishing(body: str) -> str:
    return clean(_PUBLISH_HEAD) + "\n" + indent(clean(body), "    ") + "\n"


PUBLISH = Answers(
    mistakes=(
        Mistake(
            "a block counts as full when its tokens are known, written or not",
            "Known is what the request will say; written is what is in the cache. "
            "`num_computed_tokens` counts the written.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range(request.num_tokens // kv.block_size):
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "a block is published as soon as it is begun",
            "Rounded up, the block that is being filled counts too. Only full ones: round down.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            num_begun = -(-request.num_computed_tokens // kv.block_size)
            for block_id, block_hash in list(zip(table, block_hashes))[:num_begun]:
                kv.prefix_cache.publish(block_id, block_hash)
            """),
        ),
        Mistake(
            "only the prompt is counted",
            "The prompt is known before it is written, and the answer fills blocks too: the next "
            "turn of a chat begins with both.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range(request.num_prompt_tokens // kv.block_size):
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "the prompt's blocks wait until all of it is written",
            "Right, and late: a stranger could use the first blocks while the rest is computed. "
            "Each block is full on its own.",
            code=_publishing("""
            if request.num_computed_tokens < request.num_prompt_tokens:
                return
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range(request.num_computed_tokens // kv.block_size):
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "a block that is just full counts only with the next token",
            "With 4 tokens computed, a block of 4 is full. The one token that is left to compute "
            "is a rule for whoever *finds*.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range((request.num_computed_tokens - 1) // kv.block_size):
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "every block of the table is taken to be full",
            "The table is as long as the request may grow, and there are hashes for full blocks "
            "only. What is full and written: `num_computed_tokens // block_size` blocks.",
            code=_publishing("""
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block, block_id in enumerate(kv.tables[request.request_id]):
                kv.prefix_cache.publish(block_id, block_hashes[logical_block])
            """),
        ),
        Mistake(
            "the block that is begun is asked for its hash",
            "Rounded up, the block that is being filled counts too, and only full ones have a "
            "hash. Round down.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range(-(-request.num_computed_tokens // kv.block_size)):
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "the newest full block is published, and with none full the last of the table",
            "`- 1` counts from the end when no block is full: index -1. And a step can fill many "
            "blocks. Walk over all that are full.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            last = request.num_computed_tokens // kv.block_size - 1
            kv.prefix_cache.publish(table[last], block_hashes[last])
            """),
        ),
        Mistake(
            "only the newest full block is published",
            "A step can fill many. Those before it then cannot be found, and it not without them.",
            code=_publishing("""
            last = request.num_computed_tokens // kv.block_size - 1
            if last >= 0:
                table = kv.tables[request.request_id]
                block_hashes = request.block_hashes(kv.block_size)
                kv.prefix_cache.publish(table[last], block_hashes[last])
            """),
        ),
        Mistake(
            "the walk ends at the first block that is published already",
            "The first blocks of a request may come from the cache, or from its last step. The new "
            "ones stand behind them.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range(request.num_computed_tokens // kv.block_size):
                if table[logical_block] in kv.prefix_cache:
                    break
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "the first block is left out",
            "Logical blocks are counted from 0, and without the first nothing is found.",
            code=_publishing("""
            table = kv.tables[request.request_id]
            block_hashes = request.block_hashes(kv.block_size)
            for logical_block in range(1, request.num_computed_tokens // kv.block_size):
                kv.prefix_cache.publish(table[logical_block], block_hashes[logical_block])
            """),
        ),
        Mistake(
            "nothing is published any more",
            "That is safe, and the end of the cache. What is full and written should be found.",
            code=_publishing("return None"),
        ),
    ),
    alternatives=(
        Alternative(
            "pairs, cut to what is written",
            code=_publishing("""
            full = request.num_computed_tokens // kv.block_size
            table = kv.tables[request.request_id][:full]
            for block_id, block_hash in zip(table, request.block_hashes(kv.block_size)):
                kv.prefix_cache.publish(block_id, block_hash)
            """),
        ),
        Alternative(
            "walking back to the first that is known, as the engine does",
            code=_publishing("""
            table, cache = kv.tables[request.request_id], kv.prefix_cache
            place = request.num_computed_tokens // kv.block_size - 1
            while place >= 0 and table[place] not in cache:
                cache.publish(table[place], request.block_hashes(kv.block_size)[place])
                place -= 1
            """),
        ),
        Alternative(
            "hashing what is written, and nothing else",
            code="from course.engine.prefix_cache import hash_blocks\n\n\n"
            + _publishing("""
            written = request.token_ids[: request.num_computed_tokens]
            hashes = hash_blocks(written, kv.block_size, request.extra_key)
            for place, block_hash in enumerate(hashes):
                if kv.tables[request.request_id][place] not in kv.prefix_cache:
                    kv.prefix_cache.publish(kv.tables[request.request_id][place], block_hash)
            """),
        ),
    ),
    why="""
    Two counts that differ all the time: `num_tokens`, what the request says, and
    `num_computed_tokens`, what is stored. They part while a prompt is computed in pieces, and by
    one token during all of decoding. A hash is a promise about memory, so only the second count
    can make it.

    The price: two equal prompts in one step both compute. The engine pays it
    (`KVBlocks.publish`), because the other price is a wrong answer that looks like a right one.
    """,
    shown="a block is published as soon as it is begun",
)

# ---- 7.7 ----------------------------------------------------------------------------------------

_INSERT = """\
        for block_id in block_ids:
            before = self._prev[after]
            self._prev[block_id], self._next[block_id] = before, after
            self._next[before] = self._prev[after] = block_id
        self._count += len(block_ids)
"""
_UNLINK = """\
        before, after = self._prev[block_id], self._next[block_id]
        self._next[before], self._prev[after] = after, before
        self._prev[block_id] = self._next[block_id] = None
        self._count -= 1"""

_ORDERED = """
from collections import OrderedDict


class FreeList:
    def __init__(self, num_blocks, block_ids=None):
        self.num_blocks = num_blocks
        self.ids = OrderedDict()
        self.append_n(range(num_blocks) if block_ids is None else block_ids)

    def __len__(self):
        return len(self.ids)

    def __iter__(self):
        return iter(self.ids)

    def __reversed__(self):
        return reversed(self.ids)

    def __contains__(self, block_id):
        return block_id in self.ids

    def popleft(self):
        return self.popleft_n(1)[0]

    def popleft_n(self, count):
        if not 0 <= count <= len(self.ids):
            raise IndexError("too few")
        return [self.ids.popitem(last=False)[0] for _ in range(count)]

    def remove(self, block_id):
        if block_id not in self.ids:
            raise ValueError(block_id)
        del self.ids[block_id]

    def append(self, block_id):
        self.append_n([block_id])

    def append_n(self, block_ids):
        for block_id in self._checked(block_ids):
            self.ids[block_id] = None

    def prepend_n(self, block_ids):
        for block_id in reversed(self._checked(block_ids)):
            self.ids[block_id] = None
            self.ids.move_to_end(block_id, last=False)

    def _checked(self, block_ids):
        block_ids = list(block_ids)
        if len(set(block_ids)) < len(block_ids):
            raise ValueError("twice")
        if any(b in self.ids or not 0 <= b < self.num_blocks for b in block_ids):
            raise ValueError("there already, or outside")
        return block_ids
"""

FREE_LIST = Answers(
    mistakes=(
        Mistake(
            "each block is put in front of the one before it, so that they come out backwards",
            "`after` stays where it is: the next block goes between the last one and `after`.",
            edit=(
                (
                    _INSERT,
                    _body("""
            for block_id in block_ids:
                before = self._prev[after]
                self._prev[block_id], self._next[block_id] = before, after
                self._next[before] = self._prev[after] = block_id
                after = block_id
            self._count += len(block_ids)
            """),
                ),
            ),
        ),
        Mistake(
            "blocks are put behind `after` and not in front of it",
            "For the sentinel, behind is the front of the list and in front is its end.",
            edit=(
                (
                    _INSERT,
                    _body("""
            before = after
            for block_id in block_ids:
                behind = self._next[before]
                self._prev[block_id], self._next[block_id] = before, behind
                self._next[before] = self._prev[behind] = block_id
                before = block_id
            self._count += len(block_ids)
            """),
                ),
            ),
        ),
        Mistake(
            "only the links forwards are set",
            "Read backwards, the new blocks are missing; and whoever comes next is put in front of "
            "them. Each link has two ends.",
            edit=(
                (
                    "self._next[before] = self._prev[after] = block_id",
                    "self._next[before] = block_id",
                ),
            ),
        ),
        Mistake(
            "the block points to its neighbours, and they do not point to it",
            "Whoever walks the list passes it by. Four ends of links change.",
            edit=(("            self._next[before] = self._prev[after] = block_id\n", ""),),
        ),
        Mistake(
            "the place before is looked up once for all",
            "After the first block it is that block, and not what stood there before: all but the "
            "last are lost.",
            edit=(
                (
                    _INSERT,
                    _body("""
            before = self._prev[after]
            for block_id in block_ids:
                self._prev[block_id], self._next[block_id] = before, after
                self._next[before] = self._prev[after] = block_id
            self._count += len(block_ids)
            """),
                ),
            ),
        ),
        Mistake(
            "the list counts one more, however many came",
            "`len` answers from the count, and the pool believes it: add as many as there are.",
            edit=(("self._count += len(block_ids)", "self._count += 1"),),
        ),
        Mistake(
            "the count is not changed when blocks come in",
            "`len` of the list says how many blocks are free, and so it says none: nobody can take "
            "what stands there.",
            edit=(("        self._count += len(block_ids)\n", ""),),
        ),
        Mistake(
            "the blocks are put behind `after`, and not in front of it",
            "The sentinel stands before the first and after the last: behind it is the front of "
            "the list. `before` is what `after` has in front of it now.",
            edit=(
                (
                    "            before = self._prev[after]\n",
                    "            before, follower = after, self._next[after]\n",
                ),
                ("self._next[block_id] = before, after", "self._next[block_id] = before, follower"),
                (
                    "self._next[before] = self._prev[after] = block_id",
                    "self._next[before] = self._prev[follower] = block_id",
                ),
            ),
        ),
        Mistake(
            "the count is not changed when a block leaves",
            "The pool then promises a block that is not there.",
            edit=(("        self._count -= 1", ""),),
        ),
        Mistake(
            "the block that left keeps its links",
            "It still looks as if it were in the list, and cannot be put back. None on both sides "
            "is the sign that it is outside.",
            edit=(("        self._prev[block_id] = self._next[block_id] = None\n", ""),),
        ),
        Mistake(
            "the neighbours are not joined",
            "The list ends where the block was taken out. Let the one before point to the one "
            "after, and back.",
            edit=(("        self._next[before], self._prev[after] = after, before\n", ""),),
        ),
        Mistake(
            "only the one before is told who comes next",
            "Backwards, the block is still there. Join the neighbours in both directions.",
            edit=(
                (
                    "self._next[before], self._prev[after] = after, before",
                    "self._next[before] = after",
                ),
            ),
        ),
        Mistake(
            "the links are cleared before the neighbours are read",
            "Then the neighbours are None and None. Note them first.",
            edit=(
                (
                    _UNLINK,
                    _body("""
            self._prev[block_id] = self._next[block_id] = None
            before, after = self._prev[block_id], self._next[block_id]
            self._next[before], self._prev[after] = after, before
            self._count -= 1
            """),
                ),
            ),
        ),
        Mistake(
            "the block is looked for from the front",
            "Right, and slow: with 40,000 free blocks a hit walks 20,000 of them. The block's own "
            "links say who its neighbours are.",
            edit=(
                (
                    _UNLINK,
                    _body("""
            before = self._sentinel
            while self._next[before] != block_id:
                before = self._next[before]
            after = self._next[block_id]
            self._next[before], self._prev[after] = after, before
            self._prev[block_id] = self._next[block_id] = None
            self._count -= 1
            """),
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative("an OrderedDict", code=_ORDERED),
        Alternative(
            "the chain linked first, then hung in",
            edit=(
                (
                    _INSERT,
                    _body("""
            before = self._prev[after]
            chain = [before, *block_ids, after]
            for left, right in zip(chain, chain[1:]):
                self._next[left] = right
                self._prev[right] = left
            self._count = self._count + len(block_ids)
            """),
                ),
            ),
        ),
        Alternative(
            "from the last to the first",
            edit=(
                (
                    _INSERT,
                    _body("""
            for block_id in reversed(block_ids):
                before = self._prev[after]
                self._next[before] = block_id
                self._prev[block_id] = before
                self._next[block_id] = after
                self._prev[after] = block_id
                after = block_id
                self._count += 1
            """),
                ),
                (
                    _UNLINK,
                    _body("""
            self._next[self._prev[block_id]] = self._next[block_id]
            self._prev[self._next[block_id]] = self._prev[block_id]
            self._prev[block_id] = None
            self._next[block_id] = None
            self._count = self._count - 1
            """),
                ),
            ),
        ),
    ),
    why="""
    Every operation touches the links of a block and of its two neighbours, so it costs the same in
    a pool of ten blocks and of a million. A prefix hit needs just that: the block it wants lies
    anywhere in the queue. The sentinel is a neighbour like any other, so there is no special case
    for the first block, the last or the only one.

    The order is the whole policy. Blocks without content go to the front and are used first;
    cached ones go to the end in the order in which they are given back, which for one request is
    from its last to its first. So what is evicted is the oldest, children before parents.
    """,
    shown="the place before is looked up once for all",
    shown_part="_insert",
)

ANSWERS = {
    "KVManager": MANAGER,
    "predicted_saved": PREDICTION,
    "hash_blocks": HASHES,
    "PrefixCache": CACHE,
    "failing_steps": STEPS,
    "publish_blocks": PUBLISH,
    "FreeList": FREE_LIST,
}
