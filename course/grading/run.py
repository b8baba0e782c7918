"""Grade a class: hand students to jobs, keep what is done, go on after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import course
from course.grading import intake, isolation, job, results
from course.grading.intake import Handed, Intake
from course.grading.results import ClassResult, IsolationReport, Submission
from course.grading.session import Limits, resident
from course.pins import ROOT
from course.practice import registry
from course.practice.my_engine import write_whole

RETRIES = 2  # a job that dies over a student is started so often
OVERHEAD = 120.0  # s for one student beside the time of their exercises


@dataclass(frozen=True)
class Options:
    """What a run is asked to do. lab None: whichever lab each notebook is of."""

    submissions: Path
    out: Path
    lab: int | None = None
    jobs: int = 1
    seed: str = ""
    limits: Limits = field(default_factory=Limits)
    resume: bool = False
    shard: tuple[int, int] = (1, 1)
    level: str = ""
    allow_unsandboxed: bool = False


@dataclass
class Unit:
    """What one student handed in: the piece of work that a job does."""

    name: str
    handed: Handed
    fingerprint: str

    def told(self) -> dict[str, Any]:
        whose = self.handed.owner
        return {
            "unit": self.name,
            "student": whose.student,
            "display": whose.display,
            "system": whose.system,
            "number": whose.number,
            "late": whose.late,
            "people": self.handed.people,
            "notebooks": [job.as_line(entry) for entry in self.handed.notebooks],
            "others": self.handed.others[:50],
            "fingerprint": self.fingerprint,
        }


@dataclass
class Progress:
    """What a run tells while it goes on."""

    total: int = 0
    done: int = 0
    before: int = 0  # done by an earlier run
    on_change: Callable[[Progress], None] = lambda progress: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def one_more(self) -> None:
        with self.lock:
            self.done += 1
        self.on_change(self)


def units(found: Intake) -> list[Unit]:
    """The class as pieces of work, in an order that depends on nothing but names."""
    made = []
    for handed in found.students:
        whose = handed.owner
        clean = re.sub(r"[^A-Za-z0-9]+", "-", whose.student).strip("-")[:40] or "student"
        words = f"{whose.system}\0{whose.student}".encode("utf-8", "surrogatepass")
        name = f"{clean}-{hashlib.sha256(words).hexdigest()[:8]}"
        facts = json.dumps([[e.source, e.size, e.changed] for e in handed.notebooks])
        made.append(Unit(name, handed, intake.fingerprint(facts.encode())))
    return sorted(made, key=lambda unit: unit.name)


def open_run(options: Options) -> dict[str, Any]:
    """The run that this folder holds, or a new one. ValueError: it holds another one.

    ``run.json`` has the seed: it is the teacher's, like the results.
    """
    path = options.out / "run.json"
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = {"lab": options.lab, "course": course.__version__, "content": _content(options.lab)}
    if not path.exists():
        fresh = {**wanted, "seed": options.seed or secrets.token_hex(16)}
        beside = options.out / f".run.{os.getpid()}.json"
        write_whole(beside, json.dumps(fresh, indent=1) + "\n")
        beside.chmod(0o600)
        try:  # whoever is first decides, for all shards
            os.link(beside, path)
        except FileExistsError:
            pass
        except OSError:
            shutil.copy(beside, path)
        beside.unlink()
    told = json.loads(path.read_text(encoding="utf-8"))
    if options.seed and told["seed"] != options.seed:
        raise ValueError(f"{options.out} belongs to a run with another --seed: name another --out")
    for name, why in (("lab", "another --lab"), ("content", "another version of the exercises")):
        if told[name] != wanted[name]:
            raise ValueError(f"{options.out} belongs to a run with {why}: name another --out")
    return told


def _content(lab: int | None) -> str:
    """A digest of everything that decides about points."""
    digest = hashlib.sha256()
    folders = ("engine", "memory", "workload", "practice", "grading")
    paths = [p for name in folders for p in (ROOT / "course" / name).rglob("*.py")]
    for path in sorted(paths):
        number = re.fullmatch(r"lab_(\d\d)", path.stem)
        if number and lab is not None and int(number[1]) != lab:
            continue
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def is_done(unit: Unit, partial: dict[str, Submission]) -> bool:
    """Whether all of a student's submissions are there, and of what they handed in now."""
    mine = [s for s in partial.values() if s.unit == unit.name]
    current = [s for s in mine if s.fingerprint == unit.fingerprint]
    broken = [s for s in current if s.state == results.NOT_GRADED or errors(s)]
    return bool(current) and len(current) == current[0].siblings and not broken


def errors(submission: Submission) -> list[str]:
    """Exercises that the grader could not grade."""
    return [e.id for e in submission.exercises if e.state == results.ERROR]


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
    rooms = Path(tempfile.mkdtemp(prefix="course-rooms-"))
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
        _Hand({**settings, "slot": slot}, waiting, progress, options, stop)
        for slot in range(1, min(options.jobs, max(1, len(todo))) + 1)
    ]
    for hand in hands:
        hand.start()
    peak = 0
    try:
        while any(hand.is_alive() for hand in hands):
            hands[0].join(0.25) if hands[0].is_alive() else time.sleep(0.25)
            peak = max(peak, resident(os.getpid()))
    finally:
        stop.set()
        for hand in hands:
            hand.end()
            hand.join()
    for hand in hands:
        if hand.failure is not None:
            raise hand.failure
    return peak


class _Hand(threading.Thread):
    """Feeds one job, and starts it again when it dies."""

    def __init__(self, settings: dict, waiting: Any, progress: Progress, options: Options, stop):
        super().__init__(daemon=True)
        self.settings, self.waiting, self.progress = settings, waiting, progress
        self.options, self.stop = options, stop
        self.process: subprocess.Popen[str] | None = None
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    unit = self.waiting.get_nowait()
                except queue.Empty:
                    return
                self._one(unit)
        except Exception as error:
            self.failure = error
        finally:
            self.end()

    def _one(self, unit: Unit) -> None:
        for _ in range(RETRIES):
            if self.stop.is_set():
                return
            if self._asked(unit):
                self.progress.one_more()
                return
            self.end()
        if not self.stop.is_set():
            submission = _given_up(unit, self.options)
            path = self.options.out / "partial" / f"{submission.name}.json"
            results.write(path, submission)
            self.progress.one_more()

    def _asked(self, unit: Unit) -> bool:
        """Whether the job did this student."""
        process = self._job()
        assert process.stdin is not None
        assert process.stdout is not None
        most = max((sum(1 for _ in registry.lab(n)) for n in registry.labs()), default=1)
        limit = self.options.limits.seconds * 2 * most * (3 if self.options.lab is None else 1)
        timer = threading.Timer(limit + OVERHEAD, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(unit.told()) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            return line.endswith("\n") and json.loads(line).get("done") == unit.name
        except (OSError, ValueError):
            return False
        finally:
            timer.cancel()

    def _job(self) -> subprocess.Popen[str]:
        if self.process is None:
            with open(self.options.out / f"job-{self.settings['slot']}.log", "ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "course.grading.job"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    errors="surrogatepass",
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                )
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(self.settings) + "\n")
        return self.process

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close() if stream else None


def _given_up(unit: Unit, options: Options) -> Submission:
    lab = options.lab or 0
    told = unit.told()
    return Submission(
        f"{unit.name}-{lab:02d}",
        told["student"],
        told["display"],
        lab,
        results.NOT_GRADED,
        0.0,
        sum(e.points for e in registry.lab(lab)) if lab else 0,
        source=unit.handed.notebooks[0].source if unit.handed.notebooks else "",
        system=told["system"],
        number=told["number"],
        repairs=[f"the grader's own process ended twice over this; see {options.out}/job-*.log"],
        unit=unit.name,
        fingerprint=unit.fingerprint,
    )


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
