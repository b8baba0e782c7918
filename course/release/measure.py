"""What each lab needs of a machine: its solved notebook is run, and its processes are watched.

python -m course teaching --measure
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat

from course.authoring.execute import execute
from course.pins import ROOT

EVERY = 0.1  # s between two looks


@dataclass
class Need:
    """Of one lab, run from top to bottom by one learner. memory: MiB at the most, of the kernel
    and what it starts, pages that several processes share counted once; cpu, wall: s."""

    lab: int
    memory: int
    cpu: float
    wall: float


def measure(path: Path) -> Need:
    """Run a notebook. OSError: not Linux, whose /proc says what processes use."""
    book = nbformat.read(path, as_version=4)
    peak, cpu, stop = 0, 0.0, threading.Event()
    seen: dict[int, float] = {}

    def watch() -> None:
        nonlocal peak
        while not stop.wait(EVERY):
            memory = 0
            for number in children(os.getpid()):
                used, seconds = usage(number)
                memory += used
                seen[number] = max(seen.get(number, 0.0), seconds)
            peak = max(peak, memory)

    usage(os.getpid())
    watcher = threading.Thread(target=watch, daemon=True)
    began = time.perf_counter()
    watcher.start()
    try:
        with tempfile.TemporaryDirectory() as engine:
            execute(book, path.parent, 600, env={"COURSE_MY_ENGINE": engine})
    finally:
        stop.set()
        watcher.join()
    cpu = sum(seen.values())
    return Need(int(path.name[:2]), peak // 2**20, cpu, time.perf_counter() - began)


def children(number: int) -> list[int]:
    """All processes below one."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            parent = int(text.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [number]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def usage(number: int) -> tuple[int, float]:
    """(bytes, CPU seconds) of one process; zeros when it has ended."""
    try:
        text = Path(f"/proc/{number}/smaps_rollup").read_text()
        stat = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if number == os.getpid():
            raise
        return 0, 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    seconds = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return int(found[1]) * 1024 if found else 0, seconds


def every(root: Path = ROOT) -> list[Path]:
    """The solved notebooks, in order."""
    return sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb"))
