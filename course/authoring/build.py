"""Sources to notebooks: build them, or check that those stored are what the sources give.

Labs, which give two notebooks from one source, have a reader and a page of their own (labs.py) in
front of the same ``tidy``, ``carry``, ``write`` and ``compare``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

import course
from course.authoring import glossary, numbers, outputs, rules
from course.authoring.execute import CellFailed, execute
from course.authoring.page import Entry, assemble
from course.authoring.source import Lesson, SourceError, read_header, read_lesson

ROOT = Path(course.__file__).resolve().parents[1]


@dataclass
class Report:
    """What came of one source. ``failure``: nothing was written; ``problems``: broken rules."""

    name: str
    written: bool = False
    failure: str = ""
    diff: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # worth saying, and nothing wrong

    @property
    def ok(self) -> bool:
        return not (self.failure or self.diff or self.problems)


def sources(root: Path = ROOT, only: tuple[str, ...] = ()) -> list[Path]:
    """The lesson sources, in order; ``only``: starts of file names, such as "04"."""
    found = sorted((root / "course" / "lessons").glob("[0-9][0-9]_*.py"))
    return [path for path in found if not only or path.stem.startswith(only)]


def orphans(root: Path = ROOT) -> list[Path]:
    """Notebooks that no source gives."""
    known = {path.stem for path in sources(root)}
    return [p for p in sorted((root / "notebooks").glob("*.ipynb")) if p.stem not in known]


def build_lesson(
    path: Path,
    root: Path = ROOT,
    run: bool = True,
    timeout: int = 120,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Build one notebook and write it, whole or not at all.

    ``run=False`` keeps the stored outputs and refuses when code has changed since they were made.
    ``on_cell`` is called with (cells done, cells in all). Broken rules are reported after writing,
    so that the page can be looked at while it is mended.
    """
    report = Report(path.stem)
    target = root / "notebooks" / f"{path.stem}.ipynb"
    try:
        lesson, book = _assemble(path, root)
        if run:
            target.parent.mkdir(exist_ok=True)
            total = len(book.cells)
            book = execute(book, target.parent, timeout, lambda done: on_cell(done + 1, total))
            report.problems += tidy(book, root)
        elif not target.exists():
            raise SourceError(f"{target.name} was never built; build it with --execute.")
        elif stale := carry(book, nbformat.read(target, as_version=4), root):
            raise SourceError(f"code changed since the last run ({', '.join(stale)}): --execute.")
        finish(lesson, book)
        report.problems += [*rules.broken(book, target.parent, root), *_unknown(lesson, root)]
        report.written = write(book, target)
    except (SourceError, numbers.NumberError, CellFailed) as error:
        report.failure = str(error)
    return report


def check_lesson(path: Path, root: Path = ROOT) -> Report:
    """Build without running, write nothing, and say where the stored notebook differs."""
    report = Report(path.stem)
    target = root / "notebooks" / f"{path.stem}.ipynb"
    try:
        lesson, book = _assemble(path, root)
        if not target.exists():
            raise SourceError(f"{target.name} was never built.")
        stored = nbformat.read(target, as_version=4)
        carry(book, stored, root)
        finish(lesson, book, strict=False)
        report.problems += [*rules.broken(stored, target.parent, root), *_unknown(lesson, root)]
        if text(book) != target.read_text(encoding="utf-8"):
            report.diff = compare(stored, book)
    except (SourceError, numbers.NumberError, nbformat.reader.NotJSONError) as error:
        report.failure = str(error)
    return report


def _assemble(path: Path, root: Path) -> tuple[Lesson, NotebookNode]:
    headers = {path: read_header(path) for path in sources(root)}
    others = {
        int(p.stem[:2]): Entry(p.stem, h["title"], h["minutes"], h["summary"])
        for p, h in headers.items()
    }
    lab = next(iter((root / "course" / "labs").glob(f"{path.stem[:2]}_*.py")), None)
    lesson = read_lesson(path)
    return lesson, assemble(lesson, others, lab, glossary.by_form(glossary.read(root)))


def _unknown(lesson: Lesson, root: Path) -> list[str]:
    """Bold words that the glossary lacks, if the course has one."""
    forms = glossary.by_form(glossary.read(root))
    prose = [cell for cell in lesson.cells if cell.kind == "markdown" and forms]
    return [f"cell {c.id!r}: {said}" for c in prose for said in glossary.unknown(c.text, forms)]


def tidy(book: NotebookNode, root: Path) -> list[str]:
    """Normalise every cell's outputs in place; return what should not have been in them."""
    problems = []
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, notes = outputs.normalise(cell.outputs, root)
            ignored = "nbval-ignore-output" in cell.metadata.get("tags", [])
            for note in notes:
                if note != "widget":
                    problems.append(f"cell {cell.id!r}: {note}")
                elif not ignored:
                    problems.append(
                        f'cell {cell.id!r} shows a widget: write # %% tags=["nbval-ignore-output"]'
                    )
    return problems


def carry(book: NotebookNode, stored: NotebookNode, root: Path) -> list[str]:
    """Take over outputs of code that has not changed; return the ids of code that has."""
    old = {cell.id: cell for cell in stored.cells if cell.cell_type == "code"}
    stale = []
    for cell in book.cells:
        if cell.cell_type == "code":
            if cell.id in old and old[cell.id].source == cell.source:
                cell.outputs, _ = outputs.normalise(old[cell.id].outputs, root)
            else:
                stale.append(cell.id)
    return stale


def finish(lesson: Lesson, book: NotebookNode, strict: bool = True) -> None:
    """Count the code cells and set the numbers into the prose, with a mark where each stands.

    ``strict=False`` leaves the places of numbers that have no stored value as they were written.
    """
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    wanted = numbers.computed_in([c.text for c in lesson.cells if c.kind == "markdown"])
    values: dict[str, str] = {}
    if wanted:
        values = {n.label: f"{{{{ {n.label} }}}}" for n in wanted}
        try:
            values = numbers.read_values(wanted, printed(book))
        except numbers.NumberError:
            if strict:
                raise
    written = {cell.id for cell in lesson.cells if cell.kind == "markdown"}
    for cell in book.cells:
        if cell.id in written:
            cell.source, marks = numbers.render(cell.source, values)
            if marks:
                cell.metadata["course"] = {"numbers": marks}


def printed(book: NotebookNode) -> str:
    """What the last code cell printed, the one with the numbers."""
    cell = next((cell for cell in book.cells if cell.id == numbers.CELL_ID), None)
    streams = [o.text for o in (cell.outputs if cell else []) if o.output_type == "stream"]
    return "".join(streams)


def text(book: NotebookNode) -> str:
    """The file, as it is stored."""
    return nbformat.writes(book).rstrip("\n") + "\n"


def write(book: NotebookNode, target: Path) -> bool:
    """Replace the file in one step, only if something changed. True: it did."""
    nbformat.validate(book)
    new = text(book)
    if target.exists() and target.read_text(encoding="utf-8") == new:
        return False
    beside = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        beside.write_text(new, encoding="utf-8")
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    return True


def compare(stored: NotebookNode, built: NotebookNode) -> str:
    """A diff by cells, to be read by a person."""
    before, after = _readable(stored), _readable(built)
    if before == after:
        before, after = text(stored).splitlines(), text(built).splitlines()
    return "\n".join(difflib.unified_diff(before, after, "stored", "from the source", lineterm=""))


def _readable(book: NotebookNode) -> list[str]:
    lines = []
    for cell in book.cells:
        tags = " ".join(cell.metadata.get("tags", []))
        lines += [f"[{cell.cell_type} {cell.id}] {tags}".rstrip(), *cell.source.splitlines(), ""]
    return lines
