"""Change a right answer by rule, one place at a time, and see which changes no probe notices.

Only what the learner writes is changed: the bodies that the lab takes out. Messages of errors are
left alone, since no check reads them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from course.authoring.blank import bodies, hole
from course.practice.compare import compare
from course.practice.exercise import Exercise
from course.practice.run import expected, loaded, make_cases, one
from course.practice.source import reference_text

COMPARE = {
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
}
BINARY = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.FloorDiv],
    ast.FloorDiv: [ast.Mult, ast.Mod],
    ast.Div: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.LShift: [ast.RShift],
    ast.RShift: [ast.LShift],
}
SWAPPED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)
LIMIT = 1.0  # s a case: a mutant that runs longer is noticed


@dataclass(frozen=True)
class Mutant:
    """``name``: "Class.method: old line -> new line", by which its author can explain it."""

    name: str
    text: str


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """All changed versions of the right answer; nothing for a value."""
    if exercise.kind == "data":
        return
    text = reference_text(exercise)
    holes = [hole(text, name, given) for name, given in bodies(exercise).items()]
    tree = ast.parse(text)
    seen = {ast.unparse(tree)}
    for place in holes:
        for statement in _statements(tree, place.start, place.end):
            for changed, old, new in _changes(tree, statement):
                made = ast.unparse(changed)
                if made not in seen:
                    seen.add(made)
                    yield Mutant(f"{place.qualname}: {old} -> {new}", made)


def _statements(tree: ast.AST, start: int, end: int) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and start <= node.lineno <= end:
            yield node


def _head(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]


def _own(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement itself: not of statements in it, not of messages."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        found.append(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.JoinedStr | ast.ExceptHandler):
                continue
            todo.append(child)
    return found


def _changes(tree: ast.Module, statement: ast.stmt) -> Iterator[tuple[ast.Module, str, str]]:
    old = _head(statement)
    if isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom):
        return
    changed = _replaced(tree, statement, ast.Pass())
    yield changed, old, "(dropped)"
    if isinstance(statement, ast.Raise):
        return
    for index, node in enumerate(_own(statement)):
        for number in range(_num_changes(node)):
            twin = copy.deepcopy(statement)
            _apply(_own(twin)[index], number)
            try:
                new = _head(twin)
            except (AttributeError, ValueError):
                continue
            if new != old:
                yield _replaced(tree, statement, twin), old, new


def _replaced(tree: ast.Module, old: ast.stmt, new: ast.stmt) -> ast.Module:
    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is marked else self.generic_visit(node)

    memo: dict[int, object] = {}
    twin = copy.deepcopy(tree, memo)
    marked = memo[id(old)]
    Swap().visit(twin)
    return ast.fix_missing_locations(twin)


def _options(node: ast.AST) -> list:
    """The changes of one node, each a function that makes it in place."""
    made: list = []
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for kind in COMPARE.get(type(operator), []):
                made.append(lambda n, p=place, k=kind: n.ops.__setitem__(p, k()))
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        for kind in BINARY.get(type(node.op), []):
            made.append(lambda n, k=kind: setattr(n, "op", k()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, SWAPPED):
            made.append(_swap_sides)
    elif isinstance(node, ast.BoolOp):
        kind = ast.Or if isinstance(node.op, ast.And) else ast.And
        made.append(lambda n, k=kind: setattr(n, "op", k()))
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        made.append(lambda n: setattr(n, "value", not n.value))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        made += [
            lambda n: setattr(n, "value", n.value + 1),
            lambda n: setattr(n, "value", n.value - 1),
        ]
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        if not any(isinstance(arg, ast.Starred) for arg in node.args):
            made.append(lambda n: n.args.__setitem__(slice(0, 2), n.args[1::-1]))
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        made += [
            lambda n: setattr(n, "test", ast.Constant(True)),
            lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test)),
        ]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        made.append(lambda n: setattr(n, "op", ast.UAdd()))
    elif isinstance(node, ast.Return) and node.value is not None:
        made.append(lambda n: setattr(n, "value", ast.Constant(None)))
    return made


def _swap_sides(node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


def _num_changes(node: ast.AST) -> int:
    return len(_options(node))


def _apply(node: ast.AST, number: int) -> None:
    _options(node)[number](node)


def living(exercise: Exercise, seed: int | str = 0) -> tuple[int, list[str]]:
    """(mutants in all, names of those that every probe takes for right)."""
    made = list(mutants(exercise))
    if not made:
        return 0, []
    cases = make_cases(exercise, seed)
    pairs = [
        (case, outcome)
        for case, outcome in zip(cases, expected(exercise, cases), strict=True)
        if "value" in outcome
    ]
    if any(case.probe.risky for case, _ in pairs):
        from course.practice.apart import match_apart

        agreed = match_apart(exercise, [mutant.text for mutant in made], pairs)
        return len(made), [m.name for m, n in zip(made, agreed, strict=True) if n == len(pairs)]
    alive = []
    for mutant in made:
        answer, problem = loaded(exercise, mutant.text)
        if not problem and all(_is_right(case, answer, outcome) for case, outcome in pairs):
            alive.append(mutant.name)
    return len(made), alive


def _is_right(case, answer, wanted) -> bool:
    came, _ = one(case, answer, LIMIT)
    if "value" not in came:
        return False
    return compare(wanted["value"], came["value"], case.probe.tolerance).parting is None


def main() -> None:
    """``python -m course.authoring.mutants 4``: the count and the living of some labs, or all."""
    import sys

    from course.practice import registry

    for number in map(int, sys.argv[1:] or map(str, registry.labs())):
        for exercise in registry.lab(number):
            total, alive = living(exercise)
            print(f"{exercise.label}: {total} mutants, {len(alive)} alive")
            for name in alive:
                print(f"    {name}   {exercise.answers.equivalent.get(name, 'NOT EXPLAINED')}")


if __name__ == "__main__":
    main()
