"""Replaying a workload: recorded lengths, arrivals and shared prefixes on a real engine."""

import json

import pytest
import torch

from course.engine import LLM, load_model
from course.replay import make_prompts, replay
from course.workload import WorkloadRequest


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny", dtype=torch.float32, device="cpu")


def test_every_request_gets_its_recorded_lengths(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=40)
    requests = [WorkloadRequest(0.0, p, o) for p, o in [(5, 3), (1, 1), (17, 9), (4, 4)]]
    seen = []
    result = replay(llm, requests, on_progress=lambda done, total: seen.append((done, total)))
    assert (result.served, result.refused) == (4, 0)
    assert (result.prompt_tokens, result.output_tokens) == (27, 17)
    assert result.peak_batch == 4
    assert seen[-1] == (4, 4)
    assert len(result.time_to_first_token) == 4
    assert len(result.time_per_token) == 3
    assert not llm.has_work
    assert llm.kv_manager.num_free == 40


def test_a_request_that_cannot_fit_is_counted_and_the_rest_are_served(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=4)
    result = replay(llm, [WorkloadRequest(0.0, p, 2) for p in (3, 60, 5)])
    assert (result.served, result.refused) == (2, 1)


def test_equal_prefix_hashes_become_shared_prefixes(tiny):
    requests = [
        WorkloadRequest(0.0, 20, 2, prefix_hashes=(11, 12, 13)),
        WorkloadRequest(0.0, 21, 2, prefix_hashes=(11, 12, 99)),
        WorkloadRequest(0.0, 20, 2, prefix_hashes=(7, 12, 13)),
    ]
    one, two, three = make_prompts(requests, 1000, block_tokens=8)
    assert [len(p) for p in (one, two, three)] == [20, 21, 20]
    assert one[:16] == two[:16]
    assert one[16:] != two[16:20]
    assert one[:8] != three[:8]
    llm = LLM(tiny, block_size=4, num_blocks=40)
    for request in requests:
        result = replay(llm, [request], block_tokens=8)
    assert result.stats.cached_tokens == 16


def test_arrivals_are_kept_and_can_be_played_faster(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=40)
    requests = [WorkloadRequest(10.0 + t, 3, 2) for t in (0.0, 4.0)]
    result = replay(llm, requests, speed=20)
    assert 0.2 <= result.seconds < 5
    assert result.peak_batch == 1
    for speed in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="speed"):
            replay(llm, requests, speed=speed)


def test_an_interrupt_leaves_nothing_behind(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=40)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(llm, [WorkloadRequest(0.0, 5, 5)] * 3, on_progress=stop)
    assert not llm.has_work
    llm.check_invariants()


def run_command(*arguments):
    from typer.testing import CliRunner

    from course.cli import app

    return CliRunner().invoke(app, list(arguments))


def test_replay_command_serves_a_file(tmp_path):
    trace = tmp_path / "lengths.csv"
    trace.write_text("prompt_tokens,output_tokens\n5,3\n9,2\n")
    result = run_command("replay", str(trace), "--model", "tiny", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert rows["requests served"] == 2
    assert rows["output tokens"] == 5


def test_replay_command_scales_lengths(tmp_path):
    trace = tmp_path / "lengths.csv"
    trace.write_text("prompt_tokens,output_tokens\n50,30\n90,20\n")
    result = run_command("replay", str(trace), "--model", "tiny", "--scale", "0.1", "--json")
    assert json.loads(result.stdout)["prompt tokens"] == 14


@pytest.mark.parametrize(
    ("option", "value"),
    [("--scale", "0"), ("--scale", "inf"), ("--scale", "nan"), ("--seed", "-1")],
)
def test_replay_command_names_an_option_out_of_range(tmp_path, option, value):
    trace = tmp_path / "lengths.csv"
    trace.write_text("5,3\n")
    result = run_command("replay", str(trace), "--model", "tiny", option, value)
    assert isinstance(result.exception, ValueError)
    assert option in str(result.exception)


def test_generate_command_prints_json_and_text():
    result = run_command("generate", "hi", "--model", "tiny", "--max-tokens", "3", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["token_ids"]) <= 3
    several = run_command("generate", "hi", "--model", "tiny", "-n", "3", "--json")
    assert len(json.loads(several.stdout)["samples"]) == 3
    plain = run_command("generate", "hi", "--model", "tiny", "--max-tokens", "3")
    streamed = run_command("generate", "hi", "--model", "tiny", "--max-tokens", "3", "--stream")
    assert plain.stdout.strip() == "hi" + streamed.stdout.strip("\n")


def test_generate_command_refuses_with_the_reason():
    for arguments, words in [
        (["", "--model", "tiny"], "empty"),
        (["hi", "--model", "tiny", "--temperature", "-1"], "temperature"),
        (["hi", "--model", "nowhere.gguf"], "nowhere.gguf"),
        (["hi", "--model", "tiny", "--stream", "--json"], "--stream"),
    ]:
        result = run_command("generate", *arguments)
        assert result.exit_code != 0
        assert words in str(result.exception)


def test_a_replay_that_serves_nobody_has_failed(tmp_path):
    trace = tmp_path / "lengths.csv"
    trace.write_text("prompt_tokens,output_tokens\n50,30\n")
    result = run_command("replay", str(trace), "--model", "tiny", "--max-model-len", "16")
    assert result.exit_code != 0
    assert "all 1 requests were refused" in str(result.exception)
