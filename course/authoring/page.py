"""What every lesson page has without its author writing it: its top, its end, its navigation."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.authoring import glossary, numbers, outputs
from course.authoring.source import Lesson

CONTENTS = "<!-- contents -->"
OBJECTIVES = "**After this lesson you can**"


class Entry(NamedTuple):
    """A lesson as others link to it."""

    stem: str
    title: str
    minutes: int = 0
    summary: str = ""


def assemble(
    lesson: Lesson,
    lessons: dict[int, Entry],
    lab: Path | None,
    terms: Mapping[str, glossary.Term] = MappingProxyType({}),
) -> NotebookNode:
    """The notebook before it is run, prose still with its ``{{ }}`` places.

    ``lessons``: every lesson there is, by number; ``lab``: the source of this one's lab, if any;
    ``terms``: the glossary by form, linked from the first bold use of each.
    """
    cells = [_generated("top", top(lesson, lessons, lab))]
    prose = glossary.link([c.text if c.kind == "markdown" else "" for c in lesson.cells], terms)
    for cell, linked in zip(lesson.cells, prose, strict=True):
        if cell.text.strip() == CONTENTS:
            cells.append(_generated(cell.id, contents(lessons)))
        elif cell.kind == "markdown":
            cells.append(new_markdown_cell(linked, id=cell.id, metadata=_tagged(cell.tags)))
        else:
            hidden = {"jupyter": {"source_hidden": True}} if only_asks(cell.text) else {}
            code = new_code_cell(cell.text, id=cell.id, metadata=_tagged(cell.tags) | hidden)
            cells.append(code)
    again = numbers.computed_in([c.text for c in lesson.cells if c.kind == "markdown"])
    if again:
        cells.append(_generated("numbers-title", numbers.TITLE))
        code = new_code_cell(numbers.last_cell(again), id=numbers.CELL_ID)
        # Collapsed in JupyterLab: it is for checking, not for reading.
        code.metadata = NotebookNode(
            {"course": {"generated": True}, "jupyter": {"source_hidden": True}}
        )
        cells.append(code)
    cells.append(_generated("end", end(lesson, lessons, lab)))
    book = new_notebook(cells=cells)
    book.metadata = NotebookNode(
        {
            "kernelspec": outputs.KERNEL,
            "language_info": outputs.LANGUAGE,
            "course": {
                "source": f"course/lessons/{lesson.path.name}",
                "source_sha256": lesson.digest,
                "minutes": lesson.minutes,
            },
        }
    )
    return book


def only_asks(code: str) -> bool:
    """True for a cell of nothing but questions: collapsed, for its code holds the answers."""
    try:
        body = ast.parse(code).body
    except SyntaxError:  # a magic line
        return False
    calls = [
        node
        for node in body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "check_yourself"
    ]
    others = [node for node in body if node not in calls]
    return bool(calls) and all(isinstance(node, ast.ImportFrom) for node in others)


def top(lesson: Lesson, lessons: dict[int, Entry], lab: Path | None) -> str:
    facts = [f"Lesson {lesson.number:02d}", f"{lesson.minutes} minutes", lesson.needs.rstrip(".")]
    if lesson.after:
        facts.append(f"You need {_and([_link(n, lessons, short=True) for n in lesson.after])}")
    if lab and lesson.builds:
        names = _and([f"`{name}`" for name in lesson.builds])
        facts.append(f"In the [lab](../exercises/{lab.stem}.ipynb) you build {names}")
    goals = "\n".join(f"- {goal}" for goal in lesson.objectives)
    return (
        f"# {lesson.title}\n\n*{'. '.join(facts)}.*\n\n{navigation(lesson, lessons)}\n\n"
        f"{OBJECTIVES}\n\n{goals}"
    )


def navigation(lesson: Lesson, lessons: dict[int, Entry]) -> str:
    steps = [f"**You are here: {lesson.label}**"]
    if lesson.number - 1 in lessons:
        steps.insert(0, f"← {_link(lesson.number - 1, lessons)}")
    if lesson.number + 1 in lessons:
        steps.append(f"{_link(lesson.number + 1, lessons)} →")
    return " · ".join(steps)


def contents(lessons: dict[int, Entry]) -> str:
    """Every lesson after the first, as a table with links."""
    rows = [
        f"| {_link(number, lessons)} | {entry.summary} | {entry.minutes} |"
        for number, entry in sorted(lessons.items())
        if number
    ]
    if not rows:
        return "*This is the only lesson here so far.*"
    return "\n".join(["| lesson | what happens in it | minutes |", "| --- | --- | ---: |", *rows])


def end(lesson: Lesson, lessons: dict[int, Entry], lab: Path | None) -> str:
    rows = []
    if lab:
        rows.append(
            f"**Build it yourself:** [lab {lesson.number:02d}](../exercises/{lab.stem}.ipynb)"
        )
    if lesson.number + 1 in lessons:
        rows.append(f"**Next:** {_link(lesson.number + 1, lessons)}")
    if lesson.number and 0 in lessons:
        rows.append(f"**Back to the start:** {_link(0, lessons)}")
    return "---\n\n" + (" · ".join(rows) if rows else f"End of lesson {lesson.number:02d}.")


def _link(number: int, lessons: dict[int, Entry], short: bool = False) -> str:
    if number not in lessons:
        return f"lesson {number:02d}"
    text = f"lesson {number:02d}" if short else f"{number:02d} {lessons[number].title}"
    return f"[{text}]({lessons[number].stem}.ipynb)"


def _and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _tagged(tags: list[str]) -> dict:
    return {"tags": tags} if tags else {}


def _generated(cell_id: str, text: str) -> NotebookNode:
    return new_markdown_cell(text, id=cell_id, metadata={"course": {"generated": True}})
