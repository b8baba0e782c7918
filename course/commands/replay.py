"""`python -m course replay`: a recorded or synthetic workload, served on this machine."""

import json
import os
from dataclasses import replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Annotated

import typer


def replay(
    trace: Annotated[
        str,
        typer.Argument(
            help="A trace file (Azure CSV, Mooncake JSONL, a CSV of lengths; .gz too) or the name"
            " of a built-in mix."
        ),
    ],
    limit: Annotated[int, typer.Option(help="Serve the first so many requests; 0: all.")] = 32,
    scale: Annotated[
        float, typer.Option(help="Multiply all lengths, to suit a slow machine.")
    ] = 1.0,
    speed: Annotated[
        float | None, typer.Option(help="Play arrivals so many times faster. Default: all at once.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes the token ids and a built-in mix.")] = 0,
    model: Annotated[str, typer.Option(help="As for `generate`.")] = "smollm2",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 16,
    kv_cache_mib: Annotated[int, typer.Option(help="Memory for keys and values.")] = 256,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests in a batch.")] = 64,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest request, prompt and answer together.")
    ] = None,
    kv_policy: Annotated[
        str, typer.Option(help="paged, or slab to reserve in one piece.")
    ] = "paged",
    prefix_caching: Annotated[bool, typer.Option(help="Reuse blocks of shared prefixes.")] = True,
    engine: Annotated[
        str,
        typer.Option(help='ours; or vllm, "vllm compiled", transformers: the same requests there.'),
    ] = "ours",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Serve a workload: the lengths are the trace's, the words are random."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    from course.engine import LLM
    from course.replay import replay as run
    from course.workload import MOONCAKE_BLOCK_TOKENS, load_workload

    if not (scale > 0 and isfinite(scale)):
        raise ValueError(f"--scale {scale} must be a number above 0")
    if seed < 0:
        raise ValueError(f"--seed {seed} must be 0 or more")
    requests = load_workload(trace, limit=limit or None, seed=seed)
    if scale != 1:
        requests = [
            replace(
                r,
                prompt_tokens=max(1, round(r.prompt_tokens * scale)),
                output_tokens=max(1, round(r.output_tokens * scale)),
            )
            for r in requests
        ]
    console = Console(stderr=True)
    if engine != "ours":
        if speed is not None:
            raise ValueError(f"--speed is for this engine; {engine} is offered all at once")
        with console.status(f"serving on {engine}") as status:
            rows = on_peer(
                engine,
                requests,
                model,
                dtype or "float32",
                seed,
                kv_cache_mib,
                scale,
                status.update,
            )
        show(rows, trace, as_json)
        return
    with console.status(f"loading {model}"):
        llm = LLM(
            model,
            dtype=dtype,
            device=device,
            block_size=block_size,
            kv_cache_bytes=kv_cache_mib * 2**20,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            kv_policy=kv_policy,
            prefix_caching=prefix_caching,
        )
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(f"serving {Path(trace).name}", total=len(requests))
        result = run(
            llm,
            requests,
            speed=speed,
            seed=seed,
            block_tokens=max(1, round(MOONCAKE_BLOCK_TOKENS * scale)),
            on_progress=lambda done, total: bar.update(task, completed=done),
        )
    if requests and not result.served:
        raise ValueError(
            f"all {result.refused} requests were refused: none fits this engine; raise"
            " --max-model-len or --kv-cache-mib, or shorten them with --scale"
        )
    rows = {
        "requests served": result.served,
        "requests refused": result.refused,
        "seconds": round(result.seconds, 2),
        "prompt tokens": result.prompt_tokens,
        "output tokens": result.output_tokens,
        "output tokens per second": round(result.throughput, 1),
        "mean batch": round(result.mean_batch, 2),
        "peak batch": result.peak_batch,
        "time to first token, median s": _median(result.time_to_first_token),
        "time per token, median s": _median(result.time_per_token),
        "preemptions": result.stats.preemptions,
        "prefix hit rate": round(result.stats.hit_rate, 4),
        "device": f"{llm.model.device}, {str(llm.model.dtype).removeprefix('torch.')}",
    }
    show(rows, trace, as_json)


def show(rows: dict, trace: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", trace if len(trace) < 60 else Path(trace).name, title="Replay")
    for name, value in rows.items():
        table.add_row(
            name, "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        )
    Console().print(table)


def on_peer(engine, requests, model, dtype, seed, kv_cache_mib, scale, say) -> dict:
    """The same prompts, all at once, on another engine in its own environment."""
    from course.bench.cases import Case
    from course.bench.engines import ENGINES
    from course.bench.run import BOUNDS, start
    from course.engine.loading.model_file import model_file
    from course.replay import make_prompts
    from course.sizing import MODELS, kv_bytes_per_token
    from course.workload import MOONCAKE_BLOCK_TOKENS

    if engine not in ENGINES or engine in BOUNDS:
        peers = ", ".join(name for name in ENGINES if name not in BOUNDS)
        raise ValueError(f"--engine {engine!r} is unknown; there are {peers}")
    if model != "smollm2":
        raise ValueError(f"--engine {engine} serves the course's model: leave --model out")
    if (path := model_file()) is None:
        raise FileNotFoundError("the model package is not installed: run `make setup`")
    shape = MODELS["SmolLM2-135M"]
    block_tokens = max(1, round(MOONCAKE_BLOCK_TOKENS * scale))
    prompts = tuple(map(tuple, make_prompts(requests, 49_152, seed, block_tokens)))
    per_token = kv_bytes_per_token(shape, 2 if dtype != "float32" else 4)
    case = Case(
        "replay",
        prompts,
        tuple(r.output_tokens for r in requests),
        # `generate` takes what memory it needs.
        pool_tokens=None if engine == "transformers" else kv_cache_mib * 2**20 // per_token,
    )
    worker = start(engine, str(path), dtype, os.cpu_count() or 1, say)
    try:
        say(f"serving {len(prompts)} requests on {engine}")
        answer = worker.run(case)
    finally:
        worker.close()
    if "error" in answer:
        raise RuntimeError(f"{engine} did not serve this: {answer['error']}")
    return {
        "engine": ", ".join(f"{name} {version}" for name, version in worker.version.items()),
        "requests served": len(prompts),
        "seconds": round(answer["seconds"], 2),
        "prompt tokens": sum(map(len, prompts)),
        "output tokens": sum(map(len, answer["outputs"])),
        "output tokens per second": round(case.output_tokens / answer["seconds"], 1),
        "device": f"cpu, {dtype}",
    }


def _median(values: list[float]) -> float | None:
    return round(median(values), 4) if values else None
