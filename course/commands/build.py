"""``course build``: lesson sources to notebooks, or a check that the stored ones are up to date."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def build(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a notebook is out of date.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only sources that start so, such as 04. Repeatable.")
    ] = None,
    execute: Annotated[
        bool,
        typer.Option(help="Run every cell anew, or keep the stored outputs (code unchanged)."),
    ] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds that one cell may take.")] = 120,
) -> None:
    """Build notebooks/ from course/lessons/.

    Each notebook is run from top to bottom in a fresh kernel, cleaned of what differs from run to
    run, read against the rules in docs/authoring.md and written in one step. With --check nothing
    is run or written: it fails, showing the difference, when a notebook is not what its source
    gives.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from course.authoring import build as maker

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    chosen = maker.sources(only=tuple(only or ()))
    if not chosen:
        there = ", ".join(path.stem[:2] for path in maker.sources()) or "none"
        console.print(f"No lesson source starts with {only or 'a number'}. There are: {there}.")
        raise typer.Exit(2)
    reports = []
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for path in chosen:
            began = time.perf_counter()
            if check:
                report = maker.check_lesson(path)
            else:
                task = progress.add_task(path.stem, total=None)
                report = maker.build_lesson(
                    path,
                    run=execute,
                    timeout=timeout,
                    on_cell=lambda done, total, task=task: progress.update(
                        task, completed=done, total=total
                    ),
                )
                progress.remove_task(task)
            reports.append(report)
            _say(console, report, check, time.perf_counter() - began)
    lost = [] if only else maker.orphans()
    for path in lost:
        console.print(f"{path.name}: no source in course/lessons/ gives this notebook; remove it.")
    if lost or not all(report.ok for report in reports):
        raise typer.Exit(1)


def _say(console, report, check: bool, seconds: float) -> None:
    state = "up to date" if check else "written" if report.written else "unchanged"
    if report.failure:
        console.print(f"✗ {report.name}: {report.failure}", markup=False)
    elif report.diff:
        console.print(f"✗ {report.name}: differs from its source", markup=False)
        console.print(report.diff, markup=False)
        console.print("  Build it: python -m course build --only " + report.name[:2], markup=False)
    elif report.problems:
        console.print(f"✗ {report.name}: {state}, {len(report.problems)} problems", markup=False)
    else:
        console.print(f"✓ {report.name}: {state} ({seconds:.0f} s)", markup=False)
    for problem in report.problems:
        console.print(f"  - {problem}", markup=False)
