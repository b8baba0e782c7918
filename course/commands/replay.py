"""`python -m course replay`: a recorded or synthetic workload, served on this machine."""

import json
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
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    table = Table("", trace if len(trace) < 60 else Path(trace).name, title="Replay")
    for name, value in rows.items():
        table.add_row(
            name, "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        )
    Console().print(table)


def _median(values: list[float]) -> float | None:
    return round(median(values), 4) if values else None
