"""``check(answer)``: what a notebook calls."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import Any

from course.practice import feedback, registry
from course.practice.exercise import Exercise
from course.practice.my_engine import MyEngine, why_not
from course.practice.plain import literal, plain
from course.practice.run import expected, loaded, make_cases, outcomes
from course.practice.source import (
    NoSource,
    code_of,
    free_names,
    given_names,
    imports,
    newest_is_broken,
    reference_text,
    same_code,
    used_names,
    variant_text,
    written,
)
from course.practice.verdict import UNWRITTEN, Behaviour, Verdict, judge, recognise, variant


class Checked:
    """What a check found. ``passed``: every behaviour holds. Shows itself as its text."""

    def __init__(self, shown: list[str], verdict: Verdict | None = None, word: str = "not yet"):
        self.lines = shown
        self.verdict = verdict
        self.word = word
        self._shown_at: int | None = None

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return feedback.html(self.lines, self.word)

    def _ipython_display_(self) -> None:
        shell = _shell()
        if shell is not None and shell.execution_count != self._shown_at:
            self.show()

    def show(self, place: Any = None) -> None:
        """Put it on the page, at once, so that it also appears in the middle of a cell.

        place: the display that said that the check is running, to be replaced.
        """
        shell = _shell()
        if shell is None:
            print(self.text)
            return
        from IPython.display import publish_display_data

        self._shown_at = shell.execution_count
        bundle = {"text/plain": self.text, "text/html": self._repr_html_()}
        if place is not None:
            place.update(bundle, raw=True)
        else:
            publish_display_data(bundle)


def check(answer: Any, exercise: str = "", *, seed: int | None = None) -> Any:
    """Try an answer; say what holds and what does not; save it to your engine when all does.

    answer: the function, class or value that you wrote. exercise: its id, where the answer is a
    value ("4.4"). seed: the number that a check printed, to see the same inputs again.
    """
    return _checked(answer, exercise, seed, save=True)


def check_only(answer: Any, exercise: str = "", *, seed: int | None = None) -> Any:
    """Like ``check``, but saves nothing: for the solutions."""
    return _checked(answer, exercise, seed, save=False)


def see_mistake(exercise: str, name: str) -> Checked:
    """What the check says of a known wrong answer. The inputs are the same every time."""
    which = registry.find(exercise)
    answer, problem = variant(which, which.answers.mistake(name))
    if problem:
        raise ValueError(f"the mistake {name!r} cannot be loaded: {problem}")
    text = variant_text(which, which.answers.mistake(name))
    verdict = examine(which, answer, text, seed=0)
    found = Checked(feedback.lines(verdict), verdict, feedback.word(verdict))
    found.show()
    return found


def examine(exercise: Exercise, answer: Any, text: str, seed: int | str) -> Verdict:
    """The verdict on an answer, known mistake named. Says and saves nothing."""
    cases = make_cases(exercise, seed)
    printed: list[str] = []
    if _is_untouched(exercise, answer, text):
        untouched = [Behaviour(probe, UNWRITTEN) for probe in exercise.probes]
        return Verdict(exercise, untouched, seed, 0)
    # What runs in a process of its own is asked of the reference meanwhile, in another process:
    # most of a kernel's check is waiting for PyTorch and Triton to be imported.
    apart = [case for case in cases if case.probe.risky]
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(expected, exercise, apart) if apart else None
        came = outcomes(exercise, cases, answer, text, printed.append)
        here = iter(expected(exercise, [case for case in cases if not case.probe.risky]))
        there = iter(waiting.result() if waiting else ())
    wanted = [next(there if case.probe.risky else here) for case in cases]
    verdict = judge(exercise, cases, wanted, came, seed)
    verdict.printed = "".join(printed)
    recognise(exercise, cases, came, verdict)
    return verdict


def _is_untouched(exercise: Exercise, answer: Any, text: str) -> bool:
    if exercise.kind == "data":
        return answer is None or (bool(text) and same_code(text, exercise.start))
    if exercise.kind == "write":  # as many placeholders as bodies that were taken out
        count = text.count(f'NotImplementedError("{exercise.id}: write ')
        return count == max(1, len(exercise.blank))
    if text:
        return same_code(text, variant_text(exercise, exercise.answers.mistake(exercise.start)))
    return False


def _checked(answer: Any, which: str, seed: int | None, save: bool) -> Any:
    exercise, complaint = _exercise_of(answer, which)
    if exercise is None:
        return _give(Checked(complaint), 0.0)
    try:
        text = written(answer, exercise.name)
    except NoSource:
        text = ""
    place = _say_running(exercise)
    seed_given, seed = seed is not None, secrets.randbelow(10**6) if seed is None else seed
    verdict = examine(exercise, answer, text, seed)
    uses = _other_answers(exercise, answer, text)
    # An answer that is written may meet one that is not: then every outcome is a stub's. And one
    # that takes something else from another cell cannot be tried alone; saving says so.
    alone = bool(uses) and bool(text) and not _names_elsewhere(exercise, text)
    if alone and not _is_untouched(exercise, answer, text):
        # What counts, here and for a grader, is the answer by itself.
        same, problem = loaded(exercise, text)
        if not problem:
            by_itself = examine(exercise, same, text, seed)
            uses = uses if by_itself.passed and not verdict.passed else {}
            verdict = by_itself
    saved = ""
    engine = MyEngine()
    if save:
        saved = _save(engine, exercise, answer, text, verdict)
    again = ""
    if not verdict.passed and not seed_given and not verdict.untouched:
        named = f', "{exercise.id}"' if which else ""
        again = f"check({exercise.name}{named}, seed={seed})"
    lacks = tuple(name for name, is_there in uses.items() if not is_there)
    tries = _count_try(engine, exercise, verdict, save)
    keeps = save and not verdict.passed and engine.piece(exercise.key) is not None
    shown = feedback.lines(verdict, saved, again, tuple(uses), lacks, tries, keeps)
    if broken := newest_is_broken(exercise.name):
        shown[1:1] = broken
        shown = shown[: feedback.MAX_LINES]
    return _give(Checked(shown, verdict, feedback.word(verdict)), verdict.points, place)


def _say_running(exercise: Exercise) -> Any:
    """Where a check starts processes and takes seconds, say so until there is a result."""
    if _shell() is None or not any(probe.risky for probe in exercise.probes):
        return None
    from IPython.display import display

    words = f"{exercise.label}: checking, in a process of its own. This takes a few seconds ..."
    return display({"text/plain": words}, raw=True, display_id=True)


def _give(found: Checked, points: float, place: Any = None) -> Any:
    found.show(place)
    # nbgrader takes a number as the last value of a test cell for its partial credit, and full
    # marks for anything else that raises nothing.
    return points if os.environ.get("NBGRADER_EXECUTION") else found


def _exercise_of(answer: Any, which: str) -> tuple[Exercise | None, list[str]]:
    function = getattr(answer, "fn", answer)  # a Triton kernel
    name = getattr(function, "__name__", None)
    names = {e.name for e in registry.every()}
    if which:
        exercise = registry.find(which)
        if exercise.kind == "data" or (
            name in (None, exercise.name) and callable(getattr(answer, "fn", answer))
        ):
            return exercise, []
        return None, [
            f"{exercise.id} asks for {exercise.name}, and this is {plain_words(answer)}.",
            f"Write `{_head(exercise)}`: by that name your engine finds it.",
        ]
    if meant := _value_of(answer):
        return None, [_told_of(meant, f"{meant.name} is a value")]
    if isinstance(answer, str | float | int) and (meant := _by_number(answer)):
        return None, [_told_of(meant, f"{answer!r} only names an exercise")]
    kind = type(answer).__name__
    if name is None and kind in names:
        return None, [f"check takes the class itself: check({kind}), without brackets behind it."]
    if name is None or name not in names:
        told = f"check does not know {plain_words(answer)}."
        if name is not None:
            near = get_close_matches(name, names, 1, cutoff=0.8)
            meant = f" Did you mean {near[0]}?" if near else ""
            return None, [told, f"It goes by the name after `def`, which its cell gives.{meant}"]
        return None, [
            told,
            'Hand over the function itself, or say which exercise: check(x, "4.4").',
        ]
    if str(getattr(function, "__module__", "")).startswith("course."):
        return None, [
            f"This {name} is the course's own.",
            "Run the cell in which you write yours, then this one again.",
        ]
    found = [e for e in registry.every() if e.name == name]
    if len(found) > 1:
        ids = " or ".join(f'check({name}, "{e.id}")' for e in found)
        return None, [f"{name} is asked for more than once: {ids}."]
    return found[0], []


def _head(exercise: Exercise) -> str:
    """How the definition of an answer begins."""
    is_class = re.search(rf"^class {exercise.name}\b", reference_text(exercise), re.MULTILINE)
    return f"class {exercise.name}:" if is_class else f"def {exercise.name}(...)"


def _by_number(answer: str | float) -> Exercise | None:
    return next((e for e in registry.every() if str(answer) in (e.id, e.name)), None)


def _value_of(answer: Any) -> Exercise | None:
    """The exercise whose value in this notebook it is."""
    shell = _shell()
    space = shell.user_ns if shell else {}
    data = [e for e in registry.every() if e.kind == "data"]
    return next((e for e in data if answer is not None and space.get(e.name) is answer), None)


def _told_of(exercise: Exercise, what: str) -> str:
    """How an exercise is checked."""
    number = f', "{exercise.id}"' if exercise.kind == "data" else ""
    return f"{what}: check({exercise.name}{number}) is what you want."


def plain_words(value: Any) -> str:
    name = getattr(value, "__name__", None)
    if name is not None:
        return repr(name)
    from course.practice.plain import words

    return words(plain(value), 40)


def _save(engine: MyEngine, exercise: Exercise, answer: Any, text: str, verdict: Verdict) -> str:
    """What to tell about saving; writes the answer when it passed, and the journal."""
    held = len(verdict.in_state("holds"))
    entry = {
        "key": exercise.key,
        "held": held,
        "of": len(verdict.behaviours),
        "passed": verdict.passed,
        "mistake": verdict.mistake.name if verdict.mistake else "",
        **({"answer": text.strip()[:500]} if exercise.kind == "data" else {}),
    }
    try:
        if not verdict.untouched:
            engine.note(entry)
        if not verdict.passed:
            return ""
        as_value = ""
        if exercise.kind == "data":
            text, as_value = _text_of_value(exercise, answer, text)
        if problem := _does_not_stand_alone(exercise, text):
            return f"Not saved: {problem}"
        facts = {"behaviours": held, "cases": verdict.num_drawn, "seed": verdict.seed}
        new = engine.save(exercise, text, facts)
    except OSError as error:
        return f"Not saved: {why_not(error, engine.where)}" if verdict.passed else ""
    if not exercise.piece:
        return ("Saved." if new else "") + as_value
    mine = [e for e in registry.pieces() if engine.piece(e.key)]
    are = "is" if len(mine) == 1 else "are"
    count = f"{len(mine)} of {len(registry.pieces())} pieces {are} yours."
    return f"{'Saved to' if new else 'It is in'} your engine. {count}"


def _other_answers(exercise: Exercise, answer: Any, text: str = "") -> dict[str, bool]:
    """Names that the right answer takes from the course, and this one from the notebook, where they
    are something else (True) or missing (False). text: the answer's; only names that its code uses
    count."""
    code = code_of(answer)
    function = getattr(answer, "fn", answer)
    space = getattr(function, "__globals__", None)
    if space is None and code is not None:  # a class: of its module
        module = sys.modules.get(str(getattr(function, "__module__", "")))
        space = getattr(module, "__dict__", None)
    if not space:
        return {}
    try:
        ours = given_names(exercise, text)
    except ImportError:  # Triton is not installed
        return {}
    used = used_names(text) if text else set(ours)
    return {
        name: name in space
        for name, value in ours.items()
        if name in used and (name not in space or space[name] is not value)
    }


_tries: Counter[str] = Counter()  # in this notebook, which may be unable to write its journal


def _count_try(engine: MyEngine, exercise: Exercise, verdict: Verdict, noted: bool) -> int:
    """How often the exercise was checked, this time included."""
    if not any(probe.measured for probe in exercise.probes) or verdict.untouched:
        return 0
    _tries[exercise.key] += 1
    written = sum(entry.get("key") == exercise.key for entry in engine.journal())
    return max(_tries[exercise.key], written + (not noted))


def _text_of_value(exercise: Exercise, answer: Any, text: str) -> tuple[str, str]:
    """(text, what to say about it) of a value that passed: what the learner wrote where that gives
    the value alone, else the value itself."""
    value = plain(answer)
    lost = _names_elsewhere(exercise, text) if text else []
    if text and not lost:
        alone, problem = loaded(exercise, text)
        if not problem and plain(alone) == value:
            return text, ""
    try:
        text = f"{exercise.name} = {literal(value)}\n"
    except ValueError:
        return text, ""
    told = " It is the value that is kept."
    if lost:
        told += f" The line takes {', '.join(lost)} from another cell, which a grader lacks."
    return text, told


def _names_elsewhere(exercise: Exercise, text: str) -> list[str]:
    """Names that the text needs from another cell of the notebook."""
    return sorted(free_names(f"{imports(exercise, text)}\n{text}"))


def _does_not_stand_alone(exercise: Exercise, text: str) -> str:
    """Why the text alone, in a fresh Python, would not be this answer; empty when it is."""
    if not text:
        return "the text of your answer is not to be found. Write it in a cell of this notebook."
    if lost := _names_elsewhere(exercise, text):
        names = ", ".join(lost)
        return f"your answer uses {names} from another cell. Put that into the same cell."
    _, problem = loaded(exercise, text)
    if problem:
        error = problem.get("error", {})
        told = f"{error.get('type', 'it stops')}: {error.get('message', '')}".rstrip(": ")
        return f"run alone, the cell stops with {told}. Put all that it needs into it."
    return ""


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None
