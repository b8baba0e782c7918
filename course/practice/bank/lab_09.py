"""Lab 09, smaller and farther: int8 keys and values, and blocks that a window has passed."""

from __future__ import annotations

from random import Random
from typing import Any

from course.engine.block_pool import BlockPool
from course.practice.compare import Parting, Tolerance
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt
from course.practice.guess import how_far

TORCH = ("torch",)

# ---- 9.1 quantize -------------------------------------------------------------------------------
#
# Rows are made from whole numbers of steps, each up to 0.3 steps off, so that no number lies
# between two steps and every way to compute the nearest one gives the same. Every row has a step of
# its own, and one number that is exactly 127 steps.


def rows_of(inputs: Inputs) -> Any:
    import torch

    dtype = getattr(torch, inputs["dtype"])
    if "rows" in inputs:
        return torch.tensor(inputs["rows"], dtype=torch.float32).to(dtype)
    generator = torch.Generator().manual_seed(inputs["seed"])
    shape = inputs["shape"]
    steps = torch.randint(-120, 121, shape, generator=generator).float()
    steps += 0.6 * torch.rand(shape, generator=generator) - 0.3
    place = torch.randint(0, shape[-1], shape[:-1], generator=generator).unsqueeze(-1)
    largest = 127.0 * (2 * torch.randint(0, 2, place.shape, generator=generator) - 1)
    if inputs.get("all_negative"):
        steps, largest = -steps.abs(), -largest.abs()
    steps.scatter_(-1, place, largest)
    size = 10 ** (1.5 * torch.rand(shape[:-1], generator=generator) - 2.5)
    return (steps * size.unsqueeze(-1)).to(dtype)


def _pair(result: Any, what: str) -> tuple[Any, Any]:
    if type(result) is not tuple or len(result) != 2:
        raise Unusable(f"{what} gives a pair of tensors; this gave {type(result).__name__}")
    return result


def _quantize(quantize: Any, inputs: Inputs) -> Any:
    stored, scale = _pair(quantize(rows_of(inputs)), "quantize")
    return {"stored": stored, "scale": scale}


def _in_place(quantize: Any, inputs: Inputs) -> Any:
    rows = rows_of(inputs)
    before = rows.clone()
    quantize(rows)
    return {"rows afterwards": rows} if not rows.equal(before) else {"rows afterwards": before}


def _zero_rows(quantize: Any, inputs: Inputs) -> Any:
    """What is stored, and whether NaN was on its way into int8, where it turns into anything."""
    with watch_int8() as seen:
        stored, scale = _pair(quantize(rows_of(inputs)), "quantize")
    if seen:
        raise Unusable(
            "a NaN was converted to int8: 0 / 0. It became 0 on this machine, and may become "
            "anything on another"
        )
    return {"stored": stored, "scale": scale}


def watch_int8() -> Any:
    """A context that notes each conversion of NaN or infinity to int8."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_bad(value: Any) -> bool:
        return type(value) is torch.Tensor and bool((~value.isfinite()).any())

    class Watch(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __enter__(self) -> list[str]:
            super().__enter__()
            return self.seen

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made = [x for x in (result, *args[:1]) if type(x) is torch.Tensor]
            if any(x.dtype is torch.int8 for x in made) and any(map(is_bad, args)):
                self.seen.append(getattr(func, "__name__", ""))
            return result

    return Watch()


def _describe_rows(inputs: Inputs) -> str:
    if "rows" in inputs:
        return f"rows {inputs['rows']}, {inputs['dtype']}"
    return f"rows of shape {inputs['shape']}, {inputs['dtype']}, seed {inputs['seed']}"


def _place_row(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    what, *where = parting.path
    return f"{what}{list(where) if where else ''}"


def _some_rows(random: Random, **more: Any) -> Inputs:
    shape = [random.choice([2, 3, 5]), random.choice([1, 2, 3]), random.choice([4, 7, 16, 33])]
    return {"shape": shape, "dtype": "float32", "seed": random.randrange(10**6), **more}


def _fewer_axes(random: Random) -> Inputs:
    shape = random.choice([[9], [6, 8], [2, 3, 4, 5]])
    return {"shape": shape, "dtype": "float32", "seed": random.randrange(10**6)}


EXACT = Tolerance(rtol=1e-6)

QUANTIZE = Exercise(
    id="9.1",
    title="Whole numbers of steps",
    symbol="course.engine.quantized_kv:quantize",
    points=3,
    minutes=15,
    difficulty=2,
    trials="random tensors",
    hints=(
        "How large is one step if the largest number of the row, sign aside, is to be 127 of them? "
        "Which axis is a row?",
        '"The size of tensor a must match the size of tensor b": rows are `[..., head_dim]` and '
        "scales `[...]`. `scale.unsqueeze(-1)` gives each row's scale one place to stand over the "
        "whole row.",
        "`.float()`, `.abs().amax(dim=-1) / 127`, then divide, `torch.round`, `.to(torch.int8)`. "
        "For rows of zeros divide by something that is not 0: `torch.where`.",
    ),
    probes=(
        Probe(
            "each row has its own scale, each number the nearest step",
            _quantize,
            examples=(
                {"rows": [[0.5, -2.0, 1.1], [0.0, 0.1, 0.02]], "dtype": "float32"},
                {"rows": [[[1.0, -0.3], [0.02, 0.013]]], "dtype": "float32"},
            ),
            make=_some_rows,
            cases=8,
            describe=_describe_rows,
            place=_place_row,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "a row without positive numbers",
            _quantize,
            examples=({"rows": [[-1.0, -0.25, -3.0]], "dtype": "float32"},),
            make=lambda random: _some_rows(random, all_negative=True),
            cases=3,
            describe=_describe_rows,
            place=_place_row,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "any number of axes before the last",
            _quantize,
            examples=({"rows": [3.0, -1.0, 0.1], "dtype": "float32"},),
            make=_fewer_axes,
            cases=3,
            describe=_describe_rows,
            place=_place_row,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "a row of zeros stays one",
            _zero_rows,
            examples=({"rows": [[0.0, 0.0, 0.0], [2.0, 0.0, -0.9]], "dtype": "float32"},),
            describe=_describe_rows,
            place=_place_row,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "scales are fp32, also for fp16 and fp64 rows",
            _quantize,
            examples=({"rows": [[0.5, -2.0, 1.25]], "dtype": "float16"},),
            make=lambda random: _some_rows(random, dtype=random.choice(["float16", "float64"])),
            cases=4,
            describe=_describe_rows,
            place=_place_row,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "the rows that came in are as they were",
            _in_place,
            examples=({"rows": [[0.5, -2.0, 1.25]], "dtype": "float32"},),
            make=_some_rows,
            cases=2,
            describe=_describe_rows,
            place=_place_row,
            needs=TORCH,
        ),
    ),
)


# ---- 9.2 dequantize -----------------------------------------------------------------------------


def _dequantize(dequantize: Any, inputs: Inputs) -> Any:
    import torch

    if "stored" in inputs:
        stored, scale = inputs["stored"], inputs["scale"]
        stored = torch.tensor(stored, dtype=torch.int8)
        scale = torch.tensor(scale, dtype=torch.float32)
    else:
        generator = torch.Generator().manual_seed(inputs["seed"])
        shape = inputs["shape"]
        stored = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        scale = inputs["step"] * (0.5 + torch.rand(shape[:-1], generator=generator))
    return dequantize(stored, scale, getattr(torch, inputs["dtype"]))


def _describe_stored(inputs: Inputs) -> str:
    if "stored" in inputs:
        return f"stored {inputs['stored']}, scales {inputs['scale']}, to {inputs['dtype']}"
    return (
        f"stored of shape {inputs['shape']}, steps of about {inputs['step']:g}, to "
        f"{inputs['dtype']}, seed {inputs['seed']}"
    )


def _place_number(parting: Parting, inputs: Inputs) -> str:
    return f"number {list(parting.path)}" if parting.path else ""


def _steps(random: Random, dtype: str = "float32", step: float = 0.01) -> Inputs:
    shape = [random.choice([2, 3, 5]), random.choice([1, 2, 4]), random.choice([3, 6, 16])]
    return {"shape": shape, "step": step, "dtype": dtype, "seed": random.randrange(10**6)}


DEQUANTIZE = Exercise(
    id="9.2",
    title="And numbers again",
    symbol="course.engine.quantized_kv:dequantize",
    points=1,
    minutes=5,
    difficulty=1,
    trials="random tensors",
    hints=(
        "Which scale belongs to the third number of the second row?",
        '"It runs and gives wrong numbers": with as many rows as numbers in a row, PyTorch lines '
        "the scales up with the last axis and says nothing. `unsqueeze(-1)`.",
        "Three things in this order: both as fp32, multiply, convert to `dtype`.",
    ),
    probes=(
        Probe(
            "each row is multiplied by its own scale",
            _dequantize,
            examples=(
                {"stored": [[32, -127], [70, 1]], "scale": [0.5, 2.0], "dtype": "float32"},
                {"stored": [[[3, -1, 2]]], "scale": [[0.25]], "dtype": "float32"},
            ),
            make=_steps,
            describe=_describe_stored,
            place=_place_number,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "it has the dtype that was asked for",
            _dequantize,
            examples=({"stored": [[32, -127], [70, 1]], "scale": [0.5, 2.0], "dtype": "float16"},),
            make=lambda random: _steps(random, random.choice(["float16", "bfloat16", "float64"])),
            describe=_describe_stored,
            place=_place_number,
            tolerance=Tolerance(rtol=8e-3),
            needs=TORCH,
        ),
        Probe(
            "steps too small for fp16 are not lost before they are multiplied",
            _dequantize,
            examples=({"stored": [[100, -64, 0]], "scale": [2e-8], "dtype": "float16"},),
            make=lambda random: _steps(random, "float16", 4e-8),
            cases=3,
            describe=_describe_stored,
            place=_place_number,
            tolerance=Tolerance(rtol=4e-2),
            needs=TORCH,
        ),
    ),
)


# ---- 9.3 the cache ------------------------------------------------------------------------------


def make_cache(cache_class: Any, inputs: Inputs) -> Any:
    """A small cache in which everything that nobody has written is 9, scales included."""
    import torch

    from course.sizing import ModelShape

    shape = ModelShape("small", 2, 6, inputs["heads"], inputs["head_dim"], 64)
    dtype = getattr(torch, inputs.get("dtype", "float32"))
    cache = cache_class(shape, inputs["num_blocks"], inputs["block_size"], dtype)
    for tensor in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
        tensor.fill_(9)
    return cache


def _tokens(inputs: Inputs, number: int, count: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(inputs["seed"] + number)
    size = (2, count, inputs["heads"], inputs["head_dim"])
    k, v = torch.randn(size, generator=generator)
    return k, 0.1 * v  # of another size, so that their scales cannot be mixed up unseen


def _slots(inputs: Inputs) -> list[int]:
    from course.engine.block_table import slot_mapping

    return slot_mapping(inputs["table"], range(inputs["count"]), inputs["block_size"])


def _whole_cache(cache_class: Any, inputs: Inputs) -> Any:
    """Write both layers; everything that the cache holds, slot by slot."""
    cache = make_cache(cache_class, inputs)
    slots = _slots(inputs)
    slots[0] = -1 if inputs.get("skip") else slots[0]
    for layer in range(2):
        cache.write(layer, *_tokens(inputs, layer, len(slots)), slots)
    names = ("keys", "values", "key scales", "value scales")
    return [
        {name: part.flatten(0, 1) for name, part in zip(names, cache.layer(layer), strict=True)}
        for layer in range(2)
    ]


def _read_back(cache_class: Any, inputs: Inputs) -> Any:
    cache = make_cache(cache_class, inputs)
    slots = _slots(inputs)
    for layer in range(2):
        cache.write(layer, *_tokens(inputs, layer, len(slots)), slots)
    if "moved" in inputs:
        cache.copy_blocks(list(zip(inputs["table"], inputs["moved"], strict=True)))
    found = []
    for layer in range(2):
        pair = cache.gather(layer, inputs.get("moved", inputs["table"]), inputs["read"])
        k, v = _pair(pair, "gather")
        found.append({"keys": k, "values": v})
    return found


def _too_short(cache_class: Any, inputs: Inputs) -> Any:
    cache = make_cache(cache_class, inputs)
    return attempt(lambda: cache.gather(0, inputs["table"], inputs["read"]), ValueError)


def _describe_cache(inputs: Inputs) -> str:
    told = f"{inputs['count']} tokens in blocks {inputs['table']} of {inputs['block_size']}"
    if "moved" in inputs:
        told += f", copied to {inputs['moved']}"
    if "read" in inputs:
        told += f", {inputs['read']} read"
    return told + (", the first one not to be written" if inputs.get("skip") else "")


def _place_slot(parting: Parting, inputs: Inputs) -> str:
    if len(parting.path) < 3:
        return f"layer {parting.path[0]}: {parting.path[1]}" if len(parting.path) == 2 else ""
    layer, what, slot, *rest = parting.path
    at = f"head {rest[0]}" if rest else ""
    return f"layer {layer}, {what} of slot {slot}, {at}".rstrip(", ")


def _place_token(parting: Parting, inputs: Inputs) -> str:
    return _place_slot(parting, inputs).replace("of slot", "of token")


def _cache(random: Random, **more: Any) -> Inputs:
    block_size = random.choice([1, 3, 4])
    num_blocks = random.choice([7, 8])
    table = random.sample(range(num_blocks), random.randint(2, 3))
    return {
        "seed": random.randrange(10**6),
        "heads": random.choice([2, 3]),
        "head_dim": random.choice([5, 8]),
        "block_size": block_size,
        "num_blocks": num_blocks,
        "table": table,
        "count": (len(table) - 1) * block_size + random.randint(1, block_size),
        **more,
    }


def _some_read(random: Random, **more: Any) -> Inputs:
    inputs = _cache(random, **more)
    return {**inputs, "read": random.randint(1, inputs["count"])}


def _moved(random: Random) -> Inputs:
    inputs = _some_read(random)
    others = [b for b in range(inputs["num_blocks"]) if b not in inputs["table"]]
    return {**inputs, "moved": random.sample(others, len(inputs["table"]))}


def _short(random: Random) -> Inputs:
    inputs = _cache(random)
    return {**inputs, "read": len(inputs["table"]) * inputs["block_size"] + random.randint(1, 3)}


A_CACHE = {
    "seed": 9,
    "heads": 2,
    "head_dim": 4,
    "block_size": 4,
    "num_blocks": 8,
    "table": [7, 1],
    "count": 7,
}

CACHE = Exercise(
    id="9.3",
    title="A cache that keeps its scales",
    symbol="course.engine.quantized_kv:QuantizedPagedKVCache",
    points=3,
    minutes=20,
    difficulty=2,
    blank=("_store", "gather"),
    trials="random tables",
    hints=(
        "How many tensors must be written for one token? Which of them does attention look at?",
        '"Nothing is written": `cache[layer].flatten(0, 1)[slots]` is a copy. Assign *to* it: '
        "`flat[slots] = stored`, or `flat.index_copy_(0, slots, stored)`.",
        "For keys and for values: `quantize`, then the steps into their slots, and the scales into "
        "theirs. For reading: `self._slots_of(...)`, four tensors flattened to slots, "
        "`dequantize` twice.",
    ),
    probes=(
        Probe(
            "steps and scales lie in their slots, where attention looks",
            _whole_cache,
            examples=(A_CACHE,),
            make=_cache,
            describe=_describe_cache,
            place=_place_slot,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "what is not to be written is left as it was",
            _whole_cache,
            examples=({**A_CACHE, "skip": True},),
            make=lambda random: _cache(random, skip=True),
            cases=3,
            describe=_describe_cache,
            place=_place_slot,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "gather gives numbers, in the order of the table",
            _read_back,
            examples=({**A_CACHE, "read": 7}, {**A_CACHE, "read": 3}),
            make=_some_read,
            describe=_describe_cache,
            place=_place_token,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "gather gives the dtype of the cache",
            _read_back,
            examples=({**A_CACHE, "read": 7, "dtype": "float16"},),
            make=lambda random: _some_read(random, dtype=random.choice(["float16", "float64"])),
            cases=2,
            describe=_describe_cache,
            place=_place_token,
            tolerance=Tolerance(rtol=1e-3),
            needs=TORCH,
        ),
        Probe(
            "scales move with their blocks",
            _read_back,
            examples=({**A_CACHE, "read": 7, "moved": [2, 6]},),
            make=_moved,
            cases=3,
            describe=_describe_cache,
            place=_place_token,
            tolerance=EXACT,
            needs=TORCH,
        ),
        Probe(
            "a table that is too short is refused",
            _too_short,
            examples=({**A_CACHE, "read": 9},),
            make=_short,
            cases=2,
            describe=_describe_cache,
            needs=TORCH,
        ),
    ),
)


# ---- 9.4 a prediction ---------------------------------------------------------------------------

HEAD_DIMS = (16, 64, 128)


def measured_share(head_dim: int) -> float:
    """Bytes of an int8 cache with its scales, in percent of an fp16 cache of the same slots."""
    import torch

    from course.engine.kv_cache import PagedKVCache
    from course.engine.quantized_kv import QuantizedPagedKVCache
    from course.sizing import ModelShape

    shape = ModelShape("any", 2, 4, 2, head_dim, 64)
    small = QuantizedPagedKVCache(shape, 16, 4)
    return 100 * small.num_bytes / PagedKVCache(shape, 16, 4, dtype=torch.float16).num_bytes


def _near_share(answer: Any, inputs: Inputs) -> str:
    head_dim = inputs["head_dim"]
    guess = answer.get(head_dim) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(
            f"there is no number for heads of {head_dim}: {{16: ..., 64: ..., 128: ...}}"
        )
    measured = measured_share(head_dim)
    if abs(guess - measured) <= 0.5:
        return "within half a percent of what is measured"
    return f"you say {guess:g} %: {how_far(guess, measured)}"


def _of_answer(inputs: Inputs) -> str:
    return ""


SHARE = Exercise(
    id="9.4",
    title="Predict, then measure: how small is int8?",
    symbol="course.practice.answers.lab_09:predicted_percent",
    kind="data",
    start="predicted_percent = {16: None, 64: None, 128: None}",
    points=2,
    minutes=10,
    difficulty=1,
    piece=False,
    lines=1,
    hints=(
        "For one token and one KV head: how many bytes are its numbers, in fp16 and in int8? What "
        "else is stored with them?",
        '"I say 50 for all of them": an fp32 scale is 4 bytes, for a head of 16 numbers as for one '
        "of 128.",
        "Bytes of one head of one token in int8, scale included, over the bytes of the same in "
        "fp16. Layers, blocks and heads cancel.",
    ),
    probes=tuple(
        Probe(
            f"percent of fp16 with heads of {head_dim}",
            _near_share,
            examples=({"head_dim": head_dim},),
            describe=_of_answer,
            needs=TORCH,
            measured=lambda inputs: f"{measured_share(inputs['head_dim']):.1f} %",
        )
        for head_dim in HEAD_DIMS
    ),
)


# ---- 9.5 num_passed_blocks ----------------------------------------------------------------------


def _call_passed(num_passed_blocks: Any, inputs: Inputs) -> Any:
    return num_passed_blocks(inputs["computed"], inputs["block_size"], inputs["window"])


def _window(computed: int, block_size: int, window: int | None) -> Inputs:
    return {"computed": computed, "block_size": block_size, "window": window}


def _describe_window(inputs: Inputs) -> str:
    window = "no window" if inputs["window"] is None else f"a window of {inputs['window']}"
    return f"{inputs['computed']} tokens computed, block size {inputs['block_size']}, {window}"


def _place_window(parting: Parting, inputs: Inputs) -> str:
    if inputs["window"] is None:
        return ""
    newest = inputs["computed"]
    oldest = max(0, newest - inputs["window"] + 1)
    return f"the next token is at position {newest} and sees positions {oldest} to {newest}"


def _at_the_edge(random: Random) -> Inputs:
    """So many tokens that the window's end lies at a block's edge, or one or two beside it."""
    block_size = random.choice([2, 3, 4, 5, 16])
    window = random.choice([1, 2, 3, 4, 7, 8, 32])
    first_visible = random.randint(1, 9) * block_size + random.randint(-1, 2)
    return _window(first_visible + window - 1, block_size, window)


def _anywhere(random: Random) -> Inputs:
    window = random.randint(1, 60)
    return _window(window + random.randint(0, 90), random.choice([1, 2, 3, 4, 7, 16]), window)


PASSED = Exercise(
    id="9.5",
    title="What the window has passed",
    symbol="course.engine.sliding_window:num_passed_blocks",
    points=2,
    minutes=10,
    difficulty=2,
    trials="random lengths and windows",
    hints=(
        "Which position is the next token's? Which is the oldest position that it sees, itself "
        "counted?",
        '"I get 1 where 0 is expected": a block goes when its *last* token is out of sight. And a '
        "window of 4 that ends at position 6 begins at 3.",
        "`num_computed_tokens - sliding_window + 1` is the oldest position still seen. All blocks "
        "that end before it are passed: `//`. Below 0 there is no position.",
    ),
    probes=(
        Probe(
            "a block is passed when its last token is out of sight, not sooner, not later",
            _call_passed,
            examples=(
                _window(5, 2, 4),
                _window(4, 2, 4),
                _window(6, 2, 4),
                _window(7, 2, 4),
                _window(11, 4, 8),
                _window(10, 4, 8),
            ),
            make=_at_the_edge,
            cases=16,
            describe=_describe_window,
            place=_place_window,
        ),
        Probe(
            "windows and blocks of any size",
            _call_passed,
            examples=(_window(20, 4, 6), _window(9, 1, 1)),
            make=_anywhere,
            cases=16,
            describe=_describe_window,
            place=_place_window,
        ),
        Probe(
            "nothing is passed before the window is full",
            _call_passed,
            examples=(_window(0, 4, 8), _window(3, 2, 8), _window(7, 2, 8)),
            make=lambda r: (lambda w: _window(r.randrange(w), r.choice([1, 2, 4]), w))(
                r.randint(2, 40)
            ),
            describe=_describe_window,
            place=_place_window,
        ),
        Probe(
            "without a window nothing is ever passed",
            _call_passed,
            examples=(_window(100, 4, None), _window(0, 4, None)),
            describe=_describe_window,
        ),
    ),
)


# ---- 9.6 and 9.7 giving blocks back -------------------------------------------------------------

WINDOW, WINDOW_BLOCK_SIZE = 8, 4


def _parts(answer: Any) -> list[int]:
    if type(answer) is not list or not answer:
        raise Unusable(
            "leaking_steps is a list with a number for each step: [3, 1] computes 3 tokens, then 1"
        )
    for count in answer:
        if type(count) is not int or count < 1:
            raise Unusable(f"{count!r} is not a step; a step computes 1 token or more")
    if sum(answer) > 400:
        raise Unusable("these are more than 400 tokens; the fault shows much earlier")
    return answer


def _held(steps: list[int], only_newest: bool) -> int:
    """Blocks that the request holds after these steps; ``only_newest``: the faulty version."""
    table: list[bool] = []
    computed = 0
    for count in steps:
        computed += count
        table += [True] * (-(-computed // WINDOW_BLOCK_SIZE) - len(table))
        passed = max(0, computed - WINDOW + 1) // WINDOW_BLOCK_SIZE
        for block in range(passed - 1 if only_newest and passed else 0, passed):
            table[block] = False
    return sum(table)


def _leaks(answer: Any, inputs: Inputs) -> str:
    steps = _parts(answer)
    leaked = _held(steps, only_newest=True) - _held(steps, only_newest=False)
    if leaked:
        return "a block is held that no later token sees"
    return f"after the steps {steps} it holds {_held(steps, False)} blocks, and those are all seen"


def _fewest(answer: Any, inputs: Inputs) -> str:
    count = sum(_parts(answer))
    return "as few tokens as possible" if count <= 15 else f"{count} tokens; fewer will do"


LEAKING = Exercise(
    id="9.6",
    title="Find the bug: a window that leaks",
    symbol="course.practice.answers.lab_09:leaking_steps",
    kind="data",
    start="leaking_steps = None  # [tokens computed in each step], as few tokens as will do",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "One token a step, a block is passed at a time. When does more than one block fall out of "
        "the window in the same step?",
        '"All blocks that it holds are seen": the prompt of your request is too short, or it comes '
        "in pieces too small to pass two blocks at once.",
        "One step that computes a whole prompt. With a window of 8 and blocks of 4, two blocks are "
        "passed as soon as position 8 is the oldest that is seen.",
    ),
    probes=(
        Probe("after it, a block is leaked", _leaks, examples=({},), describe=_of_answer),
        Probe("no fewer tokens would do", _fewest, examples=({},), describe=_of_answer),
    ),
)


def play_window(free_passed: Any, inputs: Inputs) -> list[dict[str, Any]]:
    """Steps of one request beside another that shares its first block; only changes count."""
    order, block_size = inputs["order"], inputs["block_size"]
    pool = BlockPool(len(order), order=order)
    table: list[int] = []
    shared: list[int] = []
    computed, log = 0, []
    for count in inputs["steps"]:
        computed += count
        missing = -(-computed // block_size) - len(table)
        table += pool.allocate(max(0, missing))
        if inputs.get("shared") and not shared:
            shared = table[:1]
            pool.share(shared)
        before = list(table)
        answer = free_passed(pool, table, computed, block_size, inputs["window"])
        answer = list(answer) if answer is table else answer  # as it is now, not at the end
        kept = [b if a >= 0 else a for a, b in zip(table, before, strict=False)]
        log.append(
            {
                "what comes back": answer,
                "length of the table": len(table),
                "entries that are -1": ", ".join(
                    str(place) for place, block_id in enumerate(table) if block_id == -1
                ),
                "the other entries are as they were": table[: len(kept)] == kept,
                "free blocks": pool.num_free,
                "owners of what is left": [pool.ref_count(b) for b in table if b >= 0],
                "owners of the other's block": [pool.ref_count(b) for b in shared],
            }
        )
    return log


def _place_window_step(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    number, *rest = parting.path
    computed = sum(inputs["steps"][: int(number) + 1])
    tokens = "token" if computed == 1 else "tokens"
    return f"after {computed} {tokens}: {rest[0] if rest else 'what came back'}"


def _describe_window_steps(inputs: Inputs) -> str:
    window = "no window" if inputs["window"] is None else f"window of {inputs['window']}"
    return (
        f"{len(inputs['order'])} blocks of {inputs['block_size']}, {window}, "
        f"steps of {', '.join(map(str, inputs['steps']))} tokens"
    )


def _slide(random: Random, largest: int, **more: Any) -> Inputs:
    block_size = random.choice([1, 2, 3, 4])
    window = random.choice([1, 3, 4, 7, 8])
    steps = [random.randint(1, largest) for _ in range(random.randint(5, 9))]
    num_blocks = -(-sum(steps) // block_size) + 2
    return {
        "order": random.sample(range(num_blocks), num_blocks),
        "block_size": block_size,
        "window": window,
        "steps": steps,
        **more,
    }


def _slid(*steps: int, window: int | None = 4, **more: Any) -> Inputs:
    order = [7, 1, 3, 0, 2, 5, 4, 6, 11, 9, 8, 10]
    return {"order": order, "block_size": 2, "window": window, "steps": list(steps), **more}


MENDED = Exercise(
    id="9.7",
    title="Find the bug: mend it",
    symbol="course.practice.answers.lab_09:free_passed",
    kind="mend",
    start="only the block that was passed last is looked at",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=5,
    trials="random runs",
    hints=(
        "Which entries at the start of the table may still name a block? After this call, which "
        "may?",
        '"`ValueError`: block -1": what was given back before is not given back again. Leave the '
        "entries out that are -1 already.",
        "Collect the ids of the first `num_passed` entries that are not -1. Set those entries to "
        "-1, in the same list, and free what you collected, the last first.",
    ),
    probes=(
        Probe(
            "token by token, each block goes once",
            play_window,
            examples=(_slid(1, 1, 1, 1, 1, 1, 1, 1, 1),),
            make=lambda random: _slide(random, 1),
            cases=3,
            describe=_describe_window_steps,
            place=_place_window_step,
        ),
        Probe(
            "many tokens at once pass many blocks",
            play_window,
            examples=(_slid(9, 1, 1, 5),),
            make=lambda random: _slide(random, 9),
            describe=_describe_window_steps,
            place=_place_window_step,
        ),
        Probe(
            "a block that somebody else uses stays theirs",
            play_window,
            examples=(_slid(3, 3, 1, 1, shared=True),),
            make=lambda random: _slide(random, 5, shared=True),
            cases=3,
            describe=_describe_window_steps,
            place=_place_window_step,
        ),
        Probe(
            "without a window nothing changes",
            play_window,
            examples=(_slid(5, 5, window=None),),
            describe=_describe_window_steps,
            place=_place_window_step,
        ),
    ),
)

EXERCISES = (QUANTIZE, DEQUANTIZE, CACHE, SHARE, PASSED, LEAKING, MENDED)
