"""`python -m course`, also installed as `course`: one command for each file in course/commands.

To add one, write ``course/commands/NAME.py`` with a function NAME that typer can read: typed
arguments, help texts, a docstring whose first line says what it does. Nothing else needs to know
of it. Import what is slow (torch, rich, the engine) inside the function: ``--help`` imports every
command and must stay quick. A wrong input is a ValueError that names the value, the limit and the
remedy: it is shown as one line, without a traceback, and the exit status is 1.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pkgutil import iter_modules

import typer

import course
from course import commands

app = typer.Typer(
    name="course",
    help="Paged attention, from the KV cache to a working engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(course.__version__)
        raise typer.Exit()


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


for _name in sorted(module.name for module in iter_modules(commands.__path__)):
    _command = getattr(import_module(f"course.commands.{_name}"), _name)
    app.command(_name.replace("_", "-"))(_command)


def main() -> None:
    try:
        app(prog_name="course")
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("COURSE_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
