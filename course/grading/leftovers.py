"""Temporary folders of grading: made with a name that says whose, removed when nobody is left.

A grader that is killed cannot remove its own. The next one does: folders of this user, in the
system's folder for temporary files, whose process is gone. Links are never followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from course.grading.sandbox import FIRST_USER

MOST_JOBS = 256

NAME = re.compile(
    r"^course-(?:rooms|worker|open)-(?P<where>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<began>\d{1,20})-\w+$"
)


def make(kind: str) -> Path:
    """A folder of this process. kind: "rooms", "worker" or "open"."""
    pid = os.getpid()
    return Path(tempfile.mkdtemp(prefix=f"course-{kind}-{_where()}-{pid}-{began(pid)}-"))


def sweep() -> list[Path]:
    """Remove what dead processes left; what was removed."""
    removed = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if _is_left(entry):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(Path(entry.path))
    return removed


def _is_left(entry: os.DirEntry) -> bool:
    found = NAME.match(entry.name)
    if found is None or not hasattr(os, "getuid") or found["where"] != _where():
        return False
    try:
        facts = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    mine = facts.st_uid == os.getuid()
    if os.getuid() == 0:  # whose workers own their folders
        mine = mine or FIRST_USER <= facts.st_uid <= FIRST_USER + MOST_JOBS
    is_gone = int(found["began"]) != began(int(found["pid"]))
    return mine and stat.S_ISDIR(facts.st_mode) and is_gone


def began(pid: int) -> int:
    """When a process began, in ticks since the machine did; 0: there is none, or /proc is not."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return 0


@cache
def _where() -> str:
    """This machine since it was started, and of its containers this one: numbers of processes mean
    nothing elsewhere, and the folder may be shared."""
    told = ""
    with contextlib.suppress(OSError):
        told = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink(
            "/proc/self/ns/pid"
        )
    return hashlib.sha256(told.encode()).hexdigest()[:8]
