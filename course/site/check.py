"""Read a built site without a browser: what would not work, and what could not be read.

Each rule gives problems in words. tests/test_site_check.py proves that each can fail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

LOADS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src",
         "video": "src", "audio": "src", "object": "data", "embed": "src"}  # fmt: skip
EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source",
         "track", "wbr"}  # fmt: skip


@dataclass
class Seen:
    """What one page holds."""

    headings: list[tuple[int, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)  # (address, words)
    loads: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # pictures that say nothing
    labels: set[str] = field(default_factory=set)
    fields: list[tuple[str, str]] = field(default_factory=list)  # (id, label) of inputs
    styles: list[str] = field(default_factory=list)
    tags: Counter = field(default_factory=Counter)
    title: str = ""
    language: str = ""
    unclosed: list[str] = field(default_factory=list)


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = Seen()
        self._open: list[str] = []
        self._link: list[str] | None = None
        self._heading: list[str] | None = None
        self._title = False

    def handle_starttag(self, tag, attrs):
        seen, named = self.seen, {name: value or "" for name, value in attrs}
        seen.tags[tag] += 1
        if tag not in EMPTY:
            self._open.append(tag)
        if "id" in named:
            seen.ids.append(named["id"])
        if "style" in named and "url(" in named["style"]:
            seen.styles.append(named["style"])
        if tag in LOADS and named.get(LOADS[tag]):
            seen.loads.append(named[LOADS[tag]])
        seen.loads += [place.split()[0] for place in named.get("srcset", "").split(",") if place]
        if tag == "a" and "href" in named:
            self._link = [named["href"], named.get("aria-label", "")]
        elif re.fullmatch("h[1-6]", tag):
            self._heading = []
        elif tag == "img":
            if len(named.get("alt", "").strip()) < 10:
                seen.silent.append(f"<img> with alt={named.get('alt')!r}")
            if self._link:
                self._link[1] += named.get("alt", "")
        elif tag == "svg":
            hidden = named.get("aria-hidden") == "true"
            if not hidden and len(named.get("aria-label", "")) < 10:
                seen.silent.append("<svg> without a label")
        elif tag == "html":
            seen.language = named.get("lang", "")
        elif tag == "title":
            self._title = not seen.title
        elif tag == "label":
            seen.labels.add(named.get("for", ""))
        elif tag in ("input", "select", "textarea"):
            seen.fields.append((named.get("id", ""), named.get("aria-label", "")))

    def handle_endtag(self, tag):
        if tag in EMPTY:
            return
        if not self._open or self._open[-1] != tag:
            self.seen.unclosed.append(f"</{tag}> closes {self._open[-1:] or 'nothing'}")
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag == "a" and self._link:
            self.seen.links.append((self._link[0], " ".join(self._link[1].split())))
            self._link = None
        elif re.fullmatch("h[1-6]", tag) and self._heading is not None:
            self.seen.headings.append((int(tag[1]), "".join(self._heading).strip()))
            self._heading = None
        elif tag == "title":
            self._title = False

    def handle_data(self, data):
        if self._link:
            self._link[1] += data
        if self._heading is not None:
            self._heading.append(data)
        if self._title:
            self.seen.title += data
        if self._open[-1:] == ["style"]:
            self.seen.styles.append(data)


def read(page: Path) -> Seen:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    reader.close()
    reader.seen.unclosed += [f"<{tag}> is never closed" for tag in reader._open]
    return reader.seen


def broken(folder: Path) -> list[str]:
    """Everything that is wrong with a built site, page by page."""
    seen = {path: read(path) for path in sorted(folder.rglob("*.html"))}
    found = [] if seen else [f"{folder} holds no page"]
    for path, page in seen.items():
        name = path.relative_to(folder).as_posix()
        for rule in (structure, pictures, names):
            found += [f"{name}: {problem}" for problem in rule(page)]
        found += [f"{name}: {problem}" for problem in links(page, path, folder, seen)]
        found += [f"{name}: {problem}" for problem in loads(page, path, folder)]
    titles = Counter(page.title for page in seen.values())
    found += [f"{count} pages have the title {title!r}" for title, count in titles.items()
              if count > 1]  # fmt: skip
    for sheet in folder.rglob("*.css"):
        found += [f"{sheet.name} loads {used}" for used in outside(sheet.read_text("utf-8"))]
    return found


def structure(page: Seen) -> Iterator[str]:
    """A language, a title, one <main>, one h1, no level skipped, ids once, tags closed."""
    if not page.language:
        yield "does not say its language"
    if len(page.title.strip()) < 4:
        yield f"has the title {page.title!r}"
    if page.tags["main"] != 1:
        yield f"has {page.tags['main']} <main>"
    ones = [words for level, words in page.headings if level == 1]
    if len(ones) != 1:
        yield f"has {len(ones)} first-level headings {ones}"
    last = 0
    for level, words in page.headings:
        if level > last + 1:
            yield f"heading {words!r} skips from level {last} to {level}"
        if not words:
            yield f"has an empty heading of level {level}"
        last = level
    for name, count in Counter(page.ids).items():
        if count > 1:
            yield f"has the id {name!r} {count} times"
    yield from page.unclosed
    if not page.links or not page.links[0][0].startswith("#"):
        yield "does not begin with a link that skips to the text"


def pictures(page: Seen) -> Iterator[str]:
    """Every picture says in words what it shows."""
    yield from page.silent


def names(page: Seen) -> Iterator[str]:
    """Every link and every field has a name."""
    for address, words in page.links:
        if not words:
            yield f"the link to {address} has no words"
    for field_id, label in page.fields:
        if not label and field_id not in page.labels:
            yield f"the field {field_id!r} has no label"


def links(page: Seen, path: Path, folder: Path, every: dict[Path, Seen]) -> Iterator[str]:
    """Every link is relative and leads to a file of the site, every part to an id of its page."""
    for address, _ in page.links:
        if re.match(r"(https?|mailto):", address):
            continue  # a reader may go there; nothing is loaded from there
        if re.match(r"[a-z]+:|/", address):
            yield f"the link {address} is not relative"
            continue
        file, _, part = unquote(address).partition("#")
        target = (path.parent / file.partition("?")[0]).resolve() if file else path
        if not target.is_relative_to(folder.resolve()) or not target.is_file():
            yield f"the link {address} leads nowhere"
        elif part and part not in getattr(every.get(target) or every.get(path), "ids", ()):
            yield f"the link {address} names no part of its page"


def loads(page: Seen, path: Path, folder: Path) -> Iterator[str]:
    """Whatever a page loads comes with the site."""
    for address in page.loads:
        if address.startswith("data:"):
            continue
        if re.match(r"[a-z]+:|/", address):
            yield f"loads {address} from outside"
        elif not (path.parent / unquote(address)).resolve().is_file():
            yield f"loads {address}, which is not there"
    for style in page.styles:
        yield from (f"loads {used}" for used in outside(style))


def outside(sheet: str) -> list[str]:
    """What a style sheet loads, other than data within it."""
    found = re.findall(r"""url\(\s*["']?(?!data:|#)([^"')]+)""", sheet)
    return found + re.findall(r"@import\s+[^;]+", sheet)
