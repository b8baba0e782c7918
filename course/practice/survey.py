"""Every known answer of an exercise against every probe: who is caught, where, by which name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from course.practice import registry
from course.practice.exercise import Alternative, Exercise, Mistake
from course.practice.run import Outcome, expected, make_cases, outcomes
from course.practice.source import variant_text
from course.practice.verdict import HOLDS, NOT_RUN, Behaviour, Verdict, alike, judge, variant


@dataclass
class Row:
    """One known answer. ``named``: the mistake that the check takes it for; None: no mistake."""

    which: Mistake | Alternative
    verdict: Verdict
    came: list[Outcome]
    named: str | None = None

    @property
    def is_mistake(self) -> bool:
        return isinstance(self.which, Mistake)

    @property
    def caught_by(self) -> list[int]:
        """Numbers, from 1, of the probes that it does not pass."""
        return [
            number
            for number, behaviour in enumerate(self.verdict.behaviours, start=1)
            if behaviour.state not in (HOLDS, NOT_RUN)
        ]

    @property
    def well(self) -> bool:
        """A mistake that is caught under its own name, or an alternative that passes."""
        if self.is_mistake:
            return bool(self.caught_by) and self.named == self.which.name
        return not self.caught_by


def survey(exercise: Exercise, seed: int | str = 0) -> list[Row]:
    """All mistakes, then all alternatives. ValueError: one of them cannot even be loaded."""
    cases = make_cases(exercise, seed)
    wanted = expected(exercise, cases)
    known = [*exercise.answers.mistakes, *exercise.answers.alternatives]
    rows = []
    for which, came in zip(known, _outcomes(exercise, cases, known), strict=True):
        rows.append(Row(which, judge(exercise, cases, wanted, came, seed), came))
    mistakes = [row for row in rows if row.is_mistake]
    for row in rows:
        for other in mistakes:
            if all(map(alike, other.came, row.came, (case.probe for case in cases))):
                row.named = other.which.name
                break
    return rows


def _outcomes(exercise: Exercise, cases: list, known: list) -> list[list[Outcome]]:
    here = [case for case in cases if not case.probe.risky]
    apart = [case for case in cases if case.probe.risky]
    results: list[list[Outcome]] = []
    for which in known:
        answer, problem = (None, {}) if not here else variant(exercise, which)
        if problem:
            raise ValueError(f"{exercise.label}: {which.name!r} cannot be loaded: {problem}")
        results.append(outcomes(exercise, here, answer))
    if apart:
        from course.practice.apart import outcomes_apart
        from course.practice.run import cannot_run

        runs = [case for case in apart if not cannot_run(case.probe)]
        texts = [variant_text(exercise, which) for which in known]
        found = outcomes_apart(exercise, runs, texts) if runs else [[] for _ in texts]
        for place, (mine, theirs) in enumerate(zip(results, found, strict=True)):
            inside, outside = iter(mine), iter(theirs)
            results[place] = [
                next(inside)
                if not case.probe.risky
                else {"not_run": why}
                if (why := cannot_run(case.probe))
                else next(outside)
                for case in cases
            ]
    return results


TOLD = re.compile(
    r"^(\d+) exercises, (\d+) wrong answers: (\d+) caught, (\d+) by their own name\. "
    r"(\d+) other right answers: (\d+) pass\.$",
    re.MULTILINE,
)


def sections(page: str) -> dict[int, str]:
    """The parts of docs/mistakes.md by lab."""
    parts = re.split(r"^## Lab (\d\d)\n", page, flags=re.MULTILINE)
    return {
        int(number): f"## Lab {number}\n{words}".rstrip() + "\n"
        for number, words in zip(parts[1::2], parts[2::2], strict=True)
    }


def page(known: dict[int, str]) -> str:
    """docs/mistakes.md from the parts of its labs, totals first."""
    told = [TOLD.search(words) for words in known.values()]
    sums = [sum(int(t[n]) for t in told if t) for n in range(1, 7)]
    exercises, wrong, caught, named, right, passed = sums
    head = f"""# Wrong answers that learners give, and what catches them

Made by `python -m course mistakes`; a test keeps it current. Each wrong answer is run against every
probe of its exercise, and so is each other right answer. ✗: not as expected; a dot: as expected;
n: not run where this page was made; g: run only on a GPU, so not shown. The last column says what
the check takes it for.

| | in the bank | |
| --- | ---: | --- |
| exercises | {exercises} | in {len(known)} labs |
| wrong answers | {wrong} | {caught} caught, {named} by their own name |
| other right answers | {right} | {passed} pass |
"""
    return "\n".join([head, *(known[lab] for lab in sorted(known))])


def lab_section(lab: int, made: Callable[[Exercise], list[Row]] = survey) -> str:
    """The part of one lab; everything is run anew, unless ``made`` has it already."""
    surveys = [(exercise, made(exercise)) for exercise in registry.lab(lab)]
    rows = [row for _, found in surveys for row in found]
    mistakes = [row for row in rows if row.is_mistake]
    others = [row for row in rows if not row.is_mistake]
    lines = [
        f"## Lab {lab:02d}",
        "",
        f"{len(surveys)} exercises, {len(mistakes)} wrong answers: "
        f"{sum(bool(row.caught_by) for row in mistakes)} caught, "
        f"{sum(row.well for row in mistakes)} by their own name. "
        f"{len(others)} other right answers: {sum(row.well for row in others)} pass.",
        "",
    ]
    for exercise, found in surveys:
        lines += _section(exercise, found)
    return "\n".join(lines).rstrip() + "\n"


def _mark(behaviour: Behaviour, is_caught: bool) -> str:
    if "cuda" in behaviour.probe.needs:  # the page is to be the same with a GPU and without
        return "g"
    return "✗" if is_caught else "n" if behaviour.state == NOT_RUN else "·"


def _section(exercise: Exercise, found: list[Row]) -> list[str]:
    count = len(exercise.probes)
    head = " | ".join(str(n) for n in range(1, count + 1))
    lines = [f"### {exercise.id} `{exercise.name}`", ""]
    lines += [f"{n}. {probe.behaviour}" for n, probe in enumerate(exercise.probes, start=1)]
    lines += ["", f"| | {head} | taken for |", f"| --- |{' :-: |' * count} --- |"]
    for row in found:
        marks = [
            _mark(behaviour, n in row.caught_by)
            for n, behaviour in enumerate(row.verdict.behaviours, start=1)
        ]
        label = row.which.name.replace("|", "\\|")
        if row.is_mistake:
            said = "itself" if row.well else row.named or "no known mistake"
        else:
            label, said = f"*right:* {label}", "-" if row.well else "REFUSED"
        lines.append(f"| {label} | {' | '.join(marks)} | {said} |")
    return [*lines, ""]
