"""Find what was handed in: folders, notebooks, zip files, whatever the hand-in system made."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course.grading.archive import SKIPPED, Entry, unzip
from course.grading.layouts import Owner, gradescope_people, owner

MAX_FILES = 200_000


@dataclass
class Handed:
    """One student's files. notebooks: newest first. people: what a metadata file says of them."""

    owner: Owner
    notebooks: list[Entry] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    people: dict[str, str] = field(default_factory=dict)


@dataclass
class Intake:
    """By student, in order of their names; left_over belongs to nobody, with why."""

    students: list[Handed]
    left_over: list[str]


def collect(root: Path, out: Path | None = None) -> Intake:
    """Everything under a folder, or in a zip file. FileNotFoundError: there is no such thing.

    out: a folder that is not looked into, because our own results are there.
    """
    if not root.exists():
        raise FileNotFoundError(f"there is no folder or zip file {root}")
    left_over: list[str] = []
    if root.is_dir():
        entries = list(_folder(root, left_over, out))
    else:
        entries = list(_file(root, (root.name,), left_over))
        if not zipfile.is_zipfile(root) and root.suffix.lower() != ".ipynb":
            raise ValueError(f"{root} is neither a folder, nor a zip file, nor a notebook")
        if zipfile.is_zipfile(root):
            entries = [_moved(entry, entry.parts[1:]) for entry in entries]
    entries = _without_wrapper(entries)
    students: dict[tuple[str, str], Handed] = {}
    people: dict[str, dict[str, str]] = {}
    for entry in entries:
        if entry.parts[-1].lower() in ("submission_metadata.yml", "submission_metadata.yaml"):
            try:
                people |= gradescope_people(entry.read().decode("utf-8", errors="replace"))
            except (OSError, ValueError, zipfile.BadZipFile):
                left_over.append(f"{entry.source}: cannot be read")
            continue
        whose = owner(tuple(part.removesuffix(".zip") for part in entry.parts))
        handed = students.setdefault((whose.system, whose.student), Handed(whose))
        if entry.parts[-1].lower().endswith(".ipynb"):
            handed.notebooks.append(entry)
        else:
            handed.others.append(entry.source)
    found = []
    for (system, student), handed in sorted(students.items()):
        handed.people = people.get(student, {})
        handed.notebooks.sort(key=_newest)
        alone = not handed.notebooks and system in ("folder", "file")
        if alone and all(source.count("/") == 0 for source in handed.others):
            left_over += [f"{source}: no notebook" for source in handed.others]
        else:
            found.append(handed)
    return Intake(found, sorted(left_over))


def _newest(entry: Entry) -> tuple[float, float, str]:
    turn = owner(tuple(part.removesuffix(".zip") for part in entry.parts)).turn
    return (-turn, -entry.changed, entry.source)


def fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _folder(root: Path, left_over: list[str], out: Path | None) -> Iterator[Entry]:
    count = 0
    own = out.resolve() if out else None
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder)
        folders[:] = [name for name in folders if (here / name).resolve() != own]
        below = here.relative_to(root).parts
        for name in sorted(folders):
            if name in SKIPPED or (here / name).is_symlink():
                left_over.append("/".join((*below, name)) + ": not looked into")
        folders[:] = sorted(n for n in folders if n not in SKIPPED and not (here / n).is_symlink())
        for name in sorted(names):
            count += 1
            if count > MAX_FILES:
                raise ValueError(f"{root} holds more than {MAX_FILES} files")
            if name not in SKIPPED:
                yield from _file(here / name, (*below, name), left_over)


def _file(path: Path, parts: tuple[str, ...], left_over: list[str]) -> Iterator[Entry]:
    source = "/".join(parts)
    try:
        facts = path.lstat()
    except OSError as error:
        left_over.append(f"{source}: {error.strerror}")
        return
    if not stat.S_ISREG(facts.st_mode):
        left_over.append(f"{source}: a link or a special file, not read")
        return
    entry = Entry(path, (), parts, facts.st_size, facts.st_mtime)
    if path.suffix.lower() == ".zip":
        yield from unzip(entry, left_over, depth=0)
    else:
        yield entry


def _moved(entry: Entry, parts: tuple[str, ...]) -> Entry:
    return Entry(entry.where, entry.inner, parts or entry.parts, entry.size, entry.changed)


def _without_wrapper(entries: list[Entry]) -> list[Entry]:
    """Without folders that hold all the others, such as the zip's own name."""
    while True:
        tops = {entry.parts[0] for entry in entries}
        inner = all(len(entry.parts) > 2 for entry in entries)
        if len(tops) != 1 or not inner or not entries:
            return entries
        (top,) = tops
        known = top.lower() == "submitted" or owner((top, "x")).system != "folder"
        if known:
            return entries
        entries = [_moved(entry, entry.parts[1:]) for entry in entries]
