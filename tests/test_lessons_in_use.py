"""Lessons as they are really used: cells out of order, run again; pages that say where one is.

COURSE_USE_ALL=1 tries every lesson that needs no model; else a quick one stands for them.
"""

import ast
import contextlib
import io
import os
import re

import nbformat
import pytest

from course.authoring import glossary
from course.authoring.build import ROOT
from course.authoring.source import read_header

STEMS = [path.stem for path in sorted(ROOT.glob("course/lessons/[0-9]*.py"))]
# (05 is not among them: it asks twice whether a slot is written, and the second time it is.)
TRIED = ["02", "03", "04", "06", "07"] if os.environ.get("COURSE_USE_ALL") else ["04"]
TRIED = [stem for stem in STEMS if stem[:2] in TRIED]


def cells_of(stem, kind):
    book = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    return [cell for cell in book.cells if cell.cell_type == kind]


@pytest.fixture
def run(monkeypatch):
    """run(cell, names) -> what it prints; in notebooks/, without widgets."""
    monkeypatch.chdir(ROOT / "notebooks")
    monkeypatch.setenv("COURSE_STATIC", "1")

    def run(cell, names):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile(cell.source, cell.id, "exec"), names)
        return told.getvalue()

    return run


# --- cells in any order ---------------------------------------------------------------------------


@pytest.mark.parametrize("stem", TRIED)
def test_from_the_last_cell_to_the_first_only_names_are_missing(stem, run):
    """What is missing is named, and is a name that an earlier cell of the lesson gives."""
    cells = cells_of(stem, "code")
    given = {node.id for cell in cells for node in ast.walk(ast.parse(cell.source))
             if isinstance(node, ast.Name)}  # fmt: skip
    names, missing = {"__name__": "__main__"}, set()
    for cell in reversed(cells):
        try:
            run(cell, names)
        except NameError as error:
            missing.add(error.name)
    assert missing
    assert missing <= given


@pytest.mark.parametrize("stem", TRIED)
def test_every_cell_run_twice_says_the_same_or_why_not(stem, run):
    """A second time gives the same lines. Where a cell hands something back, which can be done
    once, the error names it."""
    names, spoken = {"__name__": "__main__"}, 0
    for cell in cells_of(stem, "code"):
        first = run(cell, names)
        try:
            again = run(cell, names)
        except ValueError as error:
            if not re.search(r"already|never admitted", str(error)):
                raise
            continue
        if "nbval-ignore-output" not in cell.metadata.get("tags", ()):
            assert again == first, cell.id
        spoken += bool(first)
    assert spoken > 5


@pytest.mark.parametrize("stem", STEMS)
def test_no_cell_adds_to_what_another_began(stem):
    """`rows += ...` on a list of an earlier cell would hold everything twice the second time."""
    for cell in cells_of(stem, "code"):
        nodes = list(outside_functions(ast.parse(cell.source)))
        made = {
            name.id
            for node in nodes
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.comprehension)
            for target in getattr(node, "targets", [getattr(node, "target", node)])
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        assert added_to(nodes) <= made, cell.id


def outside_functions(node):
    """The nodes below this one, without the bodies of functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


def added_to(nodes):
    """Names of which something is made more: by +=, append or extend."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = node.func.value
            if node.func.attr in ("append", "extend") and isinstance(holder, ast.Name):
                found.add(holder.id)
    return found


def test_what_is_added_to_is_seen():
    text = "a += 1\nb.append(2)\nfor x in y:\n    c.extend(x)\ndef f():\n    d.append(1)"
    assert added_to(list(outside_functions(ast.parse(text)))) == {"a", "b", "c"}


# --- where one is, how long, what a word means ----------------------------------------------------


@pytest.mark.parametrize("stem", STEMS)
def test_a_lesson_says_where_the_reader_is_and_where_to_go(stem):
    prose = [cell.source for cell in cells_of(stem, "markdown")]
    place = STEMS.index(stem)
    assert "**You are here: " in prose[0]
    for other in STEMS[max(0, place - 1) : place] + STEMS[place + 1 : place + 2]:
        assert f"]({other}.ipynb)" in prose[0]
    for other in STEMS[place + 1 : place + 2]:
        assert f"**Next:** [{other[:2]} " in prose[-1]
    if place:
        assert f"](../exercises/{stem}.ipynb)" in prose[-1]


@pytest.mark.parametrize("stem", STEMS)
def test_the_minutes_are_those_that_the_page_takes(stem):
    """Reading at 180 words a minute, a line of code in 6 s, a guess in 40 s, a figure in a minute:
    within a third of what the lesson says."""
    code = cells_of(stem, "code")
    asked = [cell.source for cell in code if "check_yourself(" in cell.source]
    prose = [re.sub(r"[`*#|]", " ", cell.source) for cell in cells_of(stem, "markdown")]
    words = sum(len(text.split()) for text in [*prose, *asked])
    lines = sum(len(cell.source.splitlines()) for cell in code
                if cell.source not in asked and cell.id != "numbers")  # fmt: skip
    guesses = sum(cell.source.count("predict(") for cell in code)
    figures = sum("<figure" in str(cell.outputs) for cell in code)
    takes = words / 180 + lines / 10 + guesses * 40 / 60 + figures
    told = read_header(ROOT / "course" / "lessons" / f"{stem}.py")["minutes"]
    assert 0.75 < takes / told < 1.34, f"{stem} says {told} minutes, and takes about {takes:.0f}"


@pytest.mark.parametrize("stem", STEMS)
def test_each_term_links_to_the_glossary_at_its_first_bold_use_and_only_there(stem):
    forms = glossary.by_form(glossary.read(ROOT))
    seen = set()
    bold = re.compile(r"(\[)?\*\*([^*]+)\*\*(\]\(\.\./docs/glossary\.md#([\w-]+)\))?")
    for cell in cells_of(stem, "markdown"):
        for link, words, linked, anchor in bold.findall(cell.source):
            term = forms.get(" ".join(words.lower().split()))
            if term is None:
                continue
            assert bool(link and linked) == (term.name not in seen), f"{cell.id}: {words}"
            if linked:
                assert anchor == term.anchor
            seen.add(term.name)
    assert seen
