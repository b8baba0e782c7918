"""`python -m course grade-report`: tables, pages and imports from a graded class."""

import json
from pathlib import Path
from typing import Annotated

import typer


def grade_report(
    out: Annotated[Path, typer.Argument(help="The folder that `course grade --out` named.")],
    canvas: Annotated[
        Path | None, typer.Option(help="Gradebook exported from Canvas: whom to match.")
    ] = None,
    moodle: Annotated[
        Path | None, typer.Option(help="Participants, grades or worksheet exported from Moodle.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; list whom nobody knows.")
    ] = False,
    similarity: Annotated[
        bool, typer.Option(help="Also look for answers that resemble each other.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write OUT/reports from OUT/results.json: CSV, imports, a class page, feedback.

    With --canvas or --moodle the imports hold exactly the people of these lists, and who could not
    be matched is named. Look at it with --dry-run first.
    """
    from course.grading.reports import write_reports
    from course.grading.results import read_class

    path = out / "results.json"
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: grade first, or merge the shards")
    found = write_reports(read_class(path), out, canvas, moodle, dry_run, similarity)
    if as_json:
        told = {
            "files": [str(p) for p in found.files], "matched": found.matched,
            "unmatched": found.unmatched, "absent": found.absent, "remarks": found.remarks,
        }  # fmt: skip
        print(json.dumps(told, indent=1))
        return
    for system, count in found.matched.items():
        print(f"{system}: {count} people matched, {len(found.unmatched[system])} submissions not.")
        for line in found.unmatched[system]:
            print(f"  not matched: {line}")
        for line in found.absent[system]:
            print(f"  nothing from: {line}")
        for line in found.remarks[system]:
            print(f"  note: {line}")
    pages = sum(p.suffix == ".html" and p.parent.name == "feedback" for p in found.files)
    if dry_run:
        print(f"Nothing was written. It would be {len(found.files)} files.")
    else:
        print(f"{out / 'reports' / 'class.html'}, feedback for {pages} submissions and more.")
