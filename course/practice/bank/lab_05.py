"""Lab 05, paged attention: cache, online softmax, groups, the kernel, the merge, a fault in one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from course.practice.compare import Parting, Tolerance
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt
from course.practice.watched import Array, watch
from course.sizing import ModelShape

# ---- 5.1 the cache ------------------------------------------------------------------------------
#
# Numbers in the cache say where they come from: token 4, KV head 1, element 2 is 4.12, and its
# value 104.12. What was not written is NaN.


def _numbered(rows: Any, heads: int, dim: int, dtype: Any = None) -> Any:
    """``[len(rows), heads, dim]``: 4.12 for row number 4, head 1, element 2."""
    import torch

    base = torch.tensor(list(rows), dtype=torch.float32).view(-1, 1, 1)
    head = torch.arange(heads).view(1, -1, 1) / 10
    element = torch.arange(dim).view(1, 1, -1) / 100
    return (base + head + element).to(dtype or torch.float32)


def _empty_cache(cache_class: Any, inputs: Inputs) -> Any:
    import torch

    heads = inputs.get("heads", 2)
    shape = ModelShape("small", inputs.get("layers", 2), heads, heads, inputs.get("dim", 3), 64)
    dtype = getattr(torch, inputs.get("dtype", "float32"))
    # "torch": what stands before the learner's lines in `_store` is not theirs, and the C in it
    # would write wherever a wrong slot points.
    size = (inputs["num_blocks"], inputs["block_size"])
    cache = cache_class(shape, *size, dtype, write_backend="torch")
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    return cache


def _content(cache: Any) -> dict[str, Any]:
    return {"keys": cache.keys.clone(), "values": cache.values.clone()}


def _write(cache: Any, inputs: Inputs, slots: Any = None) -> Any:
    heads, dim = inputs.get("heads", 2), inputs.get("dim", 3)
    k = _numbered(range(len(inputs["slots"])), heads, dim)
    slots = list(inputs["slots"]) if slots is None else slots
    return cache.write(inputs.get("layer", 1), k, k + 100, slots)


def _written(cache_class: Any, inputs: Inputs) -> Any:
    cache = _empty_cache(cache_class, inputs)
    _write(cache, inputs)
    return _content(cache)


def _written_by(cache_class: Any, inputs: Inputs) -> Any:
    """Slots as a list, a tensor of 32 or 64 bits, and checked before."""
    import torch

    found = []
    for given in (torch.int64, torch.int32, "checked"):
        cache = _empty_cache(cache_class, inputs)
        if given == "checked":
            slots = cache.check_slots(inputs["slots"])
        else:
            slots = torch.tensor(inputs["slots"], dtype=given)
        _write(cache, inputs, slots)
        found.append(_content(cache))
    return found


def _refused(cache_class: Any, inputs: Inputs) -> Any:
    """k, v or slots that do not fit: ValueError, and the cache is as it was."""
    cache = _empty_cache(cache_class, inputs)
    k = _numbered(range(3), 2, 3)
    parts, slots = {"k": k, "v": k + 100}, list(inputs["slots"])
    for which in inputs["which"].split(" and "):
        wrong = parts[which]
        parts[which] = {
            "right": wrong,
            "one token short": wrong[:2],
            "one token in all": wrong[:1],
            "one element of each head": wrong[:, :, :1],
            "one head": wrong[:, :1],
            "heads and elements swapped": wrong.transpose(1, 2).contiguous(),
        }[inputs["shape"]]

    def write() -> Any:
        try:
            return attempt(lambda: cache.write(0, parts["k"], parts["v"], slots), ValueError)
        except (RuntimeError, IndexError) as error:  # PyTorch's: which, depends on how it is asked
            if isinstance(error, NotImplementedError):
                raise
            return {"raised": "PyTorch's own error, from the middle of the work"}

    came = write()
    is_clean = bool(cache.keys.isnan().all() and cache.values.isnan().all())
    return {
        "what came of it": came.get("raised", "no error"),
        "the cache": "as it was" if is_clean else "changed",
    }


def _filled(cache_class: Any, inputs: Inputs) -> Any:
    """A cache whose slot 31 holds 31.00, 31.01, ...: only where the table's tokens are."""
    import torch

    cache = _empty_cache(cache_class, inputs)
    size, layer = inputs["block_size"], inputs.get("layer", 1)
    table, count = inputs["table"], inputs["num_tokens"]
    slots = [table[p // size] * size + p % size for p in range(count)]
    if inputs.get("everywhere"):
        slots = list(range(inputs["num_blocks"] * size))
    rows = _numbered(slots, inputs.get("heads", 2), inputs.get("dim", 3), cache.dtype)
    for tensor, more in ((cache.keys, 0), (cache.values, 100)):
        tensor[layer].view(-1, *tensor.shape[3:])[torch.tensor(slots, dtype=torch.int64)] = (
            rows + more
        )
    return cache


def _gathered(cache: Any, inputs: Inputs, table: Any = None) -> dict[str, Any]:
    table = list(inputs["table"]) if table is None else table
    found = cache.gather(inputs.get("layer", 1), table, inputs["num_tokens"])
    if type(found) is not tuple or len(found) != 2:
        raise Unusable(f"gather gave {type(found).__name__}; it gives the two tensors (k, v)")
    return dict(zip(("keys", "values"), found, strict=True))


def _gather(cache_class: Any, inputs: Inputs) -> Any:
    return _gathered(_filled(cache_class, inputs), inputs)


def _gather_by_tensor(cache_class: Any, inputs: Inputs) -> Any:
    import torch

    table = torch.tensor(inputs["table"], dtype=torch.int32)
    return _gathered(_filled(cache_class, inputs), inputs, table)


def _gather_then_change(cache_class: Any, inputs: Inputs) -> Any:
    cache = _filled(cache_class, inputs)
    for tensor in _gathered(cache, inputs).values():
        tensor.fill_(-1)
    return _content(cache)


def _round_trip(cache_class: Any, inputs: Inputs) -> Any:
    """Requests written in turns, a chunk each, then read back whole."""
    import torch

    cache = _empty_cache(cache_class, inputs)
    size, tables = inputs["block_size"], inputs["tables"]
    for start in range(0, max(inputs["lengths"].values()), inputs["chunk"]):
        for number, (name, length) in enumerate(inputs["lengths"].items()):
            span = range(start, min(start + inputs["chunk"], length))
            if span:
                rows = _numbered([p + 20 * number for p in span], 2, 3)
                slots = [tables[name][p // size] * size + p % size for p in span]
                cache.write(0, rows, rows + 100, torch.tensor(slots))
    return {
        name: _gathered(cache, {"layer": 0, "table": tables[name], "num_tokens": length})
        for name, length in inputs["lengths"].items()
    }


def _place_in_cache(parting: Parting, inputs: Inputs) -> str:
    path = [part for part in parting.path if not isinstance(part, int)]
    numbers = [part for part in parting.path if isinstance(part, int)]
    if len(numbers) == 6:  # which of three ways to give the slots
        numbers = numbers[1:]
    if len(numbers) < 5:
        return "" if not path else f"at {', '.join(map(str, path))}"
    layer, block, row, head, element = numbers
    slot = block * inputs["block_size"] + row
    return (
        f"{path[-1]} of layer {layer}, slot {slot} (block {block}, row {row}), KV head {head}, "
        f"element {element}"
    )


def _place_in_rows(parting: Parting, inputs: Inputs) -> str:
    words = [str(part) for part in parting.path if not isinstance(part, int)]
    numbers = [part for part in parting.path if isinstance(part, int)]
    if len(numbers) < 3:
        return " of ".join(reversed(words))
    token, head, element = numbers
    size, table = inputs["block_size"], inputs.get("table") or inputs["tables"][words[0]]
    slot = table[token // size] * size + token % size
    whose = f"{words[-1]} of {words[0]}, " if len(words) > 1 else f"{words[-1]}, "
    return f"{whose}token {token} (it lies in slot {slot}), KV head {head}, element {element}"


def _describe_write(inputs: Inputs) -> str:
    told = f"slots {inputs['slots']}, {inputs['num_blocks']} blocks of {inputs['block_size']}"
    return told + (f", {inputs['dtype']}" if "dtype" in inputs else "")


def _describe_gather(inputs: Inputs) -> str:
    told = f"table {inputs['table']}, {inputs['num_tokens']} tokens, block size "
    told += str(inputs["block_size"])
    return told + (f", {inputs['dtype']}" if "dtype" in inputs else "")


def _describe_refusal(inputs: Inputs) -> str:
    if inputs["shape"] == "right":
        return f"slots {inputs['slots']} in a cache of 12"
    return f"{inputs['which']} with {inputs['shape']}, 3 tokens to slots {inputs['slots']}"


def _describe_trip(inputs: Inputs) -> str:
    told = ", ".join(
        f"{n} {inputs['lengths'][n]} tokens in {t}" for n, t in inputs["tables"].items()
    )
    return f"block size {inputs['block_size']}; {told}; {inputs['chunk']} at a time"


def _slots(*slots: int, blocks: int = 8, size: int = 4, **more: Any) -> Inputs:
    return {"slots": list(slots), "num_blocks": blocks, "block_size": size, **more}


def _table(table: list[int], num_tokens: int, size: int = 4, **more: Any) -> Inputs:
    found = {"table": table, "num_tokens": num_tokens, "block_size": size, **more}
    return {"num_blocks": 16, **found}


def _some_slots(random: Random, skipped: bool = False) -> Inputs:
    size, blocks = random.choice([1, 3, 4, 5]), random.randint(4, 7)
    slots = random.sample(range(size * blocks - 1), random.randint(2, min(6, size * blocks - 1)))
    if skipped:  # the last slot of the cache stays free: that is where -1 would go
        for _ in range(random.randint(1, 2)):
            slots.insert(random.randrange(len(slots)), -1)
    layers = random.randint(2, 3)
    return _slots(
        *slots,
        blocks=blocks,
        size=size,
        layers=layers,
        layer=random.randrange(layers),
        heads=random.choice([1, 2, 3]),
        dim=random.choice([2, 4, 5]),
    )


def _some_table(random: Random) -> Inputs:
    size, layers = random.choice([2, 3, 4, 5]), random.randint(2, 3)
    table = random.sample(range(12), random.randint(2, 5))
    last = random.randint(size + 1, len(table) * size)
    return _table(
        table,
        last,
        size,
        num_blocks=12,
        layers=layers,
        layer=random.randrange(layers),
        heads=random.choice([1, 2, 3]),
        dim=random.choice([2, 4, 5]),
    )


def _longer_table(random: Random) -> Inputs:
    """Entries past the tokens: given back, nonsense, or somebody else's."""
    inputs = _some_table(random)
    inputs["num_tokens"] = random.randint(1, inputs["num_tokens"])
    used = -(-inputs["num_tokens"] // inputs["block_size"])
    rest = [random.choice([-1, 99, 2**31 - 1]) for _ in range(random.randint(1, 2))]
    inputs["table"] = inputs["table"][:used] + rest
    return inputs


def _trip(random: Random) -> Inputs:
    size = random.choice([2, 3, 4])
    ids = random.sample(range(20), 20)
    tables, lengths = {}, {}
    for name in "ABC":
        lengths[name] = random.randint(1, 3 * size)
        tables[name] = [ids.pop() for _ in range(-(-lengths[name] // size))]
    return {
        "num_blocks": 20,
        "block_size": size,
        "tables": tables,
        "lengths": lengths,
        "chunk": random.choice([1, 3, 4, 50]),
    }


_RUNNING = {
    "num_blocks": 16,
    "block_size": 4,
    "tables": {"A": [7, 1, 3], "B": [10, 14], "C": [12, 5]},
    "lengths": {"A": 9, "B": 5, "C": 6},
    "chunk": 50,
}


def _refusal(which: str, shape: str, *slots: int) -> Inputs:
    return {
        "which": which,
        "shape": shape,
        "slots": list(slots or (5, 2, 9)),
        "num_blocks": 3,
        "block_size": 4,
    }


CACHE = Exercise(
    id="5.1",
    title="Write to slots, gather by table",
    symbol="course.engine.kv_cache:PagedKVCache",
    points=4,
    minutes=20,
    difficulty=2,
    blank=("write", "_store", "gather"),
    given={"write": (2, 0), "_store": (2, 0)},
    omit=("num_bytes", "copy_blocks", "read_blocks", "write_blocks"),
    trials="random caches",
    hints=(
        "`keys[layer]` has a block and a row as its first two dimensions, and a slot is both in "
        "one number. What makes one dimension of the two, without a copy?",
        '"`index_copy_(): Number of indices (2) should be equal to source.size(dim) (3)`": a token '
        "with slot -1 has no slot in `checked.slots`, but its row is still in k. `checked.rows` "
        'names the rows that stay. "`expected ... same dtype`": cast with `.to(self.dtype)`.',
        "`self.keys[layer].flatten(0, 1)` is the layer by slots. Write with `index_copy_(0, slots, "
        "rows)`, read with `index_select(0, slots)`, which copies. `self._slots_of` has done "
        "lab 04's work for you; in `write`, compare both shapes before either is stored.",
    ),
    probes=(
        Probe(
            "each token lands in its slot, in its layer, and nothing else changes",
            _written,
            examples=(_slots(28, 4, 12, layers=2, layer=1), _slots(6)),
            make=_some_slots,
            cases=8,
            describe=_describe_write,
            place=_place_in_cache,
        ),
        Probe(
            "a token with slot -1 is not written; the others stay in step",
            _written,
            examples=(_slots(5, -1, 2), _slots(-1, 3), _slots(-1, -1)),
            make=lambda random: _some_slots(random, skipped=True),
            describe=_describe_write,
            place=_place_in_cache,
        ),
        Probe(
            "values are cast to the dtype of the cache",
            _written,
            examples=(_slots(28, 4, 12, dtype="float16"), _slots(3, -1, dtype="float16")),
            describe=_describe_write,
            place=_place_in_cache,
        ),
        Probe(
            "slots as a tensor of 32 or 64 bits, or checked before",
            _written_by,
            examples=(_slots(28, 4, -1, 12), _slots()),
            describe=_describe_write,
            place=_place_in_cache,
        ),
        Probe(
            "what does not fit is refused, before anything is written",
            _refused,
            examples=(
                _refusal("k", "one token short"),
                _refusal("v", "one token short"),
                _refusal("k", "one element of each head"),
                _refusal("v", "one element of each head"),
                _refusal("k", "heads and elements swapped"),
                _refusal("v", "heads and elements swapped"),
                _refusal("v", "one head"),
                _refusal("k and v", "one token short"),
                _refusal("k and v", "one token in all"),
                _refusal("k", "right", 5, 12, 2),
                _refusal("k", "right", 5, -2, 2),
            ),
            describe=_describe_refusal,
        ),
        Probe(
            "gather follows the table, in order",
            _gather,
            examples=(
                _table([7, 1, 3], 9),
                _table([7, 1, 3], 8),
                _table([7], 1),
                _table([7, 1], 0),
                _table([2, 3], 7, dtype="float16"),
            ),
            make=_some_table,
            cases=8,
            describe=_describe_gather,
            place=_place_in_rows,
        ),
        Probe(
            "table entries past the tokens are not looked at",
            _gather_by_tensor,
            examples=(_table([7, 1, -1], 8), _table([7, 99], 3)),
            make=_longer_table,
            describe=_describe_gather,
            place=_place_in_rows,
        ),
        Probe(
            "what gather gives is a copy",
            _gather_then_change,
            examples=(_table([7, 1, 3], 9), _table([2, 3], 8), _table([6], 3)),
            describe=_describe_gather,
            place=_place_in_cache,
        ),
        Probe(
            "the checkpoint: what was written comes back, bit for bit",
            _round_trip,
            examples=(_RUNNING, {**_RUNNING, "chunk": 1}),
            make=_trip,
            cases=4,
            describe=_describe_trip,
            place=_place_in_rows,
        ),
    ),
)


# ---- 5.2 online softmax -------------------------------------------------------------------------
#
# A score of None is -inf, for which JSON has no word: a position that is not in the context.


def _tiles(inputs: Inputs) -> list[tuple[np.ndarray, np.ndarray]]:
    width, number = inputs["width"], 0
    tiles = []
    for scores in inputs["tiles"]:
        rows = np.arange(number, number + len(scores))
        number += len(scores)
        values = 10.0 * (rows[:, None] + 1) + np.arange(width)
        told = [-np.inf if score is None else float(score) for score in scores]
        tiles.append((np.array(told), values))
    return tiles


def _softmax_state(found: Any) -> dict[str, Any]:
    if type(found) is not tuple or len(found) != 2:
        raise Unusable(f"online_softmax gave {type(found).__name__}; it gives the tuple (out, lse)")
    out, lse = found
    return {"out": out, "lse": float(lse) if isinstance(lse, np.floating) else lse}


def _online(online_softmax: Any, inputs: Inputs) -> Any:
    return _softmax_state(online_softmax(_tiles(inputs), inputs["width"]))


def _online_once(online_softmax: Any, inputs: Inputs) -> Any:
    return _softmax_state(online_softmax(iter(_tiles(inputs)), inputs["width"]))


def _online_leaves_alone(online_softmax: Any, inputs: Inputs) -> Any:
    tiles = _tiles(inputs)
    online_softmax(iter(tiles), inputs["width"])
    return [{"scores": scores, "values": values} for scores, values in tiles]


def _online_hand_to_mouth(online_softmax: Any, inputs: Inputs) -> Any:
    """Tiles that come when they are asked for; those before the last should be gone by then."""
    import weakref

    held: list[Any] = []
    most = 0

    def come() -> Any:
        nonlocal most
        tiles = _tiles(inputs)
        for number in range(len(tiles)):
            most = max(most, sum(of_tile() is not None for of_tile in held))
            scores, values = tiles[number]
            tiles[number] = None  # type: ignore[call-overload]
            held.append(weakref.ref(scores))
            yield scores, values
            del scores, values

    found = _softmax_state(online_softmax(come(), inputs["width"]))
    return {**found, "tiles that are kept": "all of them" if most > 3 else "none but the last"}


def _scores(*tiles: list, width: int = 2) -> Inputs:
    return {"tiles": [list(tile) for tile in tiles], "width": width}


def _some_scores(random: Random) -> Inputs:
    tiles = [
        [round(random.uniform(-4, 4), 2) for _ in range(random.choice([1, 2, 3, 5]))]
        for _ in range(random.randint(2, 5))
    ]
    return _scores(*tiles, width=random.choice([1, 2, 3]))


def _rising(random: Random) -> Inputs:
    inputs = _some_scores(random)
    inputs["tiles"].sort(key=max)
    return inputs


def _falling(random: Random) -> Inputs:
    inputs = _some_scores(random)
    inputs["tiles"].sort(key=max, reverse=True)
    return inputs


def _extreme(random: Random) -> Inputs:
    inputs = _some_scores(random)
    shift = random.choice([-1, 1]) * random.randint(800, 2000)
    inputs["tiles"] = [[round(s + shift, 2) for s in tile] for tile in inputs["tiles"]]
    return inputs


def _masked(random: Random) -> Inputs:
    """Some positions out of context, never a whole tile."""
    inputs = _some_scores(random)
    for tile in inputs["tiles"]:
        if len(tile) > 1:
            tile[random.randrange(len(tile))] = None
    return inputs


def _masked_tiles(random: Random) -> Inputs:
    inputs = _some_scores(random)
    for place in (0, random.randint(0, len(inputs["tiles"]))):
        inputs["tiles"].insert(place, [None] * random.choice([1, 2, 3]))
    return inputs


def _describe_tiles(inputs: Inputs) -> str:
    tiles = [
        "[" + ", ".join("-inf" if s is None else f"{s:g}" for s in tile) + "]"
        for tile in inputs["tiles"]
    ]
    return "tiles of scores " + " ".join(tiles) if tiles else "no tiles"


def _place_softmax(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    name, *rest = parting.path
    if isinstance(name, int):
        return f"{rest[0]} of tile {name}"
    return f"{name}, element {rest[0]}" if rest else str(name)


_DOUBLE = Tolerance(rtol=1e-9, atol=1e-12)


def _softmax_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    told = {"describe": _describe_tiles, "place": _place_softmax, "tolerance": _DOUBLE, "cases": 4}
    return Probe(behaviour, more.pop("drive", _online), examples, make, **told, **more)


ONLINE = Exercise(
    id="5.2",
    title="Softmax in one pass",
    symbol="course.practice.answers.lab_05:online_softmax",
    points=3,
    minutes=20,
    difficulty=2,
    given={"online_softmax": (1, 0)},
    piece=False,
    trials="random contexts",
    hints=(
        "Both sums are relative to the largest score so far. When a tile brings a larger one, by "
        "which factor is what you have so far too large?",
        '"I get nan": two infinities were subtracted. Before the first tile with a token the '
        "largest score so far is -inf, and so it is after a tile in which all are -inf.",
        "Three named lines: `new_max` of the old maximum and the tile's; `rescale` is exp of the "
        "old minus the new; `weights` are exp of the scores minus the new. Both sums are "
        "multiplied by `rescale` before the tile is added. lse is the maximum plus a logarithm.",
    ),
    probes=(
        _softmax_probe(
            "the largest score comes first",
            _falling,
            _scores([5, 1], [3, 2]),
            _scores([1.5]),
        ),
        _softmax_probe(
            "each tile brings a larger score",
            _rising,
            _scores([1, 3], [2, 5], width=1),
            _scores([0], [1], [2]),
        ),
        _softmax_probe(
            "scores that exp cannot hold",
            _extreme,
            _scores([1000], [1001]),
            _scores([-1000, -1001], [-999]),
            _scores([1001], [1, 2]),
        ),
        _softmax_probe(
            "a position out of context weighs nothing",
            _masked,
            _scores([1, None], [None, 2, 3]),
        ),
        _softmax_probe(
            "a whole tile out of context changes nothing, wherever it comes",
            _masked_tiles,
            _scores([None, None], [1, 3]),
            _scores([1, 3], [None, None], [2, 5]),
        ),
        _softmax_probe(
            "with nothing in context: zeros and -inf",
            None,
            _scores([None, None]),
            _scores(),
            _scores([None], [None], width=3),
        ),
        _softmax_probe(
            "tiles that can be read only once, of any size",
            _some_scores,
            _scores([1, 3], [2, 5], [4]),
            drive=_online_once,
        ),
        _softmax_probe(
            "the tiles stay as they were",
            None,
            _scores([1, 3], [2, 5], [4]),
            drive=_online_leaves_alone,
        ),
        _softmax_probe(
            "no tile is kept: there may be millions",
            None,
            _scores([1, 3], [2, 5], [4], [0, 1, 2], [6], [3, 3]),
            drive=_online_hand_to_mouth,
        ),
    ),
)


# ---- 5.3 a group of query heads -----------------------------------------------------------------


def _heads(inputs: Inputs) -> tuple[Any, Any, Any]:
    import torch

    random = torch.Generator().manual_seed(inputs["seed"])
    kv_heads, tokens, dim = inputs["kv_heads"], inputs["tokens"], inputs["dim"]
    q = torch.randn(kv_heads * inputs["group"], dim, generator=random)
    keys, values = torch.randn(2, kv_heads, tokens, dim, generator=random)
    return q * inputs.get("times", 1), keys, values


def _by_group(attend_by_group: Any, inputs: Inputs) -> Any:
    q, keys, values = _heads(inputs)
    return attend_by_group(q, inputs["kv_heads"], lambda head: (keys[head], values[head]))


def _count_loads(attend_by_group: Any, inputs: Inputs) -> Any:
    q, keys, values = _heads(inputs)
    loads = {f"KV head {head}": 0 for head in range(inputs["kv_heads"])}

    def load(head: int) -> tuple[Any, Any]:
        loads[f"KV head {head}"] += 1
        return keys[head], values[head]

    attend_by_group(q, inputs["kv_heads"], load)
    return loads


def _lone_token(attend_by_group: Any, inputs: Inputs) -> Any:
    """One token, and values that name their KV head: 20 of KV head 0, 30 of KV head 1."""
    import torch

    kv_heads, dim = inputs["kv_heads"], inputs["dim"]
    value = 20.0 + 10 * torch.arange(kv_heads).view(-1, 1, 1) + torch.arange(dim)
    q = torch.ones(kv_heads * inputs["group"], dim)
    return attend_by_group(q, kv_heads, lambda head: (torch.ones(1, dim), value[head]))


def _leaves_alone(attend_by_group: Any, inputs: Inputs) -> Any:
    q, keys, values = _heads(inputs)
    attend_by_group(q, inputs["kv_heads"], lambda head: (keys[head], values[head]))
    return {"q": q, "keys": keys, "values": values}


def _group_of(kv_heads: int, group: int, tokens: int = 5, dim: int = 8, **more: Any) -> Inputs:
    found = {"kv_heads": kv_heads, "group": group, "tokens": tokens, "dim": dim, "seed": 5, **more}
    return found


def _some_group(random: Random) -> Inputs:
    return _group_of(
        random.choice([2, 3, 4]),
        random.choice([2, 3, 4, 5, 7]),
        tokens=random.choice([2, 5, 9, 13]),
        dim=random.choice([4, 8, 16]),
        seed=random.randrange(10**6),
    )


def _describe_group(inputs: Inputs) -> str:
    heads = inputs["kv_heads"] * inputs["group"]
    counts = ((heads, "query head"), (inputs["kv_heads"], "KV head"), (inputs["tokens"], "token"))
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts)


def _place_group(parting: Parting, inputs: Inputs) -> str:
    if len(parting.path) == 2 and type(parting.path[0]) is int:
        head = parting.path[0]
        kv_head = head // inputs["group"]
        return f"query head {head} (it asks KV head {kv_head}), element {parting.path[1]}"
    return "at " + ", ".join(map(str, parting.path)) if parting.path else ""


_SINGLE = Tolerance(rtol=1e-5, atol=1e-6)


def _group_probe(behaviour: str, drive: Any, make: Any, *examples: Inputs, **more: Any) -> Probe:
    told = {"describe": _describe_group, "place": _place_group, "tolerance": _SINGLE, "cases": 4}
    return Probe(behaviour, drive, examples, make, needs=("torch",), **{**told, **more})


GROUPS = Exercise(
    id="5.3",
    title="One read for a whole group",
    symbol="course.practice.answers.lab_05:attend_by_group",
    points=3,
    minutes=15,
    difficulty=2,
    piece=False,
    trials="random heads",
    hints=(
        "A program of the kernel belongs to one KV head. Which query heads are its own, if there "
        "are 6 in all and 2 KV heads?",
        '"`mat1 and mat2 shapes cannot be multiplied`": the queries of a group are `[group, '
        "head_dim]` and the keys `[num_tokens, head_dim]`. Which of the two must be turned?",
        "A loop over KV heads: load once, take the slice of `q` from `kv_head * group` on, one "
        "matrix product for all scores of the group, softmax over the tokens, one product with "
        "the values.",
    ),
    probes=(
        _group_probe(
            "each query head asks the KV head of its group",
            _lone_token,
            _some_group,
            _group_of(2, 3, tokens=1, dim=2),
            tolerance=_SINGLE,
        ),
        _group_probe(
            "scores, softmax and weighted sum, in groups of any size",
            _by_group,
            _some_group,
            _group_of(2, 3, tokens=2),
            _group_of(2, 4),
            _group_of(3, 5),
            cases=8,
        ),
        _group_probe(
            "a group of one, and one group of all",
            _by_group,
            None,
            _group_of(4, 1),
            _group_of(1, 4),
            _group_of(1, 1),
        ),
        _group_probe(
            "each KV head is loaded once",
            _count_loads,
            _some_group,
            _group_of(2, 3),
            _group_of(1, 5),
            _group_of(4, 1),
            tolerance=None,
        ),
        _group_probe(
            "large scores do not overflow",
            _by_group,
            None,
            _group_of(2, 3, times=400),
            _group_of(2, 5, times=1000, dim=4),
        ),
        _group_probe(
            "q, keys and values stay as they were",
            _leaves_alone,
            None,
            _group_of(2, 3),
            tolerance=None,
        ),
    ),
)


# ---- 5.4 the decode kernel ----------------------------------------------------------------------
#
# Whatever no token was written to is NaN, also far beyond the cache: a kernel that computes a wrong
# address meets NaN there, and not the end of its process. Table entries past the context name a
# block of NaN. Under the interpreter a turn of a loop costs some milliseconds, so cases are small.


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _lay_out(inputs: Inputs) -> dict[str, Any]:
    """q, keys, values, scales, tables of one layer, with NaN wherever no token lies."""
    import torch

    random = torch.Generator().manual_seed(inputs["seed"])
    size, dim, kv_heads = inputs["block_size"], inputs["dim"], inputs["kv_heads"]
    lengths, tables = inputs["lengths"], inputs["tables"]
    dtype = getattr(torch, inputs.get("dtype", "float32"))
    num_blocks = 1 + max((block for table in tables for block in table), default=0)
    nobody = inputs.get("nobody", num_blocks)  # a block that holds nothing but NaN
    room = (2 * num_blocks * size + 2, size, kv_heads, dim)
    keys, values = torch.full((2, *room), float("nan"))
    key_scales, value_scales = torch.full((2, *room[:3]), float("nan"))
    for table, length in zip(tables, lengths, strict=True):
        for position in range(length):
            place = table[position // size], position % size
            k, v = torch.randn(2, kv_heads, dim, generator=random)
            keys[place], values[place] = k * inputs.get("times", 1), v
            key_scales[place], value_scales[place] = 0.01 + torch.rand(
                2, kv_heads, generator=random
            )
    q = torch.randn(len(lengths), kv_heads * inputs["group"], dim, generator=random)
    width = (
        max(lengths, default=0) + 70
    )  # a position taken for a logical block still finds an entry
    if inputs.get("strict"):  # a row ends soon after its context does
        width = max(map(len, tables)) + 1
    padded = [table + [nobody] * (width - len(table)) for table in tables]
    scales = (None, None)
    if inputs.get("int8"):
        keys, values = (torch.nan_to_num(t * 40, 127).to(torch.int8) for t in (keys, values))
        scales = (key_scales / 40, value_scales / 40)
    else:
        keys, values = keys.to(dtype), values.to(dtype)
    return {
        "q": (q * inputs.get("times", 1)).to(dtype),
        "keys": keys,
        "values": values,
        "scales": scales,
        "tables": torch.tensor(padded, dtype=torch.int32),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
    }


def _launch(kernel: Any, made: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    import torch

    device = _device()
    q, keys, values, tables, lengths = (
        made[name].to(device) for name in ("q", "keys", "values", "tables", "lengths")
    )
    scales = [scale if scale is None else scale.to(device) for scale in made["scales"]]
    num_seqs, num_heads, dim = q.shape
    splits = inputs.get("splits", 1)
    state = (num_seqs, num_heads, splits)
    out_dtype = torch.float32 if splits > 1 else q.dtype
    out = torch.full((*state, dim), float("nan"), dtype=out_dtype, device=device)
    lse = torch.full(state, float("nan"), device=device)
    starts = torch.arange(num_seqs + 1, dtype=torch.int32, device=device)
    given = {"q": q, "keys": keys, "values": values, "table": tables, "lengths": lengths}
    given |= {"starts": starts, "key scales": scales[0], "value scales": scales[1]}
    arrays = [
        *(Array(name, tensor) for name, tensor in given.items() if tensor is not None),
        *(Array(name, tensor, is_written=True) for name, tensor in (("out", out), ("lse", lse))),
    ]
    if inputs.get("strict"):
        arrays = [_only_the_context(array, inputs) for array in arrays]
    with watch(arrays):
        _start(kernel, inputs, (out, lse, q, keys, values, *scales, tables, lengths, starts))
    return {"out": out.cpu(), "lse": lse.cpu()}


def _only_the_context(array: Array, inputs: Inputs) -> Array:
    """Of the table each row as far as its tokens go, of the cache the rows of these tokens."""
    size, tables, lengths = inputs["block_size"], inputs["tables"], inputs["lengths"]
    if array.name == "table":
        width = array.tensor.stride(0)
        spans = [(seq * width, seq * width + len(table)) for seq, table in enumerate(tables)]

        def tell(entry: int) -> str:
            seq = max(n for n, (first, _) in enumerate(spans) if first <= entry)
            return (
                f"entry {entry - spans[seq][0]} of the table of sequence {seq}, which has "
                f"{len(tables[seq])}"
            )

        return replace(array, spans=spans, tell=tell)
    if array.name not in ("keys", "values", "key scales", "value scales"):
        return array
    row = array.tensor.stride(1)
    slots = [
        table[p // size] * size + p % size
        for table, length in zip(tables, lengths, strict=True)
        for p in range(length)
    ]

    def tell_slot(element: int) -> str:
        slot = element // row
        return f"{array.name} of slot {slot}, in which no token of the context lies"

    return replace(array, spans=[(slot * row, slot * row + row) for slot in slots], tell=tell_slot)


def _start(kernel: Any, inputs: Inputs, given: tuple[Any, ...]) -> None:
    out, _, q, keys, *_, tables, _, _ = given
    num_seqs, _, dim = q.shape
    kernel[(num_seqs, inputs["kv_heads"], out.shape[2])](
        *(*given, dim**-0.5),
        *(*q.stride()[:2], *keys.stride()[:3], tables.stride(0)),
        BLOCK_SIZE=inputs["block_size"],
        HEAD_DIM=dim,
        DIM_PADDED=max(16, 1 << (dim - 1).bit_length()),
        GROUP=inputs["group"],
        GROUP_PADDED=16,
        TILE=inputs.get("tile", 16),
        SLIDING_WINDOW=inputs.get("window", 0),
    )


def _decode(kernel: Any, inputs: Inputs) -> Any:
    return _launch(kernel, _lay_out(inputs), inputs)


def _decode_far_away(kernel: Any, inputs: Inputs) -> Any:
    """A block that begins 2^31 elements into the cache; 2^31 before it lie zeros.

    int8, so that 4 GiB of addresses will do; hardly any of them is ever touched.
    """
    import mmap

    import torch

    from course.practice.run import NO_RESERVE

    half, size, dim = 2**31, inputs["block_size"], inputs["dim"]
    room = 2 * half + 2**16
    if _device() == "cuda":
        far = torch.empty(room, dtype=torch.int8, device="cuda")
    else:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
        far = torch.frombuffer(mmap.mmap(-1, room, flags=flags), dtype=torch.int8)
    (table,) = inputs["tables"]
    shape, strides = (max(table) + 1, size, 1, dim), (half // inputs["far"], dim, dim, 1)
    start = half  # so that an offset of -2^31 is still inside
    near = _lay_out({**inputs, "int8": True})
    keys = torch.as_strided(far, shape, strides, start)
    values = torch.as_strided(far, shape, strides, start + 2048)
    for block in table:
        keys[block] = near["keys"][block].to(far.device)
        values[block] = near["values"][block].to(far.device)
    return _launch(kernel, {**near, "keys": keys, "values": values}, inputs)


def _compiles(kernel: Any, inputs: Inputs) -> str:
    """Asked of the compiler's first half, which needs no GPU."""
    from course.practice.compiles import compiler_says
    from course.practice.source import written

    text = written(kernel, "paged_decode_kernel")
    pointers = {"lse_ptr": "*fp32"} | dict.fromkeys(("out_ptr", "q_ptr"), "*fp16")
    pointers |= dict.fromkeys(("block_table_ptr", "context_len_ptr", "query_start_ptr"), "*i32")
    pointers |= dict.fromkeys(("key_ptr", "value_ptr"), "*i8" if inputs["int8"] else "*fp16")
    numbers = ("q_token", "q_head", "block", "slot", "kv_head", "table")
    types = pointers | {"scale": "fp32"} | {f"stride_{name}": "i32" for name in numbers}
    sizes: dict[str, Any] = {
        "BLOCK_SIZE": 16,
        "HEAD_DIM": 64,
        "DIM_PADDED": 64,
        "GROUP": 3,
        "GROUP_PADDED": 16,
    }
    sizes |= {"TILE": 64, "SLIDING_WINDOW": inputs["window"]}
    for name in ("key_scale_ptr", "value_scale_ptr"):
        if inputs["int8"]:
            types[name] = "*fp32"
        else:
            sizes[name] = None
    said = compiler_says("05-paged_decode_kernel", text, types, sizes)
    if said:
        raise Unusable(f"the compiler refuses it: {said}")
    return "the compiler takes it"


def _step(lengths: list[int], tables: list[list[int]], **more: Any) -> Inputs:
    found = {"lengths": lengths, "tables": tables, "block_size": 4, "kv_heads": 1, "group": 1}
    return {**found, "dim": 8, "seed": 5, **more}


def _some_step(random: Random, lengths: list[int] | None = None, **more: Any) -> Inputs:
    size = more.pop("block_size", None) or random.choice([3, 4, 5, 8])
    lengths = lengths or [random.randint(17, 40)]
    num_blocks = 40 + sum(lengths) // size
    ids = random.sample(range(num_blocks), num_blocks)
    tables = [[ids.pop() for _ in range(-(-length // size))] for length in lengths]
    told = {"dim": random.choice([4, 8]), "seed": random.randrange(10**6), **more}
    return _step(lengths, tables, block_size=size, **told)


def _short_table(table: list[int]) -> str:
    return str(table) if len(table) < 7 else f"[{', '.join(map(str, table[:5]))}, ...]"


def _describe_step(inputs: Inputs) -> str:
    told = ", ".join(
        f"{length} token{'s' * (length != 1)} in {_short_table(table)}"
        for length, table in zip(inputs["lengths"], inputs["tables"], strict=True)
    )
    told += f"; block size {inputs['block_size']}, {inputs['kv_heads']} KV heads"
    told = told.replace(" 1 KV heads", " 1 KV head")
    told += f", group {inputs['group']}"
    for name, words in (("splits", "splits"), ("window", "window")):
        told += f", {words} {inputs[name]}" if name in inputs else ""
    return told


def _place_step(parting: Parting, inputs: Inputs) -> str:
    name, *path = parting.path or ("",)
    if len(path) < 3:
        return str(name)
    seq, head, split = path[:3]
    told = f"{name} of sequence {seq} ({inputs['lengths'][seq]} tokens), query head {head}"
    told += f" (KV head {head // inputs['group']})"
    told += f", split {split}" if inputs.get("splits", 1) > 1 else ""
    return told + (f", element {path[3]}" if len(path) > 3 else "")


_KERNEL = Tolerance(rtol=5e-5, atol=5e-5)
_HALF = Tolerance(rtol=4e-3, atol=4e-3)


def _kernel_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    told = {"describe": _describe_step, "place": _place_step, "tolerance": _KERNEL, "cases": 1}
    told |= {"needs": ("triton",), "risky": True, "seconds": 10.0}
    return Probe(behaviour, more.pop("drive", _decode), examples, make, **{**told, **more})


KERNEL = Exercise(
    id="5.4",
    title="The heart of the decode kernel",
    symbol="course.engine.triton_decode:paged_decode_kernel",
    points=6,
    minutes=45,
    difficulty=3,
    given={"paged_decode_kernel": (26, 7)},
    trials="random steps",
    hints=(
        "Write the turn of the loop for one position first, on paper: from the position to block "
        "and row, through the table, to the first byte of its key. Which of these numbers are then "
        "a whole tile of positions, and which positions of the tile may not be looked up?",
        '"I get nan": a position that is not in context was loaded, or `-inf - -inf`. "`mask has '
        'unsupported dtype`": the interpreter will not join a tensor mask with `and`, or with a '
        'plain True or False; join comparisons of tensors with `&`, in brackets. "Shapes do not '
        'fit": `position[:, None]` is a column, `dim[None, :]` a row, and `tl.trans(k)` turns k. '
        "Use fp32 and fp16: bfloat16 is wrong in the interpreter. There you may also `print`; the "
        "compiler does not know it, so take it out again.",
        "`for tile_start in range(start, end, TILE)`: `position`, `in_context`, `block_id` (masked "
        "load from `table_ptr`), `row`, `offsets` (block_id `.to(tl.int64)` first), "
        "`scale_offsets`; k by `load_rows(..., q.dtype)`; scores by `tl.dot` in fp32, scaled, and "
        "-inf out of context; the three lines of 5.2 along `axis=1`; v like k; both sums, with "
        "`rescale[:, None]` for the values.",
    ),
    probes=(
        _kernel_probe(
            "a sequence within one block",
            None,
            _step([3], [[2]]),
        ),
        _kernel_probe(
            "blocks in no order, and NaN in every slot without a token",
            lambda random: _some_step(random, [random.randint(9, 16)]),
            _step([9], [[7, 1, 3]]),
        ),
        _kernel_probe(
            "several tiles, some of them with larger scores",
            lambda random: _some_step(random, times=2),
            _step([37], [[7, 1, 3, 5, 2, 0, 9, 8, 6, 4]], times=2),
        ),
        _kernel_probe(
            "several sequences and KV heads",
            None,
            _step([9, 0, 18], [[7, 1, 3], [], [6, 2, 0, 9, 5]], kv_heads=2),
        ),
        _kernel_probe(
            "groups of 3, 4 and 5 query heads",
            None,
            _step([5], [[10, 14]], group=3),
            _step([6], [[12, 5]], group=4),
            _step([19], [[7, 1, 3, 5, 0]], group=5),
        ),
        _kernel_probe(
            "blocks that do not fill a tile evenly, and one that is larger",
            None,
            _step([20], [[4, 0, 6, 2, 1, 3, 5]], block_size=3),
            _step([21], [[2, 0]], block_size=20),
        ),
        _kernel_probe(
            "splits: each program keeps to its share",
            None,
            _step([37, 5], [[7, 1, 3, 5, 2, 0, 9, 8, 6, 4], [10, 11]], splits=3),
        ),
        _kernel_probe(
            "a sliding window",
            None,
            _step([23], [[7, 1, 3, 5, 2, 0]], window=9),
        ),
        _kernel_probe(
            "an int8 cache: each row has its own scale",
            None,
            _step([9], [[7, 1, 3]], kv_heads=2, int8=True),
        ),
        _kernel_probe(
            "fp16, with products that it cannot hold",
            None,
            _step([18], [[7, 1, 3, 5, 0]], dtype="float16", times=200, dim=16, group=3),
            tolerance=_HALF,
        ),
        _kernel_probe(
            "nothing is read but the context, in the table and in the cache",
            None,
            _step([9, 5], [[7, 1, 3], [10, 11]], strict=True),
            _step([6], [[12, 5]], kv_heads=2, int8=True, strict=True),
            needs=("triton", "interpreter"),
            optional=True,
        ),
        _kernel_probe(
            "offsets past 2^31",
            None,
            _step([2], [[32, 2]], block_size=1, far=32, nobody=1),
            drive=_decode_far_away,
            needs=("triton", "addresses"),
            optional=True,
        ),
        _kernel_probe(
            "the compiler takes it, too",
            None,
            {"int8": True, "window": 64},
            drive=_compiles,
            describe=lambda inputs: "",
            seconds=60.0,
        ),
        _kernel_probe(
            "compiled, on a GPU: long contexts in fp16",
            lambda random: _some_step(
                random,
                [random.randint(300, 600), 1, random.randint(17, 300)],
                block_size=16,
                kv_heads=2,
                group=5,
                dim=64,
                tile=64,
                dtype="float16",
            ),
            needs=("triton", "cuda"),
            optional=True,
            tolerance=_HALF,
            seconds=60.0,
        ),
    ),
)


# ---- 5.5 merging partial results ----------------------------------------------------------------
#
# lse of None is -inf: the part saw no token.


def _parts(inputs: Inputs) -> list[Any]:
    import torch

    random = torch.Generator().manual_seed(inputs["seed"])
    dtype = getattr(torch, inputs.get("dtype", "float32"))
    parts = []
    for part in inputs["parts"]:
        lse = torch.tensor(
            [[float("-inf") if x is None else float(x) for x in row] for row in part]
        )
        out = torch.randn(*lse.shape, inputs.get("dim", 2), generator=random).to(dtype)
        if inputs.get("poison"):
            # Half of it NaN, half of it infinite: 0 times either is NaN.
            nobody = (lse == float("-inf"))[..., None] & torch.ones_like(out, dtype=torch.bool)
            out[nobody] = float("nan")
            out[nobody & (torch.arange(out.shape[-1]) % 2 == 1)] = float("inf")
        parts.append((out, lse))
    return parts


def _merge(merge_attention_states: Any, inputs: Inputs) -> Any:
    parts = _parts(inputs)
    out, lse = parts[0]
    for more in parts[1:]:
        found = merge_attention_states(out, lse, *more)
        if type(found) is not tuple or len(found) != 2:
            raise Unusable(f"the merge gave {type(found).__name__}; it gives the tuple (out, lse)")
        out, lse = found
    return {"out": out, "lse": lse}


def _merge_example(merge_attention_states: Any, inputs: Inputs) -> Any:
    import torch

    sums = [torch.tensor([[float(s)]]) for s in inputs["sums"]]
    outs = [torch.tensor([[[10.0, 4.0]]]), torch.tensor([[[20.0, 8.0]]])]
    found = merge_attention_states(outs[0], sums[0].log(), outs[1], sums[1].log())
    if type(found) is not tuple or len(found) != 2:
        raise Unusable(f"the merge gave {type(found).__name__}; it gives the tuple (out, lse)")
    return dict(zip(("out", "lse"), found, strict=True))


def _merge_leaves_alone(merge_attention_states: Any, inputs: Inputs) -> Any:
    parts = _parts(inputs)
    merge_attention_states(*parts[0], *parts[1])
    return [{"out": out, "lse": lse} for out, lse in parts]


def _lses(*parts: list, **more: Any) -> Inputs:
    """Each part ``[tokens][heads]`` of lse; a flat list is one token."""
    told = [part if part and isinstance(part[0], list) else [part] for part in parts]
    return {"parts": told, "seed": 5, **more}


def _some_parts(random: Random, count: int = 2, shift: float = 0.0) -> Inputs:
    tokens, heads = random.randint(1, 3), random.choice([1, 2, 3, 5])
    parts = [
        [[round(random.uniform(-3, 3) + shift, 2) for _ in range(heads)] for _ in range(tokens)]
        for _ in range(count)
    ]
    return {"parts": parts, "seed": random.randrange(10**6), "dim": random.choice([1, 2, 4])}


def _some_empty(random: Random) -> Inputs:
    """In some heads one part saw nothing, and its out is NaN."""
    inputs = _some_parts(random)
    a, b = inputs["parts"]
    for token in range(len(a)):
        for head in range(len(a[0])):
            part = random.choice([a, b, None])
            if part is not None:
                part[token][head] = None
    a[0][0] = None
    b[0][0] = 0.5
    return {**inputs, "poison": True}


def _describe_merge(inputs: Inputs) -> str:
    if "sums" in inputs:
        return f"one head, sums under the softmax {inputs['sums'][0]} and {inputs['sums'][1]}"
    told = []
    for part in inputs["parts"]:
        first = ["-inf" if x is None else f"{x:g}" for x in part[0]]
        told.append("[" + ", ".join(first) + "]" + (" ..." if len(part) > 1 else ""))
    return "lse by head " + " and ".join(told)


def _place_merge(parting: Parting, inputs: Inputs) -> str:
    path = [part for part in parting.path if isinstance(part, int)]
    name = next((part for part in parting.path if isinstance(part, str)), "")
    if len(path) == 3 and name == "out":
        return f"out, token {path[0]}, head {path[1]}, element {path[2]}"
    return f"{name}, token {path[0]}, head {path[1]}" if len(path) == 2 else str(name)


def _merge_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    told = {"describe": _describe_merge, "place": _place_merge, "tolerance": _SINGLE, "cases": 4}
    drive = more.pop("drive", _merge)
    return Probe(behaviour, drive, examples, make, needs=("torch",), **{**told, **more})


MERGE = Exercise(
    id="5.5",
    title="Merge what two programs found",
    symbol="course.engine.paged_attention:merge_attention_states",
    points=3,
    minutes=20,
    difficulty=2,
    given={"merge_attention_states": (1, 0)},
    trials="random pairs of parts",
    hints=(
        "exp(lse) is the sum under a part's softmax. Two sums, 3 and 1: what is the sum under "
        "both, and which share of it has each part?",
        '"I get nan": either `-inf - (-inf)`, where both parts saw nothing, or `0 * NaN`, where '
        "an empty part's out holds anything. Neither goes away by multiplying with 0; "
        "`torch.where` chooses before it is too late.",
        "Subtract the larger lse from both before `torch.exp`, as in the online softmax, with 0 "
        "for a larger of -inf. The weights over their sum are the shares; the new lse is the "
        "larger plus the logarithm of the sum. In fp32, and cast out at the end.",
    ),
    probes=(
        _merge_probe(
            "each part weighs the sum under its softmax",
            _some_parts,
            {"sums": [3, 1]},
            {"sums": [1, 1]},
            {"sums": [2, 8]},
            drive=lambda merge, inputs: (_merge_example if "sums" in inputs else _merge)(
                merge, inputs
            ),
        ),
        _merge_probe(
            "every token and every head has weights of its own",
            lambda random: _some_parts(random),
            _lses([0.5, 2], [1.5, -1]),
            _lses([[0, 1], [2, 3]], [[3, 1], [1, 0]]),
        ),
        _merge_probe(
            "lse that exp cannot hold",
            lambda random: _some_parts(random, shift=random.choice([-150, 150])),
            _lses([200], [201]),
            _lses([-200], [-199]),
            _lses([-100], [100]),
            _lses([100], [-100]),
            tolerance=Tolerance(rtol=1e-4),
        ),
        _merge_probe(
            "a part that saw no token weighs nothing, whatever its out holds",
            _some_empty,
            _lses([None], [1], poison=True),
            _lses([1, 2], [None, 0.5], poison=True),
        ),
        _merge_probe(
            "two such parts give zeros and -inf",
            None,
            _lses([None], [None], poison=True),
            _lses([None, 1], [None, None], poison=True),
            _lses([None], [None], [None], poison=True),
        ),
        _merge_probe(
            "many parts, one after another",
            lambda random: _some_parts(random, count=random.randint(3, 6)),
            _lses([0], [None], [1], [2], poison=True),
        ),
        _merge_probe(
            "out keeps its dtype, lse is fp32",
            None,
            _lses([0.5, 2], [1.5, -1], dtype="float16"),
            _lses([200, None], [199, None], dtype="float16", poison=True),
            tolerance=Tolerance(rtol=2e-3, atol=1e-3),
        ),
        _merge_probe(
            "the parts stay as they were",
            None,
            _lses([0.5, 2], [1.5, -1]),
            drive=_merge_leaves_alone,
            tolerance=None,
        ),
    ),
)

# ---- 5.6 and 5.7 a fault in a kernel ------------------------------------------------------------

FAULTY_TABLE, FAULTY_BLOCK_SIZE, FAULTY_BLOCKS = (7, 1, 3), 4, 16


def _failing(answer: Any) -> tuple[int, int]:
    """(context length, poisoned slot), or Unusable that says what is wrong with them."""
    good = type(answer) in (tuple, list) and len(answer) == 2
    if not good or any(type(number) is not int for number in answer):
        raise Unusable("failing_input is two ints: (context_len, slot)")
    context_len, slot = answer
    most, slots = len(FAULTY_TABLE) * FAULTY_BLOCK_SIZE, FAULTY_BLOCKS * FAULTY_BLOCK_SIZE
    if not 0 <= context_len <= most:
        raise Unusable(f"context_len {context_len}: A's three blocks hold 0 to {most} tokens")
    if not 0 <= slot < slots:
        raise Unusable(f"slot {slot}: the cache has slots 0 to {slots - 1}")
    return context_len, slot


def _slots_up_to(count: int) -> list[int]:
    size = FAULTY_BLOCK_SIZE
    return [FAULTY_TABLE[p // size] * size + p % size for p in range(count)]


def _nobody_wrote_it(answer: Any, inputs: Inputs) -> str:
    context_len, slot = _failing(answer)
    own = _slots_up_to(context_len)
    if slot in own:
        return f"slot {slot} holds A's token {own.index(slot)}: any kernel must answer NaN"
    return "no token of the context lies in the slot"


def _faulty_is_nan(answer: Any, inputs: Inputs) -> str:
    """What the kernel above reads: all rows of each block that the context begins."""
    context_len, slot = _failing(answer)
    blocks = -(-context_len // FAULTY_BLOCK_SIZE)
    if slot in _slots_up_to(blocks * FAULTY_BLOCK_SIZE):
        return "the kernel above reads it"
    read = list(FAULTY_TABLE[:blocks])
    return (
        f"slot {slot} lies in block {slot // FAULTY_BLOCK_SIZE}; with {context_len} tokens the "
        f"kernel reads blocks {read}"
    )


def _of_answer(inputs: Inputs) -> str:
    return ""


FAILING = Exercise(
    id="5.6",
    title="Find the bug: make the kernel answer NaN",
    symbol="course.practice.answers.lab_05:failing_input",
    kind="data",
    start="failing_input = None  # (context_len, slot)",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "In each turn the kernel loads a block. Which rows of it does it load, and which of these "
        "need not hold a token?",
        '"`slot ... holds A\'s token`": poison what was written, and no kernel can answer. '
        '"`the kernel reads blocks [...]`": the slot must lie in one of those, all the same.',
        "Choose a context that does not fill its last block. Any row of that block past the last "
        "token will do: block times block size, plus the row.",
    ),
    probes=(
        Probe(
            "a right kernel is not disturbed: nobody wrote to the slot",
            _nobody_wrote_it,
            examples=({},),
            describe=_of_answer,
        ),
        Probe("the kernel above reads the slot", _faulty_is_nan, ({},), describe=_of_answer),
    ),
)


def _attend_blocks(attend_blocks: Any, inputs: Inputs) -> Any:
    import torch

    random = torch.Generator().manual_seed(inputs["seed"])
    size, dim, length = inputs["block_size"], inputs["dim"], inputs["length"]
    table = inputs["table"]
    keys, values = torch.full((2, max(table) + 2, size, dim), float("nan"))
    for position in range(length):
        place = table[position // size], position % size
        keys[place], values[place] = torch.randn(2, dim, generator=random)
    if "poison" in inputs:  # the rest is zeros, as in a fresh cache
        keys, values = keys.nan_to_num(0), values.nan_to_num(0)
        which = {"keys": keys, "values": values}[inputs["poison"]]
        which.view(-1, dim)[inputs["slot"]] = float(inputs["fill"])
    if inputs.get("fresh"):
        keys, values = keys.nan_to_num(0), values.nan_to_num(0)
    q = torch.randn(dim, generator=random) * inputs.get("times", 1)
    out, device = torch.full((dim,), float("nan")), _device()
    out, q, keys, values = (tensor.to(device) for tensor in (out, q, keys, values))
    ids = torch.tensor(table, dtype=torch.int32, device=device)
    given = {"q": q, "keys": keys, "values": values}
    arrays = [Array(name, tensor) for name, tensor in given.items()]
    arrays += [Array("table", ids, [(0, len(table))]), Array("out", out, is_written=True)]
    with watch(arrays) as seen:
        attend_blocks[(1,)](
            *(out, q, keys, values, ids, length, dim**-0.5), BLOCK_SIZE=size, HEAD_DIM=dim
        )
    return {"out": out.cpu(), "it was watched": seen[0] > 0}


def _context(table: list[int], length: int, size: int = 4, **more: Any) -> Inputs:
    return {"table": table, "length": length, "block_size": size, "dim": 4, "seed": 5, **more}


def _some_context(random: Random) -> Inputs:
    size = random.choice([2, 4, 8])
    table = random.sample(range(12), random.randint(2, 4))
    length = random.randint(size + 1, len(table) * size)
    return _context(table, length, size, dim=random.choice([4, 8]), seed=random.randrange(10**6))


def _describe_context(inputs: Inputs) -> str:
    count = inputs["length"]
    told = f"{count} token{'s' * (count != 1)} in {inputs['table']}, block size "
    told += str(inputs["block_size"])
    if "poison" in inputs:
        told += f", {inputs['fill']} in slot {inputs['slot']} of the {inputs['poison']}"
    return told


def _place_context(parting: Parting, inputs: Inputs) -> str:
    name, *rest = parting.path or ("out",)
    return f"{name}, element {rest[0]}" if rest else str(name)


def _block_probe(behaviour: str, make: Any, *examples: Inputs) -> Probe:
    return Probe(
        behaviour,
        _attend_blocks,
        examples,
        make,
        cases=2,
        describe=_describe_context,
        place=_place_context,
        tolerance=_KERNEL,
        needs=("triton",),
        risky=True,
        seconds=10.0,
    )


MEND = Exercise(
    id="5.7",
    title="Find the bug: mend the kernel",
    symbol="course.practice.answers.lab_05_kernels:attend_blocks",
    kind="mend",
    start="the values of the last block are loaded whether they were written or not",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=2,
    trials="random contexts",
    hints=(
        "The scores of unwritten rows are -inf and their weights 0. What is 0 times NaN?",
        '"I get nan still": what was loaded as NaN stays NaN through every sum. "A finite number '
        'differs": you left the scores out of the mask, or a row that holds a token in it.',
        "`tl.load` takes `mask=` and `other=`. The mask of a tile `[rows, elements]` from one of "
        "rows is `in_context[:, None]`.",
    ),
    probes=(
        _block_probe(
            "a context that fills its blocks, and a fresh cache",
            None,
            _context([7, 1, 3], 8),
            _context([7, 1, 3], 9, fresh=True),
            _context([7, 1, 3], 12),
        ),
        _block_probe(
            "NaN in the slot after the newest value",
            None,
            _context([7, 1, 3], 9, poison="values", slot=13, fill="nan"),
        ),
        _block_probe(
            "NaN in the last slot of the block",
            None,
            _context([7, 1, 3], 10, poison="values", slot=15, fill="nan"),
        ),
        _block_probe(
            "old keys and large values of somebody else",
            None,
            _context([7, 1, 3], 9, poison="keys", slot=13, fill="1000"),
            _context([7, 1, 3], 9, poison="values", slot=13, fill="inf"),
        ),
        _block_probe(
            "NaN wherever no token lies",
            _some_context,
            _context([7, 1, 3], 9),
            _context([7, 1, 3], 11),
            _context([5], 1),
            _context([5], 0),
            _context([6, 2, 9], 3, size=1),
        ),
    ),
)

EXERCISES = (CACHE, ONLINE, GROUPS, KERNEL, MERGE, FAILING, MEND)
