"""The class as CSV: one row a submission, and one row an exercise of a submission."""

from __future__ import annotations

from course.grading.exports.cells import text_of
from course.grading.results import ClassResult

WHO = ("student", "name", "login", "number", "email")


def by_student(results: ClassResult) -> str:
    """A row for each submission: points of each exercise, in columns named by its id."""
    ids = list(
        dict.fromkeys(e.id for lab in results.labs for s in results.submissions
                      if s.lab == lab for e in s.exercises)
    )  # fmt: skip
    rows: list[list[object]] = [
        [*WHO, "lab", "state", "late", *(f"exercise {i}" for i in ids), "points", "of",
         "notes", "repairs", "file"]
    ]  # fmt: skip
    for s in results.submissions:
        points = {e.id: e.points for e in s.exercises}
        rows.append(
            [s.student, s.display, s.login, s.number, s.email, f"{s.lab:02d}", s.state, s.late,
             *(points.get(i, "") for i in ids), s.points, s.of,
             "; ".join(s.notes), "; ".join(s.repairs), s.source]
        )  # fmt: skip
    return text_of(rows)


def by_exercise(results: ClassResult) -> str:
    """A row for each exercise of each submission."""
    rows: list[list[object]] = [
        [*WHO, "lab", "exercise", "title", "points", "of", "state", "behaviours that hold",
         "behaviours", "known mistake", "answer taken by", "notes", "repairs"]
    ]  # fmt: skip
    for s in results.submissions:
        for e in s.exercises:
            held = sum(b.state == "holds" for b in e.behaviours)
            rows.append(
                [s.student, s.display, s.login, s.number, s.email, f"{s.lab:02d}",
                 f"exercise {e.id}", e.title, e.points, e.of, e.state, held, len(e.behaviours),
                 e.mistake, e.taken, "; ".join(e.notes), "; ".join(e.repairs)]
            )  # fmt: skip
    return text_of(rows)
