"""A lesson on one sheet of A4: what one can do after it, its formulas, a picture, what to take away
and its words. All of it comes from the lesson itself, its notebook and the glossary."""

from __future__ import annotations

import re
from dataclasses import dataclass

from markdown_it import MarkdownIt
from nbformat import NotebookNode

from course.authoring import glossary
from course.authoring.rules import headings_of
from course.authoring.source import Lesson
from course.site.markdown import Renderer

FIGURE = re.compile(r"<figure\b.*?(?P<image><img\b[^>]*>).*?</figure>", re.DOTALL)
CAPTION = re.compile(r"<figcaption\b[^>]*>(.*?)</figcaption>", re.DOTALL)
# Which picture stands for a lesson, by the cell that shows it; else the first one does.
PICTURES = {"06": "four-ways-to-batch-code-3"}
TALL = {"06"}  # pictures that need more of the sheet than others
MOST_TERMS = 12  # with their meaning; where a lesson has more, some are only named


@dataclass
class Summary:
    """``formulas``, ``takeaways``: HTML; ``figure``: an <img>, or nothing."""

    objectives: list[str]
    formulas: str
    takeaways: str
    figure: str
    caption: str
    terms: list[glossary.Term]
    more_terms: list[glossary.Term]


def summarise(
    lesson: Lesson, book: NotebookNode, terms: list[glossary.Term], renderer: Renderer
) -> Summary:
    prose = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    figure, caption = key_figure(book, lesson.stem[:2])
    own = [term for term in terms if term.lesson == lesson.number]
    explained = len(own) if len(own) <= MOST_TERMS else MOST_TERMS - 2
    return Summary(
        objectives=[_inline(renderer, goal) for goal in lesson.objectives],
        formulas=renderer.render("\n\n".join(formulas(prose))),
        takeaways=renderer.render(section(prose, "Key takeaways")),
        figure=figure,
        caption=caption,
        terms=own[:explained],
        more_terms=own[explained:],
    )


def _inline(renderer: Renderer, text: str) -> str:
    return renderer.render(text).strip().removeprefix("<p>").removesuffix("</p>")


def section(prose: list[str], title: str) -> str:
    """The markdown under a heading, without it."""
    for text in prose:
        if any(words == title for _, words in headings_of(text)):
            return re.sub(rf"\A.*?^#+ {title}[ \t]*$", "", text, count=1, flags=re.S | re.M).strip()
    return ""


def formulas(prose: list[str]) -> list[str]:
    """What a lesson sets apart as code in its text, and numbered steps that are all code."""
    found = []
    for text in prose:
        lines = text.splitlines()
        for token in MarkdownIt("commonmark").enable("table").parse(text):
            if token.level or not token.map:
                continue
            block = "\n".join(lines[token.map[0] : token.map[1]]).rstrip()
            steps = token.type == "ordered_list_open" and all(
                re.fullmatch(r"\d+\. `[^`]+`[.,;]?", line) for line in block.splitlines() if line
            )
            if token.type in ("code_block", "fence"):
                found.append(f"```\n{token.content.rstrip()}\n```")
            elif steps:
                found.append(block)
    return found


def key_figure(book: NotebookNode, number: str) -> tuple[str, str]:
    """(<img>, its sentence) of the picture that stands for the lesson."""
    wanted = PICTURES.get(number)
    cells = sorted(book.cells, key=lambda cell: cell.id != wanted)  # stable: the wanted one first
    for cell in cells:
        for output in cell.get("outputs", []):
            if found := FIGURE.search(output.get("data", {}).get("text/html", "")):
                kind = ' class="tall"' if number in TALL and cell.id == wanted else ""
                image = re.sub(r'\s+style="[^"]*"', kind, found["image"])
                caption = CAPTION.search(found[0])
                return image, caption[1] if caption else ""
    return "", ""
