"""`python -m course doctor`: what this machine has, what works, what to do about the rest."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print it for a program.")] = False,
) -> None:
    """Test this machine: Python, packages, device, Triton, model, widgets, memory.

    The exit status is 1 only when the course cannot run; a limit is shown with its remedy.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from course.doctor import BROKEN, OK, report

    console = Console()
    if as_json:
        result = report()
        print(json.dumps(result.as_dict(), indent=2))
    else:
        with Console(stderr=True).status("looking at this machine"):
            result = report()
        styles = {OK: "green", BROKEN: "bold red"}
        table = Table("Check", "Status", "Found", title="Self-test of this machine")
        for check in result:
            found = Text(check.found)
            if check.remedy:
                found.append(f"\n-> {check.remedy}", style="italic")
            table.add_row(check.name, Text(check.status, styles.get(check.status, "yellow")), found)
        console.print(table)
        console.print(result.verdict)
    raise typer.Exit(0 if result.can_run else 1)
