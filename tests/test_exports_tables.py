"""Tables and imports: spreadsheets run nothing, and the systems' own rules read what we write.

The readers here are written from what the systems publish: Canvas's importer (open source),
Moodle's "Grade import" page, Gradescope's autograder specifications.
"""

import csv
import io
import json
import re

import pytest
from graded_class import NASTY, SECRET, exercise, nasty, of, submission

from course.grading.exports import canvas, cells, gradescope, moodle, roster, tables
from course.grading.reports import write_reports
from course.grading.results import read_class, write


def rows_of(text):
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


# ---- cells --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\t", "\r", "\n=", " =", "\u200b=", "＝", "＠"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_made_text(start):
    made = cells.harmless(f"{start}1+1")
    assert made.startswith("'")
    assert not cells.is_formula(made[1:2].strip("'")) or made[0] == "'"


@pytest.mark.parametrize("word", ["Ada", "a=b", "x-y", "3", "", "יעל", "'quoted'", "Ö"])
def test_other_cells_stay(word):
    assert cells.harmless(word) == word


def test_numbers_are_numbers_with_a_point():
    values = {0.1 + 0.2: "0.3", -0.0: "0", 18.0: "18", 16.285714: "16.29", 2: "2", 100.0: "100",
              -1.5: "-1.5"}  # fmt: skip
    for value, words in values.items():
        assert cells.number(value) == words
        assert cells.harmless(value) == words


def test_every_hard_name_survives_as_one_cell_of_one_line():
    text = tables.by_student(nasty())
    rows = rows_of(text)
    assert len(rows) == len(NASTY) + 1
    assert {len(row) for row in rows} == {len(rows[0])}
    for row in rows[1:]:
        for cell in row:
            assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r"), cell
            assert "\n" not in cell
    names = [row[1] for row in rows[1:]]
    assert 'Groß, "Jürgen" Ö.' in names
    assert "יעל כהן" in names
    assert "evilgnp.exe" in names  # nothing turns the rest of the line around
    text.encode()


def test_the_long_table_has_a_row_for_each_exercise():
    results = nasty()
    rows = rows_of(tables.by_exercise(results))
    assert len(rows) == 1 + sum(len(s.exercises) for s in results.submissions)
    head = rows[0]
    one = dict(zip(head, rows[2], strict=True))
    assert (one["points"], one["of"], one["state"]) == ("2", "2", "right")
    assert one["exercise"] == "exercise 4.2"  # "4.2" would be read as a date


# ---- Canvas -------------------------------------------------------------------------------------

CANVAS_HEAD = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Essay (11),Lab 04: Blocks (22),Final Score"
)


def canvas_roster(tmp_path, people, head=CANVAS_HEAD, points="18"):
    lines = [head, f"    Points Possible,,,,,10,{points},(read only)"]
    buffer = io.StringIO()
    csv.writer(buffer).writerows(people)
    path = tmp_path / "grades.csv"
    path.write_text("\n".join(lines) + "\n" + buffer.getvalue(), encoding="utf-8")
    return path


def read_as_canvas(text, people, assignments):
    """What Canvas would set: {person: {assignment: grade}}. ``people``: id -> name.

    Its header rule, the columns that it takes for a person, the row of points, and its order of
    looking people up: ID, then name. Unknown people are errors here; Canvas asks about them.
    """
    rows = rows_of(text)
    head = rows[0]
    assert len(head) > 3, "fewer than four columns is an invalid header"
    assert "Student" in head[0]
    assert "ID" in head[1]
    width = 3
    if "SIS Login ID" in head[2]:
        width = 4
    elif "SIS User ID" in head[2] and "SIS Login ID" in head[3]:
        width = 5 + ("Integration ID" in head[4])
        width += "Root Account" in head[width - 1]
    assert "Section" in head[width - 1], "the last column about a person must be Section"
    columns = {}
    for name in head[width:]:
        found = re.fullmatch(r"(.*) \((\d+)\)", name)
        columns[name] = assignments.get(int(found[2])) if found else f"new: {name}"
        assert columns[name], name
    possible, set_ = {}, {}
    for row in rows[1:]:
        assert len(row) == len(head)
        if "Points Possible" in row[0]:
            possible = {columns[n]: row[head.index(n)] for n in columns}
            continue
        person = people.get(int(row[1])) if row[1].isdigit() else None
        person = person or next((n for n in people.values() if n == row[0]), None)
        assert person, f"Canvas does not know {row[0]!r}"
        assert person not in set_, f"twice: {person}"
        set_[person] = {columns[n]: row[head.index(n)] for n in columns}
    return possible, set_


def test_canvas_imports_the_points_of_whom_it_knows(tmp_path):
    ada = submission(1, "lovelaceada_900", [exercise("4.1"), exercise("4.2", "wrong", 0.0)],
                     system="Canvas", number="900", display="lovelaceada")  # fmt: skip
    bob = submission(2, "bob", [exercise("4.1", "partly right", 1.333)], system="nbgrader")
    odd = submission(3, "nobody", [exercise("4.1")], system="folder")
    people = [
        ["Lovelace, Ada", 900, "s1", "ada@x.org", "A, 2026", 7, "", 70],
        ["Meier, Bob", 901, "s2", "bob", "A, 2026", 8, 3, 80],
        ["Doe, Jane", 902, "s3", "jane", "A, 2026", 9, "", 90],
    ]
    made = canvas.make(of([ada, bob, odd]), canvas_roster(tmp_path, people))
    known = {900: "Lovelace, Ada", 901: "Meier, Bob", 902: "Doe, Jane"}
    possible, grades = read_as_canvas(made.text, known, {22: "Lab 04: Blocks"})
    assert grades == {"Lovelace, Ada": {"Lab 04: Blocks": "2"},
                      "Meier, Bob": {"Lab 04: Blocks": "1.33"}}  # fmt: skip
    assert possible == {"Lab 04: Blocks": "18"}
    assert [s.student for s, _ in made.matching.unmatched] == ["nobody"]
    assert [p.names[0] for p in made.matching.absent] == ["Doe, Jane"]
    assert any("18 points in Canvas; the lab has 4" in words for words in made.remarks)


def test_canvas_names_are_a_last_resort_and_never_a_guess(tmp_path):
    people = [
        ["Kim, Min", 1, "", "m1", "A", "", "", ""],
        ["Kim, Min", 2, "", "m2", "A", "", "", ""],
        ["Größe, Jürgen", 3, "", "jg", "A", "", "", ""],
        ["=Evil, Eve", 4, "", "ee", "A", "", "", ""],
        ["Student, Test", 5, "", "test", "A", "", "", ""],
    ]
    result = of([
        submission(1, "Min Kim", [exercise("4.1")]),
        submission(2, "größejürgen", [exercise("4.1")]),
        submission(3, "jg", [exercise("4.1", "wrong", 0.0)], system="nbgrader"),
        submission(4, "Eve =Evil", [exercise("4.1")]),
        submission(5, "Test Student", [exercise("4.1")]),
    ])  # fmt: skip
    made = canvas.make(result, canvas_roster(tmp_path, people))
    why = {s.student: words for s, words in made.matching.unmatched}
    assert "2 people in the list have this name" in why["Min Kim"]
    assert "the same person as größejürgen" in why["jg"]
    assert "Test Student" in why  # Canvas's own test student is nobody
    rows = rows_of(made.text)
    assert [row[1] for row in rows[2:]] == ["3", "4"]
    assert all(not cell.startswith("=") for row in rows for cell in row)


def test_canvas_without_a_list_takes_its_own_files_only():
    result = of([
        submission(1, "a_1", [exercise("4.1")], system="Canvas", number="1", display="a"),
        submission(2, "b", [exercise("4.1")], system="nbgrader", number=""),
        submission(3, "c", [exercise("4.1")], system="Canvas", number="3", state="not graded"),
    ])  # fmt: skip
    made = canvas.make(result)
    _, grades = read_as_canvas(made.text, {1: "a", 3: "c"}, {})
    assert grades == {"a": {"new: Lab 04": "2"}, "c": {"new: Lab 04": ""}}


def test_a_list_that_is_not_canvas_says_what_it_is(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("Name;Note\nAda;1\n")
    with pytest.raises(ValueError, match="begins with \\['Name', 'Note'\\]"):
        canvas.make(nasty(), path)
    path.write_text("Student,ID,Essay\nAda,1,2\n")
    with pytest.raises(ValueError, match="no column Section"):
        canvas.make(nasty(), path)


# ---- Moodle -------------------------------------------------------------------------------------


def read_as_moodle(text, people, identify):
    """What Moodle would set, mapping the column ``identify``. ``people``: set of known values.

    It stops the import at the first unknown person, at a grade that is no number, and at a row
    with another number of columns.
    """
    rows = rows_of(text)
    head = [name.strip() for name in rows[0]]
    assert len(set(head)) == len(head)
    found = {}
    for row in rows[1:]:
        assert len(row) == len(head), "a row with another number of columns"
        told = dict(zip(head, (cell.strip() for cell in row), strict=True))
        who = told[identify]
        assert who in people, f"unknown: the whole import would stop at {who!r}"
        grade = told["Lab 04"]
        assert grade in ("", "-") or re.fullmatch(r"-?\d+([.,]\d+)?", grade), grade
        assert bool(grade) == bool(told["Lab 04 (feedback)"]), "feedback alone wipes the grade"
        found[who] = (grade, told["Lab 04 (feedback)"])
    return found


MOODLE = """\
"First name","Last name","ID number","Email address"
Ada,Lovelace,u1,ada@x.org
Jürgen,"Groß, Dr.",u2,j@x.org
יעל,כהן,u3,yael@x.org
Eve,Evil,=1+1,=e@x.org
"""
WORKSHEET = """\
Identifier,"Full name","Email address",Status,Grade,"Maximum Grade"
"Participant 711","Ada Lovelace",ada@x.org,-,,18.00
"Participant 712","Ada Lovelace",ada2@x.org,-,,18.00
"""


def test_moodle_imports_points_and_feedback_of_whom_it_knows(tmp_path):
    (tmp_path / "p.csv").write_text(MOODLE, encoding="utf-8-sig")
    result = of([
        submission(1, "ada@x.org", [exercise("4.1"), exercise("4.2", "partly right", 0.67,
                   mistake="the next, \"nearest\" block is taken")]),
        submission(2, 'Jürgen Groß, Dr._44', [exercise("4.1")], system="Moodle", number="44"),
        submission(3, "יעל כהן", [exercise("4.1", "missing", 0.0)]),
        submission(4, "Eve Evil", [exercise("4.1")]),
        submission(5, "Zoe", [exercise("4.1")]),
    ])  # fmt: skip
    made = moodle.make(result, tmp_path / "p.csv")
    grades = read_as_moodle(made.text, {"ada@x.org", "j@x.org", "yael@x.org"}, "Email address")
    assert {who: grade for who, (grade, _) in grades.items()} == {
        "ada@x.org": "2.67", "j@x.org": "2", "yael@x.org": "0"
    }  # fmt: skip
    assert '"nearest" block' in grades["ada@x.org"][1]
    assert read_as_moodle(made.text, {"u1", "u2", "u3"}, "ID number").keys() == {"u1", "u2", "u3"}
    assert [s.student for s, _ in made.matching.unmatched] == ["Zoe"]
    assert any(words.startswith("Eve Evil: no email") for words in made.remarks)
    assert SECRET not in made.text


def test_moodle_finds_participants_by_the_number_in_their_folder(tmp_path):
    (tmp_path / "w.csv").write_text(WORKSHEET, encoding="utf-8")
    result = of([submission(1, "Ada Lovelace_712", [exercise("4.1")], system="Moodle",
                            number="712")])  # fmt: skip
    made = moodle.make(result, tmp_path / "w.csv")
    assert list(read_as_moodle(made.text, {"ada2@x.org"}, "Email address")) == ["ada2@x.org"]


def test_a_list_with_semicolons_or_in_windows_letters_is_read(tmp_path):
    path = tmp_path / "p.csv"
    path.write_bytes("Vorname;Email address\nJürgen;j@x.org\n".encode("cp1252"))
    head, rows = roster.read_csv(path)
    assert head == ["Vorname", "Email address"]
    assert rows == [["Jürgen", "j@x.org"]]
    path.write_bytes("First name\tEmail address\nJürgen\tj@x.org\n".encode("utf-16"))
    assert roster.read_csv(path)[1] == [["Jürgen", "j@x.org"]]


# ---- Gradescope ---------------------------------------------------------------------------------

VISIBLE = {"hidden", "after_due_date", "after_published", "visible"}
FORMATS = {"text", "html", "simple_format", "md", "ansi"}


def read_as_gradescope(text):
    """The score that Gradescope shows; AssertionError where its specification is not kept."""
    told = json.loads(text)
    known = {"score", "execution_time", "output", "output_format", "test_output_format",
             "test_name_format", "visibility", "stdout_visibility", "extra_data", "tests",
             "leaderboard"}  # fmt: skip
    assert set(told) <= known
    assert told.get("visibility", "visible") in VISIBLE
    assert told.get("stdout_visibility", "hidden") in VISIBLE
    assert "score" in told or told.get("tests")
    for test in told.get("tests", []):
        assert set(test) <= {
            "score", "max_score", "status", "name", "name_format", "number", "output",
            "output_format", "tags", "visibility", "extra_data",
        }  # fmt: skip
        assert "score" in told or "score" in test
        assert 0 <= test["score"] <= test["max_score"]
        assert test["status"] in ("passed", "failed")
        assert test["visibility"] in VISIBLE
        assert test["output_format"] in FORMATS
        assert isinstance(test["number"], str)
    total = sum(test["score"] for test in told.get("tests", []))
    return told.get("score", total), total


def test_gradescope_reads_each_submission():
    results = nasty()
    for s in results.submissions:
        text = json.dumps(gradescope.results(s, results.isolation))
        score, total = read_as_gradescope(text)
        assert score == s.points
        assert total == pytest.approx(s.points, abs=0.01)
        assert SECRET not in text
        assert "text" in text
    told = gradescope.results(results.submissions[2], of([], sufficient=False).isolation)
    assert "WARNING" in told["output"]
    read_as_gradescope(json.dumps(gradescope.ungraded("why")))


# ---- all of it ----------------------------------------------------------------------------------


def test_reports_are_written_from_a_results_file_and_a_dry_run_writes_nothing(tmp_path):
    write(tmp_path / "results.json", nasty(system="Canvas"))
    (tmp_path / "p.csv").write_text(MOODLE, encoding="utf-8")
    results = read_class(tmp_path / "results.json")
    told = write_reports(results, tmp_path, moodle_roster=tmp_path / "p.csv", dry_run=True)
    assert not (tmp_path / "reports").exists()
    assert told.matched["Moodle"] == 2  # Ada and Yael
    assert len(told.unmatched["Moodle"]) == len(NASTY) - 2
    assert all("\n" not in line for line in told.unmatched["Moodle"])
    written = write_reports(results, tmp_path, moodle_roster=tmp_path / "p.csv")
    assert written.files == told.files
    assert all(path.exists() for path in written.files)
    there = {p.relative_to(tmp_path / "reports").as_posix().partition("/")[0]
             for p in (tmp_path / "reports").rglob("*")}  # fmt: skip
    assert there == {"students.csv", "exercises.csv", "class.html", "similarity.html",
                     "moodle.csv", "moodle-unmatched.txt", "feedback", "gradescope"}  # fmt: skip
    for path in (tmp_path / "reports").rglob("*"):
        if path.is_file():
            path.read_text(encoding="utf-8")


def test_names_of_files_never_leave_the_folder_nor_collide(tmp_path):
    made = [submission(n, "x", [exercise("4.1")], name=name)
            for n, name in enumerate(["../../etc/x", "A b", "a-b", "", "..", "/root"])]  # fmt: skip
    told = write_reports(of(made), tmp_path / "out")
    assert len(set(map(str, told.files))) == len(told.files)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
