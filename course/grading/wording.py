"""A verdict in words: for the student, who reads nothing hidden, and for the teacher."""

from __future__ import annotations

import builtins
import re

from course.grading import results
from course.grading.results import BehaviourResult, ExerciseResult
from course.grading.trial import Trial
from course.practice.exercise import Exercise
from course.practice.plain import tag
from course.practice.verdict import HOLDS, NOT_RUN, PARTS, UNWRITTEN, Behaviour, Verdict

LOUD = {
    "MemoryError": "it ran out of memory", "SystemExit": "it tried to end its process",
    "KeyboardInterrupt": "it tried to interrupt its process",
}  # fmt: skip
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{5,}")
STATUS = re.compile(r" by SIG\w+| \(.*\)$")
STATES = {
    HOLDS: results.HOLDS, PARTS: results.WRONG,
    UNWRITTEN: results.UNWRITTEN, NOT_RUN: results.NOT_RUN,
}  # fmt: skip


def noticed(verdict: Verdict, tried: Trial) -> list[str]:
    """What the trial showed that deserves a look."""
    notes = [*tried.notes, *grouped(tried.seen)]
    errors = {o["error"]["type"] for o in tried.outcomes if "error" in o}
    for kind, words in LOUD.items():
        notes += [words] if kind in errors else []
    for behaviour in verdict.behaviours:
        why = behaviour.outcome.get("unusable", "")
        if any(words in why for words in ("too large", "written down", "may cross")):
            notes += [why] if why not in notes else []
        parting = behaviour.parting
        if parting is not None and parting.why == "type" and tag(parting.got) == "$other":
            kind = str(parting.got["$other"])[:60]
            wanted = type(parting.expected).__name__
            words = f"a value was of type {kind}" + (
                f", not {wanted}" if not tag(parting.expected) else ""
            )
            notes += [words] if words not in notes else []
    failed = [b for b in verdict.behaviours if b.state == PARTS and b.case is not None]
    if failed and all(b.case.drawn for b in failed if b.case) and verdict.in_state(HOLDS):
        notes.append("right on every example of the notebook, wrong on hidden inputs")
    return notes


def grouped(seen: set[str]) -> list[str]:
    """Notes of one kind as one, with the first of them."""
    kinds: dict[str, list[str]] = {}
    for note in sorted(seen):
        kinds.setdefault(note.partition(":")[0], []).append(note)
    return [
        found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more"
        for found in kinds.values()
    ][:12]


def told(behaviour: Behaviour, points: float) -> BehaviourResult:
    """In words: what a student may read, and what only a teacher may."""
    public = behaviour.case is None or not behaviour.case.drawn
    found = BehaviourResult(behaviour.probe.behaviour, STATES[behaviour.state], points, public)
    if behaviour.state == HOLDS:
        return found
    reason = _reason(behaviour, hidden=not public)
    found.says = reason
    if behaviour.case is not None:
        try:
            inputs = behaviour.probe.describe(behaviour.case.inputs)
            place = ""
            if behaviour.parting is not None:
                place = behaviour.probe.place(behaviour.parting, behaviour.case.inputs)
        except Exception:  # describing what a student's values did must not stop anything
            inputs, place = "", ""
        whole = "; ".join(filter(None, [inputs, place, _reason(behaviour, hidden=False)]))
        whole = ADDRESS.sub("0x…", whole)  # the same every time
        found.detail = whole[:1000]
        if public and behaviour.state == PARTS:
            found.says = whole[:600]
        elif not public:
            found.says = f"on an input that is not in the notebook: {reason}"
    return found


def _reason(behaviour: Behaviour, hidden: bool) -> str:
    """Why it does not hold. hidden: nothing from which the inputs could be read.

    An answer chooses the name of its error, the line where it happens, the way in which its process
    ends: each could spell out what it was asked.
    """
    outcome = behaviour.outcome
    if "not_run" in outcome:
        return f"not run here: {outcome['not_run']}"
    if behaviour.state == UNWRITTEN:
        return "not written yet"
    line = ""
    if "error" in outcome:
        error = outcome["error"]
        if hidden:
            kind = getattr(builtins, error["type"], None)
            known = isinstance(kind, type) and issubclass(kind, BaseException)
            return error["type"] if known else "an error"
        if "line" in error:
            line = f", in line {error['line']} of your answer"
        message = f": {error['message']}".rstrip(": ")
        return f"{error['type']}{message}{line}"
    if "timeout" in outcome:
        return f"no answer within {outcome['timeout']:g} s; is there an endless loop?"
    if "died" in outcome:
        return _without_status(outcome["died"], hidden)
    if "skipped" in outcome:
        return f"not tried: {_without_status(outcome['skipped'], hidden)}"
    if "unusable" in outcome:
        return "what came back cannot be used" if hidden else str(outcome["unusable"])
    if behaviour.parting is not None:
        if hidden:
            words = {"value": "a wrong value", "not finite": "a value that is not finite"}
            return words.get(behaviour.parting.why, f"a wrong {behaviour.parting.why}")
        try:
            return behaviour.parting.words(behaviour.probe.unit)
        except Exception:
            return f"a wrong {behaviour.parting.why}"
    return ""


def _without_status(words: str, hidden: bool) -> str:
    return STATUS.sub("", words) if hidden else words


def feedback(exercise: Exercise, result: ExerciseResult) -> list[str]:
    """What a student reads: nothing hidden, nothing of the grader's."""
    count = len(result.behaviours)
    held = sum(b.state == results.HOLDS for b in result.behaviours)
    if result.state == results.UNTOUCHED:
        return [f"{exercise.label}: not written yet."]
    found = [f"{exercise.label}: {held} of {count} behaviours hold, {result.points:g} points."]
    for b in result.behaviours:
        if b.state != results.HOLDS:
            found.append(f"{b.behaviour}: {b.says}" if b.says else b.behaviour)
    if result.mistake:
        found.append(f"This is what comes out when {result.mistake}. {result.mistake_note}")
    return found
