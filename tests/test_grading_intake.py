"""Whose file is what, in the layouts of hand-in systems, and in archives that mean harm."""

import io
import os
import stat
import zipfile

import grading_class as school
import pytest

from course.grading import intake
from course.grading.layouts import gradescope_people, owner

BOOK = b'{"cells": []}'


def students(folder):
    return {
        h.owner.student: [e.source for e in h.notebooks] for h in intake.collect(folder).students
    }


def archive(*members: tuple[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6)), data)
        for name in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            file.writestr(info, "/etc/passwd")
    return made.getvalue()


@pytest.mark.parametrize(
    ("path", "student", "system", "number"),
    [
        ("smithjane_12345_67890_04_block_tables.ipynb", "smithjane_12345", "Canvas", "12345"),
        ("smithjane_LATE_12345_67890_04-2.ipynb", "smithjane_12345", "Canvas", "12345"),
        ("Jane Smith_4711_assignsubmission_file_/04.ipynb", "Jane Smith_4711", "Moodle", "4711"),
        ("J_von Li_4711_assignsubmission_file/x/04.ipynb", "J_von Li_4711", "Moodle", "4711"),
        ("Jane Smith_4711_assignsubmission_file_04.ipynb", "Jane Smith_4711", "Moodle", "4711"),
        ("assignment_9_export/submission_123/04.ipynb", "submission_123", "Gradescope", "123"),
        ("submitted/jsmith/lab04/04_block_tables.ipynb", "jsmith", "nbgrader", ""),
        ("jsmith/work/04_block_tables.ipynb", "jsmith", "folder", ""),
        ("jsmith.ipynb", "jsmith", "file", ""),
        ("jsmith_04_block_tables.ipynb", "jsmith", "file", ""),
        ("jsmith (2).ipynb", "jsmith", "file", ""),
        ("04_block_tables.ipynb", "04_block_tables", "file", ""),
    ],
)  # fmt: skip
def test_names_of_hand_in_systems(path, student, system, number):
    found = owner(tuple(path.split("/")))
    assert (found.student, found.system, found.number) == (student, system, number)


def test_lateness_and_turns():
    late = owner(("smith_LATE_1_20_04.ipynb",))
    assert "LATE" in late.late
    assert owner(("smith_1_20_04-1.ipynb",)).turn > owner(("smith_1_20_04.ipynb",)).turn
    assert owner(("smith_1_21_04.ipynb",)).turn > owner(("smith_1_20_04-3.ipynb",)).turn


def test_gradescopes_metadata():
    text = (
        "submission_1:\n  :submitters:\n  - :name: \"Jane O'Neil\"\n    :sid: '007'\n"
        "    :email: j@school.edu\n  :created_at: x\nsubmission_2:\n  :submitters:\n"
        "  - :name: Li\n  - :name: Second\n!!python/object: x\n"
    )
    people = gradescope_people(text)
    assert people["submission_1"] == {
        "name": "Jane O'Neil",
        "sid": "007",
        "email": "j@school.edu",
    }
    assert people["submission_2"] == {"name": "Li"}


def test_a_folder_of_everything(tmp_path):
    school.put(tmp_path, "anna.ipynb", BOOK)
    school.put(tmp_path, "ben/lab/04.ipynb", BOOK)
    school.put(tmp_path, "ben/data.csv", b"1,2")
    school.put(tmp_path, "cleo.zip", archive(("04_block_tables.ipynb", BOOK), ("x/a.png", b"")))
    school.put(tmp_path, "dan_1_2_04.ipynb", BOOK)
    school.put(tmp_path, "empty/report.pdf", b"%PDF")
    school.put(tmp_path, "readme.txt", b"for the teacher")
    school.put(tmp_path, "anna/.ipynb_checkpoints/04-checkpoint.ipynb", BOOK)
    found = intake.collect(tmp_path)
    assert students(tmp_path) == {
        "anna": ["anna.ipynb"],
        "ben": ["ben/lab/04.ipynb"],
        "cleo": ["cleo.zip/04_block_tables.ipynb"],
        "dan_1": ["dan_1_2_04.ipynb"],
        "empty": [],
    }
    others = {h.owner.student: h.others for h in found.students}
    assert others["ben"] == ["ben/data.csv"]
    assert others["cleo"] == ["cleo.zip/x/a.png"]
    assert others["empty"] == ["empty/report.pdf"]
    assert "readme.txt: no notebook" in found.left_over
    assert any("checkpoints" in words for words in found.left_over)


def test_one_zip_of_a_class_with_zips_in_it(tmp_path):
    inner = archive(("lab/04.ipynb", BOOK))
    data = archive(
        ("export/Jane_1_assignsubmission_file_/h.zip", inner), ("export/b/04.ipynb", BOOK)
    )
    path = school.put(tmp_path, "class.zip", data)
    found = intake.collect(path)
    assert [h.owner.student for h in found.students] == ["Jane_1", "b"]
    assert all(h.notebooks[0].read() == BOOK for h in found.students)


def test_the_newest_copy_comes_first(tmp_path):
    old = school.put(tmp_path, "ann/old.ipynb", b"1")
    new = school.put(tmp_path, "ann/new.ipynb", b"2")
    os.utime(old, (1000, 1000))
    os.utime(new, (2000, 2000))
    school.put(tmp_path, "bob_1_20_04.ipynb", b"1")
    newest = school.put(tmp_path, "bob_1_20_04-1.ipynb", b"2")
    os.utime(newest, (500, 500))  # what the name says goes before what the disk says
    for handed in intake.collect(tmp_path).students:
        assert handed.notebooks[0].read() == b"2"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../outside.ipynb", "climbs out"),
        ("a/../../outside.ipynb", "climbs out"),
        ("..\\..\\outside.ipynb", "climbs out"),
        ("/etc/outside.ipynb", "not below"),
        ("C:\\outside.ipynb", "not below"),
        ("x" * 500 + ".ipynb", "too long"),
        ("a\nb.ipynb", "control characters"),
    ],
)
def test_members_that_mean_harm_are_refused_and_named(tmp_path, name, words):
    school.put(tmp_path, "eve.zip", archive((name, BOOK), ("good.ipynb", BOOK)))
    found = intake.collect(tmp_path)
    assert students(tmp_path) == {"eve": ["eve.zip/good.ipynb"]}
    assert any(words in told for told in found.left_over)


def test_links_in_and_outside_of_archives_are_not_followed(tmp_path):
    secret = school.put(tmp_path, "elsewhere/secret.ipynb", BOOK)
    here = tmp_path / "in"
    school.put(here, "eve.zip", archive(links=("04.ipynb",)))
    school.put(here, "ann.ipynb", BOOK)
    (here / "bob.ipynb").symlink_to(secret)
    (here / "cat").symlink_to(secret.parent)
    os.mkfifo(here / "pipe.ipynb")
    assert students(here) == {"ann": ["ann.ipynb"]}
    told = intake.collect(here).left_over
    assert len([words for words in told if "link" in words or "not looked into" in words]) == 4


def test_bombs_and_broken_archives(tmp_path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("04.ipynb", bytes(110 * 2**20))
    bomb = bytearray(made.getvalue())
    school.put(tmp_path, "eve.zip", bytes(bomb))
    place = bomb.rindex(b"PK\x01\x02") + 24  # its size, in the directory at the end
    bomb[place : place + 4] = (1000).to_bytes(4, "little")
    school.put(tmp_path, "liar.zip", bytes(bomb))
    school.put(tmp_path, "broken.zip", b"PK\x03\x04 nothing")
    found = intake.collect(tmp_path)
    told = " ".join(found.left_over)
    assert "more than 100 MiB" in told
    assert "broken.zip: a zip file that cannot be read" in told
    (liar,) = [h for h in found.students if h.owner.student == "liar"]
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        liar.notebooks[0].read()


def test_our_own_results_are_not_a_submission(tmp_path):
    school.put(tmp_path, "ann.ipynb", BOOK)
    school.put(tmp_path, "out/partial/x.json", b"{}")
    found = intake.collect(tmp_path, tmp_path / "out")
    assert [h.owner.student for h in found.students] == ["ann"]
    assert found.left_over == []


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        intake.collect(tmp_path / "nowhere")
    path = school.put(tmp_path, "x.tar.gz", b"123")
    with pytest.raises(ValueError, match="neither a folder"):
        intake.collect(path)
