"""A class to be graded, made from the notebook of lab 04, for the tests of course/grading."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from course.pins import ROOT
from course.practice import registry
from course.practice.source import reference_text

HANDED_OUT = ROOT / "exercises" / "04_block_tables.ipynb"
LAB = 4
OF = 18


def handed_out() -> dict:
    """The notebook as learners get it."""
    return json.loads(HANDED_OUT.read_text(encoding="utf-8"))


def book(answers: dict[str, str] | None = None) -> dict:
    """It with these answers, by name; the others are untouched."""
    made = copy.deepcopy(handed_out())
    for name, text in (answers or {}).items():
        cell_of(made, name)["source"] = text
    return made


def cell_of(made: dict, name: str, part: str = "answer") -> dict:
    (cell,) = [c for c in made["cells"] if c["id"] == f"04-{name}-{part}"]
    return cell


def right() -> dict[str, str]:
    """All answers of the reference."""
    found = {}
    for exercise in registry.lab(LAB):
        found[exercise.name] = reference_text(exercise)
    return found


def put(folder: Path, path: str, made: dict | bytes | str) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(made) if isinstance(made, dict) else made
    target.write_bytes(data.encode() if isinstance(data, str) else data)
    return target
