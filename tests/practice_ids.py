"""Parameters for tests that run over every exercise: ids start with lab_NN, for -k."""

import pytest

from course.practice import registry


def exercises(only=lambda exercise: True):
    return [pytest.param(e, id=f"lab_{e.lab:02d}-{e.name}") for e in registry.every() if only(e)]


def labs():
    return [pytest.param(n, id=f"lab_{n:02d}") for n in registry.labs()]
