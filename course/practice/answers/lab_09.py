"""Lab 09: right answers that are not in the engine, wrong ones, other right ones, and why."""

from __future__ import annotations

from course.engine.block_pool import BlockPool
from course.engine.sliding_window import num_passed_blocks
from course.practice.compare import Parting
from course.practice.exercise import Alternative, Answers, Inputs, Mistake
from course.practice.source import clean

# ---- Answers that exist only for this lab -------------------------------------------------------

predicted_percent = {16: 62.5, 64: 53.1, 128: 51.6}

leaking_steps = [15]


def free_passed(
    pool: BlockPool,
    table: list[int],
    num_computed_tokens: int,
    block_size: int,
    sliding_window: int | None,
) -> None:
    """Give back what the window has passed; called after every step.

    The entries of passed blocks become -1, in the same list: the other entries keep their places.
    Each block is given back once, however often this is called.

    >>> pool = BlockPool(4, order=[2, 0, 1, 3])
    >>> table = pool.allocate(3)
    >>> free_passed(pool, table, 11, block_size=4, sliding_window=8)
    >>> table, pool.num_free
    ([-1, 0, 1], 2)
    """
    num_passed = num_passed_blocks(num_computed_tokens, block_size, sliding_window)
    passed = [block_id for block_id in table[:num_passed] if block_id >= 0]
    table[:num_passed] = [-1] * num_passed
    pool.free(reversed(passed))


# ---- 9.1 ----------------------------------------------------------------------------------------

_SCALE = "scale = rows.abs().amax(dim=-1) / 127"
_DIVISOR = "divisor = torch.where(scale > 0, scale, 1.0)  # a row of zeros stays a row of zeros"
_STORED = "stored = torch.round(rows / divisor.unsqueeze(-1)).clamp_(-127, 127).to(torch.int8)"
_FLOAT = "rows = rows.float()"

QUANTIZE = Answers(
    mistakes=(
        Mistake(
            "one scale is made for the whole tensor",
            "One large number anywhere then makes the steps coarse for every token. Take the "
            "largest number of each row: `amax(dim=-1)`.",
            edit=((_SCALE, "scale = (rows.abs().max() / 127).expand(rows.shape[:-1])"),),
        ),
        Mistake(
            "the largest number is made 128 steps",
            "int8 goes from -128 to 127. 128 steps do not fit on the positive side, so the largest "
            "number is 127 of them on both.",
            edit=((_SCALE, "scale = rows.abs().amax(dim=-1) / 128"),),
        ),
        Mistake(
            "what stands behind the point is cut off",
            "`.to(torch.int8)` drops it: 31.75 becomes 31, and the error is up to a whole step. "
            "Round first, and it is half a step at most.",
            edit=((_STORED, "stored = (rows / divisor.unsqueeze(-1)).to(torch.int8)"),),
        ),
        Mistake(
            "steps are rounded down",
            "`floor` moves every number the same way, up to a whole step. Round to the nearest.",
            edit=(("torch.round(", "torch.floor("),),
        ),
        Mistake(
            "the sign is not put aside before the largest number is looked for",
            "A row's largest number may be negative: -2.0 is more steps than 1.1. Take `abs()` "
            "first.",
            edit=((_SCALE, "scale = rows.amax(dim=-1).clamp(min=1e-6) / 127"),),
        ),
        Mistake(
            "the largest number is looked for with its sign, and what is too large for int8 wraps",
            "A row's largest number may be negative: -2.0 is more steps than 1.1. Take `abs()` "
            "first, and no number is more than 127 steps.",
            edit=(
                (_SCALE, "scale = rows.amax(dim=-1) / 127"),
                (_DIVISOR, "divisor = torch.where(scale == 0, 1.0, scale)"),
                (".clamp_(-127, 127)", ""),
            ),
        ),
        Mistake(
            "a row of zeros is divided by its scale, which is 0",
            "0 / 0 is NaN. Choose what to divide by before you divide.",
            edit=((_DIVISOR, "divisor = scale"),),
        ),
        Mistake(
            "the largest number is returned as the scale",
            "What is read back is `stored * scale`, so the scale is the size of one step: a 127th "
            "of the largest number.",
            edit=(("return stored, scale", "return stored, scale * 127"),),
        ),
        Mistake(
            "the scale is returned upside down, as steps per unit",
            "Stored steps are *multiplied* by the scale when they are read. Return the size of a "
            "step.",
            edit=(
                ("return stored, scale", "return stored, torch.where(scale > 0, 1 / divisor, 0.0)"),
            ),
        ),
        Mistake(
            "the step is fitted to the distance from the smallest to the largest number",
            "That needs a zero point beside the scale. Here 0 stays 0: the scheme is symmetric.",
            edit=((_SCALE, "scale = (rows.amax(dim=-1) - rows.amin(dim=-1)) / 255"),),
        ),
        Mistake(
            "all rows get one scale, and it comes back alone",
            "A large number in one row would make the steps of all rows coarse. `amax(dim=-1)` has "
            "one for each.",
            edit=((_SCALE, "scale = rows.abs().max() / 127"),),
        ),
        Mistake(
            "something small is added to every scale",
            "So nothing is divided by 0, but every scale is a little off, and that of a row of "
            "zeros is not 0. Choose another divisor for those rows alone: `torch.where`.",
            edit=((_SCALE, "scale = rows.abs().amax(dim=-1) / 127 + 1e-8"),),
        ),
        Mistake(
            "the scale comes first and the steps second",
            "The pair is (steps, scales), in this order.",
            edit=(("return stored, scale", "return scale, stored"),),
        ),
        Mistake(
            "the scale keeps an axis of length 1",
            "Without `keepdim` the scales have one number for each row: shape `[...]`.",
            edit=(("return stored, scale", "return stored, scale.unsqueeze(-1)"),),
        ),
        Mistake(
            "it is computed in the type that came in",
            "In fp16 the scale has three good digits, and it is to be fp32. `rows.float()` first.",
            edit=((_FLOAT, "rows = rows.clone()"),),
        ),
        Mistake(
            "the caller's tensor is divided in place",
            "Attention goes on with these rows, unquantised. `/=` and names that end in `_` work "
            "in place; for fp32 rows, `.float()` makes no copy.",
            edit=(
                (
                    _STORED,
                    "rows /= divisor.unsqueeze(-1)\n"
                    "    stored = torch.round(rows).clamp(-127, 127).to(torch.int8)",
                ),
            ),
        ),
        Mistake(
            "the steps are returned as floats",
            "Whole numbers in a float tensor still take its bytes. `.to(torch.int8)`.",
            edit=((".clamp_(-127, 127).to(torch.int8)", ".clamp_(-127, 127)"),),
        ),
    ),
    alternatives=(
        Alternative(
            "multiplied by steps per unit, zeros put right afterwards",
            code="""
            def quantize(rows):
                largest = rows.to(torch.float32).abs().max(dim=-1).values
                per_unit = torch.where(largest == 0, 0.0, 127 / largest.clamp(min=1e-30))
                steps = rows.to(torch.float32) * per_unit[..., None]
                return steps.round().to(torch.int8), largest / 127
            """,
        ),
        Alternative(
            "row by row, in lists",
            code="""
            def quantize(rows):
                stored, scales = [], []
                for row in rows.reshape(-1, rows.shape[-1]).tolist():
                    scale = max(max(row), -min(row)) / 127
                    scales.append(scale)
                    stored.append([round(x / scale) if scale else 0 for x in row])
                made = torch.tensor(stored, dtype=torch.int8).reshape(rows.shape)
                return made, torch.tensor(scales, dtype=torch.float32).reshape(rows.shape[:-1])
            """,
        ),
        Alternative(
            "with NumPy",
            code="""
            import numpy as np


            def quantize(rows):
                x = rows.detach().double().numpy()
                scale = np.abs(x).max(axis=-1) / 127.0
                steps = np.divide(x, scale[..., None], out=np.zeros_like(x),
                                  where=scale[..., None] != 0)
                stored = torch.from_numpy(np.atleast_1d(np.floor(steps + 0.5)).astype(np.int8))
                return stored, torch.from_numpy(np.asarray(scale, dtype=np.float32))
            """,
        ),
        Alternative(
            "NaN replaced before it is stored",
            edit=(
                (_DIVISOR, "divisor = scale"),
                (
                    _STORED,
                    "stored = (rows / divisor.unsqueeze(-1)).nan_to_num().round().to(torch.int8)",
                ),
            ),
        ),
    ),
    why="""
    The scale is the size of one step, chosen so that the row's largest number is exactly 127 steps:
    no number is cut off, and after rounding to the nearest step none is off by more than half of
    one. One scale for each row, so that a large number in one token costs only that token its
    precision.

    A row of zeros has a scale of 0, and 0 / 0 is NaN. What NaN becomes as an int8 is not defined:
    often 0, until it runs on another processor. So the division gets another divisor there.
    """,
    shown="what stands behind the point is cut off",
    equivalent={
        "quantize: divisor = torch.where(scale > 0, scale, 1.0) -> "
        "divisor = torch.where(scale > 0, scale, 2.0)": "0 divided by anything is 0",
        "quantize: stored = torch.round(rows / divisor.unsqueeze(-1)).clamp_(-127, 127)"
        ".to(torch.int8) -> stored = torch.round(rows / divisor.unsqueeze(-1))"
        ".clamp_(-127, 128).to(torch.int8)": "no number is more than 127 steps",
        "quantize: stored = torch.round(rows / divisor.unsqueeze(-1)).clamp_(-127, 127)"
        ".to(torch.int8) -> stored = torch.round(rows / divisor.unsqueeze(-1))"
        ".clamp_(-128, 127).to(torch.int8)": "no number is less than -127 steps",
    },
)

# ---- 9.2 ----------------------------------------------------------------------------------------

_PRODUCT = "return (stored.float() * scale.unsqueeze(-1)).to(dtype)"


def _wrong_scale(inputs: Inputs, parting: Parting) -> str:
    if "stored" not in inputs or len(parting.path) != 2:
        return ""
    row, place = parting.path
    steps = inputs["stored"][row][place]
    return f"{steps} * {inputs['scale'][place]:g} = {parting.got:g}"


DEQUANTIZE = Answers(
    mistakes=(
        Mistake(
            "scales are lined up with the numbers of a row, not with the rows",
            "PyTorch lines axes up from the last. `scale.unsqueeze(-1)` makes the last axis one "
            "place wide, so that each scale stands over its whole row.",
            edit=((_PRODUCT, "return (stored.float() * scale).to(dtype)"),),
            arithmetic=_wrong_scale,
        ),
        Mistake(
            "all rows are multiplied by the first one's scale",
            "Each row was divided by a scale of its own.",
            edit=((_PRODUCT, "return (stored.float() * scale.flatten()[0]).to(dtype)"),),
        ),
        Mistake(
            "steps are divided by the scale",
            "The scale is the size of one step: so many steps are so much *times* it.",
            edit=((_PRODUCT, "return (stored.float() / scale.unsqueeze(-1)).to(dtype)"),),
        ),
        Mistake(
            "the scale is taken for the row's largest number",
            "`quantize` divided by 127 already. The scale is one step.",
            edit=((_PRODUCT, "return (stored.float() / 127 * scale.unsqueeze(-1)).to(dtype)"),),
        ),
        Mistake(
            "the result stays fp32 whatever was asked for",
            "The caller's arithmetic is in `dtype`: convert at the end.",
            edit=((_PRODUCT, "return stored.float() * scale.unsqueeze(-1)"),),
        ),
        Mistake(
            "steps and scales are converted first and multiplied then",
            "fp16 has no numbers between 0 and 6e-8, and few just above: small scales are lost "
            "before they are used. Multiply in fp32, convert the product.",
            edit=((_PRODUCT, "return stored.to(dtype) * scale.to(dtype).unsqueeze(-1)"),),
        ),
        Mistake(
            "the product is squeezed into int8 again",
            "`stored * ...` must become floats before it can hold what is between two steps.",
            edit=(
                (
                    _PRODUCT,
                    "return (stored.float() * scale.unsqueeze(-1)).to(torch.int8).to(dtype)",
                ),
            ),
        ),
        Mistake(
            "the scale is left out",
            "Steps are counted; how large one is says only the scale.",
            edit=((_PRODUCT, "return stored.to(dtype)"),),
        ),
    ),
    alternatives=(
        Alternative(
            "int8 times fp32, which is fp32",
            edit=((_PRODUCT, "return (stored * scale[..., None]).to(dtype)"),),
        ),
        Alternative(
            "row by row",
            code="""
            def dequantize(stored, scale, dtype):
                out = torch.empty(stored.shape, dtype=dtype)
                width = stored.shape[-1]
                rows = zip(out.view(-1, width), stored.reshape(-1, width), scale.flatten())
                for row, steps, size in rows:
                    row[:] = steps.float() * size
                return out
            """,
        ),
        Alternative(
            "as a sum over nothing",
            edit=(
                (
                    _PRODUCT,
                    'x = torch.einsum("...d,...->...d", stored.double(), scale.double())\n'
                    "    return x.to(dtype)",
                ),
            ),
        ),
    ),
    why="""
    `unsqueeze(-1)` is the whole difficulty: without it the scales line up with the last axis, and
    where the numbers of rows and of columns are equal nobody complains. The product is made in
    fp32 and converted once, so nothing is rounded twice and no scale is too small.
    """,
    shown="scales are lined up with the numbers of a row, not with the rows",
)

# ---- 9.3 ----------------------------------------------------------------------------------------

_HEAD = """
class QuantizedPagedKVCache(PagedKVCache):
    def __init__(self, shape, num_blocks, block_size, dtype=torch.float32, device="cpu"):
        super().__init__(shape, num_blocks, block_size, torch.int8, device, write_backend="torch")
        self.dtype = dtype
        self.key_scales = torch.empty(self.keys.shape[:-1], dtype=torch.float32, device=device)
        self.value_scales = torch.empty_like(self.key_scales)
        self._tensors += [self.key_scales, self.value_scales]
"""
_STORE_CODE = """
def _store(self, layer, k, v, slots):
    stored, scale = quantize(k)
    self.keys[layer].view(-1, *k.shape[1:])[slots] = stored
    self.key_scales[layer].view(-1, k.shape[1])[slots] = scale
    stored, scale = quantize(v)
    self.values[layer].view(-1, *v.shape[1:])[slots] = stored
    self.value_scales[layer].view(-1, v.shape[1])[slots] = scale
"""
_GATHER_CODE = """
def gather(self, layer, block_ids, num_tokens):
    slots = self._slots_of(block_ids, num_tokens)
    keys = self.keys[layer].flatten(0, 1)[slots]
    values = self.values[layer].flatten(0, 1)[slots]
    key_scales = self.key_scales[layer].flatten(0, 1)[slots]
    value_scales = self.value_scales[layer].flatten(0, 1)[slots]
    return (dequantize(keys, key_scales, self.dtype),
            dequantize(values, value_scales, self.dtype))
"""


def a_cache(store: str = _STORE_CODE, gather: str = _GATHER_CODE) -> str:
    """A cache as somebody might write it: right but for what is given."""
    from textwrap import indent

    methods = "\n\n".join(clean(method) for method in (store, gather))
    return f"{clean(_HEAD)}\n\n{indent(methods, '    ')}\n"


_KEY_SCALES = "    self.key_scales[layer].view(-1, k.shape[1])[slots] = scale\n"
_VALUE_SCALES = "    self.value_scales[layer].view(-1, v.shape[1])[slots] = scale\n"

CACHE = Answers(
    mistakes=(
        Mistake(
            "the scales are thrown away after they were used",
            "Without them nobody can read the steps. They have slots of their own, in `key_scales` "
            "and `value_scales`.",
            code=a_cache(_STORE_CODE.replace(_KEY_SCALES, "").replace(_VALUE_SCALES, "")),
        ),
        Mistake(
            "only the keys' scales are kept",
            "Values are quantised on their own and have scales of their own.",
            code=a_cache(_STORE_CODE.replace(_VALUE_SCALES, "")),
        ),
        Mistake(
            "values are stored in the keys' steps",
            "The values' largest number is another one. Quantise them by themselves.",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    stored, scale = quantize(k)
                    self.keys[layer].view(-1, *k.shape[1:])[slots] = stored
                    self.key_scales[layer].view(-1, k.shape[1])[slots] = scale
                    stored = (v / scale.unsqueeze(-1)).round().clamp(-127, 127).to(torch.int8)
                    self.values[layer].view(-1, *v.shape[1:])[slots] = stored
                    self.value_scales[layer].view(-1, v.shape[1])[slots] = scale
                """
            ),
        ),
        Mistake(
            "a copy is written to, and not the cache",
            "`flat[slots]` with a list or tensor of slots is a copy. Assign with the index on the "
            "left: `flat[slots] = stored`.",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    for rows, cache, scales in ((k, self.keys, self.key_scales),
                                                (v, self.values, self.value_scales)):
                        stored, scale = quantize(rows)
                        cache[layer].flatten(0, 1)[slots].copy_(stored)
                        scales[layer].flatten(0, 1)[slots].copy_(scale)
                """
            ),
        ),
        Mistake(
            "steps are copied into a copy, and only the scales arrive",
            "`flat[slots]` with a tensor of slots is a copy. Assign with the index on the left: "
            "`flat[slots] = stored`.",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    for rows, cache, scales in ((k, self.keys, self.key_scales),
                                                (v, self.values, self.value_scales)):
                        stored, scale = quantize(rows)
                        cache[layer].flatten(0, 1)[slots].copy_(stored)
                        scales[layer].flatten(0, 1)[slots] = scale
                """
            ),
        ),
        Mistake(
            "values are written where the keys lie",
            "There are four tensors: `keys` and `key_scales`, `values` and `value_scales`.",
            code=a_cache(
                _STORE_CODE.replace("self.values[", "self.keys[").replace(
                    "self.value_scales[", "self.key_scales["
                )
            ),
        ),
        Mistake(
            "every layer is written to the first one's slots",
            "All layers of a token use the same slot number, each in its own layer: "
            "`self.keys[layer]`.",
            code=a_cache(_STORE_CODE.replace("[layer]", "[0]")),
        ),
        Mistake(
            "slots are taken for blocks",
            "A slot counts rows over the whole pool. Flatten blocks and rows to one axis first, or "
            "use `slot // block_size` and `slot % block_size`.",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    for rows, cache, scales in ((k, self.keys, self.key_scales),
                                                (v, self.values, self.value_scales)):
                        stored, scale = quantize(rows)
                        cache[layer][slots % self.num_blocks] = stored.unsqueeze(1)
                        scales[layer][slots % self.num_blocks] = scale.unsqueeze(1)
                """
            ),
        ),
        Mistake(
            "steps are given out as they are stored",
            "Whoever gathers wants keys and values, not steps: multiply by the scales of the same "
            "slots.",
            code=a_cache(
                gather="""
                def gather(self, layer, block_ids, num_tokens):
                    slots = self._slots_of(block_ids, num_tokens)
                    keys = self.keys[layer].flatten(0, 1)[slots]
                    values = self.values[layer].flatten(0, 1)[slots]
                    return keys.to(self.dtype), values.to(self.dtype)
                """
            ),
        ),
        Mistake(
            "keys are read with the values' scales, and values with the keys'",
            "`layer(i)` gives keys, values, key scales, value scales, in that order.",
            code=a_cache(
                gather=_GATHER_CODE.replace(
                    "dequantize(keys, key_scales", "dequantize(keys, value_scales"
                ).replace("dequantize(values, value_scales", "dequantize(values, key_scales")
            ),
        ),
        Mistake(
            "the first slots of the pool are read, whatever the table says",
            "The table names this request's blocks. `_slots_of` gives their slots in order.",
            code=a_cache(gather=_GATHER_CODE.replace("[slots]", "[: len(slots)]")),
        ),
        Mistake(
            "gather always gives fp32",
            "The cache was made for a dtype: `self.dtype`.",
            code=a_cache(gather=_GATHER_CODE.replace("self.dtype", "torch.float32")),
        ),
        Mistake(
            "scales are kept in a dict by slot",
            "`copy_blocks`, swap and attention know only the four tensors. What lies beside them "
            "stays behind when a block moves.",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    self.scale_of = getattr(self, "scale_of", {})
                    for rows, cache, scales in ((k, self.keys, self.key_scales),
                                                (v, self.values, self.value_scales)):
                        stored, scale = quantize(rows)
                        cache[layer].flatten(0, 1)[slots] = stored
                        for slot, one in zip(slots.tolist(), scale):
                            self.scale_of[layer, slot, cache is self.keys] = one
                """,
                """
                def gather(self, layer, block_ids, num_tokens):
                    slots = self._slots_of(block_ids, num_tokens)
                    found = []
                    for cache in (self.keys, self.values):
                        nine = torch.full((self.shape.num_kv_heads,), 9.0)
                        scale = torch.stack([
                            self.scale_of.get((layer, slot, cache is self.keys), nine)
                            for slot in slots.tolist()
                        ])
                        steps = cache[layer].flatten(0, 1)[slots]
                        found.append(dequantize(steps, scale, self.dtype))
                    return tuple(found)
                """,
            ),
        ),
        Mistake(
            "a table that is too short gives what there is",
            "The caller would take too few tokens for all of them. `_slots_of` refuses.",
            code=a_cache(
                gather="""
                def gather(self, layer, block_ids, num_tokens):
                    blocks = list(block_ids)
                    k, v, k_scale, v_scale = (t[blocks].flatten(0, 1)[:num_tokens]
                                              for t in self.layer(layer))
                    return dequantize(k, k_scale, self.dtype), dequantize(v, v_scale, self.dtype)
                """
            ),
        ),
    ),
    alternatives=(
        Alternative("plain indexing, one after another", code=a_cache()),
        Alternative(
            "block and row instead of slot",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    block, row = slots // self.block_size, slots % self.block_size
                    for rows, cache, scales in ((k, self.keys, self.key_scales),
                                                (v, self.values, self.value_scales)):
                        cache[layer, block, row], scales[layer, block, row] = quantize(rows)
                """,
                """
                def gather(self, layer, block_ids, num_tokens):
                    if len(block_ids) * self.block_size < num_tokens:
                        raise ValueError(f"{num_tokens} tokens, {len(block_ids)} blocks")
                    k, v, ks, vs = (t[list(block_ids)].flatten(0, 1)[:num_tokens]
                                    for t in self.layer(layer))
                    return dequantize(k, ks, self.dtype), dequantize(v, vs, self.dtype)
                """,
            ),
        ),
        Alternative(
            "token by token",
            code=a_cache(
                """
                def _store(self, layer, k, v, slots):
                    for number, slot in enumerate(slots.tolist()):
                        block, row = divmod(slot, self.block_size)
                        steps, scale = quantize(k[number])
                        self.keys[layer, block, row] = steps
                        self.key_scales[layer, block, row] = scale
                        steps, scale = quantize(v[number])
                        self.values[layer, block, row] = steps
                        self.value_scales[layer, block, row] = scale
                """,
                """
                def gather(self, layer, block_ids, num_tokens):
                    places = [divmod(s, self.block_size)
                              for s in self._slots_of(block_ids, num_tokens).tolist()]
                    made = []
                    for steps, scales in ((self.keys, self.key_scales),
                                          (self.values, self.value_scales)):
                        made.append(torch.stack([
                            dequantize(steps[layer, b, r], scales[layer, b, r], self.dtype)
                            for b, r in places
                        ]))
                    return made[0], made[1]
                """,
            ),
        ),
    ),
    why="""
    A token now has four things in its slot: steps and scale of its key, steps and scale of its
    value. All four lie in tensors of the same layout, so slot arithmetic, copies of blocks and swap
    work without knowing what they move: they move everything in `_tensors`. Had the scales been
    kept anywhere else, a shared block would lose them at its first copy.
    """,
    shown="only the keys' scales are kept",
    shown_part="_store",
)

# ---- 9.4 ----------------------------------------------------------------------------------------


def _guess(small: float, middle: float, large: float) -> str:
    return f"predicted_percent = {{16: {small}, 64: {middle}, 128: {large}}}\n"


SHARE = Answers(
    mistakes=(
        Mistake(
            "the scales are forgotten",
            "The numbers are half. But every head of every token brings its scale: 4 bytes more.",
            code=_guess(50, 50, 50),
        ),
        Mistake(
            "it is compared with fp32",
            "Asked is against fp16, which has 2 bytes a number. Say what you compare with.",
            code=_guess(31.25, 26.6, 25.8),
        ),
        Mistake(
            "what is saved is given, and not what is left",
            "These are percent of the fp16 cache that int8 *takes*. Take yours from 100.",
            code=_guess(37.5, 46.9, 48.4),
        ),
        Mistake(
            "a scale is taken to be 2 bytes",
            "Scales are fp32 here: 4 bytes. In fp16 a small one would be lost.",
            code=_guess(56.25, 51.6, 50.8),
        ),
        Mistake(
            "a scale is taken to be 1 byte",
            "Scales are fp32 here: 4 bytes for each head of each token.",
            code=_guess(53.1, 50.8, 50.4),
        ),
        Mistake(
            "every number is given a scale",
            "One scale serves all numbers of a head of a token, or nothing would be saved.",
            code=_guess(250, 250, 250),
        ),
        Mistake(
            "shares are given instead of percent",
            "Asked is percent: times 100.",
            code=_guess(0.625, 0.531, 0.516),
        ),
        Mistake(
            "scale and fp16 numbers are divided the wrong way round",
            "How much of fp16 does int8 take? int8 goes over the line, fp16 under it.",
            code=_guess(160, 188.2, 193.9),
        ),
    ),
    alternatives=(
        Alternative(
            "by the formula",
            code="predicted_percent = {d: 100 * (d + 4) / (2 * d) for d in (16, 64, 128)}\n",
        ),
        Alternative("rounded", code=_guess(62.5, 53, 52)),
        Alternative("a careful estimate", code=_guess(62.8, 53.4, 51.3)),
    ),
    why="""
    A head of a token takes `head_dim + 4` bytes, numbers and scale, against `2 * head_dim` in fp16.
    The scale is the same 4 bytes whatever the head's size, so it weighs most where heads are
    small. It can be counted, so the tolerance of half a percent is only for rounding; what int8
    does to the texts cannot be counted, and the lesson measured it.
    """,
    shown="the scales are forgotten",
)

# ---- 9.5 ----------------------------------------------------------------------------------------

_FIRST = "first_visible = max(0, num_computed_tokens - sliding_window + 1)"
_BLOCKS = "return first_visible // block_size"


def _late(inputs: Inputs, parting: Parting) -> str:
    n, w, size = inputs["computed"], inputs["window"], inputs["block_size"]
    return f"({n} - {w}) // {size} = {(n - w) // size}"


PASSED = Answers(
    mistakes=(
        Mistake(
            "the next token is not counted as one of its own window",
            "A window of W is the token itself and the W - 1 before it. So the oldest that it sees "
            "is W - 1 before it.",
            edit=((_FIRST, "first_visible = max(0, num_computed_tokens - sliding_window)"),),
            arithmetic=_late,
        ),
        Mistake(
            "the window is one token too short",
            "The oldest position that is still seen belongs to the window: its block must stay.",
            edit=((_FIRST, "first_visible = max(0, num_computed_tokens - sliding_window + 2)"),),
        ),
        Mistake(
            "a block goes as soon as its first token is out of sight",
            "The others in it are still seen. A block is passed with its last token: round down.",
            edit=((_BLOCKS, "return -(-first_visible // block_size)"),),
        ),
        Mistake(
            "tokens are counted instead of blocks",
            "So many tokens are out of sight. How many whole blocks are that?",
            edit=((_BLOCKS, "return first_visible"),),
        ),
        Mistake(
            "blocks held and blocks of the window are subtracted",
            "A window seldom begins where a block begins. Work in tokens, and turn to blocks last.",
            edit=(
                (
                    _BLOCKS,
                    "blocks = -(-num_computed_tokens // block_size)\n"
                    "    return max(0, blocks - -(-sliding_window // block_size))",
                ),
            ),
        ),
        Mistake(
            "tokens and window are each rounded down to blocks, and subtracted then",
            "Rounded twice it is off by a block now and then, to either side. Find the oldest "
            "position that is seen first, and round once.",
            edit=(
                (
                    _BLOCKS,
                    "window_blocks = sliding_window // block_size\n"
                    "    return max(0, num_computed_tokens // block_size - window_blocks)",
                ),
            ),
        ),
        Mistake(
            "fewer tokens than the window give a negative count",
            "Positions begin at 0: take `max(0, ...)` before you divide.",
            edit=((_FIRST, "first_visible = num_computed_tokens - sliding_window + 1"),),
        ),
        Mistake(
            "without a window all blocks are passed",
            "No window means that every token is seen for ever: nothing is passed.",
            edit=(("        return 0\n", "        return num_computed_tokens // block_size\n"),),
        ),
        Mistake(
            "a missing window is not thought of",
            "`sliding_window` may be None, for most models it is. Ask that first.",
            edit=(("    if sliding_window is None:\n        return 0\n", ""),),
        ),
        Mistake(
            "one block is kept for safety",
            "Nobody will read it. With many requests that is a block each.",
            edit=((_BLOCKS, "return max(0, first_visible // block_size - 1)"),),
        ),
    ),
    alternatives=(
        Alternative(
            "from the last token of each block",
            code="""
            def num_passed_blocks(num_computed_tokens, block_size, sliding_window):
                if sliding_window is None:
                    return 0
                count = 0
                while (count + 1) * block_size - 1 <= num_computed_tokens - sliding_window:
                    count += 1
                return count
            """,
        ),
        Alternative(
            "looking at each position",
            code="""
            def num_passed_blocks(num_computed_tokens, block_size, sliding_window):
                window = sliding_window or num_computed_tokens + 1
                visible = range(num_computed_tokens - window + 1, num_computed_tokens + 1)
                return max(0, visible[0]) // block_size
            """,
        ),
        Alternative(
            "tokens out of sight, in whole blocks",
            code="""
            def num_passed_blocks(num_computed_tokens, block_size, sliding_window):
                if sliding_window is None or num_computed_tokens < sliding_window:
                    return 0
                out_of_sight = num_computed_tokens + 1 - sliding_window
                return (out_of_sight - out_of_sight % block_size) // block_size
            """,
        ),
    ),
    why="""
    Work in positions until the last moment: the next token's is `num_computed_tokens`, the oldest
    one it sees lies W - 1 before it, and everything older is of no use to anybody. A block is
    passed when all of it is older, so whole blocks are counted and the rest is dropped. Late by one
    token wastes a block for a step now and then; early by one frees what the next token reads.
    """,
    shown="the next token is not counted as one of its own window",
    equivalent={
        "num_passed_blocks: first_visible = max(0, num_computed_tokens - sliding_window + 1) -> "
        "first_visible = max(num_computed_tokens - sliding_window + 1, 0)": "max takes any order",
    },
)

# ---- 9.6 ----------------------------------------------------------------------------------------


def _steps(text: str) -> str:
    return f"leaking_steps = {text}\n"


LEAKING = Answers(
    mistakes=(
        Mistake(
            "one token is computed at a time",
            "Then never more than one block is passed in a step, and the newest passed one is the "
            "only one there is.",
            code=_steps("[1] * 15"),
        ),
        Mistake(
            "only as much is computed as fills the window",
            "With 8 tokens all are still seen. The window must move past two blocks in one step.",
            code=_steps("[8]"),
        ),
        Mistake(
            "one token too few is computed",
            "The next token, at position 14, sees position 7, which is in the second block. That "
            "block is not passed yet.",
            code=_steps("[14]"),
        ),
        Mistake(
            "window and two blocks are added up",
            "It does leak. But the next token sees itself: its window of 8 reaches back 7 tokens. "
            "One token fewer will do.",
            code=_steps("[16]"),
        ),
        Mistake(
            "a long prompt is taken, to be safe",
            "It does leak. What is the shortest that does?",
            code=_steps("[32]"),
        ),
        Mistake(
            "the prompt comes in pieces that pass one block each",
            "The leak needs two blocks passed in the same step.",
            code=_steps("[11, 4]"),
        ),
    ),
    alternatives=(
        Alternative("a short piece first", code=_steps("[1, 14]")),
        Alternative("two pieces", code=_steps("[8, 7]")),
        Alternative("three pieces", code=_steps("[4, 6, 5]")),
    ),
    why="""
    The function looks at one entry of the table. Token by token that is the only one that has just
    been passed, so it was right in every test with a short prompt. A prompt that is computed in one
    step moves the window over many blocks at once, and all but the last of them stay owned until
    the request ends. With 15 tokens the oldest position seen is `15 - 8 + 1 = 8`: two blocks of 4.

    Test what runs in pieces with pieces of every size.
    """,
    shown="one token is computed at a time",
)

# ---- 9.7 ----------------------------------------------------------------------------------------

_SIGNATURE = '''
def free_passed(
    pool: BlockPool,
    table: list[int],
    num_computed_tokens: int,
    block_size: int,
    sliding_window: int | None,
) -> None:
    """Give back what the window has passed; called after every step.

    The entries of passed blocks become -1, in the same list: the other entries keep their places.
    Each block is given back once, however often this is called.
    """
    num_passed = num_passed_blocks(num_computed_tokens, block_size, sliding_window)
'''


def _free(body: str) -> str:
    from textwrap import indent

    return clean(_SIGNATURE) + "\n" + indent(clean(body), "    ") + "\n"


MENDED = Answers(
    mistakes=(
        Mistake(
            "only the block that was passed last is looked at",
            "A chunk of a prompt may pass many blocks in one step. Look at all entries up to it.",
            code=_free("""
            if num_passed and table[num_passed - 1] >= 0:
                pool.free([table[num_passed - 1]])
                table[num_passed - 1] = -1
            """),
        ),
        Mistake(
            "passed entries are taken out of the table",
            "Then every later position is looked up in the wrong block. The places stay, as -1.",
            code=_free("""
            passed = table[:num_passed]
            del table[:num_passed]
            pool.free(passed)
            """),
        ),
        Mistake(
            "blocks are given back and still stand in the caller's table",
            "They are given back again in the next step, when others may own them. Change the "
            "entries, `table[:n] = ...`: `table = ...` only names another list.",
            code=_free("""
            pool.free(table[:num_passed])
            """),
        ),
        Mistake(
            "what was given back before is given back again",
            "-1 is no block. Leave out the entries that are -1 already.",
            code=_free("""
            pool.free(table[:num_passed])
            table[:num_passed] = [-1] * num_passed
            """),
        ),
        Mistake(
            "entries are crossed out and the blocks are not given back",
            "Now nobody knows their ids, and the pool shrinks. Collect them first, then cross out.",
            code=_free("""
            table[:num_passed] = [-1] * num_passed
            """),
        ),
        Mistake(
            "entries are crossed out before their ids are collected",
            "The ids are gone by then, and nothing is freed. First collect, then cross out.",
            code=_free("""
            for place in range(num_passed):
                table[place] = -1
                if table[place] >= 0:
                    pool.free([table[place]])
            return num_passed
            """),
        ),
        Mistake(
            "block 0 is taken for none",
            "0 is a block like the others; only -1 means none. Ask `>= 0`.",
            code=_free("""
            passed = [block_id for block_id in table[:num_passed] if block_id > 0]
            table[:num_passed] = [-1] * num_passed
            pool.free(passed)
            """),
        ),
        Mistake(
            "the search stops at the first entry that is -1",
            "From the front, those of earlier steps come first, and the newly passed ones behind "
            "them. Skip them, or walk from `num_passed` backwards.",
            code=_free("""
            for place in range(num_passed):
                if table[place] < 0:
                    break
                pool.free([table[place]])
                table[place] = -1
            """),
        ),
        Mistake(
            "a shared block is freed for its other owner too",
            "Free it once: the pool counts one owner less, and the other goes on reading.",
            code=_free("""
            for place in range(num_passed):
                block_id = table[place]
                if block_id >= 0:
                    pool.free([block_id] * pool.ref_count(block_id))
                    table[place] = -1
            """),
        ),
    ),
    alternatives=(
        Alternative(
            "one by one from the front",
            code=_free("""
            for place in range(num_passed):
                if table[place] >= 0:
                    pool.free([table[place]])
                    table[place] = -1
            """),
        ),
        Alternative(
            "backwards, until one that is gone already",
            code=_free("""
            place = num_passed - 1
            while place >= 0 and table[place] != -1:
                pool.free([table[place]])
                table[place] = -1
                place -= 1
            """),
        ),
        Alternative(
            "from the number that is gone already",
            code=_free("""
            gone = table.count(-1)
            if num_passed > gone:
                pool.free(table[gone:num_passed])
                table[gone:num_passed] = [-1] * (num_passed - gone)
            """),
        ),
    ),
    why="""
    All entries up to `num_passed`, less those that are -1 already: that is right for one token, for
    a whole prompt, and when nothing was passed at all. The entries stay, because a position's place
    in the table is `position // block_size` and must not move. And the list is changed in place:
    the manager, the runner and the next step all hold the same one.
    """,
    shown="passed entries are taken out of the table",
)

ANSWERS = {
    "quantize": QUANTIZE,
    "dequantize": DEQUANTIZE,
    "QuantizedPagedKVCache": CACHE,
    "predicted_percent": SHARE,
    "num_passed_blocks": PASSED,
    "leaking_steps": LEAKING,
    "free_passed": MENDED,
}
