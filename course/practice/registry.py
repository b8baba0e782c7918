"""Find exercises: by lab, by id, by the name of a learner's object.

A bank imports the standard library, NumPy and this package, nothing slow: torch and the like are
imported inside its probes. So all banks together load in a moment.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from course.practice import bank
from course.practice.exercise import Exercise


@cache
def labs() -> tuple[int, ...]:
    """The labs that have exercises."""
    names = [module.name for module in iter_modules(bank.__path__)]
    return tuple(sorted(int(name[4:]) for name in names if name.startswith("lab_")))


@cache
def lab(number: int) -> tuple[Exercise, ...]:
    """The exercises of a lab, in order."""
    if number not in labs():
        there = ", ".join(f"{n:02d}" for n in labs())
        raise ValueError(f"there is no lab {number:02d}; there are {there}")
    return tuple(import_module(f"course.practice.bank.lab_{number:02d}").EXERCISES)


@cache
def every() -> tuple[Exercise, ...]:
    """All exercises of the course, in order."""
    return tuple(exercise for number in labs() for exercise in lab(number))


def pieces() -> tuple[Exercise, ...]:
    """The exercises whose answers go into the learner's engine."""
    return tuple(exercise for exercise in every() if exercise.piece)


def find(which: str) -> Exercise:
    """By id ("4.3") or by name ("slot_mapping"). ValueError says what there is."""
    found = [e for e in every() if which in (e.id, e.name, e.key)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = " or ".join(repr(e.id) for e in found)
        raise ValueError(f"{which!r} is asked for in more than one lab: say {ids}")
    if not isinstance(which, str):
        raise ValueError(f"an exercise is named by its id or name, '4.3', and not by {which!r}")
    near = which.partition(".")[0]
    if lab_of := [e.label for e in every() if e.id.startswith(near + ".")]:
        raise ValueError(f"there is no exercise {which!r}; there are {', '.join(lab_of)}")
    raise ValueError(f"there is no exercise {which!r}. {_meant(which)}")


def _meant(which: str) -> str:
    names = {name.lower().replace("_", ""): name for name in (e.name for e in every())}
    plain = which.lower().replace("_", "")
    found = [names[near] for near in get_close_matches(plain, names, 3, cutoff=0.7)]
    if found:
        return f"Did you mean {' or '.join(found)}?"
    return "`progress()` lists them all."
