"""What pages there are, and what leads where."""

from __future__ import annotations

import posixpath
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import yaml

from course.authoring import build as lessons
from course.authoring import glossary
from course.authoring.rules import headings_of
from course.authoring.source import read_header

LESSONS, LABS, SUMMARIES, DOCS = "Lessons", "Labs, solved", "One-page summaries", "More"


@dataclass
class Page:
    """One page. ``url`` is relative to the site's root; ``source`` is what it is made from."""

    url: str
    title: str
    label: str  # in the contents: "04 Block tables"
    section: str
    source: Path
    minutes: int = 0
    summary: str = ""
    body: str = ""
    headings: list[tuple[int, str, str]] = field(default_factory=list)
    downloads: list[tuple[str, str]] = field(default_factory=list)  # (words, url)
    elsewhere: list[tuple[str, str]] = field(default_factory=list)
    beside: list[tuple[str, str]] = field(default_factory=list)  # its lab, its summary
    scripts: list[str] = field(default_factory=list)

    @property
    def number(self) -> str:
        return self.label[:2] if self.label[:2].isdigit() else ""

    def to(self, url: str) -> str:
        """A link from this page to another address of the site."""
        path, mark, part = url.partition("#")
        return posixpath.relpath(path, posixpath.dirname(self.url) or ".") + mark + part


class Map:
    """All pages of a site, in the order of its contents."""

    def __init__(self, root: Path):
        self.root = root
        self.pages: list[Page] = []
        self.problems: list[str] = []
        self._by_source: dict[str, str] = {}
        headers = {path.stem: read_header(path) for path in lessons.sources(root)}
        for stem, header in headers.items():
            book = root / "notebooks" / f"{stem}.ipynb"
            label = f"{stem[:2]} {header['title']}"
            facts = {"minutes": header["minutes"], "summary": header["summary"]}
            self._add(Page(f"notebooks/{stem}.html", label, label, LESSONS, book, **facts))
        for path in sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb")):
            title = headers[path.stem]["title"] if path.stem in headers else path.stem
            label = f"{path.stem[:2]} {title}"
            self._add(Page(f"labs/{path.stem}.html", f"Lab {label}", label, LABS, path))
            self._by_source[f"exercises/{path.name}"] = f"labs/{path.stem}.html"
        for stem, header in headers.items():
            source = root / "course" / "lessons" / f"{stem}.py"
            label = f"{stem[:2]} {header['title']}"
            title = f"{label}, on one page"
            self._add(Page(f"summaries/{stem}.html", title, label, SUMMARIES, source))
        documents = [root / "README.md", root / glossary.PAGE, root / "docs" / "architecture.md"]
        documents += [
            path
            for path in sorted((root / "docs").glob("**/*.md"))
            # JupyterLab leaves copies of what was looked at in folders such as .ipynb_checkpoints.
            if path not in documents
            and not any(p.startswith(".") for p in path.relative_to(root).parts)
        ]
        documents.append(root / "CONTRIBUTING.md")
        for path in documents:
            if path.exists():
                title = next((words for _, words in headings_of(path.read_text("utf-8"))), "")
                title = re.sub(r"[`*]", "", title) or path.stem
                at = path.relative_to(root).with_suffix(".html")
                url = f"docs/{at.name.lower()}" if len(at.parts) == 1 else at.as_posix()
                label = {"README.html": "Set it up", "CONTRIBUTING.html": "Contributing"}
                self._add(Page(url, title, label.get(at.as_posix(), title), DOCS, path))
        home = Page("index.html", "Start", "Start", "", root / "README.md")
        search = Page("search.html", "Search", "Search", "", root / "README.md")
        self.pages += [home, search]
        self.extra = {"LICENSE": "LICENSE.txt", "LICENSE-TEXT": "LICENSE-TEXT.txt"}
        self.extra = {a: b for a, b in self.extra.items() if (root / a).exists()}
        self.pictures: dict[str, str] = {}  # pictures of documents: file -> address

    def _add(self, page: Page) -> None:
        self.pages.append(page)
        self._by_source[page.source.relative_to(self.root).as_posix()] = page.url

    def of(self, section: str) -> list[Page]:
        return [page for page in self.pages if page.section == section]

    def contents(self) -> list[tuple[str, list[Page]]]:
        names = (LESSONS, LABS, SUMMARIES, DOCS)
        return [(name, self.of(name)) for name in names if self.of(name)]

    def beside(self, page: Page) -> tuple[Page | None, Page | None]:
        """The pages before and after it, in its own section."""
        row = self.of(page.section) if page.section else [page]
        place = row.index(page)
        return (row[place - 1] if place else None, row[place + 1] if row[place + 1 :] else None)

    def numbered(self, section: str, number: str) -> Page | None:
        return next((p for p in self.of(section) if number and p.number == number), None)

    def resolver(self, page: Page):
        """How the links of a page's source are written on the page."""

        def resolve(target: str) -> str | None:
            if re.match(r"[a-z][a-z0-9+.-]*:", target) or target.startswith("#"):
                return target
            path, mark, part = unquote(target).partition("#")
            file = (page.source.parent / path).resolve()
            if not file.is_relative_to(self.root.resolve()) or not file.exists():
                self.problems.append(f"{page.url}: the link {target} leads nowhere")
                return None
            inside = file.relative_to(self.root.resolve()).as_posix()
            if inside in self._by_source:
                return page.to(self._by_source[inside] + mark + part)
            if inside in self.extra:
                return page.to(self.extra[inside])
            if file.suffix.lower() in (".svg", ".png", ".gif", ".jpg", ".webp", ".webm"):
                self.pictures[inside] = f"pictures/{inside.replace('/', '-')}"
                return page.to(self.pictures[inside])
            repository = repository_url(self.root)
            return f"{repository}/blob/HEAD/{inside}" if repository else None

        return resolve


def repository_url(root: Path) -> str:
    """Where the course is kept, if pyproject.toml or CITATION.cff says so; else nothing."""
    table = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("project", {})
    urls = {name.lower(): url for name, url in table.get("urls", {}).items()}
    found = urls.get("repository") or urls.get("source") or ""
    citation = root / "CITATION.cff"
    if not found and citation.exists():
        found = yaml.safe_load(citation.read_text("utf-8")).get("repository-code", "")
    return str(found).rstrip("/").removesuffix(".git")


def elsewhere(root: Path, inside: str) -> list[tuple[str, str]]:
    """(words, address) of places that open a notebook, for a repository that they can reach."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", repository_url(root))
    if not match:
        return []
    at = match[1]
    return [
        ("Read on nbviewer", f"https://nbviewer.org/github/{at}/blob/HEAD/{inside}"),
        ("Run in Colab", f"https://colab.research.google.com/github/{at}/blob/HEAD/{inside}"),
        ("Run on Binder", f"https://mybinder.org/v2/gh/{at}/HEAD?labpath={inside}"),
    ]
