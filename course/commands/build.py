"""``course build``: sources to notebooks, or a check that the stored ones are up to date."""

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
    lessons: Annotated[bool, typer.Option("--lessons", help="Only the lessons.")] = False,
    labs: Annotated[bool, typer.Option("--labs", help="Only the labs.")] = False,
) -> None:
    """Build notebooks/ from course/lessons/, exercises/ and solutions/ from course/labs/.

    Each notebook is run from top to bottom in a fresh kernel, cleaned of what differs from run to
    run, read against the rules in docs/authoring.md and written in one step. With --check nothing
    is run or written: it fails, showing the difference, when a notebook is not what its source
    gives. An exercise notebook that somebody has worked in is never written over: the new one is
    put beside it, as NN_topic.new.ipynb.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from course.authoring import build as maker
    from course.authoring import labs as lab_maker

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    starts = tuple(only or ())
    chosen = [] if labs else maker.sources(only=starts)
    chosen_labs = [] if lessons else lab_maker.sources(only=starts)
    if not chosen and not chosen_labs:
        known = [*maker.sources(), *lab_maker.sources()]
        there = ", ".join(sorted({path.stem[:2] for path in known})) or "none"
        console.print(f"No source starts with {only or 'a number'}. There are: {there}.")
        raise typer.Exit(2)
    reports = []
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for path in [*chosen, *chosen_labs]:
            began = time.perf_counter()
            is_lab = path in chosen_labs
            if check:
                made = lab_maker.check_lab(path) if is_lab else [maker.check_lesson(path)]
            else:
                task = progress.add_task(f"{'lab ' if is_lab else ''}{path.stem}", total=None)
                options = {
                    "run": execute,
                    "timeout": timeout,
                    "on_cell": lambda done, total, task=task: progress.update(
                        task, completed=done, total=total
                    ),
                }
                made = (
                    lab_maker.build_lab(path, **options)
                    if is_lab
                    else [maker.build_lesson(path, **options)]
                )
                progress.remove_task(task)
            for report in made:
                _say(console, report, check, time.perf_counter() - began)
            reports += made
    lost = [] if only else [*maker.orphans(), *lab_maker.orphans()]
    for path in lost:
        console.print(f"{path.parent.name}/{path.name}: no source gives this notebook; remove it.")
    if lost or not all(report.ok for report in reports):
        raise typer.Exit(1)


def _say(console, report, check: bool, seconds: float) -> None:
    state = "up to date" if check else "written" if report.written else "unchanged"
    if report.failure:
        console.print(f"✗ {report.name}: {report.failure}", markup=False)
    elif report.diff:
        console.print(f"✗ {report.name}: differs from its source", markup=False)
        console.print(report.diff, markup=False)
        number = report.name.rpartition("/")[2][:2]
        console.print(f"  Build it: python -m course build --only {number}", markup=False)
    elif report.problems:
        console.print(f"✗ {report.name}: {state}, {len(report.problems)} problems", markup=False)
    else:
        console.print(f"✓ {report.name}: {state} ({seconds:.0f} s)", markup=False)
    for problem in [*report.problems, *report.notes]:
        console.print(f"  - {problem}", markup=False)
