"""A class to be graded, made from the notebook of lab 04, for the tests of course/grading."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random

from course.pins import ROOT
from course.practice import registry
from course.practice.exercise import Exercise, Mistake
from course.practice.source import reference_text, variant_text

HANDED_OUT = ROOT / "exercises" / "04_block_tables.ipynb"
LAB = 4
OF = 18


def handed_out() -> dict:
    """The notebook as learners get it."""
    return json.loads(HANDED_OUT.read_text(encoding="utf-8"))


def book(answers: dict[str, str] | None = None) -> dict:
    """It with these answers, by name; the others are untouched."""
    made = copy.deepcopy(handed_out())
    for name, text in (answers or {}).items():
        cell_of(made, name)["source"] = text
    return made


def cell_of(made: dict, name: str, part: str = "answer") -> dict:
    (cell,) = [c for c in made["cells"] if c["id"] == f"04-{name}-{part}"]
    return cell


def right() -> dict[str, str]:
    """All answers of the reference."""
    found = {}
    for exercise in registry.lab(LAB):
        found[exercise.name] = reference_text(exercise)
    return found


def put(folder: Path, path: str, made: dict | bytes | str) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(made) if isinstance(made, dict) else made
    target.write_bytes(data.encode() if isinstance(data, str) else data)
    return target


# ---- A whole class, with the points that it should get ------------------------------------------

KINDS = ("right", "mistakes", "partly", "empty", "damaged", "hostile", "none")
SLOW = (
    "loop",
    "sleeps",
    "memory",
    "no end",
    "large",
    "disk",
    "answers with",
    "endless",
    "for ever",
)


def worth(exercise: Exercise, mistake: Mistake, seed: str) -> float:
    """Points of a known wrong answer on these inputs, judged in this process."""
    if mistake.name == exercise.start:  # as it was handed out: not touched
        return 0.0
    from course.grading.exam import prepared
    from course.practice.run import outcomes
    from course.practice.verdict import judge, variant

    cases, wanted, _ = prepared(exercise.key, seed)
    answer, problem = variant(exercise, mistake)
    assert not problem
    return judge(exercise, cases, wanted, outcomes(exercise, cases, answer)).points


def make_class(
    folder: Path, count: int, seed: str, quick: bool = False, only: tuple[str, ...] = ()
) -> dict[str, tuple[float, bool]]:
    """Student -> (points, exactly) of ``count`` submissions of every kind.

    seed: that of the run. Of an attack it is said what it must not exceed. quick: nobody loops or
    sleeps. only: answers of these exercises.
    """
    from grading_attacks import ATTACKS

    from course.grading.exam import Secret

    random, secret = Random(seed), Secret(seed)
    solved, wanted = right(), {}
    exercises = [e for e in registry.lab(LAB) if not only or e.name in only]
    attacks = [
        a for a in ATTACKS
        if not (quick and any(w in a.name for w in SLOW)) and (not only or a.answer in only)
    ]  # fmt: skip
    for number in range(count):
        student = f"student-{number:03d}"
        kind = KINDS[number % len(KINDS)] if number % 3 else "mistakes"
        answers: dict[str, str] = {}
        points, exactly = 0.0, kind != "hostile"
        if kind in ("right", "partly"):
            most = len(exercises)
            chosen = random.sample(exercises, most if kind == "right" else random.randint(1, most))
            answers = {e.name: solved[e.name] for e in chosen}
            points = float(sum(e.points for e in chosen))
        elif kind == "mistakes":
            for exercise in exercises:
                known = exercise.answers.mistakes
                known = [m for m in known if not (quick and any(w in m.name for w in SLOW))]
                mistake = random.choice(known)
                answers[exercise.name] = variant_text(exercise, mistake)
                points += worth(exercise, mistake, secret.of(exercise, student))
        elif kind == "hostile":
            attack = random.choice(attacks)
            answers, points = {attack.answer: attack.text}, attack.most
        data = json.dumps(book(answers)).encode()
        if kind == "damaged":
            data = random.choice(
                [data[:3000], b"", b"%PDF-1.4", b"{}", b"[" * 100_000, data[50:900]]
            )
        if kind == "none":
            put(folder, f"{student}/report.txt", "I could not open it.")
        else:
            put(folder, f"{student}/04_block_tables.ipynb", data)
        wanted[student] = round(points, 2), exactly
    return wanted
