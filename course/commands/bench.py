"""`python -m course bench`: this engine beside others, on this machine, in one run."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def bench(
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help='A peer: transformers, "transformers batching", vllm, "vllm compiled", llama.cpp; '
            'or a bound: "weights only", "linear layers". Repeatable. Default: all.',
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    threads: Annotated[int, typer.Option(help="CPU threads for every engine.")] = 2,
    rounds: Annotated[int, typer.Option(help="Rounds that count, after one to warm up.")] = 3,
    case: Annotated[list[str] | None, typer.Option(help="Only this case. Repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a .md and a .json; none: only print.")
    ] = None,
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Instead: how operations slow down as sizes grow."),
    ] = False,
    learner: Annotated[
        bool, typer.Option("--learner", help="Instead: what a learner waits for.")
    ] = False,
    serving: Annotated[
        bool,
        typer.Option("--serving", help="Instead: a step taken apart; pages against slabs."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure output tokens per second against peers, case by case, in turns.

    Each peer gets an environment of its own under .bench/, made on first use (minutes, and some GB
    for vLLM); COURSE_BENCH_PYTHON names an interpreter that has them instead.
    """
    from rich.console import Console

    from course.bench.cases import make_cases
    from course.bench.engines import ENGINES
    from course.bench.run import markdown, measure
    from course.engine.loading.model_file import model_file

    if dtype not in ("bfloat16", "float32"):
        raise ValueError(f"--dtype {dtype!r} is not measured; choose bfloat16 or float32")
    if growth:
        grow(out, as_json)
        return
    if learner:
        wait(out, as_json)
        return
    if serving:
        serve(dtype, threads, out, as_json)
        return
    engines = ["ours", *(peers or [name for name in ENGINES if name != "ours"])]
    for name in engines:
        if name not in ENGINES:
            raise ValueError(f"engine {name!r} is unknown; there are {', '.join(ENGINES)}")
    for name in case or []:
        if name not in make_cases():
            raise ValueError(f"case {name!r} is unknown; there are: {'; '.join(make_cases())}")
    if rounds < 1:
        raise ValueError(f"--rounds {rounds} must be 1 or more")
    path = model_file()
    if path is None:
        raise FileNotFoundError("the model package is not installed: run `make setup`")
    console = Console(stderr=True)
    with console.status("starting") as status:
        result = measure(
            engines,
            str(path),
            dtype,
            threads,
            rounds,
            case,
            say=lambda text: status.update(text),
        )
    result["command"] = measuring_command(sys.argv[1:])
    name, title = f"engine-{dtype}", f"Output tokens per second, {dtype}"
    if peers and len(peers) == 1:  # a page of its own, beside the one of many
        name += "-" + peers[0].replace(" ", "-")
        title = f"Output tokens per second beside {peers[0]}, {dtype}"
    put(out, as_json, name, title, result, markdown(result))


def put(out: Path | None, as_json: bool, name: str, title: str, result: dict, page: str) -> None:
    """Print a result, and keep it in `out`: as data, and as a page."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        (out / f"{name}.md").write_text(f"# {title}\n\n{page}")
    print(json.dumps(result, indent=2) if as_json else page)


def grow(out: Path | None, as_json: bool) -> None:
    """`--growth`: one operation, at ever larger sizes."""
    from dataclasses import asdict

    from rich.console import Console

    from course.bench.growth import markdown, measure
    from course.bench.run import machine

    with Console(stderr=True).status("starting") as status:
        table = measure(say=status.update)
    command = measuring_command(sys.argv[1:])
    result = {"machine": machine(), "command": command, "rows": [asdict(row) for row in table]}
    page = f"{result['machine']}\n\nCommand: `{command}`\n\n{markdown(table)}"
    put(out, as_json, "growth", "What must not grow", result, page)


def wait(out: Path | None, as_json: bool) -> None:
    """`--learner`: the import, the checks, the widgets; a line of history."""
    from datetime import UTC, datetime

    from rich.console import Console

    from course.bench.learner import markdown, measure
    from course.bench.run import machine

    with Console(stderr=True).status("starting") as status:
        rows = measure(say=status.update)
    command = measuring_command(sys.argv[1:])
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "command": command,
        "seconds": {what: round(seconds, 4) for what, seconds, _ in rows},
    }
    page = f"{result['machine']}\n\nCommand: `{command}`\n\n{markdown(rows)}"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with (out / "history.jsonl").open("a") as history:
            history.write(json.dumps(result) + "\n")
        (out / "learner.md").write_text(f"# What a learner waits for\n\n{page}")
    print(json.dumps(result, indent=2) if as_json else page)


def serve(dtype: str, threads: int, out: Path | None, as_json: bool) -> None:
    """`--serving`: what the engine costs beside the model, and what pages bring."""
    import torch
    from rich.console import Console

    from course.bench.run import machine
    from course.bench.serving import markdown, measure
    from course.engine.loading.model_file import model_file

    path = model_file()
    if path is None:
        raise FileNotFoundError("the model package is not installed: run `make setup`")
    torch.set_num_threads(threads)
    with Console(stderr=True).status("starting") as status:
        result = measure(str(path), dtype, say=status.update)
    command = measuring_command(sys.argv[1:])
    result = {"machine": machine(), "command": command, **result}
    page = f"{result['machine']}\n\nCommand: `{command}`\n\n{markdown(result)}"
    put(out, as_json, f"serving-{dtype}", "What a step costs, what pages bring", result, page)


def measuring_command(arguments: list[str]) -> str:
    """The command as a page may quote it: without where this machine put the result."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--out" and not argument.startswith("--out="):
            kept.append(shlex.quote(argument))
        skip = argument == "--out"
    return " ".join(["python -m course", *kept])
