"""Take bodies out of source text: signature, docstring and given lines stay as they are.

Works on the lines that the syntax tree points at, so that everything else keeps its comments and
layout, and solving a blanked text only ever adds lines where the placeholder stands. The labs get
their stubs from here, and a grader the copy of the course that its workers see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from course.practice.exercise import Exercise
from course.practice.source import first_line, module_text, reference_text, variant_text

Function = ast.FunctionDef | ast.AsyncFunctionDef


class BlankError(ValueError):
    """A body that cannot be taken out as asked."""


@dataclass(frozen=True)
class Hole:
    """Lines ``start`` to ``end`` (from 1, both included) of a text, indented by ``indent``."""

    qualname: str
    start: int
    end: int
    indent: int


def placeholder(exercise_id: str, qualname: str) -> str:
    """The one line that a learner replaces."""
    return f'raise NotImplementedError("{exercise_id}: write {qualname}")'


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """("Class.method" or "function", node) of each function that is not inside another."""

    def walk(body: list[ast.stmt], outer: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{outer}{node.name}.")
            elif isinstance(node, Function):
                yield f"{outer}{node.name}", node

    return walk(tree.body, "")


def hole(text: str, qualname: str, given: tuple[int, int] = (0, 0)) -> Hole:
    """Where the body of a function is, without its docstring and the given statements."""
    nodes = [node for name, node in functions(ast.parse(text)) if name == qualname]
    if not nodes:
        raise BlankError(f"there is no function {qualname}")
    node = nodes[-1]  # of a property, the setter
    body = node.body
    lead, tail = given
    has_docstring = ast.get_docstring(node, clean=False) is not None
    lead += has_docstring
    if lead + tail >= len(body):
        raise BlankError(
            f"{qualname} has {len(body) - has_docstring} statements; with {given[0]} + {given[1]} "
            "given none is left to write"
        )
    if body[0].lineno == node.lineno:
        raise BlankError(f"{qualname} is written on one line; give its body lines of its own")
    lines = text.splitlines()
    before = body[lead - 1].end_lineno if lead else body[0].lineno - 1
    start = (before or 0) + 1
    if not lead:  # comments above the first statement are part of the answer
        while start > node.lineno + 1 and lines[start - 2].strip().startswith("#"):
            start -= 1
    end = node.end_lineno or start
    if tail:
        end = first_line(body[-tail]) - 1
        while lines[end - 1].strip().startswith("#"):  # a comment on what is given stays with it
            end -= 1
    while lines[end - 1].strip() == "":
        end -= 1
    while lines[start - 1].strip() == "":
        start += 1
    return Hole(qualname, start, end, body[0].col_offset)


def blank(text: str, exercise_id: str, bodies: Mapping[str, tuple[int, int]]) -> str:
    """The text without these bodies. ``bodies``: "Class.method" or "function" -> given counts."""
    lines = text.splitlines()
    holes = [hole(text, qualname, given) for qualname, given in bodies.items()]
    for place in sorted(holes, key=lambda place: -place.start):
        mark = " " * place.indent + placeholder(exercise_id, place.qualname)
        lines[place.start - 1 : place.end] = [mark]
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def bodies(exercise: Exercise) -> dict[str, tuple[int, int]]:
    """What ``blank`` takes out of this exercise's symbol."""
    if not exercise.blank:
        return {exercise.name: exercise.given.get(exercise.name, (0, 0))}
    unknown = set(exercise.given) - set(exercise.blank)
    if unknown:
        raise BlankError(f"{exercise.id}: given names {sorted(unknown)}, which are not blanked")
    return {f"{exercise.name}.{m}": exercise.given.get(m, (0, 0)) for m in exercise.blank}


def stub(exercise: Exercise) -> str:
    """The answer cell as a learner first sees it."""
    if exercise.kind == "data":
        return exercise.start.strip()
    if exercise.kind == "mend":
        return variant_text(exercise, exercise.answers.mistake(exercise.start)).rstrip()
    return blank(reference_text(exercise), exercise.id, bodies(exercise)).rstrip()


def num_lines(exercise: Exercise) -> int:
    """Lines that the reference writes where the stub has its placeholders."""
    if exercise.lines is not None:
        return exercise.lines
    text = reference_text(exercise)
    lines = text.splitlines()
    return sum(
        bool(line.strip()) and not line.strip().startswith("#")
        for qualname, given in bodies(exercise).items()
        for place in [hole(text, qualname, given)]
        for line in lines[place.start - 1 : place.end]
    )


def blank_module(exercise: Exercise) -> tuple[str, str]:
    """(module, its text without the answer): the copy that a grader's worker may see."""
    module = exercise.symbol.partition(":")[0]
    if exercise.kind != "write":
        raise BlankError(f"{exercise.id} is of kind {exercise.kind!r}: leave out {module} itself")
    return module, blank(module_text(module), exercise.id, bodies(exercise))
