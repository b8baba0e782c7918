"""CSV that a spreadsheet shows and does not run, and text without what disturbs its line."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence

STARTS = "=+-@"
# Overrides of the reading direction: they reorder what stands after them. Marks inside of names
# that are written from right to left are not among them.
OVERRIDES = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])


def printable(text: object) -> str:
    """Text on one line: no control characters, no lone surrogates, no direction overrides."""
    words = str(text).translate(OVERRIDES).encode("utf-8", "replace").decode()
    words = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in words)
    return " ".join(words.split())


def is_formula(text: object) -> bool:
    """Whether a spreadsheet may take a cell for a formula: =, +, -, @ in whatever disguise."""
    words = str(text)
    if words[:1] in ("\t", "\r", "\n"):
        return True
    bare = unicodedata.normalize("NFKC", words).lstrip(" \t\r\n\v\f'\"\u200b\u200e\u200f\ufeff")
    return bare[:1] in tuple(STARTS) and bare[:1] != ""


def harmless(value: object) -> object:
    """A cell that is shown as it is. Numbers stay numbers; a formula becomes text."""
    if isinstance(value, int | float):
        return number(value)
    words = printable(value)
    return f"'{words}" if is_formula(value) or is_formula(words) else words


def number(value: float) -> str:
    """At most two decimals, with a point: what every hand-in system reads. No "-0"."""
    words = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if words in ("-0", "") else words


def text_of(rows: Iterable[Sequence[object]], exact: Sequence[int] = ()) -> str:
    """Rows as CSV (RFC 4180, lines end with CR LF). exact: columns that are known to be safe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for row in rows:
        writer.writerow([v if place in exact else harmless(v) for place, v in enumerate(row)])
    return buffer.getvalue()
