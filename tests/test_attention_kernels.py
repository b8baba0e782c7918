"""The Triton kernels: run in a process of their own, and compiled for GPUs that are not here."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from course.kernel_report import KERNELS, compile_kernels, configurations, format_table
from course.pins import ROOT

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="not run: triton is not installed here"
)
REGISTERS = 65_536  # of one processor, on every GPU of NVIDIA below
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}


# --- run ----------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["interpreter", "compiled"])
def test_the_kernels_agree_with_dense_attention(mode, tmp_path):
    """Runs triton_kernels.py, where the cases are; every one of them must run and pass."""
    if mode == "compiled" and not torch.cuda.is_available():
        pytest.skip("not run: no GPU here, so the kernels were only interpreted and compiled")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    environment.pop("PYTEST_XDIST_WORKER", None)
    if mode == "interpreter":
        environment["TRITON_INTERPRET"] = "1"
    results = tmp_path / "results.xml"
    command = [sys.executable, "-m", "pytest", "triton_kernels.py", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--junitxml={results}"],
        cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (
        f"exit {done.returncode}\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
    )
    suite = ElementTree.parse(results).getroot()[0]
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    assert counts["failures"] == counts["errors"] == 0
    assert counts["tests"] >= 40
    if mode == "interpreter":
        skipped = [case.attrib["name"] for case in suite if case.find("skipped") is not None]
        assert set(skipped) <= {"test_offsets_have_64_bits"}  # where 4 GiB cannot be reserved


MODES = """
import os, sys
{before}
import triton
{after}
from course.engine.paged_attention import available_backends, paged_attention
from course.engine.triton_support import triton_status
print(triton_status().mode, "|", available_backends()["triton"])
"""


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: says what happens without a GPU")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", "absent | no GPU is visible to PyTorch: set TRITON_INTERPRET=1"),
        ("os.environ['TRITON_INTERPRET'] = '1'", "", "interpreter | ok"),
        ("", "os.environ['TRITON_INTERPRET'] = '1'", "absent | TRITON_INTERPRET is 1 now, but was"),
        ("sys.modules['triton'] = None", "", None),
        (
            "from course.engine.triton_support import use_interpreter_without_gpu as use; use()",
            "",
            "interpreter | ok",
        ),
    ],
)
def test_the_way_triton_runs_is_told(before, after, expected):
    code = MODES.format(before=before, after=after)
    if expected is None:
        code = code.replace("import triton\n", "", 1)
        expected = "absent | triton cannot be imported"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True,
        cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.startswith(expected), done.stdout


def test_the_cpu_path_leaves_triton_alone():
    """Its mode is fixed when it is imported, and a lesson may want to set it first."""
    code = (
        "import sys, torch\nbefore = 'triton' in sys.modules\n"
        "from course.engine.paged_attention import paged_attention\n"
        "one = torch.ones(1, 1, 1, 16)\n"
        "paged_attention(one[0], one, one, torch.tensor([[0]]), torch.tensor([1]))\n"
        "from course.engine.kv_cache import PagedKVCache\n"
        "assert before or 'triton' not in sys.modules\n"
        "assert not any(m.startswith('course.engine.triton_d') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# --- compiled -----------------------------------------------------------------------------------


def check_fits(rows):
    print(format_table(rows))
    for row in rows:
        assert row["spill_bytes"] == 0, row
        assert row["shared_bytes"] <= SHARED_BYTES[row["target"]], row
        if row["target"].startswith("sm_"):
            assert 0 < row["registers"] <= 255
            assert row["registers"] * 32 * row["num_warps"] <= REGISTERS, row
    return rows


@needs_triton
@pytest.mark.slow
def test_every_kernel_compiles_for_every_target_without_spills():
    rows = check_fits(compile_kernels(configurations()))
    assert len(rows) == 40
    assert {(r["kernel"], r["target"], r["dtype"]) for r in rows} == {
        (k, t, d)
        for k in KERNELS
        for t in ("sm_80", "sm_90", "sm_100", "gfx942")
        for d in ("fp16", "bf16")
    }


def variants(targets):
    """Head dims, groups and block sizes, each value with others than its neighbours'."""
    for head_dim, group, block_size in (
        (64, 1, 16), (80, 3, 1), (96, 7, 7), (112, 5, 256), (256, 32, 16),
    ):  # fmt: skip
        yield from configurations(
            kernels=("decode", "prefill"), targets=targets, dtypes=("fp16",), head_dims=(head_dim,),
            groups=(group,), block_sizes=(block_size,),
        )  # fmt: skip


@needs_triton
@pytest.mark.slow
def test_other_shapes_compile_without_spills_and_load_128_bits():
    """K and V come in 16 bytes a thread; the narrow loads are block ids and lengths."""
    rows = check_fits(compile_kernels([*variants(("sm_80", "sm_90", "sm_100"))]))
    for row in rows:
        loads = row["load_bits"]
        assert set(loads) <= {128, 32}, row
        assert loads[128] > loads[32], row
    check_fits(compile_kernels([*variants(("gfx942",))]))


@needs_triton
@pytest.mark.slow
def test_windows_and_int8_caches_compile():
    rows = [
        config | extra
        for config in configurations(("decode", "prefill"), ("sm_80", "sm_90"), ("fp16",))
        for extra in ({"sliding_window": 1000}, {"int8": True})
    ]
    check_fits(compile_kernels(rows))


@needs_triton
@pytest.mark.slow
def test_the_report_sees_spills_and_narrow_loads():
    """Tiles too large for their warps spill; rows of 100 values cannot be read in 16 bytes."""
    [prefill] = configurations(("prefill",), ("sm_80",), ("fp16",))
    [narrow] = configurations(("decode",), ("sm_80",), ("fp16",), head_dims=(100,))
    spilled, narrow = compile_kernels([prefill | {"override": {"num_warps": 2}}, narrow])
    assert spilled["spill_bytes"] > 0
    assert spilled["num_warps"] == 2
    assert 128 not in narrow["load_bits"]


@needs_triton
def test_a_kernel_that_does_not_compile_says_so():
    [config] = configurations(("decode",), ("sm_80",), ("fp16",))
    with pytest.raises(RuntimeError, match="power of 2"):
        compile_kernels([config | {"override": {"TILE": 48}}])
