"""What a worker may see: a copy of the course without the answer that it is asked for.

Of the course: sizes, workloads, the engine and the memory policies, with the body of the exercise's
reference taken out; of practice only what stands in for an import in a cell. Answers, labs,
lessons, figures, grading and tests are left out, and so are probes, except where they must run on
the worker's side.
"""

from __future__ import annotations

import ast
import compileall
import os
import py_compile
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course.authoring.blank import blank, blank_module
from course.pins import ROOT
from course.practice import registry
from course.practice.exercise import Exercise
from course.practice.source import cut_out, module_text, names_of, prelude

KEPT = ("__init__.py", "pins.py", "sizing.py", "workload", "engine", "memory", "practice")
LEFT_OUT = ("answers", "bank", "__pycache__")
# Exercise -> functions of the engine that do just what a function of a lab is to do.
TWINS = {
    "07-publish_blocks": ("course.engine.kv_blocks:KVBlocks.publish",),
    "09-free_passed": ("course.engine.kv_blocks:KVBlocks.publish",),
}


@dataclass(frozen=True)
class Room:
    """A folder with ``course/`` and ``wall/`` in it. imports: what stands before the answer."""

    path: Path
    key: str
    exercise_id: str
    imports: str


@cache
def base(where: Path) -> Path:
    """The part that all rooms have in common, compiled."""
    target = where / "base"
    if not target.exists():
        beside = where / f"base.{os.getpid()}"
        for name in KEPT:
            source = ROOT / "course" / name
            if source.is_dir():
                ignore = shutil.ignore_patterns(*LEFT_OUT)
                shutil.copytree(source, beside / "course" / name, ignore=ignore)
            else:
                (beside / "course").mkdir(parents=True, exist_ok=True)
                shutil.copy(source, beside / "course" / name)
        for package in ("answers", "bank"):
            (beside / "course" / "practice" / package).mkdir()
            (beside / "course" / "practice" / package / "__init__.py").touch()
        wall = Path(__file__).parent / "wall"
        shutil.copytree(wall, beside / "wall", ignore=shutil.ignore_patterns("__pycache__"))
        _compile(beside)
        try:
            beside.rename(target)
        except OSError:  # somebody else was quicker
            shutil.rmtree(beside, ignore_errors=True)
    return target


def _compile(path: Path) -> None:
    """Once for all workers, which cannot write what they compile."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if path.is_dir():
        compileall.compile_dir(path, quiet=2, invalidation_mode=mode)
    else:
        compileall.compile_file(path, quiet=2, invalidation_mode=mode)


def build(exercise: Exercise, where: Path, with_probes: bool = False) -> Room:
    """The room of one exercise, under ``where``. with_probes: they run on the worker's side."""
    target = where / f"{exercise.key}{'-probes' if with_probes else ''}"
    if not target.exists():
        beside = where / f"{target.name}.{os.getpid()}"
        shutil.copytree(base(where), beside, copy_function=os.link)
        for module, text in replaced(exercise, with_probes).items():
            path = beside / (module.replace(".", "/") + ".py")
            for old in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                old.unlink()
            path.unlink(missing_ok=True)
            path.write_text(text, encoding="utf-8")
            _compile(path)
        for path in [beside, *beside.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            beside.rename(target)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
    return Room(target, exercise.key, exercise.id, prelude(exercise))


def replaced(exercise: Exercise, with_probes: bool) -> dict[str, str]:
    """Modules of this room that differ from the common part, with their text."""
    found = {}
    module = exercise.symbol.partition(":")[0]
    if module.startswith("course.practice.answers"):
        if given := given_text(exercise):
            found[module] = given
    else:
        name, text = blank_module(exercise)
        found[name] = text
    for twin in TWINS.get(exercise.key, ()):
        module, _, name = twin.partition(":")
        found[module] = blank(module_text(module), exercise.id, {name: (0, 0)})
    if with_probes:
        bank = f"course.practice.bank.lab_{exercise.lab:02d}"
        found[bank] = module_text(bank)
    return found


def given_text(exercise: Exercise) -> str:
    """Of a module of answers, only what the exercise's imports take from it and its page gives.

    Helpers that helpers need come along; answers of exercises never do.
    """
    module = exercise.symbol.partition(":")[0]
    text = module_text(module)
    answers = {e.name for e in registry.lab(exercise.lab)} | {"ANSWERS"}
    wanted = [
        alias.name
        for node in ast.parse(prelude(exercise)).body
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    ]
    if not wanted:
        return ""
    body = ast.parse(text).body
    kept: set[int] = set()
    todo = [name for name in wanted if name not in answers]
    seen = set(todo)
    while todo:
        name = todo.pop()
        for place, node in enumerate(body):
            if name in names_of(node):
                kept.add(place)
                used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                todo += sorted(used - seen - answers)
                seen |= used
    parts = []
    for place in sorted(kept):
        node = body[place]
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts.append(ast.unparse(node))
        else:
            parts.append(cut_out(text, names_of(node)[0]))
    return "from __future__ import annotations\n\n" + "\n\n\n".join(parts) + "\n"
