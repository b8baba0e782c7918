"""A class from the command line: progress on disk, kills and resumes, shards, what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import grading_class as school
import pytest
from typer.testing import CliRunner

from course.cli import app
from course.grading import isolation, results, run
from course.grading.session import Limits
from course.pins import ROOT

SEED = "a class"
ONLY = ("blocks_needed", "slot_mapping", "failing_calls")


@pytest.fixture(scope="module", autouse=True)
def _isolated(tmp_path_factory):
    report = isolation.find(tmp_path_factory.mktemp("probe"))
    if not report.sufficient:
        pytest.skip(f"no isolation on this machine: {report.why_not}")


@pytest.fixture(scope="module")
def school_class(tmp_path_factory):
    """(folder, points wanted) of a small class of every kind."""
    folder = tmp_path_factory.mktemp("class")
    return folder, school.make_class(folder, 14, SEED, quick=True, only=ONLY)


def command(folder: Path, out: Path, *more: str) -> list[str]:
    words = ["-m", "course", "grade", str(folder), "--out", str(out), "--lab", "04"]
    return [sys.executable, *words, "--seed", SEED, "--jobs", "2", *more]


def grade(folder: Path, out: Path, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(folder, out, *more), capture_output=True, text=True, cwd=ROOT, timeout=280
    )


@pytest.fixture(scope="module")
def whole(school_class, tmp_path_factory):
    """The class graded in one go."""
    out = tmp_path_factory.mktemp("whole") / "out"
    done = grade(school_class[0], out, "--json")
    assert done.returncode == 0, done.stderr
    return results.read_class(out / "results.json"), json.loads(done.stdout)


def test_everybody_gets_the_points_that_their_answers_are_worth(school_class, whole):
    result, summary = whole
    points = {s.student: s.points for s in result.submissions}
    for student, (wanted, exactly) in school_class[1].items():
        assert points[student] == wanted if exactly else points[student] <= wanted, student
    assert summary["submissions"] == len(points) == len(school_class[1])
    assert summary["missing"] == summary["errors"] == []
    assert summary["states"].keys() == {"graded", "damaged", "no notebook"}
    assert summary["sufficient"] is True
    assert result.peak_memory > 0


def test_results_say_all_that_a_report_needs(whole):
    result, _ = whole
    graded = [s for s in result.submissions if s.state == "graded"]
    assert all(len(s.exercises) == 7 and s.of == school.OF for s in graded)
    assert all(s.fingerprint and s.isolation for s in result.submissions)
    behaviours = [b for s in graded for e in s.exercises for b in e.behaviours]
    assert {b.state for b in behaviours} == {"holds", "wrong", "not written"}
    for s in graded:
        for e in s.exercises:
            assert e.of == pytest.approx(sum(b.points for b in e.behaviours), abs=0.01)
            held = sum(b.points for b in e.behaviours if b.state == "holds")
            assert e.points == pytest.approx(held, abs=0.02)
    assert any(e.mistake and e.mistake_note for s in graded for e in s.exercises)


def test_students_read_nothing_hidden(whole):
    result, _ = whole
    seen = 0
    for s in result.submissions:
        for e in s.exercises:
            words = " ".join(e.feedback)
            assert "/work" not in words
            assert "Traceback" not in words
            for b in e.behaviours:
                if b.detail and not b.public:
                    seen += 1
                    inputs = b.detail.partition(";")[0]
                    assert inputs not in words
                    assert "not in the notebook" in b.says
    assert seen


def wait_for(out: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while len(list(out.glob("partial/*.json"))) < count:
        assert time.monotonic() < deadline
        assert process.poll() is None, "it was done before it could be killed"
        time.sleep(0.02)


def mine(out: Path) -> list[int]:
    """Processes of this run that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"COURSE_TEST_RUN={out}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_killed_twice_and_resumed_the_results_are_the_same(school_class, whole, tmp_path):
    out = tmp_path / "out"
    env = {**os.environ, "COURSE_TEST_RUN": str(out)}
    for count, more in ((2, ()), (6, ("--resume",))):
        process = subprocess.Popen(
            command(school_class[0], out, *more), cwd=ROOT, env=env, stderr=subprocess.DEVNULL
        )
        wait_for(out, count, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while mine(out) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert mine(out) == []
        assert not (out / "results.json").exists()
    before = {p.name: p.stat().st_mtime_ns for p in out.glob("partial/*.json")}
    done = grade(school_class[0], out, "--resume")
    assert done.returncode == 0, done.stderr
    after = {p.name: p.stat().st_mtime_ns for p in out.glob("partial/*.json")}
    assert all(after[name] == changed for name, changed in before.items())  # not graded again
    found = results.read_class(out / "results.json")
    assert results.comparable(found) == results.comparable(whole[0])


def test_parts_put_together_are_the_whole(school_class, whole, tmp_path):
    out = tmp_path / "out"
    processes = [
        subprocess.Popen(
            command(school_class[0], out, "--shard", f"{number}/3", "--jobs", "1"), cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for number in (1, 2)
    ]  # fmt: skip
    assert [p.wait(timeout=250) for p in processes] == [0, 0]
    early = grade(school_class[0], out, "--merge")
    assert early.returncode == 1
    assert "Missing" in early.stdout
    assert grade(school_class[0], out, "--shard", "3/3").returncode == 0
    assert grade(school_class[0], out, "--merge").returncode == 0
    found = results.read_class(out / "results.json")
    assert results.comparable(found.submissions and found) == results.comparable(whole[0])


# ---- Smaller things, in this process ------------------------------------------------------------


@pytest.fixture
def one(tmp_path):
    """Options for a class of one untouched notebook."""
    school.put(tmp_path / "in", "ann.ipynb", school.book())
    return run.Options(tmp_path / "in", tmp_path / "out", lab=4, seed=SEED, limits=Limits(30))


def test_a_second_run_into_the_same_folder_wants_resume(one):
    run.grade(one)
    with pytest.raises(ValueError, match="--resume"):
        run.grade(one)
    (found,) = run.grade(replace(one, resume=True)).submissions
    assert found.student == "ann"
    with pytest.raises(ValueError, match="another --seed"):
        run.grade(replace(one, resume=True, seed="other"))
    with pytest.raises(ValueError, match="another --lab"):
        run.grade(replace(one, resume=True, lab=None))


def test_a_notebook_that_was_handed_in_anew_is_graded_anew(one):
    run.grade(one)
    school.put(one.submissions, "ann.ipynb", school.book({"blocks_needed": "blocks_needed = 1"}))
    os.utime(one.submissions / "ann.ipynb", (5, 5))
    (found,) = run.grade(replace(one, resume=True)).submissions
    assert [e.state for e in found.exercises].count("wrong") == 1


def test_half_a_partial_result_is_none(one):
    run.grade(one)
    (path,) = (one.out / "partial").glob("*.json")
    path.write_text(path.read_text()[:500])
    (found,) = run.grade(replace(one, resume=True)).submissions
    assert found.state == "graded"


def test_without_isolation_it_refuses_and_says_how_to_go_on(one, monkeypatch):
    monkeypatch.setattr("course.grading.sandbox.is_there", lambda level: "not today")
    with pytest.raises(PermissionError, match="--allow-unsandboxed"):
        run.grade(one)
    assert not list(one.out.glob("partial/*"))
    monkeypatch.setattr("course.grading.sandbox.is_there", lambda level: level != "none" and "no")
    found = run.grade(replace(one, allow_unsandboxed=True))
    assert not found.isolation.sufficient
    assert "no isolation" in found.submissions[0].isolation


def test_copies_other_labs_and_things_beside_are_named(one):
    folder = one.submissions
    old = school.put(folder, "bob/old.ipynb", school.book())
    os.utime(old, (1000, 1000))
    school.put(
        folder, "bob/new.ipynb", school.book({"blocks_needed": school.right()["blocks_needed"]})
    )
    school.put(folder, "bob/data.csv", b"1")
    other = school.book()
    other["metadata"]["course"]["lab"] = 3
    school.put(folder, "cleo/03.ipynb", other)
    broken = school.put(folder, "dan/a.ipynb", school.book())
    os.utime(broken, (1000, 1000))
    school.put(folder, "dan/b.ipynb", b"oops")
    found = {s.student: s for s in run.grade(one).submissions}
    bob = found["bob"]
    assert (bob.source, bob.superseded, bob.ignored) == (
        "bob/new.ipynb",
        ["bob/old.ipynb"],
        ["bob/data.csv"],
    )
    assert bob.points == 1
    assert "2 copies were handed in; the newest counts" in bob.repairs
    assert (found["cleo"].state, found["cleo"].points) == ("wrong lab", 0)
    assert "is lab 03, not 04" in found["cleo"].repairs[0]
    assert found["dan"].source == "dan/a.ipynb"
    assert "cannot be read" in found["dan"].repairs[0]


def test_a_grader_process_that_dies_over_a_student_costs_only_that_student(one, monkeypatch):
    school.put(one.submissions, "bob.ipynb", school.book())
    real = run.Unit.told

    def told(unit):
        found = real(unit)
        return {**found, "notebooks": "nonsense"} if unit.handed.owner.student == "ann" else found

    monkeypatch.setattr(run.Unit, "told", told)
    found = {s.student: s.state for s in run.grade(one).submissions}
    assert found == {"ann": "not graded", "bob": "graded"}
    assert "Traceback" in (one.out / "job-1.log").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--lab", "x"], "is no number"),
        (["--lab", "77"], "there is no lab 77"),
        (["--shard", "4/3"], "no part of a whole"),
        (["--shard", "a"], "no part of a whole"),
        (["--isolation", "trust"], "there are bubblewrap and landlock"),
        (["--merge"], "grade first"),
    ],
)
def test_wrong_words_are_told_in_a_line(one, more, words):
    arguments = ["grade", str(one.submissions), "--out", str(one.out), *more]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert words in str(done.exception)


def test_records_come_back_as_they_were_written(whole, tmp_path):
    result, _ = whole
    results.write(tmp_path / "x.json", result)
    assert results.read_class(tmp_path / "x.json") == result
    told = json.loads((tmp_path / "x.json").read_text())
    told["format"] = 99
    (tmp_path / "x.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="format 99"):
        results.read_class(tmp_path / "x.json")
