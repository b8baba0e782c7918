"""How many bytes the attention kernels fetch, counted load by load as they run.

The kernels run in Triton's interpreter with the tile sizes that a GPU would get, and every load
reports the addresses it asks for. Masks, last tiles, odd lengths: what is counted is what happens.
A GPU fetches whole sectors of 32 bytes, so sectors are counted, once for each load that touches
them. The least possible: for each sequence and KV head, every key, value and query once, the table
entries that lead to them, the sequence's length and where its queries begin. With splits the
queries and the lookups of each split come on top, and so do the partial results that the merge
reads. Prefill fetches keys and values once for each tile of queries; so does its least, as tiles
of one sequence run at once and share them through the cache of the GPU.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from unittest.mock import patch

SECTOR = 32  # bytes: what the memory of an NVIDIA GPU delivers at least
VALUE_BYTES = 2  # fp16 and bf16; counted in fp16
NUM_KV_HEADS = 2
# Lengths that fill no tile and no block, one that fills all, one shorter than a block.
CONTEXT_LENS = (1000, 512, 77, 5)
NUM_QUERIES = (150, 33, 77, 3)  # of these contexts, as chunks
SPLIT_LENS, SPLITS = (1000, 1023, 770), 3  # the shortest splits that the engine makes


def count_bytes(configs: Iterable[dict]) -> list[dict]:
    """Run each configuration (kernel "decode", "split" or "prefill", head_dim, group, block_size).

    One dict each, the configuration and: fetched {"keys": bytes, "values", "queries", "tables",
    "numbers", "parts"}, least (bytes) and ratio, the sum of fetched over least. "file" as in
    `course.kernel_report.compile_kernels`. In a process of its own, where the interpreter is on.
    """
    done = subprocess.run(
        [sys.executable, "-m", "course.kernel_bytes"],
        input=json.dumps(list(configs)),
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"counting bytes failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


# What follows runs in the worker process.


class Counter:
    """Counts the sectors that each tensor's loads touch."""

    def __init__(self, **tensors):
        self.ranges = [
            (name, tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
            for name, tensor in tensors.items()
        ]
        self.fetched = dict.fromkeys(tensors, 0)
        self.fetched["parts"] = 0  # made during the launch: whatever is none of the others

    def load(self, addresses, mask) -> None:
        import numpy as np

        wanted = np.asarray(addresses).ravel()[np.asarray(mask).ravel()]
        if not wanted.size:
            return
        sectors = np.unique(wanted // SECTOR).size * SECTOR
        first = int(wanted[0])
        for name, start, end in self.ranges:
            if start <= first < end:
                self.fetched[name] += sectors
                return
        self.fetched["parts"] += sectors


def _count(config: dict) -> dict:
    import torch
    from triton.runtime.interpreter import InterpreterBuilder

    from course.engine import triton_attention, triton_config
    from course.engine.triton_support import TritonStatus
    from course.kernel_report import kernel_in

    # Tiles as on a GPU, instead of the large ones that make the interpreter quick.
    triton_config.triton_status = lambda: TritonStatus("compiled", None, None)
    names = {"prefill": "paged_prefill_kernel"}
    name = names.get(config["kernel"], "paged_decode_kernel")
    original = getattr(triton_attention, name)
    load = InterpreterBuilder.create_masked_load
    head_dim, group, block_size = (config[k] for k in ("head_dim", "group", "block_size"))
    context_lens, counts, splits = CONTEXT_LENS, [1] * len(CONTEXT_LENS), 1
    if config["kernel"] == "prefill":
        counts = NUM_QUERIES
    elif config["kernel"] == "split":
        context_lens, counts, splits = SPLIT_LENS, [1] * len(SPLIT_LENS), SPLITS

    needed = [-(-n // block_size) for n in context_lens]
    num_blocks = sum(needed)
    ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    # Entries past a context name blocks too, each another: whoever reads them is seen.
    width = max(needed) + 2
    tables = torch.arange(len(needed) * width, dtype=torch.int32).view(-1, width) % num_blocks
    for row, count in zip(tables, needed, strict=True):
        row[:count] = torch.tensor([ids.pop() for _ in range(count)])
    cache = (num_blocks, block_size, NUM_KV_HEADS, head_dim)
    keys, values = (torch.zeros(cache, dtype=torch.float16) for _ in range(2))
    q = torch.zeros(sum(counts), NUM_KV_HEADS * group, head_dim, dtype=torch.float16)
    lens = torch.tensor(context_lens, dtype=torch.int32)
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    attention = triton_attention.TritonAttention(
        tables, lens, starts, block_size, None, splits, max(context_lens), max(counts)
    )
    numbers = {"context_lens": attention.context_lens, "starts": attention.query_start_loc}
    counter = Counter(queries=q, keys=keys, values=values, tables=attention.block_tables, **numbers)

    def counting_load(self, ptrs, mask, *rest):
        counter.load(ptrs.data, mask.data)
        return load(self, ptrs, mask, *rest)

    kernel = kernel_in(config["file"], name) if "file" in config else original
    with (
        patch.object(InterpreterBuilder, "create_masked_load", counting_load),
        patch.object(triton_attention, name, kernel),
    ):
        attention(q, keys, values, scale=1.0)
    fetched = counter.fetched
    fetched["numbers"] = fetched.pop("context_lens") + fetched.pop("starts")
    queries_per_program = 1
    if config["kernel"] == "prefill":
        queries_per_program = (
            triton_config.prefill_config(head_dim, group, q.dtype)["ROWS"] // group
        )
    least = sum(
        _least(*sequence, queries_per_program, head_dim, group, block_size)
        for sequence in zip(context_lens, counts, strict=True)
    )
    return config | {"fetched": fetched, "least": least, "ratio": sum(fetched.values()) / least}


def _least(context_len, num_queries, queries_per_program, head_dim, group, block_size) -> int:
    """Bytes of one sequence, all its KV heads."""
    row = head_dim * VALUE_BYTES
    total = num_queries * group * row
    first = context_len - num_queries
    for end in range(
        first + queries_per_program, context_len + queries_per_program, queries_per_program
    ):
        tokens = min(end, context_len)  # that this program's queries see
        table_bytes = 4 * math.ceil(tokens / block_size)
        total += 2 * tokens * row + SECTOR * math.ceil(table_bytes / SECTOR) + 2 * SECTOR
    return total * NUM_KV_HEADS


if __name__ == "__main__":
    print(json.dumps([_count(config) for config in json.load(sys.stdin)]))
