"""Exercise notebooks are the learner's: an update keeps theirs and puts the new one beside it.

    python -m course.practice.keep NEW_FOLDER MY_FOLDER

A built notebook carries a fingerprint of its cells. One whose cells no longer match it, or that
holds outputs, is somebody's work and is never written over. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.practice.my_engine import write_whole


@dataclass(frozen=True)
class Put:
    """What became of a new notebook. state: "written", "unchanged", "kept" (theirs comes from the
    same release, there is nothing new) or "beside" (theirs kept, the new one is at ``path``)."""

    path: Path
    state: str


def fingerprint(book: dict[str, Any]) -> str:
    """Of the cells' ids, kinds and texts; outputs and settings of a front end do not count."""
    cells = []
    for cell in book.get("cells", []):
        source = cell.get("source", "")
        source = "".join(source) if isinstance(source, list) else source
        cells.append([cell.get("id"), cell.get("cell_type"), source])
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def release_of(book: dict[str, Any]) -> str:
    """The fingerprint that it was built with; empty for what the build did not make."""
    return str(book.get("metadata", {}).get("course", {}).get("release", ""))


def is_theirs(book: dict[str, Any]) -> bool:
    """Whether somebody worked in it: a cell changed, came or went, or was run."""
    ran = any(cell.get("outputs") for cell in book.get("cells", []))
    return ran or fingerprint(book) != release_of(book)


def put(new: str, target: Path) -> Put:
    """Put a new notebook (the text of its file) at ``target``, or beside it if that is theirs."""
    if not target.exists():
        write_whole(target, new)
        return Put(target, "written")
    old = target.read_bytes()
    if old == new.encode():
        return Put(target, "unchanged")
    try:
        there = json.loads(old)
        theirs = is_theirs(there)
    except (ValueError, AttributeError):
        there, theirs = {}, True  # damaged, and still not ours to throw away
    if not theirs:
        write_whole(target, new)
        return Put(target, "written")
    if release_of(there) == release_of(json.loads(new)):
        return Put(target, "kept")
    return put_beside(new, target)


def put_beside(new: str, target: Path) -> Put:
    """``04_block_tables.new.ipynb``, or new2, new3, ... where that was worked in, too."""
    for number in range(1, 1000):
        beside = target.with_name(f"{target.stem}.new{number if number > 1 else ''}.ipynb")
        if beside.exists():
            if beside.read_bytes() == new.encode():
                return Put(beside, "beside")
            try:
                if is_theirs(json.loads(beside.read_bytes())):
                    continue
            except (ValueError, AttributeError):
                continue
        write_whole(beside, new)
        return Put(beside, "beside")
    raise FileExistsError(f"there are a thousand new versions beside {target}: remove some")


def update(new_folder: Path, my_folder: Path) -> list[Put]:
    """Bring all notebooks of a new release into a learner's exercises folder."""
    my_folder.mkdir(parents=True, exist_ok=True)
    found = []
    for path in sorted(new_folder.glob("[0-9][0-9]_*.ipynb")):
        if not re.search(r"\.new\d*\.ipynb$", path.name):
            found.append(put(path.read_text(encoding="utf-8"), my_folder / path.name))
    return found


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m course.practice.keep NEW_EXERCISES MY_EXERCISES")
    new_folder, my_folder = map(Path, sys.argv[1:])
    if not new_folder.is_dir():
        sys.exit(f"there is no folder {new_folder}")
    words = {
        "written": "new",
        "unchanged": "as before",
        "kept": "yours, nothing new",
        "beside": "yours is kept; the new one is beside it",
    }
    for found in update(new_folder, my_folder):
        print(f"{os.path.relpath(found.path, my_folder)}: {words[found.state]}")


if __name__ == "__main__":
    main()
