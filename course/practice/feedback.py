"""What a learner reads after a check: at most 12 lines, the same as text and as HTML.

Nothing is told by colour: a mark, a word and the order of the lines carry it.
"""

from __future__ import annotations

import re
from html import escape
from textwrap import wrap
from typing import Any

from course.practice.exercise import Exercise
from course.practice.guess import TRIES
from course.practice.plain import words
from course.practice.source import reference
from course.practice.verdict import HOLDS, NOT_RUN, PARTS, UNWRITTEN, Behaviour, Verdict

MAX_LINES = 12
WIDTH = 96
ROUNDING = 1e-6  # a smaller tolerance is for sums in another order: of no interest where none was


def lines(
    verdict: Verdict,
    saved: str = "",
    again: str = "",
    uses: tuple[str, ...] = (),
    lacks: tuple[str, ...] = (),
    tries: int = 0,
    keeps: bool = False,
) -> list[str]:
    """The feedback, line by line. saved: what became of a passed answer; again: how to check it
    again with the same inputs; uses: other answers of the notebook that do not hold and that it
    only passes without; lacks: names that it uses and the notebook does not have; tries: how often
    it was checked, this time included; keeps: an earlier answer that passed stays saved."""
    if verdict.passed:
        found = _passed(verdict, saved)
        if lacks:
            names = " and no ".join(lacks)
            found[1:1] = [f"By itself it is right. This notebook has no {names} yet: run its cell."]
        elif uses:
            names = " and ".join(uses)
            told = f"By itself it is right. In this notebook it uses your {names}, not right yet."
            found[1:1] = [told]
        return found
    if verdict.untouched:
        return _untouched(verdict)
    found = [_headline(verdict)]
    failure = verdict.first_failure
    if failure is None:
        found += _not_run(verdict)
        return found[:MAX_LINES]
    found += _failure(failure, verdict.exercise)
    found += _cause(verdict, failure)
    end = _others(verdict, failure)
    if tries >= TRIES:
        end += _measured(verdict, f"Measured, as you have tried {tries} times")
    if verdict.printed.strip():
        count = len(verdict.printed.strip().splitlines())
        end.append(f"Your code printed {_count(count, 'line')} while it was checked; not shown.")
    if keeps:
        end.append("The answer of yours that passed before stays saved.")
    if again and any(probe.make for probe in verdict.exercise.probes):
        end.append(f"The same inputs again: {again}")
    room = MAX_LINES - len(end)
    if len(found) > room:
        found = [*found[: room - 1], found[room - 1].rstrip(".") + " …"]
    return found + end


def text(verdict: Verdict, saved: str = "", again: str = "") -> str:
    return "\n".join(lines(verdict, saved, again))


def html(shown: list[str], word: str) -> str:
    """The lines as HTML that reads on light and dark pages, and aloud: ``word`` comes first."""
    head, *rest = shown
    body = escape("\n".join(rest))
    # JupyterLab breaks words anywhere in a <pre>: only where one is too long for a line.
    look = "margin:4px 0 0 0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
    inside = f'<pre style="{look}">{body}</pre>' if rest else ""
    style = {"passed": "solid", "not yet": "dashed", "not run here": "dotted"}.get(word, "dashed")
    return (
        f'<div role="status" style="border-left:4px {style} currentColor;padding:4px 12px;'
        f'margin:4px 0"><strong>{escape(word.capitalize())}.</strong> {escape(head)}{inside}</div>'
    )


def word(verdict: Verdict) -> str:
    """The verdict in a word or two."""
    if verdict.passed:
        return "passed"
    return "not run here" if verdict.first_failure is None else "not yet"


def _headline(verdict: Verdict) -> str:
    held, needed = len(verdict.in_state(HOLDS)), verdict.num_needed
    if needed == 1:
        return f"{verdict.exercise.label}: it does not hold."
    hold = "holds" if held == 1 else "hold"
    return f"{verdict.exercise.label}: {held} of {needed} behaviours {hold}."


def _passed(verdict: Verdict, saved: str) -> list[str]:
    held = len(verdict.behaviours) - len(verdict.in_state(NOT_RUN))
    number = {1: "it holds", 2: "both behaviours hold"}.get(held, f"all {held} behaviours hold")
    on = f", on {verdict.num_drawn} {verdict.exercise.trials}" if verdict.num_drawn else ""
    found = [f"{verdict.exercise.label}: {number}{on}."]
    if verdict.error or verdict.limit > ROUNDING:
        largest = f"{verdict.error:.1e}" if verdict.error else "0"
        found.append(f"Largest error {largest}; up to {verdict.limit:.1e} is allowed.")
    for behaviour in verdict.in_state(NOT_RUN):
        found.append(
            f"Not needed, and not run here: {behaviour.probe.behaviour} "
            f"({behaviour.outcome['not_run']})."
        )
    found += _measured(verdict, "Measured")
    found += wrap(saved, WIDTH)
    return found


def _measured(verdict: Verdict, head: str) -> list[str]:
    """What predictions are held against, in the order of the behaviours."""
    numbers = [
        behaviour.probe.measured(behaviour.probe.examples[0])
        for behaviour in verdict.behaviours
        if behaviour.probe.measured is not None and behaviour.state != NOT_RUN
    ]
    return wrap(f"{head}: {', '.join(numbers)}.", WIDTH) if numbers else []


def _untouched(verdict: Verdict) -> list[str]:
    exercise = verdict.exercise
    if exercise.kind == "data":
        todo = (
            "Put your answer in the cell above in place of None, run it, then run this one again."
        )
    elif exercise.kind == "mend":
        todo = (
            "It is still as it was given. Mend it in the cell above, run it, then run this again."
        )
    else:
        many = len(exercise.blank) > 1
        line = "lines that raise" if many else "line that raises"
        todo = f"Replace the {line} NotImplementedError, run the cell, then run this one again."
    return [f"{exercise.label}: not yet.", todo]


def _not_run(verdict: Verdict) -> list[str]:
    found = []
    for behaviour in verdict.in_state(NOT_RUN):
        found.append(f"– not run here: {behaviour.probe.behaviour}")
        found.append(f"    {behaviour.outcome['not_run']}")
    found.append("What was not run does not count as passed. All that could run here holds.")
    return found


def _failure(failure: Behaviour, exercise: Exercise) -> list[str]:
    assert failure.case is not None
    probe, case, outcome = failure.probe, failure.case, failure.outcome
    told = probe.describe(case.inputs)
    found = wrap(
        f"✗ {probe.behaviour}: {told}" if told else f"✗ {probe.behaviour}",
        WIDTH,
        subsequent_indent="  ",
        max_lines=3,
        placeholder=" …",
    )
    if "unwritten" in outcome:
        return [*found, f"    not written yet ({outcome['unwritten']})"[:WIDTH]]
    if "error" in outcome:
        error = outcome["error"]
        found += _wanted(failure.expected.get("value", ...))
        what = f"    {error['type']}: {error['message']}".rstrip(": ")
        return [*found, *_cut(what), *_line(exercise, error, "in")]
    if "timeout" in outcome:
        what = f"    did not come back within {outcome['timeout']:g} s: is there an endless loop?"
        return [*found, what, *_line(exercise, outcome, "it was stopped in")]
    if "died" in outcome:
        what = f"    {outcome['died']}: a read or write out of bounds is the usual reason"
        return [*found, *_cut(what)]
    if "unusable" in outcome:
        return [*found, *_cut("    " + outcome["unusable"])]
    if "skipped" in outcome:
        return [*found, *_cut(f"    not tried: {outcome['skipped']}")]
    if failure.parting is not None:
        place = probe.place(failure.parting, case.inputs)
        if place:
            found += _cut("    " + place)
        told = failure.parting.words(probe.unit)
        if exercise.kind == "data" and isinstance(
            failure.parting.got, str
        ):  # it says itself what is wrong
            told = failure.parting.got
        found += _cut("    " + told)
    return found


def _wanted(value: Any) -> list[str]:
    """What was expected where an error came, if that is short to say."""
    if type(value) is dict and value.keys() == {"raised"}:
        return [f"    expected {value['raised']} to be raised"]
    if value is None or type(value) in (bool, int, float):
        return [f"    expected {words(value)}"]
    return []


def _line(exercise: Exercise, found: dict, how: str) -> list[str]:
    if "line" not in found:
        return []
    code = f": {found['code']}" if found["code"] else ""
    name = found.get("function", "")
    try:
        method = isinstance(reference(exercise), type) and hasattr(reference(exercise), name)
    except ImportError:
        method = True
    if name == exercise.name or method or name.startswith("<"):
        return _cut(f"    {how} line {found['line']} of your cell{code}")
    return _cut(f"    {how} your {name}, line {found['line']} of its cell{code}")


def _cut(told: str) -> list[str]:
    """At most two lines of a message, indented alike."""
    indent = " " * (len(told) - len(told.lstrip()))
    return wrap(
        told,
        WIDTH,
        subsequent_indent=indent,
        max_lines=2,
        placeholder=" …",
        drop_whitespace=True,
        replace_whitespace=False,
    )


def _cause(verdict: Verdict, failure: Behaviour) -> list[str]:
    mistake = verdict.mistake
    if mistake is None:
        return _known_to_python(verdict.exercise, failure)
    # It behaves so everywhere, or does so here and does nothing right that the mistake does wrong.
    here = "This is what" if verdict.mistake_is_whole else "Here the same"
    told = f"{here} comes out when {mistake.name}"
    if mistake.arithmetic is not None and failure.parting is not None and failure.case is not None:
        sum_ = mistake.arithmetic(failure.case.inputs, failure.parting)
        told += f": {sum_}" if sum_ else ""
    told = f"{told.rstrip('.')}. {mistake.note}"
    return wrap(told, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _known_to_python(exercise: Exercise, failure: Behaviour) -> list[str]:
    """Where no mistake is recognised: what is true of such a result in any exercise."""
    parting = failure.parting
    told = ""
    if exercise.kind == "data":
        pass
    elif re.match(r"\S+ gave None\b", failure.outcome.get("unusable", "")) or (
        parting is not None
        and parting.why == "type"
        and parting.got is None
        and parting.path in ((), ("returned",))
    ):
        told = (
            "A function that ends without `return` gives None. Does each way through it return, "
            "and is what it returns there anything but None?"
        )
    elif parting is not None and type(parting.expected) is int and type(parting.got) is float:
        told = "A whole number is asked for. `/` always gives a float; `//` of two ints does not."
    return wrap(told, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _others(verdict: Verdict, failure: Behaviour) -> list[str]:
    found = []
    also = [b.probe.behaviour for b in verdict.behaviours if b.state in (PARTS, UNWRITTEN)]
    also.remove(failure.probe.behaviour)
    if also:
        more = wrap("Also not yet: " + "; ".join(also), WIDTH, max_lines=1, placeholder=" …")
        found += more
    if missing := verdict.not_run:
        found.append(f"Not run here: {len(missing)} ({missing[0].outcome['not_run']}).")
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
