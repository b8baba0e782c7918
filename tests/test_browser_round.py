"""The whole course in a real browser: every lesson, other front ends, other kernels.

Runs with COURSE_BROWSER=all. tests/test_browser.py has what is looked at every time.
"""

import json
import re

import pytest
from browsing import (
    chromium,  # noqa: F401
    copy_course,
    needs_chromium,
    open_book,
    serving,
    shot,
    until,
    violations,
    whole_round,
)

from course.authoring import build as lessons
from course.engine.loading.model_file import model_file
from course.show.widget import NO_WIDGETS

pytestmark = [
    needs_chromium,
    whole_round,
    pytest.mark.browser,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("browser"),
]
LOOKS = [("JupyterLab Light", 1280), ("JupyterLab Dark", 768)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory, chromium):  # noqa: F811
    with serving(copy_course(tmp_path_factory.mktemp("round")), chromium, "lab") as found:
        yield found


@pytest.mark.parametrize("path", lessons.sources(), ids=lambda path: path.stem)
def test_a_lesson_runs_from_top_to_bottom(lab, path):
    book = open_book(*lab, f"notebooks/{path.stem}.ipynb")
    book.run_all()
    assert book.faults() == []
    assert violations(book) == []
    book.photograph(path.stem, LOOKS)
    book.close()


def test_lab_08_serves_the_model_with_the_learners_pieces(tmp_path, chromium):  # noqa: F811
    """Solved by paste, run in the browser: what passes is saved, and the engine is made of it."""
    if model_file() is None:
        pytest.skip("not run: the model is not installed (make setup)")
    folder = copy_course(tmp_path)
    for lab_name in ("04_block_tables", "08_the_engine"):
        solve(folder, lab_name)
    with serving(folder, chromium, "lab") as (server, browser):
        book = open_book(server, browser, "exercises/04_block_tables.ipynb")
        book.run_all()
        assert book.faults() == []
        book.close()
        book = open_book(server, browser, "exercises/08_the_engine.ipynb")
        book.run_all()
        assert book.faults() == []
        told = book.run(book.cell("from course.practice import progress"), SPEAK)
        shot(book.page, "lab_08")
        yours = re.search(r"Yours: (.*?)\.", told, re.DOTALL)[1]
        assert {"BlockPool", "blocks_needed", "Runner", "EngineCore"} <= set(
            re.findall(r"\w+", yours)
        )
        assert "sky" in told.split("It says:")[1]
        book.close()


SPEAK = """from course.engine import LLM, SamplingParams
from course.practice import learner_engine
with learner_engine() as pieces:
    print(pieces)
    llm = LLM("smollm2", num_blocks=16)
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    prompt = llm.tokenizer.apply_chat_template(question)
    print("It says:", llm.generate([prompt], SamplingParams(max_tokens=24))[0].text)"""


def solve(folder, name):
    """Put the answers of a solved lab into the learner's copy."""
    solved = json.loads((folder / "solutions" / f"{name}.ipynb").read_text())
    answers = {c["id"]: c["source"] for c in solved["cells"] if c["id"].endswith("-answer")}
    path = folder / "exercises" / f"{name}.ipynb"
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        cell["source"] = answers.get(cell["id"], cell["source"])
    path.write_text(json.dumps(notebook))


def test_notebook_7_runs_a_lesson_and_shows_what_a_check_says(tmp_path, chromium):  # noqa: F811
    with serving(copy_course(tmp_path), chromium, "notebook") as (server, browser):
        book = open_book(server, browser, "notebooks/04_block_tables.ipynb")
        book.run_all()
        assert book.faults() == []
        clinic = book.cell("boundary_clinic(").locator(".jp-Cell-outputArea")
        before = clinic.locator("svg").first.get_attribute("aria-label")
        clinic.get_by_role("button", name="Next").press("Enter")
        until(
            lambda: clinic.locator("svg").first.get_attribute("aria-label") != before, 30, "still"
        )
        assert violations(book) == []
        shot(book.page, "notebook_7_lesson_04")
        book.page.context.close()
        book = open_book(server, browser, "exercises/04_block_tables.ipynb")
        book.run(book.cell("from course.practice import check"))
        book.run(book.cell("def blocks_needed"), WRONG)
        told = book.run(book.cell(re.compile(r"^check\(blocks_needed\)")))
        shot(book.page, "notebook_7_lab_04")
        assert re.search(r"4\.2 blocks_needed: \d of \d+ behaviours hold", told)
        assert "expected" in told


WRONG = """def blocks_needed(num_tokens: int, block_size: int) -> int:
    return num_tokens // block_size + 1"""


def test_a_kernel_without_widgets_shows_the_static_figures(tmp_path, chromium):  # noqa: F811
    folder = copy_course(tmp_path / "course")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['ipywidgets'] = None\n"
    )
    with serving(folder, chromium, "lab", PYTHONPATH=str(tmp_path / "without")) as (
        server,
        browser,
    ):
        for name, words in (
            ("02_what_a_reservation_wastes", "memory_map("),
            ("04_block_tables", "boundary_clinic("),
        ):
            book = open_book(server, browser, f"notebooks/{name}.ipynb")
            book.run_all()
            assert book.faults() == []
            assert book.page.locator(".course-live").count() == 0
            output = book.cell(words).locator(".jp-Cell-outputArea")
            output.scroll_into_view_if_needed()
            assert output.locator("img").first.is_visible()
            assert NO_WIDGETS in output.text_content()
            shot(book.page, f"no_widgets_{name[:2]}")
            assert violations(book) == []
            book.close()
