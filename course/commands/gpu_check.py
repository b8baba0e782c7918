"""`python -m course gpu-check`: the kernels on an NVIDIA GPU, right and how fast."""

import json
from pathlib import Path
from typing import Annotated

import typer


def gpu_check(
    out: Annotated[
        Path, typer.Option(help="Folder for gpu.json, written as results come, and gpu.md.")
    ] = Path("docs/benchmarks"),
    seconds: Annotated[float, typer.Option(help="Leave out what there is no time for.")] = 225,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Test and measure the kernels on this machine's NVIDIA GPU, in under four minutes.

    The exit status is 0 when all was right, 1 when something was wrong, and 77 when there is no GPU
    and nothing ran.
    """
    import sys

    from course.gpu_check import NOT_RUN_STATUS, check_gpu, markdown, why_not

    if problem := why_not():
        print(json.dumps({"not_run": problem}) if as_json else problem)
        raise typer.Exit(NOT_RUN_STATUS)
    result = check_gpu(
        seconds, out / "gpu.json", say=lambda text: print(text, file=sys.stderr, flush=True)
    )
    (out / "gpu.md").write_text(markdown(result))
    print(json.dumps(result, indent=1) if as_json else markdown(result))
    raise typer.Exit(0 if result["passed"] else 1)
