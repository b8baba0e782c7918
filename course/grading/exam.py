"""One exercise of one submission: hidden inputs, a trial, points and words."""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from course.grading import desk, results, room, trial, wording
from course.grading.results import BehaviourResult, ExerciseResult
from course.grading.signs import signs
from course.grading.trial import Bench
from course.practice import registry
from course.practice import verdict as verdicts
from course.practice.checks import _is_untouched
from course.practice.exercise import Exercise
from course.practice.run import Case, Outcome, cannot_run, make_cases, one
from course.practice.source import definitions, reference, reference_text
from course.practice.verdict import HOLDS, PARTS, UNWRITTEN, Behaviour, Verdict

ROUNDS = 2  # draws of hidden inputs, each as large as the notebook's
VARIANTS = 6  # different hidden inputs where the reference itself takes long (Triton)
MAX_ANSWER = 200_000  # characters


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
    tried = desk.try_answer(bench, place, exercise, cases, text, how, seed)
    verdict = verdicts.judge(exercise, cases, wanted, tried.outcomes, "")
    if how == trial.INSIDE:
        doubt(verdict, cases, wanted)
    return verdict, tried, cases


def doubt(verdict: Verdict, cases: list[Case], wanted: list[Outcome]) -> None:
    """Of outcomes that a worker wrote itself: what could be guessed is not believed alone.

    Such is a behaviour whose outcome is the same word for all inputs ("it compiles"). An answer
    that does nothing could say so; one that does something else right is taken at its word.
    """
    words: dict[str, set] = {}
    for case, outcome in zip(cases, wanted, strict=True):
        words.setdefault(case.probe.behaviour, set()).add(repr(outcome.get("value", 0.0)))
    easy = {
        case.probe.behaviour: case
        for case, outcome in zip(cases, wanted, strict=True)
        if type(outcome.get("value")) in (str, bool) and len(words[case.probe.behaviour]) == 1
    }
    holding = verdict.in_state(HOLDS)
    if all(b.probe.behaviour in easy for b in holding):
        for b in holding:
            b.state, b.case = PARTS, easy[b.probe.behaviour]
            b.outcome = {"unusable": "nothing else holds, and this could have been guessed"}


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
        result.notes += wording.noticed(verdict, tried)
        verdicts.recognise(exercise, cases, tried.outcomes, verdict)
    result.seconds = round(time.perf_counter() - began, 3)
    result.state = results.UNTOUCHED if untouched else _state(verdict)
    result.points = verdict.points
    result.behaviours = [wording.told(b, worth[b.probe.behaviour]) for b in verdict.behaviours]
    if verdict.mistake is not None:
        result.mistake, result.mistake_note = verdict.mistake.name, verdict.mistake.note
    result.feedback = wording.feedback(exercise, result)
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
