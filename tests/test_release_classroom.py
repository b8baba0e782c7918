"""The page for teachers, the hub, Binder and the container for editors agree with the course."""

import ast
import json
import re
import stat
import subprocess

import pytest
import yaml

from course import pins
from course.pins import ROOT
from course.practice import registry
from course.release import measure, teaching

HUB = ROOT / "docs" / "hub"


def test_the_made_parts_of_the_teachers_page_are_current():
    page = teaching.read()
    assert teaching.made(page, teaching.measured(page)) == page, "run `python -m course teaching`"
    assert {part[2] for part in teaching.PART.finditer(page)} == {"timing", "listen", "machine"}


def test_the_page_names_each_exercise_with_its_minutes_and_each_lab_with_its_needs():
    page = teaching.read()
    for e in registry.every():
        assert f"| {e.id} {e.title} | {e.minutes} | {e.points} | {e.difficulty} |" in page
    assert set(teaching.measured(page)) == set(registry.labs()), (
        "python -m course teaching --measure"
    )
    for need in teaching.measured(page).values():
        assert 50 < need.memory < 8000
        assert need.cpu > 0


def test_exercises_that_the_plans_name_exist():
    by_hand = teaching.PART.sub("", teaching.read())
    ids = {e.id for e in registry.every()}
    named = set(re.findall(r"(?<![\d.])([1-9]\.\d)(?![\d.%])", by_hand))
    assert len(named) > 20
    # And a figure in a question.
    assert named - ids <= {"1.9"}, named - ids


def test_a_part_that_nobody_makes_is_an_error():
    with pytest.raises(ValueError, match="nothing makes the part 'x'"):
        teaching.made("<!-- made: x -->\n<!-- end -->", {})


def test_first_sentences_say_something():
    cases = {
        "Nearly. A last block is never empty. More.": "Nearly. A last block is never empty.",
        "Ask the table for `a.b`. It knows.": "Ask the table for `a.b`.",
        "A share of 0.5 is half of it. So.": "A share of 0.5 is half of it.",
        "no end": "no end",
    }
    for note, first in cases.items():
        assert teaching._first(note) == first


def test_needs_are_read_back_as_written():
    needs = [measure.Need(4, 1234, 5.0, 6.0), measure.Need(5, 99, 10.0, 12.0)]
    page = f"<!-- made: machine -->\n{teaching.machine(needs)}<!-- end -->"
    assert teaching.measured(page) == {need.lab: need for need in needs}


def test_what_a_notebook_needs_is_measured(tmp_path):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    if not (ROOT / "/proc/self/smaps_rollup").exists():
        pytest.skip("/proc/self/smaps_rollup is not there: not Linux")
    cells = [new_code_cell("x = bytearray(300_000_000); import time; time.sleep(0.6)"),
             new_code_cell("n = 0\nwhile n < 3_000_000: n += 1")]  # fmt: skip
    nbformat.write(new_notebook(cells=cells), tmp_path / "04_x.ipynb")
    need = measure.measure(tmp_path / "04_x.ipynb")
    assert need.lab == 4
    assert 300 <= need.memory < 700
    assert need.cpu > 0.1
    assert need.wall > 0.6


# ---- environments -------------------------------------------------------------------------------


def test_binder_finishes_what_environment_yml_begins():
    script = ROOT / "postBuild"
    assert script.stat().st_mode & stat.S_IXUSR
    assert "python -m course.bootstrap finish" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    # A folder of that name would hide environment.yml from Binder.
    assert not (ROOT / "binder").exists()
    assert not (ROOT / ".binder").exists()
    told = yaml.safe_load((ROOT / "environment.yml").read_text())
    (version,) = [d.partition("=")[2] for d in told["dependencies"] if str(d).startswith("python=")]
    assert suits(version)


def suits(version):
    spec = pins.project()["project"]["requires-python"].replace(" ", "")
    return pins.in_range(version, spec)


def test_the_container_for_editors_has_a_python_that_the_course_takes():
    told = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    version = re.search(r"python:(\d\.\d+)", told["image"])[1]
    assert suits(version)
    assert told["containerEnv"]["COURSE_PYTHON"].endswith(f"python{version}")
    assert told["postCreateCommand"] == "make setup"
    assert re.search(r"^setup .*:|^setup:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    python = told["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python.endswith("/.venv/bin/python")


def test_the_image_of_the_hub_is_made_of_what_is_there():
    text = (HUB / "Dockerfile").read_text()
    assert suits(re.search(r"FROM python:(\d\.\d+)", text)[1])
    for name in re.findall(r"^COPY (\S+)", text, re.MULTILINE):
        assert name == "bundle/paged-attention-student.zip" or (HUB / name).exists()
    values = yaml.safe_load((HUB / "z2jh-values.yaml").read_text())
    assert values["singleuser"]["cmd"][1] in text
    uid = int(re.search(r"--uid (\d+)", text)[1])
    assert uid == 1000  # whom the chart mounts a learner's folder for


def test_both_hubs_give_a_learner_the_same():
    values = yaml.safe_load((HUB / "z2jh-values.yaml").read_text())
    config = (HUB / "jupyterhub_config.py").read_text()
    ast.parse(config)
    default = re.search(r'"COURSE_HUB_MEMORY_MIB", "(\d+)"', config)[1]
    assert values["singleuser"]["memory"]["limit"] == f"{int(default) // 1024}G"
    assert (
        str(values["singleuser"]["cpu"]["limit"])
        == re.search(r'"COURSE_HUB_CPUS", "(\d+)"', config)[1]
    )
    idle = re.search(r'"COURSE_HUB_IDLE_SECONDS", "(\d+)"', config)[1]
    assert values["cull"]["timeout"] == int(idle)
    assert values["singleuser"]["defaultUrl"] in config
    assert values["singleuser"]["extraEnv"]["OMP_NUM_THREADS"] == "1"


def test_a_learners_folder_is_filled_once_and_their_work_stays(tmp_path):
    """start-server.sh, with a server that ends at once."""
    import os
    import sys

    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$2" in jupyterhub.*) echo "serving $*"; exit 0;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    env = {**os.environ, "HOME": str(tmp_path / "home"), "COURSE": str(ROOT),
           "COURSE_HUB_PYTHON": str(python), "PYTHONPATH": str(ROOT)}  # fmt: skip
    command = ["sh", str(HUB / "start-server.sh"), "--port=1"]

    def start():
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "serving -m jupyterhub.singleuser --port=1" in start()
    mine = tmp_path / "home" / "paged-attention"
    assert mine.stat().st_mode & 0o077 == 0  # nobody else reads it
    lab = next((mine / "exercises").glob("04_*.ipynb"))
    book = json.loads(lab.read_text())
    book["cells"][0]["source"] = "my words"
    lab.write_text(json.dumps(book))
    (mine / "notebooks" / "00_start_here.ipynb").write_text("mine")
    start()
    assert json.loads(lab.read_text())["cells"][0]["source"] == "my words"
    assert (mine / "notebooks" / "00_start_here.ipynb").read_text() == "mine"
    assert not list((mine / "exercises").glob("*.new*"))


def test_the_arithmetic_for_thirty_is_that_of_the_measurements():
    page = (HUB / "README.md").read_text()
    needs = teaching.measured(teaching.read())
    row = r"^\| ([\d, ]+?) ?(?:\(.*?\) )?\| 150 \+ ([\d,]+) = ([\d,]+) MiB \| ([\d.]+) GiB \|$"
    rows = re.findall(row, page, re.MULTILINE)
    named = []
    for labs, kernel, both, thirty in rows:
        numbers = [int(number) for number in labs.split(", ")]
        named += numbers
        kernel, both = int(kernel.replace(",", "")), int(both.replace(",", ""))
        most = max(needs[number].memory for number in numbers)
        assert abs(kernel - most) <= 0.1 * most, (labs, "measured anew: mend the table")
        assert both == 150 + kernel
        assert abs(float(thirty) - 30 * both / 1024) < 0.06
    assert sorted(named) == list(registry.labs())
