"""Lab 01: right answers that are not in the engine, wrong ones, other right ones, and why."""

from __future__ import annotations

from typing import Any

import torch

from course.engine.model import LlamaModel
from course.practice.compare import Parting
from course.practice.exercise import Alternative, Answers, Inputs, Mistake
from course.practice.source import clean
from course.sizing import MODELS, ModelShape

# ---- Answers that exist only for this lab -------------------------------------------------------


def decode_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context_len: int
) -> torch.Tensor:
    """Attention of one request's newest token over its contiguous cache, in one layer.

    q: [num_heads, head_dim], the queries of the newest token. keys and values: [room,
    num_kv_heads, head_dim]. Their first context_len rows are written, the newest token's among
    them; what stands in the others means nothing, and may be NaN. Neighbouring query heads share a
    KV head, num_heads // num_kv_heads of them each.

    Returns [num_heads, head_dim] in q's dtype. Scores are scaled by head_dim ** -0.5; everything
    is computed in float32, whatever the cache is stored in.

    >>> values = torch.tensor([[[1.0], [10.0]], [[3.0], [30.0]], [[99.0], [99.0]]])
    >>> q = torch.zeros(4, 1)  # a query of zeros weighs all tokens alike
    >>> decode_attention(q, keys=values, values=values, context_len=2).tolist()
    [[2.0], [2.0], [20.0], [20.0]]
    """
    num_heads, head_dim = q.shape
    group = num_heads // keys.shape[1]
    k = keys[:context_len].float().repeat_interleave(group, dim=1)
    v = values[:context_len].float().repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,thd->ht", q.float(), k) * head_dim**-0.5
    weights = scores.softmax(dim=-1)
    return torch.einsum("ht,thd->hd", weights, v).to(q.dtype)


def generate(model: LlamaModel, cache: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """The num_tokens token ids that follow a prompt, the likeliest each time.

    `cache.length` tokens are stored already: the first ones of the prompt, and fewer than all of
    it (0 for a new request). `model.forward(token_ids, positions, cache.attend)` writes the new
    tokens' keys and values behind them, and does not move `cache.length`: that is yours to do.
    It takes two int64 tensors and gives a row for each new token; `model.logits(rows)` turns rows
    into the scores of their next tokens.

    Each token goes through the model at most once, and the last one, which nobody asks anything,
    not at all. Afterwards `cache.length` is the number of tokens stored. `prompt` stays as it is.

    >>> generate(model, cache, [84, 101, 108], 2)  # puts 84, 101, 108 through, then one more
    [108, 224]
    """
    ids = list(prompt)
    for _ in range(num_tokens):
        start = cache.length
        positions = torch.arange(start, len(ids))
        hidden = model.forward(torch.tensor(ids[start:]), positions, cache.attend)
        cache.length = len(ids)
        ids.append(int(model.logits(hidden[-1:]).argmax()))
    return ids[len(prompt) :]


predicted_saving = {(10, 100): 55, (2000, 100): 98, (2000, 1): 1}

# ---- 1.1 ----------------------------------------------------------------------------------------


def _shape(inputs: Inputs) -> ModelShape:
    shape = inputs["shape"]
    return MODELS[shape] if type(shape) is str else ModelShape(**shape)


def _one_layer(inputs: Inputs, parting: Parting) -> str:
    shape = _shape(inputs)
    if shape.kv_lora_rank is not None:
        return ""
    return f"2 x {shape.num_kv_heads} x {shape.head_dim} numbers are those of one layer"


def _all_heads(inputs: Inputs, parting: Parting) -> str:
    shape = _shape(inputs)
    return f"{shape.num_attention_heads} heads ask, {shape.num_kv_heads} keep"


_HEADS = "per_layer = 2 * shape.num_kv_heads * shape.head_dim"
_LATENT = "per_layer = shape.kv_lora_rank + shape.qk_rope_head_dim"
_TOTAL = "bytes_of(shape.num_layers * per_layer, bytes_per_value)"
PER_TOKEN = Answers(
    mistakes=(
        Mistake(
            "the layers are forgotten",
            "Every layer keeps keys and values of its own for each token.",
            edit=((_TOTAL, "bytes_of(per_layer, bytes_per_value)"),),
            arithmetic=_one_layer,
        ),
        Mistake(
            "only the keys are counted",
            "Values are kept too, as many numbers again: that is the factor 2.",
            edit=((_HEADS, "per_layer = shape.num_kv_heads * shape.head_dim"),),
        ),
        Mistake(
            "query heads are counted in place of KV heads",
            "A query is used once and not kept. With GQA there are fewer KV heads than query "
            "heads, and that is its point.",
            edit=((_HEADS, "per_layer = 2 * shape.num_attention_heads * shape.head_dim"),),
            arithmetic=_all_heads,
        ),
        Mistake(
            "the KV heads are forgotten",
            "Each KV head keeps a key and a value of head_dim numbers.",
            edit=((_HEADS, "per_layer = 2 * shape.head_dim"),),
        ),
        Mistake(
            "MLA gets the factor 2",
            "Keys and values are both made from the *same* latent, so it is kept once.",
            edit=((_LATENT, "per_layer = 2 * (shape.kv_lora_rank + shape.qk_rope_head_dim)"),),
        ),
        Mistake(
            "the rotary key of MLA is forgotten",
            "The latent knows no positions. A small key that does is kept beside it.",
            edit=((_LATENT, "per_layer = shape.kv_lora_rank"),),
        ),
        Mistake(
            "MLA keeps a latent for each head",
            "One latent serves all heads of a layer: that is what makes it so small.",
            edit=(
                (
                    _LATENT,
                    "per_layer = shape.num_kv_heads * (shape.kv_lora_rank + "
                    "shape.qk_rope_head_dim)",
                ),
            ),
        ),
        Mistake(
            "MLA is counted like other models",
            "Where `kv_lora_rank` is not None, no keys and values per head are kept at all.",
            code="""
            def kv_bytes_per_token(shape: ModelShape, bytes_per_value: float = 2) -> int:
                per_layer = 2 * shape.num_kv_heads * shape.head_dim
                return bytes_of(shape.num_layers * per_layer, bytes_per_value)
            """,
        ),
        Mistake(
            "numbers are counted and not their bytes",
            "Each number takes `bytes_per_value` bytes: 2 if nothing else is said.",
            edit=((_TOTAL, "bytes_of(shape.num_layers * per_layer, 1)"),),
        ),
        Mistake(
            "every value is taken to have 2 bytes",
            "A cache in fp32 has 4, in int8 it has 1: use `bytes_per_value`.",
            edit=((_TOTAL, "bytes_of(shape.num_layers * per_layer, 2)"),),
        ),
        Mistake(
            "a float comes out",
            "A byte is whole. With half a byte a value the product is a float: `bytes_of` rounds "
            "it up.",
            edit=((_TOTAL, "shape.num_layers * per_layer * bytes_per_value"),),
        ),
        Mistake(
            "a part of a byte is cut off",
            "Half a byte takes a whole one: `int` rounds down, `bytes_of` rounds up.",
            edit=((_TOTAL, "int(shape.num_layers * per_layer * bytes_per_value)"),),
        ),
        Mistake(
            "each layer is rounded up to a whole byte by itself",
            "Add up first and round up once, at the end.",
            edit=((_TOTAL, "shape.num_layers * bytes_of(per_layer, bytes_per_value)"),),
        ),
        Mistake(
            "nobody asks whether a value can be so small",
            "No number takes 0 bytes, or fewer. `bytes_of` refuses that with a ValueError.",
            code="""
            import math


            def kv_bytes_per_token(shape, bytes_per_value=2):
                per_layer = 2 * shape.num_kv_heads * shape.head_dim
                if shape.kv_lora_rank is not None:
                    per_layer = shape.kv_lora_rank + shape.qk_rope_head_dim
                return math.ceil(shape.num_layers * per_layer * bytes_per_value)
            """,
        ),
        Mistake(
            "MLA keeps a rotary key for each head",
            "One rotary key serves all heads of a layer, as one latent does.",
            edit=(
                (
                    _LATENT,
                    "per_layer = shape.kv_lora_rank + shape.num_kv_heads * shape.qk_rope_head_dim",
                ),
            ),
        ),
        Mistake(
            "layers with a window are left out",
            "They keep each token too, until it falls out of the window. Asked is a token that "
            "every layer keeps.",
            edit=((_TOTAL, "bytes_of(shape.num_full_layers * per_layer, bytes_per_value)"),),
        ),
        Mistake(
            "the result is in KiB",
            "Asked are bytes. Divide where you print, not where you compute.",
            edit=((f"return {_TOTAL}", f"return {_TOTAL} // 1024"),),
        ),
    ),
    alternatives=(
        Alternative(
            "MLA first, and done",
            code="""
            def kv_bytes_per_token(shape, bytes_per_value=2):
                if shape.kv_lora_rank:
                    latent = shape.kv_lora_rank + shape.qk_rope_head_dim
                    return bytes_of(latent * shape.num_layers, bytes_per_value)
                keys = shape.num_layers * shape.num_kv_heads * shape.head_dim
                values = keys
                return bytes_of(keys + values, bytes_per_value)
            """,
        ),
        Alternative(
            "layer by layer",
            code="""
            def kv_bytes_per_token(shape, bytes_per_value=2):
                numbers = 0
                for _ in range(shape.num_layers):
                    if shape.kv_lora_rank is None:
                        for _ in range(shape.num_kv_heads):
                            numbers += shape.head_dim  # key
                            numbers += shape.head_dim  # value
                    else:
                        numbers += shape.kv_lora_rank
                        numbers += shape.qk_rope_head_dim
                return bytes_of(numbers, bytes_per_value)
            """,
        ),
        Alternative(
            "rounded up by itself",
            code="""
            import math


            def kv_bytes_per_token(shape, bytes_per_value=2):
                if not bytes_per_value > 0:
                    raise ValueError(f"bytes_per_value is {bytes_per_value}")
                kind = shape.attention_kind
                numbers = (
                    shape.kv_lora_rank + shape.qk_rope_head_dim
                    if kind.startswith("MLA")
                    else 2 * shape.num_kv_heads * shape.head_dim
                )
                return math.ceil(shape.num_layers * numbers * bytes_per_value)
            """,
        ),
    ),
    why="""
    Five factors: layers, KV heads, head dim, bytes per value, and 2 for key and value. Written
    down one by one, none gets lost, and the numbers that mislead in print are found at once: each
    is off by one of the five. MLA replaces `2 x KV heads x head dim` by one vector for all heads,
    from which each head makes its key *and* its value again; a second copy would hold nothing new.
    """,
    shown="query heads are counted in place of KV heads",
    equivalent={
        "kv_bytes_per_token: if shape.kv_lora_rank is not None and shape.qk_rope_head_dim is not "
        "None: -> if shape.kv_lora_rank is not None or shape.qk_rope_head_dim is not None:": (
            "a ModelShape has both or neither"
        ),
    },
)

# ---- 1.2 ----------------------------------------------------------------------------------------

_IN_WINDOW = "in_window = min(num_tokens, shape.sliding_window or 0)"
_KEPT = "tokens_kept = shape.num_full_layers * num_tokens + shape.num_window_layers * in_window"
_PER_LAYER = "values_per_layer = kv_bytes_per_token(shape, 1) // shape.num_layers"


def _grown_everywhere(inputs: Inputs, parting: Parting) -> str:
    shape = _shape(inputs)
    return f"{shape.num_layers} x {inputs['num_tokens']} tokens are kept then"


BYTES = Answers(
    mistakes=(
        Mistake(
            "every layer keeps every token",
            "A layer with a window drops what has fallen out of it: past the window it stays as "
            "large as it is.",
            edit=((_KEPT, "tokens_kept = shape.num_layers * num_tokens"),),
            arithmetic=_grown_everywhere,
        ),
        Mistake(
            "every layer stops at the window",
            "Only `num_window_layers` of them have one. The others keep all tokens.",
            edit=(
                (_IN_WINDOW, "in_window = min(num_tokens, shape.sliding_window or num_tokens)"),
                (_KEPT, "tokens_kept = shape.num_layers * in_window"),
            ),
        ),
        Mistake(
            "a window is always taken to be full",
            "A request of 3 tokens has 3 in a window of 4. Take the smaller of the two.",
            edit=((_IN_WINDOW, "in_window = shape.sliding_window or 0"),),
        ),
        Mistake(
            "the newest token is not counted in the window",
            "A window of 4 holds 4 tokens, the newest among them.",
            edit=((_IN_WINDOW, "in_window = min(num_tokens, (shape.sliding_window or 1) - 1)"),),
        ),
        Mistake(
            "layers with a window are left out",
            "They keep fewer tokens, but not none.",
            edit=((_KEPT, "tokens_kept = shape.num_full_layers * num_tokens"),),
        ),
        Mistake(
            "full layers and window layers trade places",
            "`num_window_layers` is how many stop; `num_full_layers` go on.",
            edit=(
                (
                    _KEPT,
                    "tokens_kept = shape.num_window_layers * num_tokens + "
                    "shape.num_full_layers * in_window",
                ),
            ),
        ),
        Mistake(
            "layers with a window are counted as full layers, too",
            "`num_full_layers` are those without a window; `num_layers` are all.",
            edit=(
                (
                    _KEPT,
                    "tokens_kept = shape.num_layers * num_tokens + "
                    "shape.num_window_layers * in_window",
                ),
            ),
        ),
        Mistake(
            "the layers are counted twice",
            "`kv_bytes_per_token` is over all layers already. Divide by them before you add up "
            "layer by layer.",
            edit=((_PER_LAYER, "values_per_layer = kv_bytes_per_token(shape, 1)"),),
        ),
        Mistake(
            "a model without windows is asked for its window",
            "`sliding_window` is None there, and None cannot be compared with a number.",
            edit=((_IN_WINDOW, "in_window = min(num_tokens, shape.sliding_window)"),),
        ),
        Mistake(
            "every value is taken to have 2 bytes",
            "Hand `bytes_per_value` on.",
            edit=(
                (
                    "tokens_kept * values_per_layer, bytes_per_value",
                    "tokens_kept * values_per_layer, 2",
                ),
            ),
        ),
        Mistake(
            "the length is cut at max_model_len",
            "The formula knows nothing of training. Whoever asks for more tokens gets their bytes.",
            edit=(
                (
                    _IN_WINDOW,
                    "num_tokens = min(num_tokens, shape.max_model_len)\n    " + _IN_WINDOW,
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "layer by layer",
            code="""
            def kv_bytes(shape, num_tokens, bytes_per_value=2):
                if num_tokens < 0:
                    raise ValueError(f"num_tokens is {num_tokens}")
                one_layer = kv_bytes_per_token(shape, bytes_per_value) // shape.num_layers
                total = 0
                for layer in range(shape.num_layers):
                    kept = num_tokens
                    if layer < shape.num_window_layers and num_tokens > shape.sliding_window:
                        kept = shape.sliding_window
                    total += kept * one_layer
                return total
            """,
        ),
        Alternative(
            "everything, less what fell out of the windows",
            code="""
            def kv_bytes(shape, num_tokens, bytes_per_value=2):
                require_count("num_tokens", num_tokens, least=0)
                window = shape.sliding_window or num_tokens
                gone = shape.num_window_layers * max(0, num_tokens - window)
                kept = shape.num_layers * num_tokens - gone
                each = kv_bytes_per_token(shape, 1) // shape.num_layers
                return bytes_of(kept * each, bytes_per_value)
            """,
        ),
        Alternative(
            "two cases",
            code="""
            def kv_bytes(shape, num_tokens, bytes_per_value=2):
                if num_tokens < 0:
                    raise ValueError(num_tokens)
                per_token = kv_bytes_per_token(shape, bytes_per_value)
                if shape.sliding_window is None or num_tokens <= shape.sliding_window:
                    return per_token * num_tokens
                later = per_token * shape.num_full_layers // shape.num_layers
                past = num_tokens - shape.sliding_window
                return per_token * shape.sliding_window + later * past
            """,
        ),
    ),
    why="""
    Count tokens first, over all layers, and turn them into bytes at the end: a full layer keeps
    `num_tokens`, a window layer the smaller of that and its window. One `min` says both what
    happens before the window is full and after. So "bytes per token" is no constant of such a
    model, and a size of the whole request is what a server must ask for.
    """,
    shown="every layer keeps every token",
    equivalent={
        f"kv_bytes: {_IN_WINDOW} -> in_window = min(shape.sliding_window or 0, num_tokens)": (
            "the smaller of two whole numbers, in either order"
        ),
        **{
            f"kv_bytes: {_IN_WINDOW} -> in_window = min(num_tokens, shape.sliding_window or {n})": (
                "without a window there are no window layers, and in_window is multiplied by 0"
            )
            for n in (1, -1)
        },
    },
)

# ---- 1.3 ----------------------------------------------------------------------------------------

_K = "keys[:context_len].float().repeat_interleave(group, dim=1)"
_V = "values[:context_len].float().repeat_interleave(group, dim=1)"
_SCORES = 'torch.einsum("hd,thd->ht", q.float(), k) * head_dim**-0.5'
_OUT = 'torch.einsum("ht,thd->hd", weights, v).to(q.dtype)'


def _rows(k: str, v: str = "") -> tuple[tuple[str, str], ...]:
    return ((_K, k), (_V, v or k.replace("keys", "values")))


def _wrong_head(inputs: Inputs, parting: Parting) -> str:
    if len(parting.path) != 2:
        return ""
    head, kv_heads = int(parting.path[0]), inputs["kv_heads"]
    right = head // (inputs["heads"] // kv_heads)
    return f"{head} % {kv_heads} = {head % kv_heads}, and head {head} is in group {right}"


_BY_HAND = """
def decode_attention(q, keys, values, context_len):
    num_heads, head_dim = q.shape
    group = num_heads // keys.shape[1]
    out = torch.zeros(num_heads, head_dim)
    for head in range(num_heads):
        kv_head = head // group
        k = keys[:context_len, kv_head].float()
        v = values[:context_len, kv_head].float()
        scores = k @ q[head].float() * head_dim**-0.5
        {weights}
        out[head] = weights @ v
    return out.to(q.dtype)
"""


def _by_hand(weights: str) -> str:
    return clean(_BY_HAND).replace("{weights}", weights)


ATTENTION = Answers(
    mistakes=(
        Mistake(
            "KV heads are dealt out like cards, by `%`",
            "Neighbours share: with 4 query heads on 2 KV heads, heads 0 and 1 take the first. "
            "`repeat_interleave` does that; `repeat` and `%` do not.",
            edit=_rows("keys[:context_len].float().repeat(1, group, 1)"),
            arithmetic=_wrong_head,
        ),
        Mistake(
            "all query heads read the first KV head",
            "Each group of query heads has a KV head of its own.",
            edit=_rows("keys[:context_len, :1].float().repeat_interleave(num_heads, dim=1)"),
        ),
        Mistake(
            "the whole room is read, written or not",
            "Only the first `context_len` rows hold tokens. Cut both tensors to them.",
            edit=_rows("keys.float().repeat_interleave(group, dim=1)"),
        ),
        Mistake(
            "rows that are not written get weight 0 and are added up all the same",
            "What stands there may be NaN, and 0 times NaN is NaN. Cut keys and values to the "
            "first `context_len` rows.",
            code="""
            def decode_attention(q, keys, values, context_len):
                group = q.shape[0] // keys.shape[1]
                k = keys.float().repeat_interleave(group, dim=1)
                v = values.float().repeat_interleave(group, dim=1)
                scores = torch.einsum("hd,thd->ht", q.float(), k) * q.shape[1] ** -0.5
                scores[:, context_len:] = float("-inf")
                return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), v).to(q.dtype)
            """,
        ),
        Mistake(
            "rows that are not written take part in the softmax",
            "Cut to `context_len` rows before the softmax: else the weights of the written rows "
            "add up to less than 1.",
            code="""
            def decode_attention(q, keys, values, context_len):
                group = q.shape[0] // keys.shape[1]
                k = keys.float().repeat_interleave(group, dim=1)
                v = values[:context_len].float().repeat_interleave(group, dim=1)
                scores = torch.einsum("hd,thd->ht", q.float(), k) * q.shape[1] ** -0.5
                weights = scores.softmax(dim=-1)[:, :context_len]
                return torch.einsum("ht,thd->hd", weights, v).to(q.dtype)
            """,
        ),
        Mistake(
            "the newest token does not see itself",
            "Its key and value are among the `context_len` written rows, as the last of them.",
            edit=_rows("keys[: max(1, context_len - 1)].float().repeat_interleave(group, dim=1)"),
        ),
        Mistake(
            "one row too many is read",
            "Positions 0 to context_len - 1 are written: `[:context_len]`, the end not included.",
            edit=_rows("keys[: context_len + 1].float().repeat_interleave(group, dim=1)"),
        ),
        Mistake(
            "prefill's triangular mask is laid over a single query",
            "The mask lets row i see the columns up to i, and the newest query is row 0 of its "
            "step: it sees the first token alone. In decode nothing needs hiding.",
            edit=(
                (
                    "weights = scores.softmax(dim=-1)",
                    "mask = torch.arange(context_len) > 0\n"
                    '    weights = scores.masked_fill(mask, float("-inf")).softmax(dim=-1)',
                ),
            ),
        ),
        Mistake(
            "the softmax runs over the heads",
            "Weights must add up to 1 over the *tokens* of each head: that is the other dimension.",
            edit=(("scores.softmax(dim=-1)", "scores.softmax(dim=0)"),),
        ),
        Mistake(
            "scores are not turned into weights",
            "A score can be negative, and scores add up to anything. Softmax makes weights.",
            edit=(("scores.softmax(dim=-1)", "scores"),),
        ),
        Mistake(
            "the weights are not divided by their sum",
            "Otherwise the output grows with every token in the context.",
            edit=(
                (
                    "scores.softmax(dim=-1)",
                    "(scores - scores.amax(dim=-1, keepdim=True)).exp()",
                ),
            ),
        ),
        Mistake(
            "the scale is missing",
            "A sum of head_dim products grows with the square root of head_dim. `head_dim ** -0.5` "
            "takes that back; without it one token gets nearly all the weight.",
            edit=((_SCORES, 'torch.einsum("hd,thd->ht", q.float(), k)'),),
        ),
        Mistake(
            "the scale comes in twice",
            "Once is enough: either the query is scaled or the scores are.",
            edit=((_SCORES, 'torch.einsum("hd,thd->ht", q.float(), k) / head_dim'),),
        ),
        Mistake(
            "scores are multiplied by the square root of head_dim",
            "They grow with it already. `head_dim ** -0.5` divides: mind the minus.",
            edit=((_SCORES, 'torch.einsum("hd,thd->ht", q.float(), k) * head_dim**0.5'),),
        ),
        Mistake(
            "`exp` is taken of the scores as they are",
            "The largest float32 is near exp(88). Softmax does not change when the largest score "
            "is subtracted from all first; `torch.softmax` does so.",
            code=_by_hand("e = scores.exp()\n        weights = e / e.sum()"),
        ),
        Mistake(
            "everything is computed in the dtype of the cache",
            "float16 ends at 65,504, and a score can pass that; its digits are few, too. Turn q, "
            "keys and values to float32 first.",
            edit=(
                (_K, "keys[:context_len].repeat_interleave(group, dim=1)"),
                (_V, "values[:context_len].repeat_interleave(group, dim=1)"),
                (_SCORES, 'torch.einsum("hd,thd->ht", q, k) * head_dim**-0.5'),
            ),
        ),
        Mistake(
            "the result stays in float32",
            "The next layer expects what it gave: q's dtype. Only the sums are float32.",
            edit=((_OUT, 'torch.einsum("ht,thd->hd", weights, v)'),),
        ),
        Mistake(
            "the weights are laid on the keys",
            "Keys say how much; values say what. The mixture is one of values.",
            edit=((_OUT, 'torch.einsum("ht,thd->hd", weights, k).to(q.dtype)'),),
        ),
        Mistake(
            "the cache is scaled in place",
            "`keys *= ...` changes the cache, for all later steps. Scale the scores.",
            edit=(
                (
                    _K,
                    "keys[:context_len].mul_(head_dim**-0.5).float()"
                    ".repeat_interleave(group, dim=1)",
                ),
                (_SCORES, 'torch.einsum("hd,thd->ht", q.float(), k)'),
            ),
        ),
        Mistake(
            "the query is scaled in place",
            "`q *= ...` changes the caller's tensor. Make a new one.",
            edit=(
                (
                    _SCORES,
                    'torch.einsum("hd,thd->ht", q.mul_(head_dim**-0.5).float(), k)',
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "head by head, softmax by hand",
            code=_by_hand("e = (scores - scores.max()).exp()\n        weights = e / e.sum()"),
        ),
        Alternative(
            "queries in groups, nothing repeated",
            code="""
            def decode_attention(q, keys, values, context_len):
                num_heads, head_dim = q.shape
                num_kv_heads = keys.shape[1]
                k = keys[:context_len].to(torch.float32)
                v = values[:context_len].to(torch.float32)
                grouped = q.to(torch.float32).view(num_kv_heads, -1, head_dim) / head_dim**0.5
                scores = torch.einsum("kgd,tkd->kgt", grouped, k)
                out = torch.einsum("kgt,tkd->kgd", torch.softmax(scores, -1), v)
                return out.reshape(num_heads, head_dim).to(q.dtype)
            """,
        ),
        Alternative(
            "PyTorch's own",
            code="""
            import torch.nn.functional as F


            def decode_attention(q, keys, values, context_len):
                k = keys[:context_len].float().transpose(0, 1)
                v = values[:context_len].float().transpose(0, 1)
                out = F.scaled_dot_product_attention(
                    q.float()[None, :, None], k[None], v[None], enable_gqa=True
                )
                return out[0, :, 0].to(q.dtype)
            """,
        ),
        Alternative(
            "token by token, with a running maximum",
            code="""
            def decode_attention(q, keys, values, context_len):
                num_heads, head_dim = q.shape
                group = num_heads // keys.shape[1]
                query = q.double() * head_dim**-0.5
                best = torch.full((num_heads,), -torch.inf, dtype=torch.float64)
                total = torch.zeros(num_heads, dtype=torch.float64)
                out = torch.zeros(num_heads, head_dim, dtype=torch.float64)
                for token in range(context_len):
                    k = keys[token].double().repeat_interleave(group, 0)
                    v = values[token].double().repeat_interleave(group, 0)
                    score = (query * k).sum(-1)
                    new = torch.maximum(best, score)
                    shrink, weight = (best - new).exp(), (score - new).exp()
                    total = total * shrink + weight
                    out = out * shrink[:, None] + weight[:, None] * v
                    best = new
                return (out / total[:, None]).to(q.dtype)
            """,
        ),
    ),
    why="""
    One query needs no mask: whatever is in the cache came before it, or is itself. What it does
    need is the length, because behind the last token a cache holds whatever was there before. The
    three steps, scores over tokens, softmax, mixture of values, are the whole of attention. Lesson
    05 does them again with the rows scattered over blocks, and keeps what is decided here: sums in
    float32, the largest score taken off, a group of heads on one KV head.
    """,
    shown="KV heads are dealt out like cards, by `%`",
    equivalent={
        "decode_attention: weights = scores.softmax(dim=-1) -> weights = scores.softmax(dim=+1)": (
            "of two dimensions the last is number 1"
        ),
    },
)

# ---- 1.4 ----------------------------------------------------------------------------------------

_START = "start = cache.length"
_POSITIONS = "positions = torch.arange(start, len(ids))"
_MOVE = "        cache.length = len(ids)\n"
_FORWARD = "hidden = model.forward(torch.tensor(ids[start:]), positions, cache.attend)"
_APPEND = "ids.append(int(model.logits(hidden[-1:]).argmax()))"

GENERATE = Answers(
    mistakes=(
        Mistake(
            "everything is put through the model again at each step",
            "The tokens come out right, and the cache saves nothing: begin at `cache.length`.",
            edit=((_START, "start = cache.length = 0"),),
        ),
        Mistake(
            "the position of a new token is one too far",
            "Of n tokens the last is at position n - 1: positions count from 0. Rotary keys carry "
            "the position, so all that follows would be a little wrong.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids = list(prompt)
                for step in range(num_tokens):
                    start = cache.length
                    first = start if step == 0 else len(ids)
                    positions = torch.arange(first, first + len(ids) - start)
                    hidden = model.forward(torch.tensor(ids[start:]), positions, cache.attend)
                    cache.length = len(ids)
                    ids.append(int(model.logits(hidden[-1:]).argmax()))
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "everything goes in again, behind what the cache holds",
            "`attend` writes behind `cache.length`: each token then stands there several times. "
            "Put in only what is not stored yet.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids = list(prompt)
                for _ in range(num_tokens):
                    positions = torch.arange(len(ids))
                    hidden = model.forward(torch.tensor(ids), positions, cache.attend)
                    cache.length += len(ids)
                    ids.append(int(model.logits(hidden[-1:]).argmax()))
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "tokens of the prompt that are stored already go in again",
            "The cache may hold the first part of a prompt, from an earlier turn. What is new "
            "begins at `cache.length`, with the prompt as well.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids, new = list(prompt), list(prompt)
                for _ in range(num_tokens):
                    positions = torch.arange(len(ids) - len(new), len(ids))
                    hidden = model.forward(torch.tensor(new), positions, cache.attend)
                    cache.length = len(ids)
                    new = [int(model.logits(hidden[-1:]).argmax())]
                    ids += new
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "the token just chosen is counted as stored",
            "It has not been through the model: its key and value come in the next step. With it "
            "in `cache.length` nothing is left to put in, and an empty tensor is one of floats.",
            edit=((_MOVE, ""), (_APPEND, _APPEND + "\n        cache.length = len(ids)")),
        ),
        Mistake(
            "positions begin at 0 in every step",
            "A token's position is its place in the whole sequence, not in the step.",
            edit=((_POSITIONS, "positions = torch.arange(len(ids) - start)"),),
        ),
        Mistake(
            "`cache.length` is never moved",
            "Each token is then written over the one before, and the first of the prompt is lost.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids, new = list(prompt), list(prompt)[cache.length:]
                for _ in range(num_tokens):
                    positions = torch.arange(len(ids) - len(new), len(ids))
                    hidden = model.forward(torch.tensor(new), positions, cache.attend)
                    new = [int(model.logits(hidden[-1:]).argmax())]
                    ids += new
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "`cache.length` is moved by one after the prompt as well",
            "The prompt's tokens are all stored by then. Move it by as many as went through.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids, new = list(prompt), list(prompt)[cache.length:]
                for _ in range(num_tokens):
                    positions = torch.arange(len(ids) - len(new), len(ids))
                    hidden = model.forward(torch.tensor(new), positions, cache.attend)
                    cache.length += 1
                    new = [int(model.logits(hidden[-1:]).argmax())]
                    ids += new
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "`cache.length` is moved before the step",
            "`attend` writes behind the first `cache.length` tokens. Moved too early, it leaves a "
            "gap of zeros, and each new token looks at them.",
            edit=(
                (_MOVE, ""),
                (_POSITIONS, "cache.length = len(ids)\n        " + _POSITIONS),
            ),
        ),
        Mistake(
            "the last token of the prompt is computed twice",
            "The prompt's step gives the first new token already: its last row says what comes "
            "next. Computed again, the last token stands in the cache twice.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                start = cache.length
                positions = torch.arange(start, len(prompt))
                model.forward(torch.tensor(prompt[start:]), positions, cache.attend)
                cache.length = len(prompt)
                ids = list(prompt)
                for _ in range(num_tokens):
                    positions = torch.tensor([len(ids) - 1])
                    hidden = model.forward(torch.tensor(ids[-1:]), positions, cache.attend)
                    cache.length += 1
                    ids.append(int(model.logits(hidden).argmax()))
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "the next token is taken from the first row",
            "Row 0 says what follows the *first* of the new tokens. What follows them all is in "
            "the last row.",
            edit=((_APPEND, "ids.append(int(model.logits(hidden[:1]).argmax()))"),),
        ),
        Mistake(
            "the next token is taken from the last row but one",
            "That row predicts the last token of the prompt, which you have.",
            edit=((_APPEND, "ids.append(int(model.logits(hidden[-2:][:1]).argmax()))"),),
        ),
        Mistake(
            "the largest score is looked for in all rows at once",
            "`argmax` of a whole matrix counts through its rows. Hand one row to `model.logits`.",
            edit=((_APPEND, "ids.append(int(model.logits(hidden).argmax()))"),),
        ),
        Mistake(
            "the token ids stay tensors",
            "`argmax` gives a tensor with one number in it. `int(...)` takes it out.",
            edit=((_APPEND, "ids.append(model.logits(hidden[-1:]).argmax())"),),
        ),
        Mistake(
            "the last token of the answer goes through the model too",
            "Nobody asks what follows it. One step less will do.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids = list(prompt)
                for step in range(num_tokens + 1):
                    start = cache.length
                    positions = torch.arange(start, len(ids))
                    hidden = model.forward(torch.tensor(ids[start:]), positions, cache.attend)
                    cache.length = len(ids)
                    if step < num_tokens:
                        ids.append(int(model.logits(hidden[-1:]).argmax()))
                return ids[len(prompt):]
            """,
        ),
        Mistake(
            "the prompt comes back with the answer",
            "Asked are only the tokens that follow it.",
            edit=(("return ids[len(prompt) :]", "return ids"),),
        ),
        Mistake(
            "the new tokens are added to the caller's list",
            "`ids = prompt` is the same list under two names. Copy it: `list(prompt)`.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids, count = prompt, len(prompt)
                for _ in range(num_tokens):
                    start = cache.length
                    positions = torch.arange(start, len(ids))
                    hidden = model.forward(torch.tensor(ids[start:]), positions, cache.attend)
                    cache.length = len(ids)
                    ids.append(int(model.logits(hidden[-1:]).argmax()))
                return ids[count:]
            """,
        ),
        Mistake(
            "a prompt is taken to be all new",
            "In the second turn of a conversation the cache holds most of it. What is new begins "
            "at `cache.length`.",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids, new = list(prompt), list(prompt)
                cache.length = 0
                for _ in range(num_tokens):
                    positions = torch.arange(len(ids) - len(new), len(ids))
                    hidden = model.forward(torch.tensor(new), positions, cache.attend)
                    cache.length += len(new)
                    new = [int(model.logits(hidden[-1:]).argmax())]
                    ids += new
                return ids[len(prompt):]
            """,
        ),
    ),
    alternatives=(
        Alternative(
            "the prompt first, then a loop over single tokens",
            code="""
            def generate(model, cache, prompt, num_tokens):
                if num_tokens == 0:
                    return []

                def step(new):
                    first = cache.length
                    positions = torch.arange(first, first + len(new))
                    hidden = model.forward(torch.tensor(new), positions, cache.attend)
                    cache.length += len(new)
                    return int(torch.argmax(model.logits(hidden)[-1]))

                answer = [step(prompt[cache.length:])]
                while len(answer) < num_tokens:
                    answer.append(step(answer[-1:]))
                return answer
            """,
        ),
        Alternative(
            "the prompt token by token, too",
            code="""
            def generate(model, cache, prompt, num_tokens):
                todo, answer = list(prompt[cache.length:]), []
                while len(answer) < num_tokens:
                    token = todo.pop(0)
                    place = torch.tensor([cache.length])
                    hidden = model.forward(torch.tensor([token]), place, cache.attend)
                    cache.length += 1
                    if not todo:
                        likeliest = model.logits(hidden).argmax(dim=-1).item()
                        answer.append(likeliest)
                        todo.append(likeliest)
                return answer
            """,
        ),
        Alternative(
            "the prompt in chunks",
            code="""
            def generate(model, cache, prompt, num_tokens):
                ids = torch.tensor(prompt)
                answer = []
                while len(answer) < num_tokens:
                    chunk = ids[cache.length : cache.length + 3]
                    positions = torch.arange(cache.length, cache.length + len(chunk))
                    hidden = model.forward(chunk, positions, cache.attend)
                    cache.length += len(chunk)
                    if cache.length == len(ids):
                        scores = model.logits(hidden[-1:])[0]
                        answer.append(max(range(len(scores)), key=lambda i: scores[i].item()))
                        ids = torch.cat([ids, torch.tensor(answer[-1:])])
                return answer
            """,
        ),
    ),
    why="""
    One number decides everything: how many tokens are stored. What stands behind it is new, its
    positions start there, `attend` writes there, and it moves only when all layers have written.
    So prefill and decode are the same lines with different lengths, and a second turn of a
    conversation is nothing special. The engine of lesson 08 calls this number
    `num_computed_tokens`, and the same care at the same place makes chunked prefill work.
    """,
    shown="the last token of the prompt is computed twice",
)

# ---- 1.5 ----------------------------------------------------------------------------------------


def _saving(short: float, long: float, single: float) -> str:
    return f"predicted_saving = {{(10, 100): {short}, (2000, 100): {long}, (2000, 1): {single}}}\n"


PREDICTION = Answers(
    mistakes=(
        Mistake(
            "every answer is taken to begin at length 0",
            "That is right for the short prompt alone: there the mean length is half the answer. "
            "A long prompt is computed whole, again, in each step.",
            code=_saving(50, 50, 0.5),
        ),
        Mistake(
            "each step is taken to cost the final length",
            "The sequence is that long only in the last step. With the short prompt it is half of "
            "it in the mean.",
            code=_saving(100, 98, 1),
        ),
        Mistake(
            "the prompt is left out of what a cache computes",
            "It goes through the model as well, once. In a long prompt with a short answer it is "
            "nearly all there is.",
            code=_saving(59.5, 2050, 2000),
        ),
        Mistake(
            "a cache is taken to help with a single token, too",
            "One token out is one step, and nothing has been computed before it. A cache saves "
            "from the second token on.",
            code=_saving(55, 98, 2000),
        ),
        Mistake(
            "the answer's length is squared",
            "The work without a cache grows with the square. The ratio of the two grows with the "
            "length.",
            code=_saving(10_000, 10_000, 1),
        ),
        Mistake(
            "the share is given that a cache still computes",
            "Asked is how many times the work is without one: the other way round.",
            code=_saving(0.018, 0.0102, 1),
        ),
        Mistake(
            "longer prompts are taken to save less",
            "A longer prompt costs both ways once, and without a cache once more in each step.",
            code=_saving(98, 55, 1),
        ),
    ),
    alternatives=(
        Alternative(
            "by the formula",
            code="""
            predicted_saving = {
                (p, n): (n * p + n * (n - 1) / 2) / (p + n - 1)
                for p, n in [(10, 100), (2000, 100), (2000, 1)]
            }
            """,
        ),
        Alternative("in round numbers", code=_saving(55, 100, 1)),
        Alternative("a careful estimate", code=_saving(52, 92.5, 1.0)),
    ),
    why="""
    Without a cache, `n` tokens after a prompt of `p` cost `p + (p + 1) + ...`, `n` terms; with one
    `p + n - 1`. For a long prompt each term is about `p`, so the ratio is nearly the number of
    output tokens. For a short one the terms run up from nearly 0, and half is left of it. And for
    one token it is 1: a cache pays from the second token on, which is why prefill costs the same
    in either world.
    """,
    shown="every answer is taken to begin at length 0",
)

ANSWERS = {
    "kv_bytes_per_token": PER_TOKEN,
    "kv_bytes": BYTES,
    "decode_attention": ATTENTION,
    "generate": GENERATE,
    "predicted_saving": PREDICTION,
}
