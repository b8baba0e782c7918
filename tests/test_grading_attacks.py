"""Attacks gain nothing, hurt nobody and are named. tests/grading_attacks.py holds them."""

import os
import re
import time
from pathlib import Path

import grading_class as school
import pytest
from grading_attacks import ATTACKS

from course.grading import run
from course.grading.session import Limits

SLUG = re.compile(r"[^a-z]+")


def slug(name: str) -> str:
    return SLUG.sub("-", name.lower())


SLOW = [a for a in ATTACKS if any(words in a.name for words in school.SLOW)]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """All attacks as two classes: with honest students before and after them, and those that take
    their time, who get little of it."""
    found = {}
    for slow in (False, True):
        folder = tmp_path_factory.mktemp("attacks")
        here = folder / "in"
        if not slow:
            school.put(here, "aa-honest.ipynb", school.book(school.right()))
            school.put(here, "zz-honest.ipynb", school.book(school.right()))
        for attack in ATTACKS:
            if (attack in SLOW) == slow:
                made = school.book({attack.answer: attack.text})
                school.put(here, f"{slug(attack.name)}.ipynb", made)
        limits = Limits(5 if slow else 60, 512 * 2**20)
        options = run.Options(here, folder / "out", lab=4, jobs=2, seed="attacks", limits=limits)
        try:
            found |= {s.student: s for s in run.grade(options).submissions}
        except PermissionError as error:
            pytest.skip(f"no isolation on this machine: {error}")
    return found


def test_names_of_attacks_differ():
    assert len({slug(a.name) for a in ATTACKS}) == len(ATTACKS)


def test_every_attack_is_graded_and_honest_work_beside_them_is_whole(graded):
    assert len(graded) == len(ATTACKS) + 2
    for name in ("aa-honest", "zz-honest"):
        assert graded[name].points == school.OF
        assert graded[name].notes == []


@pytest.mark.parametrize("attack", ATTACKS, ids=[slug(a.name) for a in ATTACKS])
def test_an_attack_gains_nothing_and_is_named(graded, attack):
    found = graded[slug(attack.name)]
    assert found.state == "graded"
    assert found.points <= attack.most
    (exercise,) = [e for e in found.exercises if e.key == f"04-{attack.answer}"]
    assert exercise.state in ("wrong", "partly right")
    told = " | ".join(exercise.notes + [b.detail + b.says for b in exercise.behaviours])
    assert any(words in told for words in attack.notes), told
    if attack.notes != ("",):  # a note beside the answer's own fault
        assert exercise.notes


def test_nothing_is_left_of_them(graded):
    assert not Path("/tmp/pickled-by-an-answer").exists()
    assert not Path("/tmp/results.json").exists()
    assert not list(Path("/tmp").glob("fill-*"))
    mine = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"wall/worker.py" in _read(p)]
    deadline = time.monotonic() + 5
    while mine and time.monotonic() < deadline:
        time.sleep(0.1)
        mine = [p for p in mine if b"wall/worker.py" in _read(p)]
    own = [p for p in mine if _parent(p) == os.getpid()]
    assert own == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(path: Path) -> int:
    try:
        return int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0
