"""A grader's own process: takes one student after another, and writes their results.

``python -m course.grading.job`` reads JSON lines from its standard input, first its settings, then
one line a student, and says on its standard output when each is done. It never runs what a student
wrote; it reads what they handed in, which is reason enough to do so in a process that may die.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.grading import answers, exam, notebook, results
from course.grading.archive import Entry
from course.grading.desk import end_with_parent
from course.grading.results import Submission
from course.grading.session import Limits
from course.grading.trial import Bench
from course.practice import registry
from course.practice.exercise import Exercise

MEMORY = 4 * 2**30  # bytes of this process: a hostile notebook must not take the machine
MOST_COPIES = 20
SLOWER = 4.0  # times as long as the reference's an answer may always take, on a busy machine too


class Job:
    """Settings of a run, and what was found out about its exercises."""

    def __init__(self, settings: dict[str, Any]):
        self.out = Path(settings["out"])
        self.rooms = Path(settings["rooms"])
        self.lab: int | None = settings["lab"]
        self.releases: dict[str, str] = settings["releases"]
        self.secret = exam.Secret(settings["seed"])
        self.isolation: str = settings["isolation"]
        self.bench = Bench(settings["level"], Limits(**settings["limits"]), settings["slot"])
        self.ways: dict[str, tuple[str, Bench]] = {}

    def way(self, exercise: Exercise) -> tuple[str, Bench]:
        """How its answers are tried, and where: with time enough for a right one."""
        if exercise.key not in self.ways:
            began = time.monotonic()
            how = exam.way(self.bench, exercise, self.rooms)
            limits = self.bench.limits
            seconds = max(limits.seconds, SLOWER * (time.monotonic() - began))
            bench = replace(self.bench, limits=replace(limits, seconds=seconds))
            self.ways[exercise.key] = how, bench
        return self.ways[exercise.key]

    def student(self, told: dict[str, Any]) -> list[Submission]:
        """All submissions of one student: one a lab."""
        entries = [_entry(e) for e in told["notebooks"]]
        read: list[tuple[Entry, notebook.Notebook | None, int | None, str]] = []
        for entry in entries[:MOST_COPIES]:
            read.append((entry, *_read(entry)))
        labs = {lab for _, book, lab, _ in read if book is not None and lab is not None}
        wanted = [self.lab] if self.lab else sorted(labs)
        found = [self._submission(told, read, lab) for lab in wanted]
        if not found:
            found = [self._nothing(told, read, 0)]
        for submission in found:
            submission.siblings = len(found)
        return found

    def _submission(self, told: dict[str, Any], read: list, lab: int) -> Submission:
        mine = [(entry, book) for entry, book, which, _ in read if book and which == lab]
        if not mine:
            return self._nothing(told, read, lab)
        entry, book = mine[0]
        submission = self._made(told, lab, results.GRADED)
        submission.source = entry.source
        submission.superseded = [other.source for other, _ in mine[1:]]
        submission.ignored += [
            e.source for e, b, which, _ in read if b and which not in (lab, None)
        ]
        submission.ignored += [f"{e.source}: {why}" for e, b, _, why in read if b is None]
        newest = read[0][0]
        if read[0][1] is None:
            submission.repairs.append(
                f"the newest copy, {newest.source}, cannot be read ({read[0][3]})"
            )
        if submission.superseded:
            count = len(submission.superseded) + 1
            submission.repairs.append(f"{count} copies were handed in; the newest counts")
        submission.repairs += answers.oddities(book, lab, self.releases.get(str(lab), ""))
        for exercise, answer in zip(
            registry.lab(lab), answers.extract(book, lab).values(), strict=True
        ):
            submission.exercises.append(self._exercise(exercise, answer, told["student"]))
        submission.points = round(sum(e.points for e in submission.exercises), 2)
        submission.seconds = round(sum(e.seconds for e in submission.exercises), 2)
        submission.notes = [f"{e.id}: {note}" for e in submission.exercises for note in e.notes]
        return submission

    def _exercise(
        self, exercise: Exercise, answer: answers.Found, student: str
    ) -> results.ExerciseResult:
        try:
            how, bench = self.way(exercise)
            result = exam.examine(
                bench, exercise, answer.text, student, self.secret, how, self.rooms
            )
        except (RuntimeError, OSError) as error:
            result = exam.failed(exercise, answer.text, f"{error}")
        result.taken = answer.taken
        result.repairs = answer.repairs
        return result

    def _nothing(self, told: dict[str, Any], read: list, lab: int) -> Submission:
        """No notebook of this lab: none at all, damaged ones, or ones of another lab."""
        state = results.NO_NOTEBOOK
        if read:
            state = results.DAMAGED if all(b is None for _, b, _, _ in read) else results.WRONG_LAB
        submission = self._made(told, lab, state)
        for entry, book, which, why in read:
            if book is None:
                submission.repairs.append(f"{entry.source}: {why}")
            elif which is None:
                submission.repairs.append(f"{entry.source}: a notebook of no lab of this course")
            else:
                submission.repairs.append(f"{entry.source}: is lab {which:02d}, not {lab:02d}")
        return submission

    def _made(self, told: dict[str, Any], lab: int, state: str) -> Submission:
        of = sum(exercise.points for exercise in registry.lab(lab)) if lab else 0
        people = told["people"]
        return Submission(
            f"{told['unit']}-{lab:02d}",
            people.get("name") or told["student"],
            people.get("name") or told["display"],
            lab,
            state,
            0.0,
            of,
            system=told["system"],
            number=people.get("sid") or told["number"],
            email=people.get("email", ""),
            late=told["late"],
            ignored=list(told["others"]),
            unit=told["unit"],
            fingerprint=told["fingerprint"],
            isolation=self.isolation,
        )


def _read(entry: Entry) -> tuple[notebook.Notebook | None, int | None, str]:
    """(its cells or None, its lab or None, why it cannot be read)."""
    try:
        book = notebook.read(entry.read())
        lab, _ = answers.lab_of(book)
        return book, lab, ""
    except notebook.Unreadable as error:
        return None, None, str(error)
    except (OSError, ValueError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        return None, None, f"it cannot be read ({type(error).__name__}: {str(error)[:100]})"
    except MemoryError:
        return None, None, "it is too large to be read"


def _entry(told: dict[str, Any]) -> Entry:
    return Entry(
        Path(told["where"]), tuple(told["inner"]), tuple(told["parts"]), told["size"],
        told["changed"],
    )  # fmt: skip


def as_line(entry: Entry) -> dict[str, Any]:
    """The opposite of ``_entry``."""
    return {
        "where": str(entry.where), "inner": entry.inner, "parts": entry.parts, "size": entry.size,
        "changed": entry.changed,
    }  # fmt: skip


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        pass


def main() -> None:
    end_with_parent()
    _limit_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything prints does not get between the lines
    os.environ["TRITON_INTERPRET"] = "1"  # as in the workers, before Triton is imported
    job = Job(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        told = json.loads(line)
        for submission in job.student(told):
            results.write(job.out / "partial" / f"{submission.name}.json", submission)
        out.write(json.dumps({"done": told["unit"]}) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
