"""The check for a machine with a GPU, as far as a machine without one can run it.

Its sections run here in Triton's interpreter on small sizes, with the clock and CUDA replaced: what
this shows is that every line runs and that a wrong kernel is told apart from a right one.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from attention_cases import dense_attention as oracle

from course import gpu_check
from course.pins import ROOT

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="not run: no triton here"
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: says what happens without a GPU")
def test_without_a_gpu_it_says_not_run():
    for option, expected in (([], "not run: no NVIDIA GPU here"), (["--json"], '{"not_run": ')):
        done = subprocess.run(
            [sys.executable, "-m", "course", "gpu-check", *option],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        assert done.returncode == gpu_check.NOT_RUN_STATUS == 77
        assert done.stdout.startswith(expected)
    with pytest.raises(RuntimeError, match="not run: no NVIDIA GPU"):
        gpu_check.check_gpu()


@pytest.mark.parametrize("window", [None, 5])
def test_its_own_oracle_agrees_with_the_tests(window):
    q, k, v = torch.randn(3, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    found = gpu_check.dense_attention(q, k, v, window)
    expected, _ = oracle(*(t.double().numpy() for t in (q, k, v)), 6, window)
    torch.testing.assert_close(found, torch.from_numpy(expected))


def test_what_is_asked_for_is_among_the_cases():
    cases = gpu_check.bandwidth_cases()
    assert len(cases) == 4 * 4 * 2 * 3
    assert [(c["batch"], c["context"]) in gpu_check.GOALS for c in cases[:13]] == [True] * 12 + [
        False
    ]
    correct = gpu_check.correctness_cases()
    assert {c["dtype"] for c in correct} == {"float16", "bfloat16"}
    assert {c["group"] for c in correct} == {1, 3, 4, 8}
    assert {c["block_size"] for c in correct} == {16, 64}
    assert any(c["int8"] for c in correct)
    assert any(c["window"] for c in correct)


def test_results_are_on_file_as_they_come(tmp_path):
    said = []
    journal = gpu_check.Journal(100, tmp_path / "new" / "gpu.json", said.append)
    journal.put("machine", "none")
    journal.row("correctness", {"kernel": "decode", "ok": True, "error": 1e-4})
    on_file = json.loads((tmp_path / "new" / "gpu.json").read_text())
    assert on_file["correctness"] == [{"kernel": "decode", "ok": True, "error": 1e-4}]
    assert said[-1] == "correctness: kernel decode, ok True, error 0.0001"
    assert 99 < journal.seconds_left <= 100


SMALL = """
import json, math, sys
import torch
from contextlib import nullcontext
from course import gpu_check
from course.engine import graphs, triton_config
from course.engine.llm import LLM

gpu_check.DEVICE = "cpu"
gpu_check.BATCHES, gpu_check.CONTEXTS = (1, 2), (64, 700)
gpu_check.GROUPS = (4,)
gpu_check.GOALS = {(2, 64): 0.0, (1, 64): 1e9}
gpu_check.FLUSHED_BYTES = 2**20
gpu_check.ENGINE_TOKENS = 4
gpu_check.TOLERANCE[torch.float32] = 1e-5
gpu_check.comparison_cases = lambda: [{"batch": 1, "context": 64, "block_size": 16, "group": 4}]
gpu_check.why_not = lambda: None
gpu_check.correctness_cases = lambda: CASES
def timed(works, least=0.02):
    for work in works[:2]:
        work()
    return 1e-3, "graph"
gpu_check.gpu_seconds = timed
class Properties:
    name, multi_processor_count = "a stand-in", 2
torch.cuda.get_device_properties = lambda device: Properties
torch.cuda.mem_get_info = lambda: (2000 * gpu_check.TOKEN_BYTES, 0)
torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None
import course.engine.loading.model_file as model_file
model_file.model_file = lambda: None
import course.engine.llm as llm
def quick(name, dtype, **options):
    sizes = {"num_blocks": 256, "max_num_seqs": 32, "max_model_len": 192}
    return LLM("tiny", attention_backend="torch", **sizes)
llm.LLM = quick
graphs.use_graphs = lambda llm: None
"""


def run_small(more: str) -> dict:
    code = SMALL + more + "\nresult = gpu_check.check_gpu(seconds=1e6, say=lambda text: None)\n"
    code += "print(json.dumps({'result': result, 'page': gpu_check.markdown(result)}))\n"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


CASE = {"dtype": "float16", "group": 4, "head_dim": 64, "block_size": 16, "window": None}
CASE["int8"] = False


@needs_triton
@pytest.mark.slow
def test_every_section_runs_on_stand_ins():
    cases = [CASE, CASE | {"window": 100, "group": 3}, CASE | {"int8": True}]
    found = run_small(f"CASES = {cases!r}")
    result, page = found["result"], found["page"]
    assert "errors" not in result, result["errors"]
    assert result["passed"] is True
    kernels = [(row["kernel"], row.get("splits")) for row in result["correctness"]]
    once = [("decode", 1), ("decode", 3), ("decode", "chosen"), ("prefill", "chosen")]
    assert kernels == [("write", None), *once] * 2 + once
    ran = [row for row in result["bandwidth"] if "not_run" not in row]
    left = [row for row in result["bandwidth"] if "not_run" in row]
    assert len(ran) == 6
    assert {(row["batch"], row["context"]) for row in left} == {(2, 700)}  # no memory for it
    assert [row["reached"] for row in ran if row["goal"] is not None].count(True) == 2
    assert result["sdpa"][0]["ours_is_faster"] == pytest.approx(1)
    assert {row["batch"] for row in result["engine"]} == {1, 5, 8, 32}
    assert all(row["same_outputs"] == 1 for row in result["engine"] if row["graphs"])
    assert {row["not_run"] for row in result["peers"]} <= {"not installed"}
    assert "goal" in page
    assert "## bandwidth" in page


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "kernels"),
    [
        # The merge drops the first split; the decode kernel of one split is right.
        (
            "merge = attention.merge_splits_kernel\n"
            "class Wrong:\n"
            "    def __getitem__(self, grid):\n"
            "        def run(out, lse, parts, part_lse, starts, num_splits, **sizes):\n"
            "            part_lse[..., 0] = -math.inf\n"
            "            merge[grid](out, lse, parts, part_lse, starts, num_splits, **sizes)\n"
            "        return run\n"
            "attention.merge_splits_kernel = Wrong()\n",
            {("decode", 3)},
        ),
        (
            "class Nothing:\n"
            "    def __getitem__(self, grid):\n"
            "        return lambda out, *rest, **sizes: out.fill_(math.nan)\n"
            "attention.paged_prefill_kernel = attention.paged_decode_kernel = Nothing()\n",
            {("decode", 1), ("decode", 3), ("decode", "chosen"), ("prefill", "chosen")},
        ),
    ],
)
def test_a_wrong_kernel_is_told(wrong, kernels):
    more = f"CASES = [{CASE!r}]\nimport course.engine.triton_attention as attention\n{wrong}"
    more += "gpu_check.bandwidth = gpu_check.dense = gpu_check.engine = lambda journal: None\n"
    result = run_small(more)["result"]
    assert result["passed"] is False
    found = {(r["kernel"], r.get("splits")) for r in result["correctness"] if not r["ok"]}
    assert found == kernels


@needs_triton
def test_time_that_runs_out_is_told(monkeypatch):
    journal = gpu_check.Journal(0, None, lambda text: None)
    journal.put("copy_bytes_per_second", 1.0)
    monkeypatch.setattr(gpu_check, "make_pool", lambda: None)
    gpu_check.bandwidth(journal)
    assert {row["not_run"] for row in journal.result["bandwidth"]} == {"out of time"}
