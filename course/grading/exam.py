"""One exercise of one submission: hidden inputs, a trial, points and words."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from course.grading import results, room, trial
from course.grading.results import BehaviourResult, ExerciseResult
from course.grading.signs import signs
from course.grading.trial import Bench
from course.practice import registry
from course.practice import verdict as verdicts
from course.practice.checks import _is_untouched
from course.practice.exercise import Exercise
from course.practice.plain import tag
from course.practice.run import Case, Outcome, cannot_run, make_cases, one
from course.practice.source import definitions, reference, reference_text
from course.practice.verdict import HOLDS, NOT_RUN, PARTS, UNWRITTEN, Behaviour, Verdict

ROUNDS = 2  # draws of hidden inputs, each as large as the notebook's
VARIANTS = 6  # different hidden inputs where the reference itself takes long (Triton)
MAX_ANSWER = 200_000  # characters
LOUD = {
    "MemoryError": "it ran out of memory", "SystemExit": "it tried to end its process",
    "KeyboardInterrupt": "it tried to interrupt its process",
}  # fmt: skip
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{5,}")
STATES = {
    HOLDS: results.HOLDS, PARTS: results.WRONG,
    UNWRITTEN: results.UNWRITTEN, NOT_RUN: results.NOT_RUN,
}  # fmt: skip


@dataclass(frozen=True)
class Secret:
    """The seed of a run. Only the grader's own processes know it."""

    seed: str

    def of(self, exercise: Exercise, student: str) -> str:
        """The seed of one student's inputs for one exercise."""
        words = f"{exercise.key}\0{student}".encode("utf-8", "surrogatepass")
        found = hmac.new(self.seed.encode(), words, hashlib.sha256).hexdigest()
        if any(probe.risky for probe in exercise.probes):
            words = f"{exercise.key}\0{int(found, 16) % VARIANTS}".encode()
            found = hmac.new(self.seed.encode(), words, hashlib.sha256).hexdigest()
        return found


@lru_cache(maxsize=64)
def prepared(key: str, seed: str) -> tuple[list[Case], list[Outcome], float]:
    """Cases, what the reference gives, and how long it took. RuntimeError: it fails its probe."""
    exercise = registry.find(key)
    cases = make_cases(exercise, f"{seed}/1")
    for number in range(2, (1 if any(p.risky for p in exercise.probes) else ROUNDS) + 1):
        cases += [case for case in make_cases(exercise, f"{seed}/{number}") if case.drawn]
    answer, wanted = reference(exercise), []
    began = time.perf_counter()
    for case in cases:
        if why := cannot_run(case.probe):
            wanted.append({"not_run": why})
            continue
        outcome, _ = one(case, answer, case.probe.seconds * 4)
        if "value" not in outcome:
            raise RuntimeError(
                f"the reference of {exercise.label} fails at {case.probe.behaviour!r}: {outcome}"
            )
        wanted.append(outcome)
    return cases, wanted, time.perf_counter() - began


def way(bench: Bench, exercise: Exercise, where: Path) -> str:
    """How this exercise's answers are tried: outside, if the reference passes there.

    RuntimeError: it passes nowhere. tests/test_grading_ways.py tries every other known right answer
    and every known wrong one in the same way.
    """
    told = ""
    text = definitions(reference_text(exercise))
    ways = (trial.VALUE,) if exercise.kind == "data" else (trial.OUTSIDE, trial.INSIDE)
    for how in ways:
        found, _, _ = _verdict(bench, exercise, text, how, where, "no secret")
        failure = found.first_failure
        if failure is None:
            return how
        told = f"{failure.probe.behaviour}: {failure.outcome or failure.parting}"
    raise RuntimeError(f"{exercise.label}: the reference does not pass in a worker ({told[:300]})")


def _verdict(
    bench: Bench, exercise: Exercise, text: str, how: str, where: Path, seed: str
) -> tuple[Verdict, trial.Trial, list[Case]]:
    cases, wanted, _ = prepared(exercise.key, seed)
    place = room.build(exercise, where, with_probes=how == trial.INSIDE)
    tried = trial.try_answer(bench, place, exercise, cases, text, how, seed)
    verdict = verdicts.judge(exercise, cases, wanted, tried.outcomes, "")
    return verdict, tried, cases


def examine(
    bench: Bench,
    exercise: Exercise,
    text: str,
    student: str,
    secret: Secret,
    how: str,
    where: Path,
) -> ExerciseResult:
    """The result of one answer's text; points are given here and nowhere else."""
    result = ExerciseResult(
        exercise.id, exercise.key, exercise.title, 0.0, exercise.points, results.MISSING, how=how
    )
    result.answer = text
    worth = _worth(exercise)
    if not text:
        result.behaviours = [
            BehaviourResult(p.behaviour, results.UNWRITTEN, worth[p.behaviour])
            for p in exercise.probes
        ]
        result.feedback = [f"{exercise.label}: no answer was found."]
        return result
    result.notes = signs(text, exercise)
    began = time.perf_counter()
    untouched = False
    if len(text) > MAX_ANSWER:
        failed = {"unusable": f"the answer has {len(text)} characters; at most {MAX_ANSWER}"}
        verdict = Verdict(
            exercise, [Behaviour(p, PARTS, outcome=failed) for p in exercise.probes], "", 0
        )
        result.answer = text[:MAX_ANSWER]
    elif _is_untouched(exercise, object(), text):
        untouched = True
        verdict = Verdict(exercise, [Behaviour(p, UNWRITTEN) for p in exercise.probes], "", 0)
    else:
        seed = secret.of(exercise, student)
        verdict, tried, cases = _verdict(bench, exercise, text, how, where, seed)
        result.memory = tried.peak
        result.notes += _seen(verdict, cases, tried)
        verdicts.recognise(exercise, cases, tried.outcomes, verdict)
    result.seconds = round(time.perf_counter() - began, 3)
    result.state = results.UNTOUCHED if untouched else _state(verdict)
    held = [b for b in verdict.behaviours if b.state == HOLDS]
    # As a sum of whole shares, so that all of them give the full points.
    result.points = verdict.points
    if result.state == results.RIGHT:
        result.points = float(exercise.points)
    result.behaviours = [_told(b, exercise, worth[b.probe.behaviour]) for b in verdict.behaviours]
    if verdict.mistake is not None:
        result.mistake, result.mistake_note = verdict.mistake.name, verdict.mistake.note
    result.feedback = _feedback(exercise, result, len(held))
    return result


def failed(exercise: Exercise, text: str, why: str) -> ExerciseResult:
    """The result where the grader itself could not do its work: no points, and not the student's
    fault."""
    found = ExerciseResult(
        exercise.id, exercise.key, exercise.title, 0.0, exercise.points, results.ERROR
    )
    found.answer = text[:MAX_ANSWER]
    found.notes = [f"could not be graded: {why[:400]}"]
    found.feedback = [f"{exercise.label}: could not be graded; ask your teacher."]
    worth = _worth(exercise)
    found.behaviours = [
        BehaviourResult(p.behaviour, results.NOT_RUN, worth[p.behaviour]) for p in exercise.probes
    ]
    return found


def _worth(exercise: Exercise) -> dict[str, float]:
    """What each behaviour is worth; one that is optional and cannot run here, nothing."""
    counted = [
        p for p in exercise.probes if not (p.optional and (cannot_run(p) or "cuda" in p.needs))
    ]
    share = round(exercise.points / len(counted), 4) if counted else 0.0
    return {p.behaviour: share if p in counted else 0.0 for p in exercise.probes}


def _state(verdict: Verdict) -> str:
    if verdict.passed:
        return results.RIGHT
    return results.PARTLY if verdict.in_state(HOLDS) else results.NOTHING


def _seen(verdict: Verdict, cases: list[Case], tried: trial.Trial) -> list[str]:
    """What the trial showed that deserves a look."""
    notes = [*tried.notes, *grouped(tried.seen)]
    errors = {o["error"]["type"] for o in tried.outcomes if "error" in o}
    for kind, words in LOUD.items():
        notes += [words] if kind in errors else []
    for behaviour in verdict.behaviours:
        told = behaviour.outcome.get("unusable", "")
        if "too large" in told or "cannot be written down" in told or "may cross" in told:
            notes += [told] if told not in notes else []
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


def _told(behaviour: Behaviour, exercise: Exercise, points: float) -> BehaviourResult:
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
    """Why it does not hold. hidden: nothing from which the inputs could be read."""
    outcome = behaviour.outcome
    if "not_run" in outcome:
        return f"not run here: {outcome['not_run']}"
    if behaviour.state == UNWRITTEN:
        return "not written yet"
    line = ""
    if "error" in outcome:
        error = outcome["error"]
        if "line" in error:
            line = f", in line {error['line']} of your answer"
        message = "" if hidden else f": {error['message']}".rstrip(": ")
        return f"{error['type']}{message}{line}"
    if "timeout" in outcome:
        return f"no answer within {outcome['timeout']:g} s; is there an endless loop?"
    if "died" in outcome:
        return str(outcome["died"])
    if "skipped" in outcome:
        return f"not tried: {outcome['skipped']}"
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


def _feedback(exercise: Exercise, result: ExerciseResult, held: int) -> list[str]:
    """What a student reads: nothing hidden, nothing of the grader's."""
    count = len(result.behaviours)
    if result.state == results.UNTOUCHED:
        return [f"{exercise.label}: not written yet."]
    found = [f"{exercise.label}: {held} of {count} behaviours hold, {result.points:g} points."]
    for b in result.behaviours:
        if b.state != results.HOLDS:
            found.append(f"{b.behaviour}: {b.says}" if b.says else b.behaviour)
    if result.mistake:
        found.append(f"This is what comes out when {result.mistake}. {result.mistake_note}")
    return found
