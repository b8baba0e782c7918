"""``course site``: the course as static pages to read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated

import typer

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def site(
    out: Annotated[Path, typer.Option(help="The folder to write; it is replaced.")] = Path(
        "build/site"
    ),
    still: Annotated[
        bool, typer.Option("--still", help="No figure moves: quicker, and runs no model.")
    ] = False,
) -> None:
    """Build the lessons, the solved labs and the docs into pages that need no kernel.

    Pages work from a folder on disk, without a network and without JavaScript; with it, figures
    move and the search works. Links and headings are checked at the end.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from course.site.build import build

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console,
                  transient=True) as progress:  # fmt: skip
        task = progress.add_task("pages", total=None)
        try:
            report = build(
                out,
                moving=lambda stem: not still,
                on_page=lambda done, total, name: progress.update(
                    task, completed=done, total=total, description=name
                ),
            )
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise ValueError(
                f"{out} cannot be written ({error.strerror}). Make room or change its rights, or"
                " choose another folder with --out; a site that was there is still there"
            ) from None
    for note in report.notes:
        console.print(f"  - {note}", markup=False)
    for problem in report.problems:
        console.print(f"✗ {problem}", markup=False)
    console.print(
        f"{report.num_pages} pages, {report.num_films} figures that move, "
        f"{report.num_bytes / 2**20:.1f} MiB. Open {report.folder / 'index.html'}",
        markup=False,
    )
    if report.problems:
        raise typer.Exit(1)
