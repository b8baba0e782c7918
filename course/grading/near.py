"""The grader's end of the wall: what a worker may have done here, and what not even here.

A worker's copy of the course has the answer taken out. Here the course is whole, and what a probe
handed over is the real thing: asked through it, the engine would do what the answer is to do. So
the reference is taken out here, too, for as long as something is done for the worker.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from course.grading.room import TWINS
from course.grading.wall.peer import Peer
from course.grading.wall.wire import Channel
from course.practice.exercise import Exercise
from course.practice.source import reference

MISSING = "this is what you are asked to write"
NOTE = "had the grader's own course do what it was asked to write"


def known_class(module: str, name: str) -> Any:
    """A class of the course that is loaded here already; a worker cannot have one imported."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _missing(*arguments: Any, **names: Any) -> Any:
    raise NotImplementedError("this is what you are asked to write")


class Near(Peer):
    """Serves a worker. exercise: whose reference is not there for it."""

    def __init__(self, channel: Channel, exercise: Exercise | None = None):
        super().__init__(channel, guarded=True, find_class=known_class)
        found = None if exercise is None or exercise.kind == "data" else reference(exercise)
        self.kind = found if isinstance(found, type) else None
        self.bodies = bodies(found, exercise.blank) if exercise and found is not None else []
        self.bodies += [_twin(name) for name in TWINS.get(exercise.key if exercise else "", ())]

    def _done(self, message: dict) -> Any:
        with taken_out(self.bodies):
            try:
                return super()._done(message)
            except NotImplementedError as error:
                if str(error) == MISSING:
                    self.notes.add(NOTE)
                raise

    def _known(self, told: str) -> Any:
        found = super()._known(told)
        if self.kind is not None and issubclass(found, self.kind):
            self.notes.add(NOTE)
            raise ValueError("the answer is none of ours")
        return found


def _twin(told: str) -> types.FunctionType:
    module, _, name = told.partition(":")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def bodies(found: Any, names: tuple[str, ...]) -> list[types.FunctionType]:
    """The functions that somebody who writes ``found`` has to write; none of a compiled kernel."""
    parts = [vars(found)[name] for name in names] if isinstance(found, type) else [found]
    parts = [p.fget if isinstance(p, property) else p for p in parts]
    whole = [inspect.unwrap(p) for p in parts if callable(p)]
    return [p for p in whole if isinstance(p, types.FunctionType)]


@contextlib.contextmanager
def taken_out(functions: list[types.FunctionType]) -> Iterator[None]:
    """They raise NotImplementedError, by whatever name somebody calls them."""
    before = [function.__code__ for function in functions]
    for function in functions:
        own = function.__code__
        function.__code__ = _missing.__code__.replace(
            co_freevars=own.co_freevars, co_name=own.co_name
        )
    try:
        yield
    finally:
        for function, code in zip(functions, before, strict=True):
            function.__code__ = code
