"""Labs: one source, two notebooks; stubs fail kindly, the reference fits, ids stay."""

import ast
import copy
import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell

from course.authoring import blank, labs
from course.authoring.build import ROOT, text
from course.practice import keep, registry
from course.practice.source import clean, reference_text

SOURCES = labs.sources()
LAB_04 = next(path for path in SOURCES if path.stem.startswith("04"))  # whose text tests change
IDS = Path(__file__).with_name("lab_ids.json")
by_lab = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def book(folder, path):
    return nbformat.read(ROOT / folder / f"{path.stem}.ipynb", as_version=4)


def run(notebook, engine, **env):
    """Run a notebook as a learner would, in exercises/; errors are left in the outputs."""
    notebook = copy.deepcopy(notebook)
    client = NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(ROOT / "exercises")}},
    )
    client.execute(env={**os.environ, "COURSE_MY_ENGINE": str(engine), "COURSE_STATIC": "1", **env})
    return notebook


def shown(cell):
    return "\n".join(
        str(o.get("text", "")) + str(o.get("data", {}).get("text/plain", "")) for o in cell.outputs
    )


def cell_of(notebook, cell_id):
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def test_every_lab_has_a_bank_and_every_bank_a_lab():
    assert [int(path.stem[:2]) for path in SOURCES] == list(registry.labs())
    assert not labs.orphans()


@by_lab
def test_a_rebuild_changes_no_cell(path):
    for report in labs.check_lab(path):
        assert report.ok, f"{report.name}: {report.failure}\n{report.diff}\n{report.problems}"


@by_lab
def test_an_untouched_lab_runs_to_its_end_without_an_error(path, tmp_path):
    ran = run(book("exercises", path), tmp_path)
    for cell in ran.cells:
        if cell.cell_type != "code":
            continue
        assert not [o for o in cell.outputs if o.output_type == "error"], (cell.id, cell.outputs)
        assert "Traceback" not in shown(cell)
        assert not [o for o in cell.outputs if o.get("name") == "stderr"], cell.id
        if cell.id.endswith("-check"):
            assert ": not yet.\n" in shown(cell), shown(cell)
    assert not list(tmp_path.glob("*.py"))


@pytest.mark.slow
@by_lab
def test_the_reference_pasted_into_each_stub_passes_and_is_saved(path, tmp_path):
    notebook = book("exercises", path)
    for exercise in labs.read_lab(path).exercises:
        cell_of(notebook, f"{exercise.key}-answer").source = reference_text(exercise)
    ran = run(notebook, tmp_path)
    for exercise in labs.read_lab(path).exercises:
        said = shown(cell_of(ran, f"{exercise.key}-check"))
        assert labs.PASSED.search(said), said
        assert "Saved" in said, said
        assert (tmp_path / f"{exercise.key}.py").exists()
    assert f"{len(registry.lab(int(path.stem[:2])))} of " in shown(cell_of(ran, "progress"))


@by_lab
def test_solving_only_adds_lines(path):
    for exercise in labs.read_lab(path).exercises:
        if exercise.kind != "write":
            continue
        before, after = blank.stub(exercise).splitlines(), reference_text(exercise).splitlines()
        gone = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("- ")]
        assert gone
        assert all("raise NotImplementedError(" in line for line in gone), gone
        assert len(gone) == max(1, len(exercise.blank))


@by_lab
def test_both_notebooks_are_the_same_but_for_the_answers(path):
    exercises, solutions = (
        {c.id: c for c in book(folder, path).cells} for folder in ("exercises", "solutions")
    )
    answers = {f"{e.key}-answer" for e in labs.read_lab(path).exercises}
    told = {"top", "setup", "end", "progress", "where-you-are"}
    for cell_id, cell in exercises.items():
        if cell_id in answers | told:
            continue
        assert solutions[cell_id].source == cell.source, cell_id
    for cell_id in answers:
        assert solutions[cell_id].source != exercises[cell_id].source
        assert solutions[cell_id].metadata == exercises[cell_id].metadata
    more = set(solutions) - set(exercises)
    assert all(cell_id.endswith(("-why", "-wrong")) for cell_id in more)


@by_lab
def test_solutions_are_run_and_say_why(path):
    notebook = book("solutions", path)
    for exercise in labs.read_lab(path).exercises:
        assert labs.PASSED.search(shown(cell_of(notebook, f"{exercise.key}-check")))
        why = cell_of(notebook, f"{exercise.key}-why").source
        assert clean(exercise.answers.why)[:40] in why
        wrong = shown(cell_of(notebook, f"{exercise.key}-wrong"))
        assert "comes out when" in wrong
        assert exercise.answers.shown[:30] in " ".join(wrong.split())


@by_lab
def test_an_exercise_notebook_is_stored_clean(path):
    notebook = book("exercises", path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert not keep.is_theirs(json.loads(text(notebook)))
    # Nothing in it gives an answer away.
    for exercise in labs.read_lab(path).exercises:
        if exercise.kind == "write":
            whole = "\n".join(cell.source for cell in notebook.cells)
            start, end = _hole_lines(exercise)
            body = reference_text(exercise).splitlines()[start - 1 : end]
            longest = max(body, key=len).strip()
            assert longest not in whole, longest


def _hole_lines(exercise):
    name, given = next(iter(blank.bodies(exercise).items()))
    place = blank.hole(reference_text(exercise), name, given)
    return place.start, place.end


# ---- ids, and nbgrader --------------------------------------------------------------------------


def ids_of(path):
    found = {}
    for cell in book("exercises", path).cells:
        if grader := cell.metadata.get("nbgrader"):
            found[cell.id] = grader["grade_id"]
    return found


@by_lab
def test_ids_never_change(path):
    """New ones may come (python tests/test_labs.py writes them down); none may go or change."""
    stored = json.loads(IDS.read_text(encoding="utf-8")).get(path.stem)
    assert stored is not None, f"write the ids of {path.stem} down: python tests/test_labs.py"
    now = ids_of(path)
    gone = {cell_id: grade for cell_id, grade in stored.items() if now.get(cell_id) != grade}
    assert not gone, f"ids that submissions are found by are gone or changed: {gone}"


@by_lab
def test_nbgrader_takes_the_notebooks(path):
    from nbgrader.nbgraderformat import MetadataValidator

    for folder in ("exercises", "solutions"):
        notebook = book(folder, path)
        MetadataValidator().validate_nb(notebook)
        exercises = labs.read_lab(path).exercises
        grades = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
        answers = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution")]
        assert [c.metadata.nbgrader.points for c in grades] == [e.points for e in exercises]
        assert [c.id for c in answers] == [f"{e.key}-answer" for e in exercises]
        for cell in grades:
            assert cell.metadata.nbgrader.locked
            assert cell.metadata.editable is False
            assert cell.metadata.deletable is False
        for cell in answers:
            assert not cell.metadata.nbgrader.locked
            assert "editable" not in cell.metadata


@pytest.mark.slow
@by_lab
def test_nbgrader_generates_and_grades(path, tmp_path):
    """nbgrader's own generate_assignment and autograde, on the untouched and on the solved lab."""
    release, graded = _nbgrader(path, tmp_path)
    total = sum(e.points for e in labs.read_lab(path).exercises)
    assert graded == {"untouched": (0, total), "solved": (total, total), "half": graded["half"]}
    assert 0 < graded["half"][0] < total
    for cell in release.cells:
        if grader := cell.metadata.get("nbgrader"):
            assert ("checksum" in grader) or grader["solution"]
            assert grader["cell_type"] == cell.cell_type


def _nbgrader(path, folder):
    name = f"lab{path.stem[:2]}"
    exercises = labs.read_lab(path).exercises
    source = folder / "source" / name
    source.mkdir(parents=True)
    untouched = book("exercises", path)
    nbformat.write(untouched, source / "lab.ipynb")
    solved, half = copy.deepcopy(untouched), copy.deepcopy(untouched)
    for number, exercise in enumerate(exercises):
        cell_of(solved, f"{exercise.key}-answer").source = reference_text(exercise)
        if number % 2 == 0:
            cell_of(half, f"{exercise.key}-answer").source = reference_text(exercise)
    (folder / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        f"c.CourseDirectory.root = {str(folder)!r}\n"
        "c.ExecutePreprocessor.timeout = 240\n"
        "c.Execute.timeout = 240\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COURSE_MY_ENGINE": str(folder / "engine"),
        # nbgrader calls alembic by its name.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    call("generate_assignment", name)
    release = nbformat.read(folder / "release" / name / "lab.ipynb", as_version=4)
    for student, notebook in [("untouched", untouched), ("solved", solved), ("half", half)]:
        place = folder / "submitted" / student / name
        place.mkdir(parents=True)
        nbformat.write(notebook, place / "lab.ipynb")
    call("autograde", name)
    from nbgrader.api import Gradebook

    graded = {}
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        for student in ("untouched", "solved", "half"):
            submission = gradebook.find_submission(name, student)
            graded[student] = (submission.score, submission.max_score)
    return release, graded


# ---- a learner's kernel -------------------------------------------------------------------------

NASTY = {
    "endless loop": ("while True: pass", "is there an endless loop?"),
    "swallows everything": (
        "while True:\n        try: 1 + 1\n        except BaseException: pass",
        "is there an endless loop?",
    ),
    "leaves": ("raise SystemExit", "SystemExit"),
    "closes stdout": ("import sys; sys.stdout.close(); return 3", "expected"),
    "own line": ("return 1 // 0", "in line 2 of your cell: return 1 // 0"),
}


@pytest.mark.slow
def test_no_answer_takes_the_kernel_along(tmp_path):
    """In one kernel, one after the other; a magic and a helper beside the answer are fine, too."""
    cells = [new_code_cell("from course.practice import check, progress, resume")]
    for body, _ in NASTY.values():
        cells.append(new_code_cell(f"def blocks_needed(num_tokens, block_size):\n    {body}"))
        cells.append(new_code_cell("check(blocks_needed)"))
    right = (
        "%matplotlib inline\n"
        "def _refuse(*sizes):\n"
        "    if sizes[0] < 0 or sizes[1] < 1: raise ValueError(sizes)\n\n"
        "def blocks_needed(num_tokens, block_size):\n"
        "    _refuse(num_tokens, block_size)\n"
        "    return -(-num_tokens // block_size)\n"
        "print('a call', blocks_needed(8, 4))"
    )
    cells += [
        new_code_cell(right),
        new_code_cell("check(blocks_needed)"),
        new_code_cell("x = 1\ncheck(blocks_needed);\nprint('after')"),
        new_code_cell("class BlockPool:\n    def allocate(self, count=1):\n        return 3"),
        new_code_cell("check(BlockPool)"),
        new_code_cell("failing_calls = [('A', 17), ('B', 1)]"),
        new_code_cell("check(failing_calls, '4.4')"),
        new_code_cell("del blocks_needed\n_ = resume('blocks_needed')\nblocks_needed(9, 4)"),
    ]
    ran = run(nbformat.v4.new_notebook(cells=cells), tmp_path)
    for cell in ran.cells:
        assert not [o for o in cell.outputs if o.output_type == "error"], (
            cell.source,
            cell.outputs,
        )
    for place, (_, says) in enumerate(NASTY.values()):
        assert says in shown(ran.cells[2 + 2 * place]), shown(ran.cells[2 + 2 * place])
    after = ran.cells[1 + 2 * len(NASTY) :]
    assert "all 5 behaviours hold" in shown(after[1])
    assert "Saved to your engine. 1 of" in shown(after[1])
    assert shown(after[2]).count("all 5 behaviours hold") == 1  # shown once, though it is not last
    assert "BlockPool() takes no arguments" in shown(after[4])
    assert "Saved." in shown(after[6])
    assert "Yours: blocks_needed." in shown(after[7])
    assert "3" in shown(after[7])
    saved = (tmp_path / "04-blocks_needed.py").read_text()
    assert "_refuse" in saved
    assert "print" not in saved
    assert "%matplotlib" not in saved


@pytest.mark.slow
def test_an_answer_is_judged_by_itself(tmp_path):
    """A wrong earlier answer in the same notebook is named, and does not make a right one wrong."""
    grow = reference_text(registry.find("grow_table"))
    wrong = "def blocks_needed(num_tokens, block_size):\n    {}"
    cells = [
        "from course.practice import check\nfrom course.engine import BlockPool",
        wrong.format("return num_tokens // block_size"),
        grow,
        "check(grow_table)",
        wrong.format("return 1 // 0"),
        grow.replace("return True", "return 1"),
        "check(grow_table)",
    ]
    ran = run(nbformat.v4.new_notebook(cells=list(map(new_code_cell, cells))), tmp_path)
    said = shown(ran.cells[3])
    assert "all 4 behaviours hold" in said
    assert "By itself it is right. In this notebook it uses your blocks_needed" in said
    assert "expected a bool (True)   got an int (1)" in shown(ran.cells[6])


# ---- theirs stays theirs ------------------------------------------------------------------------


@pytest.fixture
def released(tmp_path):
    notebook = book("exercises", LAB_04)
    return text(notebook), tmp_path / "04_block_tables.ipynb"


def _changed(whole, change):
    notebook = nbformat.reads(whole, as_version=4)
    change(notebook)
    return text(notebook)


def _new_release(notebook):
    notebook.cells[0].source += "\n\nNew words."
    notebook.metadata.course["release"] = keep.fingerprint(notebook)


def test_a_notebook_that_nobody_touched_is_renewed(released):
    old, target = released
    assert keep.put(old, target).state == "written"
    assert keep.put(old, target).state == "unchanged"
    new = _changed(old, _new_release)
    assert keep.put(new, target).state == "written"
    assert target.read_text() == new
    # Opened and saved by another program: other spacing, other settings, the same cells.
    saved = json.loads(new)
    saved["metadata"]["language_info"]["version"] = "3.12.1"
    target.write_text(json.dumps(saved))
    assert keep.put(old, target).state == "written"


THEIRS = {
    "answered": lambda b: cell_of(b, "04-slot_mapping-answer").update(source="def f(): pass"),
    "a cell added": lambda b: b.cells.append(new_markdown_cell("my note", id="mine")),
    "a cell removed": lambda b: b.cells.pop(),
    "cells moved": lambda b: b.cells.insert(0, b.cells.pop()),
    "only run": lambda b: cell_of(b, "setup").update(
        outputs=[nbformat.v4.new_output("stream", text="x")]
    ),
    "its mark removed": lambda b: b.metadata.pop("course"),
}


@pytest.mark.parametrize("change", THEIRS.values(), ids=THEIRS)
def test_a_notebook_that_somebody_worked_in_is_kept(released, change):
    old, target = released
    theirs = _changed(old, change)
    target.write_text(theirs)
    new = _changed(old, _new_release)
    for _ in range(2):
        found = keep.put(new, target)
        assert (found.state, found.path.name) == ("beside", "04_block_tables.new.ipynb")
        assert target.read_text() == theirs
        assert found.path.read_text() == new
    # They worked in the new one as well: that is kept, too.
    found.path.write_text(_changed(new, change))
    newer = _changed(new, _new_release)
    again = keep.put(newer, target)
    assert again.path.name == "04_block_tables.new2.ipynb"
    assert found.path.read_text() == _changed(new, change)
    assert target.read_text() == theirs


def test_nothing_is_put_beside_work_on_the_same_release(released):
    old, target = released
    target.write_text(_changed(old, THEIRS["answered"]))
    assert keep.put(old, target).state == "kept"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_damaged_notebook_is_kept_as_it_is(released, content):
    old, target = released
    target.write_bytes(content)
    assert keep.put(old, target).state == "beside"
    assert target.read_bytes() == content


def test_an_update_brings_a_whole_folder(released, tmp_path):
    old, _ = released
    new_folder, mine = tmp_path / "new", tmp_path / "mine"
    new_folder.mkdir()
    (new_folder / "04_a.ipynb").write_text(old)
    (new_folder / "05_b.ipynb").write_text(old)
    mine.mkdir()
    (mine / "04_a.ipynb").write_text(_changed(_changed(old, _new_release), THEIRS["answered"]))
    done = subprocess.run(
        [sys.executable, "-m", "course.practice.keep", str(new_folder), str(mine)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "04_a.new.ipynb: yours is kept; the new one is beside it" in done.stdout
    assert "05_b.ipynb: new" in done.stdout
    assert sorted(p.name for p in mine.iterdir()) == [
        "04_a.ipynb", "04_a.new.ipynb", "05_b.ipynb",
    ]  # fmt: skip


# ---- the build says what is wrong ---------------------------------------------------------------


@pytest.fixture
def course(tmp_path):
    """A course of lab 04 alone, never built."""
    folder = tmp_path / "course" / "labs"
    folder.mkdir(parents=True)
    for name in ("lessons", "engine"):
        (tmp_path / "course" / name).mkdir()
    source = folder / LAB_04.name
    source.write_text(LAB_04.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path, source


WRONG = [
    ('exercise="4.3"', 'exercise="4.99"', "there is no exercise '4.99'"),
    ('# %% [markdown] exercise="4.3"\n', "# %% [markdown]\n", "its bank has"),
    ("# title: Block tables\n", "# needs: CPU\n", "needs 'title:'"),
    ("# title: Block tables\n", "# title: Block tables\n# minutes: 3\n", "'minutes'"),
    ("# is one line,", "# is {{ n }} line,", "no computed numbers"),
    ("# ## What is left", "# #### What is left", "skips from level"),
    ("full.", "full. " + "word " * 90, "words of prose; at most 80"),
    ("full.", "full, at 87 %.", "87 % in prose"),
    ("full.", "full. [x](nowhere.ipynb)", "leads nowhere"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG, ids=[w[2] for w in WRONG])
def test_what_is_wrong_with_a_source_is_said(course, old, new, says):
    root, source = course
    whole = source.read_text(encoding="utf-8").replace("It is one line,", "It\n# is one line,")
    assert old in whole
    source.write_text(whole.replace(old, new), encoding="utf-8")
    for folder in ("exercises", "solutions"):
        (root / folder).mkdir()
        stored = (ROOT / folder / f"{source.stem}.ipynb").read_text(encoding="utf-8")
        (root / folder / f"{source.stem}.ipynb").write_text(stored, encoding="utf-8")
    reports = labs.build_lab(source, root, run=False)
    assert says in "\n".join([r.failure + "\n".join(r.problems) for r in reports])


def test_a_solution_that_does_not_pass_fails_the_build():
    notebook = book("solutions", LAB_04)
    assert not list(labs.solved_checks(notebook))
    cell_of(notebook, "04-slot_mapping-check").outputs = []
    (problem,) = labs.solved_checks(notebook)
    assert "04-slot_mapping-check" in problem


# ---- taking bodies out --------------------------------------------------------------------------

TEXT = '''import math


class Pool:
    """Words."""

    size = 3  # given

    def __init__(self):
        self.a = 1

    @property
    def free(self) -> int:
        """Doc."""
        # why
        x = 1

        return x  # because

    def method(
        self, a,
        b=2,
    ):
        first = a
        # about second
        second = b

        # about last
        return first + second


@decorated(grid=(1,))
def kernel(x, BLOCK: int = 4):
    if x:
        return 1
    return 2
'''


def blanked(**bodies):
    named = {name.replace("_dot_", "."): given for name, given in bodies.items()}
    return blank.blank(TEXT, "9.9", named)


def test_bodies_go_and_the_rest_stays():
    made = blanked(Pool_dot_free=(0, 0), Pool_dot_method=(1, 1), kernel=(0, 0))
    ast.parse(made)
    lost = [d[2:] for d in difflib.ndiff(TEXT.splitlines(), made.splitlines()) if d[:2] == "- "]
    assert lost == [
        "        # why",
        "        x = 1",
        "",
        "        return x  # because",
        "        # about second",
        "        second = b",
        "    if x:",
        "        return 1",
        "    return 2",
    ]
    assert made.count("raise NotImplementedError") == 3
    assert '        """Doc."""\n        raise NotImplementedError("9.9: write Pool.free")' in made
    assert "        # about last\n        return first + second" in made
    assert "@decorated(grid=(1,))\ndef kernel(x, BLOCK: int = 4):\n    raise" in made


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        ({"Pool_dot_nothing": (0, 0)}, "there is no function Pool.nothing"),
        ({"Pool_dot_free": (1, 1)}, "none is left to write"),
    ],
)
def test_what_cannot_be_taken_out(bodies, says):
    with pytest.raises(blank.BlankError, match=says):
        blanked(**bodies)
    with pytest.raises(blank.BlankError, match="on one line"):
        blank.blank("def f(): return 1\n", "9.9", {"f": (0, 0)})


def test_a_triton_kernel_can_be_blanked():
    made = blank.blank(
        "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n"
        "    # one program for each block\n    i = tl.program_id(0)\n    tl.store(x_ptr + i, 1)\n",
        "5.4",
        {"k": (0, 0)},
    )
    assert made == (
        "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n"
        '    raise NotImplementedError("5.4: write k")\n'
    )


@by_lab
def test_a_worker_of_the_grader_sees_no_answer(path):
    for exercise in labs.read_lab(path).exercises:
        if exercise.kind != "write" or not exercise.symbol.startswith("course.engine"):
            continue
        module, made = blank.blank_module(exercise)
        ast.parse(made)
        assert module == exercise.symbol.partition(":")[0]
        start, end = _hole_lines(exercise)
        body = "\n".join(reference_text(exercise).splitlines()[start - 1 : end])
        assert body not in made


if __name__ == "__main__":
    known = json.loads(IDS.read_text(encoding="utf-8")) if IDS.exists() else {}
    for source in SOURCES:
        known.setdefault(source.stem, {})
        known[source.stem] = {**ids_of(source), **known[source.stem]}
    IDS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def test_of_a_long_wrong_version_only_the_changes_are_shown():
    right = "def f():\n" + "".join(f"    a{n} = {n}\n" for n in range(90)) + "    return a1"
    wrong = right.replace("a40 = 40", "a40 = 41").replace("a80 = 80\n", "a80 = 80\n    extra = 1\n")
    shown = labs._around_changes(right, wrong).splitlines()
    assert shown[0] == "# ... as above"
    assert "a40 = 41" in shown
    assert "extra = 1" in shown
    assert shown.count("# ... as above") == 2
    assert len(shown) == 2 + 9 + 9
