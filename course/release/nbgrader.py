"""A course folder for nbgrader: source/, and a configuration that suits these notebooks.

nbgrader's limits stay: its tests run in the student's own kernel, so code that means to can give
itself marks (docs/grading.md). Collect with nbgrader and grade with ``course grade`` where marks
count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from course.pins import ROOT
from course.practice import registry
from course.release.tree import Tree, notebooks

LINK = re.compile(r"\[([^\]]+)\]\(\.\./(?:notebooks|solutions|exercises)/[^)]+\)")
KERNEL_START = 120  # s, on a machine that a class shares
SLOWER = 4  # such a machine against the one that a probe's limit was set for

CONFIG = '''\
"""nbgrader's configuration for this course. Read by `nbgrader` in this folder."""

import os

from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ComputeChecksums,
    IncludeHeaderFooter,
    LockCells,
    SaveCells,
)

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "paged-attention"

# The notebooks in source/ are what students get: their answer cells hold what is given, such as
# signatures and docstrings. Left in the list, ClearSolutions would replace these by a bare stub.
c.GenerateAssignment.preprocessors = [
    IncludeHeaderFooter,
    LockCells,
    ClearOutput,
    CheckCellMetadata,
    ComputeChecksums,
    SaveCells,
    ClearHiddenTests,
    ClearMarkScheme,
    ComputeChecksums,
    CheckCellMetadata,
]

# nbgrader stops a cell after 30 s unless told otherwise. The slowest check may take {limit} s here.
c.ExecutePreprocessor.timeout = {limit}
c.Execute.timeout = {limit}
c.ExecutePreprocessor.startup_timeout = {start}
c.Execute.startup_timeout = {start}
c.ExecutePreprocessor.iopub_timeout = 60
# A cell that takes too long is a cell that does not pass; the others are still graded.
c.Execute.interrupt_on_timeout = True

# A passed answer is saved to the learner's own engine, and later labs bring it from there. While
# grading there is nothing to save to, or one student's answers would be brought to the next.
os.environ["COURSE_MY_ENGINE"] = os.path.join(os.devnull, "nobody")
os.environ.setdefault("OMP_NUM_THREADS", "1")
'''

README = """\
# The labs as an nbgrader course

Assignments: {names}. The course itself must be installed for whoever runs the notebooks, students
and grader: `pip install -e PATH_OF_THE_COURSE`, in the environment of their kernel.

    cd {here}
    nbgrader generate_assignment {first}
    # hand out what is in release/, collect into submitted/STUDENT/{first}/
    nbgrader autograde {first}
    nbgrader generate_feedback {first}

nbgrader runs a student's code and the check in one kernel, as you: whoever wants to can give
themselves marks, and can read what you can read. It also does not notice a deleted check, and gives
nothing for a cell whose metadata are gone. Where marks count, use

    python -m course grade submitted --out results --lab {number}

which takes this same folder.
"""


def course_folder(labs: Sequence[int] | None = None, root: Path = ROOT) -> Tree:
    """The folder's files: one assignment a lab. ValueError: no such lab."""
    numbers = list(labs) if labs else list(registry.labs())
    tree: Tree = {}
    names = []
    for number in numbers:
        registry.lab(number)
        for path, content in notebooks("exercises", [number], root).items():
            name = Path(path).stem
            names.append(name)
            tree[f"source/{name}/{name}.ipynb"] = unlinked(content.decode()).encode()
    tree["nbgrader_config.py"] = CONFIG.format(limit=limit(numbers), start=KERNEL_START).encode()
    tree["README.md"] = README.format(
        names=", ".join(names), first=names[0], here="this folder", number=f"{numbers[0]:02d}"
    ).encode()
    return tree


def limit(labs: Sequence[int]) -> int:
    """Seconds that a cell may take: what the slowest check of these labs may, on a slow machine."""
    slowest = max(
        sum(probe.seconds for probe in exercise.probes)
        for number in labs
        for exercise in registry.lab(number)
    )
    return max(120, int(slowest * SLOWER))


def unlinked(text: str) -> str:
    """A notebook without links to lessons and solutions, which do not lie beside it here.

    The release that its metadata name stays: it is the same lab to whoever grades it.
    """
    book = json.loads(text)
    for cell in book["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        words = "".join(cell["source"])
        if cell.get("id") == "end":
            head, _, links = words.rpartition("\n")
            kept = [part for part in links.split(" · ") if "../solutions/" not in part]
            words = f"{head}\n{' · '.join(kept)}".rstrip()
        words = LINK.sub(r"\1", words)
        cell["source"] = words.splitlines(keepends=True)
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"
