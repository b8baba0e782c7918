"""Which answers resemble each other more than the class does: a hint where to look, no more.

Answers are compared as sequences of tokens without comments, docstrings, layout and the choice of
local names (after the idea of winnowing, Schleimer, Wilkerson, Aiken 2003: runs of a few tokens,
compared as sets). Runs that the handed-out cell has, or that many answers have, count nothing, so a
short task with one natural answer gives no hint.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import ceil

from course.grading.results import ClassResult

RUN = 8  # tokens
LEAST = 12  # rare runs that an answer must have to be compared
COMMON = 0.2  # runs in more than this share of a class's answers are the task's, not somebody's
ALIKE = 0.6
SKIPPED = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two answers to one exercise. share: of the rarer one's rare runs, how many both have.
    comments: comments that both have and the handed-out cell has not."""

    exercise: str
    one: str
    other: str
    share: float
    runs: int
    comments: int


def tokens(text: str) -> list[str]:
    """Normalised: names that the answer itself gives are "name", strings "text"."""
    try:
        tree = ast.parse(text)
        raw = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return []
    given = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)
             and isinstance(n.ctx, ast.Store)}  # fmt: skip
    given |= {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    docstrings = _docstring_lines(tree)
    found = []
    for token in raw:
        if token.type in SKIPPED or token.start[0] in docstrings:
            continue
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            ours = token.string in given and not hasattr(builtins, token.string)
            found.append("name" if ours else token.string)
        elif token.type == tokenize.STRING:
            found.append("text")
        else:
            found.append(token.string)
    return found


def _docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def runs(text: str) -> set[tuple[str, ...]]:
    found = tokens(text)
    return {tuple(found[n : n + RUN]) for n in range(len(found) - RUN + 1)}


def comments(text: str) -> set[str]:
    try:
        raw = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return set()
    words = (t.string.lstrip("#! ").strip().casefold() for t in raw if t.type == tokenize.COMMENT)
    return {w for w in words if len(w) > 8}


def compare(answers: Iterable[tuple[str, str]], exercise: str = "", given: str = "") -> list[Pair]:
    """Pairs of (student, answer) that are more alike than this class is, the most alike first.

    given: the cell as it was handed out.
    """
    stub, stub_comments = runs(given), comments(given)
    all_runs, all_comments = {}, {}
    for who, text in answers:
        all_runs[who] = runs(text) - stub
        all_comments[who] = comments(text) - stub_comments
    count = Counter(run for mine in all_runs.values() for run in mine)
    # In a small class one other answer is already a fifth; two may always share.
    most = max(2, ceil(COMMON * len(all_runs)))
    rare = {who: {run for run in mine if count[run] <= most} for who, mine in all_runs.items()}
    owners: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for who, mine in rare.items():
        for run in mine:
            if count[run] > 1:
                owners[run].append(who)
    shared: Counter[tuple[str, str]] = Counter()
    for together in owners.values():
        shared.update(combinations(sorted(together), 2))
    found = []
    for (one, other), number in shared.items():
        less = min(len(rare[one]), len(rare[other]))
        same = len(all_comments[one] & all_comments[other])
        if number >= LEAST and number / less >= ALIKE:
            found.append(Pair(exercise, one, other, number / less, number, same))
    return sorted(found, key=lambda p: (-p.share, -p.runs, p.exercise, p.one, p.other))


def of_class(results: ClassResult, most: int = 200) -> list[Pair]:
    """All pairs of a class, at most ``most``; a student's own copies are not compared."""
    from course.authoring.blank import stub
    from course.practice import registry

    answers: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for s in results.submissions:
        for e in s.exercises:
            if e.answer and e.state != "untouched":
                answers[e.key].append((s.student, e.answer))
    known = {e.key: e for e in registry.every()}
    found: list[Pair] = []
    for key, mine in answers.items():
        exercise = known.get(key)
        given = stub(exercise) if exercise else ""
        found += compare(mine, exercise.id if exercise else key, given)
    return sorted(found, key=lambda p: (-p.share, -p.runs, p.exercise, p.one))[:most]
