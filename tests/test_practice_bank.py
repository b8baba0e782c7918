"""The bank against itself: every wrong answer is caught by name, every other right one passes."""

import ast
import json
from functools import cache
from pathlib import Path

import pytest
from practice_ids import exercises, labs

import course
from course.authoring.blank import stub
from course.practice import feedback, registry, survey
from course.practice.checks import examine
from course.practice.plain import is_plain
from course.practice.run import expected, make_cases
from course.practice.source import (
    definitions,
    load,
    module_text,
    names_of,
    prelude,
    reference,
    variant_text,
)
from course.practice.verdict import alike

COURSE = Path(course.__file__).parent
SLOW_IMPORTS = {"torch", "triton", "matplotlib", "tokenizers", "gguf", "safetensors"}
_surveys: dict = {}


def surveyed(exercise, seed=0):
    if (exercise.key, seed) not in _surveys:
        _surveys[exercise.key, seed] = survey.survey(exercise, seed)
    return _surveys[exercise.key, seed]


@cache
def reference_runs(key):
    """(cases, outcomes, outcomes again of those of the first seed) of the reference. All at once:
    kernels then need one process, and that is what they cost."""
    exercise = registry.find(key)
    risky = any(probe.risky for probe in exercise.probes)
    first = make_cases(exercise, 1)
    more = [
        case
        for seed in range(2, 3 if risky else 12)  # the examples are the same with every seed
        for case in make_cases(exercise, seed)
        if case.drawn
    ]
    came = expected(exercise, [*first, *more, *first])
    count = len(first) + len(more)
    return [*first, *more], came[:count], came[count:]


@pytest.mark.parametrize("exercise", exercises())
def test_every_wrong_answer_is_caught_by_its_own_name(exercise):
    wrong = [row for row in surveyed(exercise) if row.is_mistake]
    assert len(wrong) >= 6, f"{len(wrong)} mistakes; at least six"
    for row in wrong:
        assert row.caught_by, f"no probe catches {row.which.name!r}"
        assert row.named == row.which.name, (
            f"{row.which.name!r} behaves like {row.named!r}: a probe should tell them apart"
        )


@pytest.mark.parametrize("exercise", exercises())
def test_every_other_right_answer_passes(exercise):
    right = [row for row in surveyed(exercise) if not row.is_mistake]
    assert len(right) >= 3, f"{len(right)} alternatives; at least three"
    for row in right:
        assert row.well, f"{row.which.name!r}:\n{feedback.text(row.verdict)}"


@pytest.mark.parametrize("exercise", exercises())
def test_the_reference_passes_with_every_seed(exercise):
    once = reference_runs(exercise.key)[1]
    assert all("value" in o or "not_run" in o for o in once)
    json.dumps(once)
    assert all(is_plain(o["value"]) for o in once if "value" in o)


@pytest.mark.parametrize("exercise", exercises())
def test_wrong_answers_are_caught_with_another_seed(exercise):
    if any(probe.risky for probe in exercise.probes):
        pytest.skip("each seed costs a process for every wrong answer")
    for seed in (11, 12, 13):
        for row in survey.survey(exercise, seed):
            assert bool(row.caught_by) == row.is_mistake, (seed, row.which.name)


@pytest.mark.parametrize("exercise", exercises())
def test_probes_are_pure(exercise):
    """The same inputs give the same outcome, twice, and after a trip through JSON."""
    cases, came, came_again = reference_runs(exercise.key)
    again = make_cases(exercise, 1)
    assert [c.inputs for c in cases[: len(again)]] == [c.inputs for c in again]
    for case in again:
        assert json.loads(json.dumps(case.inputs)) == case.inputs, case.probe.behaviour
    for case, a, b in zip(again, came, came_again, strict=False):
        assert alike(a, b, case.probe), case.probe.behaviour


@pytest.mark.parametrize("exercise", exercises())
def test_an_untouched_stub_fails_kindly(exercise):
    text = stub(exercise)
    verdict = examine(exercise, load(exercise, text), text, seed=1)
    assert not verdict.passed
    assert verdict.untouched
    said = feedback.lines(verdict)
    assert len(said) == 2
    assert said[0] == f"{exercise.label}: not yet."


@pytest.mark.parametrize("exercise", exercises())
def test_what_a_wrong_answer_sees_is_short_and_whole(exercise):
    for row in surveyed(exercise):
        if not row.is_mistake:
            continue
        row.verdict.mistake = row.which
        said = feedback.lines(row.verdict, again=f"check({exercise.name}, seed=123456)")
        text = "\n".join(said)
        assert len(said) <= 12, text
        assert all(len(line) <= 100 for line in said), text
        assert text.count("✗") == 1
        assert "Traceback" not in text
        assert "site-packages" not in text
        assert f"comes out when {row.which.name[:20]}" in text
        cause = [line for line in said if line[:2] == "  " and line[2] != " "]
        assert not any(line.endswith("…") for line in cause), text


@pytest.mark.parametrize("exercise", exercises())
def test_words_are_there_and_tidy(exercise):
    answers = exercise.answers
    names = [m.name for m in answers.mistakes] + [a.name for a in answers.alternatives]
    assert len(set(names)) == len(names)
    for mistake in answers.mistakes:
        assert 20 <= len(mistake.note) <= 330, f"{mistake.name!r}: {len(mistake.note)} characters"
        assert mistake.note.endswith((".", "?"))
        assert not mistake.name.endswith(".")
    for hint in exercise.hints:
        assert 20 <= len(hint) <= 500
    assert answers.shown in {m.name for m in answers.mistakes}
    assert len(answers.why.split()) >= 20
    assert exercise.points >= 1
    for probe in exercise.probes:
        assert len(probe.behaviour) <= 90, probe.behaviour
    if exercise.kind == "mend":
        answers.mistake(exercise.start)
    for which in (*answers.mistakes, *answers.alternatives):
        text = variant_text(exercise, which)
        assert exercise.name in [n for s in ast.parse(text).body for n in names_of(s)]
        assert definitions(text)


@pytest.mark.parametrize("lab", labs())
def test_a_bank_does_not_know_the_answers_and_loads_quickly(lab):
    text = (COURSE / "practice" / "bank" / f"lab_{lab:02d}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and "answers" in ast.unparse(node)
    ]
    for node in tree.body:  # at the top: what is slow is imported inside the probes
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = getattr(node, "module", None) or node.names[0].name
            assert named.partition(".")[0] not in SLOW_IMPORTS, f"{named} is imported at the top"


@pytest.mark.parametrize("exercise", exercises())
def test_an_answer_of_the_lab_needs_nothing_else_of_its_answers(exercise):
    """A grader's worker has no answers module: what stands before an answer must not need it."""
    assert "course.practice.answers" not in prelude(exercise)
    if exercise.piece:
        assert not exercise.symbol.startswith("course.practice")


def test_ids_and_keys_are_each_used_once():
    every = registry.every()
    assert len({e.id for e in every}) == len(every)
    assert len({e.key for e in every}) == len(every)
    for number in registry.labs():
        assert [e.id for e in registry.lab(number)] == [
            f"{number}.{place}" for place in range(1, len(registry.lab(number)) + 1)
        ]


@pytest.mark.parametrize("lab", labs())
def test_the_table_in_the_docs_is_current(lab):
    page = (COURSE.parent / "docs" / "mistakes.md").read_text(encoding="utf-8")
    stored = survey.sections(page)
    made = survey.lab_section(lab, surveyed)
    if "n" in {cell.strip() for line in made.splitlines() for cell in line.split("|")}:
        pytest.skip("some probes cannot run here, so the table cannot be made again")
    assert lab in stored, f"no lab {lab:02d} in it: run `python -m course mistakes --lab {lab}`"
    assert stored[lab] == made, f"out of date: run `python -m course mistakes --lab {lab}`"


def test_the_totals_in_the_docs_are_those_of_the_labs():
    page = (COURSE.parent / "docs" / "mistakes.md").read_text(encoding="utf-8")
    assert survey.page(survey.sections(page)) == page
    assert set(survey.sections(page)) == set(registry.labs())


@pytest.mark.parametrize("lab", labs())
def test_symbols_are_where_the_bank_says(lab):
    for exercise in registry.lab(lab):
        assert f"{exercise.name}" in module_text(exercise.symbol.partition(":")[0])
        assert reference(exercise) is not None
