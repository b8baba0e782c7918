"""A small Triton kernel against PyTorch, for the self-test: ``python -m course.canary``.

It runs in a process of its own, because the interpreter must be chosen before triton is imported
and because a broken kernel can take its process down. Prints one line of JSON.
"""

import json
import os
import sys
import time
from typing import Any

import torch


def choose_mode() -> str:
    """``compiled`` where a GPU is there and nobody asked for the interpreter, else that."""
    asked = os.environ.get("TRITON_INTERPRET", "") not in ("", "0")
    if torch.cuda.is_available() and not asked:
        return "compiled"
    os.environ["TRITON_INTERPRET"] = "1"
    return "interpreter"


MODE = choose_mode()

import triton  # noqa: E402  the mode must be set first
import triton.language as tl  # noqa: E402


@triton.jit
def weighted_sum_over_blocks(
    rows, table, weights, out, length, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    """What paged attention does, in small: read rows through a block table, weigh, add up."""
    column = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.float32)
    for position in range(length):
        block = tl.load(table + position // BLOCK_SIZE)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        row = tl.load(rows + slot * WIDTH + column)
        total += tl.load(weights + position) * row.to(tl.float32)
    tl.store(out + column, total)


def run() -> dict:
    """The largest difference to PyTorch, and the seconds that the first and a second call took."""
    device = "cuda" if MODE == "compiled" else "cpu"
    block_size, width, length = 4, 16, 10
    generator = torch.Generator().manual_seed(0)
    rows = torch.full((8 * block_size, width), float("nan"))
    table = torch.tensor([5, 2, 7])
    positions = torch.arange(length)
    slots = table[positions // block_size] * block_size + positions % block_size
    rows[slots] = torch.randn(length, width, generator=generator)
    weights = torch.rand(length, generator=generator)
    expected = (weights[:, None] * rows[slots]).sum(0)
    rows, table, weights = rows.to(device), table.to(device), weights.to(device)
    out = torch.full((width,), float("nan"), device=device)
    seconds, sizes = [], {"BLOCK_SIZE": block_size, "WIDTH": width}
    kernel: Any = weighted_sum_over_blocks[(1,)]  # one program
    for _ in range(2):
        started = time.perf_counter()
        kernel(rows, table, weights, out, length, **sizes)
        result = out.cpu()
        seconds.append(time.perf_counter() - started)
    difference = (result - expected).abs().max().item()
    return {
        "mode": MODE,
        "agrees": bool(difference < 1e-5),  # NaN, a slot that must not be read, fails this too
        "difference": difference,
        "first_seconds": seconds[0],
        "seconds": seconds[1],
    }


if __name__ == "__main__":
    print(json.dumps(run()))
    sys.exit(0)
