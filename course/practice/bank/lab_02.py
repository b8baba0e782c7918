"""Lab 02, what a reservation wastes: slabs, where their slots go, and the batch that they cost."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from course.memory.ledger import Holding, Ledger
from course.memory.slab import SlabAllocator
from course.practice.compare import Parting, Tolerance
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt
from course.practice.guess import how_far
from course.sizing import GIB, MODELS, ModelShape, kv_bytes

# ---- 2.1 the allocator --------------------------------------------------------------------------
#
# Driven by names. Which free slab a request gets is the learner's choice, so the log says only
# whether what it got can be right.


def play_slabs(slab_class: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Operations: ["reserve", name] and ["release", name]."""
    length = inputs["max_model_len"]
    slabs = slab_class(inputs["pool_tokens"], length)
    held: dict[str, int] = {}
    log = []
    for action, name in inputs["operations"]:
        if action == "reserve":
            came = attempt(lambda name=name: slabs.reserve(name), ValueError)
            start = came.get("returned")
            told = came.get("raised", "None" if start is None else "a slab")
            problem = _problem(start, held, inputs)
            if start is not None and not problem:
                held[name] = start
        else:
            came = attempt(lambda name=name: slabs.release(name), ValueError)
            told, problem = came.get("raised", "no error"), ""
            if told == "no error":
                held.pop(name, None)
        log.append(
            {
                "what came of it": told,
                "what is wrong with it": problem or "nothing",
                "free slabs": slabs.num_free,
                "who holds a slab": _names(sorted(slabs.slabs)),
            }
        )
    return log


def _names(names: Any) -> str:
    return ", ".join(map(str, names)) or "nobody"


def _problem(start: Any, held: dict[str, int], inputs: Inputs) -> str:
    """What is wrong with a first slot; empty: nothing."""
    length, pool = inputs["max_model_len"], inputs["pool_tokens"]
    if start is None:
        return ""
    if type(start) is not int:
        raise Unusable(f"reserve gave {start!r}; give the first slot, an int, or None")
    if start < 0 or start + length > pool:
        return f"slots {start} to {start + length - 1} are not all in the pool"
    for name, other in held.items():
        if abs(start - other) < length:
            return f"slots {start} to {start + length - 1} are partly {name}'s"
    return "" if start % length == 0 else f"no slab begins at slot {start}"


def _slabs(pool_tokens: int, max_model_len: int, *operations: str) -> Inputs:
    """Operations as "+A" and "-A"."""
    actions = {"+": "reserve", "-": "release"}
    told = [[actions[operation[0]], operation[1:]] for operation in operations]
    return {"pool_tokens": pool_tokens, "max_model_len": max_model_len, "operations": told}


def _sizes(random: Random, least: int = 2) -> tuple[int, int, int]:
    """(pool, limit, slabs); the pool is seldom a whole number of slabs."""
    count, length = random.randint(least, 5), random.choice([3, 7, 16, 32])
    return count * length + random.choice([0, 1, length - 1]), length, count


def _busy(random: Random) -> Inputs:
    """Requests come and go, some while nothing is free."""
    pool, length, count = _sizes(random)
    live: list[str] = []
    operations = []
    for number in range(random.randint(8, 14)):
        if live and random.random() < 0.4:
            operations.append("-" + live.pop(random.randrange(len(live))))
        else:
            name = "ABCDEFGHIJKLMNOP"[number]
            operations.append("+" + name)
            if len(live) < count:
                live.append(name)
    return _slabs(pool, length, *operations)


def _fill(random: Random) -> Inputs:
    pool, length, count = _sizes(random)
    return _slabs(pool, length, *(f"+{name}" for name in "ABCDEFG"[: count + 2]))


def _again(random: Random) -> Inputs:
    pool, length, _ = _sizes(random)
    return _slabs(pool, length, "+A", "+B", random.choice(["+A", "+B"]), "-A", "+A", "-B")


def _turned_away(random: Random) -> Inputs:
    pool, length, count = _sizes(random)
    fill = [f"+{name}" for name in "ABCDE"[:count]]
    leaves = random.choice("ABCDE"[:count])
    return _slabs(pool, length, *fill, "+X", f"-{leaves}", "+X", "-X")


def _unknown(random: Random) -> Inputs:
    pool, length, _ = _sizes(random)
    wrong = random.choice([["-B"], ["-A", "-A"], ["-A", "+B", "-A"]])
    return _slabs(pool, length, "+A", *wrong, "+C", "+D")


def _describe_slabs(inputs: Inputs) -> str:
    told = ", ".join(f"{action} {name}" for action, name in inputs["operations"])
    return f"{inputs['pool_tokens']} slots, slabs of {inputs['max_model_len']}: {told}"


def _place_slabs(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    action, name = inputs["operations"][int(number)]
    return f"after {action} {name}: {rest[0] if rest else 'what came back'}"


def _slab_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_slabs,
        examples=examples,
        make=make,
        describe=_describe_slabs,
        place=_place_slabs,
        **more,
    )


SLABS = Exercise(
    id="2.1",
    title="A slab for everybody",
    symbol="course.memory.slab:SlabAllocator",
    points=3,
    minutes=15,
    difficulty=2,
    blank=("reserve", "release"),
    trials="random days of a server",
    hints=(
        "Two things are kept: which slabs nobody holds, and who holds which. What must change in "
        "each of them when a request comes, and when it leaves?",
        '"I get `KeyError`" or "`IndexError`": ask first whether the request holds a slab, and '
        "whether one is free. `first_slot` already refuses a request that holds none.",
        "`reserve` refuses, gives None, or moves a number from `_free` to `_slab_of` and returns "
        "number times `max_model_len`. `release` moves it back.",
    ),
    probes=(
        _slab_probe(
            "each request gets a slab of its own, until none is left",
            _fill,
            _slabs(64, 32, "+A", "+B", "+C"),
            _slabs(63, 32, "+A", "+B"),
        ),
        _slab_probe(
            "who leaves makes room for the next",
            _busy,
            _slabs(64, 32, "+A", "+B", "-A", "+C", "+D"),
            cases=10,
        ),
        _slab_probe(
            "who holds a slab gets no second one",
            _again,
            _slabs(64, 32, "+A", "+A", "+B"),
            _slabs(64, 32, "+A", "+B", "+A"),
            cases=3,
        ),
        _slab_probe(
            "who was refused holds nothing, and may ask again",
            _turned_away,
            _slabs(64, 32, "+A", "+B", "+C", "-A", "+C"),
            cases=4,
        ),
        _slab_probe(
            "who holds nothing cannot give it back",
            _unknown,
            _slabs(64, 32, "+A", "-B", "+C", "+D"),
            _slabs(64, 32, "+A", "-A", "-A", "+B"),
            cases=4,
        ),
        _slab_probe(
            "a pool shorter than a slab serves nobody",
            None,
            _slabs(31, 32, "+A"),
        ),
    ),
)

# ---- 2.2 the ledger -----------------------------------------------------------------------------


def _take(take_ledger: Any, inputs: Inputs) -> Any:
    holdings = [Holding(*holding) for holding in inputs["holdings"]]
    return _accounts(take_ledger(inputs["pool"], holdings, *_next(inputs)))


def _take_once(take_ledger: Any, inputs: Inputs) -> Any:
    holdings = (Holding(*holding) for holding in inputs["holdings"])
    return _accounts(take_ledger(inputs["pool"], holdings, *_next(inputs)))


def _refuse_ledger(take_ledger: Any, inputs: Inputs) -> Any:
    return attempt(lambda: _take(take_ledger, inputs), ValueError)


def _next(inputs: Inputs) -> tuple:
    return (inputs["need"], inputs["fits"]) if "need" in inputs else ()


def _accounts(ledger: Any) -> dict[str, Any]:
    if not isinstance(ledger, Ledger):
        raise Unusable(f"take_ledger gave {str(ledger)[:40]}; give a Ledger(live, reserved, ...)")
    return {name: int(v) if v == int(v) else v for name, v in ledger.as_dict().items()}


def _ledger(pool: int, *holdings: tuple[int, int, int], **more: Any) -> Inputs:
    return {"pool": pool, "holdings": [list(holding) for holding in holdings], **more}


def _slab_server(random: Random) -> Inputs:
    """Everybody holds a slab; some of the pool is left over."""
    length, count = random.choice([16, 32, 100]), random.randint(1, 4)
    holdings = []
    for _ in range(count):
        final = random.randint(2, length)
        holdings.append((random.randint(1, final), final, length))
    return _ledger(count * length + random.choice([0, 5, length]), *holdings)


def _little_by_little(random: Random) -> Inputs:
    """Some hold less than they will need, some more."""
    holdings = []
    for _ in range(random.randint(2, 4)):
        written = random.randint(1, 20)
        final = written + random.randint(0, 30)
        held = written + random.choice([0, 3, 11, final - written])
        holdings.append((written, final, held))
    return _ledger(sum(h[2] for h in holdings) + random.randint(0, 9), *holdings)


def _somebody_waits(random: Random) -> Inputs:
    inputs = _slab_server(random)
    inputs["pool"] += random.randint(6, 30)
    free = inputs["pool"] - sum(held for _, _, held in inputs["holdings"])
    inputs["need"] = random.choice([1, free - 1, free, free + 1, free + 20])
    inputs["fits"] = inputs["need"] <= free and random.random() < 0.4
    return inputs


def _too_much(random: Random) -> Inputs:
    inputs = _slab_server(random)
    inputs["pool"] = sum(held for _, _, held in inputs["holdings"]) - random.randint(1, 5)
    return inputs


def _describe_ledger(inputs: Inputs) -> str:
    held = "; ".join(
        f"{written} of {final} tokens written, {held} slots held"
        for written, final, held in inputs["holdings"]
    )
    told = f"a pool of {inputs['pool']}: {held or 'nobody holds anything'}"
    if "need" in inputs:
        can = "can" if inputs["fits"] else "cannot"
        told += f"; the next asks for {inputs['need']} and {can} have them"
    return told


def _place_account(parting: Parting, inputs: Inputs) -> str:
    return f"the account {parting.path[0]!r}" if parting.path else ""


def _ledger_probe(
    behaviour: str, make: Any, *examples: Inputs, drive: Any = _take, **more: Any
) -> Probe:
    return Probe(
        behaviour,
        drive,
        examples=examples,
        make=make,
        describe=_describe_ledger,
        place=_place_account,
        **more,
    )


LEDGER = Exercise(
    id="2.2",
    title="Where every slot is",
    symbol="course.memory.ledger:take_ledger",
    points=3,
    minutes=15,
    difficulty=2,
    trials="random pools",
    hints=(
        "Take B: 5 tokens are written, it will have 27, it holds 32 slots. Which of the 32 are "
        "live, which will it still write, which never? The three must add up to 32.",
        '"I get `ValueError: A ledger cannot hold {...}`": an account came out negative. A request '
        "can hold fewer slots than it will have tokens. No slot that it does not hold is reserved.",
        "Three sums over the holdings, with `min(held, final)` as the border between the second "
        "and the third. What the pool has beside them is free, or external when three things are "
        "true: somebody waits, cannot be served, and asks for no more than is free.",
    ),
    probes=(
        _ledger_probe(
            "live, reserved and internal, when everybody holds a slab",
            _slab_server,
            _ledger(64, (9, 28, 32), (5, 27, 32)),
            _ledger(64, (28, 28, 32)),
            _ledger(64),
        ),
        _ledger_probe(
            "who holds less than it will need wastes nothing in it",
            _little_by_little,
            _ledger(16, (7, 28, 8), (3, 3, 4)),
            cases=8,
        ),
        _ledger_probe(
            "free slots are external when they would be enough, and do not serve",
            _somebody_waits,
            _ledger(64, (9, 28, 28), (5, 27, 27), need=8, fits=False),
            _ledger(64, (9, 28, 28), (5, 27, 27), need=9, fits=False),
            _ledger(64, (9, 28, 28), (5, 27, 27), need=10, fits=False),
            _ledger(64, (9, 28, 28), (5, 27, 27), need=8, fits=True),
            _ledger(64, (9, 28, 28), (5, 27, 27), need=10, fits=True),
            cases=10,
        ),
        _ledger_probe(
            "holdings that can be read only once will do",
            _slab_server,
            _ledger(64, (9, 28, 32), (5, 27, 32)),
            drive=_take_once,
            cases=3,
        ),
        _ledger_probe(
            "more held than there is: refused",
            _too_much,
            _ledger(63, (9, 28, 32), (5, 27, 32)),
            drive=_refuse_ledger,
            cases=3,
        ),
    ),
)

# ---- 2.3 the batch ------------------------------------------------------------------------------


def _model(inputs: Inputs) -> ModelShape:
    shape = inputs["shape"]
    return MODELS[shape] if type(shape) is str else ModelShape(**shape)


def _batch(batch_that_fits: Any, inputs: Inputs) -> Any:
    found = batch_that_fits(
        _model(inputs), inputs["num_bytes"], list(inputs["totals"]), inputs["max_model_len"]
    )
    if type(found) is not tuple or len(found) != 2:
        raise Unusable(f"batch_that_fits gave {found!r}; give two numbers: (slabs, exact)")
    return {"a slab each": found[0], "exactly their tokens": found[1]}


def _shape(random: Random) -> dict[str, Any]:
    kv_heads = random.choice([1, 2, 5])
    return {
        "name": "random",
        "num_layers": random.choice([2, 5, 12]),
        "num_attention_heads": 3 * kv_heads,
        "num_kv_heads": kv_heads,
        "head_dim": random.choice([4, 10, 64]),
        "max_model_len": 4096,
    }


def _requests(random: Random, too_long: bool = False) -> Inputs:
    shape, limit = _shape(random), random.choice([32, 100, 300])
    token = kv_bytes(ModelShape(**shape), 1)
    count = random.randint(6, 14)
    totals = [random.randint(limit // 8, limit) for _ in range(count)]
    if too_long:
        for _ in range(random.randint(1, 3)):
            totals.insert(random.randrange(len(totals)), limit + random.randint(1, 60))
    # not a whole number of anything
    num_bytes = int(token * limit * random.uniform(1.2, count * 0.55)) + random.randrange(token)
    return _fit(shape, num_bytes, totals, limit)


def _plenty(random: Random) -> Inputs:
    inputs = _requests(random)
    inputs["num_bytes"] *= 40
    return inputs


def _with_windows(random: Random) -> Inputs:
    inputs = _requests(random)
    shape = inputs["shape"]
    shape |= {"sliding_window": inputs["max_model_len"] // 5, "num_window_layers": 1}
    return inputs


def _just_fits(random: Random) -> Inputs:
    inputs = _requests(random)
    some = inputs["totals"][: random.randint(2, 4)]
    inputs["num_bytes"] = sum(kv_bytes(_model(inputs), total) for total in some)
    return inputs


def _a_big_one_first(random: Random) -> Inputs:
    """The first request that does not fit is followed by one that would."""
    inputs = _requests(random)
    limit = inputs["max_model_len"]
    small = limit // 8
    inputs["totals"] = [limit, small, limit, small, small]
    inputs["num_bytes"] = kv_bytes(_model(inputs), limit + small) + kv_bytes(_model(inputs), small)
    return inputs


def _fit(shape: Any, num_bytes: int, totals: list[int], max_model_len: int) -> Inputs:
    sizes = {"num_bytes": num_bytes, "max_model_len": max_model_len}
    return {"shape": shape, "totals": totals, **sizes}


SMALL = {
    "name": "small",
    "num_layers": 3,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 5,
    "max_model_len": 32,
}
TOKEN = 120  # bytes of SMALL's cache for a token


def _describe_fit(inputs: Inputs) -> str:
    totals = inputs["totals"]
    alike = len(set(totals)) == 1
    told = f"{len(totals)} requests of {totals[0]}" if alike else f"requests of {totals}"
    shape = _model(inputs)
    tokens = f"{inputs['num_bytes'] / kv_bytes(shape, 1):,.1f}".removesuffix(".0")
    room = f"bytes for {tokens} tokens"
    name = f", {shape.name}" if type(inputs["shape"]) is str else ""
    windows = f", {shape.num_window_layers} window layers" if shape.num_window_layers else ""
    return f"{told}, limit {inputs['max_model_len']}, {room}{name}{windows}"


def _place_fit(parting: Parting, inputs: Inputs) -> str:
    return f"requests that run together, with {parting.path[0]}" if parting.path else ""


def _fit_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        _batch,
        examples=examples,
        make=make,
        describe=_describe_fit,
        place=_place_fit,
        **more,
    )


BATCH = Exercise(
    id="2.3",
    title="The batch that fits",
    symbol="course.practice.answers.lab_02:batch_that_fits",
    points=3,
    minutes=15,
    difficulty=2,
    piece=False,
    trials="random models and queues",
    hints=(
        "How many bytes does one slab take, and how many does the first request need? `kv_bytes` "
        "answers both.",
        '"My second number is too large": the queue has an order. Who does not fit stops '
        "everybody behind, also those who would. And a total that just fills the memory still "
        "fits.",
        "First leave out who is too long. Then for slabs a whole-number division, and no more "
        "than there are requests. For exact sizes a loop that adds up bytes and breaks.",
    ),
    probes=(
        _fit_probe(
            "how many run together",
            _requests,
            _fit("Llama-2-7B", 8 * GIB, [512] * 40, 4096),
            _fit(SMALL, 64 * TOKEN, [28, 27, 8, 28], 32),
            cases=8,
        ),
        _fit_probe(
            "no more than there are",
            _plenty,
            _fit(SMALL, 1000 * TOKEN, [28, 27, 8], 32),
            cases=4,
        ),
        _fit_probe(
            "requests longer than the limit are turned away, and the next one's turn comes",
            lambda random: _requests(random, too_long=True),
            _fit(SMALL, 64 * TOKEN, [33, 28, 27, 8], 32),
            _fit(SMALL, 1000 * TOKEN, [28, 33, 27, 8], 32),
            cases=8,
        ),
        _fit_probe(
            "the first that does not fit stops all behind it",
            _a_big_one_first,
            _fit(SMALL, 40 * TOKEN, [28, 27, 8], 32),
            cases=4,
        ),
        _fit_probe(
            "what just fits, fits",
            _just_fits,
            _fit(SMALL, 55 * TOKEN, [28, 27, 8], 32),
            _fit(SMALL, 64 * TOKEN, [32, 32, 32], 32),
            cases=4,
        ),
        _fit_probe(
            "window layers count too: bytes are not always tokens times something",
            _with_windows,
            _fit("Gemma-3-27B", 8 * GIB, [8192] * 20, 32768),
            cases=4,
        ),
    ),
)

# ---- 2.4 emptiness ------------------------------------------------------------------------------

METRICS = ("dropped", "at_finish", "per_request", "per_step")


def _empty(slab_emptiness: Any, inputs: Inputs) -> Any:
    lengths = [tuple(pair) for pair in inputs["lengths"]]
    found = slab_emptiness(lengths, inputs["max_model_len"])
    if type(found) is not dict or set(found) != set(METRICS):
        raise Unusable(f"slab_emptiness gave {str(found)[:50]}; give a dict with {METRICS}")
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in found.values()):
        raise Unusable(f"slab_emptiness gave {str(found)[:90]}; each is a number between 0 and 1")
    return float(found[inputs["metric"]])


def _lengths(random: Random, metric: str, long_ones: bool = False) -> Inputs:
    limit = random.choice([32, 100, 2048])
    pairs = []
    for _ in range(random.randint(3, 8)):
        prompt = random.randint(1, limit // 2)
        pairs.append([prompt, random.randint(1, limit - prompt)])
    if long_ones:
        for _ in range(random.randint(1, 3)):
            long = [random.randint(1, limit), limit + random.randint(0, 50)]
            if random.random() < 0.3:
                long.reverse()
            pairs.insert(random.randrange(len(pairs)), long)
    return {"lengths": pairs, "max_model_len": limit, "metric": metric}


def _describe_lengths(inputs: Inputs) -> str:
    pairs = ", ".join(f"{prompt}+{output}" for prompt, output in inputs["lengths"])
    return f"slabs of {inputs['max_model_len']}, prompt+output {pairs}"


def _metric_probe(behaviour: str, metric: str, *examples: list) -> Probe:
    return Probe(
        behaviour,
        _empty,
        examples=tuple(
            {"lengths": pairs, "max_model_len": 32, "metric": metric} for pairs in examples
        ),
        make=lambda random: _lengths(random, metric, random.random() < 0.5),
        cases=5,
        describe=_describe_lengths,
        place=lambda parting, inputs: f"the number for {metric!r}",
        tolerance=Tolerance(rtol=1e-9, atol=1e-9),
    )


ABC = [[7, 21], [3, 24], [6, 2]]
ALONE = [[7, 21], [40, 3], [20, 13]]  # one is too long by its prompt alone
WITH_LONG = [[7, 21], [20, 13], [3, 24], [6, 26], [6, 2]]

EMPTINESS = Exercise(
    id="2.4",
    title="How empty, in three ways",
    symbol="course.practice.answers.lab_02:slab_emptiness",
    points=3,
    minutes=20,
    difficulty=3,
    piece=False,
    trials="random workloads",
    hints=(
        "C has a prompt of 6 and writes 2 tokens. It lives for two steps: how many tokens are in "
        "its slab after the first, and after the second? What is the mean?",
        '"per_step is the same as per_request": a request of 24 steps must count 24 times, one of '
        "2 steps twice. Add up the empty slots of all steps, and divide by all steps.",
        "Over its life a request holds `prompt + (output + 1) / 2` tokens in the mean. Leave out "
        "who is too long; three means of tokens, the last weighted with `output`; each divided "
        "by the limit, and taken from 1.",
    ),
    probes=(
        _metric_probe(
            "the share of requests that are turned away", "dropped", WITH_LONG, ABC, ALONE
        ),
        _metric_probe("when it ends, each request once", "at_finish", ABC, [[1, 31]], WITH_LONG),
        _metric_probe("over its life, each request once", "per_request", ABC, [[6, 2]], WITH_LONG),
        _metric_probe("over its life, each step once", "per_step", ABC, [[6, 2]], WITH_LONG),
    ),
)

# ---- 2.5 and 2.6 admission ----------------------------------------------------------------------

NUM_SLABS, LIMIT = 2, 32


def _queue(answer: Any) -> list[tuple[str, int]]:
    """The learner's queue, or Unusable that says what is wrong with it."""
    if type(answer) is not list or not answer:
        raise Unusable("failing_queue is a list of requests: [(name, total tokens), ...]")
    for entry in answer:
        if type(entry) in (tuple, list) and len(entry) > 2:
            raise Unusable('an entry has two parts, a name and a total: ("A", 28)')
        if type(entry) not in (tuple, list) or len(entry) != 2:
            raise Unusable(f'{entry!r} is no request; write it as (name, total): ("A", 28)')
        if type(entry[0]) is not str or type(entry[1]) is not int or entry[1] < 1:
            raise Unusable(f'{entry!r} is no request; write it as (name, total): ("A", 28)')
    if len({name for name, _ in answer}) < len(answer):
        raise Unusable("two requests have the same name; give each its own")
    return [(entry[0], entry[1]) for entry in answer]


def _admitted(queue: list[tuple[str, int]], leaks: bool) -> list[str]:
    """Who is let in; ``leaks``: the faulty version."""
    free, admitted = NUM_SLABS, []
    for name, total in queue:
        if total > LIMIT and not leaks:
            continue
        if free == 0:
            break
        free -= 1
        if total <= LIMIT:
            admitted.append(name)
    return admitted


def _right_admits(answer: Any, inputs: Inputs) -> str:
    queue = _queue(answer)
    longest = max(total for _, total in queue)
    if queue[-1][0] in _admitted(queue, leaks=False):
        return "the last request is let in"
    if queue[-1][1] > LIMIT:
        return f"the last request is longer than {LIMIT}: it is dropped by any version"
    if longest < LIMIT:
        return f"no request is longer than {LIMIT}, and a right version lets the last one wait, too"
    if longest == LIMIT:
        return f"the longest request has {LIMIT} tokens, and a right version lets the last one wait"
    return "a right version lets the last request wait, too"


def _faulty_refuses(answer: Any, inputs: Inputs) -> str:
    queue = _queue(answer)
    if queue[-1][0] not in _admitted(queue, leaks=True):
        return "the last request waits"
    return "the last request is let in: the fault does not show"


def _is_short(answer: Any, inputs: Inputs) -> str:
    count = len(_queue(answer))
    return "at most 3 requests" if count <= 3 else f"{count} requests"


def _of_answer(inputs: Inputs) -> str:
    return ""


QUEUE = Exercise(
    id="2.5",
    title="Find the bug: a queue that stands still",
    symbol="course.practice.answers.lab_02:failing_queue",
    kind="data",
    start="failing_queue = None  # [(name, total tokens), ...]: at most three requests",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "Follow one request through the loop who is longer than a slab. What does it hold when "
        "the loop goes on to the next?",
        '"A right version lets the last request wait, too": then the two slabs are really '
        "taken. At most one request before it may be of a length that is let in.",
        "One request that is dropped, then two that fit: for two slabs that should be no problem.",
    ),
    probes=(
        Probe(
            "a right version lets the last one in",
            _right_admits,
            examples=({},),
            describe=_of_answer,
        ),
        Probe(
            "the version above lets it wait", _faulty_refuses, examples=({},), describe=_of_answer
        ),
        Probe("no shorter list would do", _is_short, examples=({},), describe=_of_answer),
    ),
)


def play_admission(admit: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Rounds: who leaves before it, then admission with the course's allocator."""
    slabs = SlabAllocator(inputs["num_slabs"] * inputs["limit"], inputs["limit"])
    queue = [(name, total) for name, total in inputs["queue"]]
    log = []
    for leaving in inputs["rounds"]:
        for name in leaving:
            if name in slabs.slabs:
                slabs.release(name)
        admitted = admit(slabs, queue)
        if type(admitted) is not list:
            raise Unusable(f"admit gave {admitted!r}; give a list of names")
        log.append(
            {
                "who is let in": _names(admitted),
                "who waits": _names(name for name, _ in queue),
                "who holds a slab": _names(sorted(slabs.slabs)),
                "free slabs": slabs.num_free,
            }
        )
    return log


def _admission(queue: str, *rounds: str, num_slabs: int = 2, limit: int = 32) -> Inputs:
    """A queue as "A28 B27", rounds as the names of those who leave first."""
    return {
        "num_slabs": num_slabs,
        "limit": limit,
        "queue": [[entry[0], int(entry[1:])] for entry in queue.split()],
        "rounds": [list(leaving) for leaving in rounds or ("",)],
    }


def _random_queue(random: Random, too_long: float, plenty: bool = False) -> Inputs:
    num_slabs, limit = random.randint(1, 4), random.choice([8, 32, 100])
    num_slabs += 8 * plenty
    queue, rounds = [], [""]
    for name in "ABCDEFGHIJ"[: random.randint(4, 9)]:
        long = random.random() < too_long
        total = limit + random.randint(1, 9) if long else random.randint(1, limit)
        queue.append(f"{name}{total}")
    for _ in range(random.randint(1, 3)):
        rounds.append("".join(random.sample("ABCDEF", 2)))
    return _admission(" ".join(queue), *rounds, num_slabs=num_slabs, limit=limit)


def _describe_admission(inputs: Inputs) -> str:
    queue = ", ".join(f"{name} {total}" for name, total in inputs["queue"])
    slabs = "1 slab" if inputs["num_slabs"] == 1 else f"{inputs['num_slabs']} slabs"
    told = f"{slabs} of {inputs['limit']}; queue {queue or 'empty'}"
    later = [" and ".join(leaving) for leaving in inputs["rounds"][1:]]
    return told + "".join(f"; then {who or 'nobody'} may leave" for who in later)


def _place_admission(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    where = "the first time" if number == 0 else f"in call {int(number) + 1}"
    return f"{where}: {rest[0] if rest else 'what came back'}"


def _admission_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        play_admission,
        examples=examples,
        make=make,
        describe=_describe_admission,
        place=_place_admission,
        **more,
    )


ADMIT = Exercise(
    id="2.6",
    title="Find the bug: mend admission",
    symbol="course.practice.answers.lab_02:admit",
    kind="mend",
    start="a request that is too long is given a slab before anybody looks at its length",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=9,
    trials="random queues",
    hints=(
        "What must be known about a request before it is given anything?",
        '"A request that is too long waits while no slab is free": it is dropped at once. Its '
        "length can be looked at without a slab.",
        "Look at the head of the queue. Too long: take it out and go on. Else try to reserve. "
        "None: stop, and leave it where it is. A slab: take it out and note its name.",
    ),
    probes=(
        _admission_probe(
            "in order, as many as there are slabs; the rest waits",
            lambda random: _random_queue(random, too_long=0.0),
            _admission("A28 B27 C8", "", "A"),
            _admission("A28"),
        ),
        _admission_probe(
            "a request that is too long is dropped and holds nothing",
            lambda random: _random_queue(random, too_long=0.4, plenty=True),
            _admission("D33 A28 B27"),
            _admission("A28 D33 B27"),
            cases=4,
        ),
        _admission_probe(
            "it is dropped even while no slab is free",
            lambda random: _random_queue(random, too_long=0.6),
            _admission("A28 B27 D33 C8"),
            _admission("A28 D33 B27 C8", "", "B"),
            cases=6,
        ),
        _admission_probe(
            "behind somebody who waits, nobody is looked at",
            lambda random: _random_queue(random, too_long=0.4),
            _admission("A28 B27 C8 D33 E5", "", "A"),
            cases=4,
        ),
        _admission_probe(
            "a request that just fits into a slab is let in",
            None,
            _admission("A32 B31"),
        ),
        _admission_probe("an empty queue, nobody let in", None, _admission("")),
    ),
)

# ---- 2.7 a prediction ---------------------------------------------------------------------------

QUESTIONS = (
    "ShareGPT, a slab each",
    "Alpaca, a slab each",
    "Alpaca, only what is written",
    "Alpaca, % live in slabs",
)


@cache
def measured(question: str) -> float:
    """Means while somebody waits, over 4,000 requests on the pool of the paper's 13B server."""
    from course.memory.paper import MAX_MODEL_LEN, POOL_TOKENS
    from course.memory.policies import Paged, Slab
    from course.memory.simulate import simulate
    from course.workload import make_requests, mix

    name, what = question.split(", ")
    requests = make_requests(mix(f"paper_{name.lower()}").sample(4000, seed=0))
    paged = what == "only what is written"
    policy = Paged(POOL_TOKENS, MAX_MODEL_LEN, 1) if paged else Slab(POOL_TOKENS, MAX_MODEL_LEN)
    run = simulate(requests, policy, all_at_once=True)
    return 100 * run.sustained.shares()["live"] if "%" in what else run.sustained_batch


def _near(answer: Any, inputs: Inputs) -> str:
    question = inputs["question"]
    guess = answer.get(question) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(f"there is no number for {question!r}")
    found = measured(question)
    if abs(guess - found) <= (0.5 if question.endswith("a slab each") else 0.2 * found):
        return "near enough"
    return f"you say {how_far(guess, found)}"


PREDICTION = Exercise(
    id="2.7",
    title="Predict, then measure: what the waste costs",
    symbol="course.practice.answers.lab_02:predicted_batches",
    kind="data",
    start="predicted_batches = {\n" + "".join(f'    "{q}": None,\n' for q in QUESTIONS) + "}",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=4,
    hints=(
        "What decides how many slabs the pool has? Which of the numbers above does not matter for "
        "it?",
        '"My batch is 7.7": there is no part of a slab. "My batch of what is written is half of '
        'what is measured": a request has all its tokens only at its end, though long answers '
        "are on the screen longer.",
        "Slabs: one division, rounded down. Written only: the pool, divided by the tokens that a "
        "running request holds in the mean; with answers of very unequal length that is about "
        "prompt plus output. Live: batch times that number, as a share of the pool.",
    ),
    probes=tuple(
        Probe(
            question if "%" in question else f"{question}: requests that run together",
            _near,
            examples=({"question": question},),
            describe=_of_answer,
            measured=lambda inputs: f"{measured(inputs['question']):.1f}",
        )
        for question in QUESTIONS
    ),
)

EXERCISES = (SLABS, LEDGER, BATCH, EMPTINESS, QUEUE, ADMIT, PREDICTION)
