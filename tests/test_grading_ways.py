"""Known answers get the same verdict through the wall as in a notebook."""

import pytest

from course.grading import isolation, survey
from course.grading.session import Limits
from course.grading.trial import Bench
from course.practice import registry

# Of lab 04, whose answers need no PyTorch. `python -m course.grading.survey` does all labs.
CHOSEN = ("4.2", "4.3", "4.4", "4.5")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    rooms = tmp_path_factory.mktemp("rooms")
    report = isolation.find(rooms)
    return Bench(report.level, Limits()), rooms


@pytest.mark.parametrize("which", CHOSEN)
def test_every_known_answer_gets_its_verdict(bench, which):
    exercise = registry.find(which)
    row = survey.survey(exercise, *bench)
    assert row.how == ("value" if exercise.kind == "data" else "outside")
    assert row.tried >= 9
    assert row.differ == []


def test_a_verdict_that_differs_is_told(bench, monkeypatch):
    monkeypatch.setattr(survey, "_here", lambda exercise, cases, text: [{"value": 0}] * len(cases))
    row = survey.survey(registry.find("4.2"), *bench, mistakes=False)
    assert row.differ
    assert "in a notebook" in row.differ[0]
