"""The benchmark: engines in processes of their own, taking turns; ratios; what was not run."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from course.bench import engines, environments, run, serving
from course.bench.cases import Case, make_cases
from course.engine import load_model

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
    worker = run.Worker("ours", str(tmp_path / "no.gguf"), "float32", 1, sys.executable)
    assert "no.gguf" in worker.error
    assert "error" in worker.run(SMALL["two"])
    worker.close()


def test_cases_are_the_same_for_the_same_seed_and_fit_the_model():
    cases = make_cases()
    assert cases == make_cases()
    assert cases != make_cases(seed=1)
    assert [len(c.prompts) for c in cases.values()] == [1, 8, 32, 64, 32, 1, 48, 48, 48, 48]
    for case in cases.values():
        assert len(case.prompts) == len(case.max_tokens)
        assert case.output_tokens == sum(case.max_tokens) * case.num_samples
        assert max(map(len, case.prompts)) + max(case.max_tokens) < engines.LONGEST
        assert all(0 <= token < 49152 for prompt in case.prompts for token in prompt)


@pytest.mark.parametrize(
    "arguments",
    [["--engine", "vroom"], ["--case", "none"], ["--rounds", "0"], ["--dtype", "float16"]],
)
def test_command_refuses_what_it_does_not_know(arguments):
    from typer.testing import CliRunner

    from course.cli import app

    outcome = CliRunner().invoke(app, ["bench", *arguments])
    assert outcome.exit_code != 0
    assert isinstance(outcome.exception, ValueError)
    assert arguments[1] in str(outcome.exception)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_result_is_printed_and_kept_as_data_and_as_a_page(tmp_path, capsys, as_json):
    from course.commands.bench import put

    put(tmp_path / "new", as_json, "name", "A title", {"a": 1}, "a page\n")
    assert json.loads((tmp_path / "new" / "name.json").read_text()) == {"a": 1}
    assert (tmp_path / "new" / "name.md").read_text() == "# A title\n\na page\n"
    put(None, as_json, "name", "A title", {"a": 1}, "a page\n")
    said = '{\n  "a": 1\n}\n' if as_json else "a page\n\n"
    assert capsys.readouterr().out == 2 * said


def test_the_quoted_command_says_what_was_measured_and_not_where_it_went():
    from course.commands.bench import measuring_command

    given = ["bench", "--case", "1 request", "--out", "/some/folder", "--rounds", "3", "--out=x"]
    assert measuring_command(given) == "python -m course bench --case '1 request' --rounds 3"


def test_a_pool_that_is_short_is_at_least_as_long_as_the_longest_request():
    slices = [case for case in make_cases().values() if case.pool_tokens]
    assert len(slices) == 4
    for case in slices:
        blocks = [
            -(-(len(prompt) + count) // 16)
            for prompt, count in zip(case.prompts, case.max_tokens, strict=True)
        ]
        assert max(blocks) <= case.pool_tokens // 16 <= max(max(blocks), sum(blocks) // 4)
        assert case.pool_tokens < sum(blocks) * 16, "memory is short"


def test_our_engine_serves_samples_prefixes_and_a_short_pool():
    ours = engines.Ours("tiny", "float32")
    prefix = list(range(10, 50))
    cases = [
        {"prompts": [[1, 2, 3]], "max_tokens": [5], "num_samples": 4, "pool_tokens": None},
        {
            "prompts": [[*prefix, i] for i in range(6)],
            "max_tokens": [4] * 6,
            "num_samples": 1,
            "pool_tokens": 96,
        },
    ]
    for case in cases:
        outputs = ours.run(case)
        assert len(outputs) == len(case["prompts"]) * case["num_samples"]
        assert {len(tokens) for tokens in outputs} == {case["max_tokens"][0]}
    assert ours.llm.stats.preemptions == 0 or ours.pool_tokens == 96


def test_the_bound_pushes_every_row_through_once(monkeypatch):
    """3 and 2 prompt tokens, 4 and 2 tokens out: the first comes out of the prompt's own pass."""
    bound, passes = engines.LinearLayers("tiny", "float32"), []
    monkeypatch.setattr(bound, "_pass", lambda rows, samples: passes.append((rows, samples)))
    case = {"prompts": [[1, 2, 3], [4, 5]], "max_tokens": [4, 2], "num_samples": 1}
    bound.run(case)
    assert passes == [(5, 2), (2, 2), (1, 1), (1, 1)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_other_bound_reads_every_weight(dtype):
    bound = engines.WeightsOnly("tiny", dtype)
    model, _ = load_model("tiny", getattr(torch, dtype))
    layer = model.config.hidden_size * (
        2 * (model.config.num_heads + model.config.num_kv_heads) * model.config.head_dim
        + 3 * model.config.intermediate_size
    )
    num_weights = model.config.num_layers * layer
    num_weights += model.config.vocab_size * model.config.hidden_size
    size = bound.weights.numel() * 4 / getattr(torch, dtype).itemsize
    assert num_weights <= size < 1.2 * num_weights  # panels are filled up with zeros
    case = {"prompts": [[1]], "max_tokens": [3], "num_samples": 2}
    assert bound.run(case) == [[0] * 3] * 2


def test_serving_is_taken_apart_and_shown(monkeypatch):
    monkeypatch.setattr(serving, "BATCHES", (1, 5))
    monkeypatch.setattr(serving, "ROUNDS", 1)
    monkeypatch.setattr(serving, "FULL_REQUESTS", 60)
    monkeypatch.setattr(serving, "MIXES", {"sharegpt_8k_filtered": "ShareGPT"})
    result = serving.measure("tiny", "float32")
    for row in result["steps"]:
        assert 0 < row["model_ms"] < row["step_ms"]
    (row,) = result["pages"]
    assert row["batch"]["paged"] > row["batch"]["slab"] >= 1
    assert row["batch_ratio"] == pytest.approx(row["predicted_ratio"], rel=0.05)
    assert 0.9 < row["live_share"] <= 1
    page = serving.markdown(result)
    assert page.count("\n| 1 |") == page.count("\n| 5 |") == page.count("| ShareGPT |") == 1


def test_an_environment_that_cannot_be_made_is_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_BENCH_PYTHON", raising=False)
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    nothing = environments.Environment((str(tmp_path / "no-such-package.whl"),), "nothing")
    monkeypatch.setitem(environments.ENVIRONMENTS, "vllm", nothing)
    monkeypatch.setattr(run, "make_cases", lambda: SMALL)
    result = run.measure(["ours", "vllm"], "tiny", "float32", 1, 1, ["two"])
    assert "could not be made" in result["cases"][0]["not_run"]["vllm"]
    assert result["cases"][0]["ours"] > 0
    assert not (tmp_path / "vllm").exists(), "nothing half made is left behind"


def test_the_folder_for_peers_holds_the_same_model(tmp_path, monkeypatch):
    """Read back by the engine's own reader of such folders, where the model file is installed."""
    import torch

    from course.engine import load_model
    from course.engine.loading import weights_hf
    from course.engine.loading.model_file import model_file
    from course.engine.native.linear import Linear

    if (file := model_file()) is None:
        pytest.skip("not run: the model file is not installed")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    folder = environments.model_folder(str(file), "float32")
    monkeypatch.setattr(weights_hf, "open_tokenizer", lambda *_: None)  # peers are given ids
    config, weights, _ = weights_hf.open_folder(folder)
    model, _ = load_model(file, torch.float32)
    assert replace(config.shape, name="") == replace(model.config.shape, name="")
    assert torch.equal(weights["embedding"], model.embedding)
    down = Linear(weights["7.down"])
    assert torch.equal(down.weight, model.layers[7].down.weight)  # both as products want it


def test_growth_is_measured_and_shown(monkeypatch):
    from course.bench import growth

    monkeypatch.setattr(growth, "OPERATIONS", 20)
    shrunk = tuple((*row, (min(sizes[0], 200),)) for *row, sizes in growth.MEASURES)
    monkeypatch.setattr(growth, "MEASURES", shrunk)
    table = growth.measure()
    assert all(time > 0 for row in table for time in row.microseconds.values())
    page = growth.markdown(table)
    assert page.count("| 1.00 |") == len(growth.MEASURES)
    assert growth.Growth("x", "y", {10: 2.0, 1_000: 5.0}).ratio == 2.5


def test_what_a_learner_waits_for_is_measured(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from course.bench import learner
    from course.cli import app
    from course.practice import registry

    small = registry.find("blocks_needed")
    monkeypatch.setattr(registry, "every", lambda: (small,))
    for _ in range(2):
        outcome = CliRunner().invoke(app, ["bench", "--learner", "--out", str(tmp_path)])
        assert outcome.exit_code == 0, outcome.output
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert len(lines) == 2, "a run is added to those before it"
    assert {"import course", "boundary_clinic"} <= set(lines[0]["seconds"])
    assert "blocks_needed" in (tmp_path / "learner.md").read_text()
    assert learner.markdown([("a", 3.0, 2.0), ("b", 0.1, 2.0)]).count("over") == 1
