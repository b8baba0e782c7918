"""The words of the field: docs/glossary.md explains each, and the lessons link to it.

The build turns the first bold use of each term in each lesson into a link, so that authors write
``**block table**`` and nothing else. What is bold and no term is listed here in ``NOT_TERMS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = "docs/glossary.md"
FROM_NOTEBOOKS = "../" + PAGE
ENTRY = re.compile(
    r"^## (?P<name>.+)\n\n(?P<text>(?:.+\n)+)\n"
    r"\*\[Lesson (?P<lesson>\d\d)\]\(\.\./notebooks/(?P<stem>\w+)\.ipynb\)\."
    r"(?: Also: (?P<also>.+)\.)?\*$",
    re.MULTILINE,
)
# Code, places of numbers and links are stepped over; what is left in ** ** is bold.
BOLD = re.compile(
    r"(?P<ticks>`+)(?:(?!(?P=ticks)).|\n)*?(?P=ticks)(?!`)|\{\{.*?\}\}|\[[^\[\]]*\]\([^()]*\)"
    r"|\*\*(?=\S)(?P<words>[^*]+?)(?<=\S)\*\*",
    re.DOTALL,
)
# Bold for the eye, in small letters. Whole sentences (they end with a stop) need not be here.
NOT_TERMS = frozenset({
    # 00: what to do in a lesson
    "guess", "run", "trust", "build", "see where you stand",
    # 02: three ways to count
    "when it ends", "over its life", "over its life, each step counted once",
    # 04, 05, 08: phases of a step, which the entry "step" names
    "schedule", "write", "sample", "append", "read", "update",
    # 06, 07: what to remember of a paragraph
    "seats come from memory", "from its last to its first",
})  # fmt: skip


@dataclass(frozen=True)
class Term:
    """One entry. ``lesson``: the number of the one that explains it; ``forms``: in small letters,
    every way in which a lesson may write it."""

    name: str
    text: str
    lesson: int
    stem: str
    forms: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The fragment under which code hosts and the site find the entry's heading."""
        return anchor(self.name)


def anchor(heading: str) -> str:
    """A heading as a fragment, by the rule of code hosts: small letters, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def read(root: Path) -> list[Term]:
    """The entries of root's glossary, in order; none where there is no such page."""
    path = root / PAGE
    if not path.exists():
        return []
    found = []
    for entry in ENTRY.finditer(path.read_text(encoding="utf-8")):
        also = [form.strip() for form in (entry["also"] or "").split(",") if form.strip()]
        forms = tuple(form.lower() for form in [entry["name"], *also])
        text = " ".join(entry["text"].split())
        found.append(Term(entry["name"], text, int(entry["lesson"]), entry["stem"], forms))
    return found


def by_form(terms: list[Term]) -> dict[str, Term]:
    return {form: term for term in terms for form in term.forms}


def link(texts: list[str], forms: Mapping[str, Term]) -> list[str]:
    """The markdown cells of one lesson, the first bold use of each term made a link."""
    linked: set[str] = set()

    def replace(found: re.Match) -> str:
        term = forms.get(" ".join((found["words"] or "").lower().split()))
        if term is None or term.name in linked:
            return found[0]
        linked.add(term.name)
        return f"[{found[0]}]({FROM_NOTEBOOKS}#{term.anchor})"

    return [BOLD.sub(replace, text) for text in texts]


def bold(text: str) -> Iterator[str]:
    """What stands in bold in a markdown text, links and code left out, as written."""
    for found in BOLD.finditer(text):
        if found["words"]:
            yield " ".join(found["words"].split())


def unknown(text: str, forms: Mapping[str, Term]) -> Iterator[str]:
    """Bold words that are neither a term, nor a sentence, nor listed as no term."""
    for words in bold(text):
        small = words.lower()
        if small not in forms and small not in NOT_TERMS and words[-1] not in ".?!:":
            yield (
                f"**{words}** is not explained in {PAGE}; add it there, or to NOT_TERMS in "
                "course/authoring/glossary.py if it is no term"
            )
