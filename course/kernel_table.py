"""What must hold of the compiled attention kernels, and the table that shows it.

    python -m course kernels [--out docs/benchmarks]

No GPU is asked and nothing is timed. Registers, spills, shared memory, load widths and tensor-core
products are read from the compiled code of every configuration (`course.kernel_report`), the bytes
that a context costs are counted as the kernels run in Triton's interpreter
(`course.kernel_bytes`), and from these follows how many programs share a processor.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf

from course.kernel_bytes import SECTOR, count_bytes
from course.kernel_report import KERNELS, compile_kernels, configurations

TARGETS = {"sm_80": "A100", "sm_90": "H100", "sm_100": "B200"}
HEAD_DIMS, GROUPS, BLOCK_SIZES = (64, 128), (1, 3, 4, 8), (16, 32, 64, 128)
ATTENTION = ("decode", "split", "prefill")  # read the cache; have a group and a block size

MOST_BYTES = 1.05  # of the least possible
LEAST_WARPS = 8  # on a processor, two a scheduler: while one waits for its keys, another computes


@dataclass(frozen=True)
class Processor:
    """One streaming multiprocessor: what the programs that run on it share.

    Sources: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability";
    NVIDIA's tuning guides for Ampere, Hopper and Blackwell (the driver keeps 1 KiB of shared memory
    for each program); cuda_occupancy.h of the CUDA toolkit (registers are handed out per warp in
    units of 256, by four schedulers that own a quarter each); PTX ISA, tcgen05.alloc (512 columns
    of tensor memory).
    """

    shared_bytes: int
    tensor_columns: int = 0
    registers: int = 65_536
    warps: int = 64
    programs: int = 32
    schedulers: int = 4
    register_unit: int = 256
    shared_unit: int = 128
    shared_reserved: int = 1024


PROCESSORS = {
    "sm_80": Processor(164 * 1024),
    "sm_90": Processor(228 * 1024),
    "sm_100": Processor(228 * 1024, tensor_columns=512),
}


def occupancy(row: dict) -> dict:
    """How many programs of this kernel fit on a processor at once, and what stops the next one.

    {"programs", "warps", "occupancy" (share of the warps that fit), "limited_by"}.
    """
    has, warps = PROCESSORS[row["target"]], row["num_warps"]
    per_warp = _round_up(max(row["registers"], 1) * 32, has.register_unit)
    warps_of_registers = has.registers // has.schedulers // per_warp * has.schedulers
    shared = _round_up(row["shared_bytes"] + has.shared_reserved, has.shared_unit)
    columns = row["tensor_columns"]
    fits = {
        "registers": warps_of_registers // warps,
        "shared memory": has.shared_bytes // shared,
        "tensor memory": has.tensor_columns // columns if columns else inf,
        "warps": has.warps // warps,
        "programs": has.programs,
    }
    limit = min(fits, key=lambda name: fits[name])
    programs = int(fits[limit])
    return {
        "programs": programs,
        "warps": programs * warps,
        "occupancy": programs * warps / has.warps,
        "limited_by": limit,
    }


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def loop_bytes(row: dict) -> dict:
    """What one pass of the loop asks for, from the compiled code.

    {"wide": bytes by loads of 128 bits, all threads together; "narrow": bytes by other loads, a
    sector for each warp that runs one, since its lanes look up neighbours in the block table}.
    """
    threads = 32 * row["num_warps"]
    narrow = sum(count for bits, count in row["loop_bits"].items() if bits < 128)
    return {
        "wide": row["loop_bits"].get(128, 0) * threads * 16,
        "narrow": narrow * row["num_warps"] * SECTOR,
    }


def faults(row: dict) -> list[str]:
    """What a compiled kernel of the engine must have and this one lacks; empty: nothing."""
    found = []
    if row["spill_bytes"]:
        found.append(f"{row['spill_bytes']} bytes a thread spill from registers to memory")
    if occupancy(row)["warps"] < LEAST_WARPS:
        found.append(f"a processor holds fewer than {LEAST_WARPS} warps")
    if row["kernel"] == "write" and row["load_bits"].get(128, 0) < 2:
        found.append("new keys and values are not read by loads of 128 bits")
    if row["kernel"] == "merge" and not row["loop_bits"].get(128):
        found.append("partial results are not read by loads of 128 bits")
    if row["kernel"] in ATTENTION:
        if not row["products"]:
            found.append("no tensor-core products")
        asked, tile = loop_bytes(row), row["tile_bytes"]
        if asked["wide"] != tile:
            found.append(
                f"loads of 128 bits bring {asked['wide']} bytes of a tile of {tile}: keys or "
                "values come in narrower loads, or twice"
            )
        elif sum(asked.values()) > MOST_BYTES * tile:
            found.append(f"lookups bring {asked['narrow']} bytes for a tile of {tile}")
    return found


def byte_faults(row: dict) -> list[str]:
    """The same of a count by `course.kernel_bytes.count_bytes`."""
    if row["ratio"] <= MOST_BYTES:
        return []
    return [f"fetches {row['ratio']:.3f} times the least possible, more than {MOST_BYTES}"]


def table_configurations() -> list[dict]:
    """Everything in the table. What a kernel does not depend on is left out of its rows."""
    every = {"targets": TARGETS, "head_dims": HEAD_DIMS}
    rows = configurations(ATTENTION, groups=GROUPS, block_sizes=BLOCK_SIZES, **every)
    others = [kernel for kernel in KERNELS if kernel not in ATTENTION]
    return rows + configurations(others, **every)


def byte_configurations() -> list[dict]:
    """What is counted: the number of bytes depends neither on the target nor on fp16 or bf16."""
    every = configurations(
        ATTENTION, ("",), ("",), head_dims=HEAD_DIMS, groups=GROUPS, block_sizes=BLOCK_SIZES
    )
    names = ("kernel", "head_dim", "group", "block_size")
    return [{name: row[name] for name in names} for row in every]


def measure(say: Callable[[str], None] = lambda text: None, processes: int | None = None) -> dict:
    """Compile and count everything: {"versions", "compiled": rows, "bytes": rows, "faults": texts}.

    Some minutes of CPU; compiled kernels are kept in Triton's cache. ImportError without triton.
    """
    import torch
    import triton

    compiled = _in_chunks(compile_kernels, table_configurations(), "compiled", say, processes)
    compiled = [row | occupancy(row) | {"loop_bytes": loop_bytes(row)} for row in compiled]
    counted = _in_chunks(count_bytes, byte_configurations(), "counted", say, processes)
    named = ("kernel", "target", "dtype", "head_dim", "group", "block_size")
    wrong = []
    for rows, check in ((compiled, faults), (counted, byte_faults)):
        for row in rows:
            where = ", ".join(f"{name} {row[name]}" for name in named if name in row)
            wrong += [f"{where}: {fault}" for fault in check(row)]
    return {
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "compiled": compiled,
        "bytes": counted,
        "faults": wrong,
    }


def _in_chunks(work, configs: Sequence[dict], verb: str, say, processes: int | None) -> list[dict]:
    chunks = [configs[i : i + 24] for i in range(0, len(configs), 24)]
    rows = []
    with ThreadPoolExecutor(processes or os.cpu_count()) as pool:  # each waits for a process
        for chunk in pool.map(work, chunks):
            rows += chunk
            say(f"{verb} {len(rows)} of {len(configs)}")
    return rows


# --- the page ------------------------------------------------------------------------------------

_SAID = ("registers", "spill_bytes", "shared_bytes", "num_warps", "programs", "limited_by")
_SAID += ("loop_bits", "products")


def markdown(result: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    verdict = result["faults"] or ["Every configuration has what it must have (see the end)."]
    return "\n".join(
        [
            "# The attention kernels, as compiled",
            "",
            "Read from the compiled code, not measured: no GPU ran. "
            f"{versions}. Command: `python -m course kernels --out docs/benchmarks`. "
            f"{len(result['compiled'])} compiled configurations, every one in kernels.json; rows "
            "that agree in all columns are joined here.",
            "",
            *verdict,
            "",
            *_compiled_table(result["compiled"]),
            "",
            *_reading(result["compiled"]),
            "",
            "## Bytes fetched for a context",
            "",
            *_bytes_table(result["bytes"]),
            "",
        ]
    )


def as_json(result: dict) -> str:
    """The result as JSON with a row a line, so that a change of one kernel changes its lines."""
    parts = []
    for name, value in result.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compiled_table(rows: list[dict]) -> list[str]:
    joined = [
        {"kernel": r["kernel"], "target": r["target"], "head_dim": r["head_dim"]}
        | ({"group": r["group"], "block_size": r["block_size"]} if r["kernel"] in ATTENTION else {})
        | {"dtype": r["dtype"]}
        | {name: _cell(r[name]) for name in _SAID}
        for r in rows
    ]
    for name in ("block_size", "dtype", "group"):
        joined = _join(joined, name)
    titles = {
        "kernel": "kernel", "target": "GPU", "head_dim": "head dim", "dtype": "dtype",
        "group": "group", "block_size": "block size", "registers": "registers",
        "spill_bytes": "spilled bytes", "shared_bytes": "shared bytes", "num_warps": "warps",
        "programs": "programs a processor", "limited_by": "limited by",
        "loop_bits": "loads in the loop", "products": "products",
    }  # fmt: skip
    lines = [_line(titles.values()), _line("---" for _ in titles)]
    lines += [_line(row.get(name, "any") for name in titles) for row in joined]
    return lines


def _join(rows: list[dict], name: str) -> list[dict]:
    """Rows that differ in `name` alone become one."""
    values: dict[tuple, list] = {}
    for row in rows:
        key = tuple((k, v) for k, v in row.items() if k != name)
        values.setdefault(key, []).append(row.get(name))
    joined = []
    for key, found in values.items():
        row = dict(key)
        if found != [None]:
            row[name] = ", ".join(map(str, dict.fromkeys(found)))
        joined.append(row)
    return joined


def _cell(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} x {name}" for name, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(cells: Iterable) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _reading(rows: list[dict]) -> list[str]:
    attention = [row for row in rows if row["kernel"] in ATTENTION]
    lookups = max(row["loop_bytes"]["narrow"] / row["tile_bytes"] for row in attention)
    decode = [row for row in attention if row["kernel"] != "prefill"]
    in_flight = min(row["programs"] * row["tile_bytes"] for row in decode)
    gpus = ", ".join(f"{target} is the {name}" for target, name in TARGETS.items())
    return [
        f"{gpus}. Registers and spills are per thread, shared memory per program. `mma`, `wgmma` "
        "and `tcgen05` are the tensor-core instructions of the three; a group smaller than 16 is "
        "padded to 16 rows, so every group has them.",
        "",
        "Loads in the loop are instructions of a thread, by width in bits, for one tile of the "
        "context. In every configuration the loads of 128 bits bring exactly the keys and values "
        f"of the tile; the narrow ones look up blocks, at most {lookups:.1%} on top.",
        "",
        "Programs a processor: computed from registers, shared memory, tensor memory and warps "
        "(limits and sources: `Processor` in course/kernel_table.py). Decode needs few: when all "
        f"wait for their next tile, at least {in_flight // 1024} KiB are on their way to one "
        "processor.",
        "",
        f"What must hold: no spills, at least {LEAST_WARPS} warps a processor, keys and "
        "values by loads of 128 bits and no byte of a tile twice, tensor-core products, lookups "
        f"and all else within {MOST_BYTES - 1:.0%}. tests/test_kernel_table.py guards it, and "
        "shows that kernels made worse on purpose are caught.",
    ]


def _bytes_table(rows: list[dict]) -> list[str]:
    lines = [
        "Counted sector by sector as the kernels run in Triton's interpreter with a GPU's tile "
        "sizes: contexts of 1,000, 512, 77 and 5 tokens (with splits, three each of 1,000, 1,023 "
        "and 770), blocks in random order. The least possible is each key, value and query of a "
        "sequence and KV head once, its table entries and its two numbers; for prefill, once for "
        "each tile of queries.",
        "",
        _line(["kernel", "head dim", "group", *(f"block size {size}" for size in BLOCK_SIZES)]),
        _line(["---", "---", "---", *("---:" for _ in BLOCK_SIZES)]),
    ]
    ratios = {(r["kernel"], r["head_dim"], r["group"], r["block_size"]): r["ratio"] for r in rows}
    for kernel, head_dim, group in dict.fromkeys(key[:3] for key in ratios):
        found = [ratios[kernel, head_dim, group, size] for size in BLOCK_SIZES]
        lines.append(_line([kernel, head_dim, group, *(f"{ratio:.4f}" for ratio in found)]))
    return lines
