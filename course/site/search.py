"""The search index: one entry a section of each page, loaded as a script, so also from a disk."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from course.site.pages import Page

SKIPPED = {"pre", "svg", "script", "style", "table"}  # code and numbers are not what is looked for


class _Sections(HTMLParser):
    """Text by section: starts anew at each heading of level 1 to 3."""

    def __init__(self):
        super().__init__()
        self.found: list[list[str]] = [["", "", ""]]  # [id, heading, text]
        self._skip = 0
        self._heading = False

    def handle_starttag(self, tag, attrs):
        if tag in SKIPPED:
            self._skip += 1
        elif tag in ("h1", "h2", "h3"):
            self.found.append([dict(attrs).get("id") or "", "", ""])
            self._heading = True

    def handle_endtag(self, tag):
        if tag in SKIPPED:
            self._skip -= 1
        elif tag in ("h1", "h2", "h3"):
            self._heading = False
        self.found[-1][2] += " " if tag in ("p", "li", "td", "summary", "dd", "figcaption") else ""

    def handle_data(self, data):
        if not self._skip:
            self.found[-1][1 if self._heading else 2] += data


def entries(page: Page) -> list[tuple[str, str, str, str]]:
    """(page title, heading, address, text) of each section."""
    parser = _Sections()
    parser.feed(page.body)
    found = []
    for part, heading, text in parser.found:
        words = re.sub(r"\s+", " ", text).strip()
        if heading or words:
            address = page.url + (f"#{part}" if part else "")
            found.append((page.title, heading.strip(), address, words))
    return found


def script(pages: list[Page]) -> str:
    index = [entry for page in pages for entry in entries(page)]
    packed = json.dumps(index, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"window.courseIndex = {packed};\n"
