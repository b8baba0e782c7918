"""Right answers changed by rule: the probes notice all but what behaves like the right one."""

import pytest
from practice_ids import exercises

from course.authoring.mutants import living, mutants
from course.practice import registry

_counts: dict[str, tuple[int, list[str], list[str]]] = {}


@pytest.mark.parametrize("exercise", exercises(lambda e: e.kind != "data"))
def test_the_probes_notice(exercise):
    total, alive = living(exercise)
    explained = exercise.answers.equivalent
    unexplained = [name for name in alive if name not in explained]
    stale = [name for name in explained if name not in alive]
    assert total >= 5
    assert not stale, f"explained, and noticed by now: {stale}"
    # Fewer than 3 % of those that differ from the reference at all.
    assert len(unexplained) < 0.03 * (total - len(explained)), unexplained
    for name in explained:
        assert len(explained[name]) >= 10, f"{name}: say why it cannot be seen"


def test_explanations_name_mutants_that_exist():
    for exercise in registry.every():
        names = {mutant.name for mutant in mutants(exercise)}
        assert set(exercise.answers.equivalent) <= names, exercise.label
