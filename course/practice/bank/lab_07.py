"""Lab 07, sharing: forks and copies, prefix hashes, the cache, its faults, and who goes first."""

from __future__ import annotations

from random import Random
from typing import Any

from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.practice.compare import Parting
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt, int_list
from course.practice.guess import how_far

# ---- 7.1 fork, grow, release --------------------------------------------------------------------
#
# A manager is driven by operations on requests. Beside it lies a memory in which each slot holds a
# token: copies are made in it, tokens are written into it, and after each operation every request
# must read its own tokens back. So nothing depends on which block has which id.


class _Server:
    """A manager, its requests and the memory that their blocks stand for."""

    def __init__(self, manager_class: Any, inputs: Inputs):
        self.size: int = inputs["block_size"]
        self.kv = manager_class(
            inputs["num_blocks"], self.size, sliding_window=inputs.get("window")
        )
        self.requests: dict[str, Request] = {}
        self.memory: dict[int, int] = {}  # slot -> token
        self.next_token = 5000

    def admit(self, name: str, stream: int, num_tokens: int) -> str:
        """A prompt of a stream: two requests of one stream begin alike."""
        request = Request(name, [100 * stream + i for i in range(num_tokens)], SamplingParams())
        if not self.kv.admit(request, num_tokens):
            return "no room"
        self.requests[name] = request
        cached = request.num_computed_tokens
        self._write(request)
        return f"{cached} tokens found in the cache"

    def fork(self, parent: str, child: str) -> str:
        of = self.requests.get(parent)
        if of is None:
            raise Unusable(f"{parent} has no table")
        born = Request(child, of.token_ids, SamplingParams())
        answer = attempt(lambda: self.kv.fork(of, born), ValueError)
        if "raised" in answer:
            return "ValueError"
        self.requests[child] = born
        told = self._copy(answer["returned"], f"fork({parent}, {child})")
        return f"{told}; computed {born.num_computed_tokens}, cached {born.num_cached_tokens}"

    def room(self, name: str, num_tokens: int) -> str:
        """Room for so many tokens in all, of which none is written now."""
        answer = self.kv.grow(self.requests[name], num_tokens)
        if answer is None:
            return "no room"
        return self._copy(answer, f"grow({name}, {num_tokens})")

    def grow(self, name: str, count: int) -> str:
        request = self.requests.get(name)
        if request is None:
            return "there is no such request"
        before = list(request.token_ids)
        request.token_ids += range(self.next_token, self.next_token + count)
        self.next_token += count
        answer = self.kv.grow(request, request.num_tokens)
        if answer is None:
            request.token_ids[:] = before
            return "no room"
        told = self._copy(answer, f"grow({name}, {request.num_tokens})")
        self._write(request)
        return told

    def release(self, name: str) -> str:
        request = self.requests.get(name)
        if request is None:
            return "there is no such request"
        answer = attempt(lambda: self.kv.release(request), ValueError)
        return "ValueError" if "raised" in answer else "released"

    def find(self, stream: int, num_tokens: int) -> str:
        tokens = [100 * stream + i for i in range(num_tokens)]
        found = self.kv.cached_tokens(Request("twin", tokens, SamplingParams()))
        return f"{found} tokens found"

    def _copy(self, copies: Any, what: str) -> str:
        if type(copies) is not list or not all(
            type(pair) in (tuple, list) and len(pair) == 2 and set(map(type, pair)) == {int}
            for pair in copies
        ):
            raise Unusable(f"{what} gave {copies!r}, not a list of (source, destination)")
        for row in range(self.size):  # all sources are read before a destination is written
            taken = {d * self.size + row: self.memory.get(s * self.size + row) for s, d in copies}
            self.memory.update({slot: token for slot, token in taken.items() if token is not None})
        return {0: "no copy", 1: "1 copy"}.get(len(copies), f"{len(copies)} copies")

    def _write(self, request: Request) -> None:
        table = self.kv.tables[request.request_id]
        for position in range(request.num_computed_tokens, request.num_tokens):
            block, row = divmod(position, self.size)
            if block < len(table):
                self.memory[table[block] * self.size + row] = request.token_ids[position]
        request.num_computed_tokens = request.num_tokens
        if self.kv.prefix_caching and request.num_tokens <= len(table) * self.size:
            self.kv.publish(request)

    def state(self) -> dict[str, Any]:
        tables = {name: list(table) for name, table in sorted(self.kv.tables.items())}
        return {
            "free blocks": self.kv.num_free,
            "owners": {
                name: [-1 if i < 0 else self.kv.pool.ref_count(i) for i in table]
                for name, table in tables.items()
            },
            "reads back": {name: self._reads(name) for name in tables},
            "requests on record": ", ".join(sorted(self.kv.requests)),
        }

    def _reads(self, name: str) -> str:
        table, request = self.kv.tables[name], self.requests[name]
        for position in range(request.num_computed_tokens):
            block, row = divmod(position, self.size)
            if block >= len(table):
                return f"no block for position {position}"
            token = self.memory.get(table[block] * self.size + row)
            if table[block] >= 0 and token != request.token_ids[position]:
                what = "nothing" if token is None else "somebody else's token"
                return f"{what} at position {position}"
        return "its own tokens"


def play_manager(manager_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """After each operation: what came of it, free blocks, owners, and what each reads back."""
    server = _Server(manager_class, inputs)
    log = []
    for action, *rest in inputs["operations"]:
        came = getattr(server, action)(*rest)
        log.append({"what came of it": came, **server.state()})
    return log


def _told(operation: list) -> str:
    match operation:
        case ["admit", name, stream, count]:
            return f"admit {name} ({count} tokens of text {stream})"
        case ["fork", parent, child]:
            return f"fork {parent} to {child}"
        case ["grow", name, count]:
            return f"grow {name} by {count}"
        case ["room", name, count]:
            return f"room for {count} tokens of {name}"
        case ["release", name]:
            return f"release {name}"
        case ["find", stream, count]:
            return f"find {count} tokens of text {stream}"
    raise ValueError(operation)


def _describe_manager(inputs: Inputs) -> str:
    window = f", window {inputs['window']}" if inputs.get("window") else ""
    told = "; ".join(map(_told, inputs["operations"]))
    return f"{inputs['num_blocks']} blocks of {inputs['block_size']}{window}; {told}"


def _place_manager(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = f"after '{_told(inputs['operations'][int(number)])}'"
    what = str(rest[0]) if rest else "what came back"
    if what in ("owners", "reads back") and len(rest) > 1:
        what = f"owners of {rest[1]}'s blocks" if what == "owners" else f"what {rest[1]} reads back"
        if len(rest) > 2:
            what = f"owners of block {rest[2]} of {rest[1]}'s table"
    return f"{where}: {what}"


def _day(num_blocks: int, block_size: int, *operations: list, **more: Any) -> Inputs:
    return {"num_blocks": num_blocks, "block_size": block_size, "operations": [*operations], **more}


def _family(random: Random, remainder: bool) -> tuple[int, int, list[list]]:
    """A parent whose last block is full, or not, and one to three children."""
    size = random.choice([2, 3, 4, 5])
    tokens = size * random.randint(1, 3)
    if remainder:
        tokens += random.randint(1, size - 1)
    children = [f"A/{n}" for n in range(1, random.randint(2, 4))]
    return size, tokens, [["admit", "A", 1, tokens], *(["fork", "A", c] for c in children)]


def _forks(random: Random) -> Inputs:
    size, _, operations = _family(random, random.random() < 0.5)
    names = ["A", *(o[2] for o in operations[1:])]
    random.shuffle(names)
    return _day(9, size, *operations, *(["release", name] for name in names))


def _writers(random: Random) -> Inputs:
    size, _, operations = _family(random, remainder=True)
    names = ["A", *(o[2] for o in operations[1:])]
    random.shuffle(names)
    steps = [["grow", name, 1] for _ in range(2) for name in names]
    return _day(40, size, *operations, *steps)


def _full(random: Random) -> Inputs:
    size, _, operations = _family(random, remainder=False)
    names = ["A", *(o[2] for o in operations[1:])]
    random.shuffle(names)
    return _day(40, size, *operations, *(["grow", name, random.randint(1, 2)] for name in names))


def _chunks(random: Random) -> Inputs:
    size, tokens, operations = _family(random, remainder=True)
    ahead = ["room", "A", tokens + random.randint(size, 3 * size)]
    names = ["A", *(o[2] for o in operations[1:])]
    random.shuffle(names)
    steps = [["grow", name, random.randint(1, 2 * size)] for name in names]
    return _day(60, size, operations[0], ahead, *operations[1:], *steps)


def _crowded(random: Random) -> Inputs:
    size = random.choice([2, 3, 4])
    blocks = random.randint(1, 3)
    tokens = size * blocks + random.randint(1, size - 1)
    spare = random.randint(0, 2)
    over = size * (spare + 1)  # with the copy it is one block too many
    operations = [
        ["admit", "A", 1, tokens],
        ["fork", "A", "A/1"],
        ["grow", "A/1", over],
        ["grow", "A", over + size],
        ["grow", "A", 1],
        ["grow", "A/1", 1],
    ]
    return _day(blocks + 1 + spare, size, *operations)


def _evicting(random: Random) -> Inputs:
    size, blocks = random.choice([2, 3, 4]), random.randint(2, 4)
    tokens = size * blocks
    taken = random.randint(1, blocks)
    return _day(
        blocks + 1,
        size,
        ["admit", "A", 1, tokens],
        ["release", "A"],
        ["admit", "B", 2, 1],
        ["grow", "B", size * taken],
        ["find", 1, tokens + 1],
        ["release", "B"],
        ["find", 1, tokens + 1],
    )


def _children_first(random: Random) -> Inputs:
    size, blocks = random.choice([2, 3, 4]), random.randint(2, 5)
    spare = random.randint(0, 3)
    rest = random.randint(1, size - 1)
    operations = [["admit", "A", 1, size * blocks + rest], ["release", "A"]]
    for number, taken in enumerate(sorted(random.sample(range(spare + 1, spare + blocks + 2), 2))):
        operations += [["admit", f"B{number}", 2, 1], ["grow", f"B{number}", size * (taken - 1)]]
        operations += [["find", 1, size * blocks + 1], ["release", f"B{number}"]]
    return _day(blocks + 1 + spare, size, *operations)


def _refused(random: Random) -> Inputs:
    size, _, operations = _family(random, random.random() < 0.5)
    again = random.choice([["fork", "A", "A/1"], ["fork", "A/1", "A"], ["fork", "A", "A"]])
    gone = random.choice(["A", "A/1"])
    return _day(9, size, *operations, again, ["release", gone], ["release", gone])


def _windowed(random: Random) -> Inputs:
    size = random.choice([2, 3])
    window = random.randint(2, 4)
    tokens = window + size * random.randint(2, 3)
    operations = [["admit", "A", 1, tokens], ["fork", "A", "A/1"], ["grow", "A/1", 1]]
    operations += [["grow", "A", 1], ["release", "A"], ["release", "A/1"]]
    return _day(24, size, *operations, window=window)


def _manager_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_manager,
        examples=examples,
        make=make,
        describe=_describe_manager,
        place=_place_manager,
        **more,
    )


_A, _A1, _A2 = ["admit", "A", 1, 7], ["fork", "A", "A/1"], ["fork", "A", "A/2"]

MANAGER = Exercise(
    id="7.1",
    title="One block in many tables",
    symbol="course.engine.kv_manager:KVManager",
    points=6,
    minutes=30,
    difficulty=3,
    blank=("grow", "fork", "release"),
    given={"grow": (1, 0)},
    omit=("max_samples", "longest_sequence", "check_invariants"),
    trials="random families",
    hints=(
        "Begin with `fork` and `release`: after a fork, in how many tables does each block stand, "
        "and whose list of ids does the child hold? In `grow`, which blocks will be *written*: "
        "those from which logical block on? Which of them may be written as they are?",
        '"`OutOfBlocks` comes out of grow": the copies need blocks too. Count both, the blocks '
        "that are missing and the blocks to be copied, before you take the first.\n\n"
        '"It reads somebody else\'s token": two requests wrote into one block, or the copy was '
        "told the wrong way round. It is (source, destination).",
        "`grow` has three parts: a list of the logical blocks from "
        "`num_computed_tokens // block_size` on that are in the table, wanted, and have more than "
        "one owner; one comparison with `self.num_free`; then, for each of the list, take one "
        "block, put it into the table, give the old one back, and note the pair.",
    ),
    probes=(
        _manager_probe(
            "a fork takes no block and counts one owner more",
            _forks,
            _day(16, 4, _A, _A1, ["release", "A"], ["release", "A/1"]),
            _day(16, 4, _A, _A1, ["fork", "A/1", "A/2"], ["release", "A/1"]),
            _day(16, 4, _A, ["release", "A"], ["admit", "B", 1, 7], ["fork", "B", "B/1"]),
            cases=4,
        ),
        _manager_probe(
            "a shared block is copied before it is written, and the last owner copies nothing",
            _writers,
            _day(16, 4, _A, _A1, ["grow", "A", 1], ["grow", "A/1", 1]),
            _day(16, 4, _A, _A1, _A2, ["grow", "A/1", 1], ["grow", "A", 1], ["grow", "A/2", 1]),
            cases=5,
        ),
        _manager_probe(
            "a full block is shared on and never copied",
            _full,
            _day(16, 4, ["admit", "A", 1, 8], _A1, ["grow", "A", 1], ["grow", "A/1", 1]),
            cases=4,
        ),
        _manager_probe(
            "of many tokens at once, every shared block that they touch is copied",
            _chunks,
            _day(16, 4, _A, _A1, ["grow", "A/1", 6], ["grow", "A", 2]),
            _day(16, 4, _A, ["room", "A", 12], _A1, ["grow", "A/1", 5], ["grow", "A", 2]),
            _day(16, 4, _A, ["room", "A", 12], ["room", "A", 2], _A1, ["grow", "A/1", 1]),
            cases=4,
        ),
        _manager_probe(
            "with too few blocks for new ones and copies, nothing changes",
            _crowded,
            _day(2, 4, _A, _A1, ["grow", "A/1", 1], ["release", "A"], ["grow", "A/1", 1]),
            _day(3, 4, _A, _A1, ["grow", "A", 2], ["grow", "A", 1], ["grow", "A/1", 1]),
            cases=4,
        ),
        _manager_probe(
            "a block that is taken can no longer be found as what it held",
            _evicting,
            _day(
                2,
                4,
                ["admit", "A", 1, 4],
                ["release", "A"],
                ["admit", "B", 2, 1],
                ["grow", "B", 4],
                ["find", 1, 5],
            ),
            cases=3,
        ),
        _manager_probe(
            "blocks are given back so that a child is reused before its parent",
            _children_first,
            _day(
                3,
                4,
                ["admit", "A", 1, 12],
                ["release", "A"],
                ["admit", "B", 2, 1],
                ["find", 1, 13],
            ),
            cases=4,
        ),
        _manager_probe(
            "what must be refused is refused, and changes nothing",
            _refused,
            _day(16, 4, _A, _A1, _A1, ["release", "A"], ["release", "A"]),
            cases=3,
        ),
        _manager_probe(
            "entries of -1 in a table are left alone",
            _windowed,
            _day(16, 2, ["admit", "A", 1, 9], _A1, ["grow", "A/1", 1], ["release", "A"], window=4),
            cases=3,
        ),
    ),
)


# ---- 7.2 a prediction ---------------------------------------------------------------------------

MIXES = {"azure": "azure_conv_2023", "sharegpt": "paper_sharegpt", "alpaca": "paper_alpaca"}
SAMPLES, SIZE = 4, 16


def measured_saved(name: str) -> float:
    """Percent of the blocks that four samples of one prompt save, at their end, in the mean."""
    from course.workload.lengths import mix

    held = alone = 0
    for prompt, output in mix(MIXES[name]).sample(200, seed=7):
        each = -(-(prompt + output) // SIZE)
        shared = prompt // SIZE
        held += shared + SAMPLES * (each - shared)
        alone += SAMPLES * each
    return 100 * (1 - held / alone)


def _near(answer: Any, inputs: Inputs) -> str:
    name = inputs["mix"]
    guess = answer.get(name) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(f'there is no number for {name}: {{"azure": ..., "sharegpt": ...}}')
    measured = measured_saved(name)
    if abs(guess - measured) <= 3:
        return "within 3 points of what is measured"
    told = f"about {guess:.0f} %" if guess == 0 or guess >= 1 else "less than 1 %"
    return f"you say {told}: {how_far(guess, measured)}"


def _of_answer(inputs: Inputs) -> str:
    return ""


PREDICTION = Exercise(
    id="7.2",
    title="Predict, then measure: what four samples save",
    symbol="course.practice.answers.lab_07:predicted_saved",
    kind="data",
    start='predicted_saved = {"azure": None, "sharegpt": None, "alpaca": None}  # percent',
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "At their end, which blocks do four samples still share, and which does each have for "
        "itself?",
        '"My number for Alpaca is too high": a prompt of 20 tokens has *one* full block of 16. '
        "The block in which the prompt ends is soon written into by everybody.",
        "Blocks saved: 3 times the full blocks of a prompt, about (prompt - 7.5) / 16. Blocks "
        "without sharing: 4 times about (prompt + answer + 7.5) / 16. Divide, times 100.",
    ),
    probes=tuple(
        Probe(
            f"saved with the lengths of {name}",
            _near,
            ({"mix": name},),
            describe=_of_answer,
            measured=lambda inputs: f"{measured_saved(inputs['mix']):.1f} %",
        )
        for name in MIXES
    ),
)


# ---- 7.3 hash_blocks ----------------------------------------------------------------------------
#
# Digests are the learner's own affair. What counts is which of them are equal.


def _contained(ids: list[int], kind: str) -> Any:
    import array

    import numpy as np

    match kind:
        case "tuple":
            return tuple(ids)
        case "array":
            return array.array("q", ids)
        case "list":
            return list(ids)
    return np.array(ids, dtype=kind)


def _key(key: Any) -> Any:
    return key["bytes"].encode() if type(key) is dict else key


def play_chains(hash_blocks: Any, inputs: Inputs) -> list[list[str]]:
    """For each block of each prompt: which earlier one has the same hash, or none."""
    chains: list[list[bytes]] = []
    told: list[list[str]] = []
    seen: dict[bytes, str] = {}
    for number, prompt in enumerate(inputs["prompts"], start=1):
        arguments = {}
        if prompt.get("goes on from") is not None:
            before, block = prompt["goes on from"]
            if len(chains[before]) <= block:
                raise Unusable(f"prompt {before + 1} has only {len(chains[before])} hashes")
            arguments["parent"] = chains[before][block]
        ids = _contained(prompt["ids"], prompt.get("as", "list"))
        chain = hash_blocks(ids, inputs["block_size"], _key(prompt.get("key")), **arguments)
        if type(chain) is not list:
            raise Unusable(f"hash_blocks gave {_kind(chain)}, not a list of hashes")
        for block_hash in chain:
            if type(block_hash) is not bytes or len(block_hash) != 32:
                raise Unusable(f"a hash is {_kind(block_hash)}; it must be 32 bytes")
        chains.append(chain)
        told.append([])
        for block, block_hash in enumerate(chain):
            told[-1].append(seen.get(block_hash, "a new one"))
            seen.setdefault(block_hash, f"that of block {block} of prompt {number}")
    return told


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{len(value)} bytes" if type(value) is bytes else f"of type {name}"


def _spread(hash_blocks: Any, inputs: Inputs) -> str:
    """How many of the 32 bytes are nearly the same in every hash: in a digest, none."""
    chain = hash_blocks(list(inputs["ids"]), inputs["block_size"])
    if not all(type(h) is bytes and len(h) == 32 for h in chain):
        raise Unusable("a hash is not 32 bytes")
    # A sign that fills the rest makes two kinds: 00 and ff. 40 hashes have more of every byte.
    alike = sum(len({h[place] for h in chain}) <= 2 for place in range(32))
    return f"{alike} bytes are nearly the same in all of them"


def _refuse_ids(hash_blocks: Any, inputs: Inputs) -> Any:
    answer = attempt(lambda: hash_blocks(inputs["ids"], inputs["block_size"]), ValueError)
    return answer.get("raised", "no error")


def _show_prompt(prompt: Inputs) -> str:
    told = str(prompt["ids"])
    if prompt.get("as"):
        told = f"{prompt['as']} {told}"
    if prompt.get("key") is not None:
        told += f" with key {_key(prompt['key'])!r}"
    if prompt.get("goes on from") is not None:
        before, block = prompt["goes on from"]
        told += f" behind block {block} of prompt {before + 1}"
    return told


def _describe_prompts(inputs: Inputs) -> str:
    told = " and ".join(map(_show_prompt, inputs["prompts"]))
    return f"{told}, block size {inputs['block_size']}"


def _describe_ids(inputs: Inputs) -> str:
    return f"{inputs['ids']}, block size {inputs['block_size']}"


def _place_hash(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    prompt, *block = parting.path
    number = f"prompt {int(prompt) + 1}"
    return f"the hash of block {block[0]} of {number}" if block else f"the hashes of {number}"


def _prompts(block_size: int, *prompts: Any) -> Inputs:
    found = [p if type(p) is dict else {"ids": p} for p in prompts]
    return {"block_size": block_size, "prompts": found}


def _ids(random: Random, count: int) -> list[int]:
    return [random.choice([random.randrange(40), random.randrange(2**32)]) for _ in range(count)]


def _lengths(random: Random) -> Inputs:
    size = random.choice([1, 2, 3, 4, 7])
    return _prompts(size, _ids(random, size * random.randint(0, 3) + random.randrange(size)))


def _alike(random: Random) -> Inputs:
    size = random.choice([1, 2, 3, 4])
    start = _ids(random, size * random.randint(1, 3))
    return _prompts(
        size, start + _ids(random, size), start + _ids(random, size), start[: len(start) - 1]
    )


def _other_beginning(random: Random) -> Inputs:
    size = random.choice([1, 2, 3])
    left = _ids(random, size * random.randint(2, 4))
    right = list(left)
    place = random.randrange(size)
    right[place] = (right[place] + random.choice([1, 256])) % 2**32
    return _prompts(size, left, right, left[size:])


def _swapped(random: Random) -> Inputs:
    """The same ids in another order, or shifted by sums that many simple hashes cannot tell."""
    size = random.choice([2, 3, 4])
    left = [random.randrange(40, 60000) for _ in range(size)]
    right = list(left)
    a, b = random.sample(range(size), 2)
    if random.random() < 0.5:
        right[a], right[b] = right[b] + (left[a] == left[b]), right[a]
    else:
        right[a], right[b] = right[a] + 1, right[b] - 1
    return _prompts(size, left, right)


def _wide(random: Random) -> Inputs:
    size = random.choice([1, 2, 3])
    left = [random.randrange(2**16) for _ in range(size)]
    place = random.randrange(size)
    right = list(left)
    right[place] += 2 ** random.choice([16, 20, 31])
    return _prompts(size, left, right)


def _containers(random: Random) -> Inputs:
    size = random.choice([2, 3, 4])
    ids = [random.randrange(200) for _ in range(size * 2 + 1)]
    kinds = random.sample(["tuple", "array", "int64", "int32", "uint8", "uint32"], 3)
    return _prompts(size, {"ids": ids}, *({"ids": ids, "as": kind} for kind in kinds))


def _keys(random: Random) -> Inputs:
    size = random.choice([1, 2, 3])
    ids = _ids(random, size * random.randint(2, 3))
    keys = [None, "a", "tenant 7", "", {"bytes": "a"}, {"bytes": ""}]
    chosen = random.sample(keys, 3)
    return _prompts(size, *({"ids": ids, "key": key} for key in [*chosen, chosen[0]]))


def _goes_on(random: Random) -> Inputs:
    size = random.choice([1, 2, 3])
    ids = _ids(random, size * random.randint(3, 5))
    cut = random.randint(1, len(ids) // size - 1)
    key = random.choice([None, "a", "tenant 7"])
    rest = {"ids": ids[cut * size :], "goes on from": [0, cut - 1], "key": key}
    other = {"ids": ids[cut * size :], "goes on from": [0, cut]}
    return _prompts(size, {"ids": ids, "key": key}, rest, other)


def _bad_ids(random: Random) -> Inputs:
    size = random.choice([1, 2, 3])
    ids = _ids(random, size * 2)
    ids[random.randrange(len(ids))] = random.choice([-1, 2**32, 2**40, 1.5, "7"])  # type: ignore[call-overload]
    return {"ids": ids, "block_size": size}


def _hash_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_chains,
        examples=examples,
        make=make,
        describe=_describe_prompts,
        place=_place_hash,
        **more,
    )


_PROMPT = [31, 2, 14, 7, 9, 4, 40]

HASHES = Exercise(
    id="7.3",
    title="A hash for every beginning",
    symbol="course.engine.prefix_cache:hash_blocks",
    points=4,
    minutes=20,
    difficulty=2,
    given={"hash_blocks": (1, 0)},
    trials="random prompts",
    hints=(
        "What must be the same for two blocks to hold the same keys and values: their tokens, or "
        "more? In how many bytes do you write one id, so that [1, 23] and [12, 3] stay apart?",
        '"`struct.error`" or "`OverflowError`": that is Python\'s word for an id outside 0 to '
        "2**32 - 1. Catch it (and `TypeError`) and raise ValueError.\n\n"
        '"The array hashes differently": turn every id into the same bytes, whatever held it. '
        '`struct.pack("<4I", *ids)` writes four ids in four bytes each.',
        "Start from `parent`, or `root_hash(extra_key)` where there is none. For each full block: "
        "pack its ids, hash the parent and the packed ids together with "
        "`sha256(...).digest()`, keep the digest, and let it be the next block's parent.",
    ),
    probes=(
        _hash_probe(
            "one hash of 32 bytes for each full block, none for the rest",
            _lengths,
            _prompts(4, _PROMPT),
            _prompts(4, [*_PROMPT, 5]),
            _prompts(4, [1, 2, 3]),
            _prompts(4, []),
        ),
        _hash_probe(
            "equal beginnings have equal hashes",
            _alike,
            _prompts(4, [*_PROMPT, 5], [*_PROMPT, 6], _PROMPT),
        ),
        _hash_probe(
            "the same tokens behind another beginning have another hash",
            _other_beginning,
            _prompts(4, [*_PROMPT, 5], [30, *_PROMPT[1:], 5]),
            _prompts(2, [1, 2, 7, 8, 7, 8, 5, 6], [1, 3, 7, 8, 7, 8, 5, 6]),
            _prompts(2, [7, 8, 7, 8]),
            cases=8,
        ),
        _hash_probe(
            "other tokens, or the same in another order, have another hash",
            _swapped,
            _prompts(2, [1, 23], [12, 3]),
            _prompts(2, [5, 7], [7, 5], [6, 6]),
            _prompts(2, [7, 5], [6, 36], [5, 67]),
            _prompts(2, [0, 1], [0, 0], [1, 0], [256, 0], [0, 256], [257, 1], [1, 257]),
        ),
        _hash_probe(
            "ids may be large",
            _wide,
            _prompts(2, [7, 2**32 - 1], [7, 2**31 - 1], [7, 65535], [7, 255]),
        ),
        _hash_probe(
            "list, tuple and arrays of the same ids hash alike",
            _containers,
            _prompts(4, _PROMPT, {"ids": _PROMPT, "as": "tuple"}, {"ids": _PROMPT, "as": "int64"}),
        ),
        _hash_probe(
            "another extra_key, other hashes, in every block",
            _keys,
            _prompts(
                2,
                {"ids": [1, 2, 3, 4]},
                {"ids": [1, 2, 3, 4], "key": "a"},
                {"ids": [1, 2, 3, 4], "key": "b"},
                {"ids": [1, 2, 3, 4], "key": {"bytes": "a"}},
            ),
        ),
        _hash_probe(
            "a chain goes on from the hash of the block before",
            _goes_on,
            _prompts(
                2,
                {"ids": [1, 2, 3, 4, 5, 6], "key": "a"},
                {"ids": [3, 4, 5, 6], "key": "a", "goes on from": [0, 0]},
                {"ids": [5, 6, 7, 8], "goes on from": [0, 1]},
            ),
        ),
        Probe(
            "all 32 bytes depend on the tokens",
            _spread,
            examples=({"ids": list(range(80)), "block_size": 2},),
            describe=lambda inputs: "the hashes of 40 blocks",
        ),
        Probe(
            "what is no token id is refused",
            _refuse_ids,
            examples=(
                {"ids": [1, -1], "block_size": 2},
                {"ids": [2**32, 1], "block_size": 2},
                {"ids": [1.5], "block_size": 1},
                {"ids": ["7"], "block_size": 1},
                {"ids": [None, 3], "block_size": 2},
            ),
            make=_bad_ids,
            cases=4,
            describe=_describe_ids,
        ),
    ),
)


# ---- 7.4 PrefixCache ----------------------------------------------------------------------------


def _name(word: str) -> bytes:
    return f"hash {word}".encode()


def play_cache(cache_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """After each operation: what is known of every block and of every hash."""
    cache = cache_class()
    log = []
    for action, block, *word in inputs["operations"]:
        if action == "publish":
            did = attempt(lambda b=block, w=word: cache.publish(b, _name(w[0])), ValueError)
        else:
            did = attempt(lambda b=block: cache.forget(b), ValueError)
        blocks = sorted({o[1] for o in inputs["operations"]})
        names = sorted({o[2] for o in inputs["operations"] if len(o) > 2})
        log.append(
            {
                "what came of it": did.get("raised", "no error"),
                "blocks with a hash": len(cache),
                "the hash of": {str(b): _word(cache.hash_of(b)) for b in blocks},
                "blocks found for": {n: _found(cache, n) for n in names},
                "hashes kept": len(_kept(cache, names)),
            }
        )
    return log


def _word(value: Any) -> Any:
    return value.decode().removeprefix("hash ") if type(value) is bytes else value


def _found(cache: Any, name: str) -> str:
    blocks = int_list(cache.blocks_of(_name(name)), "blocks_of")
    one = cache.lookup(_name(name))
    if (one is None) != (not blocks) or (blocks and one not in blocks):
        raise Unusable(f"lookup gave {one}, where the blocks are {blocks}")
    return ", ".join(map(str, sorted(blocks))) or "none"


def _kept(cache: Any, names: list[str]) -> Any:
    return getattr(cache, "_blocks", None) or [n for n in names if cache.blocks_of(_name(n))]


def _told_cache(operation: list) -> str:
    action, block, *word = operation
    return f"publish({block}, {word[0]!r})" if word else f"{action}({block})"


def _describe_cache(inputs: Inputs) -> str:
    return "; ".join(map(_told_cache, inputs["operations"]))


def _place_cache(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = f"after {_told_cache(inputs['operations'][int(number)])}"
    what = {"the hash of": "the hash of block", "blocks found for": "blocks found for hash"}
    first = what.get(str(rest[0]), str(rest[0])) if rest else "what came back"
    return f"{where}: {first} {rest[1] if len(rest) > 1 else ''}".rstrip()


def _cache_day(*operations: list) -> Inputs:
    return {"operations": [list(operation) for operation in operations]}


def _published(random: Random) -> Inputs:
    blocks = random.sample(range(20), random.randint(2, 5))
    return _cache_day(*(["publish", b, "abcdef"[n]] for n, b in enumerate(blocks)))


def _twins(random: Random) -> Inputs:
    blocks = random.sample(range(20), random.randint(2, 4))
    operations = [["publish", b, "a"] for b in blocks]
    operations.insert(random.randint(0, len(blocks)), ["publish", 30, "b"])
    random.shuffle(blocks)
    return _cache_day(*operations, *(["forget", b] for b in blocks))


def _forgotten(random: Random) -> Inputs:
    blocks = random.sample(range(20), 3)
    operations = [["publish", b, "abc"[n]] for n, b in enumerate(blocks)]
    gone = random.choice(blocks)
    return _cache_day(
        *operations, ["forget", gone], ["forget", gone], ["forget", 25], ["publish", gone, "d"]
    )


def _again(random: Random) -> Inputs:
    first, second = random.sample(range(20), 2)
    operations = [["publish", first, "a"], ["publish", second, random.choice("ab")]]
    again = random.choice([first, second])
    return _cache_day(
        *operations, ["publish", again, operations[again == second][2]], ["publish", again, "c"]
    )


def play_hit(cache_class: Any, inputs: Inputs) -> Any:
    """The hit, told by the hashes of its blocks: which of two twins is taken is free."""
    cache = cache_class()
    for block, word in inputs["cached"]:
        cache.publish(block, _name(word))
    chain = [_name(word) for word in inputs["chain"]]
    more = {} if inputs["num_tokens"] is None else {"num_tokens": inputs["num_tokens"]}
    hit = int_list(cache.longest_hit(chain, inputs["block_size"], **more), "longest_hit")
    known = dict(inputs["cached"])
    told = [known.get(block, f"block {block}, which is not cached") for block in hit]
    return f"the blocks of {' '.join(told)}" if told else "no block"


def _hit(cached: list, chain: str, block_size: int, num_tokens: int | None = None) -> Inputs:
    return {
        "cached": [list(pair) for pair in cached],
        "chain": list(chain),
        "block_size": block_size,
        "num_tokens": num_tokens,
    }


def _gap(random: Random) -> Inputs:
    count = random.randint(2, 6)
    there = [n for n in range(count) if random.random() < 0.7]
    blocks = random.sample(range(30), len(there))
    chain = "abcdef"[:count]
    return _hit([[b, chain[n]] for b, n in zip(blocks, there, strict=True)], chain, 4)


def _bounded(random: Random) -> Inputs:
    size, count = random.choice([1, 2, 3, 4, 16]), random.randint(1, 5)
    blocks, chain = random.sample(range(30), count), "abcdef"[:count]
    tokens = size * count + random.choice([0, 0, random.randrange(size)])
    return _hit([[b, w] for b, w in zip(blocks, chain, strict=True)], chain, size, tokens)


def _shorter(random: Random) -> Inputs:
    inputs = _bounded(random)
    inputs["num_tokens"] = random.randint(0, inputs["num_tokens"])
    return inputs


def _describe_hit(inputs: Inputs) -> str:
    cached = ", ".join(f"{word} in block {block}" for block, word in inputs["cached"]) or "nothing"
    told = f"cached {cached}; the request's hashes {' '.join(inputs['chain'])}"
    if inputs["num_tokens"] is not None:
        told += f", {inputs['num_tokens']} tokens in blocks of {inputs['block_size']}"
    return told


def _place_hit(parting: Parting, inputs: Inputs) -> str:
    return "the hit"


def _cache_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_cache,
        examples=examples,
        make=make,
        describe=_describe_cache,
        place=_place_cache,
        **more,
    )


CACHE = Exercise(
    id="7.4",
    title="What can be found again",
    symbol="course.engine.prefix_cache:PrefixCache",
    points=4,
    minutes=20,
    difficulty=2,
    blank=("longest_hit", "publish", "forget"),
    omit=("windowed_hit",),
    trials="random caches",
    hints=(
        "There are two dicts, one in each direction: from a hash to its blocks, from a block to "
        "its hash. Which of them does each operation have to change?",
        '"`KeyError`": a block without a hash may be forgotten too, and nothing happens. '
        '"It lost the other block": a hash can have two, and only the one that is forgotten '
        "goes.\n\n"
        '"`TypeError: unsupported operand`": `num_tokens` may be None. Then there is no bound.',
        "`self._blocks.setdefault(block_hash, {})[block_id] = None` adds a block to those of a "
        "hash. For the hit: cut the chain to `(num_tokens - 1) // block_size` hashes, then walk "
        "from its beginning and stop at the first that `lookup` does not find.",
    ),
    probes=(
        _cache_probe(
            "what is published is found",
            _published,
            _cache_day(["publish", 7, "a"]),
            _cache_day(["publish", 7, "a"], ["publish", 3, "b"]),
            cases=3,
        ),
        _cache_probe(
            "two blocks with one hash: losing one does not lose the other",
            _twins,
            _cache_day(["publish", 7, "a"], ["publish", 1, "a"], ["forget", 7], ["forget", 1]),
            _cache_day(["publish", 7, "a"], ["publish", 1, "a"], ["forget", 1]),
        ),
        _cache_probe(
            "what is forgotten leaves nothing behind",
            _forgotten,
            _cache_day(["publish", 7, "a"], ["forget", 7], ["forget", 7], ["publish", 7, "b"]),
            cases=3,
        ),
        _cache_probe(
            "the same again changes nothing, other content is refused",
            _again,
            _cache_day(["publish", 7, "a"], ["publish", 7, "a"], ["publish", 7, "b"]),
            _cache_day(["publish", 7, "a"], ["publish", 1, "b"], ["publish", 7, "b"]),
            cases=4,
        ),
        Probe(
            "a hit ends at the first block that is not there",
            play_hit,
            examples=(
                _hit([[7, "a"], [3, "c"]], "abc", 4),
                _hit([[7, "b"]], "ab", 4),
                _hit([[7, "a"], [1, "b"]], "ab", 4),
                _hit([[7, "a"], [1, "a"], [3, "b"]], "ab", 4),
                _hit([[7, "a"], [0, "b"], [3, "c"]], "abc", 4),
                _hit([], "ab", 4),
                _hit([[7, "a"]], "", 4),
            ),
            make=_gap,
            cases=8,
            describe=_describe_hit,
            place=_place_hit,
        ),
        Probe(
            "at least one token is left to compute",
            play_hit,
            examples=(
                _hit([[7, "a"]], "a", 4, 4),
                _hit([[7, "a"], [1, "b"]], "ab", 4, 8),
                _hit([[7, "a"], [1, "b"]], "ab", 4, 9),
            ),
            make=_bounded,
            cases=4,
            describe=_describe_hit,
            place=_place_hit,
        ),
        Probe(
            "fewer tokens than the chain covers, even none",
            play_hit,
            examples=(
                _hit([[7, "a"], [1, "b"], [3, "c"]], "abc", 4, 6),
                _hit([[7, "a"], [1, "b"], [3, "c"]], "abc", 4, 1),
                _hit([[7, "a"], [1, "b"], [3, "c"]], "abc", 4, 0),
                _hit([[7, "a"], [1, "b"]], "ab", 1, 1),
            ),
            make=_shorter,
            cases=4,
            describe=_describe_hit,
            place=_place_hit,
        ),
    ),
)


# ---- 7.5 and 7.6 publish ------------------------------------------------------------------------

SENTENCES = {
    "A": "Tell me why the sky is blue",
    "stranger": "Tell me why the sky is blue today",
}
STEP_BLOCK = 4


def _steps(answer: Any) -> list[tuple[str, int]]:
    """The learner's steps, or Unusable that says what is wrong with them."""
    if type(answer) is not list or not answer:
        raise Unusable("failing_steps is a list of steps: [(request, num_tokens), ...]")
    for step in answer:
        good = type(step) in (tuple, list) and len(step) == 2
        if not good or step[0] not in SENTENCES or type(step[1]) is not int or step[1] < 1:
            raise Unusable(
                f"{step!r} is not a step; write it as (request, num_tokens), at least one token, "
                'the request being "A" or "stranger"'
            )
    return [(step[0], step[1]) for step in answer]


def _unwritten(steps: list[tuple[str, int]]) -> tuple[int, int, bool]:
    """Of the last step: tokens found; those of them not written; whether its request was new.

    Both prompts have one block in common that a hit can use, and whoever comes first publishes it
    at the end of its first step.
    """
    written: dict[str, int] = {}
    publisher = ""
    found = missing = 0
    is_new = False
    for name, count in steps:
        is_new = name not in written
        found = STEP_BLOCK if is_new and publisher else 0
        missing = max(0, found - written[publisher]) if found else 0
        written[name] = written.get(name, found) + count
        publisher = publisher or name
    return found, missing, is_new


def _finds_unwritten(answer: Any, inputs: Inputs) -> str:
    steps = _steps(answer)
    found, missing, is_new = _unwritten(steps)
    if missing:
        return "the last step's request finds tokens that nobody has written"
    if not is_new:
        return f"the last step, {steps[-1]}, looks for nothing: a request looks when it is admitted"
    if not found:
        return f"the last step, {steps[-1]}, finds nothing in the cache"
    return f"the last step, {steps[-1]}, finds {found} tokens, and all of them are written"


def _few_steps(answer: Any, inputs: Inputs) -> str:
    count = len(_steps(answer))
    return "at most 2 steps" if count <= 2 else f"{count} steps"


STEPS = Exercise(
    id="7.5",
    title="Find the bug: words that nobody wrote",
    symbol="course.practice.answers.lab_07:failing_steps",
    kind="data",
    start="failing_steps = None  # [(request, num_tokens), ...]: at most two steps",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "When `faulty_publish` runs, which tokens of the request are known, and which are "
        "written? In what situation are these two not the same?",
        '"The last step finds tokens, and all of them are written": A had computed its whole '
        "first block by then. How many tokens must a step compute so that it does not?",
        "Let A begin, with fewer tokens than a block holds. Then let the stranger come.",
    ),
    probes=(
        Probe("a hit on unwritten tokens", _finds_unwritten, ({},), describe=_of_answer),
        Probe("no shorter list would do", _few_steps, ({},), describe=_of_answer),
    ),
)


def play_publish(publish_blocks: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Steps of requests that get all their blocks at admission and are computed piece by piece."""
    kv = KVManager(inputs["num_blocks"], inputs["block_size"])
    requests: dict[str, Request] = {}
    log = []
    for name, count in inputs["steps"]:
        if name not in requests:
            stream, length = inputs["prompts"][name]
            prompt = [100 * stream + i for i in range(length)]
            requests[name] = Request(name, prompt, SamplingParams())
            kv.admit(requests[name], length)
        request = requests[name]
        if request.num_computed_tokens == request.num_tokens:  # decoding: one token more
            request.token_ids.append(7000 + request.num_tokens + 100 * len(name))
            kv.grow(request, request.num_tokens)
        computed = min(request.num_computed_tokens + count, request.num_tokens)
        request.num_computed_tokens = computed
        if inputs.get("sampled") and computed == request.num_tokens:
            request.token_ids.append(7000 + request.num_tokens + 100 * len(name))
            kv.grow(request, request.num_tokens)  # it has a slot, and is not computed yet
        publish_blocks(kv, request)
        log.append({n: _twin_finds(kv, r) for n, r in requests.items()})
    return log


def _twin_finds(kv: KVManager, request: Request) -> str:
    twin = Request("twin", [*request.token_ids, 9999], SamplingParams())
    published = sum(block in kv.prefix_cache for block in kv.tables[request.request_id])
    return f"finds {kv.cached_tokens(twin)} tokens, blocks published: {published}"


def _told_step(step: list) -> str:
    return f"{step[0]} computes {step[1]}"


def _describe_steps(inputs: Inputs) -> str:
    prompts = ", ".join(f"{n} has {p[1]} tokens" for n, p in inputs["prompts"].items())
    told = "; ".join(map(_told_step, inputs["steps"]))
    return f"blocks of {inputs['block_size']}; {prompts}; {told}"


def _place_step(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = f"after '{_told_step(inputs['steps'][int(number)])}'"
    return f"{where}: a twin of {rest[0]}" if rest else where


def _publishing(prompts: dict[str, list[int]], size: int, *steps: list, **more: Any) -> Inputs:
    return {
        "num_blocks": 60,
        "block_size": size,
        "prompts": prompts,
        "steps": [list(step) for step in steps],
        **more,
    }


def _pieces(random: Random) -> Inputs:
    size = random.choice([2, 3, 4, 5])
    length = random.randint(2 * size, 5 * size)
    steps, left = [], length
    while left > 0:
        steps.append(["A", random.randint(1, size + 1)])
        left -= steps[-1][1]
    return _publishing({"A": [1, length]}, size, *steps)


def _at_once(random: Random) -> Inputs:
    size = random.choice([1, 2, 3, 4])
    length = random.randint(size, 5 * size)
    return _publishing({"A": [1, length]}, size, ["A", length], ["A", 1])


def _decoding(random: Random) -> Inputs:
    size = random.choice([2, 3, 4])
    length = random.randint(1, 2 * size)
    steps = [["A", length]] + [["A", 1]] * (2 * size)
    return _publishing({"A": [1, length]}, size, *steps, sampled=True)


def _visitors(random: Random) -> Inputs:
    size = random.choice([2, 3, 4])
    long, short = random.randint(3 * size, 5 * size), random.randint(size, 2 * size + 1)
    first = random.choice([long, random.randint(1, long)])
    steps = [["B", short], ["A", first], ["C", random.randint(1, long)], ["A", long], ["C", long]]
    return _publishing({"A": [1, long], "B": [1, short], "C": [1, long]}, size, *steps)


def _publish_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_publish,
        examples=examples,
        make=make,
        describe=_describe_steps,
        place=_place_step,
        **more,
    )


PUBLISH = Exercise(
    id="7.6",
    title="Find the bug: mend it",
    symbol="course.practice.answers.lab_07:publish_blocks",
    kind="mend",
    start="a block counts as full when its tokens are known, written or not",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=4,
    trials="random steps",
    hints=(
        "Which of the two counts says what is stored: `num_tokens` or `num_computed_tokens`? How "
        "many blocks are full with that?",
        '"It finds fewer than expected": a prompt may fill many blocks in one step, and a request '
        "that found its first blocks in the cache fills others after them.",
        "The first `request.num_computed_tokens // kv.block_size` blocks of the table are full "
        "and written. Publish those, and no other.",
    ),
    probes=(
        _publish_probe(
            "nothing is found before it is written",
            _pieces,
            _publishing({"A": [1, 7]}, 4, ["A", 2], ["A", 2], ["A", 3]),
            _publishing({"A": [1, 8]}, 4, ["A", 7], ["A", 1]),
        ),
        _publish_probe(
            "all full blocks of a step are found after it",
            _at_once,
            _publishing({"A": [1, 12]}, 4, ["A", 12]),
            _publishing({"A": [1, 13]}, 4, ["A", 13]),
        ),
        _publish_probe(
            "a decoded token counts when it is computed, not when it is sampled",
            _decoding,
            _publishing({"A": [1, 7]}, 4, ["A", 7], ["A", 1], sampled=True),
            cases=4,
        ),
        _publish_probe(
            "blocks behind a hit are published too",
            _visitors,
            _publishing({"B": [1, 5], "A": [1, 13]}, 4, ["B", 5], ["A", 13]),
        ),
    ),
)


# ---- 7.7 FreeList -------------------------------------------------------------------------------


def play_list(list_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """After each operation: the blocks forwards, backwards, and how many they are."""
    free = list_class(inputs["num_blocks"], inputs["start"])
    log = []
    for action, what in inputs["operations"]:
        argument = list(what) if type(what) is list else what
        came = attempt(lambda a=action, w=argument: getattr(free, a)(w), ValueError, IndexError)
        log.append(
            {
                "what came of it": came.get("raised", came.get("returned")),
                "the list": _walk(iter(free), inputs),
                "read backwards": _walk(reversed(free), inputs),
                "its length": len(free),
                "blocks in it": _walk(
                    (b for b in range(inputs["num_blocks"]) if b in free), inputs
                ),
            }
        )
    return log


def _walk(blocks: Any, inputs: Inputs) -> str:
    """The ids in one line, to be seen whole; where links lead round in a circle, words for it."""
    found = []
    for block in blocks:
        found.append(str(block))
        if len(found) > inputs["num_blocks"]:
            return "links that lead round in a circle"
    return " ".join(found) or "nothing"


def time_list(list_class: Any, inputs: Inputs) -> str:
    """Every second block of a large pool leaves from the middle and comes back at the end."""
    count = inputs["num_blocks"]
    free = list_class(count)
    for block in range(1, count, 2):
        free.remove((block * inputs["stride"]) % count)
    for block in range(1, count, 2):
        free.append_n([(block * inputs["stride"]) % count])
    return f"{len(free)} blocks"


def _told_list(operation: list) -> str:
    return f"{operation[0]}({operation[1]})"


def _describe_list(inputs: Inputs) -> str:
    told = "; ".join(map(_told_list, inputs["operations"]))
    return f"{inputs['num_blocks']} blocks, {inputs['start']} in the list; {told}"


def _place_list(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    return f"after {_told_list(inputs['operations'][int(number)])}: {rest[0] if rest else ''}"


def _list_day(num_blocks: int, start: list[int], *operations: list) -> Inputs:
    return {"num_blocks": num_blocks, "start": start, "operations": [*operations]}


def _inserting(action: str, random: Random) -> Inputs:
    num_blocks = random.randint(4, 12)
    ids = random.sample(range(num_blocks), num_blocks)
    start, rest = ids[: num_blocks // 3], ids[num_blocks // 3 :]
    cut = random.randint(0, len(rest))
    return _list_day(num_blocks, start, [action, rest[:cut]], [action, rest[cut:]])


def _leaving(random: Random) -> Inputs:
    num_blocks = random.randint(3, 10)
    ids = random.sample(range(num_blocks), num_blocks)
    gone = random.sample(ids, random.randint(1, num_blocks))
    return _list_day(num_blocks, ids, *(["remove", b] for b in gone))


def _coming_and_going(random: Random) -> Inputs:
    num_blocks = random.randint(4, 10)
    inside, outside = random.sample(range(num_blocks), num_blocks), []
    start, operations = list(inside), []
    for _ in range(8):
        if inside and (not outside or random.random() < 0.5):
            if random.random() < 0.5:
                block = random.choice(inside)
                inside.remove(block)
                outside.append(block)
                operations.append(["remove", block])
            else:
                count = random.randint(1, len(inside))
                outside += inside[:count]
                del inside[:count]
                operations.append(["popleft_n", count])
        else:
            count = random.randint(1, len(outside))
            moved, outside = outside[:count], outside[count:]
            action = random.choice(["append_n", "prepend_n"])
            inside = inside + moved if action == "append_n" else moved + inside
            operations.append([action, moved])
    return _list_day(num_blocks, start, *operations)


def _list_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_list,
        examples=examples,
        make=make,
        describe=_describe_list,
        place=_place_list,
        **more,
    )


FREE_LIST = Exercise(
    id="7.7",
    title="Who goes first",
    symbol="course.engine.free_list:FreeList",
    points=3,
    minutes=20,
    difficulty=2,
    blank=("_insert", "_unlink"),
    given={"_insert": (2, 0)},
    omit=("links",),
    trials="random queues",
    hints=(
        "Draw 16 -> 7 -> 1 -> 16 with arrows both ways. Block 7 leaves: which two arrows change? "
        "Block 10 comes in front of 1: which four?",
        '"`TypeError: list indices must be integers`": you read a neighbour after you had set it '
        "to None. Note both neighbours first.\n\n"
        '"Read backwards, blocks are missing": each link has two ends, `_next` of one block and '
        "`_prev` of the other. Set both.",
        "For each block: `before` is what stood in front of `after` until now; the block points to "
        "both, and both point to it. `after` stays where it is, so the next block lands behind "
        "this one. Do not forget `self._count`.",
    ),
    probes=(
        _list_probe(
            "what may be found again goes to the end, in the given order",
            lambda r: _inserting("append_n", r),
            _list_day(16, [7, 1], ["append_n", [10, 12]]),
            _list_day(16, [], ["append_n", [3]]),
            cases=4,
        ),
        _list_probe(
            "what holds nothing goes to the front, in the given order",
            lambda r: _inserting("prepend_n", r),
            _list_day(16, [7, 1], ["prepend_n", [10, 12]]),
            _list_day(16, [], ["prepend_n", [3, 2]]),
            cases=4,
        ),
        _list_probe(
            "a block that is found leaves from wherever it stands",
            _leaving,
            _list_day(16, [7, 1, 10], ["remove", 1]),
            _list_day(16, [7, 1, 10], ["remove", 7], ["remove", 10], ["remove", 1]),
        ),
        _list_probe(
            "blocks come and go, and go again",
            _coming_and_going,
            _list_day(3, [2, 0, 1], ["remove", 0], ["append_n", [0]], ["popleft_n", 2]),
            _list_day(3, [2, 0, 1], ["popleft_n", 3], ["prepend_n", [1, 2]], ["remove", 2]),
            cases=8,
        ),
        _list_probe(
            "what is not in the list cannot leave it",
            None,
            _list_day(3, [2, 0], ["remove", 1], ["remove", 2], ["remove", 2]),
            _list_day(3, [2], ["remove", 2], ["popleft_n", 1], ["append_n", [2, 2]]),
        ),
        Probe(
            "a block costs the same in a large pool",
            time_list,
            examples=({"num_blocks": 40_000, "stride": 17_389},),
            describe=lambda inputs: f"{inputs['num_blocks']:,} blocks, half of them come and go",
            seconds=1.0,
        ),
    ),
)

EXERCISES = (MANAGER, PREDICTION, HASHES, CACHE, STEPS, PUBLISH, FREE_LIST)
