"""Exercises, what checks them, what they say, and the learner's own engine.

In a notebook: ``from course.practice import check, resume``. docs/adding_exercises.md tells authors
how to write a lab. Names are looked up on first use, so that importing this costs nothing.
"""

from importlib import import_module

_HOME = {
    "check": "checks",
    "check_only": "checks",
    "see_mistake": "checks",
    "resume": "bring",
    "learner_engine": "swap",
    "progress": "standing",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"course.practice has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return __all__
