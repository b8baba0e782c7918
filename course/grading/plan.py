"""What a run is to do: the students of a folder, the seed, what is done already."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import course
from course.grading import intake, job, results
from course.grading.intake import Handed, Intake
from course.grading.results import Submission
from course.grading.session import Limits
from course.pins import ROOT
from course.practice.my_engine import write_whole


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
        if "exports" in path.parts or path.name == "reports.py":  # what is made of the points
            continue
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
