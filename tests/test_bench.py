"""The benchmark: engines in processes of their own, taking turns; ratios; what was not run."""

import json

import pytest

from course.bench import run
from course.bench.cases import Case, make_cases

SMALL = {
    "two": Case("two", ((1, 2, 3), (4, 5, 6)), (4, 4)),
    "mixed": Case("mixed", ((1, 2, 3), (4, 5)), (2, 3)),
}


@pytest.fixture
def result(monkeypatch):
    monkeypatch.setattr(run, "make_cases", lambda: SMALL)
    said = []
    measured = run.measure(
        ["ours", "weights only", "transformers"], "tiny", "float32", 1, 2, say=said.append
    )
    assert any("round 2 of 2" in text for text in said)
    return measured


def test_every_engine_is_measured_or_said_to_be_not_run(result):
    json.dumps(result)
    assert [case["case"] for case in result["cases"]] == ["two", "mixed"]
    for case in result["cases"]:
        ours, bound = case["ours"], case["peers"]["weights only"]
        assert ours > 0
        assert case["ratios"]["weights only"] == pytest.approx(ours / bound)
        low, high = case["spread"]["ours"]
        assert low <= ours <= high
        # there is no GGUF file called "tiny", so the peer cannot run, installed or not
        assert "transformers" in case["not_run"]
        assert "transformers" not in case["ratios"]
    text = run.markdown(result)
    assert "| not run |" in text
    assert "Not run: transformers on two" in text
    assert "nan" not in text


def test_an_engine_that_dies_is_not_a_result(tmp_path):
    worker = run.Worker("ours", str(tmp_path / "no.gguf"), "float32", 1, run.sys.executable)
    assert "no.gguf" in worker.error
    assert "error" in worker.run(SMALL["two"])
    worker.close()


def test_cases_are_the_same_for_the_same_seed_and_fit_the_model():
    cases = make_cases()
    assert cases == make_cases()
    assert cases != make_cases(seed=1)
    assert [len(c.prompts) for c in cases.values()] == [1, 8, 32, 64]
    for case in cases.values():
        assert len(case.prompts) == len(case.max_tokens)
        assert case.output_tokens == sum(case.max_tokens)
        assert all(0 <= token < 49152 for prompt in case.prompts for token in prompt)


@pytest.mark.parametrize(
    "arguments", [["--engine", "vroom"], ["--case", "none"], ["--rounds", "0"]]
)
def test_command_refuses_what_it_does_not_know(arguments):
    from typer.testing import CliRunner

    from course.cli import app

    outcome = CliRunner().invoke(app, ["bench", *arguments])
    assert outcome.exit_code != 0
    assert isinstance(outcome.exception, ValueError)
    assert arguments[1] in str(outcome.exception)


def test_the_quoted_command_says_what_was_measured_and_not_where_it_went():
    from course.commands.bench import measuring_command

    given = ["bench", "--case", "1 request", "--out", "/some/folder", "--rounds", "3", "--out=x"]
    assert measuring_command(given) == "python -m course bench --case '1 request' --rounds 3"
