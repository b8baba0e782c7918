"""`python -m course teaching`: the made parts of docs/teaching.md."""

from typing import Annotated

import typer


def teaching(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the page is out of date.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run the solved labs and measure what they need.")
    ] = False,
    lab: Annotated[list[int] | None, typer.Option(help="Measure only this lab.")] = None,
) -> None:
    """Renew the tables in docs/teaching.md from the exercises, and from measurements if asked."""
    from course.release import teaching as page

    stored = page.read()
    needs = page.measured(stored)
    if measure and not check:
        from course.release import measure as how

        for path in how.every():
            if lab and int(path.name[:2]) not in lab:
                continue
            need = how.measure(path)
            print(f"lab {need.lab:02d}: {need.memory} MiB, {need.cpu:.1f} s of CPU", flush=True)
            needs[need.lab] = need
    made = page.made(stored, needs)
    if check and made != stored:
        raise RuntimeError("docs/teaching.md is out of date: run `python -m course teaching`")
    if not check:
        page.PAGE.write_text(made, encoding="utf-8")
    print(f"docs/{page.PAGE.name} is up to date")
