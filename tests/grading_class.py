"""A class to be graded, made from the notebook of lab 04, for the tests of course/grading."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from course.pins import ROOT
from course.practice import registry
from course.practice.source import reference_text

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


def worth(exercise, mistake) -> float:
    """Points of a known wrong answer, judged in this process."""
    from course.practice.run import expected, make_cases, outcomes
    from course.practice.source import variant_text
    from course.practice.verdict import judge, variant

    cases = make_cases(exercise, "class")
    answer, problem = variant(exercise, mistake)
    assert not problem, variant_text(exercise, mistake)
    came = outcomes(exercise, cases, answer)
    return judge(exercise, cases, expected(exercise, cases), came).points


def make_class(folder: Path, count: int, seed: int = 0, quick: bool = False) -> dict[str, float]:
    """Student -> points, of ``count`` submissions of every kind. quick: nobody loops or sleeps."""
    from random import Random

    from grading_attacks import ATTACKS

    from course.practice.source import variant_text

    random = Random(seed)
    solved, wanted = right(), {}
    exercises = registry.lab(LAB)
    slow = ("loop", "sleeps", "memory", "no end", "large", "disk", "answers with")
    attacks = [a for a in ATTACKS if not (quick and any(word in a.name for word in slow))]
    slow_mistakes = ("endless", "without end", "for ever")
    for number in range(count):
        student = f"student-{number:03d}"
        kind = KINDS[number % len(KINDS)] if number % 3 else "mistakes"
        if kind == "right":
            answers, points = solved, float(OF)
        elif kind == "partly":
            chosen = random.sample(exercises, random.randint(1, len(exercises) - 1))
            answers = {e.name: solved[e.name] for e in chosen}
            points = float(sum(e.points for e in chosen))
        elif kind == "mistakes":
            answers, points = {}, 0.0
            for exercise in exercises:
                known = [
                    m for m in exercise.answers.mistakes
                    if not (quick and any(word in m.name for word in slow_mistakes))
                ]  # fmt: skip
                mistake = random.choice(known)
                answers[exercise.name] = variant_text(exercise, mistake)
                points += worth(exercise, mistake)
        elif kind == "hostile":
            attack = random.choice(attacks)
            answers, points = {attack.answer: attack.text}, attack.most
        else:
            answers, points = {}, 0.0
        data = json.dumps(book(answers)).encode()
        if kind == "damaged":
            data = random.choice([data[:3000], b"", b"%PDF-1.4", b"{}", b"[" * 100_000, data[50:]])
        if kind == "none":
            put(folder, f"{student}/report.txt", "I could not open it.")
        else:
            put(folder, f"{student}/04_block_tables.ipynb", data)
        wanted[student] = round(points, 2)
    return wanted
