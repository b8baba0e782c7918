"""What a learner is told when it is not the answer that is odd, but how it is asked about."""

import errno
import os
import re
import sys
import time
import warnings
from html import unescape

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course.practice import checks, feedback, guard, registry
from course.practice.checks import check, examine
from course.practice.compare import compare
from course.practice.guess import how_far
from course.practice.my_engine import MyEngine, why_not
from course.practice.plain import plain
from course.practice.source import load, reference, reference_text, variant_text
from course.practice.standing import progress
from course.practice.swap import learner_engine

GUESSES = [e for e in registry.every() if any(probe.measured for probe in e.probes)]


@pytest.fixture(autouse=True)
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY_ENGINE", str(tmp_path / "mine"))
    checks._tries.clear()
    return MyEngine()


def run(cells, folder):
    notebook = new_notebook(cells=list(map(new_code_cell, cells)))
    env = {**os.environ, "COURSE_MY_ENGINE": str(folder)}
    NotebookClient(notebook, timeout=240, kernel_name="python3", allow_errors=True).execute(env=env)
    return notebook.cells


def shown(cell):
    return "\n".join(o.get("data", {}).get("text/plain", o.get("text", "")) for o in cell.outputs)


def flat(text):
    return " ".join(text.split())


# ---- predictions --------------------------------------------------------------------------------


def test_there_are_eight_predictions():
    assert [e.id for e in GUESSES] == ["1.5", "2.7", "3.7", "4.7", "6.7", "7.2", "8.6", "9.4"]


@pytest.mark.parametrize("exercise", GUESSES, ids=lambda e: e.id)
def test_a_guess_is_told_how_far_off_it_is_and_the_measurement_comes_later(exercise, capsys):
    right = reference(exercise)
    wrong = dict.fromkeys(right, 1234.5) if isinstance(right, dict) else 1234.5
    measured = [probe.measured(probe.examples[0]) for probe in exercise.probes]
    said = [flat(check(wrong, exercise.id).text) for _ in range(3)]
    assert not check([], exercise.id).passed  # not even numbers: no help, no harm
    for text in said[:2]:
        assert "is measured" in text or "is counted" in text or "lies between" in text
        assert "Measured" not in text
        assert not any(number in text for number in measured)
    told = f"Measured, as you have tried 3 times: {', '.join(measured)}."
    assert told in said[2]
    assert f"Measured: {', '.join(measured)}." in flat(check(right, exercise.id).text)
    capsys.readouterr()


def test_tries_are_remembered_by_the_journal(capsys):
    for _ in range(3):
        checks._tries.clear()  # another kernel
        said = check(99.5, "8.6").text
    assert "as you have tried 3 times" in said
    capsys.readouterr()


@pytest.mark.parametrize(
    ("guess", "measured", "says"),
    [
        (0.01, 1, "less than a twentieth"),
        (5, 10, "about half of"),
        (9, 10, "somewhat less"),
        (12, 10, "somewhat more"),
        (20, 10, "about twice"),
        (1e6, 10, "far more"),
        (3, 0, "more than what"),
        (-3, 1, "less than what"),
        (0, 5, "less than what"),
    ],
)
def test_how_far(guess, measured, says):
    assert says in how_far(guess, measured)


# ---- prints and time ----------------------------------------------------------------------------


def told(exercise, text):
    exercise = registry.find(exercise)
    return feedback.text(examine(exercise, load(exercise, text), text, seed=1))


def test_a_warning_is_not_a_print():
    body = "def blocks_needed(n, b):\n    import warnings\n    warnings.warn('x')\n    {}return 9\n"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # As Python shows them; pytest keeps them to itself.
        warnings.showwarning = lambda what, *_: print(what, file=sys.stderr)
        assert "printed" not in told("4.2", body.format(""))
        assert "printed" in told("4.2", body.format("print(1); "))


def test_an_answer_that_sleeps_is_stopped_after_a_while(monkeypatch):
    monkeypatch.setattr(guard, "IN_ALL", 0.5)
    text = (
        "import time\n\ndef blocks_needed(num_tokens, block_size):\n    time.sleep(0.2)\n"
        "    return -(-num_tokens // block_size)\n"
    )
    began = time.monotonic()
    said = flat(told("4.2", text))
    assert time.monotonic() - began < 10
    assert "not tried: the 0.5 s for all calls together were used up after" in said
    assert "Does it sleep" in said


def test_the_clock_counts_sleep_and_work(monkeypatch):
    clock = guard.Clock()
    time.sleep(0.3)
    while clock.seconds() < 0.4:
        pass
    monkeypatch.setattr(guard, "_queued", lambda: None)  # as on other systems
    clock, worked = guard.Clock(), time.process_time()
    while time.process_time() - worked < 0.2:
        pass
    assert clock.seconds() >= 0.2
    time.sleep(0.3)
    assert clock.seconds() < 0.2 + 1


def test_one_call_that_sleeps_is_stopped_at_its_limit():
    if guard._queued() is None:
        pytest.skip("the system does not tell sleep from a queue")
    began = time.monotonic()
    assert guard.call(lambda: time.sleep(30), 0.3)[0]["timeout"] == 0.3
    assert time.monotonic() - began < 0.3 * guard.CROWDED


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("blok_pool", "Did you mean BlockPool?"),
        ("slotmapping", "Did you mean slot_mapping?"),
        ("nothing like it", "`progress()` lists them all."),
        ("4.99", "there are 4.1 BlockPool"),
        ("77.1", "lists them all"),
        (4.3, "is named by its id or name"),
    ],
)
def test_a_name_that_does_not_exist(name, says):
    with pytest.raises(ValueError, match="exercise") as error:
        registry.find(name)
    assert says in str(error.value)
    assert len(str(error.value)) < 250


def piece():
    pass


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"force": piece}, 'force=piece: say by which name, force={"piece": piece}'),
        ({"force": 3}, "force=3: give the name of a piece"),
        ({"force": {"slot_mapping": 3}}, "a piece is a function or a class, and this is int"),
        ({"force": ["slot_maping"]}, "Did you mean slot_mapping?"),
        ({"without": piece}, "without=piece: give the name of a piece"),
        ({"without": "BlokPool"}, "Did you mean BlockPool?"),
        ({"seconds": "5"}, "seconds='5': it is a number of seconds"),
        ({"seconds": 0}, "seconds=0: it is a number of seconds, more than 0"),
        ({"seconds_in_all": None}, "seconds_in_all=None"),
    ],
)
def test_what_learner_engine_cannot_take_is_said_at_once(given, says):
    with pytest.raises(ValueError, match=r"=|mean") as error, learner_engine(**given):
        raise AssertionError("it began")
    assert says in str(error.value)


def test_an_engine_within_an_engine(capsys):
    with learner_engine() as made:  # noqa: SIM117
        with pytest.raises(RuntimeError, match="at work already"), learner_engine():
            pass
    assert not made.failed
    with learner_engine():
        pass
    capsys.readouterr()


@pytest.mark.parametrize(
    ("answer", "which", "says"),
    [
        (lambda: reference(registry.find("8.1")), "8.2", "Write `class Runner:`"),
        (lambda: 3.5, "8.4", "8.4 asks for"),
        (lambda: 3.5, "8.1", "Write `def stop_reason(...)`"),
        (lambda: "8.1", "", "'8.1' only names an exercise: check(stop_reason) is what you want."),
        (lambda: 8.6, "", 'check(predicted_ratio, "8.6") is what you want'),
        (lambda: len, "", "It goes by the name after `def`"),
    ],
)
def test_the_wrong_thing_is_handed_over(answer, which, says, capsys):
    assert not check(answer(), which).passed
    said = capsys.readouterr().out
    assert says in said
    assert "Did you mean" not in said
    assert "of no use" not in said


def test_in_a_notebook(tmp_path):
    """A value without its number; a SyntaxError in the newest cell of an answer."""
    right = reference_text(registry.find("4.2"))
    cells = run(
        [
            "from course.practice import check",
            "predicted_ratio = 6.5",
            "check(predicted_ratio)",
            right,
            "check(blocks_needed)",
            right.replace("return", "return ((", 1),
            "check(blocks_needed)",
            right,
            "check(blocks_needed)",
        ],
        tmp_path,
    )
    assert 'check(predicted_ratio, "8.6") is what you want' in shown(cells[2])
    broken = "Your newest cell for blocks_needed did not run: a SyntaxError in line"
    assert [broken in shown(cells[n]) for n in (4, 6, 8)] == [False, True, False]


def test_what_a_check_shows_needs_no_front_end(tmp_path):
    """Text, and the same as plain HTML: no JavaScript, no widget, no colour, nothing fetched. So it
    reads the same in JupyterLab, Notebook 7, VS Code, nbclient and a page made by nbconvert."""
    pytest.importorskip("triton")
    mend = registry.find("attend_blocks")
    start = variant_text(mend, mend.answers.mistakes[1])
    kernels = "from course.practice.kernels import tl, triton\n"
    cells = run(
        [
            "from course.practice import check, progress, see_mistake\n" + kernels,
            "def blocks_needed(num_tokens, block_size):\n    return num_tokens // block_size",
            "check(blocks_needed)",
            reference_text(registry.find("4.2")),
            "check(blocks_needed)",
            "failing_input = (9, 12)",
            'check(failing_input, "5.6"); print("after")',
            start,
            "check(attend_blocks)",  # in a process of its own, which it says until there is more
            "check(len)",
            "progress()",
        ],
        tmp_path,
    )
    for number in (2, 4, 6, 8, 9, 10):
        (found,) = [o for o in cells[number].outputs if o.output_type != "stream"]
        assert found.output_type in ("display_data", "execute_result")
        assert set(found.data) == {"text/plain", "text/html"}, number
        html, text = found.data["text/html"], found.data["text/plain"]
        assert not re.search(r"<script|javascript:|\son\w+=|<link|<iframe|<img|src=|https?:", html)
        assert not re.search(r"(?<!current)color:|background", html.lower())
        if number == 10:
            continue
        words = unescape(re.sub(r"<[^>]+>", " ", html))
        word = "Passed. " if number == 4 else "Not yet. "
        assert flat(words) == flat(word + text)
    assert not [o for cell in cells for o in cell.outputs if o.output_type == "error"]
    assert "attend_blocks: " in shown(cells[8])
    assert "This takes a few seconds" not in shown(cells[8])


# ---- small words --------------------------------------------------------------------------------


def test_one_entry():
    parting = compare(plain([1]), plain([1, 2])).parting
    assert parting.words() == "expected 1 entry   got 2"


def test_one_behaviour_and_two(capsys):
    assert "8.6 predicted_ratio: it does not hold." in check(99, "8.6").text
    assert "5.6 failing_input: both behaviours hold." in check((9, 13), "5.6").text
    capsys.readouterr()


def test_no_error_is_not_measured():
    exercise = registry.find("8.5")
    verdict = examine(exercise, reference(exercise), reference_text(exercise), seed=1)
    assert verdict.limit
    assert "Largest error" not in feedback.text(verdict)


def test_progress_says_where_it_looked(engine, tmp_path, monkeypatch, capsys):
    said = progress()
    for text in (said.text(), said._repr_html_()):
        assert f"Nothing is saved yet; looked in {engine.where}" in text
    check((9, 13), "5.6")
    assert f"Saved in {engine.where}" in progress().text()
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("COURSE_MY_ENGINE", str(file))
    assert f"{file} is a file and no folder: nothing can be saved." in progress().text()
    check((9, 13), "5.6")
    assert "it is a file and no folder" in flat(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("number", "says", "not_says"),
    [
        (errno.EEXIST, "a file and no folder", "rights"),
        (errno.ENOTDIR, "a file and no folder", "rights"),
        (errno.ENOENT, "such a folder cannot be made", "rights"),
        (errno.EACCES, "or change its rights", "room"),
        (errno.ENOSPC, "Make some room", "COURSE_MY_ENGINE"),
    ],
)
def test_the_remedy_fits_the_reason(number, says, not_says, tmp_path):
    told = why_not(OSError(number, "x"), tmp_path)
    assert says in told
    assert not_says not in told
