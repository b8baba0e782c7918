"""Files that were handed in, in folders and in zip files.

Nothing is unpacked to disk: members of a zip are read, up to a limit, so a name that climbs out of
it, a link or a bomb has nothing to do harm to. They are named as left over.
"""

from __future__ import annotations

import io
import re
import stat
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_NOTEBOOK = 100 * 2**20  # bytes
MAX_ZIP_ENTRIES = 20_000
MAX_ZIP = 4 * 2**30  # bytes of a zip file itself
MAX_NAME = 400
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


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_NOTEBOOK:
        raise ValueError(f"it is larger than {MAX_NOTEBOOK // 2**20} MiB")
    return data


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        return _bounded(file.read(MAX_NOTEBOOK + 1))


def unzip(entry: Entry, left_over: list[str], depth: int) -> Iterator[Entry]:
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
            yield from unzip(inner, left_over, depth + 1)
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
