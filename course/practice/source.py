"""Source text: of the reference, of wrong answers made from it, of what a learner wrote."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import itertools
import linecache
import re
import sys
import types
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

from course.practice.exercise import Alternative, Exercise, Mistake

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
_count = itertools.count()


class NoSource(LookupError):
    """What a learner wrote cannot be found as text."""


def clean(text: str) -> str:
    """A triple-quoted string without its margin and the empty lines around it."""
    return dedent(text).strip("\n").rstrip()


def module_text(module: str) -> str:
    """The text of a module of the course; nothing is imported but its packages."""
    spec = find_spec(module)
    if spec is None or not spec.origin:
        raise NoSource(f"there is no module {module}")
    return Path(spec.origin).read_text(encoding="utf-8")


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement gives at the level where it stands."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def first_line(node: ast.stmt) -> int:
    """Its first line, decorators included, from 1."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def cut_out(text: str, name: str, omit: tuple[str, ...] = ()) -> str:
    """The lines of one definition of a module, without the members in ``omit``."""
    for node in ast.parse(text).body:
        if name in names_of(node) and not isinstance(node, ast.Import | ast.ImportFrom):
            break
    else:
        raise NoSource(f"nothing is called {name!r} there")
    lines = text.splitlines()
    drop: set[int] = set()
    members = getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []
    known = {member_name for member in members for member_name in names_of(member)}
    if missing := set(omit) - known:
        raise NoSource(f"{name} has no {sorted(missing)} to leave out; it has {sorted(known)}")
    for member in members:
        if set(names_of(member)) & set(omit):
            start = first_line(member)
            while start > 2 and not lines[start - 2].strip():  # with the empty lines before it
                start -= 1
            drop.update(range(start, (member.end_lineno or start) + 1))
    kept = [
        line
        for number, line in enumerate(lines, start=1)
        if first_line(node) <= number <= (node.end_lineno or 0) and number not in drop
    ]
    return "\n".join(kept)


def cut_method(text: str, name: str) -> str:
    """One method of the only class in a text, without the class's margin."""
    (node,) = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)]
    for member in node.body:
        if name in names_of(member):
            lines = text.splitlines()[first_line(member) - 1 : member.end_lineno]
            return dedent("\n".join(lines))
    raise NoSource(f"{node.name} has no {name!r}")


def reference_text(exercise: Exercise) -> str:
    """The right answer's text, as the solution notebook shows it."""
    module, _, name = exercise.symbol.partition(":")
    return cut_out(module_text(module), name, exercise.omit)


def reference(exercise: Exercise) -> Any:
    """The right answer itself."""
    module, _, name = exercise.symbol.partition(":")
    return getattr(import_module(module), name)


def prelude(exercise: Exercise) -> str:
    """The imports that stand before an answer: what the right one uses of its module, or offers."""
    return _prelude(exercise.symbol, exercise.omit, exercise.offers)


@cache
def _prelude(symbol: str, omit: tuple[str, ...], offers: tuple[str, ...]) -> str:
    module, _, name = symbol.partition(":")
    body = ast.parse(module_text(module)).body
    answer = ast.parse(cut_out(module_text(module), name, omit))
    used = {n.id for n in ast.walk(answer) if isinstance(n, ast.Name)}
    for node in ast.walk(answer):  # names in annotations that are written as strings
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            used |= {node.value} if node.value.isidentifier() else set()
    used = (used | set(offers)) - {name}
    lines, local = [], []
    for node in body:
        wanted = [n for n in names_of(node) if n in used]
        if not wanted:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [
                alias
                for alias in node.names
                if (alias.asname or alias.name.partition(".")[0]) in wanted
            ]
            lines.append(ast.unparse(node))
        else:
            local += wanted
    if local:
        lines.append(f"from {module} import {', '.join(sorted(set(local)))}")
    return "\n".join(sorted(lines, key=_import_order))


def _import_order(line: str) -> tuple[int, str]:
    home = line.split()[1].partition(".")[0]
    ours = home == "course"
    return (2 if ours else 0 if home in sys.stdlib_module_names else 1, line)


def setup_imports(exercise: Exercise, text: str) -> list[str]:
    """Imports for the names that an answer takes from the first cell of its notebook and that the
    right answer does without: of the lab's other answers, and pieces of earlier labs."""
    from course.practice import registry

    missing = free_names(f"{prelude(exercise)}\n{text}")
    missing -= {e.name for e in registry.lab(exercise.lab)}
    found = []
    if not missing:
        return found
    for other in registry.lab(exercise.lab):
        for node in ast.parse(prelude(other)).body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            node.names = [a for a in node.names if {a.asname or a.name} & missing]
            if node.names:
                found.append(ast.unparse(node))
                missing -= set(names_of(node))
    for piece in registry.pieces():
        if piece.name in missing and piece.lab < exercise.lab:
            found.append(f"from {piece.symbol.replace(':', ' import ')}")
    return found


def imports(exercise: Exercise, text: str) -> str:
    """All that stands before an answer where it is run alone."""
    return "\n".join(filter(None, [prelude(exercise), *setup_imports(exercise, text)]))


def given_names(exercise: Exercise, text: str = "") -> dict[str, Any]:
    """What stands before an answer gives, by name."""
    space: dict[str, Any] = {}
    exec(imports(exercise, text), space)
    return {name: value for name, value in space.items() if name != "__builtins__"}


def without_docstrings(text: str) -> str:
    """The same lines without docstrings."""
    drop: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first = node.body[0]
            if len(node.body) > 1:
                drop.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = text.splitlines()
    return "\n".join(line for n, line in enumerate(lines, start=1) if n not in drop)


def variant_text(exercise: Exercise, variant: Mistake | Alternative) -> str:
    """The text of a wrong answer or of another right one."""
    if variant.code:
        return clean(variant.code) + "\n"
    text = reference_text(exercise)
    for old, new in variant.edit:
        if text.count(old) != 1:
            raise ValueError(
                f"{exercise.id}, {variant.name!r}: {old!r} stands {text.count(old)} times in the "
                "reference; an edit replaces text that stands there once"
            )
        text = text.replace(old, new)
    return text


def load(exercise: Exercise, text: str, module: str | None = None) -> Any:
    """Run an answer's text after its imports in a namespace of its own; return the answer.

    Whatever it raises comes through. LookupError: it does not give the name that is asked for.
    """
    label = f"<answer {exercise.id} {next(_count)}>"
    space = types.ModuleType(module or f"answer_{next(_count)}")
    sys.modules[space.__name__] = space
    before = prelude(exercise)
    with contextlib.suppress(SyntaxError):  # the text's own: told when it is compiled
        before = imports(exercise, text)
    exec(compile(before, f"<imports of {exercise.id}>", "exec"), space.__dict__)
    linecache.cache[label] = (len(text), None, text.splitlines(keepends=True), label)
    exec(compile(text, label, "exec"), space.__dict__)
    if exercise.name not in space.__dict__:
        raise LookupError(f"there is no {exercise.name} in it")
    return space.__dict__[exercise.name]


def definitions(text: str) -> str:
    """Imports, functions, classes and values of a cell; not its calls, prints and magics."""
    lines = text.splitlines()
    kept = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom | Definition | ast.AsyncFunctionDef):
            kept.append("\n".join(lines[first_line(node) - 1 : node.end_lineno]))
    return "\n\n\n".join(kept) + "\n"


def code_of(obj: Any) -> types.CodeType | None:
    """The code object of a function, of a method of a class, or of what a decorator made of one."""
    obj = inspect.unwrap(obj) if callable(obj) else obj
    obj = getattr(obj, "fn", obj)  # a Triton kernel
    if isinstance(obj, type):
        for member in vars(obj).values():
            member = getattr(member, "fget", member)  # a property
            code = getattr(getattr(member, "__func__", member), "__code__", None)
            if code is not None and code.co_name in vars(obj):
                return code
        return None
    return getattr(getattr(obj, "__func__", obj), "__code__", None)


def written(obj: Any, name: str) -> str:
    """What the learner wrote for ``name``: the definitions of its cell. NoSource: not to be found.

    In a notebook that is the whole cell, so that small helpers beside the answer come along.
    """
    code = code_of(obj)
    candidates = []
    if code is not None:
        candidates.append("".join(linecache.getlines(code.co_filename)))
        if Path(code.co_filename).suffix == ".py" and Path(code.co_filename).is_file():
            candidates = [cut_out(candidates[0], name)] if candidates[0] else []
    else:
        candidates += reversed(_cells())
    for text in candidates:
        try:
            found = definitions(text)
            if any(name in names_of(node) for node in ast.parse(found).body):
                return found
        except SyntaxError:  # a cell with a magic, an older cell that did not run
            continue
    raise NoSource(f"the text of {name} is not to be found")


def _cells() -> list[str]:
    """The cells that this kernel ran, in order."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return [str(text) for text in shell.user_ns.get("In", [])] if shell else []


def newest_is_broken(name: str) -> list[str]:
    """What to say where the newest cell that gives a name has a SyntaxError: then the name is still
    what an older cell made of it."""
    gives = re.compile(rf"^\s*(?:(?:async )?def|class) {name}\b|^{name}\s*=", re.MULTILINE)
    for text in reversed(_cells()):
        if not gives.search(text):
            continue
        try:
            ast.parse(text)
        except SyntaxError as error:
            place = f"line {error.lineno}" if error.lineno else "it"
            return [
                f"Your newest cell for {name} did not run: a SyntaxError in {place}. This is of an "
                "earlier one."
            ]
        return []
    return []


def same_code(one: str, other: str) -> bool:
    """Whether two texts are the same program, whatever their comments, docstrings and spacing."""
    try:
        return _shape(one) == _shape(other)
    except SyntaxError:
        return False


def _shape(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            inside = body[0].value
            if isinstance(inside, ast.Constant) and isinstance(inside.value, str) and body[1:]:
                del body[0]
    return ast.dump(tree)


def free_names(text: str) -> set[str]:
    """Names that a text uses and nobody in it or in Python gives."""
    tree = ast.parse(text)
    given = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            given.update(names_of(node))
        if isinstance(node, ast.arg):
            given.add(node.arg)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            given.add(node.id)
        if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            given.add(node.name)
        if isinstance(node, ast.MatchMapping) and node.rest:
            given.add(node.rest)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - given


def used_names(text: str) -> set[str]:
    """Names that the code of a text reads when it runs: not those of annotations."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
