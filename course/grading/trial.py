"""Try one answer on all cases of its exercise: outcomes come back, as plain data.

Three ways, by exercise:

outside  the probe runs here and drives a stand-in; calls and values cross the wall.
inside   the probe runs beside the answer: for the few whose arguments cannot cross.
value    the answer is a value: it is fetched once, its worker ended, and the probe runs here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from course.grading.outcomes import outcome_of, well_formed
from course.grading.room import Room
from course.grading.session import Limits, Session, alarm
from course.grading.wall.wire import Gone
from course.practice.exercise import Exercise
from course.practice.guard import TooLong
from course.practice.run import MAX_TIMEOUTS, Case, Outcome, cannot_run, unplain

OUTSIDE, INSIDE, VALUE = "outside", "inside", "value"
PATIENCE = 2.0  # times a probe's own limit: this machine may be busy with other submissions


@dataclass
class Trial:
    """What became of it. ``notes``: what happened to its process; ``seen``: what that says it did
    besides; ``peak``: bytes."""

    outcomes: list[Outcome]
    notes: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    peak: int = 0
    on: dict[str, Any] = field(default_factory=dict)


@dataclass
class Bench:
    """Where answers are tried. session(room, exercise) -> a worker that is not started yet."""

    level: str
    limits: Limits
    slot: int = 0

    def session(self, room: Room, exercise: Exercise) -> Session:
        return Session(room, self.level, self.limits, self.slot, exercise)


def try_answer(
    bench: Bench, room: Room, exercise: Exercise, cases: list[Case], text: str, how: str, seed: str
) -> Trial:
    """Outcomes of all cases, in order. A worker that ends is started again, twice at most."""
    outcomes: list[Outcome] = [{"skipped": "not tried"}] * len(cases)
    trial = Trial(outcomes)
    todo = []
    for place, case in enumerate(cases):
        if (why := ("the grader runs on the CPU" if "cuda" in case.probe.needs else "")) or (
            why := cannot_run(case.probe)
        ):
            outcomes[place] = {"not_run": why}
        else:
            todo.append(place)
    # An answer that watches what it is asked learns nothing from the order.
    Random(f"{seed}/order").shuffle(todo)
    stuck: set[str] = set()
    lost = 0
    end = time.monotonic() + bench.limits.seconds
    while todo:
        try:
            with bench.session(room, exercise) as session:
                try:
                    _one_session(session, exercise, cases, text, how, todo, outcomes, stuck, end)
                except (Gone, TooLong) as error:
                    lost += 1
                    _say_gone(session, error, cases, todo, outcomes, stuck, trial)
                finally:
                    trial.seen |= session.peer.notes
                    trial.peak, trial.on = max(trial.peak, session.peak), session.on
        except Gone as error:  # before the answer was loaded
            raise RuntimeError(f"a worker for {room.key} did not start: {error.why}") from error
        late = time.monotonic() > end
        if todo and (lost >= MAX_TIMEOUTS or late):
            why = "the time of the exercise was used up"
            if late and why not in trial.notes:
                trial.notes.append(why)
            why = why if late else trial.notes[-1]
            for place in todo:
                outcomes[place] = {"skipped": why}
            todo.clear()
    return trial


def _one_session(
    session: Session,
    exercise: Exercise,
    cases: list[Case],
    text: str,
    how: str,
    todo: list[int],
    outcomes: list[Outcome],
    stuck: set[str],
    end: float,
) -> None:
    """Works ``todo`` off, from its front; a place is taken off when its outcome is there."""
    failure = outcome_of(lambda: session.load(text, exercise.name))
    failed = "value" not in failure
    value = None
    if how == VALUE and not failed:
        fetched = outcome_of(session.fetch)
        failed, failure = "value" not in fetched, fetched
        value = unplain(fetched.get("value"))
        session.__exit__()
    drives = list(dict.fromkeys(probe.drive for probe in exercise.probes))
    while todo:
        case = cases[todo[0]]
        seconds = min(case.probe.seconds * PATIENCE, max(0.1, end - time.monotonic()))
        if failed:
            outcome = failure
        elif case.probe.behaviour in stuck:
            outcome = {"skipped": "an endless loop before it"}
        elif time.monotonic() > end:
            return
        elif how == VALUE:
            drive, inputs = case.probe.drive, deepcopy(case.inputs)
            answer = deepcopy(value)
            outcome = _within(seconds, lambda d=drive, a=answer, i=inputs: d(a, i))
        elif how == INSIDE:
            outcome = _inside(session, exercise, drives.index(case.probe.drive), case, seconds)
        else:
            outcome = _outside(session, case, seconds)
        outcomes[todo[0]] = outcome
        todo.pop(0)


def _outside(session: Session, case: Case, seconds: float) -> Outcome:
    answer = session.begin_case(seconds)
    inputs = deepcopy(case.inputs)
    with alarm(seconds + 2):
        return outcome_of(lambda: case.probe.drive(answer, inputs))


def _within(seconds: float, call: Callable[[], Any]) -> Outcome:
    """A probe that looks at a value, here; the value may be one that takes long to look at."""
    try:
        with alarm(seconds):
            return outcome_of(call)
    except TooLong:
        return {"timeout": seconds}


def _inside(
    session: Session, exercise: Exercise, number: int, case: Case, seconds: float
) -> Outcome:
    session.begin_case(seconds + 2)
    told = session.peer.ask(
        "drive", exercise=exercise.key, number=number, inputs=case.inputs, seconds=seconds
    )
    return well_formed(told)


def _say_gone(
    session: Session,
    error: BaseException,
    cases: list[Case],
    todo: list[int],
    outcomes: list[Outcome],
    stuck: set[str],
    trial: Trial,
) -> None:
    """The case at hand gets the blame; its behaviour is not tried again."""
    case = cases[todo[0]]
    if isinstance(error, TooLong) or (isinstance(error, Gone) and error.kind == "timeout"):
        outcomes[todo[0]] = {"timeout": case.probe.seconds * PATIENCE}
        why = "it did not answer in time"
    else:
        assert isinstance(error, Gone)
        why = session.why_gone(error)
        outcomes[todo[0]] = {"died": why}
    trial.notes = [note for note in trial.notes if note != why] + [why]
    stuck.add(case.probe.behaviour)
    todo.pop(0)
