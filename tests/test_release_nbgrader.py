"""nbgrader's own commands on the folder that `course release nbgrader` makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course.pins import ROOT
from course.practice import registry
from course.practice.source import reference_text, variant_text
from course.release import nbgrader, tree

pytest.importorskip("nbgrader", reason="nbgrader is not installed: make setup")
NAME = "04_block_tables"


def run(folder, *words):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it starts alembic
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words], cwd=folder, capture_output=True, text=True,
        timeout=280, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1",
                          "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def hand_in(folder, student, answers, change=lambda book: None):
    book = json.loads((folder / "release" / NAME / f"{NAME}.ipynb").read_text())
    for cell in book["cells"]:
        cell["source"] = answers.get(cell["id"], cell["source"])
    change(book)
    target = folder / "submitted" / student / NAME / f"{NAME}.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(book))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """(A course folder after generate, autograde and feedback, points and maximum by student)."""
    folder = tmp_path_factory.mktemp("nbgrader") / "course"
    tree.to_folder(nbgrader.course_folder([4]), folder)
    run(folder, "generate_assignment", NAME)
    right = {f"{e.key}-answer": reference_text(e) for e in registry.lab(4)}
    exercise = registry.find("slot_mapping")
    first = exercise.answers.mistakes[0]
    wrong = {**right, "04-slot_mapping-answer": variant_text(exercise, first)}
    hand_in(folder, "ada", right)
    hand_in(folder, "bob", {})
    hand_in(folder, "cyd", wrong)
    run(folder, "autograde", NAME)
    run(folder, "generate_feedback", NAME)
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "paged-attention") as book:
        found = {s.student.id: (s.score, s.max_score) for s in book.assignment_submissions(NAME)}
    return folder, found


def test_solved_gets_all_unsolved_nothing_and_a_wrong_one_its_part(graded):
    _, rows = graded
    points = {student: score for student, (score, _) in rows.items()}
    whole = sum(e.points for e in registry.lab(4))
    assert {most for _, most in rows.values()} == {whole}
    assert points["ada"] == whole
    assert points["bob"] == 0
    lost = registry.find("slot_mapping").points
    assert whole - lost < points["cyd"] < whole


def test_what_is_released_are_the_stubs_and_nothing_else(graded):
    folder, _ = graded
    ours = json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text())
    released = json.loads((folder / "release" / NAME / f"{NAME}.ipynb").read_text())
    mine = {c["id"]: "".join(c["source"]) for c in ours["cells"]}
    theirs = {c["id"]: "".join(c["source"]) for c in released["cells"]}
    assert list(mine) == list(theirs)
    changed = {key for key in mine if mine[key] != theirs[key]}
    assert changed <= {"top", "end"}  # links to lessons and solutions, which are not there
    assert "../" not in "".join(theirs.values())
    assert released["metadata"]["course"]["release"] == ours["metadata"]["course"]["release"]
    assert not any(c.get("outputs") for c in released["cells"])


def test_feedback_names_the_mistake_and_no_engine_is_left_behind(graded):
    folder, _ = graded
    page = (folder / "feedback" / "cyd" / NAME / f"{NAME}.html").read_text()
    assert registry.find("slot_mapping").answers.mistakes[0].name in page
    assert not list(folder.rglob("my_engine"))


def test_its_own_grader_takes_the_same_folder(graded):
    from course.grading import intake

    folder, _ = graded
    found = intake.collect(folder / "submitted")
    assert [handed.owner.student for handed in found.students] == ["ada", "bob", "cyd"]


@pytest.mark.parametrize("lab", registry.labs(), ids=lambda n: f"lab_{n:02d}")
def test_every_lab_is_a_valid_assignment(lab):
    made = nbgrader.course_folder([lab])
    (name,) = [n for n in made if n.endswith(".ipynb")]
    book = nbformat.reads(made[name].decode(), as_version=4)
    nbformat.validate(book)
    told = [cell.metadata.get("nbgrader", {}) for cell in book.cells]
    ids = [t["grade_id"] for t in told if t]
    assert len(ids) == len(set(ids))
    assert sum(t.get("points", 0) for t in told if t.get("grade")) == sum(
        e.points for e in registry.lab(lab)
    )
    assert nbgrader.limit([lab]) >= 120
    compile(made["nbgrader_config.py"], "nbgrader_config.py", "exec")
