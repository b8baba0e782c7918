"""What the built site holds: every page, folded answers, figures that move, an index."""

import errno
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from site_build import report, site  # noqa: F401

from course.authoring import build as lessons
from course.authoring import glossary, labs
from course.commands import site as command
from course.practice import registry
from course.show.guesses import NOBODY
from course.site import build as site_build
from course.site import check, frames, pages
from course.site.build import Maker, Report, build

pytestmark = pytest.mark.timeout(900)  # the first one builds
ROOT = lessons.ROOT
STEMS = [path.stem for path in lessons.sources()]


def text(site, name):  # noqa: F811
    return (site / name).read_text(encoding="utf-8")


def test_nothing_is_broken(report):  # noqa: F811
    assert report.problems == []
    assert report.num_pages == len(list(report.folder.rglob("*.html")))
    assert report.num_pages > 35
    assert report.num_bytes < 40 * 2**20


def test_every_lesson_lab_summary_and_document_has_its_page(site):  # noqa: F811
    there = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {f"notebooks/{stem}.html" for stem in STEMS} <= there
    assert {f"summaries/{stem}.html" for stem in STEMS} <= there
    assert {f"labs/{path.stem}.html" for path in labs.sources()} <= there
    documents = {p.relative_to(ROOT).with_suffix(".html") for p in (ROOT / "docs").rglob("*.md")}
    assert {path.as_posix() for path in documents} <= there
    home = text(site, "index.html")
    for stem in STEMS:
        assert f'href="notebooks/{stem}.html"' in home


def test_the_lessons_are_a_chain_and_each_says_where_it_is(site):  # noqa: F811
    for before, after in pairwise(STEMS):
        assert f'href="{after}.html" rel="next"' in text(site, f"notebooks/{before}.html")
        assert f'href="{before}.html" rel="prev"' in text(site, f"notebooks/{after}.html")
    for stem in STEMS:
        page = text(site, f"notebooks/{stem}.html")
        assert page.count('aria-current="page"') == 1
        assert f'<a href="{stem}.html" aria-current="page">' in page
        assert f"({STEMS.index(stem) + 1} of {len(STEMS)})" in page
        assert "**You are here" not in page
        assert "<strong>You are here" not in page, "the notebook's own line is not taken out"


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_has_all_of_its_notebook(site, stem):  # noqa: F811
    page = text(site, f"notebooks/{stem}.html")
    book = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert re.findall(r'<div class="cell" id="cell-([\w-]+)"', page) == [c.id for c in cells]
    pictures = sum(
        output.get("data", {}).get("text/html", "").count("<img")
        for cell in cells
        for output in cell.outputs
    )
    assert page.count("<img") == pictures
    assert NOBODY not in page
    seen = check.read(site / f"notebooks/{stem}.html")
    wanted = [
        w
        for c in book.cells
        if c.cell_type == "markdown"
        for _, w in lessons.rules.headings_of(c.source)
    ]
    assert len(seen.headings) == len(wanted)


def test_notebooks_can_be_taken_along_untouched(site):  # noqa: F811
    for stem in STEMS:
        assert text(site, f"notebooks/{stem}.ipynb") == (
            ROOT / "notebooks" / f"{stem}.ipynb"
        ).read_text(encoding="utf-8")
    for path in labs.sources():
        stub = nbformat.reads(text(site, f"exercises/{path.stem}.ipynb"), as_version=4)
        assert any("raise NotImplementedError" in cell.source for cell in stub.cells)


@pytest.mark.parametrize("path", labs.sources(), ids=lambda path: path.stem)
def test_the_answers_of_a_lab_are_folded_and_its_stubs_are_not(site, path):  # noqa: F811
    page = text(site, f"labs/{path.stem}.html")
    exercises = registry.lab(int(path.stem[:2]))
    assert page.count('<details class="answer">') == len(exercises)
    for exercise in exercises:
        assert f"The answer to {exercise.id}, and why" in page
    shown = re.sub(r'<details class="answer">.*?</div></details>', "", page, flags=re.DOTALL)
    for exercise in exercises:
        for part in ("answer", "check", "wrong"):
            assert f'id="cell-{exercise.key}-{part}"' not in shown
    assert page.count("Hint 3") == len(exercises)
    assert shown.count("Hint 3") == len(exercises), "hints come before the answer"
    assert "<strong>Why</strong>" not in shown


def test_terms_lead_to_the_glossary(site):  # noqa: F811
    ids = check.read(site / "docs/glossary.html").ids
    for term in glossary.read(ROOT):
        assert term.anchor in ids
    book = text(site, "notebooks/00_start_here.ipynb")
    if glossary.FROM_NOTEBOOKS in book:
        assert 'href="../docs/glossary.html#' in text(site, "notebooks/00_start_here.html")


def films_of(site, stem):  # noqa: F811
    script = text(site, f"assets/films/{stem}.js")
    assert "<" not in script
    return json.loads(script[script.index("] = ") + 4 : script.rindex(";")])


def test_entries_are_found_by_readers_that_keep_capitals(site):  # noqa: F811
    """JupyterLab names a heading by its words as they are written; links are in small letters."""
    page = (ROOT / glossary.PAGE).read_text(encoding="utf-8")
    for term in glossary.read(ROOT):
        place = f'<a id="{term.anchor}"></a>\n\n## {term.name}\n'
        assert (place in page) == (term.anchor != term.name.replace(" ", "-")), term.name
    html = text(site, "docs/glossary.html")
    assert html.count('id="kv-cache"') == 1  # where a heading has that name, the place is left out


def test_figures_move_through_pictures_that_speak(report):  # noqa: F811
    assert report.notes == []
    assert report.num_films >= 8
    count = 0
    for script in (report.folder / "assets" / "films").glob("*.js"):
        stem = script.stem
        page = text(report.folder, f"notebooks/{stem}.html")
        assert f"../assets/films/{stem}.js" in page
        for cell, film in films_of(report.folder, stem).items():
            count += 1
            assert f'data-film="{cell}"' in page
            figures = ["".join(film["parts"][i] for i in frame) for frame in film["frames"]]
            assert len(figures) == len(film["names"]) >= 3
            alts = [re.search(r'<svg[^>]* aria-label="([^"]{20,})"', html)[1] for html in figures]
            said = [re.search(r"<figcaption[^>]*>(.+?)</figcaption>", html)[1] for html in figures]
            assert said[film["start"]] in page, "it starts with another picture"
            assert len(set(alts)) > len(alts) / 2
            assert len(set(said)) > len(said) / 2
    assert count == report.num_films


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("stem", [s for s in STEMS if s[:2] in ("00", "08")])
def test_the_model_s_films_start_with_the_stored_picture(stem):
    from course.engine.loading.model_file import model_file

    if model_file() is None:
        pytest.skip("not run: the model file is not here")
    book = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    found, notes = frames.films(book, ROOT / "notebooks")
    assert notes == []
    assert found


def test_the_index_leads_to_parts_that_exist(site):  # noqa: F811
    script = text(site, "assets/search-index.js")
    index = json.loads(script[script.index("[") : script.rindex(";")])
    assert len(index) > 200
    ids = {}
    for _, _, address, _ in index:
        name, _, part = address.partition("#")
        ids.setdefault(name, set(check.read(site / name).ids) if name not in ids else None)
        assert not part or part in ids[name], address
    headings = {heading for _, heading, _, _ in index}
    assert {"block table", "Key takeaways", "When is a block taken?"} <= headings


def test_links_that_open_a_notebook_elsewhere_need_a_repository(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert pages.elsewhere(tmp_path, "notebooks/a.ipynb") == []
    (tmp_path / "CITATION.cff").write_text("repository-code: https://github.com/who/what.git\n")
    found = dict(pages.elsewhere(tmp_path, "notebooks/a.ipynb"))
    assert found["Run in Colab"].endswith("/github/who/what/blob/HEAD/notebooks/a.ipynb")
    assert found["Run on Binder"].endswith("/gh/who/what/HEAD?labpath=notebooks/a.ipynb")
    urls = '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/x"\n'
    (tmp_path / "pyproject.toml").write_text(urls)
    assert pages.repository_url(tmp_path) == "https://example.org/x"
    assert pages.elsewhere(tmp_path, "notebooks/a.ipynb") == []


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("work")
    with pytest.raises(ValueError, match="no site"):
        build(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "work"


def test_a_build_that_fails_leaves_the_old_site(tmp_path, monkeypatch):
    out = tmp_path / "site"
    out.mkdir()
    (out / site_build.MARK).touch()
    (out / "index.html").write_text("old")

    def fails(self, moving, on_page):
        raise RuntimeError("half way")

    monkeypatch.setattr(Maker, "make", fails)
    with pytest.raises(RuntimeError):
        build(out)
    assert (out / "index.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_named(monkeypatch, number):
    def fail(*args, **options):
        raise OSError(number, os.strerror(number), "somewhere")

    monkeypatch.setattr("course.site.build.build", fail)
    with pytest.raises(ValueError, match=r"^here cannot be written .* --out"):
        command.site(out=Path("here"), still=True)


def test_links_to_files_that_are_no_page_become_words(tmp_path):
    maker = Maker(tmp_path, ROOT, Report(tmp_path))
    page = next(p for p in maker.map.pages if p.url == "docs/authoring.html")
    resolve = maker.map.resolver(page)
    assert resolve("glossary.md#slot") == "glossary.html#slot"
    assert resolve("../README.md") == "readme.html"
    assert resolve("../exercises/04_block_tables.ipynb") == "../labs/04_block_tables.html"
    assert resolve("../LICENSE") == "../LICENSE.txt"
    assert resolve("https://example.org") == "https://example.org"
    if not pages.repository_url(ROOT):
        assert resolve("../course/sizing.py") is None
    assert maker.map.problems == []
    assert resolve("gone.md") is None
    assert "gone.md" in maker.map.problems[0]


def test_copies_in_hidden_folders_are_no_pages(tmp_path):
    """JupyterLab leaves them wherever a document was looked at."""
    for folder in ("course", "notebooks", "solutions", "exercises", "README.md", "docs"):
        if folder != "docs":
            (tmp_path / folder).symlink_to(ROOT / folder)
    kept = tmp_path / "docs" / ".ipynb_checkpoints"
    kept.mkdir(parents=True)
    (kept / "glossary-checkpoint.md").write_text("# Glossary\n")
    (tmp_path / "docs" / "glossary.md").write_text("# Glossary\n")
    urls = [page.url for page in pages.Map(tmp_path).pages if page.url.startswith("docs/")]
    assert urls == ["docs/readme.html", "docs/glossary.html"]


def test_a_saved_error_is_noted():
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_markdown_cell("a"), nbformat.v4.new_code_cell("b")]
    assert site_build.errors_in(book, "04_x") == []
    book.cells[1].outputs = [nbformat.v4.new_output("error", ename="NameError", evalue="b")]
    (note,) = site_build.errors_in(book, "04_x")
    assert note.startswith("04_x, cell 2: it shows NameError")
