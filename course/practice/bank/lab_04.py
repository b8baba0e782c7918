"""Lab 04, block tables: the pool, its arithmetic, growth, and what catches a broken allocator."""

from __future__ import annotations

from random import Random
from typing import Any

from course.engine.block_pool import BlockPool, DoubleFree, OutOfBlocks
from course.practice.compare import Parting
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt, int_list
from course.practice.guess import how_far

# ---- 4.1 the pool -------------------------------------------------------------------------------
#
# A pool is driven by operations on named holdings, never by block ids: which ids come first is the
# learner's choice. After each operation the log has what happened, how many blocks are free, and
# how many owners each held block has.


def play_pool(pool_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Operations: ["allocate", name, count], ["share", [names]], ["free", [names]]; a name may be
    a number, which is a block id as it stands, or "(A)": A's ids as something read once."""
    pool = pool_class(inputs["num_blocks"])
    held: dict[str, list[int]] = {}
    log: list[dict[str, Any]] = []
    for action, who, *rest in inputs["operations"]:
        entry: dict[str, Any] = {}
        if action == "allocate":
            result = attempt(lambda who=who, rest=rest: pool.allocate(rest[0]), *REFUSALS)
            entry |= {"what came of it": result.get("raised"), "something wrong": "nothing"}
            if "raised" not in result:
                ids = int_list(result["returned"], f"allocate({rest[0]})")
                taken = [i for name, others in held.items() if name != who for i in others]
                entry["what came of it"] = f"{len(ids)} blocks"
                entry["something wrong"] = _problem(ids, taken, inputs["num_blocks"])
                held[who] = list(ids)
                ids.append(-7)  # the list is the caller's: what happens to it is not the pool's
        else:
            ids = _ids(who, held)
            method = pool.share if action == "share" else pool.free
            result = attempt(lambda method=method, ids=ids: method(ids), *REFUSALS)
            came = result.get("raised", "no error")
            if came in ("ValueError", "IndexError", "DoubleFree") and (
                action == "share" or any(type(name) is int for name in who)
            ):
                came = "an error"  # any of these will do here
            entry["what came of it"] = came
        entry["free blocks"] = pool.num_free
        entry["owners"] = {name: [pool.ref_count(i) for i in ids] for name, ids in held.items()}
        log.append(entry)
    return log


REFUSALS = (OutOfBlocks, DoubleFree, ValueError, IndexError)


def _problem(ids: list[int], taken: list[int], num_blocks: int) -> str:
    if any(not 0 <= i < num_blocks for i in ids):
        return f"an id outside 0 to {num_blocks - 1}"
    if len(set(ids)) < len(ids):
        return "a block twice in one answer"
    if set(ids) & set(taken):
        return "a block that somebody else holds"
    return "nothing"


def _ids(names: list, held: dict[str, list[int]]) -> Any:
    ids: list[int] = []
    for name in names:
        ids += [name] if type(name) is int else held.get(name.strip("()"), [])
    once = any(type(name) is str and name.startswith("(") for name in names)
    return iter(ids) if once else ids


def _operation(operation: list) -> str:
    action, who, *rest = operation
    if action == "allocate":
        return f"{who} = allocate({rest[0]})"
    told = " + ".join(str(name) for name in who) or "[]"
    return f"{action}(iter({told.strip('()')}))" if told.startswith("(") else f"{action}({told})"


def _describe_pool(inputs: Inputs) -> str:
    told = "; ".join(map(_operation, inputs["operations"]))
    return f"{inputs['num_blocks']} blocks; {told}"


def _place_pool(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = f"after {_operation(inputs['operations'][int(number)])}"
    if len(rest) >= 2 and rest[0] == "owners":
        return f"{where}: owners of {rest[1]}" + (f"[{rest[2]}]" if len(rest) > 2 else "")
    return f"{where}: {rest[0] if rest else 'what came back'}"


def _churn(random: Random) -> Inputs:
    """Requests come and go; never more than fits."""
    num_blocks = random.choice([3, 5, 7, 11, 16])
    free, held, operations = num_blocks, {}, []
    for number in range(random.randint(6, 14)):
        if held and (not free or random.random() < 0.45):
            name = random.choice(sorted(held))
            free += held.pop(name)
            operations.append(["free", [name]])
        else:
            name = "ABCDEFGHIJKLMNOP"[number]
            held[name] = random.randint(1, max(1, free)) if free else 0
            free -= held[name]
            operations.append(["allocate", name, held[name]])
    # A freed name must not be looked at again: its blocks may be somebody else's by now.
    return {"num_blocks": num_blocks, "operations": _forget(operations)}


def _forget(operations: list) -> list:
    """After a free of a whole name, allocate nothing under it: holds no more blocks to look at."""
    told = []
    for operation in operations:
        told.append(operation)
        if operation[0] == "free":
            told.append(["allocate", operation[1][0], 0])
    return told


def _exhaust(random: Random) -> Inputs:
    num_blocks = random.choice([2, 4, 9, 13])
    first = random.randint(1, num_blocks - 1)
    left = num_blocks - first
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", first],
            ["allocate", "B", left + random.randint(1, 3)],
            ["allocate", "C", left],
            ["allocate", "D", 1],
        ],
    }


def _sharing(random: Random) -> Inputs:
    num_blocks = random.choice([4, 6, 10])
    count = random.randint(1, num_blocks - 1)
    owners = random.randint(2, 4)
    operations = [["allocate", "A", count]]
    operations += [["share", ["A"]]] * (owners - 1)
    operations += [["free", ["A"]]] * (owners - 1)
    return {
        "num_blocks": num_blocks,
        "operations": [*operations, ["allocate", "B", num_blocks - count], ["free", ["A"]]],
    }


def _double(random: Random) -> Inputs:
    num_blocks = random.choice([4, 7, 12])
    first = random.randint(1, num_blocks - 2)
    second = random.randint(1, num_blocks - first)
    wrong = random.choice([["A"], ["B", "A"], ["A", "B"]])
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", first],
            ["allocate", "B", second],
            ["free", ["A"]],
            ["free", wrong],
        ],
    }


def _listed_twice(random: Random) -> Inputs:
    num_blocks = random.choice([3, 8, 15])
    count = random.randint(1, num_blocks)
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", count],
            ["free", ["A", "A"]],
            ["share", ["A"]],
            ["free", ["A", "A", "A"]],
            ["free", ["A", "A"]],
        ],
    }


def _share_free(random: Random) -> Inputs:
    num_blocks = random.choice([4, 7, 12])
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", random.randint(1, num_blocks // 2)],
            ["allocate", "B", random.randint(1, num_blocks // 2)],
            ["free", ["B"]],
            ["share", random.choice([["A", "B"], ["B"], ["B", "A"]])],
        ],
    }


def _outside(random: Random) -> Inputs:
    num_blocks = random.choice([3, 6, 10])
    wrong = random.choice([num_blocks, num_blocks + 5, -1, -num_blocks])
    action = random.choice(["free", "share"])
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", num_blocks],
            [action, random.choice([[wrong], ["A", wrong], [wrong, "A"]])],
        ],
    }


def _none(random: Random) -> Inputs:
    num_blocks = random.choice([3, 6, 10])
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", 0],
            ["allocate", "B", random.randint(1, num_blocks)],
            ["allocate", "C", -random.randint(1, 3)],
            ["free", []],
            ["share", []],
        ],
    }


def _read_once(random: Random) -> Inputs:
    num_blocks = random.choice([3, 6, 10])
    count = random.randint(1, num_blocks)
    return {
        "num_blocks": num_blocks,
        "operations": [
            ["allocate", "A", count],
            ["share", ["(A)"]],
            ["free", ["(A)"]],
            ["free", ["(A)"]],
            ["allocate", "B", num_blocks],
        ],
    }


def _pool_probe(behaviour: str, make: Any, *examples: list, **more: Any) -> Probe:
    told = tuple({"num_blocks": n, "operations": list(ops)} for n, *ops in examples)
    return Probe(
        behaviour,
        play_pool,
        examples=told,
        make=make,
        describe=_describe_pool,
        place=_place_pool,
        **more,
    )


POOL = Exercise(
    id="4.1",
    title="A pool that lends out blocks",
    symbol="course.engine.block_pool:BlockPool",
    points=4,
    minutes=30,
    difficulty=3,
    blank=("allocate", "share", "free"),
    given={"free": (0, 2)},
    omit=("num_used", "usage", "free_blocks", "claim", "check_invariants"),
    trials="random runs of a pool",
    hints=(
        "What must be true of every block in the list before you change the first count? Read the "
        "docstring of `free` again: *all or nothing*.",
        '"I get `ValueError: block 3 is in the free list already`": you put a block back that is '
        "there. Either it still had an owner, or it stood in the list of ids twice. "
        "`Counter(block_ids)` says how often each id stands in it.",
        "`allocate` is two checks, `self._free.popleft_n(count)`, and a count of 1 for each block. "
        "`share` and `free` are both two loops: one that only looks and may raise, one that only "
        "counts and cannot fail.",
    ),
    probes=(
        _pool_probe(
            "no block has two holders",
            _churn,
            [16, ["allocate", "A", 2], ["allocate", "B", 1], ["allocate", "C", 2]],
            [3, ["allocate", "A", 3], ["free", ["A"]], ["allocate", "A", 3]],
            cases=10,
        ),
        _pool_probe(
            "with too few free, OutOfBlocks takes nothing",
            _exhaust,
            [4, ["allocate", "A", 3], ["allocate", "B", 2], ["allocate", "C", 1]],
        ),
        _pool_probe(
            "a shared block stays until its last owner frees it",
            _sharing,
            [4, ["allocate", "A", 2], ["share", ["A"]], ["free", ["A"]], ["free", ["A"]]],
        ),
        _pool_probe(
            "freeing what nobody owns is a DoubleFree, and changes nothing",
            _double,
            [4, ["allocate", "A", 2], ["free", ["A"]], ["free", ["A"]]],
            [4, ["allocate", "A", 1], ["allocate", "B", 2], ["free", ["A"]], ["free", ["B", "A"]]],
        ),
        _pool_probe(
            "a block listed twice needs two owners",
            _listed_twice,
            [4, ["allocate", "A", 1], ["free", ["A", "A"]]],
        ),
        _pool_probe(
            "a free block cannot be shared, and the refusal changes nothing",
            _share_free,
            [4, ["allocate", "A", 1], ["allocate", "B", 1], ["free", ["B"]], ["share", ["A", "B"]]],
        ),
        _pool_probe(
            "ids outside the pool are refused, and the refusal changes nothing",
            _outside,
            [4, ["allocate", "A", 4], ["free", ["A", 4]]],
            [4, ["allocate", "A", 4], ["free", [-1]]],
        ),
        _pool_probe(
            "no blocks for 0, an error for fewer",
            _none,
            [4, ["allocate", "A", 0], ["allocate", "B", -1]],
            cases=3,
        ),
        _pool_probe(
            "ids that can be read only once will do",
            _read_once,
            [4, ["allocate", "A", 2], ["free", ["(A)"]]],
            cases=3,
        ),
    ),
)


# ---- 4.2 blocks_needed --------------------------------------------------------------------------


def _call_needed(blocks_needed: Any, inputs: Inputs) -> Any:
    return blocks_needed(inputs["num_tokens"], inputs["block_size"])


def _refuse_needed(blocks_needed: Any, inputs: Inputs) -> Any:
    call = lambda: blocks_needed(inputs["num_tokens"], inputs["block_size"])  # noqa: E731
    return attempt(call, ValueError)


def _count(number: int, block_size: int) -> Inputs:
    return {"num_tokens": number, "block_size": block_size}


def _describe_count(inputs: Inputs) -> str:
    tokens = "token" if inputs["num_tokens"] == 1 else "tokens"
    return f"{inputs['num_tokens']} {tokens}, block size {inputs['block_size']}"


def _begun(random: Random) -> Inputs:
    """A last block that is begun and not full."""
    block_size = random.choice([2, 3, 4, 5, 16, 31, 64])
    return _count(
        block_size * random.randint(0, 90) + random.randint(1, block_size - 1), block_size
    )


NEEDED = Exercise(
    id="4.2",
    title="How many blocks",
    symbol="course.engine.block_table:blocks_needed",
    points=1,
    minutes=5,
    difficulty=1,
    given={"blocks_needed": (2, 0)},
    trials="random sizes",
    hints=(
        "Seven tokens in blocks of 4: how many blocks are full, and what of the rest?",
        '"`blocks_needed(8, 4)` gives 3": two blocks are exactly full. Only a block that is begun '
        "and not full is one more.",
        "Whole-number division `//` rounds down. Add something to `num_tokens` first, so that "
        "rounding down lands where you want; never divide with `/`.",
    ),
    probes=(
        Probe(
            "a block is counted as soon as it is begun",
            _call_needed,
            describe=_describe_count,
            examples=(_count(7, 4), _count(3, 4), _count(1, 16), _count(9, 4)),
            make=_begun,
            cases=12,
        ),
        Probe(
            "no block more when the last one is just full",
            _call_needed,
            describe=_describe_count,
            examples=(_count(8, 4), _count(16, 16)),
            make=lambda r: (lambda b: _count(b * r.randint(1, 90), b))(r.choice([1, 3, 4, 16])),
        ),
        Probe(
            "no tokens, no blocks",
            _call_needed,
            examples=(_count(0, 4), _count(0, 1)),
            describe=_describe_count,
        ),
        Probe(
            "very large counts come out to the block",
            _call_needed,
            describe=_describe_count,
            examples=(_count(2**60 + 1, 4),),
            make=lambda r: _count(2**55 + r.randrange(2**50), r.choice([3, 5, 16])),
            cases=4,
        ),
        Probe(
            "impossible sizes are refused",
            _refuse_needed,
            describe=_describe_count,
            examples=(_count(-1, 4), _count(5, 0), _count(5, -4)),
        ),
    ),
)


# ---- 4.3 slot_mapping ---------------------------------------------------------------------------


def _call_slots(slot_mapping: Any, inputs: Inputs) -> Any:
    return slot_mapping(list(inputs["blocks"]), list(inputs["positions"]), inputs["block_size"])


def _call_slots_once(slot_mapping: Any, inputs: Inputs) -> Any:
    return slot_mapping(tuple(inputs["blocks"]), iter(inputs["positions"]), inputs["block_size"])


def _refuse_slots(slot_mapping: Any, inputs: Inputs) -> Any:
    return attempt(lambda: _call_slots(slot_mapping, inputs), ValueError)


def _table(blocks: list[int], positions: list[int], block_size: int) -> Inputs:
    return {"blocks": blocks, "positions": positions, "block_size": block_size}


def _random_table(random: Random) -> Inputs:
    """A table in no order, and a chunk of its positions that crosses a boundary."""
    block_size = random.choice([2, 3, 4, 5, 7, 16])
    blocks = random.sample(range(40), random.randint(2, 6))
    first = random.randrange(block_size)
    last = random.randint(block_size, len(blocks) * block_size - 1)
    return _table(blocks, list(range(first, last + 1)), block_size)


def _scattered(random: Random) -> Inputs:
    block_size = random.choice([2, 3, 4, 8])
    blocks = random.sample(range(40), random.randint(2, 6))
    count = random.randint(3, 8)
    positions = [random.randrange(len(blocks) * block_size) for _ in range(count)]
    return _table(blocks, positions, block_size)


def _past(random: Random) -> Inputs:
    inputs = _random_table(random)
    end = len(inputs["blocks"]) * inputs["block_size"]
    inputs["positions"] = random.choice([[end], [0, end], [end + random.randint(1, 9)]])
    return inputs


def _negative(random: Random) -> Inputs:
    inputs = _random_table(random)
    end = len(inputs["blocks"]) * inputs["block_size"]
    inputs["positions"] = [0, -random.randint(1, end)]
    return inputs


def _given_back(random: Random) -> Inputs:
    inputs = _random_table(random)
    gone = random.randrange(len(inputs["blocks"]))
    inputs["blocks"][gone] = -1
    start = gone * inputs["block_size"]
    inputs["positions"] = [start + random.randrange(inputs["block_size"])]
    return inputs


def _beside_given_back(random: Random) -> Inputs:
    inputs = _random_table(random)
    inputs["blocks"][0] = -1
    inputs["positions"] = [p for p in inputs["positions"] if p >= inputs["block_size"]]
    return inputs


def _describe_table(inputs: Inputs) -> str:
    return f"blocks {inputs['blocks']}, block size {inputs['block_size']}"


def _describe_positions(inputs: Inputs) -> str:
    return f"{_describe_table(inputs)}, positions {inputs['positions']}"


def _place_position(parting: Parting, inputs: Inputs) -> str:
    place = parting.path[-1] if parting.path else None
    if parting.why != "value" or not isinstance(place, int):
        return ""
    position = inputs["positions"][place]
    logical, row = divmod(position, inputs["block_size"])
    return f"position {position} (row {row} of logical block {logical})"


SLOTS = Exercise(
    id="4.3",
    title="From positions to slots",
    symbol="course.engine.block_table:slot_mapping",
    points=3,
    minutes=15,
    difficulty=2,
    given={"slot_mapping": (1, 0)},
    trials="random tables",
    hints=(
        "Which block of the *table* does position 6 fall into, and which row of it?",
        '"I get `IndexError`": with block size 4, position 12 is in logical block 3. Does your '
        "table have four entries? Compare the position with what the table holds, before you look.",
        "`divmod` gives logical block and row at once. The table turns the logical block into a "
        "physical one, and that block's first slot is `block_id * block_size`.",
    ),
    probes=(
        Probe(
            "a table that is not in order",
            _call_slots,
            examples=(
                _table([7, 1, 3], [4, 5, 6, 7, 8], 4),
                _table([7, 1, 3], [0, 6, 7, 8], 4),
                _table([7, 0, 3], [3, 4, 8], 4),
            ),
            make=_random_table,
            cases=20,
            describe=_describe_table,
            place=_place_position,
            unit="slot",
        ),
        Probe(
            "positions in any order, some of them twice",
            _call_slots,
            examples=(_table([7, 1, 3], [8, 0, 8, 3], 4),),
            make=_scattered,
            cases=8,
            describe=_describe_positions,
            place=_place_position,
            unit="slot",
        ),
        Probe(
            "any sequence of blocks, positions that can be read only once",
            _call_slots_once,
            examples=(_table([7, 1], [0, 5], 4), _table([7], [], 4), _table([], [], 4)),
            make=_random_table,
            cases=3,
            describe=_describe_table,
            place=_place_position,
            unit="slot",
        ),
        Probe(
            "a position past the table is refused",
            _refuse_slots,
            examples=(_table([7, 1, 3], [12], 4), _table([], [0], 4)),
            make=_past,
            cases=4,
            describe=_describe_positions,
        ),
        Probe(
            "a negative position is refused",
            _refuse_slots,
            examples=(_table([7, 1, 3], [-1], 4),),
            make=_negative,
            cases=4,
            describe=_describe_positions,
        ),
        Probe(
            "a block that was given back (-1) is refused",
            _refuse_slots,
            examples=(_table([-1, 1, 3], [2], 4),),
            make=_given_back,
            cases=4,
            describe=_describe_positions,
        ),
        Probe(
            "the other blocks of such a table still serve",
            _call_slots,
            examples=(_table([-1, 1, 3], [4, 8], 4),),
            make=_beside_given_back,
            cases=4,
            describe=_describe_positions,
            place=_place_position,
            unit="slot",
        ),
    ),
)


# ---- 4.4 and 4.5 growth -------------------------------------------------------------------------

CALLS_POOL, CALLS_BLOCK_SIZE = 4, 4


def _calls(answer: Any) -> list[tuple[str, int]]:
    """The learner's calls, or Unusable that says what is wrong with them."""
    if type(answer) is not list or not answer:
        raise Unusable("failing_calls is a list of calls: [(request, num_tokens), ...]")
    for call in answer:
        good = type(call) in (tuple, list) and len(call) == 2
        if not good or type(call[0]) is not str or type(call[1]) is not int or call[1] < 1:
            raise Unusable(f'{call!r} is not a call; write it as (request, num_tokens): ("A", 7)')
    return [(call[0], call[1]) for call in answer]


def _granted(calls: list[tuple[str, int]], keeps_part: bool) -> list[bool]:
    """What growth answers to each call; ``keeps_part``: the faulty version."""
    free, held, answers = CALLS_POOL, {}, []
    for request, num_tokens in calls:
        need = -(-num_tokens // CALLS_BLOCK_SIZE) - held.get(request, 0)
        take = max(0, min(need, free)) if keeps_part or need <= free else 0
        held[request] = held.get(request, 0) + take
        free -= take
        answers.append(need <= take)
    return answers


def _right_grants(answer: Any, inputs: Inputs) -> str:
    calls = _calls(answer)
    *before, last = _granted(calls, keeps_part=False)
    if last:
        return "the last call is granted"
    if not before:
        return "the only call is refused, and rightly: there is no room"
    if all(before):
        return "the last call is refused, and rightly: the calls before it got what they asked for"
    return "the last call is refused, and rightly: it asks for more than is free"


def _faulty_refuses(answer: Any, inputs: Inputs) -> str:
    calls = _calls(answer)
    *before, last = _granted(calls, keeps_part=True)
    if not last:
        return "the last call is refused"
    if all(before):
        return "every call is granted: the fault does not show"
    return "the last call is granted, after one that was refused: the fault does not show"


def _is_short(answer: Any, inputs: Inputs) -> str:
    count = len(_calls(answer))
    return "at most 2 calls" if count <= 2 else f"{count} calls"


def _of_answer(inputs: Inputs) -> str:
    return ""


CALLS = Exercise(
    id="4.4",
    title="Find the bug: make growth fail",
    symbol="course.practice.answers.lab_04:failing_calls",
    kind="data",
    start="failing_calls = None  # [(request, num_tokens), ...]: at most two calls",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "Read the docstring's promise for the case of no room. After such a call, is the pool as "
        "it was before?",
        '"The last call is refused by both": then the pool was simply full. The first call must be '
        "the one that is refused, and the second one small enough for an empty pool.",
        "As A, ask for more than the whole pool can hold. Then ask for one block as somebody else.",
    ),
    probes=(
        Probe(
            "a growth that keeps its promise grants the last call",
            _right_grants,
            examples=({},),
            describe=_of_answer,
        ),
        Probe("the growth above refuses it", _faulty_refuses, examples=({},), describe=_of_answer),
        Probe("no shorter list would do", _is_short, examples=({},), describe=_of_answer),
    ),
)


def play_growth(grow_table: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Calls on one pool, each request with its table. Ids are the pool's: only changes count."""
    order = inputs["order"]
    pool = BlockPool(len(order), order=order)
    tables: dict[str, list[int]] = {name: [] for name, _ in inputs["calls"]}
    log = []
    for name, num_tokens in inputs["calls"]:
        table = tables[name]
        before = list(table)
        answer = grow_table(pool, table, num_tokens, inputs["block_size"])
        owned = [pool.ref_count(block) for block in table if 0 <= block < pool.num_blocks]
        log.append(
            {
                "the answer": answer,
                "blocks in the table": len(table),
                "free blocks": pool.num_free,
                "the blocks it had are still its first": table[: len(before)] == before,
                "each block has one owner": owned == [1] * len(table),
            }
        )
    return log


def _growth(random: Random) -> Inputs:
    block_size = random.choice([1, 2, 4, 7])
    num_blocks = random.randint(4, 12)
    order = random.sample(range(num_blocks), num_blocks)
    reached: dict[str, int] = {}
    calls = []
    for _ in range(random.randint(4, 9)):
        name = random.choice("ABC")
        step = random.choice([1, 1, block_size, random.randint(1, 3 * block_size)])
        wanted = reached.get(name, 0) + step
        calls.append([name, wanted])
        # Whether it was granted is not known here; a refused request asks for less or the same.
        if random.random() < 0.8:
            reached[name] = wanted
    return {"order": order, "block_size": block_size, "calls": calls}


def _one_by_one(random: Random) -> Inputs:
    block_size = random.choice([1, 2, 3, 4])
    num_blocks = random.randint(3, 6)
    order = random.sample(range(num_blocks), num_blocks)
    last = random.randint(block_size + 1, num_blocks * block_size)
    return {
        "order": order,
        "block_size": block_size,
        "calls": [["A", n] for n in range(1, last + 1)],
    }


def _crowded(random: Random) -> Inputs:
    block_size = random.choice([1, 3, 4])
    num_blocks = random.randint(3, 9)
    order = random.sample(range(num_blocks), num_blocks)
    first = random.randint(1, num_blocks - 1)
    left = num_blocks - first
    too_many = left * block_size + random.randint(1, 2 * block_size)
    most = num_blocks * block_size
    calls = [["A", first * block_size], ["B", too_many], ["A", most], ["A", most + 1]]
    return {"order": order, "block_size": block_size, "calls": calls}


def _backwards(random: Random) -> Inputs:
    inputs = _crowded(random)
    block_size, most = inputs["block_size"], inputs["calls"][0][1]
    inputs["calls"] = [["A", most + block_size], ["A", random.randint(1, most)], ["A", most]]
    return inputs


def _describe_growth(inputs: Inputs) -> str:
    calls = ", ".join(f"{name} to {tokens}" for name, tokens in inputs["calls"])
    return f"{len(inputs['order'])} blocks of {inputs['block_size']}; grow {calls}"


def _place_growth(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    name, tokens = inputs["calls"][int(number)]
    return f"after growing {name} to {tokens} tokens: {rest[0] if rest else 'what came back'}"


def _grow(order: list[int], block_size: int, *calls: tuple[str, int]) -> Inputs:
    return {"order": order, "block_size": block_size, "calls": [list(call) for call in calls]}


GROWTH = Exercise(
    id="4.5",
    title="Find the bug: mend growth",
    symbol="course.practice.answers.lab_04:grow_table",
    kind="mend",
    start="a refused request keeps the blocks it got before the pool ran out",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=5,
    offers=("OutOfBlocks",),
    trials="random sequences of calls",
    hints=(
        "How many blocks are missing can be known before the first one is taken.",
        '"`TypeError` or `None` where True is expected": every way out of the function returns '
        "True or False.",
        "Two named counts: what is wanted in all, and what the table holds. Compare their "
        "difference with `pool.num_free`, or let `pool.allocate` refuse all of it at once.",
    ),
    probes=(
        Probe(
            "one token at a time, a block only when it is needed",
            play_growth,
            examples=(_grow([7, 1, 3, 0, 2, 5, 4, 6], 4, ("A", 7), ("A", 8), ("A", 9)),),
            make=_one_by_one,
            describe=_describe_growth,
            place=_place_growth,
        ),
        Probe(
            "many tokens at once",
            play_growth,
            examples=(_grow([2, 0, 1, 3], 4, ("A", 11), ("A", 16)),),
            make=_growth,
            cases=10,
            describe=_describe_growth,
            place=_place_growth,
        ),
        Probe(
            "a refusal changes nothing",
            play_growth,
            examples=(_grow([2, 0, 1, 3], 4, ("A", 17), ("B", 1), ("B", 17)),),
            make=_crowded,
            describe=_describe_growth,
            place=_place_growth,
        ),
        Probe(
            "no block is given back when fewer tokens are asked for",
            play_growth,
            examples=(_grow([2, 0, 1, 3], 4, ("A", 9), ("A", 2)),),
            make=_backwards,
            cases=4,
            describe=_describe_growth,
            place=_place_growth,
        ),
    ),
)


# ---- 4.6 find_fault -----------------------------------------------------------------------------


class PoolView:
    """A pool to look at: what ``find_fault`` may ask. Not a pool that works."""

    def __init__(self, state: Inputs):
        self.num_blocks: int = state["num_blocks"]
        self.num_free: int = state["num_free"]
        self.free_blocks: list[int] = list(state["free"])
        self._counts: list[int] = list(state["counts"])

    def ref_count(self, block_id: int) -> int:
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"block {block_id} is outside the pool 0..{self.num_blocks - 1}")
        return self._counts[block_id]


def _look(find_fault: Any, inputs: Inputs) -> str:
    tables = {name: list(table) for name, table in inputs["tables"].items()}
    found = find_fault(PoolView(inputs), tables)
    if found is None:
        return "sound"
    if type(found) is not str or not found.strip():
        raise Unusable(
            f"find_fault gave {found!r}; give a sentence that says what is wrong, or None"
        )
    return "a fault"


def _sound(random: Random, full: bool = False, empty: bool = False, most: int = 14) -> Inputs:
    """A state that a right pool can be in; a block may stand in several tables."""
    num_blocks = random.randint(5, most)
    ids = random.sample(range(num_blocks), num_blocks)
    used = 0 if empty else num_blocks if full else random.randint(3, num_blocks - 2)
    tables: dict[str, list[int]] = {"A": [], "B": [], "C": []}
    for block in ids[:used]:
        tables[random.choice("AB")].append(block)
    if used and random.random() < 0.7:  # C has forked from A or B
        parent = tables[random.choice([n for n in "AB" if tables[n]])]
        tables["C"] = parent[: random.randint(1, len(parent))]
    return _state(num_blocks, ids[used:], tables)


def _state(num_blocks: int, free: list[int], tables: dict[str, list[int]]) -> Inputs:
    counts = [sum(t.count(block) for t in tables.values()) for block in range(num_blocks)]
    return {
        "num_blocks": num_blocks,
        "num_free": len(free),
        "free": free,
        "counts": counts,
        "tables": tables,
    }


def _broken(how: str, random: Random, most: int = 14) -> Inputs:
    """A state that a broken allocator leaves behind."""
    state = _sound(random, most=most)
    while not state["tables"]["A"] or not state["tables"]["B"]:
        state = _sound(random, most=most)
    free, counts, tables = state["free"], state["counts"], state["tables"]
    block = random.choice(tables["A"])
    spare = random.choice(free)
    match how:
        case "freed twice":
            free.insert(random.randrange(len(free) + 1), spare)
            state["num_free"] += 1
        case "leaked":
            free.remove(spare)
            state["num_free"] -= 1
        case "never freed":
            free.remove(spare)
            counts[spare] = 1
            state["num_free"] -= 1
        case "freed too early":
            free.append(block)
            state["num_free"] += 1
        case "given out twice":
            tables["B"].append(block)
        case "counted once too often":
            counts[block] += 1
        case "free and counted":
            counts[spare] = 1
        case "the counter drifted":
            state["num_free"] += random.choice([1, 2])
        case "owned without a count":
            tables["B"].append(spare)
        case "twice in one table":
            table = tables["A"]
            table.insert(random.randint(1, len(table)), table[0])
            counts[table[0]] += 1
        case "a table entry from nowhere":
            wrong = random.choice([-1, state["num_blocks"], state["num_blocks"] + 3])
            tables["B"].append(wrong)
        case "a free id from nowhere":
            # In place of a real one, so that lengths still agree.
            free[free.index(spare)] = random.choice([state["num_blocks"], -1])
    return state


def _describe_state(inputs: Inputs) -> str:
    tables = ", ".join(f"{name} {table}" for name, table in inputs["tables"].items() if table)
    return (
        f"{inputs['num_blocks']} blocks, num_free {inputs['num_free']}, free {inputs['free']}, "
        f"counts {inputs['counts']}, tables {tables or 'none'}"
    )


FAULTS = {
    "freed twice": "a block that was freed twice",
    "leaked": "a block that is neither free nor in a table",
    "never freed": "a request that left without giving its block back",
    "freed too early": "a block freed while its owner still uses it",
    "given out twice": "a block given to a second request without counting it",
    "counted once too often": "a block counted once too often",
    "free and counted": "a free block with an owner on record",
    "the counter drifted": "a counter of free blocks that has drifted",
    "owned without a count": "a request that uses a block it never took",
    "twice in one table": "a table that names one block twice, counted as two owners",
    "a table entry from nowhere": "a table that names a block outside the pool",
    "a free id from nowhere": "a free list that names a block outside the pool",
}


def _fault_probe(how: str, behaviour: str) -> Probe:
    return Probe(
        f"catches {behaviour}",
        _look,
        examples=(_broken(how, Random(f"first {how}"), most=6),),
        make=lambda random: _broken(how, random),
        describe=_describe_state,
    )


def _alarm_probe(behaviour: str, *examples: Inputs, **how: bool) -> Probe:
    return Probe(
        behaviour,
        _look,
        examples=examples,
        make=lambda random: _sound(random, **how),
        describe=_describe_state,
    )


FIND_FAULT = Exercise(
    id="4.6",
    title="What must always be true",
    symbol="course.practice.answers.lab_04:find_fault",
    points=4,
    minutes=20,
    difficulty=3,
    piece=False,
    trials="states of good and broken pools",
    hints=(
        "Write the invariant of the pool down as a sentence first: which blocks are in the free "
        "list, and what is the count of every other block?",
        '"It cries wolf at a right pool": two requests may hold one block, that is what the count '
        "is for. Count every place where a block stands in a table.",
        "Count the tables once (`Counter`). Then walk over *all* blocks, 0 to num_blocks - 1: is "
        "the count right, and is the block in the free list exactly when the count is 0? Four "
        "more things can be wrong that this walk does not see.",
    ),
    probes=(
        _alarm_probe(
            "says nothing of a right pool, shared blocks or not",
            _state(6, [4, 1, 0], {"A": [5, 2], "B": [3], "C": [5, 2]}),
        ),
        _alarm_probe("says nothing of a pool with nothing free", full=True),
        _alarm_probe("says nothing of a pool that nobody uses", empty=True),
        *(_fault_probe(how, behaviour) for how, behaviour in FAULTS.items()),
    ),
)


# ---- 4.7 a prediction ---------------------------------------------------------------------------

SIZES = (1, 4, 16, 64)


def measured_empty_slots(block_size: int) -> float:
    """Mean number of empty slots at the end of a table, over 2,000 requests of the Azure mix."""
    from course.workload.lengths import mix

    totals = [sum(lengths) for lengths in mix("azure_conv_2023").sample(2000, seed=4)]
    return sum(-total % block_size for total in totals) / len(totals)


def _near(answer: Any, inputs: Inputs) -> str:
    size = inputs["block_size"]
    guess = answer.get(size) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(f"there is no number for block size {size}: {{1: ..., 4: ..., 16: ...}}")
    measured = measured_empty_slots(size)
    if abs(guess - measured) <= max(0.1 * measured, 0.25):
        return "within 10 %, or a quarter of a slot, of what is measured"
    return f"you say {guess:g}: {how_far(guess, measured)}"


PREDICTION = Exercise(
    id="4.7",
    title="Predict, then measure: what is still wasted",
    symbol="course.practice.answers.lab_04:predicted_empty_slots",
    kind="data",
    start="predicted_empty_slots = {1: None, 4: None, 16: None, 64: None}",
    points=2,
    minutes=10,
    difficulty=1,
    piece=False,
    lines=1,
    hints=(
        "With blocks of 4, a request ends with 1, 2, 3 or 4 tokens in its last block. How many "
        "slots are empty in each case?",
        '"My number for block size 1 is not 0": can a block of one slot be partly filled?',
        "Lengths fall evenly on the remainders. So it is the mean of 0, 1, ..., block size - 1.",
    ),
    probes=tuple(
        Probe(
            f"empty slots a request with blocks of {size}",
            _near,
            examples=({"block_size": size},),
            describe=_of_answer,
            measured=lambda inputs: f"{measured_empty_slots(inputs['block_size']):.2f}",
        )
        for size in SIZES
    ),
)

EXERCISES = (POOL, NEEDED, SLOTS, CALLS, GROWTH, FIND_FAULT, PREDICTION)
