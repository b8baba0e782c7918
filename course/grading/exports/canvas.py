"""A CSV that Canvas's gradebook imports.

Canvas wants Student, ID (its own), SIS columns if any, Section, then assignments; a row whose first
cell says "Points Possible"; and finds people by ID, then SIS ids, then name (its open source,
lib/gradebook_importer.rb, and its guide "How do I import grades in the Gradebook?").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course.grading.exports.cells import is_formula, number, text_of
from course.grading.exports.roster import Matching, Person, match, read_csv
from course.grading.results import NOT_GRADED, ClassResult, Submission

SHOWN = ("Student", "ID", "SIS User ID", "SIS Login ID", "Integration ID", "Root Account",
         "Section")  # fmt: skip
POINTS = "    Points Possible"


@dataclass
class Import:
    """The file's text, who was matched, and what to know before it is imported."""

    text: str
    matching: Matching
    remarks: list[str] = field(default_factory=list)


def make(results: ClassResult, roster: Path | None = None) -> Import:
    """For the people of a gradebook that was exported from Canvas, or, without one, for those
    whose files came from Canvas. ValueError: ``roster`` is no such export."""
    header, rows = _export(roster) if roster else (["Student", "ID", "Section"], [])
    limits = [row for row in rows if "Points Possible" in row[0]]
    people = [_person(header, row) for row in rows if _is_person(row)]
    if roster is None:
        people = _known(results)
    matching = match(results.submissions, people)
    shown = [name for name in SHOWN if name in header]
    remarks: list[str] = []
    columns = {lab: _column(lab, header, shown, remarks) for lab in results.labs}
    whole = {lab: max((s.of for s in results.submissions if s.lab == lab), default=0)
             for lab in results.labs}  # fmt: skip
    possible: list[object] = [POINTS, *[""] * (len(shown) - 1)]
    for lab, column in columns.items():
        told = limits[0][header.index(column)] if limits and column in header else ""
        if told and told.strip() != number(whole[lab]):
            remarks.append(
                f"{column} has {told.strip()} points in Canvas; the lab has {whole[lab]}"
            )
        possible.append(told.strip() or whole[lab])
    made: list[list[object]] = [[*shown, *columns.values()], possible]
    for place, mine in sorted(matching.found.items()):
        made.append([*_who(people[place], shown), *(_grade(mine.get(n)) for n in columns)])
    text = text_of(made, exact=range(len(shown), len(shown) + len(columns)))
    return Import(text, matching, remarks)


def _export(path: Path) -> tuple[list[str], list[list[str]]]:
    header, rows = read_csv(path)
    if len(header) < 3 or "Student" not in header[0] or "ID" not in header[1]:
        raise ValueError(
            f"{path} is no gradebook exported from Canvas: it begins with {header[:3]}, "
            "not with Student, ID. Export it in English, with the names in one column."
        )
    if "Section" not in header:
        raise ValueError(f"{path} has no column Section: export it from Canvas as it is")
    return header, [row + [""] * (len(header) - len(row)) for row in rows]


def _is_person(row: Sequence[str]) -> bool:
    head = row[0].strip()
    posting = all(re.fullmatch(r"\s*(Muted|Manual Posting.*)?\s*", cell, re.I) for cell in row)
    return bool(head) and "Points Possible" not in head and head != "Student, Test" and not posting


def _person(header: Sequence[str], row: Sequence[str]) -> Person:
    told = dict(zip(header, row, strict=False))
    login = told.get("SIS Login ID", "")
    keys = {"id": told.get("ID", ""), "sis": told.get("SIS User ID", ""), "login": login}
    keys["email"] = login if "@" in login else ""
    return Person(told, keys, (told["Student"],))


def _known(results: ClassResult) -> list[Person]:
    people = {}
    for s in results.submissions:
        if s.system == "Canvas" and s.number:
            name = s.display or s.student
            row = {"Student": name, "ID": s.number, "Section": ""}
            people.setdefault(s.number, Person(row, {"id": s.number}, (name,)))
    return list(people.values())


def _who(person: Person, shown: Sequence[str]) -> list[str]:
    """Cells that name a person. One that would be a formula is left empty: others name them."""
    cells = [person.row.get(name, "") for name in shown]
    return ["" if name != "Student" and is_formula(cell) else cell
            for name, cell in zip(shown, cells, strict=True)]  # fmt: skip


def _column(lab: int, header: Sequence[str], shown: Sequence[str], remarks: list[str]) -> str:
    """The assignment's column, as Canvas wrote it, or a new one."""
    mine = re.compile(rf"\blab\s*0?{lab}\b", re.IGNORECASE)
    there = [name for name in header if name not in shown and mine.search(name)]
    if len(there) == 1:
        return there[0]
    name = f"Lab {lab:02d}"
    if there:
        remarks.append(f"{', '.join(there)}: any of these may be {name}; a new column is made")
    else:
        remarks.append(f"Canvas will make an assignment {name}, unless one with that name is there")
    return name


def _grade(submission: Submission | None) -> str:
    """Empty leaves Canvas's cell as it is: nothing handed in, or nothing graded, is no 0."""
    if submission is None or submission.state == NOT_GRADED:
        return ""
    return number(submission.points)
