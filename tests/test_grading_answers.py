"""Answers are taken out of whatever notebook was handed in, and every repair is said."""

import copy
import json
import random

import grading_class as school
import pytest

from course.grading import answers, notebook
from course.practice import registry

SLOTS = "def slot_mapping(block_ids, positions, block_size):\n    return [1, 2, 3]\n"


def taken(made, name="slot_mapping"):
    """(what was found for one exercise, what is odd about the notebook)."""
    book = notebook.read(json.dumps(made).encode())
    odd = answers.oddities(book, school.LAB, "")
    return answers.extract(book, school.LAB)[f"04-{name}"], odd


def test_an_untouched_notebook_is_in_order():
    for exercise in registry.lab(school.LAB):
        found, odd = taken(school.book(), exercise.name)
        assert (found.taken, found.repairs, odd) == ("cell id", [], [])
        assert found.text


def test_an_answer_is_taken_by_its_cell_id():
    found, odd = taken(school.book({"slot_mapping": SLOTS}))
    assert (found.text.strip(), found.taken) == (SLOTS.strip(), "cell id")
    assert found.repairs == odd == []


def test_nbgraders_name_will_do_for_an_id():
    made = school.book({"slot_mapping": SLOTS})
    for cell in made["cells"]:
        del cell["id"]
    found, _ = taken(made)
    assert found.taken == "cell id"
    # Cells without nbgrader's metadata have no name now; nothing that counts is lost.
    assert found.text.strip() == SLOTS.strip()


def test_without_any_metadata_the_symbols_name_is_enough():
    made = school.book({"slot_mapping": SLOTS})
    made["metadata"] = {}
    for cell in made["cells"]:
        del cell["id"]
        cell["metadata"] = {}
    found, odd = taken(made)
    assert found.taken == "symbol name"
    assert found.text.strip() == SLOTS.strip()
    assert "taken from cell" in found.repairs[0]
    assert any("no ids" in words for words in odd)
    assert any("does not say which lab" in words for words in odd)
    book = notebook.read(json.dumps(made).encode())
    assert answers.lab_of(book) == (school.LAB, "names")


def test_a_marker_line_goes_before_a_name():
    made = school.book()
    made["cells"] = [c for c in made["cells"] if c["id"] != "04-slot_mapping-answer"]
    right = "# Exercise 4.3, my second try\n" + SLOTS
    wrong = SLOTS.replace("1, 2, 3", "0")
    for text in (right, wrong):
        made["cells"].append({"cell_type": "code", "id": f"x{len(text)}", "source": text})
    found, _ = taken(made)
    assert (found.taken, "1, 2, 3" in found.text) == ("marker line", True)
    assert "is missing" in found.repairs[0]


def test_of_two_cells_with_one_id_the_last_answer_counts():
    made = school.book({"slot_mapping": SLOTS})
    second = copy.deepcopy(school.cell_of(made, "slot_mapping"))
    second["source"] = SLOTS.replace("1, 2, 3", "4")
    stub = copy.deepcopy(school.cell_of(school.book(), "slot_mapping"))
    made["cells"] += [second, stub]
    found, odd = taken(made)
    assert "[4]" in found.text
    assert "all have the id" in found.repairs[0]
    assert any("same id" in words for words in odd)


def test_an_answer_in_a_cell_of_its_own_counts_when_the_given_one_is_untouched():
    made = school.book()
    made["cells"].append({"cell_type": "code", "id": "mine", "source": SLOTS})
    found, _ = taken(made)
    assert found.taken == "symbol name"
    assert "holds no answer" in found.repairs[0]


@pytest.mark.parametrize("kind", ["markdown", "raw", "heading", None, 7])
def test_a_changed_cell_type_is_named_and_the_text_taken(kind):
    made = school.book({"slot_mapping": SLOTS})
    school.cell_of(made, "slot_mapping")["cell_type"] = kind
    found, _ = taken(made)
    assert found.text.strip() == SLOTS.strip()
    assert "was changed to" in found.repairs[0]


def test_magics_and_calls_beside_an_answer_do_not_count():
    text = "%%time\n!ls\n" + SLOTS + "print(slot_mapping([], [], 1))\n%timeit slot_mapping([1])\n"
    found, _ = taken(school.book({"slot_mapping": text}))
    assert found.text.strip() == SLOTS.strip()
    assert "magic lines" in found.repairs[0]


def test_text_that_is_no_python_is_handed_on_as_it_is():
    found, _ = taken(school.book({"slot_mapping": "def slot_mapping(: return"}))
    assert found.taken == "cell id"
    assert "cannot be read as Python" in found.repairs[0]


def test_nothing_to_be_found_is_said():
    made = school.book()
    made["cells"] = [c for c in made["cells"] if "slot_mapping" not in str(c["source"])]
    found, odd = taken(made)
    assert (found.text, found.taken) == ("", "")
    assert "nothing else gives slot_mapping" in found.repairs[0]
    assert any("check of 4.3 was deleted" in words for words in odd)


def test_changed_checks_are_named():
    made = school.book()
    school.cell_of(made, "BlockPool", "check")["source"] = "pass"
    school.cell_of(made, "blocks_needed", "check")["cell_type"] = "markdown"
    moved = school.cell_of(made, "find_fault", "check")
    moved["id"] = "other"
    moved["metadata"] = {}
    _, odd = taken(made)
    assert "the check of 4.1 was changed" in odd
    assert "the check of 4.2 is no code cell any more" in odd
    assert "the check of 4.6 was renamed" in odd


def test_points_ids_and_tags_in_metadata_change_nothing():
    made = school.book({"slot_mapping": SLOTS})
    for cell in made["cells"]:
        cell["metadata"] = {"nbgrader": {"points": 100, "grade": True, "checksum": "0"},
                            "tags": ["raises-exception", "remove-cell"]}  # fmt: skip
        if cell["cell_type"] == "code":
            cell["outputs"] = [{"output_type": "stream", "text": "18 of 18 points"}]
    found, odd = taken(made)
    assert (found.taken, odd) == ("cell id", [])


@pytest.mark.parametrize(
    "first",
    [
        "get_ipython().showtraceback = lambda *a, **k: None",
        "get_ipython().input_transformers_cleanup.append(lambda lines: [])",
        "%%skip\nimport os",
        "import os; os._exit(0)",
    ],
)
def test_what_stands_in_other_cells_is_never_looked_at(first):
    made = school.book({"slot_mapping": SLOTS})
    made["cells"].insert(0, {"cell_type": "code", "id": "first", "source": first})
    found, odd = taken(made)
    assert (found.text.strip(), odd) == (SLOTS.strip(), [])


def test_an_older_version_is_named():
    book = notebook.read(json.dumps(school.book()).encode())
    told = answers.oddities(book, school.LAB, "something newer")
    assert any("older or other version" in words for words in told)
    assert answers.oddities(book, school.LAB, book.release) == []


# ---- Files that are no notebook -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04", "not JSON"),
        (b"[1, 2]", "not a notebook"),
        (b"{}", "no list of cells"),
        (b'{"cells": 7}', "no list of cells"),
        (b'{"cells": []}', "no cells"),
        (b'{"cells": [1, null, "x"]}', "no cells"),
        (b"[" * 200_000, "deep"),
        (b'{"cells": ' + b'[{"a":' * 100_000, "deep"),
        (b'{"cells": [', "breaks off"),
        (b"\xff\xfe\x00", "JSON"),
    ],
)
def test_why_a_file_cannot_be_read_is_said(data, words):
    with pytest.raises(notebook.Unreadable, match=words):
        notebook.read(data)


def test_other_encodings_are_read_and_named():
    made = school.book({"slot_mapping": "# ünï\n" + SLOTS})
    text = json.dumps(made, ensure_ascii=False)
    for data, words in (
        (text.encode("utf-8-sig"), ""),
        (text.encode("utf-16"), "UTF-16"),
        (text.encode("cp1252", "replace"), "not UTF-8"),
    ):
        book = notebook.read(data)
        assert answers.extract(book, school.LAB)["04-slot_mapping"].text
        assert any(words in repair for repair in book.repairs) == bool(words)


def test_a_file_that_breaks_off_gives_the_cells_before():
    made = school.book(school.right())
    data = json.dumps(made, indent=1).encode()
    place = data.index(b"04-grow_table-answer")
    book = notebook.read(data[:place])
    found = answers.extract(book, school.LAB)
    assert "cells could be read" in book.repairs[0]
    assert found["04-slot_mapping"].text
    assert not found["04-find_fault"].text


def test_a_notebook_of_format_3_is_read():
    cells = [{"cell_type": "code", "input": SLOTS, "metadata": {}}]
    book = notebook.read(json.dumps({"worksheets": [{"cells": cells}], "nbformat": 3}).encode())
    assert answers.extract(book, school.LAB)["04-slot_mapping"].taken == "symbol name"
    assert "format 3" in book.repairs[0]


def test_very_large_outputs_and_sources_are_survived():
    made = school.book({"slot_mapping": SLOTS})
    check = school.cell_of(made, "slot_mapping", "check")
    check["outputs"] = [{"output_type": "stream", "text": "x" * 50_000_000}]
    found, _ = taken(made)
    assert found.text.strip() == SLOTS.strip()
    made["cells"].insert(0, {"cell_type": "code", "id": "big", "source": "x = 1\n" * 10**6})
    found, odd = taken(made)
    assert found.text.strip() == SLOTS.strip()
    assert any("is not read" in words for words in odd)


DEEP = (
    "x = " + "(" * 5000,
    "x = " + "-" * 90_000 + "1",
    "x = a" + ".b" * 50_000,
    "x = " + "[" * 90 + "]" * 90,
    "x = " + "not " * 50_000 + "1",
    "def slot_mapping():\n    " + "return " + "+".join(["1"] * 50_000),
    "slot_mapping = " + "{" * 3000,
    "\n" * 300_000 + "# slot_mapping",
    " " * 300_000 + "slot_mapping",
    "#" * 300_000 + "\nslot_mapping = 4.3",
    "slot_mapping = '" + "\\N{DIGIT ONE}" * 20_000 + "'",
    "slot_mapping = \x00",
    "# -*- coding: nonsense -*-\nslot_mapping = 1",
    "slot_mapping = 10**10**10",
    "slot_mapping = " + "9" * 10_000,
)


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_sources_that_are_hard_to_read_are_read_in_no_time(text):
    from course.grading.signs import signs

    found, _ = taken(school.book({"slot_mapping": text}))
    signs(found.text, registry.find("4.3"))


def mutated(data: bytes, random: random.Random) -> bytes:
    """Bytes flipped, cut, doubled; cells shuffled, dropped, of other types."""
    how = random.randrange(6)
    if how == 0:
        spoilt = bytearray(data)
        for _ in range(random.choice([1, 5, 50, 500])):
            spoilt[random.randrange(len(spoilt))] = random.randrange(256)
        return bytes(spoilt)
    if how == 1:
        return data[: random.randrange(len(data))]
    if how == 2:
        return data[random.randrange(len(data)) :]
    if how == 3:
        place = random.randrange(len(data))
        return data[:place] + data[place - 500 : place] + data[place:]
    made = json.loads(data)
    random.shuffle(made["cells"])
    if how == 4:
        for cell in random.sample(made["cells"], 20):
            cell[random.choice(list(cell))] = random.choice([None, 3, [], {}, "x", [None], True])
    else:
        made["cells"] = random.sample(made["cells"], random.randrange(len(made["cells"])))
        made[random.choice(list(made))] = random.choice([None, [], {}, 1, [[]], {"course": 3}])
    return json.dumps(made).encode()


def test_hundreds_of_spoilt_notebooks_are_read_or_refused():
    random_ = random.Random(4)
    data = json.dumps(school.book(school.right()), indent=1).encode()
    read = 0
    for _ in range(300):
        try:
            book = notebook.read(mutated(data, random_))
        except notebook.Unreadable:
            continue
        read += 1
        answers.lab_of(book)
        answers.oddities(book, school.LAB, "x")
        assert len(answers.extract(book, school.LAB)) == 7
    assert read > 100
