"""Build the site: every page, its assets, its index; then read it again for what is broken."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import nbformat
from markupsafe import Markup
from nbformat import NotebookNode

from course.authoring import glossary, labs
from course.authoring.build import ROOT, text
from course.authoring.source import read_lesson
from course.site import check, frames, notebook, pages, search, style, summary
from course.site.markdown import Renderer
from course.site.pages import DOCS, LABS, LESSONS, SUMMARIES, Map, Page

HERE = Path(__file__).parent
COURSE = "Paged attention"
MARK = "course-site"  # a file that says: this folder is ours to replace


@dataclass
class Report:
    """``problems``: what is broken; ``notes``: what a reader misses, such as a still figure."""

    folder: Path
    num_pages: int = 0
    num_films: int = 0
    num_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def build(
    out: Path,
    root: Path = ROOT,
    moving: Callable[[str], bool] = lambda stem: True,
    on_page: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Report:
    """Write the site to ``out``, in one step: an old one stays until the new one is whole.

    ``moving``: whether a lesson's widgets get their positions, by the stem of its file (two of
    them run the model, which takes some seconds). ValueError if ``out`` holds other things.
    """
    out = out.resolve()
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).exists())):
        raise ValueError(f"{out} holds something that is no site; choose an empty or new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    report = Report(out)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".site-") as made:
        folder = Path(made) / "site"
        folder.mkdir()
        Maker(folder, root, report).make(moving, on_page)
        report.problems += check.broken(folder)
        report.num_bytes = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        if out.exists():
            shutil.rmtree(out)
        os.replace(folder, out)
    return report


def errors_in(book: NotebookNode, stem: str) -> list[str]:
    """A note for each cell that shows an error: somebody has worked in it and saved it."""
    return [
        f"{stem}, cell {number}: it shows {output.ename}, as the notebook was saved; run it again, "
        f"or bring the notebook back with `git checkout notebooks/{stem}.ipynb`"
        for number, cell in enumerate(book.cells, start=1)
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]


class Maker:
    """One build of the site into an empty folder."""

    def __init__(self, folder: Path, root: Path, report: Report):
        self.folder, self.root, self.report = folder, root, report
        self.map = Map(root)
        self.terms = glossary.read(root)
        self.jinja = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            trim_blocks=False,
            undefined=jinja2.StrictUndefined,
        )

    def make(self, moving, on_page) -> None:
        every = self.map.pages
        makers = {LABS: self.lab, SUMMARIES: self.summary, DOCS: self.document}
        for done, page in enumerate(every):
            on_page(done, len(every), page.label)
            if page.section in (LESSONS, LABS) and not page.source.exists():
                raise ValueError(f"{page.source} was never built: python -m course build")
            if page.section == LESSONS:
                self.lesson(page, moving(page.source.stem))
            elif page.section:
                makers[page.section](page)
        self.home(next(page for page in every if page.url == "index.html"))
        searched = [page for page in every if page.section != SUMMARIES and page.body]
        self.write("assets/search-index.js", search.script(searched))
        self.search(next(page for page in every if page.url == "search.html"))
        for page in every:
            self.write(page.url, self.framed(page))
        self.assets()
        self.report.num_pages = len(every)
        self.report.problems += self.map.problems

    # ---- Pages ----------------------------------------------------------------------------------

    def lesson(self, page: Page, moves: bool) -> None:
        book = nbformat.read(page.source, as_version=4)
        stem = page.source.stem
        self.report.notes += errors_in(book, stem)
        found: dict[str, frames.Film] = {}
        if moves:
            found, notes = frames.films(book, page.source.parent)
            self.report.notes += [f"{stem}, {note}" for note in notes]
        if found:
            page.scripts.append(f"assets/films/{stem}.js")
            self.write(page.scripts[0], frames.script(stem, found))
            self.report.num_films += len(found)
        self.write(f"notebooks/{stem}.ipynb", page.source.read_text(encoding="utf-8"))
        page.downloads.append(("Download this notebook", f"notebooks/{stem}.ipynb"))
        page.elsewhere = pages.elsewhere(self.root, f"notebooks/{stem}.ipynb")
        self.besides(page, LABS, f"Lab {page.number}, solved")
        self.besides(page, SUMMARIES, "On one page")
        self.cells(page, notebook.lesson(book), set(found))

    def lab(self, page: Page) -> None:
        stem = page.source.stem
        source = self.root / "course" / "labs" / f"{stem}.py"
        stubs = labs.assemble(labs.read_lab(source), solved=False, root=self.root)
        # Not the file in exercises/: somebody may have worked in it.
        self.write(f"exercises/{stem}.ipynb", text(stubs))
        self.write(f"solutions/{stem}.ipynb", page.source.read_text(encoding="utf-8"))
        page.downloads.append(("Download the lab", f"exercises/{stem}.ipynb"))
        page.downloads.append(("Download it solved", f"solutions/{stem}.ipynb"))
        page.elsewhere = pages.elsewhere(self.root, f"exercises/{stem}.ipynb")
        self.besides(page, LESSONS, f"Lesson {page.number}")
        solved = nbformat.read(page.source, as_version=4)
        self.cells(page, notebook.lab(solved, stubs), set())

    def cells(self, page: Page, book: NotebookNode, moving: set[str]) -> None:
        renderer = Renderer(self.map.resolver(page))
        page.body = notebook.to_html(book, renderer, moving)
        page.headings = renderer.headings

    def besides(self, page: Page, section: str, words: str) -> None:
        if other := self.map.numbered(section, page.number):
            page.beside.append((words, other.url))

    def summary(self, page: Page) -> None:
        lesson = read_lesson(page.source)
        path = self.root / "notebooks" / f"{lesson.stem}.ipynb"
        book = nbformat.read(path, as_version=4)
        # The links of a lesson's text are written as from its notebook.
        beside = Page(page.url, "", "", "", path)
        renderer = Renderer(self.map.resolver(beside))
        made = summary.summarise(lesson, book, self.terms, renderer)
        page.summary = lesson.summary
        made.objectives = [Markup(goal) for goal in made.objectives]
        for name in ("formulas", "takeaways", "figure", "caption"):
            setattr(made, name, Markup(getattr(made, name)))
        self.besides(page, LESSONS, "The whole lesson")
        page.body = self.render("summary.html.j2", page=page, to=page.to, **vars(made),
                                summary=lesson.summary.rstrip("."))  # fmt: skip

    def document(self, page: Page) -> None:
        renderer = Renderer(self.map.resolver(page))
        page.body = f'<div class="prose">\n{renderer.render(page.source.read_text("utf-8"))}</div>'
        page.headings = renderer.headings

    def home(self, page: Page) -> None:
        readme = page.source.read_text(encoding="utf-8") if page.source.exists() else f"# {COURSE}"
        renderer = Renderer(self.map.resolver(page))
        intro = renderer.render(re.split(r"^## ", readme, flags=re.MULTILINE)[0])
        page.title = re.sub(r"<[^>]*>", "", renderer.headings[0][2])
        rows = [
            (
                lesson,
                self.map.numbered(LABS, lesson.number),
                self.map.numbered(SUMMARIES, lesson.number),
            )
            for lesson in self.map.of(LESSONS)
        ]
        documents = self.map.of(DOCS)
        setup = next((p for p in documents if p.url == "docs/readme.html"), None)
        hours = round(sum(lesson.minutes for lesson, _, _ in rows) / 60)
        page.body = self.render(
            "home.html.j2", intro=Markup(intro), rows=rows, documents=documents,
            setup=setup, hours=hours,
        )  # fmt: skip

    def search(self, page: Page) -> None:
        page.scripts += ["assets/search-index.js", "assets/search.js"]
        page.body = self.render("search.html.j2")

    # ---- Around and beside ----------------------------------------------------------------------

    def framed(self, page: Page) -> str:
        before, after = self.map.beside(page)
        row = self.map.of(page.section) if page.section else []
        place = f"{row.index(page) + 1} of {len(row)}" if page.section == LESSONS else ""
        parts = [(i, Markup(words)) for level, i, words in page.headings if level == 2]
        return self.render(
            "page.html.j2", page=page, to=page.to, course=COURSE, body=Markup(page.body),
            before=before, after=after, contents=self.map.contents(), place=place, parts=parts,
            summaries=SUMMARIES, licences=len(self.map.extra) == 2,
        )  # fmt: skip

    def render(self, template: str, **names) -> str:
        return self.jinja.get_template(template).render(**names)

    def assets(self) -> None:
        self.write("assets/site.css", style.sheet())
        for script in sorted((HERE / "assets").glob("*.js")):
            self.write(f"assets/{script.name}", script.read_text(encoding="utf-8"))
        for inside, url in [*self.map.extra.items(), *self.map.pictures.items()]:
            target = self.folder / url
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / inside, target)
        self.write(MARK, "Made by `python -m course site`, which replaces this folder.\n")

    def write(self, url: str, words: str) -> None:
        path = self.folder / url
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words, encoding="utf-8")
