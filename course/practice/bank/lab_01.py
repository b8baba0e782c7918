"""Lab 01, the KV cache: its size, attention that reads it, and generation that fills it."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from course.practice.compare import Parting, Tolerance
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.guard import Unusable, attempt, int_list
from course.practice.guess import how_far
from course.sizing import MODELS, ModelShape

# ---- 1.1 kv_bytes_per_token ---------------------------------------------------------------------
#
# Inputs name a model of the course, or hold the fields of a shape.


def _shape_of(inputs: Inputs) -> ModelShape:
    shape = inputs["shape"]
    return MODELS[shape] if type(shape) is str else ModelShape(**shape)


def _call_per_token(kv_bytes_per_token: Any, inputs: Inputs) -> Any:
    shape = _shape_of(inputs)
    if "bytes_per_value" not in inputs:
        return kv_bytes_per_token(shape)
    return kv_bytes_per_token(shape, inputs["bytes_per_value"])


def _refuse_per_token(kv_bytes_per_token: Any, inputs: Inputs) -> Any:
    return attempt(lambda: _call_per_token(kv_bytes_per_token, inputs), ValueError)


def _heads(random: Random, num_kv_heads: int | None = None) -> dict[str, Any]:
    """Fields of a shape without MLA; head_dim is not hidden size by heads."""
    kv_heads = num_kv_heads or random.choice([2, 3, 4, 5, 8])
    return {
        "name": "random",
        "num_layers": random.choice([1, 3, 12, 31, 62]),
        "num_attention_heads": kv_heads * random.choice([2, 3, 4, 7]),
        "num_kv_heads": kv_heads,
        "head_dim": random.choice([3, 10, 64, 96, 128]),
        "max_model_len": random.choice([32, 2048, 4096]),
    }


def _mla(random: Random) -> dict[str, Any]:
    ranks = {
        "kv_lora_rank": random.choice([20, 256, 512]),
        "qk_rope_head_dim": random.choice([6, 64]),
    }
    return {**_heads(random), **ranks}


def _windowed(random: Random) -> dict[str, Any]:
    shape = _heads(random)
    shape["num_layers"] = random.choice([4, 12, 31])
    shape["num_window_layers"] = random.randint(1, shape["num_layers"] - 1)
    shape["sliding_window"] = random.choice([5, 16, 100])
    return shape


def _describe_shape(inputs: Inputs) -> str:
    shape = _shape_of(inputs)
    told = [_count(shape.num_layers, "layer")]
    if shape.kv_lora_rank is None:
        told.append(f"{shape.num_attention_heads} heads on {_count(shape.num_kv_heads, 'KV head')}")
        told.append(f"head dim {shape.head_dim}")
    else:
        told.append(f"latent {shape.kv_lora_rank} and rotary key {shape.qk_rope_head_dim}")
    if shape.num_window_layers:
        layers = _count(shape.num_window_layers, "layer")
        told.append(f"{layers} with a window of {shape.sliding_window}")
    if "num_tokens" in inputs:
        told.append(_count(inputs["num_tokens"], "token"))
    if "bytes_per_value" in inputs:
        told.append(f"{inputs['bytes_per_value']} bytes a value")
    name = f"{shape.name}: " if type(inputs["shape"]) is str else ""
    return name + ", ".join(told)


SMALL = {
    "name": "small",
    "num_layers": 3,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 5,
    "max_model_len": 32,
}
MIXED = {**SMALL, "sliding_window": 4, "num_window_layers": 2}
LATENT = {**SMALL, "kv_lora_rank": 7, "qk_rope_head_dim": 3}


def _per_token_probe(behaviour: str, *examples: Inputs, make: Any = None, **more: Any) -> Probe:
    return Probe(
        behaviour,
        _call_per_token,
        examples=examples,
        make=(lambda random: {"shape": make(random)}) if make else None,
        describe=_describe_shape,
        **more,
    )


PER_TOKEN = Exercise(
    id="1.1",
    title="The bytes of one token",
    symbol="course.sizing:kv_bytes_per_token",
    points=2,
    minutes=10,
    difficulty=1,
    trials="random models",
    hints=(
        "How many numbers does *one layer* keep of one token? Answer that twice: for a model with "
        "KV heads, and for one with a latent vector.",
        '"It is four times too large for Llama-3-8B": it has 32 query heads and 8 KV heads. Which '
        "of them are kept?",
        "First the numbers of one layer, by `if shape.kv_lora_rank is not None`. Then times the "
        "layers. `bytes_of(numbers, bytes_per_value)` makes bytes of them and rounds up.",
    ),
    probes=(
        _per_token_probe(
            "keys and values of every KV head, in every layer",
            {"shape": SMALL},
            {"shape": "Llama-3-8B"},
            {"shape": "SmolLM2-135M"},
            make=_heads,
        ),
        _per_token_probe(
            "each query head with a KV head of its own, and all with one",
            {"shape": "Llama-2-7B"},
            {"shape": "OPT-13B"},
            make=lambda random: _heads(random, num_kv_heads=1),
            cases=3,
        ),
        _per_token_probe(
            "MLA keeps one latent and one rotary key in each layer",
            {"shape": LATENT},
            {"shape": "DeepSeek-V3 671B"},
            make=_mla,
        ),
        Probe(
            "two bytes a value if nothing else is said; 4, 1 and a half as well",
            _call_per_token,
            examples=(
                {"shape": SMALL, "bytes_per_value": 4},
                {"shape": "Llama-2-7B", "bytes_per_value": 1},
                {"shape": LATENT, "bytes_per_value": 0.5},
                {"shape": {**LATENT, "kv_lora_rank": 6}, "bytes_per_value": 0.5},
            ),
            make=lambda random: {
                "shape": random.choice([_heads, _mla])(random),
                "bytes_per_value": random.choice([1, 4, 0.5]),
            },
            describe=_describe_shape,
        ),
        Probe(
            "a token for windows too: every layer keeps it at first",
            _call_per_token,
            examples=({"shape": MIXED}, {"shape": "Gemma-3-27B"}),
            make=lambda random: {"shape": _windowed(random)},
            cases=3,
            describe=_describe_shape,
        ),
        Probe(
            "impossible sizes of a value are refused",
            _refuse_per_token,
            examples=(
                {"shape": SMALL, "bytes_per_value": 0},
                {"shape": SMALL, "bytes_per_value": -2},
            ),
            describe=_describe_shape,
        ),
    ),
)

# ---- 1.2 kv_bytes -------------------------------------------------------------------------------


def _call_bytes(kv_bytes: Any, inputs: Inputs) -> Any:
    return kv_bytes(_shape_of(inputs), inputs["num_tokens"], inputs.get("bytes_per_value", 2))


def _refuse_bytes(kv_bytes: Any, inputs: Inputs) -> Any:
    return attempt(lambda: _call_bytes(kv_bytes, inputs), ValueError)


def _of_window(random: Random, past: bool) -> Inputs:
    shape = _windowed(random)
    window = shape["sliding_window"]
    tokens = window + random.randint(1, 99) if past else random.randint(1, window)
    return {"shape": shape, "num_tokens": tokens, "bytes_per_value": random.choice([1, 2, 4])}


def _all_windowed(random: Random) -> Inputs:
    inputs = _of_window(random, past=True)
    inputs["shape"]["num_window_layers"] = inputs["shape"]["num_layers"]
    return inputs


def _bytes_probe(behaviour: str, make: Any, *examples: Inputs, **more: Any) -> Probe:
    return Probe(
        behaviour,
        _call_bytes,
        examples=examples,
        make=make,
        describe=_describe_shape,
        **more,
    )


BYTES = Exercise(
    id="1.2",
    title="The bytes of a request",
    symbol="course.sizing:kv_bytes",
    points=2,
    minutes=10,
    difficulty=2,
    given={"kv_bytes": (1, 0)},
    trials="random models and lengths",
    hints=(
        "At 7 tokens, with a window of 4: how many tokens does a window layer keep, and how many "
        "does a full one? And at 3 tokens?",
        '"`TypeError`: `<` not supported between `int` and `NoneType`": a model without windows '
        "has `sliding_window` None and 0 window layers. `shape.sliding_window or 0` is a number.",
        "Add up the tokens that are kept, layer by layer: `num_full_layers` keep all, "
        "`num_window_layers` keep the smaller of two numbers. Then times the numbers that one "
        "layer keeps of one token; `kv_bytes_per_token` knows them for all layers.",
    ),
    probes=(
        _bytes_probe(
            "without windows, every token costs the same",
            lambda random: {"shape": _heads(random), "num_tokens": random.randint(1, 9000)},
            {"shape": SMALL, "num_tokens": 7},
            {"shape": "Llama-2-7B", "num_tokens": 4096},
        ),
        _bytes_probe(
            "before a window is full, as if there were none",
            lambda random: _of_window(random, past=False),
            {"shape": MIXED, "num_tokens": 3},
            {"shape": MIXED, "num_tokens": 4},
        ),
        _bytes_probe(
            "past the window, window layers stop growing and the others go on",
            lambda random: _of_window(random, past=True),
            {"shape": MIXED, "num_tokens": 7},
            {"shape": MIXED, "num_tokens": 5},
            {"shape": "Gemma-3-27B", "num_tokens": 131072},
        ),
        _bytes_probe(
            "with windows in all layers, nothing grows any more",
            _all_windowed,
            {"shape": "Mistral-7B-v0.1", "num_tokens": 20_000},
            cases=3,
        ),
        _bytes_probe(
            "MLA as well, and other sizes of a value",
            lambda random: {
                "shape": _mla(random),
                "num_tokens": random.randint(1, 5000),
                "bytes_per_value": random.choice([1, 2, 4]),
            },
            {"shape": LATENT, "num_tokens": 3, "bytes_per_value": 1},
            cases=3,
        ),
        _bytes_probe(
            "more tokens than the model was trained for",
            None,
            {"shape": SMALL, "num_tokens": 33},
            {"shape": "GPT-2 124M", "num_tokens": 5000},
        ),
        Probe(
            "no tokens, no bytes; fewer than none are refused",
            _refuse_bytes,
            examples=(
                {"shape": MIXED, "num_tokens": 0},
                {"shape": SMALL, "num_tokens": 0},
                {"shape": SMALL, "num_tokens": -1},
            ),
            describe=_describe_shape,
        ),
    ),
)

# ---- 1.3 decode_attention -----------------------------------------------------------------------
#
# Rows that are not written hold NaN: whoever reads one cannot hide it.


def _attention_inputs(inputs: Inputs) -> tuple:
    import torch

    heads, kv_heads, head_dim = inputs["heads"], inputs["kv_heads"], inputs["head_dim"]
    context_len, room = inputs["context_len"], inputs["room"]
    draw = torch.Generator().manual_seed(inputs["seed"])
    q = torch.randn(heads, head_dim, generator=draw) * inputs["hot"]
    keys = torch.randn(room, kv_heads, head_dim, generator=draw)
    if inputs["hot"] > 1:  # large scores all of one sign, as real keys with a common part give
        q, keys = q.abs(), keys.abs() * inputs["hot"]
    values = torch.randn(room, kv_heads, head_dim, generator=draw)
    keys[context_len:] = values[context_len:] = float("nan")
    dtype = getattr(torch, inputs["dtype"])
    return q.to(dtype), keys.to(dtype), values.to(dtype)


def _attend(decode_attention: Any, inputs: Inputs) -> Any:
    q, keys, values = _attention_inputs(inputs)
    return decode_attention(q, keys, values, inputs["context_len"])


def _attend_alike(decode_attention: Any, inputs: Inputs) -> Any:
    """A query of zeros weighs all tokens alike, so that each value can be told by its size."""
    import torch

    kv_heads, context_len = inputs["kv_heads"], inputs["context_len"]
    token = 1.0 + 2 * torch.arange(inputs["room"])[:, None, None]
    values = token * (1 + 9 * torch.arange(kv_heads)[:, None])
    values = values + torch.arange(inputs["head_dim"]) / 4
    values[context_len:] += 1000  # not written, and told apart by it
    q = torch.zeros(inputs["heads"], inputs["head_dim"])
    return decode_attention(q, -values, values, context_len)


def _describe_alike(inputs: Inputs) -> str:
    known = "values 1, 3, ... in KV head 0 and 10, 30, ... in KV head 1"
    return f"a query of zeros, {_describe_attention(inputs)}, {known}"


def _attend_and_look(decode_attention: Any, inputs: Inputs) -> Any:
    tensors = dict(zip(("queries", "keys", "values"), _attention_inputs(inputs), strict=True))
    before = {name: tensor.nan_to_num() for name, tensor in tensors.items()}
    decode_attention(*tensors.values(), inputs["context_len"])
    return {
        f"the {name} are as before": tensor.nan_to_num().equal(before[name])
        for name, tensor in tensors.items()
    }


def _attention(
    heads: int, kv_heads: int, head_dim: int, context_len: int, room: int, **more: Any
) -> Inputs:
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    where = {"context_len": context_len, "room": room}
    return {**sizes, **where, "seed": 1, "hot": 1.0, "dtype": "float32", **more}


def _random_attention(random: Random, **more: Any) -> Inputs:
    kv_heads = random.choice([2, 3, 4])
    context_len = random.choice([2, 3, 7, 16, 33])
    return _attention(
        kv_heads * random.choice([2, 3, 5]),
        kv_heads,
        random.choice([4, 6, 16, 64]),
        context_len,
        context_len + random.choice([0, 1, 5]),
        seed=random.randrange(10**6),
        **more,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _describe_attention(inputs: Inputs) -> str:
    heads = f"{inputs['heads']} heads on {_count(inputs['kv_heads'], 'KV head')}"
    tokens = f"{_count(inputs['context_len'], 'token')}, room for {inputs['room']}"
    told = f"{heads}, head dim {inputs['head_dim']}, {tokens}"
    return told if inputs["dtype"] == "float32" else f"{told}, {inputs['dtype']}"


def _place_head(parting: Parting, inputs: Inputs) -> str:
    if parting.why not in ("value", "not finite") or len(parting.path) != 2:
        return ""
    head, number = parting.path
    kv_head = int(head) // (inputs["heads"] // inputs["kv_heads"])
    return f"query head {head} (it shares KV head {kv_head}), number {number} of its output"


def _attention_probe(
    behaviour: str, drive: Any, make: Any, *examples: Inputs, **more: Any
) -> Probe:
    return Probe(
        behaviour,
        drive,
        examples=examples,
        make=make,
        **{"describe": _describe_attention, "place": _place_head, **more},
    )


EXACT = Tolerance(rtol=2e-5)

ATTENTION = Exercise(
    id="1.3",
    title="One query over the cache",
    symbol="course.practice.answers.lab_01:decode_attention",
    points=4,
    minutes=20,
    difficulty=2,
    piece=False,
    trials="random caches",
    hints=(
        "Query heads 0 and 1 of 4 share KV head 0, heads 2 and 3 share KV head 1. Which of "
        "`repeat` and `repeat_interleave` lays the KV heads out like that?",
        '"I get `nan`": either you read rows behind `context_len`, which nobody has written, or '
        "you took `exp` of a large score. `torch.softmax` takes care of the second. "
        '"`expected scalar type Half but found Float`": turn all three to float32 first.',
        "Cut keys and values to the written rows. Scores are one dot product for each head and "
        "token, `[num_heads, context_len]`; scale them, softmax along the *tokens*, and take the "
        "sum of the values with these weights. Last, back to the dtype of q.",
    ),
    probes=(
        _attention_probe(
            "neighbouring query heads share a KV head",
            _attend_alike,
            _random_attention,
            _attention(4, 2, 1, 2, 3),
            _attention(6, 2, 4, 5, 5),
            describe=_describe_alike,
            tolerance=EXACT,
        ),
        _attention_probe(
            "the weights are the softmax of scaled scores",
            _attend,
            lambda random: _random_attention(random, hot=random.choice([1.0, 1.5])),
            _attention(2, 1, 4, 3, 3),
            _attention(9, 3, 64, 7, 7),
            tolerance=EXACT,
        ),
        _attention_probe(
            "the first token sees itself, and nothing else",
            _attend,
            lambda random: {**_random_attention(random), "context_len": 1},
            _attention(4, 2, 4, 1, 4),
            cases=2,
            tolerance=EXACT,
        ),
        _attention_probe(
            "large scores do not overflow",
            _attend,
            lambda random: _random_attention(random, hot=random.choice([20.0, 30.0])),
            _attention(4, 2, 64, 5, 8, hot=30.0),
            cases=3,
            tolerance=Tolerance(rtol=2e-3),
        ),
        _attention_probe(
            "a cache in half precision: sums in float32, the result like q",
            _attend,
            lambda random: _random_attention(
                random, dtype=random.choice(["float16", "bfloat16"]), hot=1.0
            ),
            _attention(4, 2, 64, 300, 310, dtype="float16", hot=60.0),
            _attention(4, 2, 16, 600, 600, dtype="float16"),
            tolerance=Tolerance(rtol=8e-3),
        ),
        _attention_probe(
            "nothing is changed in the cache",
            _attend_and_look,
            _random_attention,
            _attention(4, 2, 4, 3, 3),
            cases=2,
            place=lambda parting, inputs: str(parting.path[0]) if parting.path else "",
        ),
    ),
)

# ---- 1.4 generate -------------------------------------------------------------------------------


@cache
def _tiny() -> Any:
    from course.engine.loading.loader import tiny_model

    return tiny_model()


class RecordingModel:
    """The model with a list of the positions that it was given, in order."""

    def __init__(self) -> None:
        self.model = _tiny()
        self.config = self.model.config
        self.positions: list[int] = []

    def forward(self, token_ids: Any, positions: Any, attend: Any) -> Any:
        self.positions += positions.tolist()
        if len(self.positions) > 500:
            raise Unusable("more than 500 tokens were put through the model")
        return self.model.forward(token_ids, positions, attend)

    def logits(self, hidden: Any) -> Any:
        return self.model.logits(hidden)


class RoomyCache:
    """What the notebook calls ContiguousCache: ``attend`` writes behind the first ``length``."""

    def __init__(self, room: int) -> None:
        import torch

        shape = _tiny().config.shape
        size = (shape.num_layers, room, shape.num_kv_heads, shape.head_dim)
        self.keys, self.values = torch.zeros(size), torch.zeros(size)
        self.length = 0

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        room, end = self.keys.shape[1], self.length + len(q)
        if end > room:
            raise Unusable(f"the cache has room for {room} tokens and was asked to keep {end}")
        self.keys[layer, self.length : end] = k
        self.values[layer, self.length : end] = v
        visible = torch.ones(len(q), end, dtype=torch.bool).tril(self.length)
        keys, values = self.keys[layer, :end], self.values[layer, :end]
        out = scaled_dot_product_attention(
            *(t.transpose(0, 1)[None] for t in (q, keys, values)),
            attn_mask=visible,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)


def _generated(generate: Any, inputs: Inputs) -> tuple[list[int], RecordingModel, RoomyCache]:
    """What the last of the turns gave. Later turns: the words before, and more of the user's."""
    recording = RecordingModel()
    kept = RoomyCache(room=200)
    prompt: list[int] = []
    tokens: list[int] = []
    for said, num_tokens in zip(inputs["said"], inputs["num_tokens"], strict=True):
        prompt = [*prompt, *tokens, *said]
        recording.positions.clear()
        given = list(prompt)
        tokens = int_list(generate(recording, kept, given, num_tokens), "generate")
        if given != prompt:
            raise Unusable("the caller's prompt was changed: it is another list now than before")
        if any(not 0 <= token < recording.config.vocab_size for token in tokens):
            raise Unusable(f"generate gave {max(tokens)}, and there are 258 tokens, from 0 on")
    return tokens, recording, kept


def _tokens(generate: Any, inputs: Inputs) -> Any:
    return _generated(generate, inputs)[0]


def _positions(generate: Any, inputs: Inputs) -> Any:
    return _generated(generate, inputs)[1].positions


def _length(generate: Any, inputs: Inputs) -> Any:
    return _generated(generate, inputs)[2].length


def _talk(generate: Any, inputs: Inputs) -> Any:
    tokens, recording, _ = _generated(generate, inputs)
    return {"tokens": tokens, "positions": recording.positions}


def _turns(*turns: tuple[list[int], int]) -> Inputs:
    return {"said": [said for said, _ in turns], "num_tokens": [n for _, n in turns]}


def _random_words(random: Random, least: int = 2, most: int = 9) -> list[int]:
    return random.sample(range(256), random.randint(least, most))


def _one_turn(random: Random) -> Inputs:
    return _turns((_random_words(random), random.randint(3, 9)))


def _two_turns(random: Random) -> Inputs:
    turns = [(_random_words(random), random.randint(1, 6)) for _ in range(random.choice([2, 3]))]
    return _turns(*turns)


def _describe_turns(inputs: Inputs) -> str:
    told = []
    for said, num_tokens in zip(inputs["said"], inputs["num_tokens"], strict=True):
        then = "then " if told else ""
        more = "more " if told else ""
        told.append(f"{then}{len(said)} {more}tokens in, {num_tokens} out")
    return "; ".join(told) + (f"; prompt {inputs['said'][0]}" if len(told) == 1 else "")


def _place_token(parting: Parting, inputs: Inputs) -> str:
    if parting.why != "value" or not parting.path:
        return ""
    return f"token {parting.path[-1]} of the answer, counted from 0"


def _place_position(parting: Parting, inputs: Inputs) -> str:
    if parting.why == "length":
        return "the positions of all tokens that were put through the model"
    if not parting.path:
        return ""
    return f"token {parting.path[-1]} of those put through the model, counted from 0"


def _place_talk(parting: Parting, inputs: Inputs) -> str:
    if len(parting.path) < 2:
        return (
            "the last answer" if parting.path == ("tokens",) else "the positions of the last turn"
        )
    what = "the last answer" if parting.path[0] == "tokens" else "those put in for it"
    return f"token {parting.path[1]} of {what}, counted from 0"


SKY = [84, 101, 108, 108, 32, 109, 101]  # A's prompt has seven tokens as well

GENERATE = Exercise(
    id="1.4",
    title="Generation with a cache",
    symbol="course.practice.answers.lab_01:generate",
    points=4,
    minutes=20,
    difficulty=3,
    piece=False,
    trials="random prompts",
    hints=(
        "Before each step: how many tokens are stored, and which of all tokens so far are not? "
        "The first time these are the whole prompt.",
        '"Tokens part at token 1 of the answer": then the prompt was right and the first decode '
        "step is not. The token that you feed in at that step, what is its position? Was "
        "`cache.length` moved after the prompt, once, and by its whole length?",
        "A list of all ids so far, and a loop: feed `ids[cache.length:]` at the positions from "
        "`cache.length` on, move `cache.length`, take the logits of the *last* row, append the "
        "index of the largest. What came after the prompt is the answer.",
    ),
    probes=(
        Probe(
            "the same tokens as without a cache",
            _tokens,
            examples=(_turns((SKY, 4)), _turns(([200], 3))),
            make=_one_turn,
            cases=5,
            describe=_describe_turns,
            seconds=10.0,
            place=_place_token,
            unit="token",
        ),
        Probe(
            "each token is put through the model once, at its own position",
            _positions,
            examples=(_turns((SKY, 3)),),
            make=_one_turn,
            cases=3,
            describe=_describe_turns,
            seconds=10.0,
            place=_place_position,
            unit="position",
        ),
        Probe(
            "afterwards `cache.length` says how many tokens are stored",
            _length,
            examples=(_turns((SKY, 3)),),
            make=_one_turn,
            cases=3,
            describe=_describe_turns,
            seconds=10.0,
            unit="length",
        ),
        Probe(
            "a conversation goes on with what the cache holds",
            _talk,
            examples=(_turns((SKY, 3), ([10, 20], 3)),),
            make=_two_turns,
            cases=3,
            describe=_describe_turns,
            place=_place_talk,
            seconds=10.0,
        ),
        Probe(
            "no tokens wanted, none given",
            _tokens,
            examples=(_turns((SKY, 0)),),
            describe=_describe_turns,
            seconds=10.0,
        ),
    ),
)

# ---- 1.5 a prediction ---------------------------------------------------------------------------

RUNS = ((10, 100), (2000, 100), (2000, 1))


def tokens_computed(prompt: int, output: int, cached: bool) -> int:
    """Tokens put through a model, counted step by step."""
    count, stored = 0, 0
    for step in range(output):
        count += prompt + step - stored
        if cached:
            stored = prompt + step
    return count


def _near(answer: Any, inputs: Inputs) -> str:
    run = tuple(inputs["run"])
    guess = answer.get(run) if type(answer) is dict else None
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        raise Unusable(f"there is no number for {run}: {{(10, 100): ..., (2000, 100): ...}}")
    counted = tokens_computed(*run, cached=False) / tokens_computed(*run, cached=True)
    ratio = guess / counted
    if 0.9 <= ratio <= 1.1:
        return "within 10 % of what is counted"
    return f"you say {how_far(guess, counted, 'what is counted')}"


def _counted(inputs: Inputs) -> str:
    run = inputs["run"]
    return f"{tokens_computed(*run, cached=False) / tokens_computed(*run, cached=True):.1f}"


def _of_answer(inputs: Inputs) -> str:
    return ""


PREDICTION = Exercise(
    id="1.5",
    title="Predict, then count: what a cache saves",
    symbol="course.practice.answers.lab_01:predicted_saving",
    kind="data",
    start="predicted_saving = {(10, 100): None, (2000, 100): None, (2000, 1): None}",
    points=2,
    minutes=10,
    difficulty=2,
    piece=False,
    lines=1,
    hints=(
        "With a cache, each token but the last goes through the model once. Without, what goes "
        "through at each step?",
        '"I have about half of what is counted for (2000, 100)": does the sequence begin at 0 '
        "tokens? When the prompt is long, every step computes about the same number.",
        "Without a cache a step costs the whole sequence: take its mean length over the answer, "
        "times the steps. Divide by what goes through with a cache, the prompt and the answer.",
    ),
    probes=tuple(
        Probe(
            f"{prompt:,} tokens in, {output} out",
            _near,
            examples=({"run": [prompt, output]},),
            describe=_of_answer,
            measured=_counted,
        )
        for prompt, output in RUNS
    ),
)

EXERCISES = (PER_TOKEN, BYTES, ATTENTION, GENERATE, PREDICTION)
