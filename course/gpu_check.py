"""What only a machine with an NVIDIA GPU can say: are the kernels right there, and how fast?

    make gpu-check            or, where torch and triton are installed: python -m course gpu-check

Correctness first, in fp16 and bf16, against dense attention in float64. Then bandwidth: the bytes
of keys and values over the time that the GPU takes, beside what a plain copy reaches on the same
GPU. Then the same work done by others, and the engine with CUDA graphs and without. Every row is
written as soon as it is known; what there is no time or memory for is listed as not run.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

DEVICE = "cuda"
NOT_RUN_STATUS = 77  # what automake's tests end with when they could not run
KV_HEADS, HEAD_DIM = 8, 128  # of the layer whose bandwidth is measured; fp16
TOKEN_BYTES = 2 * KV_HEADS * HEAD_DIM * 2
BATCHES, CONTEXTS = (1, 8, 32, 128), (512, 2048, 8192, 65_536)
BLOCK_SIZES, GROUPS = (16, 64), (1, 4, 8)
# (batch, context) -> share of the copy's bandwidth that is hoped for
GOALS = {(32, 8192): 0.80, (1, 65_536): 0.60}
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
ENGINE_TOKENS = 96
FLUSHED_BYTES = 256 * 1024**2  # read in between, so that no case finds its keys in the L2 cache


def why_not() -> str | None:
    """None where the check can run, or the reason in a sentence."""
    if not torch.cuda.is_available() or torch.version.hip:
        return "not run: no NVIDIA GPU here (as PyTorch sees it)"
    from course.engine.triton_support import triton_status

    problem = triton_status().problem
    if problem is None and triton_status().mode != "compiled":
        problem = "TRITON_INTERPRET is set: unset it, so that kernels are compiled"
    return f"not run: {problem}" if problem else None


class Journal:
    """Collects rows, shows each, and keeps the file up to date; knows how much time is left."""

    def __init__(self, seconds: float, out: Path | None, say: Callable[[str], None]):
        self.started, self.seconds = time.monotonic(), seconds
        self.out, self.say = out, say
        self.result: dict = {}

    @property
    def seconds_left(self) -> float:
        return self.seconds - (time.monotonic() - self.started)

    def put(self, name: str, value) -> None:
        self.result[name] = value
        self._write()
        self.say(f"{name}: {value}")

    def row(self, section: str, row: dict) -> None:
        self.result.setdefault(section, []).append(row)
        self._write()
        self.say(f"{section}: {_told(row)}")

    def _write(self) -> None:
        self.result["seconds"] = round(time.monotonic() - self.started, 1)
        if self.out is None:
            return
        self.out.parent.mkdir(parents=True, exist_ok=True)
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps(self.result, indent=1) + "\n")
        part.replace(self.out)


def _told(row: dict) -> str:
    def one(value):
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {one(value)}" for name, value in row.items() if value is not None)


def check_gpu(
    seconds: float = 225, out: Path | None = None, say: Callable[[str], None] = print
) -> dict:
    """Run everything that there is time for; the result also says "passed": True or False.

    It has passed when every kernel was right and graphs gave the same tokens, whatever the speed.
    RuntimeError where it cannot run: see `why_not`.
    """
    if problem := why_not():
        raise RuntimeError(problem)
    journal = Journal(seconds, out, say)
    gpu = torch.cuda.get_device_properties(0)
    journal.put("machine", f"{gpu.name}, {gpu.multi_processor_count} processors")
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    versions |= {"triton": __import__("triton").__version__, "python": platform.python_version()}
    journal.put("versions", versions)
    # Speed comes after correctness, the goals before everything else that is measured.
    sections = (correctness, bandwidth_of_copy, bandwidth, dense, engine, peers)
    for section in sections:
        try:
            section(journal)
        except Exception as error:  # one section that fails must not take the others with it
            torch.cuda.synchronize()
            journal.row("errors", {"section": section.__name__, "error": f"{error!r:.2000}"})
        torch.cuda.empty_cache()
    result = journal.result
    wrong = [row for row in result.get("correctness", []) if not row.get("ok")]
    wrong += [row for row in result.get("engine", []) if row.get("ok") is False]
    wrong += [row for row in result.get("errors", []) if row["section"] != "peers"]
    journal.put("passed", not wrong)
    return result


# --- right? --------------------------------------------------------------------------------------


def correctness_cases() -> list[dict]:
    """Each group with both dtypes; head dims, block sizes, windows and int8 spread over them."""
    cases = []
    for dtype in ("float16", "bfloat16"):
        for group, head_dim, block_size, window in (
            (1, 64, 16, None), (3, 64, 64, 100), (4, 128, 16, None), (8, 128, 64, None),
            (4, 80, 16, None),
        ):  # fmt: skip
            sizes = {"group": group, "head_dim": head_dim, "block_size": block_size}
            cases.append({"dtype": dtype} | sizes | {"window": window, "int8": False})
    return [*cases, cases[2] | {"int8": True}]


def correctness(journal: Journal) -> None:
    for case in correctness_cases():
        for row in check_case(case, torch.device(DEVICE)):
            journal.row("correctness", row)


def check_case(
    case: dict, device: torch.device, lens=(1, 16, 17, 300, 1000, 0, 63), splits=(1, 3, None)
) -> Iterator[dict]:
    """Write a cache with the write kernel, read it with the others; one row each, with "ok"."""
    from course.engine.kv_cache import PagedKVCache
    from course.engine.paged_attention import paged_attention
    from course.engine.quantized_kv import QuantizedPagedKVCache
    from course.sizing import ModelShape

    dtype = getattr(torch, case["dtype"])
    head_dim, block_size, kv_heads = case["head_dim"], case["block_size"], 2
    random = torch.Generator(device).manual_seed(0)

    def draw(*size):
        return torch.randn(*size, generator=random, device=device).to(dtype)

    needed = [-(-n // block_size) for n in lens]
    ids = torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)).tolist()
    tables = torch.full((len(lens), max(needed) + 1), 2**30, dtype=torch.int32)  # read by nobody
    slots: list[int] = []
    for row, (length, count) in enumerate(zip(lens, needed, strict=True)):
        mine = [ids.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(mine, dtype=torch.int32)
        slots += [mine[p // block_size] * block_size + p % block_size for p in range(length)]
    shape = ModelShape("check", 1, kv_heads * case["group"], kv_heads, head_dim, 100_000)
    k, v = draw(len(slots), kv_heads, head_dim), draw(len(slots), kv_heads, head_dim)
    if case["int8"]:
        cache = QuantizedPagedKVCache(shape, sum(needed) + 1, block_size, device=device)
        cache.write(0, k, v, slots)
    else:
        cache = PagedKVCache(
            shape, sum(needed) + 1, block_size, dtype, device, write_backend="triton"
        )
        cache.keys.fill_(math.nan)
        cache.values.fill_(math.nan)
        # A row without a slot among them: it must go nowhere.
        extra = torch.cat([k, k[:1]]), torch.cat([v, v[:1]])
        cache.write(0, *extra, torch.tensor([*slots, -1], device=device))
        at = torch.tensor(slots, device=device)
        good = torch.equal(cache.keys[0].flatten(0, 1)[at], k)
        good &= torch.equal(cache.values[0].flatten(0, 1)[at], v)
        written = int((~cache.keys[0].flatten(0, 1).isnan().all(-1).all(-1)).sum())
        yield case | {"kernel": "write", "ok": good and written == len(slots)}
    rows_of = [
        cache.gather(0, tables[i, : needed[i]].tolist(), n) for i, n in enumerate(lens)
    ]  # what attention should see: with int8, what was kept
    layer = cache.layer(0)
    chunks = [min(n, 1 + 40 * (i % 3)) for i, n in enumerate(lens)]
    for kernel, counts in (("decode", [1] * len(lens)), ("prefill", chunks)):
        q = draw(sum(counts), kv_heads * case["group"], head_dim)
        starts = torch.tensor([0, *counts]).cumsum(0)
        expected = torch.cat(
            [
                dense_attention(q[a:b], *rows, case["window"])
                for (a, b), rows in zip(
                    zip(starts.tolist(), starts.tolist()[1:], strict=False), rows_of, strict=True
                )
            ]
        )
        for num_splits in splits if kernel == "decode" else (None,):
            out = paged_attention(
                q,
                layer[0],
                layer[1],
                tables.to(device),
                torch.tensor(lens, dtype=torch.int32, device=device),
                query_start_loc=starts.to(device, torch.int32),
                key_scales=layer[2] if case["int8"] else None,
                value_scales=layer[3] if case["int8"] else None,
                sliding_window=case["window"],
                num_splits=num_splits,
                backend="triton",
            )
            assert isinstance(out, torch.Tensor)
            error = float((out.double() - expected).abs().max())
            limit = TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))
            yield case | {
                "kernel": kernel,
                "splits": num_splits or "chosen",
                "error": error,
                "ok": error <= limit,  # false for NaN
            }


def dense_attention(q, k, v, window: int | None) -> torch.Tensor:
    """The last ``len(q)`` tokens of one sequence over all of it, in float64; an empty one: zeros.

    q ``[n, num_heads, head_dim]``, k and v ``[context, num_kv_heads, head_dim]``.
    """
    q, k, v = q.double(), k.double(), v.double()
    if not len(k):
        return torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    at = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None]
    position = torch.arange(len(k), device=q.device)[None, :]
    seen = position <= at
    if window is not None:
        seen &= position > at - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v)


# --- fast? ---------------------------------------------------------------------------------------


def gpu_seconds(works: list[Callable], least: float = 0.02) -> tuple[float, str]:
    """Seconds of GPU time for one of these, and how it was timed.

    They are recorded into one CUDA graph, so that launching them costs nothing; where that fails,
    they are launched one by one ("launches"), and small ones look slower than they are. Several
    works on different memory keep each other out of the cache.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            works[0]()
    torch.cuda.synchronize()
    run, how = (lambda: [work() for work in works]), "launches"
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [work() for work in works]
        run, how = graph.replay, "graph"
    except RuntimeError:
        torch.cuda.synchronize()
        kept = None

    def timed(times: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000 / times

    timed(1)
    times = max(1, math.ceil(least / max(timed(1), 1e-7) / 5))
    seconds = median(timed(times) for _ in range(5)) / len(works)
    del kept
    return seconds, how


def bandwidth_of_copy(journal: Journal) -> None:
    """What reading and writing memory in order reaches; every other figure is a share of it."""
    size = min(2 * 1024**3, torch.cuda.mem_get_info()[0] // 8)
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    seconds, _ = gpu_seconds([lambda: target.copy_(source)], 0.1)
    journal.put("copy_bytes_per_second", 2 * size / seconds)


def bandwidth_cases() -> list[dict]:
    """All combinations; those with a goal first, then small ones before large ones."""
    cases = [
        {"batch": batch, "context": context, "block_size": block_size, "group": group}
        for context in CONTEXTS
        for batch in BATCHES
        for group in GROUPS
        for block_size in BLOCK_SIZES
    ]
    return sorted(cases, key=lambda case: (case["batch"], case["context"]) not in GOALS)


def case_bytes(case: dict) -> int:
    return case["batch"] * case["context"] * TOKEN_BYTES


class Pool:
    """Keys and values of one layer, as many as the largest case needs or the memory allows."""

    def __init__(self, num_bytes: int):
        self.num_tokens = num_bytes // TOKEN_BYTES // 64 * 64
        size = (self.num_tokens, KV_HEADS, HEAD_DIM)
        self.keys, self.values = (
            torch.empty(size, dtype=torch.float16, device=DEVICE) for _ in range(2)
        )
        for tensor in (self.keys, self.values):
            for part in tensor.split(1_000_000):
                part.normal_()

    def layer(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = (-1, block_size, KV_HEADS, HEAD_DIM)
        return self.keys.view(size), self.values.view(size)

    def tables(self, case: dict) -> list[torch.Tensor]:
        """Block tables of as many equal steps as keep each other out of the cache, at most 32."""
        needed = -(-case["context"] // case["block_size"])
        num_blocks = self.num_tokens // case["block_size"]
        steps = min(
            num_blocks // (case["batch"] * needed), 1 + FLUSHED_BYTES // case_bytes(case), 32
        )
        ids = torch.randperm(num_blocks, dtype=torch.int32, device=self.keys.device)
        ids = ids[: steps * case["batch"] * needed]
        return list(ids.view(steps, case["batch"], needed))


def make_pool() -> Pool:
    wanted = max(map(case_bytes, bandwidth_cases()))
    return Pool(min(wanted, int(0.6 * torch.cuda.mem_get_info()[0])))


def bandwidth(journal: Journal) -> None:
    """Decode attention alone: chosen splits, and one program for each sequence and KV head."""
    from course.engine.triton_attention import TritonAttention
    from course.engine.triton_config import choose_num_splits

    copy = journal.result["copy_bytes_per_second"]
    pool = make_pool()
    for case in bandwidth_cases():
        if journal.seconds_left < 75:  # for the sections that follow
            journal.row("bandwidth", case | {"not_run": "out of time"})
            continue
        if case_bytes(case) > pool.num_tokens * TOKEN_BYTES:
            need = f"needs {case_bytes(case) / 2**30:.0f} GiB of keys and values"
            journal.row("bandwidth", case | {"not_run": need})
            continue
        q = torch.randn(
            case["batch"], KV_HEADS * case["group"], HEAD_DIM, dtype=torch.float16, device=DEVICE
        )
        lens = torch.full((case["batch"],), case["context"], dtype=torch.int32, device=DEVICE)
        layer, tables = pool.layer(case["block_size"]), pool.tables(case)

        def times(num_splits, case=case, q=q, lens=lens, layer=layer, tables=tables):
            def work(table):
                attention = TritonAttention(
                    table, lens, None, case["block_size"], None, num_splits, case["context"]
                )
                return lambda: attention(q, *layer, scale=HEAD_DIM**-0.5)[0]

            return gpu_seconds([work(table) for table in tables])

        splits = choose_num_splits(case["batch"] * KV_HEADS, case["context"], q.device)
        seconds, how = times(None)
        unsplit = times(1)[0] if splits > 1 else seconds
        share = case_bytes(case) / seconds / copy
        goal = GOALS.get((case["batch"], case["context"]))
        journal.row(
            "bandwidth",
            case
            | {
                "microseconds": seconds * 1e6,
                "share_of_copy": share,
                "splits": splits,
                "speedup_by_splits": unsplit / seconds,
                "timed_by": how,
                "goal": goal,
                "reached": None if goal is None else share >= goal,
            },
        )


def comparison_cases() -> list[dict]:
    return [
        {"batch": batch, "context": context, "block_size": 16, "group": group}
        for batch, context, group in ((32, 8192, 4), (8, 2048, 4), (32, 2048, 8), (1, 65_536, 8))
    ]


def _ours(journal: Journal, case: dict) -> float | None:
    for row in journal.result.get("bandwidth", []):
        if all(row[name] == value for name, value in case.items()) and "microseconds" in row:
            return row["microseconds"]
    return None


def dense(journal: Journal) -> None:
    """PyTorch's scaled_dot_product_attention on the same numbers, gathered beforehand."""
    import torch.nn.functional as F

    for case in comparison_cases():
        if 3 * case_bytes(case) > torch.cuda.mem_get_info()[0] or journal.seconds_left < 60:
            journal.row("sdpa", case | {"not_run": "no memory or no time"})
            continue
        size = (case["batch"], KV_HEADS, case["context"], HEAD_DIM)
        k, v = (torch.randn(size, dtype=torch.float16, device=DEVICE) for _ in range(2))
        q = torch.randn(
            case["batch"], KV_HEADS * case["group"], 1, HEAD_DIM, dtype=torch.float16, device=DEVICE
        )

        def work(q=q, k=k, v=v):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        seconds, _ = gpu_seconds([work])
        ours = _ours(journal, case)
        row = {"microseconds": seconds * 1e6, "ours_microseconds": ours}
        row["ours_is_faster"] = None if ours is None else seconds * 1e6 / ours
        journal.row("sdpa", case | row)


def engine(journal: Journal) -> None:
    """With CUDA graphs and without: the same tokens in float32, and output tokens per second.

    In fp16 a padded batch or another number of splits rounds differently, and a token may turn.
    """
    from course.engine.graphs import use_graphs
    from course.engine.llm import LLM, SamplingParams
    from course.engine.loading.model_file import model_file

    name = "smollm2" if model_file() else "tiny"
    # (dtype, batch): 5 is padded to 8
    plan = [(torch.float32, [5]), (torch.float16, [1, 8, 32])]
    found: dict[tuple, tuple[float, list]] = {}
    for (dtype, batches), with_graphs in ((p, g) for p in plan for g in (False, True)):
        llm = LLM(
            name, dtype=dtype, device=DEVICE, num_blocks=1024, max_num_seqs=32, max_model_len=192
        )
        if with_graphs:
            use_graphs(llm)
        for batch in batches:
            case = {"model": name, "dtype": str(dtype)[6:], "batch": batch, "graphs": with_graphs}
            if journal.seconds_left < 30:
                journal.row("engine", case | {"not_run": "out of time"})
                continue
            params = SamplingParams(max_tokens=ENGINE_TOKENS, ignore_eos=True)
            prompts = [[1 + (7 * row + i) % 200 for i in range(64)] for row in range(batch)]
            llm.generate(prompts, params)  # compiles, records
            started = time.perf_counter()
            tokens = [done.token_ids for done in llm.generate(prompts, params)]
            seconds = time.perf_counter() - started
            rate = sum(map(len, tokens)) / seconds
            found[dtype, batch, with_graphs] = rate, tokens
            case["tokens_per_second"] = rate
            if with_graphs and (dtype, batch, False) in found:
                plain, expected = found[dtype, batch, False]
                case["speedup"] = rate / plain
                same = sum(a == b for a, b in zip(tokens, expected, strict=True)) / batch
                case |= {"same_outputs": same}
                if dtype == torch.float32:
                    case["ok"] = same == 1
            journal.row("engine", case)


def peers(journal: Journal) -> None:
    """FlashInfer and flash-attn over the same kind of pages, where they are installed."""
    for name, module, make in (
        ("FlashInfer", "flashinfer", _flashinfer),
        ("flash-attn", "flash_attn", _flash_attn),
    ):
        if find_spec(module) is None:
            journal.row("peers", {"peer": name, "not_run": "not installed"})
            continue
        pool = make_pool()
        for case in comparison_cases():
            if journal.seconds_left < 15 or case_bytes(case) > pool.num_tokens * TOKEN_BYTES:
                journal.row("peers", {"peer": name} | case | {"not_run": "no time or no memory"})
                continue
            try:
                block_size, works = make(pool, case)
                seconds, how = gpu_seconds(works)
            except Exception as error:  # a peer's own trouble is no fault of ours
                torch.cuda.synchronize()
                journal.row("peers", {"peer": name} | case | {"not_run": f"{error!r:.300}"})
                continue
            row = {"peer_block_size": block_size, "microseconds": seconds * 1e6, "timed_by": how}
            journal.row(
                "peers", {"peer": name} | case | row | {"ours_microseconds": _ours(journal, case)}
            )


def _query(case: dict) -> torch.Tensor:
    size = (case["batch"], KV_HEADS * case["group"], HEAD_DIM)
    return torch.randn(size, dtype=torch.float16, device=DEVICE)


def _flashinfer(pool: Pool, case: dict) -> tuple[int, list[Callable]]:
    import flashinfer  # pyright: ignore[reportMissingImports]

    q, works = _query(case), []
    for table in pool.tables(case)[:4]:  # each has a workspace of its own
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(128 * 1024**2, dtype=torch.uint8, device=DEVICE), "NHD"
        )
        batch, width = table.shape
        last = case["context"] - (width - 1) * case["block_size"]
        wrapper.plan(
            torch.arange(batch + 1, dtype=torch.int32, device=DEVICE) * width,
            table.flatten(),
            torch.full((batch,), last, dtype=torch.int32, device=DEVICE),
            KV_HEADS * case["group"], KV_HEADS, HEAD_DIM, case["block_size"],
            q_data_type=torch.float16, kv_data_type=torch.float16,
        )  # fmt: skip
        works.append(lambda w=wrapper: w.run(q, pool.layer(case["block_size"])))
    return case["block_size"], works


def _flash_attn(pool: Pool, case: dict) -> tuple[int, list[Callable]]:
    from flash_attn import flash_attn_with_kvcache  # pyright: ignore[reportMissingImports]

    case = case | {"block_size": 256}  # the least that it takes
    q = _query(case)[:, None]
    lens = torch.full((case["batch"],), case["context"], dtype=torch.int32, device=DEVICE)
    keys, values = (
        tensor[: pool.num_tokens // 256 * 256].view(-1, 256, KV_HEADS, HEAD_DIM)
        for tensor in (pool.keys, pool.values)
    )
    return 256, [
        lambda table=table: flash_attn_with_kvcache(
            q, keys, values, cache_seqlens=lens, block_table=table
        )
        for table in pool.tables(case)
    ]


def markdown(result: dict) -> str:
    """The result as a page: what was reached of each goal, then a table for each section."""
    lines = ["# The kernels on a GPU", "", f"{result.get('machine')}; {result.get('versions')}", ""]
    if "copy_bytes_per_second" in result:
        lines += [f"A copy reaches {result['copy_bytes_per_second'] / 1e9:,.0f} GB/s.", ""]
    for row in result.get("bandwidth", []):
        if row.get("goal"):
            where = f"batch {row['batch']}, {row['context']} tokens, block size {row['block_size']}"
            said = "reached" if row["reached"] else "not reached"
            lines.append(
                f"- {where}, group {row['group']}: {row['share_of_copy']:.0%} of the copy, "
                f"{said} (goal {row['goal']:.0%})"
            )
    for section in ("correctness", "bandwidth", "sdpa", "engine", "peers", "errors"):
        rows = result.get(section, [])
        if not rows:
            continue
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines += ["", f"## {section}", "", "| " + " | ".join(names) + " |"]
        lines.append("|" + " --- |" * len(names))
        for row in rows:
            cells = (_told({"": row[name]}).strip() if name in row else "" for name in names)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
