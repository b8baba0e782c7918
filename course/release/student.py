"""A bundle for students: notebooks, environment and the course without what only teachers need.

What is left out: solutions, the graders, the builders, the labs' sources, the tests and, of each
answer in practice/answers, other right answers and the reasons. What cannot be left out, because a
check in a notebook compares with it: the engine (which is the answer to most exercises), right
answers that exist only for a lab, and the wrong ones that a check knows by name. So whoever looks
for an answer finds it. The README of the bundle says so, and docs/teaching.md what follows.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

from course.pins import ROOT
from course.practice import registry
from course.release.tree import Tree, notebooks, package

PARTS = (
    "__init__.py", "__main__.py", "bootstrap.py", "canary.py", "cli.py", "doctor.py",
    "kernel_report.py", "pins.py", "replay.py", "sizing.py",
    "bench", "engine", "memory", "practice", "show", "workload",
    "commands/__init__.py", "commands/doctor.py", "commands/generate.py", "commands/progress.py",
    "commands/replay.py",
)  # fmt: skip
FOR_TEACHERS = ("alternatives", "why", "equivalent", "shown", "shown_part")
EMPTY = {"alternatives": "()", "why": '""', "equivalent": "{}", "shown": '""', "shown_part": '""'}
EXTRAS = 'EXTRAS = "dev,notebooks,test"'

MAKEFILE = """\
PYTHON ?= $(shell command -v python3 || command -v python || echo python3)

.PHONY: lab setup
lab setup:
\t@$(PYTHON) -m course.bootstrap $@ $(ARGS)
"""

README = """\
# Paged attention, from the KV cache to a working engine

{what}

## Start

    make lab

or, where there is no `make`:

    python -m course.bootstrap lab

You need Python 3.11, 3.12 or 3.13, a network for the first run, and about 3 GB of disk (8 GB where
pip brings the CUDA build of PyTorch). It sets everything up in `.venv`, fetches a small language
model (93 MB), tests this machine and opens JupyterLab.

Read a lesson in `notebooks/`, then do its lab in `exercises/`. What you pass is saved in
`my_engine/`. `python -m course progress` shows where you stand.

## Handing in

Save the notebook of the lab and hand in that one file, under its own name. Only the cells that you
write are graded. Checks may be run as often as you like; they give no marks.

## Where the answers are

A check compares your answer with a right one, so right ones are in this bundle, in `course/`.
Reading them first costs you the exercise: the point of it is the half hour in which it does not
work yet. The hints are there for that half hour.

## Updates

A newer bundle is unpacked beside this one. Then, in the new one,

    python -m course.practice.keep exercises OLD/exercises

brings its notebooks to your old folder: those that you worked in stay, and the new ones are put
beside them. Copy your `my_engine/` if you want to go on in the new folder.

Code under the Apache License 2.0 (LICENSE), text and figures under CC BY 4.0 (LICENSE-TEXT).
"""


def bundle(labs: Sequence[int] | None = None, root: Path = ROOT) -> Tree:
    """The bundle's files. ``labs``: only these; all lessons come along. ValueError: no such lab."""
    numbers = list(labs) if labs else list(registry.labs())
    for number in numbers:
        registry.lab(number)
    tree = package(PARTS, root)
    for name in [n for n in tree if re.match(r"course/practice/answers/lab_\d\d\.py$", n)]:
        tree[name] = without_answers(tree[name].decode()).encode()
    del tree["course/practice/survey.py"]  # makes the teacher's page of mistakes
    pins = tree["course/pins.py"].decode()
    if EXTRAS not in pins:
        raise ValueError(f"course/pins.py no longer says {EXTRAS!r}: mend {Path(__file__).name}")
    tree["course/pins.py"] = pins.replace(EXTRAS, 'EXTRAS = "notebooks"').encode()
    exercises = notebooks("exercises", numbers, root)
    tree |= exercises | notebooks("notebooks", root=root)
    glossary = "docs/glossary.md"  # to which lessons lead
    tree[glossary] = (root / glossary).read_bytes()
    for name in exercises:
        solution = name.replace("exercises/", "solutions/")
        tree[solution] = place_holder(name).encode()
    which = ", ".join(f"{number:02d}" for number in numbers)
    every = numbers == list(registry.labs())
    what = "All lessons and all labs." if every else f"All lessons, and lab {which}."
    tree["README.md"] = README.format(what=what).encode()
    tree["Makefile"] = MAKEFILE.encode()
    return tree


def place_holder(exercise: str) -> str:
    """A notebook to stand where a lab's links lead, until the teacher hands the solution out."""
    words = (
        "# Not handed out yet\n\nThe solution of this lab comes from your teacher. "
        f"[Back to the lab](../{exercise})"
    )
    cell = {"cell_type": "markdown", "id": "not-yet", "metadata": {}, "source": words}
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1) + "\n"


def without_answers(text: str) -> str:
    """A module of answers without other right answers, reasons, and whatever only those used.

    Everything else keeps its lines and layout: wrong answers are edits of the text of right ones.
    """
    text = _emptied(text)
    while True:
        shorter = _without_unused(text)
        if shorter == text:
            return text
        text = shorter


def _emptied(text: str) -> str:
    spans = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Answers":
            for keyword in node.keywords:
                if keyword.arg in FOR_TEACHERS:
                    spans.append((keyword.value, EMPTY[keyword.arg]))
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    for node, instead in sorted(spans, key=lambda span: -span[0].lineno):
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        # What stood in brackets leaves an empty pair: a = (()) is a = ().
        data = data[:first] + instead.encode() + data[last:]
    return data.decode()


def _without_unused(text: str) -> str:
    """Without private helpers, and constants in capitals, that nothing names any more."""
    tree = ast.parse(text)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    lines = text.splitlines(keepends=True)
    drop: set[int] = set()
    for node in tree.body:
        name = _helper(node)
        inside = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if name and (name not in used or _only_itself(tree, name, node, inside)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            drop.update(range(first, (node.end_lineno or first) + 1))
    return "".join(line for number, line in enumerate(lines, 1) if number not in drop)


def _helper(node: ast.stmt) -> str:
    """The name of a definition that may go when it is not used; "" for all others."""
    if isinstance(node, ast.FunctionDef):
        return node.name if node.name.startswith("_") else ""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        name = getattr(node.targets[0], "id", "")
        return name if name != "ANSWERS" and (name.startswith("_") or name.isupper()) else ""
    return ""


def _only_itself(tree: ast.Module, name: str, node: ast.stmt, inside: set[str]) -> bool:
    """Whether a helper is named by nothing but itself."""
    if name not in inside:
        return False
    others = [other for other in tree.body if other is not node]
    return not any(
        isinstance(n, ast.Name) and n.id == name for other in others for n in ast.walk(other)
    )
