"""Who is who: submissions against the people that a hand-in system lists."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course.grading.results import Submission


@dataclass
class Person:
    """One row of a list. keys: kind -> value, of "id", "sis", "login", "email", "participant";
    names: ways in which their name is written. row: as it stands in the list."""

    row: dict[str, str]
    keys: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


@dataclass
class Matching:
    """found: place in the list -> submissions (one a lab). unmatched: submissions and why not.
    absent: people of whom there is nothing."""

    found: dict[int, dict[int, Submission]] = field(default_factory=dict)
    unmatched: list[tuple[Submission, str]] = field(default_factory=list)
    absent: list[Person] = field(default_factory=list)


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of a CSV with commas, semicolons or tabs. ValueError: it is none."""
    data = path.read_bytes()
    for encoding in ("utf-8-sig", "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"):
        try:
            text = data.decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    else:
        raise ValueError(f"{path} is neither UTF-8 nor Windows text")
    head = text.partition("\n")[0]
    separator = max(",;\t", key=head.count)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if any(row)]
    if not rows:
        raise ValueError(f"{path} is empty")
    return [name.strip() for name in rows[0]], rows[1:]


def match(submissions: Iterable[Submission], people: Sequence[Person]) -> Matching:
    """Each submission to at most one person: by number or address first, by name only where that
    is one person's alone."""
    places: dict[tuple[str, str], list[int]] = {}
    named: dict[str, list[int]] = {}
    for place, person in enumerate(people):
        for kind, value in person.keys.items():
            if value.strip():
                places.setdefault((kind, _plain(value)), []).append(place)
        for spelling in set().union(*map(spellings, person.names)):
            named.setdefault(spelling, []).append(place)
    result = Matching()
    for submission in submissions:
        place, why = _place(submission, places, named)
        if place is None:
            result.unmatched.append((submission, why))
        elif (other := result.found.get(place, {}).get(submission.lab)) is not None:
            why = f"the same person as {other.student}; decide which one counts"
            result.unmatched.append((submission, why))
        else:
            result.found.setdefault(place, {})[submission.lab] = submission
    result.absent = [p for place, p in enumerate(people) if place not in result.found]
    return result


def _place(
    s: Submission, places: Mapping[tuple[str, str], list[int]], named: Mapping[str, list[int]]
) -> tuple[int | None, str]:
    for kind, value in _keys(s):
        found = sorted(set(places.get((kind, _plain(value)), [])))
        if len(found) == 1:
            return found[0], ""
        if found:
            return None, f"{len(found)} people in the list have the {kind} {value}"
    names = {spelling for name in (s.display, s.student) for spelling in spellings(name)}
    found = sorted({place for name in names for place in named.get(name, [])})
    if len(found) == 1:
        return found[0], ""
    if found:
        return None, f"{len(found)} people in the list have this name"
    return None, "nobody in the list has this name, number or address"


def _keys(s: Submission) -> list[tuple[str, str]]:
    """What a submission says of its owner, the surest first. A number means what its system says:
    Canvas puts its own id into file names, Moodle the participant's, Gradescope the student id."""
    found = []
    number = {"Canvas": "id", "Moodle": "participant", "Gradescope": "sis"}.get(s.system)
    if number and s.number:
        found.append((number, s.number))
    found += [("email", s.email)] if s.email else []
    found += [("login", s.login), ("sis", s.login)] if s.login else []
    if s.system in ("nbgrader", "folder", "file"):  # such names are often logins
        found += [("login", s.student), ("sis", s.student), ("email", s.student)]
    return found


def spellings(name: str) -> set[str]:
    """Ways to write one name: in order, turned around at the comma, as Canvas has it in files."""
    name = re.sub(r"_\d+$", "", name)
    whole = _plain(name)
    found = {whole}
    last, comma, first = name.partition(",")
    if comma and last.strip() and first.strip():
        found.add(_plain(f"{first} {last}"))
    words = whole.replace(",", " ").split()
    if len(words) > 1:
        # "Doe, Jane" and "Jane Doe" are both doejane there.
        found.add("".join(words) if comma else words[-1] + "".join(words[:-1]))
    return {spelling for spelling in found if spelling}


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
