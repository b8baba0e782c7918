"""The learner's own engine: what they passed, as text, in a folder of theirs.

``my_engine/`` lies beside their ``exercises/`` (or where COURSE_MY_ENGINE says) and holds one file
for each passed answer, the earlier versions of it under ``history/``, and ``journal.jsonl``, one
line for each check. A file is written whole and then put in its place, so a crash or a full disk
leaves the old one; two kernels take turns. Nothing of the course ever writes here but ``check``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import course
from course.practice.exercise import Exercise
from course.practice.source import imports

MARK = "# course-piece: "
WAIT = 5.0  # s to wait for another kernel
WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your share of the disk is full",
    errno.EROFS: "the folder cannot be written to",
    errno.EACCES: "the folder cannot be written to",
    errno.EPERM: "the folder cannot be written to",
    errno.ENAMETOOLONG: "its path is too long",
    errno.EEXIST: "it is a file and no folder",
    errno.ENOTDIR: "it, or a part of its path, is a file and no folder",
    errno.ENOENT: "such a folder cannot be made",
}
REMEDY = "Set COURSE_MY_ENGINE to a folder of yours"


class Busy(OSError):
    """Another kernel holds the folder."""


@dataclass(frozen=True)
class Piece:
    """A saved answer. ``changed``: somebody edited the file after it passed."""

    key: str
    text: str
    passed: str
    course: str
    path: Path
    changed: bool


def folder() -> Path:
    """Where the learner's engine is: COURSE_MY_ENGINE, else beside the exercises folder."""
    if named := os.environ.get("COURSE_MY_ENGINE"):
        return Path(named).expanduser()
    here = Path.cwd()
    for place in (here, *here.parents):
        if place.name in ("exercises", "solutions", "notebooks"):
            return place.parent / "my_engine"
        if (place / "exercises").is_dir():
            return place / "my_engine"
    return here / "my_engine"


class MyEngine:
    """Reads and writes one such folder. Reading never raises for what it finds there."""

    def __init__(self, where: Path | None = None):
        self.where = where or folder()

    def path(self, key: str) -> Path:
        return self.where / f"{key}.py"

    def piece(self, key: str) -> Piece | None:
        """The saved answer; None when there is none, or its file is no longer one."""
        path = self.path(key)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        head = re.search(rf"^{MARK}(\{{.*\}})$", text, re.MULTILINE)
        try:
            facts = json.loads(head[1]) if head else {}
        except ValueError:
            facts = {}
        body = text[head.end() :].strip() + "\n" if head else text
        changed = facts.get("key") != key or facts.get("sha256") != _digest(body)
        return Piece(
            key, body, str(facts.get("passed", "")), str(facts.get("course", "")), path, changed
        )

    def save(self, exercise: Exercise, text: str, facts: dict[str, Any]) -> bool:
        """Put a passed answer in its place; the one before goes to ``history``. False: it was
        there already. OSError: see ``why_not``."""
        body = "\n\n\n".join(filter(None, [imports(exercise, text), text.strip()])) + "\n"
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        head = {
            "key": exercise.key,
            "passed": now,
            "course": course.__version__,
            **facts,
            "sha256": _digest(body),
        }
        whole = (
            f"# {exercise.label}, written by you. It passed on {now[:16].replace('T', ' at ')}.\n"
            f"{MARK}{json.dumps(head)}\n\n\n{body}"
        )
        with self._locked():
            path = self.path(exercise.key)
            before = self.piece(exercise.key)
            if before and before.text == body and not before.changed:
                return False
            if path.exists():
                self._keep(path, exercise.key)
            write_whole(path, whole)
        return True

    def _keep(self, path: Path, key: str) -> None:
        old = path.read_bytes()
        earlier = self.where / "history" / key
        earlier.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(p.stem) for p in earlier.glob("*.py") if p.stem.isdigit()), default=0)
        write_whole(earlier / f"{number:04d}.py", old)

    def note(self, entry: dict[str, Any]) -> None:
        """Add a line to the journal. OSError: it could not be written."""
        entry = {"at": datetime.now().astimezone().isoformat(timespec="seconds"), **entry}
        with self._locked():
            path = self.where / "journal.jsonl"
            line = json.dumps(entry, ensure_ascii=False) + "\n"
            if path.exists() and not path.read_bytes().endswith(b"\n"):
                line = "\n" + line  # a line torn by a crash stays alone
            with open(path, "ab") as file:
                file.write(line.encode())

    def journal(self) -> list[dict[str, Any]]:
        """All lines that can be read, oldest first."""
        try:
            raw = (self.where / "journal.jsonl").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        entries = []
        for line in raw.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    entries.append(entry)
        return entries

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One kernel at a time. The system lets go of the lock when a process dies."""
        self.where.mkdir(parents=True, exist_ok=True)
        with open(self.where / ".lock", "a+b") as file:
            end = time.monotonic() + WAIT
            while not _take(file.fileno()):
                if time.monotonic() > end:
                    raise Busy(errno.EBUSY, "another notebook is saving at this moment")
                time.sleep(0.02)
            try:
                yield
            finally:
                _let_go(file.fileno())


def why_not(error: OSError, where: Path) -> str:
    """Why saving failed and what to do, in a sentence or two."""
    if isinstance(error, Busy):
        return "another notebook is saving at this moment. Run this cell again."
    reason = WHY.get(error.errno or 0, error.strerror or str(error))
    remedy = REMEDY
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Make some room"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        remedy += ", or change its rights"
    return f"{reason} ({where}). {remedy} and run this cell again; what you saved before is there."


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside, then put in place: the old file stays until the new one is whole."""
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


if os.name == "nt":
    import msvcrt

    def _take(descriptor: int) -> bool:
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True

    def _let_go(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]

else:
    import fcntl

    def _take(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network folders know no locks: writes are still whole, only not in turns.
            return error.errno not in (errno.EAGAIN, errno.EACCES)
        return True

    def _let_go(descriptor: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
