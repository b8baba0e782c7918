"""Make a lesson's widgets again without running the lesson: only the lines that each needs.

A widget on a page without a kernel moves through pictures made beforehand, and those are made by
the widget itself. So its cell runs again, after the statements that it depends on and no other:
no timing, no plot, no model where none is asked. Whether that was enough is not taken on trust:
the picture must be the one that the notebook stores (frames.py).
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course.show import widget as widgets

MAKERS = {  # of widgets that move; the arena's playground has buttons and no positions
    "memory_map", "kv_calculator", "limit_dial", "boundary_clinic", "address_microscope",
    "scheduler_timeline", "pool_film",
}  # fmt: skip
# What only shows something changes none of its arguments.
SHOWS = MAKERS | {
    "print", "waste_ledger", "table", "figure", "line_plot", "bar_plot", "histogram", "roofline",
    "predict", "check_yourself", "prediction_record", "block_grid", "block_table_figure",
    "slab_figure", "memory_bars", "segment_figure", "split_figure", "generation_work",
    "arena_playground",
}  # fmt: skip


def makes_widget(code: str) -> bool:
    """Whether a cell shows one of the widgets that move."""
    return any(
        isinstance(node, ast.Call)
        and _called(node) in MAKERS
        and not any(word.arg == "show" for word in node.keywords)
        for node in ast.walk(_tree(code))
    )


def needed(cells: list[str], last: int) -> str:
    """The code of cell ``last``, after the statements of earlier cells that it depends on.

    Kept is what gives a name that is asked for, and what may change a thing of that name: a call
    that it is part of, or an assignment into it.
    """
    statements = [node for code in cells[:last] for node in _tree(code).body]
    own = _tree(cells[last]).body
    wanted = {name for node in own for name in _loads(node)}
    kept: set[int] = set()
    while True:
        found = {
            i for i, node in enumerate(statements)
            if i not in kept and (_binds(node) & wanted or _changes(node) & wanted)
        }  # fmt: skip
        if not found:
            break
        kept |= found
        wanted |= {name for i in found for name in _loads(statements[i])}
    chosen = [node for i, node in enumerate(statements) if i in kept] + own
    return "\n".join(ast.unparse(node) for node in chosen)


def run(code: str, folder: Path) -> list[widgets.Widget]:
    """Run it in ``folder`` and return the widgets that it showed, in order. What it prints is
    dropped; what it raises is raised."""
    shown: list[widgets.Widget] = []
    show = widgets.Widget.show

    def note(self: widgets.Widget) -> None:
        shown.append(self)
        show(self)

    before = Path.cwd()
    widgets.Widget.show = note
    try:
        os.chdir(folder)
        with _quiet(), _module() as names:
            exec(compile(code, "<lesson>", "exec"), names)
    finally:
        widgets.Widget.show = show
        os.chdir(before)
    return shown


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    static = os.environ.get("COURSE_STATIC")
    os.environ["COURSE_STATIC"] = "1"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if static is None:
            del os.environ["COURSE_STATIC"]
        else:
            os.environ["COURSE_STATIC"] = static


@contextlib.contextmanager
def _module() -> Iterator[dict[str, Any]]:
    """A namespace under a name that dataclasses can look up."""
    module = type(sys)("course_lesson")
    sys.modules[module.__name__] = module
    try:
        yield module.__dict__
    finally:
        del sys.modules[module.__name__]


def _tree(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError:  # a magic line: nothing that a widget needs
        return ast.Module([], [])


def _called(node: ast.AST) -> str:
    return getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""


def _loads(node: ast.AST) -> set[str]:
    """Names that a statement reads, also inside the functions that it defines."""
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def _binds(node: ast.stmt) -> set[str]:
    """Names that a statement gives."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            found.add(part.id)
        elif isinstance(part, ast.FunctionDef | ast.ClassDef):
            found.add(part.name)
        elif isinstance(part, ast.alias):
            found.add((part.asname or part.name).partition(".")[0])
    return found


def _changes(node: ast.stmt) -> set[str]:
    """Names of things that a statement may change: parts of its calls, targets it assigns into."""
    found = set()
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return found  # nothing happens until it is called
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and _called(part) not in SHOWS:
            found |= _loads(part)
        elif isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            found |= _loads(part.value)
        elif isinstance(part, ast.AugAssign):
            found |= _binds(part)  # type: ignore[arg-type]
    return found
