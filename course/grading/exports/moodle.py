"""A CSV that Moodle's gradebook imports.

One column identifies people (email address or ID number), one is the grade, one the feedback.
Moodle stops a whole import at the first person that it does not know, and wipes grades whose
feedback comes without them (docs.moodle.org, "Grade import"; grade/import/csv/classes in its
source). So only people of its own list are written, each with both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from course.grading.exports.canvas import Import
from course.grading.exports.cells import is_formula, number, text_of
from course.grading.exports.feedback import in_short
from course.grading.exports.roster import Person, match, read_csv
from course.grading.results import NOT_GRADED, ClassResult

EMAIL, NUMBER, USER = "Email address", "ID number", "Username"
FIRST, LAST, FULL, IDENTIFIER = "First name", "Last name", "Full name", "Identifier"
OTHER_WORDS = {"Surname": LAST, "Email": EMAIL}


def make(results: ClassResult, roster: Path | None = None) -> Import:
    """For the people of a list exported from Moodle (participants, grades, or an assignment's
    grading worksheet), or, without one, for whoever has an email address. ValueError: no list."""
    people = _listed(roster) if roster else _known(results)
    matching = match(results.submissions, people)
    remarks: list[str] = []
    names = {lab: f"Lab {lab:02d}" for lab in results.labs}
    head = [EMAIL, NUMBER, FIRST, LAST]
    for name in names.values():
        head += [name, f"{name} (feedback)"]
    rows: list[list[object]] = [list(head)]
    for place, mine in sorted(matching.found.items()):
        row = people[place].row
        email, identity = row.get(EMAIL, ""), row.get(NUMBER, "")
        email, identity = ("" if is_formula(cell) else cell for cell in (email, identity))
        if not email and not identity:
            name = row.get(FULL) or f"{row.get(FIRST, '')} {row.get(LAST, '')}".strip()
            remarks.append(f"{name}: no email address and no ID number that can be written")
            continue
        line: list[object] = [email, identity, row.get(FIRST, row.get(FULL, "")), row.get(LAST, "")]
        for lab in names:
            told = mine.get(lab)
            graded = told is not None and told.state != NOT_GRADED
            # "-" is Moodle's word for no grade; a feedback alone would wipe what is there.
            line += [number(told.points), in_short(told)] if graded and told else ["", ""]
        rows.append(line)
    for lab, name in names.items():
        most = max((s.of for s in results.submissions if s.lab == lab), default=0)
        remarks.append(f"{name}: the grade item needs a maximum of {most}")
        if any(lab not in mine for mine in matching.found.values()) and len(names) > 1:
            remarks.append(f"{name}: empty cells erase a grade; import one lab at a time")
    return Import(text_of(rows), matching, remarks)


def _listed(path: Path) -> list[Person]:
    header, rows = read_csv(path)
    header = [OTHER_WORDS.get(name, name) for name in header]
    if not {EMAIL, NUMBER} & set(header):
        raise ValueError(
            f"{path} has neither a column {EMAIL!r} nor {NUMBER!r}; it has {header}. Export it "
            "from Moodle in English: participants, grades, or the grading worksheet."
        )
    return [_person(header, row) for row in rows]


def _person(header: Sequence[str], cells: Sequence[str]) -> Person:
    row = dict(zip(header, cells, strict=False))
    full = row.get(FULL) or f"{row.get(FIRST, '')} {row.get(LAST, '')}".strip()
    participant = re.search(r"(\d+)$", row.get(IDENTIFIER, ""))
    keys = {
        "email": row.get(EMAIL, ""), "sis": row.get(NUMBER, ""), "login": row.get(USER, ""),
        "participant": participant[1] if participant else "",
    }  # fmt: skip
    return Person(row, keys, (full,))


def _known(results: ClassResult) -> list[Person]:
    people = {}
    for s in results.submissions:
        if s.email:
            row = {EMAIL: s.email, NUMBER: "", FULL: s.display or s.student}
            people.setdefault(s.email, Person(row, {"email": s.email}, (s.display,)))
    return list(people.values())
