"""Find numbers that stand in prose alone.

Allowed without a cell behind them: 0, 1 and 2 without a unit; a number that names something
(lesson 04, Fig. 2, sec. 6.2, Python 3.11, arXiv 2309.06180, A100, int8, 64-bit); a year; minutes;
what lies in the section "Further reading"; and numbers in code spans that a code cell of the same
notebook holds. Everything else is written ``{{ expression }}`` or ``{{= number | source }}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from nbformat import NotebookNode

markdown = MarkdownIt("commonmark").enable("table")

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNIT = (
    r"\s?(?:%|×|x\b|-?fold\b|percent\b|[KMGT]i?B\b|bytes?\b|B\b|[mµun]?s\b|seconds?\b|tokens?/s\b"
    r"|FLOPs?\b|times\b)"
)
NAMES = (  # words after which a number is a name, and lists of such names
    r"\b(?:lessons?|labs?|exercises?|sections?|sec\.|figs?\.|figures?|tables?|chapters?|parts?|"
    r"steps?|equations?|eq\.|pages?|pp?\.|appendix|versions?|python|cuda|pytorch|triton|numpy|"
    rf"arxiv:?|rfc|by)\s+(?:{NUMBER}(?:\s*(?:,|and|or|to|–|-)\s*)?)+"
)
FREE = [
    re.compile(NAMES, re.IGNORECASE),
    re.compile(r"(?<![\d.,])(?:19[5-9]\d|20[0-3]\d)(?![\d.,]*\d)(?!\s?(?:[A-Za-z]*B\b|%|tokens))"),
    re.compile(rf"{NUMBER}\s+minutes?\b"),
    re.compile(r"\b\d+-(?:bit|byte)\b"),
    re.compile(rf"(?<![\w.,])(?<!\w-)[012](?!\w|[.,]\d|{UNIT})"),
    re.compile(r"(?<![\w.])[A-Za-z][\w./+-]*"),  # words, A100 and int8 among them
]
HOW = "{{ name }}, or {{= number | source }}"
PLACE = "\ue000"  # stands for a number that the build set in; no digit, no letter


def bare_numbers(book: NotebookNode) -> Iterator[str]:
    """Every number in an author's prose that nothing vouches for."""
    in_code = numbers_in_code(book)
    reading = False
    for cell in book.cells:
        if cell.cell_type != "markdown" or cell.metadata.get("course", {}).get("generated"):
            continue
        for kind, text in _texts(_without_inserted(cell)):
            if kind == "heading":
                reading = text.strip() == "Further reading"
                # A heading's own number: "2. A second request", "04 Block tables".
                text = re.sub(r"^\d+(\.\d+)*\.?\s", "", text)
            if reading:
                continue
            if kind == "code":
                found = [n for n in _code_numbers(text) if n not in in_code and n not in "012"]
                where = "in code that no cell holds"
            else:
                found, where = _bare(text), "in prose"
            for number in found:
                yield f"cell {cell.id!r}: {number} {where}; write {HOW}"


def _without_inserted(cell: NotebookNode) -> str:
    text = cell.source
    for mark in reversed(cell.metadata.get("course", {}).get("numbers", [])):
        text = text[: mark["at"]] + PLACE + text[mark["at"] + len(mark["text"]) :]
    return text


def _texts(source: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each piece that is read: "heading", "prose" or "code"."""
    previous = ""
    for token in markdown.parse(source):
        if token.type in ("fence", "code_block"):
            yield "code", token.content
        elif token.type == "html_block":
            yield "prose", re.sub(r"<[^>]*>", " ", token.content)
        elif token.type == "inline":
            words = ""
            for child in token.children or []:
                if child.type == "code_inline":
                    yield "code", child.content
                    words += "`"
                elif child.type in ("softbreak", "hardbreak"):
                    words += " "
                elif child.type in ("text", "image"):
                    words += child.content
            if not words.startswith("Source"):
                yield ("heading" if previous == "heading_open" else "prose"), words
        previous = token.type


def _bare(text: str) -> list[str]:
    for allowed in FREE:
        text = allowed.sub(lambda found: " " * len(found[0]), text)
    return re.findall(rf"{NUMBER}(?:{UNIT})?", text)


def _code_numbers(text: str) -> list[str]:
    found = re.findall(r"(?<![\w.])\d[\d_]*(?:\.\d+)?", text)
    return [number.replace("_", "") for number in found]


def numbers_in_code(book: NotebookNode) -> set[str]:
    """Every number that a code cell holds or prints."""
    known: set[str] = set()
    for cell in book.cells:
        if cell.cell_type == "code":
            known.update(_code_numbers(cell.source))
            for output in cell.outputs:
                known.update(_code_numbers(output.get("text", "")))
                known.update(_code_numbers(str(output.get("data", {}).get("text/plain", ""))))
    return known
