"""What grading writes down: plain records, one file a submission, then one for the class.

``OUT/partial/NAME.json`` is one ``Submission``; ``OUT/results.json`` is a ``ClassResult``. Both are
written beside and put in place, so a reader never sees half of one. docs/grading.md describes every
field; ``FORMAT`` goes up when one changes its meaning.

Words in ``quoted`` fields (and every ``answer``) come from students: show them as text, never as
HTML, a formula or a path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from course.practice.my_engine import write_whole

FORMAT = 1
T = TypeVar("T")

# States of a behaviour.
HOLDS, WRONG, UNWRITTEN, NOT_RUN = "holds", "wrong", "not written", "not run"
# States of an exercise: the first two earn points; "error" is the grader's own fault.
RIGHT, PARTLY, NOTHING, UNTOUCHED, MISSING, ERROR = (
    "right", "partly right", "wrong", "untouched", "missing", "error",
)  # fmt: skip
# States of a submission; "not graded" is the grader's own fault.
GRADED, NO_NOTEBOOK, DAMAGED, WRONG_LAB, NOT_GRADED = (
    "graded", "no notebook", "damaged", "wrong lab", "not graded",
)  # fmt: skip


@dataclass
class BehaviourResult:
    """One behaviour. points: what it is worth. public: the case that failed stands in the notebook,
    so its words may be shown. says: for the student; detail: for the teacher only (hidden inputs).
    """

    behaviour: str
    state: str
    points: float
    public: bool = True
    says: str = ""
    detail: str = ""


@dataclass
class ExerciseResult:
    """One exercise of one submission.

    points of ``of``. taken: where the answer was found ("cell id", "marker line", "symbol name").
    repairs: what was out of order in the notebook. notes: what deserves a teacher's look.
    mistake, mistake_note: the known wrong answer that it behaves like. how: on which side of the
    wall the probes ran. answer: its text, as graded. seconds: not compared between runs.
    """

    id: str
    key: str
    title: str
    points: float
    of: int
    state: str
    behaviours: list[BehaviourResult] = field(default_factory=list)
    taken: str = ""
    repairs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistake: str = ""
    mistake_note: str = ""
    how: str = ""
    feedback: list[str] = field(default_factory=list)
    answer: str = ""
    seconds: float = 0.0
    memory: int = 0


@dataclass
class Submission:
    """One student's work on one lab. name: the file under partial/, without .json.

    student: what the hand-in system calls them; display: their name, if it says; login, number: as
    far as known. source: path within the folder of submissions. late: "" or why it counts as late;
    superseded: older copies that were not graded; ignored: what else lay beside it.
    unit, siblings, fingerprint: of all that this student handed in, in how many submissions, so
    that a resumed run knows what is done and whether it changed.
    """

    name: str
    student: str
    display: str
    lab: int
    state: str
    points: float
    of: int
    source: str = ""
    system: str = ""
    login: str = ""
    number: str = ""
    email: str = ""
    late: str = ""
    superseded: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exercises: list[ExerciseResult] = field(default_factory=list)
    unit: str = ""
    siblings: int = 1
    fingerprint: str = ""
    isolation: str = ""
    seconds: float = 0.0


@dataclass
class IsolationReport:
    """How workers were kept in, as measured at the start. sufficient: nothing got out."""

    level: str
    layers: list[str] = field(default_factory=list)
    measured: dict[str, bool] = field(default_factory=dict)
    sufficient: bool = False
    why_not: dict[str, str] = field(default_factory=dict)


@dataclass
class ClassResult:
    """A whole run. left_over: files of the folder that belong to no submission."""

    course: str
    labs: list[int]
    isolation: IsolationReport
    submissions: list[Submission]
    left_over: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory: int = 0
    format: int = FORMAT

    @property
    def points(self) -> float:
        return round(sum(s.points for s in self.submissions), 2)


def comparable(result: Any) -> Any:
    """As plain data, without what differs from run to run: times and memory."""
    if is_dataclass(result) and not isinstance(result, type):
        result = asdict(result)
    if isinstance(result, dict):
        left_out = ("seconds", "memory", "peak_memory")
        return {k: comparable(v) for k, v in result.items() if k not in left_out}
    return [comparable(v) for v in result] if isinstance(result, list) else result


def write(path: Path, record: Any) -> None:
    """Atomically; lone surrogates in a student's words do not stop it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = json.dumps(asdict(record), indent=1)
    write_whole(path, words + "\n")


def read_submission(path: Path) -> Submission:
    """ValueError: not written by this version."""
    return _made(Submission, json.loads(path.read_text(encoding="utf-8")))


def read_class(path: Path) -> ClassResult:
    """ValueError: not written by this version."""
    told = json.loads(path.read_text(encoding="utf-8"))
    if told.get("format") != FORMAT:
        raise ValueError(f"{path} has format {told.get('format')}; this course reads {FORMAT}")
    return _made(ClassResult, told)


def read_partial(folder: Path) -> dict[str, Submission]:
    """Every whole file of a folder; what cannot be read counts as not graded yet."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = read_submission(path)
        except (ValueError, OSError):
            continue
    return found


def in_order(submissions: Iterable[Submission]) -> list[Submission]:
    return sorted(submissions, key=lambda s: (s.lab, s.student, s.name))


def _made(kind: type[T], told: Any) -> T:
    """A record from plain data, checked field by field."""
    if type(told) is not dict:
        raise ValueError(f"no {kind.__name__}")
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for name, value in told.items():
        if name not in known:
            raise ValueError(f"a {kind.__name__} has no {name!r}")
        inner = (*get_args(hints[name]), hints[name])[0]
        if isinstance(inner, type) and is_dataclass(inner):
            value = [_made(inner, v) for v in value] if type(value) is list else _made(inner, value)
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(str(error)) from error
