"""Files of a release, as path -> content, and how they get into a folder or a zip file."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from course.pins import ROOT
from course.practice.my_engine import write_whole

Tree = dict[str, bytes]
EXECUTABLE = ("setup.sh", "run_autograder")
LONG_AGO = (2026, 1, 1, 0, 0, 0)  # of every member, so that equal contents give equal files
LEFT_BEHIND = re.compile(r"__pycache__|\.ipynb_checkpoints|\.py[co]$|^\.|/\.|~$|\.new\d*\.ipynb$")


def package(parts: Iterable[str], root: Path = ROOT) -> Tree:
    """``course/`` with these of its modules and packages, and the files that set it up.

    FileNotFoundError: there is no such part.
    """
    found: Tree = {}
    for part in parts:
        path = root / "course" / part
        if path.is_dir():
            found |= folder(path, f"course/{part}")
        else:
            found[f"course/{part}"] = path.read_bytes()
    for name in ("pyproject.toml", "constraints.txt", "requirements-model.txt", "README.md",
                 "LICENSE", "LICENSE-TEXT"):  # fmt: skip
        found[name] = (root / name).read_bytes()
    return found


def folder(path: Path, name: str) -> Tree:
    """All files below a folder, under ``name``; links and hidden files are left behind."""
    found = {}
    for inner in sorted(path.rglob("*")):
        below = inner.relative_to(path).as_posix()
        if inner.is_file() and not inner.is_symlink() and not LEFT_BEHIND.search(below):
            found[f"{name}/{below}"] = inner.read_bytes()
    return found


def notebooks(kind: str, labs: Iterable[int] | None = None, root: Path = ROOT) -> Tree:
    """``kind`` is exercises, notebooks or solutions; ``labs``: only these numbers.

    FileNotFoundError: one of them was never built.
    """
    there = {int(p.name[:2]): p for p in (root / kind).glob("[0-9][0-9]_*.ipynb")
             if not LEFT_BEHIND.search(p.name)}  # fmt: skip
    wanted = sorted(there) if labs is None else list(labs)
    if lacking := [number for number in wanted if number not in there]:
        numbers = ", ".join(f"{number:02d}" for number in lacking)
        raise FileNotFoundError(
            f"{kind}/ has no notebook of lab {numbers}: run `python -m course build --labs`"
        )
    return {f"{kind}/{there[n].name}": there[n].read_bytes() for n in wanted}


def to_folder(tree: Tree, target: Path) -> None:
    """FileExistsError: something else is there already; nothing was written."""
    taken = [name for name, content in tree.items()
             if (target / name).exists() and (target / name).read_bytes() != content]  # fmt: skip
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise FileExistsError(
            f"{target / taken[0]}{more} is there and differs: name a new folder, or remove it"
        )
    for name, content in tree.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        if path.name in EXECUTABLE:
            path.chmod(0o755)


def to_zip(tree: Tree, target: Path) -> None:
    """One zip file, in one step; the same tree gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(tree.items()):
            member = zipfile.ZipInfo(name, LONG_AGO)
            member.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if Path(name).name in EXECUTABLE else 0o644
            member.external_attr = (0o100000 | mode) << 16
            archive.writestr(member, content)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, buffer.getvalue())
