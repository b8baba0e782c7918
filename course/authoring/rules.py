"""What every built notebook keeps to. Each rule returns what breaks it, in words for its author.

The same rules run at the end of a build and in tests/test_notebooks.py, which also proves that
each of them can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from nbformat import NotebookNode

from course.authoring import numbers
from course.authoring.bare_numbers import bare_numbers
from course.authoring.page import OBJECTIVES, only_asks

CODE_LINES = 15
WORDS = 80  # of prose in one cell
WORDS_BETWEEN_CODE = 160  # a closing paragraph and the opening of the next section
WORDS_IN_CLOSING = 220  # in a cell under one of the closing headings, a list
QUESTIONS = 4
CLOSING = ["Common mistakes", "Key takeaways", "Further reading"]
SECTIONS = ["Check yourself", *CLOSING]
PLACES = re.compile(
    r"(?<![\w./])/(?:home|root|work|tmp|Users|mnt|opt|private|usr|var)/[\w.]+|\b[A-Z]:\\\w"
)

markdown = MarkdownIt("commonmark").enable("table")


def broken(book: NotebookNode, folder: Path, root: Path) -> list[str]:
    """Everything in this notebook that breaks a rule. ``folder``: where the notebook lies."""
    found = [
        *headings(book),
        *sections(book),
        *alternative_text(book),
        *lengths(book),
        *links(book, folder, root),
        *inserted_numbers(book),
        *bare_numbers(book),
        *clean_outputs(book),
        *executed(book),
        *machine_paths(book),
        *questions(book),
    ]
    return [problem for problem in found if problem]


def prose(book: NotebookNode) -> Iterator[NotebookNode]:
    """Markdown cells that an author wrote."""
    for cell in book.cells:
        if cell.cell_type == "markdown" and not is_generated(cell):
            yield cell


def code(book: NotebookNode) -> Iterator[NotebookNode]:
    return (cell for cell in book.cells if cell.cell_type == "code")


def is_generated(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("course", {}).get("generated"))


def headings_of(text: str) -> list[tuple[int, str]]:
    """(level, words) of each heading; not of '#' lines inside code."""
    tokens = markdown.parse(text)
    return [
        (int(token.tag[1]), tokens[i + 1].content)
        for i, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def headings(book: NotebookNode) -> Iterator[str]:
    """One H1, first, and no level skipped on the way down."""
    found = [
        (h, c.id) for c in book.cells if c.cell_type == "markdown" for h in headings_of(c.source)
    ]
    ones = [words for (level, words), _ in found if level == 1]
    if len(ones) != 1:
        yield f"{len(ones)} first-level headings {ones}; one is made from the title, write '##'"
    if found and found[0][0][0] != 1:
        yield f"starts with a heading of level {found[0][0][0]}, not with its title"
    last = 1
    for (level, words), cell_id in found:
        if level > last + 1:
            yield f"cell {cell_id!r}: heading {words!r} skips from level {last} to {level}"
        last = level


def sections(book: NotebookNode) -> Iterator[str]:
    """Objectives, minutes, and the closing sections in their order, none of them empty."""
    first = book.cells[0].source if book.cells else ""
    if OBJECTIVES not in first or not re.search(r"^- \S", first, re.MULTILINE):
        yield "the first cell has no objectives"
    if not re.search(r"\b\d+ minutes\b", first):
        yield "the first cell does not say how many minutes"
    seen = [w for c in book.cells if c.cell_type == "markdown" for _, w in headings_of(c.source)]
    for title in SECTIONS:
        if seen.count(title) != 1:
            yield f"section '## {title}' is there {seen.count(title)} times, not once"
    order = [title for title in seen if title in SECTIONS]
    if sorted(order) == sorted(SECTIONS) and order != SECTIONS:
        yield f"sections come as {order}, not as {SECTIONS}"
    for cell in prose(book):
        for title in CLOSING:
            if re.fullmatch(rf"#+ {title}\s*", cell.source):
                yield f"cell {cell.id!r}: section {title!r} has no text in its cell"


def alternative_text(book: NotebookNode) -> Iterator[str]:
    """Every picture says in words what it shows: alt text in its HTML, or a text twin."""
    for cell in book.cells:
        if cell.cell_type == "markdown":
            yield from _silent_html(cell.id, cell.source)
            for token in _inline(cell.source):
                if token.type == "image" and len(token.content.strip()) < 10:
                    yield f"cell {cell.id!r}: picture {token.attrs['src']} without alternative text"
            continue
        for output in cell.outputs:
            data = output.get("data", {})
            html = "".join(data.get("text/html", ""))
            yield from _silent_html(cell.id, html)
            picture = [kind for kind in data if kind.startswith("image/")]
            twin = re.sub(r"<Figure .*?>|<\S+ (object )?at 0x\w+>", "", data.get("text/plain", ""))
            if picture and "alt=" not in html and "aria-label=" not in html and len(twin) < 10:
                yield f"cell {cell.id!r}: a figure ({picture[0]}) without a text twin"


def _silent_html(cell_id: str, html: str) -> Iterator[str]:
    for tag in re.findall(r"<img\b[^>]*>", html):
        alt = re.search(r"""\balt=("[^"]*"|'[^']*')""", tag)
        if not alt or len(alt[1]) < 12:
            yield f"cell {cell_id!r}: <img> whose alt text is missing or says nothing"
    for tag, inside in re.findall(r"<svg\b([^>]*)>(.*?)</svg>", html, re.DOTALL):
        named = re.search(r"aria-label(ledby)?=|<title\b[^>]*>[^<]{10}", tag + inside)
        if not named and 'aria-hidden="true"' not in tag:
            yield f"cell {cell_id!r}: <svg> without a title or aria-label"


def lengths(book: NotebookNode) -> Iterator[str]:
    """Code of at most 15 lines that a reader sees, prose of at most 80 words a cell.

    Not counted: cells that the build makes, headings, tables, fenced code, source lines, link
    targets. The closing sections hold lists and may be longer.
    """
    run = 0
    closing = False
    for cell in book.cells:
        if cell.cell_type == "code":
            run = 0
            hidden = cell.metadata.get("jupyter", {}).get("source_hidden")
            count = len(cell.source.strip().splitlines())
            folded = hidden and (is_generated(cell) or only_asks(cell.source))
            if count > CODE_LINES and not folded:
                yield f"cell {cell.id!r}: {count} lines of code; at most {CODE_LINES}"
            continue
        if is_generated(cell):
            continue
        titles = [words for _, words in headings_of(cell.source)]
        closing = titles[-1] in CLOSING if titles else closing
        count = word_count(cell.source)
        limit = WORDS_IN_CLOSING if closing else WORDS
        if count > limit:
            yield f"cell {cell.id!r}: {count} words of prose; at most {limit}"
        run = 0 if closing else run + count
        if run > WORDS_BETWEEN_CODE:
            yield f"cell {cell.id!r}: {run} words since the last code; at most {WORDS_BETWEEN_CODE}"
            run = 0


def word_count(text: str) -> int:
    """Words of prose, as ``lengths`` counts them."""
    skipped, words = 0, 0
    for token in markdown.parse(text):
        if token.type in ("heading_open", "table_open"):
            skipped += 1
        elif token.type in ("heading_close", "table_close"):
            skipped -= 1
        elif token.type == "inline" and not skipped and not token.content.startswith("*Source"):
            plain = "".join(
                " " if child.type in ("softbreak", "hardbreak") else child.content
                for child in token.children or []
                if child.type != "html_inline"
            )
            words += len(re.findall(r"\w[\w'’.,-]*", plain))
        elif token.type == "html_block":
            words += len(re.findall(r"\w[\w'’.,-]*", re.sub(r"<[^>]*>", " ", token.content)))
    return words


def links(book: NotebookNode, folder: Path, root: Path) -> Iterator[str]:
    """Every relative link leads to a file of the course, every '#part' to a heading."""
    here = {
        re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        for c in book.cells
        if c.cell_type == "markdown"
        for _, words in headings_of(c.source)
    }
    for cell in book.cells:
        if cell.cell_type != "markdown":
            continue
        targets = [t.attrs.get("href") or t.attrs.get("src") for t in _inline(cell.source)]
        targets += re.findall(r"""<(?:a|img)\b[^>]*?(?:href|src)=["']([^"']+)""", cell.source)
        for target in filter(None, targets):
            target = unquote(str(target))
            if re.match(r"[a-z]+:", target):
                continue
            path, _, part = target.partition("#")
            if path and not (folder / path).resolve().is_relative_to(root.resolve()):
                yield f"cell {cell.id!r}: link {target} leads out of the course"
            elif path and not (folder / path).exists():
                yield f"cell {cell.id!r}: link {target} leads nowhere"
            elif not path and part.lower() not in here:
                yield f"cell {cell.id!r}: link {target} names no heading of this page"


def _inline(text: str) -> Iterator:
    for token in markdown.parse(text):
        yield from token.children or []


def inserted_numbers(book: NotebookNode) -> Iterator[str]:
    """Each number set into prose stands where its mark says and is what the last cell prints."""
    last = list(code(book))[-1:]
    lines = []
    if last and last[0].id == numbers.CELL_ID:
        lines = "".join(o.get("text", "") for o in last[0].outputs).splitlines()
    used = set()
    for cell in prose(book):
        if "{{" in cell.source:
            yield f"cell {cell.id!r}: a number was never set in"
        for mark in cell.metadata.get("course", {}).get("numbers", []):
            stands = cell.source[mark["at"] : mark["at"] + len(mark["text"])]
            if stands != mark["text"]:
                yield f"cell {cell.id!r}: {stands!r} stands where {mark['text']!r} was set in"
            if "computed" in mark:
                used.add(mark["computed"])
                if f"{mark['computed']} = {mark['text']}" not in lines:
                    yield f"cell {cell.id!r}: the last cell does not print {mark['text']!r} for it"
            elif not mark.get("given"):
                yield f"cell {cell.id!r}: {mark['text']!r} has no source"
    if len(lines) != len(used):
        yield f"the last cell prints {len(lines)} numbers, the text uses {len(used)}"


def clean_outputs(book: NotebookNode) -> Iterator[str]:
    """No warning, no traceback, no memory address; a cell said to raise does raise."""
    for cell in code(book):
        raises = "raises-exception" in cell.metadata.get("tags", [])
        errors = [o for o in cell.outputs if o.output_type == "error"]
        if errors and not raises:
            yield f"cell {cell.id!r}: raised {errors[0].ename}"
        if raises and not errors:
            yield f"cell {cell.id!r}: is tagged raises-exception and raised nothing"
        for output in cell.outputs:
            words = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            if "Traceback (most recent call last)" in words:
                yield f"cell {cell.id!r}: a traceback in its output"
            if output.get("name") == "stderr" and re.search(r"\w*Warning\b", words):
                yield f"cell {cell.id!r}: a warning in its output"
            if re.search(r"\bat 0x[0-9a-f]{6,}", words):
                yield f"cell {cell.id!r}: a memory address in its output; show something that lasts"


def executed(book: NotebookNode) -> Iterator[str]:
    """Run top to bottom: counts 1, 2, 3, ..."""
    counts = [cell.execution_count for cell in code(book)]
    if not counts:
        yield "no code cell at all"
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}"


def machine_paths(book: NotebookNode) -> Iterator[str]:
    """No path that exists only on the machine that built it."""
    for cell in book.cells:
        shown = [cell.source]
        for output in cell.get("outputs", []):
            shown.append(output.get("text", ""))
            shown += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
        for text in shown:
            if found := PLACES.search(str(text)):
                yield f"cell {cell.id!r}: a path of one machine, {found[0]}"


def questions(book: NotebookNode) -> Iterator[str]:
    """At least four questions that answer back."""
    count = sum(
        isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check_yourself"
        for cell in code(book)
        for node in ast.walk(_tree(cell.source))
    )
    if count < QUESTIONS:
        yield f"{count} check_yourself questions; at least {QUESTIONS}"


def _tree(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except SyntaxError:  # a magic line
        return ast.Module([], [])
