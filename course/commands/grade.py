"""`python -m course grade`: grade what a class handed in."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def grade(
    submissions: Annotated[
        Path, typer.Argument(help="Folder or zip file of what was handed in, as downloaded.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    lab: Annotated[
        str, typer.Option(help="Grade this lab only, such as 04; else whichever each one is.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Students graded at a time.")] = 1,
    seed: Annotated[
        str, typer.Option(help="Draw the hidden inputs from this; else from a new secret.")
    ] = "",
    time_limit: Annotated[
        float, typer.Option(min=1, help="Seconds that one exercise of one student may take.")
    ] = 60.0,
    memory: Annotated[int, typer.Option(min=64, help="MiB that one exercise may use.")] = 2048,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run was interrupted.")
    ] = False,
    shard: Annotated[
        str, typer.Option(help="K/N: only part K of N of the class, for several machines.")
    ] = "",
    merge: Annotated[
        bool, typer.Option("--merge", help="Grade nothing; put the results of all shards together.")
    ] = False,
    isolation: Annotated[
        str, typer.Option(help="bubblewrap or landlock; else the best that holds here.")
    ] = "",
    allow_unsandboxed: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed", help="Grade although nothing keeps submissions in. Dangerous."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Grade notebooks of a lab: each exercise in a sandbox of its own, on hidden inputs.

    Takes downloads from Canvas, Moodle, Gradescope and nbgrader, a folder of notebooks, zip files
    or a folder for each student. Results are in OUT/partial as they come and in OUT/results.json at
    the end. docs/grading.md says what it withstands and what not.
    """
    from course.grading import isolation as keeping
    from course.grading import results, run
    from course.grading.session import Limits

    options = run.Options(
        submissions,
        out,
        _lab(lab),
        jobs,
        seed,
        Limits(seconds=time_limit, memory=memory * 2**20),
        resume,
        _shard(shard),
        _level(isolation),
        allow_unsandboxed,
    )
    if merge:
        found = run.merge(options)
    else:
        found = _with_progress(options)
        if not shard:
            results.write(out / "results.json", found)
    if not shard:  # a part of a class is no class: its reports come with --merge
        from course.grading.reports import write_reports

        write_reports(found, out)
    if not found.isolation.sufficient:
        print(f"WARNING: {keeping.words(found.isolation)}", file=sys.stderr)
    summary = _summary(found)
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        _print(found, summary, out, keeping.words(found.isolation), shard)
    if found.missing or summary["errors"]:
        raise typer.Exit(1)


def _lab(told: str) -> int | None:
    if not told:
        return None
    if not told.isdigit():
        raise ValueError(f"--lab {told!r} is no number; say it as in --lab 04")
    return int(told)


def _shard(told: str) -> tuple[int, int]:
    if not told:
        return 1, 1
    number, _, count = told.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--shard {told!r} is no part of a whole; say it as in --shard 2/8")
    return int(number), int(count)


def _level(told: str) -> str:
    if told not in ("", "bubblewrap", "landlock"):
        raise ValueError(f"--isolation {told!r}: there are bubblewrap and landlock")
    return told


def _with_progress(options):
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from course.grading import run

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("looking at what is there", total=None)

        def show(progress: run.Progress) -> None:
            bars.update(task, description="students", total=progress.total, completed=progress.done)

        try:
            return run.grade(options, show)
        except KeyboardInterrupt:
            bars.stop()
            console.print(f"Interrupted. What is done is in {options.out}; go on with --resume.")
            raise typer.Exit(130) from None


def _summary(found) -> dict:
    from course.grading.results import NOT_GRADED
    from course.grading.run import errors as not_done

    states: dict[str, int] = {}
    for submission in found.submissions:
        states[submission.state] = states.get(submission.state, 0) + 1
    errors = [f"{s.student}: {e}" for s in found.submissions for e in not_done(s)]
    errors += [f"{s.student}: all" for s in found.submissions if s.state == NOT_GRADED]
    return {
        "submissions": len(found.submissions),
        "states": states,
        "points": found.points,
        "of": sum(s.of for s in found.submissions),
        "with_notes": sum(bool(s.notes) for s in found.submissions),
        "missing": found.missing,
        "errors": errors,
        "left_over": len(found.left_over),
        "isolation": found.isolation.level,
        "sufficient": found.isolation.sufficient,
        "seconds": found.seconds,
        "peak_memory": found.peak_memory,
    }


def _print(found, summary: dict, out: Path, isolation: str, shard: str) -> None:
    states = ", ".join(f"{count} {state}" for state, count in sorted(summary["states"].items()))
    print(f"{summary['submissions']} submissions: {states or 'none'}.")
    if summary["submissions"]:
        mean = summary["points"] / summary["submissions"]
        print(f"{summary['points']:g} of {summary['of']} points in all, {mean:.2f} in the mean.")
    if summary["with_notes"]:
        print(f"{summary['with_notes']} have notes that deserve a look.")
    print(f"Isolation: {isolation}.")
    for what in ("missing", "errors"):
        if summary[what]:
            print(f"{what.capitalize()}: {', '.join(summary[what][:20])}")
    for words in found.left_over[:20]:
        print(f"Left over: {words}")
    if found.seconds:
        print(f"{found.seconds:.0f} s, {found.peak_memory / 2**20:.0f} MiB at the most.")
    if shard:
        print(f"Part {shard} is in {out}; `--merge` puts the parts together when all are done.")
    else:
        print(f"Results: {out / 'results.json'}; the class: {out / 'reports' / 'class.html'}")
