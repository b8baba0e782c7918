"""Lab 05: right answers that are not in the engine, wrong ones, other right ones, and why.

Kernels that exist only for the lab stand in lab_05_kernels.py: they need Triton, this does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, inf, log

import numpy as np
import torch

from course.practice.compare import Parting
from course.practice.exercise import Alternative, Answers, Inputs, Mistake

# ---- Answers that exist only for this lab -------------------------------------------------------


def online_softmax(
    tiles: Iterable[tuple[np.ndarray, np.ndarray]], width: int
) -> tuple[np.ndarray, float]:
    """The softmax-weighted sum of values that come tile by tile, each tile looked at once.

    A tile is (scores `[n]`, values `[n, width]`). A score of -inf marks a position that is not in
    the context: it weighs nothing, and all of a tile may be such. Gives out `[width]`, the sum of
    values weighted by the softmax over the scores of all tiles, and lse, the natural logarithm of
    the sum of exp(score). With nothing in context: zeros and -inf.

    >>> tiles = [
    ...     (np.array([1.0, 3.0]), np.array([[10.0], [20.0]])),
    ...     (np.array([2.0, 5.0]), np.array([[30.0], [40.0]])),
    ... ]
    >>> out, lse = online_softmax(tiles, width=1)
    >>> round(float(out[0]), 4), round(lse, 4)
    (36.8806, 5.1852)
    """
    running_max, running_sum, weighted_values = -inf, 0.0, np.zeros(width)
    for scores, values in tiles:
        new_max = max(running_max, float(scores.max()))
        if new_max == -inf:
            continue  # nothing in context so far, and -inf - -inf would be NaN
        rescale = exp(running_max - new_max)
        weights = np.exp(scores - new_max)
        running_sum = running_sum * rescale + float(weights.sum())
        weighted_values = weighted_values * rescale + weights @ values
        running_max = new_max
    if running_sum == 0.0:
        return weighted_values, -inf
    return weighted_values / running_sum, running_max + log(running_sum)


def attend_by_group(
    q: torch.Tensor,
    num_kv_heads: int,
    load: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Attention of one sequence's newest token, with each key and value loaded once.

    q `[num_heads, head_dim]`. `load(kv_head)` gives keys and values `[num_tokens, head_dim]` of one
    KV head, and costs memory traffic: call it once for each KV head. The same number of query heads
    shares each KV head, neighbours together: with 6 query heads and 2 KV heads, query heads 0, 1, 2
    ask KV head 0. Scores are `q . key * head_dim ** -0.5`. Gives out, like q.

    Of a single token the weight is 1, so each query head gets the value of its KV head:

    >>> def load(kv_head):
    ...     return torch.ones(1, 2), torch.tensor([[20.0, 21.0]]) + 10 * kv_head
    >>> attend_by_group(torch.ones(6, 2), 2, load)[:, 0].tolist()
    [20.0, 20.0, 20.0, 30.0, 30.0, 30.0]
    """
    group = q.shape[0] // num_kv_heads
    out = torch.empty_like(q)
    for kv_head in range(num_kv_heads):
        keys, values = load(kv_head)
        heads = slice(kv_head * group, (kv_head + 1) * group)
        scores = q[heads] @ keys.T * q.shape[1] ** -0.5
        out[heads] = torch.softmax(scores, dim=-1) @ values
    return out


failing_input = (9, 13)

# ---- 5.1 the cache ------------------------------------------------------------------------------

_ROWS = "rows, slots = checked.rows, checked.slots"
_SELECT = "k, v = k.index_select(0, rows), v.index_select(0, rows)"
_STORE_K = "self.keys[layer].flatten(0, 1).index_copy_(0, slots, k.to(self.dtype))"
_STORE_V = "self.values[layer].flatten(0, 1).index_copy_(0, slots, v.to(self.dtype))"
_SLOTS_OF = "slots = self._slots_of(block_ids, num_tokens)\n"
_VIEWS = "keys, values = self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)"
_SELECTED = "return keys.index_select(0, slots), values.index_select(0, slots)"
_SHAPES = """        expected = (checked.num_tokens, *self.keys.shape[3:])
        for name, tensor in (("k", k), ("v", v)):
            if tuple(tensor.shape) != expected:
"""
_BOTH = '(("k", k), ("v", v))'


def _counted_on(inputs: Inputs, parting: Parting) -> str:
    numbers = [part for part in parting.path if isinstance(part, int)]
    if len(numbers) != 3 or "table" not in inputs:
        return ""
    size, table, token = inputs["block_size"], inputs["table"], numbers[0]
    return (
        f"{table[0]} * {size} + {token} = {table[0] * size + token}. The table says that logical "
        f"block {token // size} is block {table[token // size]}"
    )


CACHE = Answers(
    mistakes=(
        Mistake(
            "-1 is used as an index",
            "In PyTorch that is the last slot of the cache, and it belongs to somebody. A token "
            "with slot -1 must not be stored at all.",
            edit=(
                (_ROWS, "rows, slots = None, torch.as_tensor(slots).long()"),
                (_STORE_K, "self.keys[layer].flatten(0, 1)[slots] = k.to(self.dtype)"),
                (_STORE_V, "self.values[layer].flatten(0, 1)[slots] = v.to(self.dtype)"),
            ),
        ),
        Mistake(
            "the slots of skipped tokens are dropped, and their rows are not",
            "Then the rows of k and v move up, and tokens land in each other's slots. "
            "`checked.rows` says which rows are left.",
            edit=((_SELECT, "k, v = k[: len(rows)], v[: len(rows)]"),),
        ),
        Mistake(
            "rows of skipped tokens are still in k and v",
            "There are more rows than slots then. Where `checked.rows` is not None, take only "
            "those rows.",
            edit=((_SELECT, "pass"),),
        ),
        Mistake(
            "the rows of tokens without a slot are stored as well",
            "`checked.slots` has a slot for each token that is written, and k and v have a row for "
            "every token. Where `checked.rows` is not None, take only those rows of both.",
            edit=(
                (_SELECT, "pass"),
                (_STORE_K, "self.keys[layer].flatten(0, 1)[slots] = k.to(self.dtype)"),
                (_STORE_V, "self.values[layer].flatten(0, 1)[slots] = v.to(self.dtype)"),
            ),
        ),
        Mistake(
            "k and v are compared with each other, and not with the slots",
            "Both may lack the same token, and one token for three slots would be stored in all of "
            "them. `checked.num_tokens` says how many there must be.",
            edit=(("(checked.num_tokens, *self", "(len(k), *self"),),
        ),
        Mistake(
            "every layer is written into the first",
            "`self.keys` has all layers; `self.keys[layer]` is the one that is meant.",
            edit=(
                (_STORE_K, _STORE_K.replace("[layer]", "[0]")),
                (_STORE_V, _STORE_V.replace("[layer]", "[0]")),
            ),
        ),
        Mistake(
            "k is stored in both halves of the cache",
            "Keys go into `self.keys`, values into `self.values`.",
            edit=((_STORE_V, _STORE_V.replace("v.to", "k.to")),),
        ),
        Mistake(
            "only k is compared with what fits",
            "A v that does not fit fails when k is stored already: the cache then holds half a "
            "write. Compare both first.",
            edit=((_BOTH, '(("k", k),)'),),
        ),
        Mistake(
            "only the number of tokens is compared",
            "A tensor can have the right number of rows and the wrong heads. The whole shape is "
            "`[num_tokens, num_kv_heads, head_dim]`.",
            edit=(
                ("tuple(tensor.shape) != expected", "tensor.shape[0] != expected[0]"),
                (_STORE_K, "self.keys[layer].flatten(0, 1)[slots] = k.to(self.dtype)"),
                (_STORE_V, "self.values[layer].flatten(0, 1)[slots] = v.to(self.dtype)"),
            ),
        ),
        Mistake(
            "nothing is compared before the first tensor is stored",
            "PyTorch complains in the end, in words of its own, and half of the work may be done "
            "by then. Look at k and v first, and raise ValueError.",
            edit=((_SHAPES, _SHAPES.replace("!= expected", "== ()")),),
        ),
        Mistake(
            "k and v are stored in the dtype that they come in",
            "A model may compute in another dtype than the cache keeps. Cast to `self.dtype`.",
            edit=(
                (_STORE_K, _STORE_K.replace(".to(self.dtype)", "")),
                (_STORE_V, _STORE_V.replace(".to(self.dtype)", "")),
            ),
        ),
        Mistake(
            "gather counts on from the first block",
            "Ask the table for each block.",
            edit=(
                (
                    _SELECTED,
                    "start = int(block_ids[0]) * self.block_size if num_tokens else 0\n"
                    "        end = start + num_tokens\n"
                    "        return keys[start:end].clone(), values[start:end].clone()",
                ),
            ),
            arithmetic=_counted_on,
        ),
        Mistake(
            "gather takes block ids for slots",
            "Block 7 is slots 28 to 31 when a block has 4. `self._slots_of` gives the slots.",
            edit=(
                (
                    _SLOTS_OF,
                    "slots = torch.as_tensor(block_ids).long()[:num_tokens] % self.num_slots\n",
                ),
            ),
        ),
        Mistake(
            "gather gives whole blocks",
            "The last block is seldom full. Nobody may see past `num_tokens`.",
            edit=(
                (
                    _SLOTS_OF,
                    "whole = blocks_needed(num_tokens, self.block_size) * self.block_size\n"
                    "        slots = self._slots_of(block_ids, whole)\n",
                ),
            ),
        ),
        Mistake(
            "a table whose blocks are neighbours is given back as a slice of the cache",
            "A slice shares its memory with the cache: it changes with the next write, and "
            "whoever changes it changes the cache. The answer is a copy.",
            edit=(
                (
                    _SELECTED,
                    "if num_tokens and bool((slots[1:] - slots[:-1] == 1).all()):\n"
                    "            near = slice(int(slots[0]), int(slots[-1]) + 1)\n"
                    "            return keys[near], values[near]\n"
                    "        " + _SELECTED,
                ),
            ),
        ),
        Mistake(
            "gather gives the keys twice",
            "The second tensor is the values.",
            edit=((_SELECTED, _SELECTED.replace("values.", "keys.")),),
        ),
        Mistake(
            "gather reads the first layer, whichever is asked for",
            "Each layer has keys of its own: `self.keys[layer]`.",
            edit=((_VIEWS, _VIEWS.replace("[layer]", "[0]")),),
        ),
        Mistake(
            "every entry of the table is looked at",
            "Entries past the tokens may be -1 or anything. Only as many as `num_tokens` need "
            "count.",
            edit=(
                (
                    _SLOTS_OF,
                    "for block_id in block_ids:\n"
                    "            self._check_blocks([int(block_id)])\n"
                    "        " + _SLOTS_OF,
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "by block and row",
            edit=(
                (
                    _STORE_K,
                    "block, row = slots // self.block_size, slots % self.block_size\n"
                    "        self.keys[layer, block, row] = k.to(self.dtype)",
                ),
                (_STORE_V, "self.values[layer, block, row] = v.to(self.dtype)"),
                (
                    _SELECTED,
                    "block, row = slots // self.block_size, slots % self.block_size\n"
                    "        return self.keys[layer, block, row], self.values[layer, block, row]",
                ),
            ),
        ),
        Alternative(
            "token by token",
            edit=(
                (
                    _STORE_K,
                    "for token, slot in enumerate(slots.tolist()):\n"
                    "            place = divmod(slot, self.block_size)\n"
                    "            self.keys[(layer, *place)] = k[token]\n"
                    "            self.values[(layer, *place)] = v[token]",
                ),
                (_STORE_V, "return"),
                (
                    _SELECTED,
                    "if not num_tokens:\n"
                    "            return keys[:0].clone(), values[:0].clone()\n"
                    "        found = [(keys[s], values[s]) for s in slots.tolist()]\n"
                    "        k, v = zip(*found)\n"
                    "        return torch.stack(k), torch.stack(v)",
                ),
            ),
        ),
        Alternative(
            "block by block",
            edit=(
                (
                    _SELECTED,
                    "used = blocks_needed(num_tokens, self.block_size)\n"
                    "        ids = [int(b) for b in list(block_ids)[:used]]\n"
                    "        return tuple(\n"
                    "            t[layer, ids].flatten(0, 1)[:num_tokens].clone()\n"
                    "            for t in (self.keys, self.values)\n"
                    "        )",
                ),
            ),
        ),
        Alternative(
            "a mask over the tokens",
            edit=(
                (
                    "        " + _ROWS + "\n        if rows is not None:\n            " + _SELECT,
                    "        slots = checked.slots\n"
                    "        if checked.rows is not None:\n"
                    "            kept = torch.zeros(len(k), dtype=torch.bool)\n"
                    "            kept[checked.rows] = True\n"
                    "            k, v = k[kept], v[kept]",
                ),
            ),
        ),
    ),
    why="""
    Block and row are one number, the slot, because the two dimensions lie next to each other:
    `flatten(0, 1)` costs nothing. After that, writing and reading are one indexing operation each,
    and everything else is about what must *not* happen: no half write, no token in slot -1, no
    look past the tokens.

    `gather` is not what the engine uses to attend. It is how you know that `write` and the tables
    are right before a kernel hides them.
    """,
    shown="-1 is used as an index",
    shown_part="_store",
)

# ---- 5.2 online softmax -------------------------------------------------------------------------

_START = "running_max, running_sum, weighted_values = -inf"
_NEW_MAX = "new_max = max(running_max, float(scores.max()))"
_RESCALE = "rescale = exp(running_max - new_max)"
_SUM = "running_sum = running_sum * rescale + float(weights.sum())"
_ACC = "weighted_values = weighted_values * rescale + weights @ values"
_UPDATE = "        running_max = new_max\n"
_NOTHING = """        if new_max == -inf:
            continue  # nothing in context so far, and -inf - -inf would be NaN
"""
_EMPTY = """    if running_sum == 0.0:
        return weighted_values, -inf
"""
_RESULT = "return weighted_values / running_sum, running_max + log(running_sum)"

ONLINE = Answers(
    mistakes=(
        Mistake(
            "the weighted values are not rescaled",
            "They are relative to the old maximum, and the new tile's to the new one. Like must "
            "be added to like: one factor moves the whole sum.",
            edit=((_ACC, "weighted_values = weighted_values + weights @ values"),),
        ),
        Mistake(
            "the running sum is not rescaled",
            "What the values are divided by is relative to the same maximum as they are. Rescale "
            "both sums.",
            edit=((_SUM, "running_sum = running_sum + float(weights.sum())"),),
        ),
        Mistake(
            "neither sum is rescaled",
            "exp(s - 5) is exp(s - 3) times exp(3 - 5): that factor moves what is there to the new "
            "maximum. Is it missing? Or was the old maximum overwritten before it was taken, so "
            "that it is always exp(0)?",
            edit=(
                (_ACC, "weighted_values = weighted_values + weights @ values"),
                (_SUM, "running_sum = running_sum + float(weights.sum())"),
            ),
        ),
        Mistake(
            "the factor is the wrong way round",
            "A larger maximum makes what came before lighter: the factor is exp(old - new), never "
            "above 1.",
            edit=((_RESCALE, "rescale = exp(min(new_max - running_max, 700.0))"),),
        ),
        Mistake(
            "the factor is exp(new - old), and that of the first tile infinite",
            "A larger maximum makes what came before lighter: exp(old - new), never above 1. "
            "Before the first tile old is -inf, and then it is 0.",
            edit=((_RESCALE, "rescale = exp(new_max - running_max)"),),
        ),
        Mistake(
            "the newest tile's own maximum is taken for that of all so far",
            "Where it is smaller, what came before is multiplied by exp of something large, and "
            "that ends: exp(1000) is not a float. The maximum so far never falls.",
            edit=((_NEW_MAX, "new_max = float(scores.max())"),),
        ),
        Mistake(
            "the maximum so far begins at 0",
            "Scores may all be far below 0, and then exp(score - 0) is 0 for each of them. Before "
            "the first token nothing has been seen: -inf.",
            edit=((_START, _START.replace("= -inf", "= 0.0")),),
        ),
        Mistake(
            "a tile with a position out of context is left out whole",
            "The others of that tile are in context. exp(-inf) is 0 by itself; only a tile in "
            "which all are -inf has nothing to add.",
            edit=(("        if new_max == -inf:\n", "        if (scores == -inf).any():\n"),),
        ),
        Mistake(
            "the logarithm of the sum is to the base 2",
            "The natural one is asked for: `log`.",
            edit=((_RESULT, _RESULT.replace("log(running_sum)", "np.log2(running_sum)")),),
        ),
        Mistake(
            "the sum itself is added to the maximum",
            "exp(maximum) times the sum is the sum under the softmax; of a product the logarithm "
            "is a sum: maximum + log(sum).",
            edit=((_RESULT, _RESULT.replace("log(running_sum)", "running_sum")),),
        ),
        Mistake(
            "the caller's tiles are changed",
            "The values are somebody's cache. `*=` writes into it; make a new array.",
            edit=(
                (
                    _ACC,
                    _ACC.replace(
                        "weights @ values", "(values.__imul__(weights[:, None])).sum(axis=0)"
                    ),
                ),
            ),
        ),
        Mistake(
            "the softmax is taken when all tiles are there",
            "Right, as long as there is room for all of them. A kernel has room for one: look at "
            "it, keep three numbers, let it go.",
            code="""
            def online_softmax(tiles, width):
                tiles = list(tiles)
                if not tiles:
                    return np.zeros(width), -inf
                scores = np.concatenate([tile[0] for tile in tiles])
                values = np.concatenate([tile[1] for tile in tiles])
                largest = float(scores.max())
                if largest == -inf:
                    return np.zeros(width), -inf
                weights = np.exp(scores - largest)
                return weights @ values / weights.sum(), largest + log(weights.sum())
            """,
        ),
        Mistake(
            "the weights are multiplied along the wrong side of the values",
            "`weights * values` lines `[n]` up with the last side of `[n, width]`. Each weight "
            "belongs to a row: `weights @ values`, or `weights[:, None] * values`.",
            edit=(
                (
                    _ACC,
                    "weighted_values = weighted_values * rescale + (weights * values).sum(axis=0)",
                ),
            ),
        ),
        Mistake(
            "the maximum is that of the first tile for ever",
            "It must move with the tiles, or a large score later on overflows. And rescaling asks "
            "for the old one: update it last.",
            edit=(
                (_UPDATE, "        running_max = max(running_max, float(scores.max()))\n"),
                (_NEW_MAX, "new_max = running_max if running_sum else float(scores.max())"),
            ),
        ),
        Mistake(
            "the new maximum is never kept",
            "Then the next tile is rescaled by exp(-inf - ...), which is 0, and everything before "
            "it is forgotten. Keep it at the end of each turn.",
            edit=((_UPDATE, ""),),
        ),
        Mistake(
            "no maximum is subtracted",
            "The answer is the same on paper. exp(1000) is not a float, and exp(-1000) is 0.",
            edit=(
                (_RESCALE, "rescale = 1.0"),
                ("weights = np.exp(scores - new_max)", "weights = np.exp(scores)"),
                (_RESULT, "return weighted_values / running_sum, log(running_sum)"),
                (_UPDATE, ""),
            ),
        ),
        Mistake(
            "each tile gets a softmax of its own, and the tiles are averaged",
            "A tile weighs as much as the sum of its weights, not as much as any other tile.",
            code="""
            def online_softmax(tiles, width):
                outs, sums = [], []
                for scores, values in tiles:
                    if scores.max() == -inf:
                        continue
                    weights = np.exp(scores - scores.max())
                    outs.append(weights @ values / weights.sum())
                    sums.append(scores.max() + log(weights.sum()))
                if not outs:
                    return np.zeros(width), -inf
                largest = max(sums)
                lse = float(largest + log(sum(exp(s - largest) for s in sums)))
                return sum(outs) / len(outs), lse
            """,
        ),
        Mistake(
            "out is divided by the sum after each tile",
            "acc / l is the answer for the tokens so far, good to look at. To go on, keep the sum "
            "undivided, and divide once at the end.",
            edit=(
                (_ACC, _ACC + "\n        weighted_values = weighted_values / running_sum"),
                (_RESULT, "return weighted_values, running_max + log(running_sum)"),
            ),
        ),
        Mistake(
            "out is not divided by the sum of the weights",
            "The weights of a softmax add up to 1. These add up to running_sum.",
            edit=((_RESULT, "return weighted_values, running_max + log(running_sum)"),),
        ),
        Mistake(
            "lse leaves the maximum out",
            "running_sum is relative to it: the sum of exp(score) is running_sum * exp(m). Add m "
            "to the logarithm.",
            edit=((_RESULT, "return weighted_values / running_sum, log(running_sum)"),),
        ),
        Mistake(
            "lse is a logarithm to the base 2",
            "Some kernels count so, since a GPU computes powers of 2. Here, and where results are "
            "merged, it is the natural one.",
            edit=(
                (
                    _RESULT,
                    "return weighted_values / running_sum, (running_max + log(running_sum)) "
                    "/ log(2)",
                ),
            ),
        ),
        Mistake(
            "-inf is subtracted from -inf",
            "That is NaN, and NaN stays. As long as nothing was in context there is nothing to "
            "rescale and nothing to add.",
            edit=(
                (_NOTHING, ""),
                (_RESCALE, "rescale = float(np.exp(running_max - new_max))"),
            ),
        ),
        Mistake(
            "the loop ends at the first tile without a token",
            "Its neighbours may hold some. Go on with the next tile: `continue`, not `break`.",
            edit=(("            continue", "            break"),),
        ),
        Mistake(
            "nothing in context is divided by zero",
            "0 / 0 is NaN. A request without a token gets zeros, and an lse of -inf.",
            edit=(
                (_EMPTY, ""),
                (
                    _RESULT,
                    "return weighted_values / np.float64(running_sum), running_max + float("
                    "np.log(running_sum))",
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "a merge of the tiles' own results",
            code="""
            def online_softmax(tiles, width):
                out, lse = np.zeros(width), -inf
                for scores, values in tiles:
                    top = scores.max()
                    if top == -inf:
                        continue
                    weights = np.exp(scores - top)
                    here, its_lse = weights @ values / weights.sum(), top + np.log(weights.sum())
                    both = np.logaddexp(lse, its_lse)
                    out = out * np.exp(lse - both) + here * np.exp(its_lse - both)
                    lse = both
                return out, float(lse)
            """,
        ),
        Alternative(
            "score by score",
            code="""
            def online_softmax(tiles, width):
                m, l_sum, acc = -inf, 0.0, [0.0] * width
                for scores, values in tiles:
                    for score, value in zip(scores.tolist(), values.tolist(), strict=True):
                        if score == -inf:
                            continue
                        if score > m:
                            factor = exp(m - score)
                            l_sum *= factor
                            acc = [a * factor for a in acc]
                            m = score
                        weight = exp(score - m)
                        l_sum += weight
                        acc = [a + weight * x for a, x in zip(acc, value, strict=True)]
                if l_sum == 0:
                    return np.zeros(width), -inf
                return np.array(acc) / l_sum, m + log(l_sum)
            """,
        ),
        Alternative(
            "with a safe maximum, as the kernels have it",
            edit=(
                (_NOTHING, "        safe_max = 0.0 if new_max == -inf else new_max\n"),
                (_RESCALE, "rescale = exp(running_max - safe_max)"),
                ("np.exp(scores - new_max)", "np.exp(scores - safe_max)"),
            ),
        ),
    ),
    why="""
    Three lines carry it: the new maximum, the factor from the old one to it, the weights relative
    to it. Both sums are moved by the factor before the tile is added, so at every moment
    `weighted_values / running_sum` is the answer for the tokens seen so far. The whole row of
    scores is never there at once, and that is what lets a kernel read the cache block by block.

    -inf has to be looked at before it is subtracted from itself. In the decode kernel every tile
    holds a token; in the prefill kernel, and when results are merged, it may not.
    """,
    shown="the weighted values are not rescaled",
    equivalent={
        f"online_softmax: {_NEW_MAX} -> new_max = max(float(scores.max()), running_max)": (
            "the larger of two is the same in either order"
        ),
    },
)

# ---- 5.3 a group of query heads -----------------------------------------------------------------

_HEADS = "heads = slice(kv_head * group, (kv_head + 1) * group)"
_SCORES = "scores = q[heads] @ keys.T * q.shape[1] ** -0.5"
_WEIGHTED = "out[heads] = torch.softmax(scores, dim=-1) @ values"


def _modulo(inputs: Inputs, parting: Parting) -> str:
    if not parting.path or type(parting.path[0]) is not int:
        return ""
    head, kv_heads, group = parting.path[0], inputs["kv_heads"], inputs["group"]
    return f"{head} % {kv_heads} = {head % kv_heads}, and {head} // {group} = {head // group}"


GROUPS = Answers(
    mistakes=(
        Mistake(
            "a query head finds its KV head by modulo",
            "Neighbours share: divide by the group and round down.",
            edit=((_HEADS, "heads = slice(kv_head, None, num_kv_heads)"),),
            arithmetic=_modulo,
        ),
        Mistake(
            "the heads of a group are taken by steps, and put back side by side",
            "`q[kv_head::num_kv_heads]` takes heads that stand apart. A group is neighbours: "
            "from `kv_head * group` on, `group` of them.",
            code="""
            def attend_by_group(q, num_kv_heads, load):
                outs = []
                for kv_head in range(num_kv_heads):
                    keys, values = load(kv_head)
                    scores = q[kv_head::num_kv_heads] @ keys.T * q.shape[1] ** -0.5
                    outs.append(torch.softmax(scores, dim=-1) @ values)
                return torch.cat(outs)
            """,
        ),
        Mistake(
            "each group begins one query head after the one before",
            "`q[kv_head : kv_head + group]` is right for KV head 0 alone. The next group begins "
            "where this one ends: at `kv_head * group`.",
            code="""
            def attend_by_group(q, num_kv_heads, load):
                group = q.shape[0] // num_kv_heads
                outs = []
                for kv_head in range(num_kv_heads):
                    keys, values = load(kv_head)
                    scores = q[kv_head : kv_head + group] @ keys.T * q.shape[1] ** -0.5
                    outs.append(torch.softmax(scores, dim=-1) @ values)
                return torch.cat(outs)
            """,
        ),
        Mistake(
            "the weights do not add up to 1",
            "exp of the scores is only half of a softmax: divide by their sum over the tokens.",
            edit=(
                (
                    _WEIGHTED,
                    "largest = scores.max(dim=-1, keepdim=True).values\n"
                    "        out[heads] = torch.exp(scores - largest) @ values",
                ),
            ),
        ),
        Mistake(
            "each query head loads its keys for itself",
            "The answer is right, and the traffic is that of as many KV heads as there are query "
            "heads. Load once, and use it for the whole group.",
            code="""
            def attend_by_group(q, num_kv_heads, load):
                group = q.shape[0] // num_kv_heads
                out = torch.empty_like(q)
                for head in range(q.shape[0]):
                    keys, values = load(head // group)
                    scores = q[head] @ keys.T * q.shape[1] ** -0.5
                    out[head] = torch.softmax(scores, dim=-1) @ values
                return out
            """,
        ),
        Mistake(
            "keys and values are loaded separately",
            "One call gives both. Calling twice throws half of each away, and it was read.",
            edit=(
                (
                    "keys, values = load(kv_head)",
                    "keys, values = load(kv_head)[0], load(kv_head)[1]",
                ),
            ),
        ),
        Mistake(
            "the scores are not scaled",
            "With many dimensions q . key grows, and the softmax becomes a maximum. Multiply by "
            "head_dim ** -0.5.",
            edit=((_SCORES, "scores = q[heads] @ keys.T"),),
        ),
        Mistake(
            "the scores are scaled twice",
            "Once by hand, once more as / head_dim: the softmax turns flat. head_dim ** -0.5 is "
            "all.",
            edit=((_SCORES, "scores = q[heads] @ keys.T / q.shape[1]"),),
        ),
        Mistake(
            "the scale comes from the number of heads",
            "`q.shape` is `[num_heads, head_dim]`: the products were summed over the second.",
            edit=((_SCORES, "scores = q[heads] @ keys.T * q.shape[0] ** -0.5"),),
        ),
        Mistake(
            "the softmax runs over the heads",
            "Each head spreads one unit of attention over the tokens: the last dimension of the "
            "scores.",
            edit=((_WEIGHTED, "out[heads] = torch.softmax(scores, dim=0) @ values"),),
        ),
        Mistake(
            "one head of the group answers for all",
            "They share keys and values, not queries: each has scores of its own.",
            edit=((_SCORES, "scores = q[heads][:1] @ keys.T * q.shape[1] ** -0.5"),),
        ),
        Mistake(
            "the queries of a group are averaged",
            "Grouping saves reads. What each head asks stays its own.",
            edit=(
                (_SCORES, "scores = q[heads].mean(0, keepdim=True) @ keys.T * q.shape[1] ** -0.5"),
            ),
        ),
        Mistake(
            "the number of KV heads is taken for the size of a group",
            "The group is the number of query heads divided by that of KV heads.",
            code="""
            def attend_by_group(q, num_kv_heads, load):
                out = torch.zeros_like(q)
                for kv_head in range(num_kv_heads):
                    keys, values = load(kv_head)
                    heads = slice(kv_head * num_kv_heads, (kv_head + 1) * num_kv_heads)
                    scores = q[heads] @ keys.T * q.shape[1] ** -0.5
                    out[heads] = torch.softmax(scores, dim=-1) @ values
                return out
            """,
        ),
        Mistake(
            "exp is taken of scores as they are",
            "A large score is inf, and inf / inf is NaN. Subtract the largest score of each row, "
            "or let torch.softmax do it.",
            edit=(
                (
                    _WEIGHTED,
                    "weights = torch.exp(scores)\n"
                    "        out[heads] = weights / weights.sum(-1, keepdim=True) @ values",
                ),
            ),
        ),
        Mistake(
            "q is scaled in place",
            "q is the caller's, and the next layer's code may look at it again. Make a new tensor.",
            edit=(
                ("    group = ", "    q *= q.shape[1] ** -0.5\n    group = "),
                (_SCORES, "scores = q[heads] @ keys.T"),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "loaded once, then head by head",
            code="""
            def attend_by_group(q, num_kv_heads, load):
                loaded = [load(kv_head) for kv_head in range(num_kv_heads)]
                group, rows = len(q) // num_kv_heads, []
                for head, query in enumerate(q):
                    keys, values = loaded[head // group]
                    weights = torch.softmax(keys @ query / keys.shape[1] ** 0.5, 0)
                    rows.append(weights @ values)
                return torch.stack(rows)
            """,
        ),
        Alternative(
            "all groups in one product",
            code="""
            def attend_by_group(q, num_kv_heads, load):
                keys, values = map(torch.stack, zip(*map(load, range(num_kv_heads))))
                grouped = q.view(num_kv_heads, -1, q.shape[1])
                scores = torch.einsum("hgd,htd->hgt", grouped, keys) / q.shape[1] ** 0.5
                return (scores.softmax(-1) @ values).reshape(q.shape)
            """,
        ),
        Alternative(
            "with PyTorch's attention, last KV head first",
            code="""
            import torch.nn.functional as F


            def attend_by_group(q, num_kv_heads, load):
                parts = []
                for kv_head, queries in reversed(list(enumerate(q.chunk(num_kv_heads)))):
                    keys, values = load(kv_head)
                    parts.append(F.scaled_dot_product_attention(queries, keys, values))
                return torch.cat(parts[::-1])
            """,
        ),
    ),
    why="""
    The outer loop runs over KV heads, because they are what costs. `q[heads] @ keys.T` is a matrix
    product where a lone head had a vector one: the same keys, used `group` times. On a GPU that is
    one program a KV head and one `tl.dot`, and it works for a group of 1, 3 or 5 as for 4.
    """,
    shown="a query head finds its KV head by modulo",
    equivalent={
        f"attend_by_group: {_HEADS} -> {_HEADS.replace('+ 1', '+ 2')}": (
            "heads of the next group are computed too early, and then again, rightly"
        ),
        f"attend_by_group: {_WEIGHTED} -> {_WEIGHTED.replace('-1', '+1')}": (
            "of two dimensions, 1 is the last"
        ),
    },
)

# ---- 5.4 the decode kernel ----------------------------------------------------------------------

_POSITION = "position = tile_start + tl.arange(0, TILE)"
_IN_CONTEXT = "in_context = (position >= first_visible) & (position < end)"
_BLOCK = "block_id = tl.load(table_ptr + position // BLOCK_SIZE, mask=in_context, other=0)"
_OFFSETS = "offsets = block_id.to(tl.int64) * stride_block + row * stride_slot"
_KV_HEAD = "offsets += kv_head * stride_kv_head"
_SCALES = "scale_offsets = (block_id.to(tl.int64) * BLOCK_SIZE + row) * num_kv_heads + kv_head"
_DOT = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale'
_MASK_SCORES = """        scores = tl.where(in_context[None, :], scores, float("-inf"))
"""
_LOAD_K_ROWS = """        k = load_rows(
            key_ptr, key_scale_ptr, offsets, scale_offsets, dim, in_context, HEAD_DIM, q.dtype
        )
"""
_LOAD_V = """        v = load_rows(
            value_ptr, value_scale_ptr, offsets, scale_offsets, dim, in_context, HEAD_DIM, q.dtype
        )
"""
_KERNEL_SUM = "running_sum = running_sum * rescale + tl.sum(weights, axis=1)"
_KERNEL_ACC = "        weighted_values = weighted_values * rescale[:, None]\n"
_ADD_V = 'weighted_values = tl.dot(weights.to(v.dtype), v, weighted_values, input_precision="ieee")'

KERNEL = Answers(
    mistakes=(
        Mistake(
            "the table is not asked",
            "That reads block 0, 1, 2 of the cache, whoever has them. The logical block is a place "
            "in the table; what stands there is the block.",
            edit=((_BLOCK, "block_id = position // BLOCK_SIZE"),),
        ),
        Mistake(
            "the position itself is looked up in the table",
            "The table has one entry a block: divide by BLOCK_SIZE first.",
            edit=((_BLOCK, _BLOCK.replace(" // BLOCK_SIZE", "")),),
        ),
        Mistake(
            "the slot is used where the block belongs",
            "`stride_block` is the step from block to block, `stride_slot` that from row to row. "
            "A slot, block * BLOCK_SIZE + row, goes with the second.",
            edit=(
                (
                    _OFFSETS,
                    "offsets = (block_id.to(tl.int64) * BLOCK_SIZE + row) * stride_block",
                ),
            ),
        ),
        Mistake(
            "every tile reads the positions of the first",
            "`tl.arange` counts from 0 in each turn. Add where the tile begins.",
            edit=((_POSITION, "position = start + tl.arange(0, TILE)"),),
        ),
        Mistake(
            "the newest token is left out",
            "Positions run up to end - 1, and that one is in context: `position < end`.",
            edit=((_IN_CONTEXT, _IN_CONTEXT.replace("< end", "< end - 1")),),
        ),
        Mistake(
            "one position too many is in context",
            "Positions count from 0, so position `end` is the first that is not written yet.",
            edit=((_IN_CONTEXT, _IN_CONTEXT.replace("< end", "<= end")),),
        ),
        Mistake(
            "the mask asks whether the block holds any token",
            "The last block is seldom full: of its rows, only those before `end` were written. "
            "Compare positions, not blocks.",
            edit=(
                (
                    _IN_CONTEXT,
                    "in_context = (position >= first_visible) & (position < tl.cdiv(end, "
                    "BLOCK_SIZE) * BLOCK_SIZE)",
                ),
            ),
        ),
        Mistake(
            "positions before the window are seen",
            "The first tile may begin before `first_visible`: the mask has two ends. Join them "
            "with `&`, in brackets: `and` between two tensors gives only the second.",
            edit=((_IN_CONTEXT, "in_context = position < end"),),
        ),
        Mistake(
            "a masked key votes with a score of 0",
            "`load_rows` gives zeros where it may not read, and exp(0 - m) is a weight. Set these "
            "scores to -inf.",
            edit=((_MASK_SCORES, ""),),
        ),
        Mistake(
            "values are loaded wherever the tile reaches",
            "Their weight is 0, and 0 * NaN is NaN: what was never written may hold it. Mask the "
            "load of v as that of k.",
            edit=(
                (
                    _LOAD_V,
                    "        v = tl.load(value_ptr + offsets[:, None] + dim[None, :], "
                    "mask=(dim < HEAD_DIM)[None, :], other=0.0)\n"
                    "        if value_scale_ptr is not None:\n"
                    "            v = v * tl.load(value_scale_ptr + scale_offsets)[:, None]\n"
                    "        v = v.to(q.dtype)\n",
                ),
            ),
        ),
        Mistake(
            "values are read from where the keys are",
            "The offsets are the same, the pointer is not: `value_ptr`, and `value_scale_ptr`.",
            edit=((_LOAD_V, _LOAD_V.replace("value_", "key_")),),
        ),
        Mistake(
            "every program reads the first KV head",
            "A program belongs to one KV head: add `kv_head * stride_kv_head`.",
            edit=(("        " + _KV_HEAD + "\n", ""),),
        ),
        Mistake(
            "the scores are not scaled",
            "`scale` is an argument of the kernel. Multiply the product by it.",
            edit=((_DOT, _DOT.replace(" * scale", "")),),
        ),
        Mistake(
            "the scores are scaled twice",
            "q was scaled, or the product was, and then the other too. Once is enough.",
            edit=((_DOT, _DOT + " * scale"),),
        ),
        Mistake(
            "the product is rounded to half precision",
            "fp16 ends at 65,504, and a sum of products passes that easily. The result of tl.dot "
            "is fp32: scale it there and leave it so.",
            edit=((_DOT, _DOT.replace(" * scale", ".to(q.dtype) * scale")),),
        ),
        Mistake(
            "the weighted values are not rescaled",
            "They are relative to the maximum of the tiles before. `rescale[:, None]` moves them "
            "to the new one.",
            edit=((_KERNEL_ACC, ""),),
        ),
        Mistake(
            "the running sum is not rescaled",
            "Sum and values must be relative to the same maximum.",
            edit=((_KERNEL_SUM, "running_sum = running_sum + tl.sum(weights, axis=1)"),),
        ),
        Mistake(
            "`rescale` meets the weighted values along the wrong side",
            "It holds a number for each query head, and their rows are heads: `rescale[:, None]` "
            "is a column. Without it the shapes fit by chance, and each element gets the factor of "
            "another head.",
            edit=((_KERNEL_ACC, _KERNEL_ACC.replace("rescale[:, None]", "rescale")),),
        ),
        Mistake(
            "`new_max` meets the scores along the wrong side",
            "It holds a number for each query head, and their rows are heads: `new_max[:, None]` "
            "is a column. Without it the shapes fit by chance.",
            edit=(("tl.exp(scores - new_max[:, None])", "tl.exp(scores - new_max)"),),
        ),
        Mistake(
            "every sequence reads the first one's table",
            "`block_table_ptr` is where all tables begin; `table_ptr` is this sequence's row.",
            edit=((_BLOCK, _BLOCK.replace("table_ptr", "block_table_ptr")),),
        ),
        Mistake(
            "each tile begins one position after the one before",
            "`range` counts by 1 if it is not told otherwise, and most positions come in many "
            "tiles: `range(start, end, TILE)`.",
            edit=(("range(start, end, TILE)", "range(start, end)"),),
        ),
        Mistake(
            "only the last tile counts",
            "What the tiles before came to is kept in `weighted_values`: add to it.",
            edit=(
                (
                    _ADD_V,
                    'weighted_values = tl.dot(weights.to(v.dtype), v, input_precision="ieee")',
                ),
            ),
        ),
        Mistake(
            "the scale of an int8 row is looked up by its slot alone",
            "Each KV head of a slot has a scale of its own: they lie next to each other, "
            "num_kv_heads to a slot. The docstring has the formula.",
            edit=((_SCALES, "scale_offsets = block_id.to(tl.int64) * BLOCK_SIZE + row"),),
        ),
        Mistake(
            "a tile is taken to lie in one block",
            "Only if a tile is no longer than a block. Each position asks the table for itself: "
            "`position // BLOCK_SIZE` is a whole tile of entries.",
            edit=((_BLOCK, "block_id = tl.load(table_ptr + tile_start // BLOCK_SIZE)"),),
        ),
        Mistake(
            "each split walks the whole context",
            "The splits are merged afterwards, and then every token counts several times. This "
            "one's share goes from `start` to `end`.",
            edit=(
                ("range(start, end, TILE)", "range(first_tile * TILE, context_len, TILE)"),
                (_IN_CONTEXT, _IN_CONTEXT.replace("< end", "< context_len")),
            ),
        ),
        Mistake(
            "the mask has no upper end",
            "The last tile reaches past the newest token, into slots that nobody has written: "
            "`position < end`.",
            edit=((_IN_CONTEXT, "in_context = position >= first_visible"),),
        ),
        Mistake(
            "values get the scales of the keys",
            "Both are rows of int8 with scales of their own: `value_scale_ptr`.",
            edit=((_LOAD_V, _LOAD_V.replace("value_scale_ptr", "key_scale_ptr")),),
        ),
        Mistake(
            "the new maximum is never kept",
            "Then the next tile is rescaled by exp(-inf - ...), which is 0, and what came before "
            "it is forgotten. Keep it at the end of each turn.",
            edit=(("        running_max = new_max\n", ""),),
        ),
        Mistake(
            "the row is not multiplied by its stride",
            "From one row of a block to the next it is `stride_slot` elements, since all heads lie "
            "between them.",
            edit=((_OFFSETS, _OFFSETS.replace("row * stride_slot", "row")),),
        ),
        Mistake(
            "weights are powers of 2",
            "`tl.exp2` is quicker on a GPU, and right if the scores were multiplied by log2(e) "
            "first. These are not.",
            edit=(
                ("tl.exp(scores - new_max[:, None])", "tl.exp2(scores - new_max[:, None])"),
                ("tl.exp(running_max - new_max)", "tl.exp2(running_max - new_max)"),
            ),
        ),
        Mistake(
            "the table is looked up for every position of the tile",
            "A row of the table ends where the context does. What lies behind it is not yours, "
            "even if a mask drops it later: mask this load, too.",
            edit=((_BLOCK, _BLOCK.replace(", mask=in_context, other=0", "")),),
        ),
        Mistake(
            "keys are loaded wherever the tile reaches",
            "Their scores are replaced, so the answer is right, and yet slots were read that hold "
            "nothing of this request. `in_context` says which rows to load.",
            edit=((_LOAD_K_ROWS, _LOAD_K_ROWS.replace("in_context", "position >= 0")),),
        ),
        Mistake(
            "the loop is left with break",
            "Python knows break, and so does the interpreter. The compiler does not: a loop's "
            "range says where it ends, and masks do the rest.",
            edit=(
                ("range(start, end, TILE)", "range(start, start + num_tiles * TILE, TILE)"),
                (
                    _POSITION,
                    "if tile_start >= end:\n            break\n        " + _POSITION,
                ),
            ),
        ),
        Mistake(
            "offsets are 32 bits wide",
            "Block times stride passes 2^31 in a cache of a few GiB and comes out negative. Make "
            "the block id int64 before it is multiplied.",
            edit=(
                (_OFFSETS, "offsets = (block_id * stride_block + row * stride_slot).to(tl.int64)"),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "products as sums, without tl.dot",
            edit=(
                (
                    _DOT,
                    "scores = tl.sum(q[:, None, :].to(tl.float32) * k[None, :, :].to(tl.float32), "
                    "axis=2) * scale",
                ),
                (
                    _ADD_V,
                    "weighted_values += tl.sum(weights[:, :, None] * v[None, :, :].to(tl.float32), "
                    "axis=1)",
                ),
            ),
        ),
        Alternative(
            "by slot",
            edit=(
                (
                    _OFFSETS,
                    "slot = block_id.to(tl.int64) * BLOCK_SIZE + row\n"
                    "        offsets = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * "
                    "stride_slot",
                ),
                (_SCALES, "scale_offsets = slot * num_kv_heads + kv_head"),
            ),
        ),
        Alternative(
            "a zero for each weight out of context, q scaled before",
            edit=(
                (
                    _DOT,
                    "scores = tl.dot(q.to(tl.float32) * scale, tl.trans(k.to(tl.float32)), "
                    'input_precision="ieee")',
                ),
                (
                    "weights = tl.exp(scores - new_max[:, None])",
                    "weights = tl.where(in_context[None, :], tl.exp(scores - new_max[:, None]), "
                    "0.0)",
                ),
            ),
        ),
        Alternative(
            "counting tiles",
            edit=(
                (
                    "for tile_start in range(start, end, TILE):",
                    "for tile in range(0, tl.cdiv(tl.maximum(end - start, 0), TILE)):",
                ),
                (_POSITION, "position = start + tile * TILE + tl.arange(0, TILE)"),
            ),
        ),
        Alternative(
            "the old sums scaled by exp of both maxima",
            edit=(
                (
                    "rescale = tl.exp(running_max - new_max)",
                    "change = running_max - new_max\n"
                    "        rescale = tl.where(change == 0.0, 1.0, tl.exp(change))",
                ),
                (_KERNEL_ACC, ""),
                (
                    _ADD_V,
                    "weighted_values = weighted_values * rescale[:, None] + tl.dot("
                    'weights.to(v.dtype), v, input_precision="ieee")',
                ),
            ),
        ),
    ),
    why="""
    It is 4.3 for a tile of positions at once, then 5.2 for a group of query heads at once. The
    tile has two masks, and needs both: masked loads keep out what was never written, masked scores
    keep the zeros, that came instead, from voting.

    `block_id` becomes int64 before it is multiplied, since a cache of a few GiB has offsets past
    2^31. The product is scaled in fp32. And keys and values are loaded once for the whole group:
    `tl.dot` has the group's queries as its rows.
    """,
    shown="the mask asks whether the block holds any token",
    equivalent={
        **{
            f"paged_decode_kernel: {_BLOCK} -> {_BLOCK.replace('other=0', f'other={number}')}": (
                "what a masked position gets for a block is never read: its loads are masked too"
            )
            for number in (1, -1)
        },
        "paged_decode_kernel: new_max = tl.maximum(running_max, tl.max(scores, axis=1)) -> "
        "new_max = tl.maximum(tl.max(scores, axis=1), running_max)": (
            "the larger of two is the same in either order"
        ),
    },
)

# ---- 5.5 merging --------------------------------------------------------------------------------

_LARGER = "larger = torch.maximum(lse_a, lse_b)"
_SAFE = (
    '    larger = torch.where(larger == float("-inf"), 0.0, larger)  # -inf - -inf would be NaN\n'
)
_WEIGHTS = "weight_a, weight_b = torch.exp(lse_a - larger), torch.exp(lse_b - larger)"
_SHARE = "share = (weight / total)[..., None]  # NaN where both are empty"
_ADD = "out += torch.where(weight[..., None] > 0, part.float() * share, 0.0)  # 0 * NaN is NaN"
_PAIRS = "((out_a, weight_a), (out_b, weight_b))"
_MERGED = "return out.to(out_a.dtype), larger + torch.log(total)"
_FLOAT = "lse_a, lse_b = lse_a.float(), lse_b.float()"

MERGE = Answers(
    mistakes=(
        Mistake(
            "the two results are averaged",
            "A part that holds the token which the query looks for weighs more than one that does "
            "not. exp(lse) says how much.",
            code="""
            def merge_attention_states(out_a, lse_a, out_b, lse_b):
                lse_a, lse_b = lse_a.float(), lse_b.float()
                saw_a, saw_b = (lse_a > -1e30)[..., None], (lse_b > -1e30)[..., None]
                a = torch.where(saw_a, out_a.float(), 0.0)
                b = torch.where(saw_b, out_b.float(), 0.0)
                out = (a + b) / (saw_a.float() + saw_b.float()).clamp(min=1)
                return out.to(out_a.dtype), torch.logaddexp(lse_a, lse_b)
            """,
        ),
        Mistake(
            "the lse themselves are the weights",
            "They are logarithms, and may be negative. The sum under a softmax is exp(lse).",
            edit=(
                (_WEIGHTS, "weight_a, weight_b = lse_a, lse_b"),
                (_MERGED, "return out.to(out_a.dtype), torch.logaddexp(lse_a, lse_b)"),
            ),
        ),
        Mistake(
            "lse is taken to the base 2",
            "Here it is a natural logarithm: torch.exp and torch.log, not exp2 and log2.",
            edit=(
                (_WEIGHTS, _WEIGHTS.replace("torch.exp(", "torch.exp2(")),
                (_MERGED, _MERGED.replace("torch.log(", "torch.log2(")),
            ),
        ),
        Mistake(
            "the first lse is subtracted, be it the larger or not",
            "Where the second is larger by 100, exp of the difference is infinite. Of the larger "
            "one no difference is above 0.",
            edit=((_LARGER, "larger = lse_a"),),
        ),
        Mistake(
            "NaN is replaced, and infinity stays",
            "What an empty part holds is anything: infinity times 0 is NaN, too. Ask whether the "
            "part saw a token, not what it holds.",
            edit=(
                (
                    _ADD,
                    "seen = torch.where(part.isnan(), 0.0, part.float())\n        "
                    "out += seen * torch.where(total == 0, 0.0, weight / total)[..., None]",
                ),
            ),
        ),
        Mistake(
            "exp is taken without the larger lse subtracted",
            "exp(200) is inf in fp32, and inf / inf is NaN. Only the difference of the two counts.",
            edit=(
                (_WEIGHTS, "weight_a, weight_b = torch.exp(lse_a), torch.exp(lse_b)"),
                (_MERGED, "return out.to(out_a.dtype), torch.log(total)"),
            ),
        ),
        Mistake(
            "exp is taken of each lse as it is",
            "exp(200) is inf in fp32, exp(-200) is 0, and inf / inf and 0 / 0 are NaN. Only the "
            "difference of the two counts: subtract the larger from both first.",
            code="""
            def merge_attention_states(out_a, lse_a, out_b, lse_b):
                weight_a, weight_b = lse_a.exp(), lse_b.exp()
                total = weight_a + weight_b
                out = (out_a * weight_a[..., None] + out_b * weight_b[..., None]) / total[..., None]
                return out.to(out_a.dtype), total.log()
            """,
        ),
        Mistake(
            "-inf is subtracted from -inf",
            "Where both parts saw nothing the larger lse is -inf too, and the difference is NaN. "
            "Use 0 there.",
            edit=((_SAFE, ""),),
        ),
        Mistake(
            "an empty part is multiplied by zero",
            "Its out may hold NaN, and 0 * NaN is NaN. Choose with torch.where, do not multiply "
            "it away.",
            edit=((_ADD, "out += part.float() * share"),),
        ),
        Mistake(
            "nothing is divided by zero",
            "With two empty parts the weights sum to 0, and 0 / 0 is NaN. Zeros are the answer.",
            edit=((_ADD, "out += torch.where(share != 0, part.float() * share, 0.0)"),),
        ),
        Mistake(
            "the weights are not divided by their sum",
            "The larger part then weighs 1 and the smaller is added on top. Shares add up to 1.",
            edit=((_SHARE, "share = weight[..., None]"),),
        ),
        Mistake(
            "each part gets the other's weight",
            "out_a belongs to lse_a.",
            edit=((_PAIRS, "((out_a, weight_b), (out_b, weight_a))"),),
        ),
        Mistake(
            "the new lse is the larger of the two",
            "Nearly, when one part outweighs the other by far. The sum under both softmaxes is "
            "larger than either.",
            edit=((_MERGED, "return out.to(out_a.dtype), torch.maximum(lse_a, lse_b)"),),
        ),
        Mistake(
            "the new lse is the sum of the two",
            "Sums add, their logarithms do not: 3 and 1 make 4, and log 3 + log 1 is log 3.",
            edit=((_MERGED, "return out.to(out_a.dtype), lse_a + lse_b"),),
        ),
        Mistake(
            "the new lse leaves the larger one out",
            "The weights are relative to it. Add it to the logarithm of their sum.",
            edit=((_MERGED, "return out.to(out_a.dtype), torch.log(total)"),),
        ),
        Mistake(
            "all heads share one pair of weights",
            "lse is one number for each token and head: `weight[..., None]` goes along with the "
            "elements of that head.",
            edit=(
                (
                    _LARGER,
                    _LARGER
                    + "\n    lse_a = lse_a.logsumexp(-1, keepdim=True).expand_as(lse_a)"
                    + "\n    lse_b = lse_b.logsumexp(-1, keepdim=True).expand_as(lse_b)\n    "
                    + _LARGER,
                ),
            ),
        ),
        Mistake(
            "out comes back in fp32",
            "The sum is made in fp32, and the result is cast to what the parts had.",
            edit=((_MERGED, "return out, larger + torch.log(total)"),),
        ),
        Mistake(
            "lse_a is changed in place",
            "It is the caller's. `lse_a.float()` of an fp32 tensor is that same tensor, so make a "
            "new one.",
            edit=(
                (
                    _WEIGHTS,
                    "weight_a, weight_b = lse_a.sub_(larger).exp(), torch.exp(lse_b - larger)",
                ),
            ),
        ),
    ),
    alternatives=(
        Alternative(
            "logaddexp, and what is NaN replaced before it is used",
            code="""
            def merge_attention_states(out_a, lse_a, out_b, lse_b):
                lse = torch.logaddexp(lse_a.float(), lse_b.float())
                out = torch.zeros(out_a.shape)
                for part, its_lse in ((out_a, lse_a), (out_b, lse_b)):
                    share = torch.exp(its_lse - lse.clamp(min=-3e38)).unsqueeze(-1)
                    clean = part.float().masked_fill(its_lse.unsqueeze(-1) == float("-inf"), 0)
                    out = out + clean * share
                return out.to(out_a.dtype), lse
            """,
        ),
        Alternative(
            "a softmax over the two parts",
            code="""
            def merge_attention_states(out_a, lse_a, out_b, lse_b):
                lses = torch.stack([lse_a, lse_b]).float()
                empty = lses == float("-inf")
                shares = torch.softmax(lses, 0).masked_fill(empty, 0)
                outs = torch.stack([out_a, out_b]).float().masked_fill(empty[..., None], 0)
                merged = (outs * shares[..., None]).sum(0)
                return merged.to(out_a.dtype), torch.logsumexp(lses, 0)
            """,
        ),
        Alternative(
            "token by token, head by head",
            code="""
            from math import exp, inf, log


            def merge_attention_states(out_a, lse_a, out_b, lse_b):
                out = torch.zeros_like(out_a)
                lse = torch.full(lse_a.shape, -inf)
                for token in range(lse.shape[0]):
                    for head in range(lse.shape[1]):
                        parts = [
                            (float(its_lse[token, head]), its_out[token, head].float())
                            for its_out, its_lse in ((out_a, lse_a), (out_b, lse_b))
                            if its_lse[token, head] > -inf
                        ]
                        if not parts:
                            continue
                        top = max(x for x, _ in parts)
                        total = sum(exp(x - top) for x, _ in parts)
                        out[token, head] = sum(exp(x - top) / total * o for x, o in parts)
                        lse[token, head] = top + log(total)
                return out, lse
            """,
        ),
    ),
    why="""
    It is the online softmax with parts for tiles: subtract the larger lse, take exp, and the
    weights are sums under the two softmaxes relative to the same number. Their sum divides, its
    logarithm goes on.

    The two lines with `torch.where` are for parts that saw nothing. They are not rare: with
    several splits a short context leaves most of them empty, and such a program may have left
    anything in its out. NaN is not multiplied away.
    """,
    shown="an empty part is multiplied by zero",
    equivalent={
        "merge_attention_states: lse_a, lse_b = (lse_a.float(), lse_b.float()) -> (dropped)": (
            "lse is fp32 by contract; the line is for callers who do not keep to it"
        ),
        "merge_attention_states: larger = torch.maximum(lse_a, lse_b) -> larger = "
        "torch.maximum(lse_b, lse_a)": "the larger of two is the same in either order",
        **{
            "merge_attention_states: larger = torch.where(larger == float('-inf'), 0.0, larger) -> "
            f"larger = torch.where(larger == float('-inf'), {number}, larger)": (
                "any finite number will do: exp(-inf - number) is 0, and log(0) is -inf"
            )
            for number in (1.0, -1.0)
        },
    },
)

# ---- 5.6 ----------------------------------------------------------------------------------------


def _answer(text: str) -> str:
    return f"failing_input = {text}\n"


FAILING = Answers(
    mistakes=(
        Mistake(
            "one of A's own tokens is poisoned",
            "Then NaN is the right answer, and nothing is wrong with the kernel. Poison a slot in "
            "which no token of the context lies.",
            code=_answer("(9, 12)"),
        ),
        Mistake(
            "the position after the last is taken for its slot",
            "Position 9 is row 1 of logical block 2, and that is block 3 of the cache: 3 * 4 + 1.",
            code=_answer("(9, 9)"),
        ),
        Mistake(
            "the context fills its last block",
            "Then every row that is loaded was written. With a token more or less the last block "
            "has a tail.",
            code=_answer("(8, 13)"),
        ),
        Mistake(
            "slots are counted on from A's first block",
            "28 + 9 is 37. But position 9 is row 1 of logical block 2, and the table says where "
            "that is.",
            code=_answer("(9, 37)"),
        ),
        Mistake(
            "the slot after A's last block is poisoned",
            "The kernel reads no block that is not A's. It reads too much of the last one.",
            code=_answer("(9, 16)"),
        ),
        Mistake(
            "slots are counted within the block",
            "They are counted over the whole cache: row 3 of block 3 is slot 3 * 4 + 3.",
            code=_answer("(9, 3)"),
        ),
        Mistake(
            "the order is (slot, context_len)",
            "First how many tokens, then which slot.",
            code=_answer("(13, 9)"),
        ),
        Mistake(
            "an empty context is tried",
            "With no token the loop takes no turn, and nothing is read.",
            code=_answer("(0, 28)"),
        ),
    ),
    alternatives=(
        Alternative("the last row of the last block", code=_answer("(9, 15)")),
        Alternative("a single token", code=_answer("(1, 29)")),
        Alternative("the tail of the second block", code=_answer("[6, 7]")),
        Alternative("one row short of full", code=_answer("(11, 15)")),
    ),
    why="""
    At nine tokens A's last block, number 3, holds one. The kernel loads all four of its rows,
    slots 12 to 15, and three of them were never written. Their scores become -inf and their
    weights 0, which looks like a mask. But `0 * NaN` is NaN, and a sum with NaN in it is NaN.

    In a fresh cache of zeros nothing shows. Real engines have shipped this: it takes memory that
    held something else before.
    """,
    shown="the context fills its last block",
)

# ---- 5.7 ----------------------------------------------------------------------------------------

_LOAD_K = "k = tl.load(key_ptr + offsets, mask=in_context[:, None], other=0.0)"
_LOAD_VALUES = "v = tl.load(value_ptr + offsets, mask=in_context[:, None], other=0.0)"
_PLAIN_K, _PLAIN_V = "k = tl.load(key_ptr + offsets)", "v = tl.load(value_ptr + offsets)"
_IS_IN = "in_context = logical_block * BLOCK_SIZE + row < context_len"
_SCORES_IN = '        scores = tl.where(in_context, scores, float("-inf"))\n'
_BLOCKS = "range(0, tl.cdiv(context_len, BLOCK_SIZE))"
_STORE = "tl.store(out_ptr + dim, weighted_values / divisor)"

MEND = Answers(
    mistakes=(
        Mistake(
            "the values of the last block are loaded whether they were written or not",
            "Their weights are 0, and 0 * NaN is NaN. So it does not help to mask the weights, nor "
            "the keys alone: what is not in context must not come in at all.",
            edit=((_LOAD_K, _PLAIN_K), (_LOAD_VALUES, _PLAIN_V)),
        ),
        Mistake(
            "loads are masked, and the scores no longer",
            "The zero key of a masked row has score 0, and exp(0 - m) is a weight. Both masks are "
            "needed.",
            edit=((_SCORES_IN, ""),),
        ),
        Mistake(
            "the mask lets one row too many in",
            "Positions count from 0: with 9 tokens the last is at position 8.",
            edit=((_IS_IN, _IS_IN.replace("< context_len", "<= context_len")),),
        ),
        Mistake(
            "the mask drops the newest token",
            "With 9 tokens position 8 is in context, and it is the token that asks.",
            edit=((_IS_IN, _IS_IN.replace("< context_len", "< context_len - 1")),),
        ),
        Mistake(
            "the mask lies along the elements, and not along the rows",
            "A tile is `[rows, elements]`, and the mask has an entry for each row: "
            "`in_context[:, None]` is a column. Without it the shapes fit by chance, if at all.",
            edit=(
                (_LOAD_K, _LOAD_K.replace("in_context[:, None]", "in_context[None, :]")),
                (_LOAD_VALUES, _LOAD_VALUES.replace("in_context[:, None]", "in_context[None, :]")),
            ),
        ),
        Mistake(
            "`other` is missing, and what is masked off is anything",
            "Without `other=` nobody says what a masked element is. A compiled kernel leaves "
            "whatever the register held, and 0 * NaN is NaN.",
            edit=((_LOAD_VALUES, _LOAD_VALUES.replace(", other=0.0", "")),),
        ),
        Mistake(
            "the last block is left out when it is not full",
            "Then nothing unwritten is read, and the newest tokens are forgotten.",
            edit=((_BLOCKS, "range(0, context_len // BLOCK_SIZE)"),),
        ),
        Mistake(
            "a block more is walked where the last one is full",
            "Twelve tokens fill three blocks, and the table has no fourth. Round up, as the cell "
            "did: there the fault was not.",
            edit=((_BLOCKS, "range(0, context_len // BLOCK_SIZE + 1)"),),
        ),
        Mistake(
            "NaN in the answer is replaced at the end",
            "By then it has swallowed the values of the real tokens. It must not get into the sum.",
            edit=(
                (_LOAD_K, _PLAIN_K),
                (_LOAD_VALUES, _PLAIN_V),
                (
                    _STORE,
                    "out = weighted_values / divisor\n"
                    "    tl.store(out_ptr + dim, tl.where(out == out, out, 0.0))",
                ),
            ),
        ),
        Mistake(
            "NaN values are replaced, and others that are nobody's stay",
            "Old memory holds anything: infinity times 0 is NaN, too. Ask whether the row is in "
            "context, not what it holds.",
            edit=((_LOAD_VALUES, _PLAIN_V + "\n        v = tl.where(v == v, v, 0.0)"),),
        ),
        Mistake(
            "-inf is added to the scores",
            "NaN plus -inf is NaN, and so is the maximum of the scores. Replace, or do not load.",
            edit=(
                (_LOAD_K, _PLAIN_K),
                (
                    _SCORES_IN,
                    '        scores += tl.where(in_context, 0.0, float("-inf"))\n',
                ),
            ),
        ),
        Mistake(
            "the row alone is compared with the context",
            "`row` counts within a block. The position is logical_block * BLOCK_SIZE + row.",
            edit=((_IS_IN, "in_context = row < context_len"),),
        ),
    ),
    alternatives=(
        Alternative("only values masked", edit=((_LOAD_K, _PLAIN_K),)),
        Alternative(
            "loaded and then replaced",
            edit=(
                (_LOAD_K, _PLAIN_K),
                (_LOAD_VALUES, _PLAIN_V + "\n        v = tl.where(in_context[:, None], v, 0.0)"),
            ),
        ),
        Alternative(
            "the product replaced",
            edit=(
                (_LOAD_VALUES, _PLAIN_V),
                (
                    "tl.sum(weights[:, None] * v, axis=0)",
                    "tl.sum(tl.where(in_context[:, None], weights[:, None] * v, 0.0), axis=0)",
                ),
            ),
        ),
        Alternative(
            "addresses kept inside: the row of the newest token again",
            edit=(
                (
                    "offsets = (block_id * BLOCK_SIZE + row)[:, None] * HEAD_DIM + dim[None, :]",
                    "inside = tl.minimum(row, context_len - 1 - logical_block * BLOCK_SIZE)\n"
                    "        offsets = (block_id * BLOCK_SIZE + inside)[:, None] * HEAD_DIM + "
                    "dim[None, :]",
                ),
                (_LOAD_K, _PLAIN_K),
                (_LOAD_VALUES, _PLAIN_V),
            ),
        ),
    ),
    why="""
    Masking the load is the mend: a row that is not in context comes in as zeros, whatever lies
    there. For keys it made no difference here, since `tl.where` *replaces* their scores. Values are
    *multiplied*, and a product with 0 keeps NaN and infinity.

    Mask both loads anyway. What is not loaded costs no traffic, and the next reader need not think
    about which of the two could do harm.
    """,
    shown="NaN in the answer is replaced at the end",
    equivalent={
        **{
            f"attend_blocks: running_sum = 0.0 -> running_sum = {number}": (
                "the first rescale is exp(-inf) = 0; without a token, 0 / anything is 0"
            )
            for number in (1.0, -1.0)
        },
        "attend_blocks: divisor = tl.where(running_sum == 0.0, 1.0, running_sum) -> "
        "divisor = tl.where(running_sum == 0.0, 2.0, running_sum)": "0 / 2 is 0 as well",
        **{
            f"attend_blocks: {load} -> {load.replace('0.0', number)}": (
                "a masked key's score is replaced, a masked value's weight is 0: any number will do"
            )
            for load in (_LOAD_K, _LOAD_VALUES)
            for number in ("1.0", "-1.0")
        },
        "attend_blocks: new_max = tl.maximum(running_max, tl.max(scores, axis=0)) -> "
        "new_max = tl.maximum(tl.max(scores, axis=0), running_max)": (
            "the larger of two is the same in either order"
        ),
        **{
            f"attend_blocks: {line} -> {line.replace('axis=0', 'axis=-1')}": (
                "of one dimension, 0 is the last"
            )
            for line in (
                "new_max = tl.maximum(running_max, tl.max(scores, axis=0))",
                "running_sum = running_sum * rescale + tl.sum(weights, axis=0)",
            )
        },
    },
)

ANSWERS = {
    "PagedKVCache": CACHE,
    "online_softmax": ONLINE,
    "attend_by_group": GROUPS,
    "paged_decode_kernel": KERNEL,
    "merge_attention_states": MERGE,
    "failing_input": FAILING,
    "attend_blocks": MEND,
}
