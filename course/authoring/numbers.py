"""Numbers in prose: computed by the notebook or given with their source, never typed.

In a markdown cell ``{{ expression }}`` or ``{{ expression:format }}`` is evaluated after the last
cell, and ``{{= text | source }}`` is a number from elsewhere. The build adds one last code cell
that prints every computed number; its stored output is where the values come from, so a later run
that prints anything else shows that the prose has gone stale.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

PLACE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
CELL_ID = "numbers-again"
TITLE = "## The numbers in this text, computed again"


class NumberError(ValueError):
    """A place in prose that cannot be filled."""


@dataclass(frozen=True)
class Computed:
    """``label`` is what the author wrote: it names the number in the last cell's table."""

    label: str
    expression: str
    format: str


@dataclass(frozen=True)
class Given:
    text: str
    source: str


def parse(text: str) -> list[str | Computed | Given]:
    """Split a markdown cell into plain text and places, in order."""
    parts: list[str | Computed | Given] = []
    source = ""
    for index, piece in enumerate(PLACE.split(text)):
        if index % 2 == 0:
            parts.append(piece)
        elif piece.startswith("="):
            given, _, named = piece[1:].partition("|")
            source = named.strip() or source
            if not given.strip() or not source:
                raise NumberError(f"{{{{{piece}}}}}: write {{{{= number | where it is from }}}}.")
            parts.append(Given(given.strip(), source))
        else:
            parts.append(_computed(piece.strip()))
    return parts


def _computed(label: str) -> Computed:
    tree, expression, form = _parses(label), label, ""
    if tree is None:
        # The last colon that leaves a whole expression on its left starts the format.
        expression, _, form = label.rpartition(":")
        tree = _parses(expression)
    if tree is None:
        raise NumberError(f"{{{{ {label} }}}}: not a Python expression.")
    if not any(isinstance(node, ast.Name) for node in ast.walk(tree)):
        raise NumberError(
            f"{{{{ {label} }}}}: a typed number. Name something a cell computed, "
            f"or write {{{{= {label} | where it is from }}}}."
        )
    return Computed(" ".join(label.split()), expression.strip(), form.strip())


def _parses(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return None


def computed_in(texts: list[str]) -> list[Computed]:
    """Every computed number of these markdown cells, once each, in order."""
    found = [part for text in texts for part in parse(text) if isinstance(part, Computed)]
    return list(dict.fromkeys(found))


def last_cell(numbers: list[Computed]) -> str:
    """The code that prints ``label = value`` for each number."""
    rows = "".join(
        f"    {_quote(n.label)}: format({n.expression}, {_quote(n.format)}),\n" for n in numbers
    )
    return (
        f'numbers = {{\n{rows}}}\nfor name, value in numbers.items():\n    print(name, "=", value)'
    )


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_values(numbers: list[Computed], printed: str) -> dict[str, str]:
    """The values back from what the last cell printed. NumberError when it is not their print."""
    lines = printed.splitlines()
    if len(lines) != len(numbers):
        raise NumberError(f"the last cell printed {len(lines)} lines for {len(numbers)} numbers.")
    values = {}
    for number, line in zip(numbers, lines, strict=True):
        prefix = f"{number.label} = "
        if not line.startswith(prefix) or len(line) == len(prefix):
            raise NumberError(f"the last cell printed {line!r} where {prefix!r} belongs.")
        value = line[len(prefix) :]
        if re.search(r"\d\.\d{5,}", value):
            raise NumberError(
                f"{{{{ {number.label} }}}} gives {value}: add a format, such as :.1f."
            )
        values[number.label] = value
    return values


def render(text: str, values: dict[str, str]) -> tuple[str, list[dict]]:
    """Fill the places. Also returns where each value stands, for the notebook's metadata.

    A mark is ``{"at": offset, "text": inserted}`` and ``"computed": label`` or ``"given": source``.
    Sources that the text does not name itself are added in a line below it.
    """
    out, marks, sources = "", [], []
    for part in parse(text):
        if isinstance(part, str):
            out += part
            continue
        if isinstance(part, Computed):
            if part.label not in values:
                raise NumberError(f"{{{{ {part.label} }}}}: no value stored; build with --execute.")
            marks.append({"at": len(out), "text": values[part.label], "computed": part.label})
        else:
            marks.append({"at": len(out), "text": part.text, "given": part.source})
            sources.append(part.source)
        out += marks[-1]["text"]
    unnamed = [source for source in dict.fromkeys(sources) if source not in out]
    if unnamed:
        out += f"\n\n*Source{'s' if len(unnamed) > 1 else ''}: {'; '.join(unnamed)}.*"
    return out, marks
