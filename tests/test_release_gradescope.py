"""The autograder's zip, run in Gradescope's layout in a folder of our own."""

import json
import os
import stat
import subprocess
import sys
import zipfile

import pytest
from test_exports_tables import read_as_gradescope

from course.grading import isolation
from course.pins import ROOT
from course.practice import registry
from course.practice.source import reference_text, variant_text
from course.release import container, gradescope, tree

NOTEBOOK = "04_block_tables.ipynb"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("zip") / "lab.zip"
    tree.to_zip(gradescope.autograder(4, seed="fixed"), path)
    return path


@pytest.fixture
def home(archive, tmp_path):
    """/autograder as Gradescope lays it out, before a run."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "source")
    (tmp_path / "submission").mkdir()
    (tmp_path / "results").mkdir()
    told = {"id": 1, "users": [{"email": "cyd@example.org", "id": 7, "name": "Cyd"}]}
    (tmp_path / "submission_metadata.json").write_text(json.dumps(told))
    return tmp_path


def hand_in(home, answers, name=NOTEBOOK):
    book = json.loads((ROOT / "exercises" / NOTEBOOK).read_text())
    for cell in book["cells"]:
        cell["source"] = answers.get(cell["id"], cell["source"])
    (home / "submission" / name).write_text(json.dumps(book))


def run(home, **env):
    """run_autograder, as Gradescope starts it; (exit status, results, what teachers see)."""
    done = subprocess.run(
        ["bash", str(home / "source" / "run_autograder")], capture_output=True, text=True,
        timeout=280, cwd=home,
        env={**os.environ, "AUTOGRADER_HOME": str(home), "COURSE_PYTHON": sys.executable, **env},
    )  # fmt: skip
    text = (home / "results" / "results.json").read_text()
    read_as_gradescope(text)
    return done.returncode, json.loads(text), done.stdout + done.stderr


def test_the_zip_has_its_scripts_at_the_root_and_can_run_them(archive):
    with zipfile.ZipFile(archive) as packed:
        modes = {i.filename: i.external_attr >> 16 for i in packed.infolist()}
        names = set(modes)
        scripts = {name: packed.read(name).decode() for name in ("setup.sh", "run_autograder")}
    for name, text in scripts.items():
        assert modes[name] & stat.S_IXUSR
        assert text.startswith("#!/usr/bin/env bash\n")
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert f"exercises/{NOTEBOOK}" in names
    assert not any(name.startswith(("solutions/", "tests/", "course/lessons")) for name in names)


def test_a_submission_is_graded_and_says_what_kept_it_in(home, tmp_path):
    exercise = registry.find("slot_mapping")
    answers = {f"{e.key}-answer": reference_text(e) for e in registry.lab(4)}
    answers["04-slot_mapping-answer"] = variant_text(exercise, exercise.answers.mistakes[0])
    hand_in(home, answers)
    (home / "submission" / "notes.txt").write_text("beside it")
    (home / "submission" / "link.ipynb").symlink_to("/etc/passwd")
    if not isolation.find(tmp_path / "rooms").sufficient:
        code, told, output = run(home)
        assert code == 1
        assert "keep" in told["output"]
        pytest.skip("nothing on this machine keeps submissions in; it was refused, as it must be")
    code, told, output = run(home)
    assert code == 0, output
    whole = sum(e.points for e in registry.lab(4))
    assert whole - exercise.points < told["score"] < whole
    assert [t["number"] for t in told["tests"]] == [e.id for e in registry.lab(4)]
    (wrong,) = [t for t in told["tests"] if t["status"] == "failed"]
    assert exercise.answers.mistakes[0].name in wrong["output"]
    assert "Isolation: " in told["output"]
    assert "attempts to get out were refused" in output


def test_what_cannot_be_graded_still_has_results(home):
    code, told, _ = run(home)  # nothing was handed in
    assert told["score"] == 0
    assert "no notebook" in told["output"].lower()
    hand_in(home, {}, "05_other.ipynb")
    (home / "source" / "release.json").unlink()
    code, told, output = run(home)
    assert code == 1
    assert "tell your teacher" in told["output"]
    assert "release.json" in output
    assert "release.json" not in told["output"]
    code, told, _ = run(home, COURSE_PYTHON="/nowhere/python")
    assert code != 0
    assert "did not start" in told["output"]


def test_without_isolation_it_refuses_aloud(home, monkeypatch, capsys):
    def refuse(options, *more):
        assert not options.allow_unsandboxed
        raise PermissionError("this machine cannot keep submissions in")

    monkeypatch.setattr(container.run, "grade", refuse)
    monkeypatch.setattr(sys, "argv", ["container", str(home)])
    assert container.main() == 1
    told = json.loads((home / "results" / "results.json").read_text())
    assert "not graded" in told["output"]
    assert told["score"] == 0
    assert "cannot keep submissions in" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["", "{}", '{"users": 3}', '{"users": [{"id": 5}]}', '{"users": []}', "[1]"]
)
def test_metadata_may_say_anything(home, words):
    (home / "submission_metadata.json").write_text(words)
    assert container.student(home) == ("5" if "5" in words else "student")


def test_an_index_and_the_wish_to_do_without_isolation_are_baked_in():
    made = gradescope.autograder(4, unsandboxed=True, index="https://example.org/cpu")
    assert "PIP_EXTRA_INDEX_URL='https://example.org/cpu'" in made["setup.sh"].decode()
    assert json.loads(made["release.json"])["unsandboxed"] is True
    seeds = {json.loads(gradescope.autograder(4)["release.json"])["seed"] for _ in range(2)}
    assert len(seeds) == 2
