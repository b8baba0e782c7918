"""Whose file is this? The names that hand-in systems give to files and folders."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOODLE = re.compile(r"^(?P<name>.+)_(?P<number>\d+)_assignsubmission_\w+?_?(?:_(?P<file>.+))?$")
MOODLE_FLAT = re.compile(
    r"^(?P<name>.+)_(?P<number>\d+)_assignsubmission_file_(?P<file>[^/]+\.\w+)$"
)
CANVAS = re.compile(
    r"^(?P<name>[^_/]+)_(?:(?P<late>LATE)_)?(?P<number>\d+)_(?P<turn>\d+)_(?P<file>[^/]+)$"
)
GRADESCOPE = re.compile(r"^submission_(?P<number>\d+)$")
AGAIN = re.compile(r"(?:-(?P<turn>\d+)| \((?P<copy>\d+)\))(?=\.\w+$|$)")
LAB_FILE = re.compile(r"_?\d\d_[a-z][a-z_]*$")


@dataclass(frozen=True)
class Owner:
    """student: what the system calls them, the same in all of their files. turn: later is larger,
    where the name says so."""

    student: str
    display: str = ""
    system: str = "folder"
    number: str = ""
    late: str = ""
    turn: int = 0
    lab_name: str = ""


def owner(parts: tuple[str, ...]) -> Owner:
    """The owner of a file by its path: folders and, last, the name without any zip's."""
    *folders, name = parts
    lowered = [folder.lower() for folder in folders]
    if "submitted" in lowered:
        place = lowered.index("submitted")
        if len(folders) > place + 1:
            lab = folders[place + 2] if len(folders) > place + 2 else ""
            return Owner(folders[place + 1], folders[place + 1], "nbgrader", lab_name=lab)
    for folder in folders:
        if found := GRADESCOPE.match(folder):
            return Owner(folder, "", "Gradescope", found["number"])
        if found := MOODLE.match(folder):
            return Owner(
                f"{found['name']}_{found['number']}", found["name"], "Moodle", found["number"]
            )
    if found := MOODLE_FLAT.match(name):
        student = f"{found['name']}_{found['number']}"
        return Owner(student, found["name"], "Moodle", found["number"], turn=_turn(name))
    for part in (name, *folders):
        if found := CANVAS.match(part):
            late = "marked LATE by Canvas" if found["late"] else ""
            turn = int(found["turn"]) * 1000 + _turn(part)
            student = f"{found['name']}_{found['number']}"
            return Owner(student, found["name"], "Canvas", found["number"], late, turn)
    if folders:
        return Owner(folders[0], folders[0], "folder", turn=_turn(name))
    stem = AGAIN.sub("", name).rpartition(".")[0] or name
    student = LAB_FILE.sub("", stem).strip("_- ") or stem
    return Owner(student, student, "file", turn=_turn(name))


def _turn(name: str) -> int:
    """2 for "lab-2.ipynb" and "lab (2).ipynb": a later copy."""
    found = AGAIN.search(name)
    return int((found["turn"] or found["copy"])[:6]) if found else 0


def gradescope_people(text: str) -> dict[str, dict[str, str]]:
    """submission_metadata.yml: folder -> name, email, sid of its first submitter.

    Read line by line, so that it needs no YAML library and runs nothing.
    """
    people: dict[str, dict[str, str]] = {}
    current = ""
    for line in text.splitlines():
        if found := re.match(r"^['\"]?(submission_\d+)['\"]?:", line):
            current = found[1]
            people[current] = {}
        elif current and (
            found := re.match(r"^\s*-?\s*['\"]?:?(name|email|sid)['\"]?:\s*(.*)$", line)
        ):
            people[current].setdefault(found[1], found[2].strip().strip("'\"")[:200])
    return people
