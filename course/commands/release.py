"""`python -m course release`: what students, nbgrader and Gradescope get."""

from pathlib import Path
from typing import Annotated

import typer


def release(
    kind: Annotated[str, typer.Argument(help="zip, nbgrader or gradescope.")],
    folder: Annotated[Path, typer.Argument(help="Where to put it.")],
    lab: Annotated[
        list[str] | None, typer.Option(help="Only this lab, such as 04. Repeatable.")
    ] = None,
    index: Annotated[
        str,
        typer.Option(help="gradescope: another package index for pip, such as PyTorch's for CPUs."),
    ] = "",
    allow_unsandboxed: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed",
            help="gradescope: grade although only the container keeps submissions in. Dangerous.",
        ),
    ] = False,
) -> None:
    """Make a bundle for students (zip), an nbgrader course folder, or Gradescope autograders.

    zip writes FOLDER/paged-attention-student.zip, without solutions. gradescope writes one zip file
    a lab; each holds a secret and is for teachers only. docs/teaching.md says how to use them.
    """
    from course.practice import registry
    from course.release import gradescope, nbgrader, student, tree

    labs = [_number(word) for word in lab or []]
    if kind != "gradescope" and (index or allow_unsandboxed):
        raise ValueError("--index and --allow-unsandboxed are for `release gradescope`")
    if kind == "zip":
        target = folder / "paged-attention-student.zip"
        found = student.bundle(labs or None)
        tree.to_zip(found, target)
        print(f"{target}: {len(found)} files, {target.stat().st_size / 2**20:.1f} MiB")
    elif kind == "nbgrader":
        found = nbgrader.course_folder(labs or None)
        tree.to_folder(found, folder)
        print(f"{folder}: {len(found) - 2} assignments in source/. Next: its README.md")
    elif kind == "gradescope":
        for number, name in gradescope.names(labs or registry.labs()).items():
            made = gradescope.autograder(number, allow_unsandboxed, index)
            tree.to_zip(made, folder / name)
            (folder / name).chmod(0o600)
            print(folder / name)
    else:
        raise ValueError(f"release {kind!r} is unknown; there are zip, nbgrader and gradescope")


def _number(word: str) -> int:
    if not word.isdigit():
        raise ValueError(f"--lab {word!r} is no number; say it as in --lab 04")
    return int(word)
