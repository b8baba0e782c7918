"""What the compiler makes of the engine's Triton kernels, for GPUs that need not be here.

    python -m course.kernel_report            a table: registers, spills, shared memory, load widths
    python -m course kernels                  every configuration, and what must hold (kernel_table)

Each kernel is compiled ahead of time, in a process of its own since Triton's interpreter and its
compiler do not mix. Registers and local memory are read back from the finished machine code.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

# "split" is the decode kernel as it runs with several splits: partial results in fp32.
KERNELS = ("write", "decode", "split", "merge", "prefill")
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
DTYPES = ("fp16", "bf16")


def configurations(
    kernels=KERNELS,
    targets=TARGETS,
    dtypes=DTYPES,
    head_dims=(128,),
    groups=(4,),
    block_sizes=(16,),
) -> list[dict]:
    """Every combination, as `compile_kernels` takes them (8 KV heads, two or more splits)."""
    names = ("kernel", "target", "dtype", "head_dim", "group", "block_size")
    values = product(kernels, targets, dtypes, head_dims, groups, block_sizes)
    return [dict(zip(names, row, strict=True)) for row in values]


def compile_kernels(configs: Iterable[dict]) -> list[dict]:
    """Compile each configuration; one dict each, the configuration and these:

    registers (a thread), spill_bytes (a thread, of local memory), shared_bytes (a program),
    num_warps, tile_bytes (keys and values of one pass of the loop; None where there is no tile).
    On NVIDIA also load_bits: {width in bits: number of load instructions} of global memory;
    loop_bits, the same inside the loop over the context alone; products: {"mma", "wgmma" or
    "tcgen05": number of tensor-core instructions}; tensor_columns, of sm_100's tensor memory.
    RuntimeError with the compiler's message if one does not compile.

    A configuration may also hold "sliding_window", "int8" (the cache's dtype), "override": tile
    sizes, num_warps or num_stages other than the engine's own, and "file": a Python file whose
    kernel, of the same name and arguments, takes the place of the engine's.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "course.kernel_report", "--worker"],
        input=json.dumps(list(configs)),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the kernel compiler failed:\n{done.stderr[-4000:]}")
    rows = json.loads(done.stdout)
    for row, name in product(rows, ("load_bits", "loop_bits")):  # JSON has only strings for keys
        row[name] = {int(bits): count for bits, count in row[name].items()}
    return rows


def format_table(rows: list[dict]) -> str:
    """The rows as text, one line each."""
    columns = ("kernel", "target", "dtype", "head_dim", "group", "block_size", "num_warps")
    columns += ("registers", "spill_bytes", "shared_bytes", "load_bits")
    cells = [columns, *([_cell(row[c]) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value) -> str:
    if isinstance(value, dict):
        return " ".join(f"{count}x{bits}" for bits, count in value.items()) or "-"
    return str(value)


# What follows runs in the worker process.


def _compile(config: dict) -> dict:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, constexprs, options = _kernel(config)
    pointer = f"*{config['dtype']}"
    # Addresses and strides are multiples of 16 in the engine's tensors, and Triton is told so,
    # as it is at a real launch; this is what makes loads of 128 bits possible.
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constexprs:
            signature[name] = "constexpr"
            continue
        signature[name] = _TYPES.get(name) or (pointer if name.endswith("_ptr") else "i32")
        if config["kernel"] == "split" and name == "out_ptr":
            signature[name] = "*fp32"
        if config.get("int8") and name in ("key_ptr", "value_ptr"):
            signature[name] = "*i8"
        if name.endswith("_ptr") or name in _ALIGNED:
            attributes[(index,)] = [["tt.divisibility", 16]]
    architecture = config["target"]
    if architecture.startswith("sm_"):
        target = GPUTarget("cuda", int(architecture[3:]), 32)
    else:
        target = GPUTarget("hip", architecture, 64)
    source = ASTSource(kernel, signature, constexprs, attributes)
    compiled = triton.compile(source, target=target, options=options)
    resources = _nvidia(compiled) if target.backend == "cuda" else _amd(compiled)
    return (
        config
        | resources
        | {
            "num_warps": compiled.metadata.num_warps,
            "shared_bytes": compiled.metadata.shared,
            "tensor_columns": getattr(compiled.metadata, "tmem_size", None) or 0,
            "tile_bytes": _tile_bytes(config, constexprs),
        }
    )


def _tile_bytes(config: dict, constexprs: dict) -> int | None:
    if "TILE" not in constexprs:
        return None
    bytes_per_value = 1 if config.get("int8") else {"fp32": 4}.get(config["dtype"], 2)
    return 2 * constexprs["TILE"] * constexprs["DIM_PADDED"] * bytes_per_value


_ALIGNED = ("stride_q_token", "stride_q_head", "stride_block", "stride_slot", "stride_kv_head")
_ALIGNED += ("stride_k_token", "stride_k_head", "stride_v_token", "stride_v_head")
_TYPES = dict.fromkeys(("block_table_ptr", "context_len_ptr", "query_start_ptr"), "*i32")
_TYPES |= dict.fromkeys(("lse_ptr", "part_ptr", "part_lse_ptr"), "*fp32")
_TYPES |= dict.fromkeys(("key_scale_ptr", "value_scale_ptr"), "*fp32")
_TYPES |= {"slot_ptr": "*i64", "scale": "fp32"}


def _kernel(config: dict):
    import torch

    from course.engine import triton_config, triton_decode, triton_prefill, triton_write

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[config["dtype"]]
    head_dim, group = config["head_dim"], config["group"]
    decode = triton_config.decode_config(head_dim, group, dtype)
    sizes = {"BLOCK_SIZE": config["block_size"], "HEAD_DIM": head_dim, "GROUP": group}
    sizes |= {"SLIDING_WINDOW": config.get("sliding_window", 0)}
    scales = {} if config.get("int8") else {"key_scale_ptr": None, "value_scale_ptr": None}
    if config["kernel"] == "write":
        row = 8 * head_dim
        kernel, constexprs = triton_write.write_to_slots_kernel, {"HEAD_DIM": head_dim, "ROW": row}
        constexprs["ROW_PADDED"] = 1 << (row - 1).bit_length()
        constexprs["num_warps"] = triton_write.warps_of(constexprs["ROW_PADDED"])
    elif config["kernel"] == "merge":
        kernel, constexprs = triton_decode.merge_splits_kernel, {"HEAD_DIM": head_dim}
        constexprs |= {"DIM_PADDED": decode["DIM_PADDED"], "SPLIT_TILE": 16, "lse_ptr": None}
    elif config["kernel"] in ("decode", "split"):
        kernel, constexprs = triton_decode.paged_decode_kernel, sizes | scales | decode
        if config["kernel"] == "decode":  # only partial results need their lse
            constexprs["lse_ptr"] = None
    else:
        prefill = triton_config.prefill_config(head_dim, group, dtype)
        kernel = triton_prefill.paged_prefill_kernel
        constexprs = sizes | scales | prefill | {"lse_ptr": None}
    if "file" in config:
        kernel = kernel_in(config["file"], kernel.__name__)
    constexprs |= config.get("override", {})
    options = {k: constexprs.pop(k) for k in ("num_warps", "num_stages") if k in constexprs}
    return kernel, constexprs, options


def kernel_in(file: str, name: str):
    """The kernel of that name in a Python file (Triton reads a kernel's source from its file)."""
    spec = importlib.util.spec_from_file_location("kernel_variant", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _nvidia(compiled) -> dict:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(number) for name, number in re.findall(r"\b([A-Z]+):(\d+)", text)}
    lines = compiled.asm["ptx"].splitlines()
    products: Counter = Counter()
    for line in lines:
        if match := re.search(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", line):
            products[match[1].split(".")[0]] += 1
    loops = (_load_bits(loop) for loop in _loops(lines))
    return {
        "registers": usage["REG"],
        "spill_bytes": usage["STACK"] + usage["LOCAL"],
        "load_bits": _load_bits(lines),
        # A loop that waits for a tensor core loads nothing.
        "loop_bits": max(loops, key=lambda bits: sum(bits.values()), default={}),
        "products": dict(products),
    }


def _load_bits(lines: list[str]) -> dict[int, int]:
    loads: Counter = Counter()
    for line in lines:
        if match := re.search(r"cp\.async\.c[ag]\.shared\.global.*?, (0x[0-9a-f]+|\d+)", line):
            loads[8 * int(match[1], 0)] += 1
        elif match := re.search(r"\bld\.global\S*?(?:\.v(\d))?\.[bfus](\d+)\b", line):
            loads[int(match[1] or 1) * int(match[2])] += 1
    return dict(sorted(loads.items(), reverse=True))


def _loops(lines: list[str]) -> Iterator[list[str]]:
    """What lies between a label and the last jump back to it."""
    labels = {}
    jumps = {}
    for number, line in enumerate(lines):
        if match := re.match(r"(\$\w+):", line):
            labels[match[1]] = number
        elif (match := re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line)) and match[1] in labels:
            jumps[match[1]] = number
    for label, end in jumps.items():
        yield lines[labels[label] : end + 1]


def _amd(compiled) -> dict:
    text = compiled.asm["amdgcn"]
    # Scratch memory is what counts: scalar registers that move to vector registers cost none.
    count = {
        name: int(re.findall(rf"\.{name}:\s*(\d+)", text)[0])
        for name in ("vgpr_count", "private_segment_fixed_size")
    }
    return {
        "registers": count["vgpr_count"],
        "spill_bytes": count["private_segment_fixed_size"],
        "load_bits": {},
        "loop_bits": {},
        "products": {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[128])
    parser.add_argument("--group", type=int, nargs="+", default=[4])
    parser.add_argument("--block-size", type=int, nargs="+", default=[16])
    parser.add_argument("--target", nargs="+", default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), help="fp16, bf16, fp32")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps([_compile(config) for config in json.load(sys.stdin)]))
        return
    rows = compile_kernels(
        configurations(
            targets=arguments.target,
            dtypes=arguments.dtype,
            head_dims=arguments.head_dim,
            groups=arguments.group,
            block_sizes=arguments.block_size,
        )
    )
    print(json.dumps(rows, indent=1) if arguments.json else format_table(rows))


if __name__ == "__main__":
    main()
