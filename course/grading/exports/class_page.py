"""The class on one page: how each exercise went, what went wrong, where to look."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from course.grading.exports.cells import number
from course.grading.exports.page import bar, name, page, table, text
from course.grading.exports.similarity import ALIKE, Pair
from course.grading.results import (
    ERROR,
    GRADED,
    HOLDS,
    MISSING,
    NOTHING,
    PARTLY,
    RIGHT,
    UNTOUCHED,
    ClassResult,
    ExerciseResult,
    Submission,
)

ORDER = (RIGHT, PARTLY, NOTHING, UNTOUCHED, MISSING, ERROR)
COMMONEST = 6
BINS = 5


def html(results: ClassResult) -> str:
    """The report, for teachers: it has notes that students do not see."""
    told = results.isolation
    body = [
        f"<p>{len(results.submissions)} submissions, lab "
        f"{text(', '.join(f'{n:02d}' for n in results.labs))}. Course {text(results.course)}.</p>",
        f"<p>Isolation: {text(told.level)}, "
        + ("which kept what was tried in." if told.sufficient else "<strong>which is not "
           "enough</strong>: a submission could have reached this machine.")
        + "</p>",
    ]  # fmt: skip
    if results.missing:
        body.append(
            f"<p><strong>Not graded yet:</strong> {_names(results.missing)}. Run the same command "
            "with <code>--resume</code>.</p>"
        )
    body.append(_attention(results.submissions))
    for lab in results.labs:
        body += _lab(lab, [s for s in results.submissions if s.lab == lab])
    if results.left_over:
        items = "".join(f"<li>{text(words)}</li>" for words in results.left_over[:200])
        body.append(f"<h2>Files that belong to nobody</h2><ul>{items}</ul>")
    return page("Class report", body)


def _names(students: Sequence[str]) -> str:
    return ", ".join(name(student) for student in students)


def _lab(lab: int, submissions: Sequence[Submission]) -> list[str]:
    graded = [s for s in submissions if s.state == GRADED]
    body = [f"<h2>Lab {lab:02d}</h2>"]
    if not graded:
        return [*body, "<p>No submission could be graded.</p>"]
    points = [s.points for s in graded]
    of = max(s.of for s in graded)
    body.append(
        f"<p>{len(graded)} graded. Mean {statistics.mean(points):.1f} of {of} points, median "
        f"{statistics.median(points):.1f}.</p>"
    )
    rows = []
    for n in range(BINS):
        low, high = of * n / BINS, of * (n + 1) / BINS
        count = sum(low <= p < high or (n == BINS - 1 and p >= high) for p in points)
        rows.append([f"{low:.1f} to {high:.1f}", str(count), bar(count / len(points))])
    body.append(table("How many have so many points", ["points", "students", ""], rows, [1]))
    exercises: dict[str, list[ExerciseResult]] = {}
    for s in graded:
        for e in s.exercises:
            exercises.setdefault(e.id, []).append(e)
    rows = []
    for key, mine in exercises.items():
        states = Counter(e.state for e in mine)
        mean = statistics.mean(e.points / e.of if e.of else 0 for e in mine)
        rows.append(
            [f"{text(key)} {text(mine[0].title)}", *(str(states[s]) for s in ORDER),
             f"{100 * mean:.0f} %", bar(mean)]
        )  # fmt: skip
    head = ["exercise", *ORDER, "mean of the points", ""]
    body.append(table("How the exercises went: students by state", head, rows, range(1, 8)))
    for key, mine in exercises.items():
        body += _exercise(key, mine)
    return body


def _exercise(key: str, mine: Sequence[ExerciseResult]) -> list[str]:
    """What went wrong in one exercise; nothing where nothing did."""
    mistakes = Counter((e.mistake, e.mistake_note) for e in mine if e.mistake)
    behaviours = Counter(
        b.behaviour for e in mine if e.state in (PARTLY, NOTHING)
        for b in e.behaviours if b.state != HOLDS
    )  # fmt: skip
    if not mistakes and not behaviours:
        return []
    found = [f"<h3>{text(key)} {text(mine[0].title)}</h3>"]
    if mistakes:
        rows = [
            [text(what), str(count), text(note)]
            for (what, note), count in mistakes.most_common(COMMONEST)
        ]
        found.append(
            table("Commonest mistakes", ["it comes out so when", "students", "what is true"],
                  rows, [1])
        )  # fmt: skip
    if behaviours:
        rows = [[text(what), str(count)] for what, count in behaviours.most_common(COMMONEST)]
        found.append(table("Behaviours that fail most", ["behaviour", "students"], rows, [1]))
    return found


def _attention(submissions: Sequence[Submission]) -> str:
    """Whoever deserves a look, with why."""
    rows = []
    for s in submissions:
        why = [f"{s.state}"] if s.state != GRADED else []
        why += [f"{e.id}: {n}" for e in s.exercises if e.state == ERROR for n in e.notes]
        why += s.notes
        why += [f"late: {s.late}"] if s.late else []
        why += s.repairs
        why += [f"{e.id}: {r}" for e in s.exercises for r in e.repairs]
        why += [f"beside it: {', '.join(s.ignored[:5])}"] if s.ignored else []
        why = list(dict.fromkeys(why))
        if why:
            shown = "".join(f"<li>{text(words[:300])}</li>" for words in why[:12])
            more = f"<li>and {len(why) - 12} more</li>" if len(why) > 12 else ""
            rows.append([name(s.display or s.student), f"{s.lab:02d}",
                         f"{number(s.points)} of {s.of}", f"<ul>{shown}{more}</ul>"])  # fmt: skip
    if not rows:
        return "<h2>Deserves a look</h2><p>Nothing.</p>"
    note = "<p>A note is a reason to look, not a verdict. Points are not changed by it.</p>"
    return (
        f"<h2>Deserves a look</h2>{note}"
        + table("Submissions with something unusual", ["student", "lab", "points", "what"],
                rows, [2])
    )  # fmt: skip


def similarity(pairs: Sequence[Pair], names: dict[str, str] | None = None) -> str:
    """The page of resemblances."""
    shown = names or {}
    body = [
        '<p class="box"><strong>A hint only.</strong> These answers have more in common than the '
        "class has. That has many reasons: one natural way to write it, a shared textbook, pairs "
        "that worked together as they were told to, the same tool. Look at both answers and talk "
        "to both people before you conclude anything; no mark may come from this page.</p>",
        "<p>Compared without comments, docstrings, layout and the choice of local names, and "
        "without what the handed-out cell has or many answers have. Listed from "
        f"{100 * ALIKE:.0f} % on.</p>",
    ]
    if not pairs:
        body.append("<p>No two answers are more alike than the class.</p>")
        return page("Resemblances", body)
    rows = [
        [text(p.exercise), name(shown.get(p.one, p.one)), name(shown.get(p.other, p.other)),
         f"{100 * p.share:.0f} %", str(p.runs), str(p.comments)]
        for p in pairs
    ]  # fmt: skip
    head = ["exercise", "one", "other", "in common", "runs of tokens", "same comments"]
    body.append(table("Answers that resemble each other", head, rows, [3, 4, 5]))
    return page("Resemblances", body)
