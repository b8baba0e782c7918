"""Compare plain data strictly, and say where two values first part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from course.practice.plain import array_of, kind_of, tag, words


@dataclass(frozen=True)
class Tolerance:
    """How far a float may be off: ``atol + rtol * (largest expected magnitude)``.

    The scale is that of the whole array, so that zeros never pass for small values.
    """

    rtol: float
    atol: float = 0.0

    def limit(self, largest: float) -> float:
        return self.atol + self.rtol * largest


@dataclass(frozen=True)
class Parting:
    """The first place where two values part. ``path``: keys and indices from the outside in."""

    path: tuple[str | int, ...]
    expected: Any
    got: Any
    why: str = "value"  # or "type", "length", "keys", "shape", "dtype", "not finite"
    error: float | None = None
    limit: float | None = None

    def words(self, unit: str = "") -> str:
        """What was expected and what came, in one line."""
        match self.why:
            case "type":
                return f"expected {_typed(self.expected)}   got {_typed(self.got)}"
            case "length":
                noun = "entry" if len(self.expected) == 1 else "entries"
                return f"expected {len(self.expected)} {noun}   got {len(self.got)}"
            case "keys":
                return _attempts(self.expected, self.got) or (
                    f"expected the keys {words(list(self.expected))}   got {words(list(self.got))}"
                )
            case "shape" | "dtype":
                return f"expected {self.why} {self.expected}   got {self.got}"
        unit = unit and unit + " "
        line = f"expected {unit}{words(self.expected)}   got {unit}{words(self.got)}"
        if self.limit is not None and self.error is not None:
            line += f"   (off by {self.error:.2g}, allowed {self.limit:.2g})"
        return line


@dataclass
class Comparison:
    """``parting`` is None when the values agree; errors are the largest over all floats."""

    parting: Parting | None = None
    error: float = 0.0
    limit: float = 0.0


def compare(expected: Any, got: Any, tolerance: Tolerance | None = None) -> Comparison:
    """Compare two plain values: type, length, shape, dtype, finiteness, then values."""
    result = Comparison()
    result.parting = _compare(expected, got, tolerance, (), result)
    return result


def _compare(
    expected: Any, got: Any, tolerance: Tolerance | None, path: tuple, result: Comparison
) -> Parting | None:
    if (
        tag(got) == "$other"
        or kind_of(expected).partition(" ")[0] != kind_of(got).partition(" ")[0]
    ):
        return Parting(path, expected, got, "type")
    match tag(expected):
        case "$array":
            return _arrays(expected, got, tolerance, path, result)
        case "$tuple":
            return _lists(expected["$tuple"], got["$tuple"], tolerance, path, result)
        case "$dict":
            return _dicts(_as_dict(expected), _as_dict(got), tolerance, path, result)
        case "$float":
            return None if expected == got else Parting(path, expected, got)
    if type(expected) is list:
        return _lists(expected, got, tolerance, path, result)
    if type(expected) is dict:
        return _dicts(expected, _as_dict(got), tolerance, path, result)
    if type(expected) is float:
        return _floats(expected, got, tolerance, path, result)
    return None if expected == got else Parting(path, expected, got)


def _floats(
    expected: float, got: Any, tolerance: Tolerance | None, path: tuple, result: Comparison
) -> Parting | None:
    if type(got) is not float:
        return Parting(path, expected, got, "not finite")
    limit = tolerance.limit(abs(expected)) if tolerance else 0.0
    error = abs(expected - got)
    _note(result, error, limit)
    if error <= limit:
        return None
    return Parting(path, expected, got, "value", error, limit if tolerance else None)


def _lists(
    expected: list, got: list, tolerance: Tolerance | None, path: tuple, result: Comparison
) -> Parting | None:
    for place, (wanted, came) in enumerate(zip(expected, got, strict=False)):
        if parting := _compare(wanted, came, tolerance, (*path, place), result):
            return parting
    return None if len(expected) == len(got) else Parting(path, expected, got, "length")


def _dicts(
    expected: dict, got: dict, tolerance: Tolerance | None, path: tuple, result: Comparison
) -> Parting | None:
    if expected.keys() != got.keys():
        return Parting(path, expected, got, "keys")
    for key, wanted in expected.items():
        if parting := _compare(wanted, got[key], tolerance, (*path, key), result):
            return parting
    return None


def _as_dict(node: dict) -> dict:
    if tag(node) != "$dict":
        return node
    return {key if type(key) is not dict else words(key): value for key, value in node["$dict"]}


def _arrays(
    expected: dict, got: dict, tolerance: Tolerance | None, path: tuple, result: Comparison
) -> Parting | None:
    wanted, came = array_of(expected), array_of(got)
    assert wanted is not None
    assert came is not None
    (a, a_type), (b, b_type) = wanted, came
    if a.shape != b.shape:
        return Parting(path, list(a.shape), list(b.shape), "shape")
    if a_type != b_type:
        return Parting(path, a_type, b_type, "dtype")
    if a.size == 0:
        return None
    if not np.issubdtype(a.dtype, np.floating):
        wrong = a != b
        if not wrong.any():
            return None
        where = _first(wrong)
        return Parting((*path, *where), a[where].item(), b[where].item())
    unlike = ~np.isfinite(b) & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    unlike |= np.isfinite(b) & ~np.isfinite(a)
    if unlike.any():
        where = _first(unlike)
        return Parting((*path, *where), float(a[where]), float(b[where]), "not finite")
    finite = np.isfinite(a)
    off = np.zeros(a.shape)
    off[finite] = np.abs(a[finite].astype(np.float64) - b[finite].astype(np.float64))
    largest = float(np.abs(a[finite]).max()) if finite.any() else 0.0
    limit = tolerance.limit(largest) if tolerance else 0.0
    _note(result, float(off.max()), limit)
    if off.max() <= limit:
        return None
    where = _first(off > limit)
    shown = limit if tolerance else None
    return Parting(
        (*path, *where), float(a[where]), float(b[where]), "value", float(off[where]), shown
    )


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))


def _note(result: Comparison, error: float, limit: float) -> None:
    """Keep the error that came nearest to its limit, or went furthest past it."""
    if limit and error / limit >= (result.error / result.limit if result.limit else 0.0):
        result.error, result.limit = error, limit


def _attempts(expected: dict, got: dict) -> str:
    """An error where there should be none, or the other way round (guard.attempt)."""
    if expected.keys() == {"raised"} and got.keys() == {"returned"}:
        return f"expected {expected['raised']} to be raised   got {words(got['returned'], 50)}"
    if expected.keys() == {"returned"} and got.keys() == {"raised"}:
        return f"expected {words(expected['returned'], 50)}   got {got['raised']} raised"
    return ""


def _typed(node: Any) -> str:
    """A value after its type: "a list ([1, 2])"."""
    noun = kind_of(node)
    if noun == "NoneType":
        return "None"
    article = "an" if noun[0] in "aeiou" else "a"
    shown = words(node, 40)
    return f"{article} {noun}" if tag(node) == "$array" else f"{article} {noun} ({shown})"
