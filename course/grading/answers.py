"""Take answers out of a notebook: by cell id, else by marker line, else by the symbol's name.

Every departure from the notebook that was handed out is named.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from course.authoring.blank import stub
from course.grading.notebook import Cell, Notebook
from course.practice import registry
from course.practice.checks import _is_untouched
from course.practice.exercise import Exercise
from course.practice.source import definitions, names_of, setup_imports

BY_ID, BY_MARK, BY_NAME = "cell id", "marker line", "symbol name"
MAX_CELL = 400_000  # characters of a cell that are looked at
MAGIC = re.compile(r"^[ \t]*[%!?].*$", re.MULTILINE)


@dataclass
class Found:
    """What there is of one answer. text: "" when there is none."""

    text: str = ""
    taken: str = ""
    repairs: list[str] = field(default_factory=list)


def lab_of(book: Notebook) -> tuple[int | None, str]:
    """(the lab that a notebook is of, how that is known)."""
    if book.lab in registry.labs():
        return book.lab, "metadata"
    ids: Counter[int] = Counter()
    names: Counter[int] = Counter()
    keys = {e.key: e.lab for e in registry.every()}
    labs_of: dict[str, set[int]] = {}
    for e in registry.every():
        labs_of.setdefault(e.name, set()).add(e.lab)
    for cell in book.cells:
        key = cell.id.rpartition("-")[0]
        if key in keys:
            ids[keys[key]] += 1
        for name in given_by(cell.text):
            for lab in labs_of.get(name, ()):
                names[lab] += 1
    for how, count in (("cell ids", ids), ("names", names)):
        if count:
            return count.most_common(1)[0][0], how
    return None, ""


def extract(book: Notebook, lab: int) -> dict[str, Found]:
    """The answers of a lab, by the exercise's key."""
    return {exercise.key: _one(book, exercise) for exercise in registry.lab(lab)}


def oddities(book: Notebook, lab: int, release: str) -> list[str]:
    """What of the handed-out notebook was changed, besides answers. release: today's."""
    found = list(book.repairs)
    ids = Counter(cell.id for cell in book.cells if cell.id)
    for exercise in registry.lab(lab):
        name = f"{exercise.key}-check"
        checks = [cell for cell in book.cells if cell.id == name]
        call = re.compile(rf"check\(\s*{re.escape(exercise.name)}\b")
        if not checks:
            moved = any(call.search(cell.text) for cell in book.cells if cell.kind == "code")
            found.append(f"the check of {exercise.id} was {'renamed' if moved else 'deleted'}")
        elif any(cell.kind != "code" for cell in checks):
            found.append(f"the check of {exercise.id} is no code cell any more")
        elif not any(call.search(cell.text) for cell in checks):
            found.append(f"the check of {exercise.id} was changed")
    twice = sorted(name for name, count in ids.items() if count > 1)
    if twice:
        found.append(f"cells with the same id: {', '.join(twice[:8])}")
    if book.lab is None:
        found.append("the notebook does not say which lab it is; known by its contents")
    elif book.lab != lab:
        found.append(f"the notebook says that it is lab {book.lab}")
    if not ids:
        found.append("cells have no ids: the metadata are missing")
    elif all(cell.bare for cell in book.cells):
        found.append("cells have no metadata")
    if book.release and release and book.release != release:
        found.append(f"an older or other version of the lab ({book.release}; current: {release})")
    return found


def _one(book: Notebook, exercise: Exercise) -> Found:
    """By id; where that is missing or empty of an answer, by the fallbacks."""
    found = Found()
    wanted = f"{exercise.key}-answer"
    own = [cell for cell in book.cells if cell.id == wanted]
    if len(own) > 1:
        places = ", ".join(str(cell.number) for cell in own)
        found.repairs.append(f"cells {places} all have the id {wanted}; the last answer counts")
    candidates: list[tuple[str, Cell]] = [(BY_ID, cell) for cell in reversed(own)]
    mark = re.compile(
        rf"^[ \t]*#.*(?<![\w.-])({re.escape(exercise.key)}|{re.escape(exercise.id)})(?![\w.-]*\d)",
        re.MULTILINE,
    )
    rest = [c for c in reversed(book.cells) if c.id != wanted and c.kind == "code"]
    candidates += [(BY_MARK, cell) for cell in rest if mark.search(cell.text[:MAX_CELL])]
    candidates += [(BY_NAME, cell) for cell in rest]
    untouched: Found | None = None
    for taken, cell in candidates:
        text, repairs = _definitions(cell, exercise)
        if not text:
            continue
        here = Found(text, taken, [*found.repairs, *repairs])
        if cell.kind != "code":
            here.repairs.append(
                f"cell {cell.number} was changed to {cell.kind}; its text was taken"
            )
        if taken != BY_ID:
            why = "is missing" if not own else "holds no answer"
            here.repairs.append(f"cell {wanted} {why}; taken from cell {cell.number} by {taken}")
        if _is_untouched(exercise, object(), text):
            untouched = untouched or here
            continue
        return here
    if untouched is not None:
        return untouched
    broken = [cell for cell in own if cell.text.strip()]
    if broken:  # it cannot be read as Python: let it fail as what it is
        cell = broken[-1]
        found.text, found.taken = cell.text[:MAX_CELL], BY_ID
        found.repairs.append(
            f"cell {cell.number} cannot be read as Python that gives {exercise.name}"
        )
    elif not own:
        found.repairs.append(f"cell {wanted} is missing, and nothing else gives {exercise.name}")
    return found


def given_by(text: str) -> set[str]:
    """Names that a cell's text gives; none when it cannot be read."""
    tree = _parsed(text[:MAX_CELL])
    return {name for node in tree.body for name in names_of(node)} if tree else set()


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _definitions(cell: Cell, exercise: Exercise) -> tuple[str, list[str]]:
    """What of a cell counts, as in the notebook's check: its definitions, if they give the name."""
    text, repairs = cell.text, []
    if len(text) > MAX_CELL or exercise.name not in text:
        return "", []
    if _parsed(text) is None:
        plainer = MAGIC.sub("", text)
        if _parsed(plainer) is None:
            return "", []
        text = plainer
        repairs.append(f"magic lines of cell {cell.number} were left out")
    try:
        kept = definitions(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", []
    nodes = ast.parse(kept).body
    gives = [n for n in nodes if exercise.name in names_of(n)]
    if not gives or all(isinstance(n, ast.Import | ast.ImportFrom) for n in gives):
        return "", []
    return "\n".join([*setup_imports(exercise, kept), kept]), repairs


@cache
def starts(lab: int) -> dict[str, str]:
    """The answer cells as they were handed out."""
    return {exercise.key: stub(exercise) for exercise in registry.lab(lab)}
