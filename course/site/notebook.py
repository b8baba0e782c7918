"""Notebooks to HTML: nbconvert walks the cells, templates/course says what becomes of each.

Before that a lesson loses what the page says anyway (where the reader is, what comes next), and a
lab's answers move under a fold, below the stub that a learner starts from.
"""

from __future__ import annotations

import re
from pathlib import Path

from nbconvert.exporters import TemplateExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from traitlets.config import Config

from course.authoring.rules import only_asks
from course.show.guesses import NOBODY
from course.site.markdown import Renderer, coloured

TEMPLATES = Path(__file__).parent / "templates"
HERE = re.compile(r"^.*\*\*You are here: .*\n*", re.MULTILINE)
THINK = "Think of an answer before you read on."
NO_GUESS = " No guess was stored."  # of course not: there is no kernel


class CellExporter(TemplateExporter):
    """nbconvert with the course's template: the cells of a notebook, without a page around."""

    def __init__(self, renderer: Renderer):
        order = ["text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain"]
        config = Config({"NbConvertBase": {"display_data_priority": order}})
        super().__init__(
            config=config,
            template_name="course",
            extra_template_basedirs=[str(TEMPLATES)],
            file_extension=".html",
        )
        self.register_filter("markdown2html", renderer.render)
        self.register_filter("coloured", coloured)


def to_html(book: NotebookNode, renderer: Renderer, moving: set[str]) -> str:
    """The cells as HTML. ``moving``: ids of cells whose widget has a film."""
    exporter = CellExporter(renderer)
    html, _ = exporter.from_notebook_node(book, resources={"moving": moving})
    return html.replace(NOBODY, THINK).replace(NO_GUESS, "")


def lesson(book: NotebookNode) -> NotebookNode:
    """A lesson as it is read: without its own navigation, answers and checks folded."""
    book.cells = [cell for cell in book.cells if cell.id != "end"]
    for cell in book.cells:
        _site(cell)
        if cell.id == "top":
            cell.source = HERE.sub("", cell.source)
        elif cell.cell_type == "code" and cell.metadata.get("jupyter", {}).get("source_hidden"):
            asks = only_asks(cell.source)
            cell.metadata.site["fold"] = "The code of these questions" if asks else "The code"
    return book


def lab(solved: NotebookNode, stubs: NotebookNode) -> NotebookNode:
    """A solved lab as it is read: each task with its stub and hints, the rest under a fold."""
    stub = {cell.id: cell.source for cell in stubs.cells if cell.id.endswith("-answer")}
    cells, hints, numbers = [], {}, {}
    for cell in solved.cells:
        _site(cell)
        if cell.id.endswith("-hints"):
            hints[cell.id.removesuffix("-hints")] = cell
        elif cell.id.endswith("-title") and (found := re.match(r"## (\S+)", cell.source)):
            numbers[cell.id.removesuffix("-title")] = found[1]
    for cell in solved.cells:
        key, _, part = cell.id.rpartition("-")
        if cell.id == "end" or (part == "hints" and key in hints):
            continue
        if cell.id == "top":
            cell.source = re.sub(r", solved$", "", cell.source, count=1, flags=re.MULTILINE)
            cell.source = cell.source.replace(
                "Here every exercise is solved, with the reason and a wrong version that many "
                "write. Nothing is saved from this notebook.",
                "The answers are folded: each with its reason, and with a wrong version that many "
                "write. To work on the lab, download it.",
            )
        if part == "answer" and key in hints:
            start = new_markdown_cell(f"```python\n{stub.get(cell.id, '')}\n```", id=f"{key}-stub")
            _site(start)
            cells += [start, hints[key]] if stub.get(cell.id) else [hints[key]]
            words = f"The answer to {numbers.get(key, 'this')}, and why"
            cell.metadata.site["open"] = (
                f'<details class="answer"><summary>{words}</summary>\n<div class="answer-in">'
            )
        if key in hints and part in ("answer", "check", "why", "wrong"):
            if cells and cells[-1].metadata.site.get("close"):
                cells[-1].metadata.site["close"] = ""
            cell.metadata.site["close"] = "</div></details>"
        cells.append(cell)
    solved.cells = cells
    return solved


def _site(cell: NotebookNode) -> None:
    cell.metadata.setdefault("site", NotebookNode())
