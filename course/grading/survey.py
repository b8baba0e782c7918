"""Do all known answers get the same verdict in a worker as in a notebook?

    python -m course.grading.survey 4 [5 ...]

For authors of labs and for tests: the reference, every other right answer and every known mistake
of a lab, each through the wall and in this process, behaviour by behaviour.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from course.grading import exam, isolation, trial
from course.grading.session import Limits
from course.grading.trial import Bench
from course.practice import registry
from course.practice.exercise import Exercise
from course.practice.run import make_cases, one, outcomes
from course.practice.source import definitions, reference, variant_text
from course.practice.verdict import judge

SEED = "survey"


@dataclass
class Row:
    """One exercise. differ: answers whose verdicts part, with the behaviours."""

    exercise: Exercise
    how: str
    tried: int = 0
    differ: list[str] = field(default_factory=list)
    seconds: float = 0.0


def survey(exercise: Exercise, bench: Bench, rooms: Path, mistakes: bool = True) -> Row:
    """RuntimeError: the reference itself does not pass in a worker."""
    began = time.perf_counter()
    row = Row(exercise, exam.way(bench, exercise, rooms))
    cases = make_cases(exercise, SEED)
    wanted = [one(case, reference(exercise), case.probe.seconds * 4)[0] for case in cases]
    known = [*exercise.answers.alternatives, *(exercise.answers.mistakes if mistakes else ())]
    place = exam.room.build(exercise, rooms, with_probes=row.how == trial.INSIDE)
    for which in known:
        text = variant_text(exercise, which)
        here = judge(exercise, cases, wanted, _here(exercise, cases, text))
        tried = trial.try_answer(
            bench, place, exercise, cases, definitions(text), row.how, SEED
        ).outcomes
        there = judge(exercise, cases, wanted, tried)
        row.tried += 1
        for one_, other in zip(here.behaviours, there.behaviours, strict=True):
            if one_.state != other.state:
                told = f"{one_.state} in a notebook, {other.state} here"
                row.differ.append(f"{which.name}: {one_.probe.behaviour}: {told} {other.outcome}")
    row.seconds = time.perf_counter() - began
    return row


def _here(exercise: Exercise, cases: list, text: str) -> list:
    from course.practice.run import loaded

    answer, problem = loaded(exercise, text)
    if problem:
        return [problem] * len(cases)
    return outcomes(exercise, cases, answer, text)


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    labs = [int(word) for word in sys.argv[1:]] or list(registry.labs())
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        rooms = Path(folder)
        report = isolation.find(rooms)
        print(f"isolation: {isolation.words(report)}")
        bench = Bench(report.level, Limits())
        for lab in labs:
            for exercise in registry.lab(lab):
                try:
                    row = survey(exercise, bench, rooms)
                except RuntimeError as error:
                    failed += 1
                    print(f"{exercise.label}: {error}")
                    continue
                failed += len(row.differ)
                told = f"{row.tried} known answers, {len(row.differ)} verdicts differ"
                print(f"{exercise.label}: {row.how}, {told}, {row.seconds:.0f} s", flush=True)
                for words in row.differ:
                    print(f"    {words[:300]}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
