"""Grade a class: hand students to jobs, keep what is done, go on after an interruption."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import course
from course.grading import intake, isolation, leftovers, results
from course.grading.hands import Hand
from course.grading.intake import Intake
from course.grading.plan import Options, Progress, Unit, errors, is_done, open_run, units
from course.grading.results import ClassResult, IsolationReport
from course.grading.session import resident
from course.pins import ROOT
from course.practice import registry
from course.practice.my_engine import write_whole

__all__ = ["Options", "Progress", "Unit", "errors", "grade", "merge"]


def grade(options: Options, on_change: Callable[[Progress], None] = lambda p: None) -> ClassResult:
    """Grade what is not done yet; the class's result of this shard. ValueError: not as asked.

    PermissionError: no isolation here, and nobody allowed to do without.
    """
    if options.lab is not None:
        registry.lab(options.lab)
    partial_folder = options.out / "partial"
    found = intake.collect(options.submissions, options.out)
    whole = units(found)
    number, count = options.shard
    mine = [unit for place, unit in enumerate(whole) if place % count == number - 1]
    run = open_run(options)
    partial = results.read_partial(partial_folder)
    there = {unit.name for unit in mine} & {s.unit for s in partial.values()}
    if there and not options.resume:
        raise ValueError(
            f"{partial_folder} holds results already: say --resume to go on, or name another --out"
        )
    todo = [unit for unit in mine if not is_done(unit, partial)]
    for unit in todo:  # of an earlier version of what they handed in
        for submission in partial.values():
            if submission.unit == unit.name:
                (partial_folder / f"{submission.name}.json").unlink(missing_ok=True)
    began = time.monotonic()
    leftovers.sweep()
    rooms = leftovers.make("rooms")
    try:
        kept = isolation.find(rooms, options.level)
        if not kept.sufficient and not options.allow_unsandboxed:
            raise PermissionError(isolation.remedy(kept))
        write_whole(options.out / f"isolation-{number}.json", json.dumps(asdict(kept), indent=1))
        progress = Progress(len(mine), len(mine) - len(todo), len(mine) - len(todo), on_change)
        on_change(progress)
        peak = _work(options, run, kept, rooms, todo, progress)
    finally:
        shutil.rmtree(rooms, ignore_errors=True)
    return merged(options, found, mine, kept, time.monotonic() - began, peak)


def _work(
    options: Options,
    run: dict[str, Any],
    kept: IsolationReport,
    rooms: Path,
    todo: list[Unit],
    progress: Progress,
) -> int:
    """Run the jobs; bytes of memory that all processes used at the most, as sampled."""
    waiting: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in todo:
        waiting.put(unit)
    settings = {
        "out": str(options.out), "rooms": str(rooms), "lab": options.lab, "seed": run["seed"],
        "releases": releases(), "isolation": isolation.words(kept), "level": kept.level,
        "limits": asdict(options.limits),
    }  # fmt: skip
    stop = threading.Event()
    hands = [
        Hand({**settings, "slot": slot}, waiting, progress, options, stop)
        for slot in range(1, min(options.jobs, max(1, len(todo))) + 1)
    ]
    for hand in hands:
        hand.start()
    peak = 0
    try:
        while any(hand.is_alive() for hand in hands):
            hands[0].join(0.25) if hands[0].is_alive() else time.sleep(0.25)
            peak = max(peak, resident(os.getpid(), fair=True))
    finally:
        stop.set()
        for hand in hands:
            hand.end()
            hand.join()
    for hand in hands:
        if hand.failure is not None:
            raise hand.failure
    return peak


def releases() -> dict[str, str]:
    """Lab -> the fingerprint of the notebook that is handed out today."""
    found = {}
    for path in sorted((ROOT / "exercises").glob("[0-9][0-9]_*.ipynb")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(path.read_text(encoding="utf-8"))["metadata"]["course"]
            found.setdefault(str(int(told["lab"])), str(told["release"]))
    return found


def merged(
    options: Options,
    found: Intake,
    mine: list[Unit],
    kept: IsolationReport,
    seconds: float = 0.0,
    peak: int = 0,
) -> ClassResult:
    """What is on disk for these students, as one result; ``missing`` names those without."""
    partial = results.read_partial(options.out / "partial")
    names = {unit.name for unit in mine}
    submissions = results.in_order(s for s in partial.values() if s.unit in names)
    labs = sorted({s.lab for s in submissions if s.lab})
    for submission in submissions:  # nothing was handed in, in a class that did one lab
        if not submission.lab and len(labs) == 1:
            submission.lab = labs[0]
            submission.of = sum(e.points for e in registry.lab(labs[0]))
    missing = [u.handed.owner.student for u in mine if not is_done(u, partial)]
    limits = {name: float(value) for name, value in asdict(options.limits).items()}
    return ClassResult(
        course.__version__, labs, kept, submissions, found.left_over, missing, limits,
        round(seconds, 1), peak,
    )  # fmt: skip


def merge(options: Options) -> ClassResult:
    """The result of all shards, written to results.json."""
    found = intake.collect(options.submissions, options.out)
    open_run(options)
    reports = [
        IsolationReport(**json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(options.out.glob("isolation-*.json"))
    ]
    if not reports:
        raise ValueError(f"{options.out} holds no results: grade first")
    worst = min(reports, key=lambda r: (r.sufficient, sum(r.measured.values())))
    result = merged(options, found, units(found), worst)
    results.write(options.out / "results.json", result)
    return result
