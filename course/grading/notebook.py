"""Read whatever was handed in as a notebook. Nothing of it is run, and nothing is believed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

MAX_CELLS = 5_000
MAX_SOURCE = 4 * 2**20  # characters of all cells together
MAX_TRIES = 200  # places where a whole cell of a damaged file may begin


class Unreadable(ValueError):
    """Nothing in it can be graded; says why."""


@dataclass
class Cell:
    """id: its own, else nbgrader's name for it. number: its place, from 1."""

    number: int
    kind: str
    id: str
    text: str
    bare: bool = False  # without any metadata


@dataclass
class Notebook:
    """Cells in order. lab, release: what its metadata say. repairs: what was out of order."""

    cells: list[Cell]
    lab: int | None = None
    release: str = ""
    repairs: list[str] = field(default_factory=list)


def read(data: bytes) -> Notebook:
    """Unreadable: there is no cell to be had."""
    repairs: list[str] = []
    text = _text(data, repairs)
    try:
        told = json.loads(text)
    except RecursionError as error:
        raise Unreadable("it is nested too deep to be a notebook") from error
    except ValueError as error:
        told = {"cells": _salvaged(text)}
        if not told["cells"]:
            raise Unreadable(_why(text, error)) from error
        repairs.append(
            f"the file is damaged ({_why(text, error)}); {len(told['cells'])} cells could be read"
        )
    if type(told) is not dict:
        raise Unreadable("it is JSON, but not a notebook")
    raw = told.get("cells")
    if raw is None and type(told.get("worksheets")) is list:
        sheets = [s for s in told["worksheets"] if type(s) is dict]
        raw = [cell for sheet in sheets for cell in sheet.get("cells") or []]
        repairs.append("it is a notebook of format 3, from before 2015")
    if type(raw) is not list:
        raise Unreadable("it is JSON, but not a notebook: it has no list of cells")
    if len(raw) > MAX_CELLS:
        repairs.append(f"it has {len(raw)} cells; the first {MAX_CELLS} were read")
    cells = [_cell(n, found) for n, found in enumerate(raw[:MAX_CELLS], 1) if type(found) is dict]
    room = MAX_SOURCE
    for cell in cells:
        if len(cell.text) > room:
            repairs.append(f"cell {cell.number} has {len(cell.text)} characters and is not read")
            cell.text = ""
        room -= len(cell.text)
    if len(cells) < min(len(raw), MAX_CELLS):
        repairs.append(f"{min(len(raw), MAX_CELLS) - len(cells)} entries among its cells are none")
    if not cells:
        raise Unreadable("it has no cells")
    book = Notebook(cells, repairs=repairs)
    course = _inside(told, "metadata", "course")
    if type(course.get("lab")) is int:
        book.lab = course["lab"]
    if type(course.get("release")) is str:
        book.release = course["release"][:40]
    if not course and "metadata" not in told:
        repairs.append("the notebook's metadata are missing")
    return book


def _text(data: bytes, repairs: list[str]) -> str:
    for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            repairs.append("its text is encoded as UTF-16, not UTF-8")
            return data.decode(encoding, errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        repairs.append("its text is not UTF-8 throughout")
        return data.decode("utf-8-sig", errors="replace")


def _why(text: str, error: ValueError) -> str:
    start = text.lstrip()[:200]
    if not start:
        return "the file is empty"
    if start.startswith("%PDF"):
        return "it is a PDF"
    if start.lower().startswith(("<!doctype", "<html")):
        return "it is a web page"
    if not start.startswith(("{", "[")):
        return "it is not JSON"
    line = getattr(error, "lineno", None)
    return f"its JSON breaks off or is wrong in line {line}" if line else "its JSON is wrong"


def _salvaged(text: str) -> list[Any]:
    """The cells that are still whole, one by one, of a file that is not."""
    decoder, found = json.JSONDecoder(), []
    starts = re.finditer(r'\{\s*"(?:cell_type|id|attachments|execution_count)"\s*:', text)
    end, failed = 0, 0
    for start in starts:
        if start.start() < end:
            continue
        if failed > MAX_TRIES or len(found) >= MAX_CELLS:
            break
        try:
            cell, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            failed += 1
            continue
        if type(cell) is dict and "source" in cell:
            found.append(cell)
    return found


def _cell(number: int, found: dict) -> Cell:
    source = found.get("source", found.get("input", ""))
    if type(source) is list:
        source = "".join(part for part in source if type(part) is str)
    own = found.get("id")
    name = own if type(own) is str else _inside(found, "metadata", "nbgrader").get("grade_id")
    return Cell(
        number,
        str(found.get("cell_type"))[:20],
        name[:100] if type(name) is str else "",
        source if type(source) is str else "",
        bare=not found.get("metadata"),
    )


def _inside(told: dict, *keys: str) -> dict:
    """A dict in a dict, or an empty one."""
    for key in keys:
        told = told.get(key)  # type: ignore[assignment]
        if type(told) is not dict:
            return {}
    return told
