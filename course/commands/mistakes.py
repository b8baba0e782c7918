"""`python -m course mistakes`: the wrong answers in the bank against the probes."""

from pathlib import Path
from typing import Annotated

import typer


def mistakes(
    lab: Annotated[
        list[int] | None, typer.Option(help="Run only this lab anew. Repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the page is out of date.")
    ] = False,
) -> None:
    """Make docs/mistakes.md: which wrong answer is caught by which probe, and by which name."""
    from rich.console import Console

    import course
    from course.practice import registry, survey

    target = Path(course.__file__).resolve().parents[1] / "docs" / "mistakes.md"
    stored = target.read_text(encoding="utf-8") if target.exists() else ""
    known = {n: part for n, part in survey.sections(stored).items() if n in registry.labs()}
    with Console(stderr=True).status("") as status:
        for number in lab or registry.labs():
            status.update(f"running every known answer of lab {number:02d}")
            known[number] = survey.lab_section(number)
    made = survey.page(known)
    if not check:
        target.write_text(made, encoding="utf-8")
        print(f"wrote docs/{target.name}")
    elif stored != made:
        raise RuntimeError(f"docs/{target.name} is out of date: run `python -m course mistakes`")
    else:
        print(f"docs/{target.name} is up to date")
