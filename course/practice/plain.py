"""Values as plain data: what crosses the wall between a learner's code and its checker.

``plain(value)`` gives None, bool, int, float, str, lists and dicts, which any JSON writer takes,
and keeps what a strict comparison must see: a tuple is not a list, an ``np.int64`` is not an int, a
subclass of int that claims to equal everything is not an int either.

Tagged forms, each a dict with one key that starts with "$":

    {"$tuple": [...]}            {"$dict": [[key, value], ...]}   keys that are not plain words
    {"$float": "nan"}            nan, inf, -inf, which JSON has no words for
    {"$array": {"dtype": "float32", "shape": [2, 3], "data": base64}}   NumPy and torch alike
    {"$other": "numpy.int64", "text": "4"}                       anything else, and never equal
"""

from __future__ import annotations

import base64
import math
import sys
from typing import Any

import numpy as np

MAX_DEPTH = 30


def plain(value: Any, depth: int = 0) -> Any:
    """The value as plain data. Looks at exact types only, and calls nothing of the value's own."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if depth > MAX_DEPTH:
        return {"$other": kind.__name__, "text": f"nested more than {MAX_DEPTH} deep"}
    if kind is list:
        return [plain(item, depth + 1) for item in value]
    if kind is tuple:
        return {"$tuple": [plain(item, depth + 1) for item in value]}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: plain(item, depth + 1) for key, item in value.items()}
        return {
            "$dict": [[plain(k, depth + 1), plain(item, depth + 1)] for k, item in value.items()]
        }
    if kind is np.ndarray and value.dtype != object:
        return _array(value, str(value.dtype))
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        return _tensor(value, torch)
    return {"$other": _type_name(kind), "text": _text(value)}


def _tensor(value: Any, torch: Any) -> Any:
    value = value.detach().cpu().contiguous()
    name = str(value.dtype).removeprefix("torch.")
    if value.dtype is torch.bfloat16:  # NumPy has no such type: send the bits
        return _array(value.view(torch.int16).numpy(), name)
    return _array(value.numpy(), name)


def _array(value: np.ndarray, dtype: str) -> dict:
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return {"$array": {"dtype": dtype, "shape": list(value.shape), "data": data}}


def array_of(node: Any) -> tuple[np.ndarray, str] | None:
    """(values, name of the dtype) of a tagged array; None for anything else.

    bfloat16 comes back as float32 values. ValueError: shape and data do not fit together.
    """
    if not (type(node) is dict and node.keys() == {"$array"}):
        return None
    inside = node["$array"]
    name, shape = inside["dtype"], tuple(inside["shape"])
    data = base64.b64decode(inside["data"])
    if name == "bfloat16":
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape), name
    return np.frombuffer(data, np.dtype(name)).reshape(shape), name


def tag(node: Any) -> str:
    """The "$..." key of a tagged form, else an empty string."""
    if type(node) is dict:
        first = next(iter(node), "")
        if first.startswith("$"):
            return first
    return ""


def is_plain(node: Any) -> bool:
    """Nothing in it that no plain form could hold."""
    if tag(node) == "$other":
        return False
    if type(node) is dict:
        return all(is_plain(item) for item in node.values())
    if type(node) is list:
        return all(is_plain(item) for item in node)
    return True


def words(node: Any, limit: int = 64) -> str:
    """The value as a person writes it, cut to ``limit`` characters."""
    text = _words(node)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _words(node: Any) -> str:
    match tag(node):
        case "$tuple":
            inside = [_words(item) for item in node["$tuple"]]
            return f"({inside[0]},)" if len(inside) == 1 else f"({', '.join(inside)})"
        case "$dict":
            return "{" + ", ".join(f"{_words(k)}: {_words(v)}" for k, v in node["$dict"]) + "}"
        case "$float":
            return node["$float"]
        case "$array":
            found = array_of(node)
            assert found is not None
            values, name = found
            shown = f"array of {name}, shape {list(values.shape)}"
            return f"{values.tolist()} ({shown})" if values.size <= 4 else shown
        case "$other":
            return f"{node['text']} ({node['$other']})"
    if type(node) is list:
        return "[" + ", ".join(map(_words, node)) + "]"
    if type(node) is dict:
        return "{" + ", ".join(f"{k!r}: {_words(v)}" for k, v in node.items()) + "}"
    if type(node) is float:
        return repr(node) if len(repr(node)) < 9 else f"{node:.6g}"
    return repr(node)


def literal(node: Any) -> str:
    """The value as Python that stands alone. ValueError: there is none for it."""
    match tag(node):
        case "$tuple":
            inside = [literal(item) for item in node["$tuple"]]
            return f"({', '.join(inside)}{',' * (len(inside) == 1)})"
        case "$dict":
            return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in node["$dict"]) + "}"
        case "$float":
            return f'float("{node["$float"]}")'
        case "$array" | "$other":
            raise ValueError(f"{kind_of(node)} cannot be written down")
    if type(node) is list:
        return "[" + ", ".join(map(literal, node)) + "]"
    if type(node) is dict:
        return "{" + ", ".join(f"{k!r}: {literal(v)}" for k, v in node.items()) + "}"
    return repr(node)


def kind_of(node: Any) -> str:
    """The type of a plain value in a learner's words."""
    match tag(node):
        case "$tuple":
            return "tuple"
        case "$dict":
            return "dict"
        case "$float":
            return "float"
        case "$array":
            return f"array of {node['$array']['dtype']}"
        case "$other":
            return node["$other"]
    return type(node).__name__


def _type_name(kind: type) -> str:
    module = getattr(kind, "__module__", "")
    return kind.__name__ if module in ("builtins", "__main__", "") else f"{module}.{kind.__name__}"


def _text(value: Any) -> str:
    try:
        return str(repr(value))[:200]
    except Exception as error:
        return f"its repr raises {type(error).__name__}"
