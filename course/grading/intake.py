"""Find what was handed in: folders, notebooks, zip files, whatever the hand-in system made.

Nothing is unpacked to disk: members of a zip are read, up to a limit, so a name that climbs out of
it, a link or a bomb has nothing to do harm to. They are named as left over.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course.grading.layouts import Owner, gradescope_people, owner

MAX_NOTEBOOK = 100 * 2**20  # bytes
MAX_ZIP_ENTRIES = 20_000
MAX_ZIP = 4 * 2**30  # bytes of a zip file itself
MAX_NAME = 400
MAX_FILES = 200_000
SKIPPED = {".ipynb_checkpoints", "__MACOSX", ".git", "__pycache__", ".DS_Store"}


@dataclass(frozen=True)
class Entry:
    """A file that was handed in. where: file on disk; inner: names of members, zip in zip."""

    where: Path
    inner: tuple[str, ...]
    parts: tuple[str, ...]  # its path below the folder of submissions, zips as folders
    size: int
    changed: float  # s since 1970, as far as known

    @property
    def source(self) -> str:
        return "/".join(self.parts)

    def read(self) -> bytes:
        """OSError, ValueError, zipfile.BadZipFile: it cannot be read."""
        if not self.inner:
            with open(self.where, "rb") as file:
                return _bounded(file.read(MAX_NOTEBOOK + 1))
        with open(self.where, "rb") as file:
            source = file
            for name in self.inner[:-1]:
                with zipfile.ZipFile(source) as outer:
                    source = io.BytesIO(_member(outer, name))
            with zipfile.ZipFile(source) as archive:
                return _member(archive, self.inner[-1])


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


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_NOTEBOOK:
        raise ValueError(f"it is larger than {MAX_NOTEBOOK // 2**20} MiB")
    return data


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        return _bounded(file.read(MAX_NOTEBOOK + 1))


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
        yield from _zip(entry, left_over, depth=0)
    else:
        yield entry


def _zip(entry: Entry, left_over: list[str], depth: int) -> Iterator[Entry]:
    """Members of a zip as entries; a zip in a zip is looked into once."""
    if not entry.inner and entry.size > MAX_ZIP:
        left_over.append(f"{entry.source}: a zip file of more than {MAX_ZIP // 2**30} GiB")
        return
    try:
        source = open(entry.where, "rb") if not entry.inner else io.BytesIO(entry.read())  # noqa: SIM115
        with source, zipfile.ZipFile(source) as archive:
            members = archive.infolist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        left_over.append(f"{entry.source}: a zip file that cannot be read ({error})")
        yield Entry(entry.where, entry.inner, entry.parts, entry.size, entry.changed)
        return
    if len(members) > MAX_ZIP_ENTRIES:
        left_over.append(f"{entry.source}: {len(members)} members; {MAX_ZIP_ENTRIES} are read")
    for member in members[:MAX_ZIP_ENTRIES]:
        if member.is_dir():
            continue
        if why := _refused(member):
            left_over.append(f"{entry.source}: {why}: {member.filename[:80]!r}")
            continue
        names = tuple(part for part in re.split(r"[/\\]", member.filename) if part not in ("", "."))
        if set(names) & SKIPPED or names[-1].startswith("._"):
            continue
        try:
            changed = time.mktime((*member.date_time, 0, 0, -1))
        except (ValueError, OverflowError):
            changed = entry.changed
        inner = Entry(
            entry.where,
            (*entry.inner, member.filename),
            (*entry.parts, *names),
            member.file_size,
            changed,
        )
        if names[-1].lower().endswith(".zip") and depth < 1:
            yield from _zip(inner, left_over, depth + 1)
        else:
            yield inner


def _refused(member: zipfile.ZipInfo) -> str:
    name = member.filename
    if len(name) > MAX_NAME or not name.strip("/\\ ."):
        return "a name that is too long or empty"
    if name.startswith(("/", "\\")) or re.match(r"^[A-Za-z]:", name):
        return "a path that is not below the zip"
    if ".." in re.split(r"[/\\]", name):
        return "a path that climbs out of the zip"
    if any(ord(letter) < 32 for letter in name):
        return "control characters in a name"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "a link"
    if member.flag_bits & 1:
        return "an encrypted member"
    if member.file_size > MAX_NOTEBOOK and name.lower().endswith(".ipynb"):
        return f"a notebook of more than {MAX_NOTEBOOK // 2**20} MiB"
    return ""


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
