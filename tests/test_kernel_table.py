"""What must hold of the compiled kernels, for a few configurations, and that a loss is seen.

Half a second of CPU for each kernel that Triton's cache does not know.
"""

import importlib.util
import json
from pathlib import Path

import pytest

import course.engine
from course.kernel_bytes import CONTEXT_LENS, NUM_KV_HEADS, VALUE_BYTES, count_bytes
from course.kernel_report import compile_kernels, configurations
from course.kernel_table import (
    ATTENTION,
    PROCESSORS,
    TARGETS,
    byte_configurations,
    byte_faults,
    faults,
    loop_bytes,
    markdown,
    occupancy,
    table_configurations,
)
from course.pins import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="not run: triton is not installed here"
)
PAGE = ROOT / "docs" / "benchmarks" / "kernels.json"
CONFIGURATION = ("kernel", "target", "dtype", "head_dim", "group", "block_size")


def sample():
    """Every kernel and target; ends of the ranges of head dim, group, block size, both dtypes."""
    for dtype, head_dim, group, block_size in (("fp16", 64, 1, 16), ("bf16", 128, 8, 128)):
        yield from configurations(
            ATTENTION, TARGETS, (dtype,), (head_dim,), (group,), (block_size,)
        )
    yield from configurations(("write", "merge"), ("sm_80", "sm_100"), ("bf16",), (64,))


@pytest.fixture(scope="module")
def rows():
    return compile_kernels(sample())


@pytest.mark.slow
def test_the_kernels_have_what_they_must_have(rows):
    assert {r["kernel"] for r in rows} == {"decode", "split", "prefill", "merge", "write"}
    assert [fault for row in rows for fault in faults(row)] == []
    for row in rows:
        if row["kernel"] in ATTENTION:
            assert loop_bytes(row)["wide"] == row["tile_bytes"] > 0
    used = {(r["target"], name) for r in rows if r["kernel"] == "prefill" for name in r["products"]}
    assert used == {("sm_80", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05")}


@pytest.mark.slow
def test_the_page_on_file_is_of_these_kernels(rows):
    """After a change of the kernels: ``python -m course kernels --out docs/benchmarks``."""
    import triton

    page = json.loads(PAGE.read_text())
    assert page["faults"] == []
    wanted = {tuple(config[name] for name in CONFIGURATION) for config in table_configurations()}
    on_file = {tuple(row[name] for name in CONFIGURATION): row for row in page["compiled"]}
    assert set(on_file) == wanted
    assert len(page["bytes"]) == len(byte_configurations())
    assert PAGE.with_suffix(".md").read_text() == markdown(page)
    if page["versions"]["triton"] != triton.__version__:
        pytest.skip(f"not run: the page is of triton {page['versions']['triton']}")
    found = json.loads(json.dumps(rows))
    for row in found:
        row_on_file = on_file[tuple(row[name] for name in CONFIGURATION)]
        assert {name: row_on_file[name] for name in row} == row


# --- kernels made worse ---------------------------------------------------------------------------

LOAD = "offsets[:, None] + dim[None, :]"
PRODUCTS = (
    (
        'tl.dot(q, tl.trans(k), input_precision="ieee")',
        "tl.sum(q[:, None, :].to(tl.float32) * k[None, :, :], axis=2)",
    ),
    (
        'tl.dot(weights.to(v.dtype), v, weighted_values, input_precision="ieee")',
        "weighted_values + tl.sum(weights[:, :, None] * v[None, :, :], axis=1)",
    ),
)
AGAIN = (
    "    rows = tl.load(",
    f"    more = tl.load(cache_ptr + {LOAD} + HEAD_DIM, mask=is_wanted, other=0.0)\n"
    "    rows = more + tl.load(",
)


def worse(folder: Path, *changes: tuple[str, str]) -> str:
    """A file with the decode kernel in which each first text has become the second."""
    source = (Path(course.engine.__file__).parent / "triton_decode.py").read_text()
    for old, new in changes:
        assert old in source, f"the kernel no longer says {old!r}: mend this test"
        source = source.replace(old, new)
    file = folder / "triton_decode.py"
    file.write_text(source)
    return str(file)


@pytest.mark.slow
def test_kernels_made_worse_are_caught(tmp_path):
    [config] = configurations(("decode",), ("sm_90",), ("fp16",), (64,), (4,))
    bad = (
        # Lanes read their neighbours' values: no two of a thread lie side by side.
        ("narrow", (LOAD, "offsets[:, None] + (dim ^ 1)[None, :]")),
        ("twice", AGAIN),
        ("no products", *PRODUCTS),
        ("spills", {"num_warps": 1, "TILE": 128}),
        ("alone", {"TILE": 512}),
    )
    configs = []
    for name, *changes in bad:
        if isinstance(changes[0], dict):
            configs.append(config | {"override": changes[0]})
        else:
            folder = tmp_path / name
            folder.mkdir()
            configs.append(config | {"file": worse(folder, *changes)})
    rows = compile_kernels([config, *configs])
    assert faults(rows[0]) == []
    found = {name: " ".join(faults(row)) for (name, *_), row in zip(bad, rows[1:], strict=True)}
    assert "128 bits bring 0 bytes of a tile of 32768" in found["narrow"]
    assert "128 bits bring 65536 bytes of a tile of 32768" in found["twice"]
    assert "no tensor-core products" in found["no products"]
    assert "spill from registers" in found["spills"]
    assert "fewer than 8 warps" in found["alone"]


@pytest.mark.slow
def test_the_bytes_of_a_context_are_near_the_least():
    configs = [
        {"kernel": kernel, "head_dim": 64, "group": group, "block_size": block_size}
        for kernel, group, block_size in (
            ("decode", 1, 16), ("decode", 8, 128), ("split", 8, 16), ("prefill", 4, 16),
        )
    ]  # fmt: skip
    for row in count_bytes(configs):
        assert byte_faults(row) == [], row
        assert row["ratio"] >= 1
        if row["kernel"] == "decode":  # to the byte, tails and all
            once = sum(CONTEXT_LENS) * NUM_KV_HEADS * 64 * VALUE_BYTES
            assert row["fetched"]["keys"] == row["fetched"]["values"] == once
        assert (row["fetched"]["parts"] > 0) == (row["kernel"] == "split")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        AGAIN,
        # Whole tiles, whatever the length: what lies behind the context is fetched too.
        ("(position < end)", "(position < start + tiles_per_split * TILE)"),
    ],
)
def test_bytes_fetched_for_nothing_are_caught(change, tmp_path):
    config = {"kernel": "decode", "head_dim": 64, "group": 4, "block_size": 16}
    good, bad = count_bytes([config, config | {"file": worse(tmp_path, change)}])
    assert byte_faults(good) == []
    assert "times the least possible" in byte_faults(bad)[0]


# --- what fits on a processor ---------------------------------------------------------------------


def fits(target, registers, shared_bytes, num_warps, tensor_columns=0):
    found = occupancy(
        {"target": target, "registers": registers, "shared_bytes": shared_bytes}
        | {"num_warps": num_warps, "tensor_columns": tensor_columns}
    )
    assert found["warps"] == found["programs"] * num_warps
    assert found["occupancy"] == found["warps"] / 64
    return found["programs"], found["limited_by"]


def test_programs_on_a_processor_by_hand():
    # 168 registers x 32 threads = 5,376 a warp; a scheduler's 16,384 hold 3 warps, four hold 12.
    assert fits("sm_90", 168, 0, 4) == (3, "registers")
    # 128 x 32 = 4,096: 4 warps a scheduler; 129 registers are handed out as 136.
    assert fits("sm_90", 128, 0, 4) == (4, "registers")
    assert fits("sm_90", 129, 0, 4) == (3, "registers")
    # 80 KiB and the driver's 1 KiB: 2 of 81 in 164 and in 228 KiB.
    assert fits("sm_80", 32, 80 * 1024, 4) == (2, "shared memory")
    assert fits("sm_90", 32, 75 * 1024, 4) == (3, "shared memory")
    assert fits("sm_100", 32, 75 * 1024 + 1, 4) == (2, "shared memory")
    assert fits("sm_100", 32, 0, 4, tensor_columns=256) == (2, "tensor memory")
    assert fits("sm_80", 16, 0, 4) == (16, "warps")
    assert fits("sm_80", 16, 0, 1) == (32, "programs")
    assert set(PROCESSORS) == set(TARGETS)
