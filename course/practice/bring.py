"""Bring the learner's pieces back into a notebook; swap.py puts them into the engine."""

from __future__ import annotations

import sys
from typing import Any

from course.practice import registry
from course.practice.exercise import Exercise
from course.practice.my_engine import MyEngine
from course.practice.run import loaded
from course.practice.source import reference

YOURS, OURS = "yours", "ours"


class Pieces(dict):
    """name -> object, with ``origin``: name -> "yours" or "ours".

    notes: why a saved piece was not taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origin: dict[str, str] = {}
        self.notes: list[str] = []

    def __repr__(self) -> str:
        yours = [name for name, whose in self.origin.items() if whose == YOURS]
        ours = [name for name, whose in self.origin.items() if whose == OURS]
        told = [f"Yours: {', '.join(yours)}."] if yours else []
        told += [f"Ours, until you pass them: {', '.join(ours)}."] if ours else []
        return "\n".join([" ".join(told) or "There is nothing to bring.", *self.notes])


def resume(*names: str) -> Pieces:
    """Bring earlier pieces into this notebook: yours where you passed them, else the course's.

    names: which ones; all when not given. They become names of the notebook.
    """
    pieces = collect(*names)
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    space = shell.user_ns if shell else sys._getframe(1).f_globals
    space.update(pieces)
    print(pieces)
    return _Silent(pieces)


class _Silent(Pieces):
    """The same, already printed: a notebook does not show it a second time."""

    def __init__(self, pieces: Pieces):
        super().__init__()
        self.update(pieces)
        self.origin, self.notes = pieces.origin, pieces.notes

    def _ipython_display_(self) -> None:
        pass


def collect(*names: str, engine: MyEngine | None = None) -> Pieces:
    """The pieces, each the learner's if it is saved, loads and, where edited by hand, passes."""
    engine = engine or MyEngine()
    chosen = [registry.find(name) for name in names] if names else registry.pieces()
    found = Pieces()
    for exercise in chosen:
        answer, note = theirs(exercise, engine)
        if note:
            found.notes.append(note)
        try:
            found[exercise.name] = reference(exercise) if answer is None else answer
        except ImportError as error:  # a kernel, where Triton is not installed
            found.notes.append(f"{exercise.label}: cannot be brought here ({error}).")
            continue
        found.origin[exercise.name] = OURS if answer is None else YOURS
    return found


def theirs(exercise: Exercise, engine: MyEngine) -> tuple[Any, str]:
    """(the learner's piece or None, why a saved one was not taken)."""
    piece = engine.piece(exercise.key)
    if piece is None:
        return None, ""
    ours = f"The course's {exercise.name} is used instead."
    answer, problem = loaded(exercise, piece.text)
    if problem:
        error = problem.get("error", {})
        what = f"{error.get('type', 'it does not load')}: {error.get('message', '')}".rstrip(": ")
        return None, f"{exercise.label}: {piece.path.name} cannot be loaded ({what}). {ours}"
    if piece.changed:
        from course.practice.checks import examine

        verdict = examine(exercise, answer, piece.text, seed=0)
        if not verdict.passed:
            held = len(verdict.in_state("holds"))
            hold = "holds" if held == 1 else "hold"
            return None, (
                f"{exercise.label}: {piece.path.name} was changed by hand: now {held} of "
                f"{len(verdict.behaviours)} behaviours {hold}. {ours}"
            )
    return whole(exercise, answer), ""


def whole(exercise: Exercise, answer: Any) -> Any:
    """The answer with the members that the lab left out, so that the engine can use it."""
    if not exercise.omit or not isinstance(answer, type):
        return answer
    ours = vars(reference(exercise))
    members = {name: ours[name] for name in exercise.omit if not hasattr(answer, name)}
    if not members:
        return answer
    return type(exercise.name, (answer,), {**members, "__doc__": answer.__doc__})
