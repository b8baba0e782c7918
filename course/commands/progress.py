"""`python -m course progress`: where a learner stands in the labs."""

import json
from pathlib import Path
from typing import Annotated

import typer


def progress(
    folder: Annotated[
        Path | None,
        typer.Option(help="The my_engine folder; default: beside exercises/, or COURSE_MY_ENGINE."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Show which exercises you passed, and which pieces of the engine are yours."""
    from course.practice.my_engine import MyEngine
    from course.practice.standing import progress as table

    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: pass a first check, or name another")
    found = table(MyEngine(folder))
    print(json.dumps(found.as_dict(), indent=2) if as_json else found.text())
