"""The glossary and the links to it: every bold term of the lessons is explained, and found."""

import re

import pytest

from course.authoring import build, glossary
from course.authoring.source import read_lesson

TERMS = glossary.read(build.ROOT)
FORMS = glossary.by_form(TERMS)
PAGE = """# Glossary

Words.

## block table

A list of block ids. The list has an order.

*[Lesson 04](../notebooks/04_block_tables.ipynb). Also: block tables, tables.*

## KV cache

Kept keys and
values.

*[Lesson 01](../notebooks/01_the_kv_cache.ipynb).*
"""


@pytest.fixture
def forms(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text(PAGE, encoding="utf-8")
    return glossary.by_form(glossary.read(tmp_path))


def test_entries_are_read(forms):
    assert sorted(forms) == ["block table", "block tables", "kv cache", "tables"]
    table, cache = forms["tables"], forms["kv cache"]
    assert (table.name, table.lesson, table.anchor) == ("block table", 4, "block-table")
    assert (cache.anchor, cache.text) == ("kv-cache", "Kept keys and values.")


def test_no_glossary_no_links(tmp_path):
    assert glossary.read(tmp_path) == []
    assert glossary.link(["A **block table**."], {}) == ["A **block table**."]


def test_the_first_bold_use_in_a_lesson_is_linked_and_no_other(forms):
    first, second = glossary.link(
        ["A **Block\ntable**, a cache.", "**tables**, **KV cache**"], forms
    )
    assert first == "A [**Block\ntable**](../docs/glossary.md#block-table), a cache."
    assert second == "**tables**, [**KV cache**](../docs/glossary.md#kv-cache)"


@pytest.mark.parametrize(
    "text",
    [
        "plain tables",
        "`**tables**`",
        "```python\nx = **tables**\n```",
        "``a ` **tables** ``",
        "[**tables**](elsewhere.md)",
        "{{ 2**n }} and {{ tables**2 }}",
        "*tables*",
        "** tables **",
    ],
)
def test_what_is_not_bold_prose_is_left_alone(forms, text):
    assert glossary.link([text], forms) == [text]


def test_unknown_bold_words_are_named(forms):
    text = "**tables**, **Guess**, **Does anybody wait?**, **poison**, [**x**](y)"
    (said,) = glossary.unknown(text, forms)
    assert "**poison**" in said
    assert "NOT_TERMS" in said


def prose(path):
    return [cell.text for cell in read_lesson(path).cells if cell.kind == "markdown"]


def test_no_entry_was_misread():
    headings = re.findall(r"^## (.+)$", (build.ROOT / glossary.PAGE).read_text("utf-8"), re.M)
    assert len(headings) > 40
    assert [term.name for term in TERMS] == headings
    assert headings == sorted(headings, key=str.lower)
    assert sum(len(term.forms) for term in TERMS) == len(FORMS), "a form belongs to two entries"
    assert len({term.anchor for term in TERMS}) == len(TERMS)
    for term in TERMS:
        assert 4 <= len(term.text.split()) <= 45, term.name


@pytest.mark.parametrize("path", build.sources(), ids=lambda path: path.stem)
def test_every_bold_term_of_a_lesson_is_explained(path):
    assert [said for text in prose(path) for said in glossary.unknown(text, FORMS)] == []


def test_every_entry_is_bold_in_the_lesson_that_it_names():
    lessons = {path.stem: " ".join(prose(path)) for path in build.sources()}
    for term in TERMS:
        assert term.stem in lessons, term.name
        assert int(term.stem[:2]) == term.lesson
        found = {words.lower() for words in glossary.bold(lessons[term.stem])}
        assert found & set(term.forms), f"{term.name}: nothing of {term.forms} is bold there"


def test_what_is_listed_as_no_term_is_there_and_is_none():
    used = {w.lower() for p in build.sources() for text in prose(p) for w in glossary.bold(text)}
    assert used >= glossary.NOT_TERMS
    assert not glossary.NOT_TERMS & set(FORMS)


@pytest.mark.parametrize("path", build.sources(), ids=lambda path: path.stem)
def test_links_in_stored_notebooks_lead_to_an_entry(path):
    text = (build.ROOT / "notebooks" / f"{path.stem}.ipynb").read_text(encoding="utf-8")
    anchors = {term.anchor for term in TERMS}
    assert set(re.findall(rf"\({re.escape(glossary.FROM_NOTEBOOKS)}#([^)]+)\)", text)) <= anchors
