"""No cause is named that the answer does not have; what is unfinished elsewhere is not blamed."""

from __future__ import annotations

import linecache

import pytest

from course.practice import check, checks, feedback, guard, registry
from course.practice.checks import examine
from course.practice.source import load, reference_text, used_names, variant_text


@pytest.fixture(autouse=True)
def own_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY_ENGINE", str(tmp_path))
    return tmp_path


def told(which: str, text: str, seed: int = 3) -> str:
    exercise = registry.find(which)
    verdict = examine(exercise, load(exercise, text), text, seed)
    return " ".join(" ".join(feedback.lines(verdict)).split())


def cell(text: str, space: dict) -> None:
    """Run a text as a notebook would: its lines can be found."""
    name = f"<ipython-input-{len(linecache.cache)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)


def slots(body: str) -> str:
    return f"def slot_mapping(block_ids, positions, block_size):\n    {body}\n"


def test_a_mistake_that_fails_where_the_answer_holds_is_not_its_cause():
    # It refuses a table with a block given back, whoever asks for another one. What exchanges row
    # and block raises there, too, and fails nearly everywhere else.
    body = (
        "if -1 in block_ids or any(not 0 <= p < len(block_ids) * block_size for p in positions):\n"
        "        raise ValueError\n"
        "    return [block_ids[p // block_size] * block_size + p % block_size for p in positions]"
    )
    said = told("slot_mapping", slots(body))
    assert "the other blocks of such a table still serve" in said
    assert "changed places" not in said


def test_a_mistake_beside_another_fault_is_said_to_do_the_same_here():
    exercise = registry.find("slot_mapping")
    for mistake in exercise.answers.mistakes:
        whole = told("slot_mapping", variant_text(exercise, mistake))
        assert f"This is what comes out when {mistake.name}" in whole
    no_refusal = "return [block_ids[0] * block_size + p for p in positions]"  # and no ValueError
    assert "Here the same comes out when" in told("slot_mapping", slots(no_refusal))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("pass", "A function that ends without `return` gives None."),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("return [p / 1 for p in positions]", "`//` of two ints does not."),
    ],
)
def test_without_a_known_mistake_python_is_explained(body, says):
    assert says in told("slot_mapping", slots(body))


def test_an_error_stands_beside_what_was_expected():
    said = told("blocks_needed", "def blocks_needed(n, b):\n    return 1 // 0\n")
    assert "expected 2 ZeroDivisionError" in said


def test_a_call_that_does_not_fit_is_said_to_be_one():
    said = told("blocks_needed", "def blocks_needed(num_tokens):\n    return 1\n")
    assert "TypeError: blocks_needed() takes 1 positional argument but 2 were given" in said
    assert "what came back" not in said


def test_only_a_stub_counts_as_not_written():
    class NoConsole(NotImplementedError):
        pass

    refusal = NotImplementedError('"softmax" not implemented for this')

    def lacks():  # as PyTorch does for an operation that a device has not
        raise refusal

    def console():
        raise NoConsole("no input here")

    assert "unwritten" not in guard.call(console, 1)[0]
    space: dict = {"lacks": lacks}
    cell("def ask():\n    return lacks()\n", space)
    assert "unwritten" not in guard.call(space["ask"], 1)[0]
    cell("def stub():\n    raise NotImplementedError('later')\n", space)
    assert guard.call(space["stub"], 1)[0] == {"unwritten": "later"}


GROW = reference_text(registry.find("grow_table"))
STUB = "def blocks_needed(num_tokens, block_size):\n    raise NotImplementedError('4.2: write x')\n"


def test_an_answer_is_not_blamed_for_a_piece_that_is_not_written(capsys):
    space: dict = {"BlockPool": type("BlockPool", (), {})}
    cell(STUB, space)
    cell(GROW, space)
    assert check(space["grow_table"]).passed
    said = capsys.readouterr().out
    assert "In this notebook it uses your blocks_needed, not right yet" in said
    assert "BlockPool" not in said  # it stands in an annotation only


def test_an_answer_is_not_blamed_for_a_piece_that_is_missing(capsys):
    space: dict = {"BlockPool": type("BlockPool", (), {})}
    cell(GROW, space)
    assert check(space["grow_table"]).passed
    assert "This notebook has no blocks_needed yet" in capsys.readouterr().out


def test_names_in_annotations_do_not_run():
    assert used_names("def f(a: A, *b: B) -> C:\n    d: D = E\n    return g(a)\n") == {
        "E",
        "g",
        "a",
    }


def test_a_function_of_another_name(capsys):
    space: dict = {}
    cell("def needed(num_tokens, block_size):\n    return -(-num_tokens // block_size)\n", space)
    check(space["needed"], "4.2")
    assert "4.2 asks for blocks_needed, and this is 'needed'." in capsys.readouterr().out
    cell("def block_needed(num_tokens, block_size):\n    return 1\n", space)
    check(space["block_needed"])
    said = capsys.readouterr().out
    assert "Did you mean blocks_needed" in said
    assert len(said) < 300


def test_one_piece_is_yours(capsys):
    text = reference_text(registry.find("blocks_needed"))
    space: dict = {}
    cell(text, space)
    check(space["blocks_needed"])
    assert "1 of " in capsys.readouterr().out
    assert checks.registry.pieces()


def test_a_mistake_in_one_answer_of_several_keeps_its_name():
    text = "predicted_saving = {(10, 100): 55, (2000, 100): 2050, (2000, 1): 1}\n"
    assert "the prompt is left out of what a cache computes" in told("predicted_saving", text)


def test_what_another_cell_gives_is_said_to_be_missing_there(capsys):
    space: dict = {"BlockPool": type("BlockPool", (), {})}
    cell(reference_text(registry.find("blocks_needed")), space)
    cell("def missing(wanted, table):\n    return max(0, wanted - len(table))\n", space)
    body = (
        "    more = missing(blocks_needed(num_tokens, block_size), table)\n"
        "    if more > pool.num_free:\n        return False\n"
        "    table += pool.allocate(more)\n    return True\n"
    )
    cell("def grow_table(pool, table, num_tokens, block_size):\n" + body, space)
    assert check(space["grow_table"]).passed
    assert "uses missing from another cell" in " ".join(capsys.readouterr().out.split())


def test_an_error_that_the_setup_cell_gives_may_be_caught():
    exercise = registry.find("grow_table")
    text = (
        "def grow_table(pool, table, num_tokens, block_size):\n    try:\n"
        "        more = max(0, blocks_needed(num_tokens, block_size) - len(table))\n"
        "        table += pool.allocate(more)\n    except OutOfBlocks:\n        return False\n"
        "    return True\n"
    )
    assert examine(exercise, load(exercise, text), text, 3).passed
