"""`python -m course kernels`: what the compiler made of the attention kernels, without a GPU."""

from pathlib import Path
from typing import Annotated

import typer


def kernels(
    out: Annotated[
        Path | None, typer.Option(help="Folder for kernels.md and kernels.json; none: only print.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compile every kernel for three GPUs: registers, loads, tensor cores, bytes fetched.

    No GPU is needed; it takes some minutes. The exit status is 1 if a kernel lacks what it must
    have.
    """
    from importlib.util import find_spec

    if find_spec("triton") is None:
        raise RuntimeError("not run: Triton is not installed here; its compiler runs on Linux")
    from rich.console import Console

    from course.kernel_table import as_json as written
    from course.kernel_table import markdown, measure

    with Console(stderr=True).status("starting") as status:
        result = measure(say=status.update)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "kernels.json").write_text(written(result))
        (out / "kernels.md").write_text(markdown(result))
    print(written(result) if as_json else markdown(result))
    raise typer.Exit(1 if result["faults"] else 0)
