"""Guesses, questions and progress bars: they wait for nobody and leave nothing behind."""

import io
import re
import sys

import pytest

from course.show import (
    check_yourself,
    forget_predictions,
    predict,
    prediction_record,
    progress,
)
from course.show.display import WIDGET_VIEW
from course.show.guesses import NOBODY


@pytest.fixture(autouse=True)
def fresh():
    forget_predictions()
    yield
    forget_predictions()


def test_without_a_guess_it_says_so():
    guess = predict("New block?", ["yes", "no"], show=False)
    assert guess.value is None
    assert NOBODY in guess.mimebundle()["text/plain"]
    outcome = guess.measured("no", "2 blocks are enough", show=False)
    assert outcome.text == ("New block? Measured: no (2 blocks are enough). No guess was stored.")
    assert "Nobody has guessed in this session" in str(prediction_record(show=False))


def test_a_guess_meets_its_measurement():
    guess = predict("New block?", ["yes", "no"], show=False)
    guess.set("yes")
    assert "Your guess: yes. It is stored." in guess.mimebundle()["text/html"]
    assert "Your guess was yes: it came out otherwise." in str(guess.measured("no", show=False))
    guess.set("no")
    assert "right" in str(guess.measured("no", show=False))
    time = predict("Time?", unit="ms", show=False)
    time.set("1,000 ms")
    assert "off by a factor of 2.0" in str(time.measured(500.0, show=False))
    assert "Measured: 500 ms" in str(time.measured(500.0, show=False))
    assert "within 10 %" in str(time.measured(1040, show=False))
    assert "right" in str(time.measured(1000, show=False))
    assert "off by 1,000 ms" in str(time.measured(0, show=False))
    text = str(prediction_record(show=False))
    assert "2 of 2 questions have a guess" in text
    assert re.search(r"Time\?\s+1,000 ms\s+0 ms\s+off by 1,000 ms", text)


def test_running_the_cell_again_keeps_the_guess():
    predict("New block?", ["yes", "no"], show=False).set("yes")
    again = predict("New block?", ["yes", "no"], show=False)
    assert again.value == "yes"
    assert predict("New block?", ["yes", "never"], show=False).value is None  # another question
    assert len(prediction_record(show=False).text.splitlines()) == 3


def test_a_record_of_nothing():
    assert "nothing was asked" in str(prediction_record(show=False))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: predict(" "), "question is empty"),
        (lambda: predict("a?", ["x"]), "1 options"),
        (lambda: predict("a?", ["x", "y"], show=False).set("z"), "choose one of"),
        (lambda: predict("a?", ["x", "y"], show=False).measured("z"), "none of the options"),
        (lambda: predict("a?", show=False).set("many"), "write a number"),
        (lambda: predict("a?", show=False).set("nan"), "write a number"),
        (lambda: predict("a?", show=False).set("20,0"), "write a number"),
        (lambda: predict("a?", show=False).set("1,00,000"), "write a number"),
        (lambda: predict("a?", show=False).set("inf"), "write a number"),
        (lambda: check_yourself("", {"a": "b", "c": "d"}, right="a"), "empty"),
        (lambda: check_yourself("q", {"a": "b"}, right="a"), "1 choices"),
        (lambda: check_yourself("q", {"a": "b", "c": " "}, right="a"), "have no answer"),
        (lambda: check_yourself("q", {"a": "b", "c": "d"}, right="e"), "is none of"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_live_guess_is_stored_as_it_is_chosen():
    pytest.importorskip("ipywidgets")
    from course.show.live import guess_box

    guess = predict("New block?", ["yes", "no"], show=False)
    box = guess_box(guess)
    assert NOBODY in box.parts["status"].value
    box.parts["no"].click()
    assert guess.value == "no"
    assert box.parts["no"].description == "\u2713 no"
    assert box.parts["yes"].description == "yes"
    assert guess_box(guess).parts["no"].description == "\u2713 no"  # when the cell is run again
    assert "Your guess: no. It is stored." in box.parts["status"].value
    assert 'role="status"' in box.parts["status"].value
    number = predict("Time?", unit="ms", show=False)
    box = guess_box(number)
    assert box.parts["guess"].description == "A number, in ms"
    box.parts["guess"].value = "about ten"
    assert "write a number" in box.parts["status"].value
    assert number.value is None
    box.parts["guess"].value = "12.5"
    assert number.value == 12.5
    assert guess_box(number).parts["guess"].value == "12.5"
    assert WIDGET_VIEW in box.box._repr_mimebundle_()


def test_a_question_answers_every_choice():
    question = check_yourself(
        "Does `A` need a block? <b>", {"yes": "No: `2 == 2`.", "no": "Indeed."}, right="no",
        show=False,
    )  # fmt: skip
    bundle = question.mimebundle()
    html = bundle["text/html"]
    assert html.count("<details") == html.count("<summary") == 2
    assert "&lt;b&gt;" in html
    assert "<code>A</code>" in html
    assert "(a) yes</summary>" in html
    assert re.search(r"\(a\) yes.*Not this one\..*<code>2 == 2</code>", html)
    assert re.search(r"\(b\) no.*Right\..*Indeed", html)
    assert "<script" not in html
    assert bundle == check_yourself(
        "Does `A` need a block? <b>", {"yes": "No: `2 == 2`.", "no": "Indeed."}, right="no",
        show=False,
    ).mimebundle()  # fmt: skip
    text = bundle["text/plain"]
    assert text.index("(b) no") < text.index("(a) Not this one. No")


def test_progress_gives_everything_and_is_silent_for_quick_work(capsys):
    assert list(progress(range(5), "quick")) == [0, 1, 2, 3, 4]
    assert list(progress(iter("ab"))) == ["a", "b"]
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_terminal_counts_and_wipes_its_line(monkeypatch):
    monkeypatch.delenv("COURSE_STATIC", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    list(progress(range(3), "slow", delay=0.0))
    said = sys.stderr.getvalue()
    assert "slow: 0 of 3" in said
    assert said.endswith("\r\033[K")


def test_progress_is_wiped_when_the_work_fails(monkeypatch):
    monkeypatch.delenv("COURSE_STATIC", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError):
        [1 / item for item in progress(range(3), delay=0.0)]
    work = progress(range(3), delay=0.0)
    next(work)
    work.close()
    assert sys.stderr.getvalue().endswith("\r\033[K")


def test_progress_leaves_nothing_in_a_stored_output(monkeypatch):
    monkeypatch.setenv("COURSE_STATIC", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())
    list(progress(range(3), delay=0.0))
    assert sys.stderr.getvalue() == ""


def test_progress_in_a_page_is_a_named_bar_that_goes_away(monkeypatch):
    pytest.importorskip("IPython")
    import IPython.display

    from course.show import progress_bar

    sent = []

    class Handle:
        def update(self, bundle, raw):
            sent.append(bundle)

    def display(bundle, raw, display_id):
        sent.append(bundle)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    bar = progress_bar._InPage("replay <x>")
    bar.update(3, 10)
    bar.update(4, 10)
    bar.close()
    assert (
        '<progress value="3" max="10" aria-label="replay &lt;x&gt;: 3 of 10">'
        in (sent[0]["text/html"])
    )
    assert sent[-1] == {"text/html": "", "text/plain": ""}
    quiet = progress_bar._InPage("never shown")
    quiet.close()
    assert len(sent) == 3
