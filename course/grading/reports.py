"""Everything that is read or imported after grading: ``write_reports(results, out)``."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from course.grading.exports import (
    canvas,
    class_page,
    feedback,
    gradescope,
    moodle,
    similarity,
    tables,
)
from course.grading.exports.cells import printable
from course.grading.results import ClassResult, Submission
from course.practice.my_engine import write_whole


@dataclass
class Written:
    """What was written, or would be. unmatched: for each system, one line a submission."""

    files: list[Path] = field(default_factory=list)
    matched: dict[str, int] = field(default_factory=dict)
    unmatched: dict[str, list[str]] = field(default_factory=dict)
    absent: dict[str, list[str]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)


def write_reports(
    results: ClassResult,
    out: Path,
    canvas_roster: Path | None = None,
    moodle_roster: Path | None = None,
    dry_run: bool = False,
    alike: bool = True,
) -> Written:
    """Write OUT/reports: tables, pages, imports, feedback. ``dry_run``: only say what would be.

    canvas_roster, moodle_roster: the list of people exported from there; without one, only those
    are in the import whose own files name them. ValueError: not such a list. alike: also look for
    answers that resemble each other.
    """
    told = Written()
    made: dict[str, str | bytes] = {
        # A mark at the start tells spreadsheets that it is UTF-8.
        "students.csv": "\ufeff" + tables.by_student(results),
        "exercises.csv": "\ufeff" + tables.by_exercise(results),
        "class.html": class_page.html(results),
    }
    for system, module, roster in (
        ("Canvas", canvas, canvas_roster),
        ("Moodle", moodle, moodle_roster),
    ):
        found = module.make(results, roster)
        if roster is None and not found.matching.found:
            continue  # nobody here is known there
        told.matched[system] = len(found.matching.found)
        told.unmatched[system] = [
            f"{printable(s.student)} (lab {s.lab:02d}, {printable(s.source) or 'no file'}): {why}"
            for s, why in found.matching.unmatched
        ]
        told.absent[system] = [printable(p.names[0]) for p in found.matching.absent if p.names]
        told.remarks[system] = found.remarks
        made[f"{system.lower()}.csv"] = found.text
        lines = [*told.unmatched[system], *found.remarks]
        made[f"{system.lower()}-unmatched.txt"] = "".join(f"{line}\n" for line in lines)
    for s, name in _named(results.submissions):
        made[f"feedback/{name}.html"] = feedback.html(s)
        made[f"feedback/{name}.md"] = feedback.markdown(s)
        made[f"gradescope/{name}.json"] = (
            json.dumps(gradescope.results(s, results.isolation), indent=1) + "\n"
        )
    if alike:
        names = {s.student: s.display or s.student for s in results.submissions}
        made["similarity.html"] = class_page.similarity(similarity.of_class(results), names)
    folder = out / "reports"
    told.files = [folder / name for name in made]
    if not dry_run:
        for name, content in made.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode("utf-8", "replace") if isinstance(content, str) else content
            write_whole(path, data)
    return told


def _named(submissions: list[Submission]) -> list[tuple[Submission, str]]:
    """Each submission with a name for its files: never a path, never twice."""
    seen: Counter[str] = Counter()
    found = []
    for s in submissions:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", s.name).strip(".-")[:120] or "submission"
        seen[name.casefold()] += 1
        again = seen[name.casefold()]
        found.append((s, name if again == 1 else f"{name}-again-{again}"))
    return found
