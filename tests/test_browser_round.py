"""The whole course in a real browser: every lesson, other front ends, other kernels.

Runs with COURSE_BROWSER=all. tests/test_browser.py has what is looked at every time.
"""

import pytest
from browsing import (
    OURS,
    copy_course,
    needs_chromium,
    open_book,
    serving,
    violations,
    whole_round,
)

from course.authoring import build as lessons

pytestmark = [
    needs_chromium,
    whole_round,
    pytest.mark.browser,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("browser"),
]
LOOKS = [("JupyterLab Light", 1280), ("JupyterLab Dark", 768)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with serving(copy_course(tmp_path_factory.mktemp("round")), "lab") as found:
        yield found


@pytest.mark.parametrize("path", lessons.sources(), ids=lambda path: path.stem)
def test_a_lesson_runs_from_top_to_bottom(lab, path):
    book = open_book(*lab, f"notebooks/{path.stem}.ipynb")
    book.run_all()
    assert book.faults() == []
    assert violations(book.page, OURS) == []
    book.photograph(path.stem, LOOKS)
    book.close()
