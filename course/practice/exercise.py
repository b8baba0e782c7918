"""What an exercise is made of. docs/adding_exercises.md shows how to write one.

An exercise stands in two files: ``bank/lab_NN.py`` holds what a learner may see (its words, hints
and probes), ``answers/lab_NN.py`` holds what gives the answer away (right answers, wrong ones, the
why). A grader's working process gets the first and not the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from course.practice.compare import Parting, Tolerance

Inputs = dict[str, Any]


def _describe(inputs: Inputs) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in inputs.items())


def _place(parting: Parting, inputs: Inputs) -> str:
    if not parting.path:
        return ""
    return "at " + ", ".join(
        f"entry {part}" if isinstance(part, int) else str(part) for part in parting.path
    )


@dataclass(frozen=True)
class Probe:
    """One behaviour: drives the learner's object with inputs and returns plain data.

    behaviour: the behaviour in words, as a learner reads it: "a table that is not in order".
    drive: ``drive(learners_object, inputs)`` -> plain data (practice/plain.py). Pure: it changes
        nothing outside, draws nothing at random, and runs the same in another process.
    examples: fixed inputs, tried first; the docstring's example belongs here, the smallest first.
    make: ``make(random)`` -> inputs drawn from a seeded ``random.Random``; ``cases`` of them.
        Inputs are JSON: numbers, strings, lists, dicts. Large arrays are drawn in ``drive`` from a
        seed that stands in the inputs.
    describe: the inputs in a few words. place: where two results part, in the learner's terms.
    unit: what a value is called: "slot" gives "expected slot 4   got slot 32".
    tolerance: for floats; none means equal to the last bit.
    needs: names from ``NEEDS``, such as "triton"; without them the verdict is "not run here".
    optional: does not stand in the way of passing where it cannot run.
    risky: runs in a process of its own, because it could take the kernel with it.
    seconds: longest that one case may take.
    measured: of a prediction, the number that it is held against, in words: told with an answer
        that holds, or after three that do not.
    """

    behaviour: str
    drive: Callable[[Any, Inputs], Any]
    examples: tuple[Inputs, ...] = ()
    make: Callable[[Random], Inputs] | None = None
    cases: int = 6
    describe: Callable[[Inputs], str] = _describe
    place: Callable[[Parting, Inputs], str] = _place
    unit: str = ""
    tolerance: Tolerance | None = None
    needs: tuple[str, ...] = ()
    optional: bool = False
    risky: bool = False
    seconds: float = 3.0
    measured: Callable[[Inputs], str] | None = None

    def __post_init__(self) -> None:
        if not self.examples and self.make is None:
            raise ValueError(f"probe {self.behaviour!r} has neither examples nor a make function")

    def inputs(self, seed: int | str) -> Iterator[Inputs]:
        """Examples, then random inputs; each may be changed by whoever gets it."""
        from copy import deepcopy

        yield from deepcopy(self.examples)
        for number in range(self.cases if self.make else 0):
            assert self.make is not None
            yield self.make(Random(f"{seed}/{self.behaviour}/{number}"))


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that learners really give.

    name: goes on after "This is what comes out when ...": "the second block is taken to lie right
        after the first".
    note: what is true instead, in one or two sentences, to a learner who believed the name.
    edit: pairs (old, new) that turn the reference's source into the wrong answer; each old text
        stands in it exactly once. Or ``code``: the whole wrong answer, written as a learner would.
    arithmetic: ``arithmetic(inputs, parting)`` -> one line with the numbers of the case at hand,
        such as "7 * 4 + 4 = 32"; empty: none.
    """

    name: str
    note: str
    edit: tuple[tuple[str, str], ...] = ()
    code: str = ""
    arithmetic: Callable[[Inputs, Parting], str] | None = None

    def __post_init__(self) -> None:
        if bool(self.edit) == bool(self.code):
            raise ValueError(f"mistake {self.name!r} needs either edit or code")


@dataclass(frozen=True)
class Alternative:
    """Another right answer, which must pass. ``edit`` or ``code`` as in a mistake."""

    name: str
    edit: tuple[tuple[str, str], ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Answers:
    """What gives an exercise away.

    mistakes: at least six. alternatives: at least three. why: the solution's reason, in Markdown.
    shown: name of the mistake that the solution notebook shows; shown_part: the method of it that
        is shown, where the whole class would be too long.
    equivalent: mutants of the reference that behave like it ("old line -> new line") and why.
    """

    mistakes: tuple[Mistake, ...]
    alternatives: tuple[Alternative, ...]
    why: str
    shown: str = ""
    shown_part: str = ""
    equivalent: dict[str, str] = field(default_factory=dict)

    def mistake(self, name: str) -> Mistake:
        for mistake in self.mistakes:
            if mistake.name == name:
                return mistake
        raise KeyError(f"no mistake {name!r}; there are {[m.name for m in self.mistakes]}")


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    id: lab and place, "4.3". title: its heading. difficulty: 1 to 3.
    symbol: where the right answer stands, "course.engine.block_table:slot_mapping"; the learner's
        answer has the same name. Symbols of the engine are real pieces; what exists only for a lab
        stands in ``course.practice.answers``.
    kind: "write": bodies are taken out. "mend": the cell starts as the wrong answer ``start`` (the
        name of a mistake). "data": the answer is a value; the cell starts as the text ``start``.
    blank: for a class, the methods whose bodies are taken out. given: how many statements at the
        start and at the end of a body stay, by function: {"free": (0, 2)}. omit: members of the
        class that are not shown, and are added to the learner's class when it goes into the engine.
    lines: "about N lines"; counted from the reference when not given.
    trials: what the random cases are called: "random tables".
    offers: names that its module imports and the right answer does without, and that another one
        may want: an error to be caught.
    piece: goes into the learner's engine. False for predictions, traces, mended toys.
    """

    id: str
    title: str
    symbol: str
    points: int
    minutes: int
    difficulty: int
    hints: tuple[str, str, str]
    probes: tuple[Probe, ...]
    kind: str = "write"
    start: str = ""
    blank: tuple[str, ...] = ()
    given: dict[str, tuple[int, int]] = field(default_factory=dict)
    omit: tuple[str, ...] = ()
    lines: int | None = None
    trials: str = "random cases"
    offers: tuple[str, ...] = ()
    piece: bool = True

    def __post_init__(self) -> None:
        if self.kind not in ("write", "mend", "data"):
            raise ValueError(f"exercise {self.id}: kind {self.kind!r}; write, mend or data")
        if len(self.hints) != 3:
            raise ValueError(f"exercise {self.id}: {len(self.hints)} hints; write three")
        if not 1 <= self.difficulty <= 3:
            raise ValueError(f"exercise {self.id}: difficulty {self.difficulty}; 1 to 3")
        behaviours = [probe.behaviour for probe in self.probes]
        if len(set(behaviours)) != len(behaviours):
            raise ValueError(f"exercise {self.id}: two probes are called alike")

    @property
    def lab(self) -> int:
        return int(self.id.partition(".")[0])

    @property
    def name(self) -> str:
        """The name that the learner's answer has."""
        return self.symbol.partition(":")[2]

    @property
    def label(self) -> str:
        return f"{self.id} {self.name}"

    @property
    def key(self) -> str:
        """What its cells and files are called, for ever: it survives a new number."""
        return f"{self.lab:02d}-{self.name}"

    @cached_property
    def answers(self) -> Answers:
        """ModuleNotFoundError in a process that is kept from the answers."""
        from importlib import import_module

        module = import_module(f"course.practice.answers.lab_{self.lab:02d}")
        if self.name not in module.ANSWERS:
            raise LookupError(f"{module.__name__}.ANSWERS has nothing for {self.name!r}")
        return module.ANSWERS[self.name]
