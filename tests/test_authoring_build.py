"""The build as a whole, on a small course of its own: run, store, check, refuse."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course.authoring import build

LESSON = """# ---
# title: {title}
# summary: What a cell is
# minutes: 5
# objectives: [run a cell, see a number]
# builds: [BlockPool]
# ---

# %% [markdown]
# There are {{{{ num_blocks }}}} blocks, {{{{ 100 * used / num_blocks:.1f }}}} % of them used.

# %%
num_blocks, used = 16, 5
print("blocks", num_blocks)

# %%
import base64
from IPython.display import display

display({{"text/plain": "A figure: five of sixteen blocks are taken."}}, raw=True)
used / num_blocks

# %% [markdown]
# ## Check yourself

# %%
def check_yourself(question): pass

for question in "abcd": check_yourself(question)
check_yourself(1), check_yourself(2), check_yourself(3)

# %% [markdown]
# ## Common mistakes
# - One.

# %% [markdown]
# ## Key takeaways
# - One.

# %% [markdown]
# ## Further reading
# - One.
"""


@pytest.fixture
def root(tmp_path) -> Path:
    """A course of one lesson that was never built."""
    (tmp_path / "course" / "lessons").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    put(tmp_path, "00_first", "First")
    return tmp_path


@pytest.fixture(scope="module")
def built_once(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    (folder / "course" / "lessons").mkdir(parents=True)
    put(folder, "00_first", "First")
    assert built(folder).ok
    return folder


@pytest.fixture
def done(built_once, tmp_path) -> Path:
    """The same course with its notebook built, to be spoiled."""
    shutil.copytree(built_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def put(root: Path, stem: str, title: str, change=lambda text: text) -> Path:
    path = root / "course" / "lessons" / f"{stem}.py"
    path.write_text(change(LESSON.format(title=title)), encoding="utf-8")
    return path


def first(root: Path) -> Path:
    return root / "notebooks" / "00_first.ipynb"


def built(root: Path, **options) -> build.Report:
    (path,) = build.sources(root, only=("00",))
    return build.build_lesson(path, root, **options)


def checked(root: Path) -> build.Report:
    (path,) = build.sources(root, only=("00",))
    return build.check_lesson(path, root)


def test_two_builds_give_the_same_bytes_and_a_check_agrees(root):
    report = built(root)
    assert report.ok, report
    assert report.written
    once = first(root).read_bytes()
    first(root).unlink()
    assert built(root).ok
    assert first(root).read_bytes() == once
    assert not built(root).written
    assert not built(root, run=False).written
    assert checked(root) == build.Report("00_first")
    assert [p.name for p in (root / "notebooks").iterdir()] == ["00_first.ipynb"]


def test_what_is_stored(done):
    book = nbformat.read(first(done), as_version=4)
    cells = {cell.id: cell for cell in book.cells}
    assert cells["top"].source.startswith("# First\n\n*Lesson 00. 5 minutes. CPU is enough.*")
    assert cells["start-text-1"].source == "There are 16 blocks, 31.2 % of them used."
    assert cells["numbers-again"].outputs[0].text == (
        "num_blocks = 16\n100 * used / num_blocks:.1f = 31.2\n"
    )
    assert [c.execution_count for c in book.cells if c.cell_type == "code"] == [1, 2, 3, 4]
    assert "version" not in book.metadata.language_info
    assert set(book.metadata) == {"kernelspec", "language_info", "course"}
    assert all("execution" not in cell.metadata for cell in book.cells)


def test_a_check_says_what_changed_and_writes_nothing(done):
    before = first(done).read_bytes()
    put(done, "00_first", "First", lambda t: t.replace("of them used", "in use"))
    report = checked(done)
    assert not report.ok
    assert "+There are 16 blocks, 31.2 % in use." in report.diff
    assert first(done).read_bytes() == before
    assert built(done, run=False).ok  # prose needs no new run
    assert checked(done).ok


def test_changed_code_needs_a_run(done):
    put(done, "00_first", "First", lambda t: t.replace("16, 5", "16, 6"))
    assert "+num_blocks, used = 16, 6" in checked(done).diff
    assert "start-code-1" in built(done, run=False).failure
    assert built(done).ok
    assert "37.5 %" in first(done).read_text()


def test_a_new_number_needs_a_run(done):
    put(done, "00_first", "First", lambda t: t.replace("of them", "of them, {{ used }},"))
    assert "numbers-again" in built(done, run=False).failure
    assert "{{ used }}" in checked(done).diff
    assert built(done).ok


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.cells[1].update(source="There are 17 blocks."), "-There are 17 blocks."),
        (lambda b: b.cells[2].update(id="other"), "-[code other]"),
        (lambda b: b.cells[2].metadata.update(tags=["x"]), "-[code start-code-1] x"),
        (lambda b: b.metadata.course.update(source_sha256="0"), "source_sha256"),
        (lambda b: b.metadata.update(widgets={}), "widgets"),
        (lambda b: b.cells.pop(), "+[markdown end]"),
        (lambda b: b.cells[2].update(execution_count=7), "execution_count"),
    ],
)
def test_a_check_finds_every_hand_edit(done, change, says):
    book = nbformat.read(first(done), as_version=4)
    change(book)
    first(done).write_text(build.text(book))
    assert says in checked(done).diff


def test_neighbours_and_lab_are_linked_when_they_exist(done):
    put(done, "01_second", "Second")
    assert "[01 Second](01_second.ipynb) →" in checked(done).diff
    (done / "course" / "labs").mkdir()
    (done / "course" / "labs" / "00_first.py").touch()
    (done / "exercises").mkdir()
    (done / "exercises" / "00_first.ipynb").touch()
    put_notebook = done / "notebooks" / "01_second.ipynb"
    put_notebook.write_text("{}")
    assert built(done, run=False).ok
    top = nbformat.read(first(done), as_version=4).cells[0].source
    assert "In the [lab](../exercises/00_first.ipynb) you build `BlockPool`." in top


def test_contents_list_the_other_lessons(done):
    change = "# %% [markdown]\n# <!-- contents -->\n\n# %% [markdown]\n# ## Check yourself"
    put(
        done,
        "00_first",
        "First",
        lambda t: t.replace("# %% [markdown]\n# ## Check yourself", change),
    )
    put(done, "01_second", "Second")
    (done / "notebooks" / "01_second.ipynb").write_text("{}")
    assert built(done, run=False).ok
    cells = nbformat.read(first(done), as_version=4).cells
    (table,) = [cell.source for cell in cells if "| lesson |" in cell.source]
    assert table.endswith("| [01 Second](01_second.ipynb) | What a cell is | 5 |")
    assert "00" not in table


def test_orphans_are_named(root):
    assert build.orphans(root) == []
    stray = root / "notebooks" / "07_gone.ipynb"
    stray.touch()
    assert build.orphans(root) == [stray]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ValueError('no such block')", "ValueError: no such block"),
        ("import time; time.sleep(30)", "ran longer than 2 s"),
        ("import os; os._exit(3)", "the kernel died"),
    ],
)
def test_a_cell_that_fails_stops_the_build(root, code, says):
    put(root, "00_first", "First", lambda t: t.replace("num_blocks, used = 16, 5", code))
    report = built(root, timeout=2)
    assert says in report.failure
    assert "start-code-1" in report.failure
    assert not first(root).exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("# %%\nnum", '# %% tags=["raises-exception"]\nnum', "raised nothing"),
        ('print("blocks"', "import warnings; warnings.warn('old'); print(\"b\"", "UserWarning"),
        ('print("blocks"', 'print(object(), "blocks"', "memory address"),
        ('print("blocks"', "import sys; print('/home/me/x', \"blocks\"", "/home/me"),
        (
            'print("blocks", num_blocks)',
            "import ipywidgets\nipywidgets.IntSlider()",
            "shows a widget",
        ),
        ("There are", "There are 3", "3 in prose"),
    ],
)
def test_a_broken_rule_is_reported_and_the_page_written(root, old, new, says):
    put(root, "00_first", "First", lambda t: t.replace(old, new))
    report = built(root)
    assert says in "\n".join(report.problems)
    assert report.written


def test_a_cell_may_raise_when_it_says_so(root):
    raising = '# %% tags=["raises-exception"]\nraise MemoryError("full")\n\n# %%\nnum_blocks, used'
    put(root, "00_first", "First", lambda t: t.replace("# %%\nnum_blocks, used", raising))
    assert built(root).ok


def nbval(notebook: Path) -> subprocess.CompletedProcess:
    """The way in which `make test` runs notebooks again."""
    options = ["-p", "course.authoring.nbval_plugin", "--nbval", "--nbval-current-env", "-q"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(notebook)]
    return subprocess.run(command, cwd=notebook.parent, capture_output=True, text=True, timeout=120)


def test_a_new_run_is_compared_with_the_stored_outputs(done):
    picture = (
        """display({"text/html": f'<img alt="x" src="data:image/png;base64,{data}">'}, raw=True)"""
    )
    code = f"data = base64.b64encode(b'some' * 9).decode()\n{picture}\nused / num_blocks"
    put(
        done,
        "00_first",
        "First",
        lambda t: t.replace("used / num_blocks\n\n# %% [m", code + "\n\n# %% [m"),
    )
    built(done)
    assert (again := nbval(first(done))).returncode == 0, again.stdout
    stored = first(done).read_text()
    # Another machine draws the same picture in other bytes: that alone is no difference.
    first(done).write_text(stored.replace("base64,c29tZ", "base64,b3RoZ"))
    assert first(done).read_text() != stored
    assert (again := nbval(first(done))).returncode == 0, again.stdout
    # A number that the notebook no longer computes is one.
    first(done).write_text(stored.replace("num_blocks = 16\\n", "num_blocks = 17\\n"))
    assert first(done).read_text() != stored
    again = nbval(first(done))
    assert again.returncode == 1
    assert "num_blocks = 17" in again.stdout
