"""``predict`` and ``prediction_record``: a guess stored before each experiment, and guesses against
measurements at the end of the lesson.

    guess = predict("New block for A's 8th token?", ["yes", "no"])
    ...
    guess.measured("no", "blocks_needed(8, 4) is 2, as before")
    guess = predict("Milliseconds per token at 1,024 tokens without a cache?", unit="ms")
    guess.measured(95.3)
    prediction_record()

Nothing waits: a notebook that runs from top to bottom finds no guess, and says so. Running the
cell again keeps the guess.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import Any

from course.show.display import WIDGET_VIEW, Shown, static_only
from course.show.tables import ShownTable
from course.show.text import cell

_RECORD: dict[str, "Guess"] = {}
NOBODY = "Nobody has guessed yet."


class Guess(Shown):
    """A question with a guess that may be there (``.value``) or not (None)."""

    def __init__(
        self, question: str, options: Sequence[Any] | None = None, unit: str = "", show: bool = True
    ):
        if not question.strip():
            raise ValueError("the question is empty")
        if options is not None and len(options) < 2:
            raise ValueError(f"{question!r} has {len(options)} options: give at least two, or none")
        self.question, self.unit = question, unit
        self.options = None if options is None else list(options)
        self.value: Any = None
        self.outcome: Any = None
        self.detail = ""
        before = _RECORD.get(question)
        if before is not None and before.options == self.options:
            self.value = before.value
        _RECORD[question] = self
        if show:
            self.show()

    # -- guessing ---------------------------------------------------------------------------------

    def set(self, value: Any) -> None:
        """Store a guess: one of the options, or a number where there are none."""
        if self.options is not None and value not in self.options:
            raise ValueError(f"guess {value!r}: choose one of {self.options}")
        self.value = self._number(value) if self.options is None else value

    def _number(self, value: Any) -> float:
        text = str(value).removesuffix(self.unit) if self.unit else str(value)
        text = text.strip()
        if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", text):  # 20,0 is no number; 2,000 is
            text = text.replace(",", "")
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"guess {value!r}: write a number, such as 12.5") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"guess {value!r}: write a number, such as 12.5")
        return number

    # -- measuring --------------------------------------------------------------------------------

    def measured(self, value: Any, detail: str = "", show: bool = True) -> "Outcome":
        """Store and show what came out. value: one of the options (ValueError otherwise), or a
        number; detail: a few words or figures more."""
        if self.options is not None and value not in self.options:
            raise ValueError(f"measured {value!r} is none of the options {self.options}")
        self.outcome = self._number(value) if self.options is None else value
        self.detail = detail
        return Outcome(self, show)

    def say(self, value: Any) -> str:
        said = cell(int(value)) if isinstance(value, float) and value.is_integer() else cell(value)
        return f"{said} {self.unit}".strip() if self.options is None else str(value)

    def verdict(self) -> str:
        """How guess and measurement compare, in words."""
        if self.outcome is None:
            return "not measured yet"
        if self.value is None:
            return "no guess"
        if self.options is not None:
            return "right" if self.value == self.outcome else "it came out otherwise"
        if self.value == self.outcome:
            return "right"
        low, high = sorted((abs(self.value), abs(self.outcome)))
        if low == 0 or (self.value > 0) != (self.outcome > 0):
            return f"off by {self.say(abs(self.value - self.outcome))}"
        if high / low < 1.1:
            return "within 10 %"
        return f"off by a factor of {high / low:.1f}"

    # -- showing ----------------------------------------------------------------------------------

    def _status(self) -> str:
        return (
            NOBODY if self.value is None else f"Your guess: {self.say(self.value)}. It is stored."
        )

    def mimebundle(self) -> dict[str, Any]:
        if self.options is None:
            unit = f" ({self.unit})" if self.unit else ""
            choices, plain = f"<p>A number{escape(unit)}.</p>", f"  a number{unit}"
        else:
            items = "".join(f"<li>{escape(str(option))}</li>" for option in self.options)
            choices, plain = f"<ul>{items}</ul>", "\n".join(f"  - {o}" for o in self.options)
        html = (
            f'<div class="course-twin {self.twin_class()}"><p><strong>Your guess: '
            f"{escape(self.question)}</strong></p>{choices}<p><em>{escape(self._status())}</em></p>"
            "</div>"
        )
        text = f"Your guess: {self.question}\n{plain}\n{self._status()}"
        return {"text/html": html, "text/plain": text}

    def twin_class(self) -> str:
        return f"course-twin-{sha256(self.question.encode()).hexdigest()[:10]}"

    def show(self) -> None:
        super().show()
        if self._shown_at is None or static_only():
            return
        from IPython.display import publish_display_data

        from course.show.live import guess_box

        self.live = guess_box(self)
        publish_display_data({WIDGET_VIEW: self.live.box._repr_mimebundle_()[WIDGET_VIEW]})

    def __repr__(self) -> str:
        return self.mimebundle()["text/plain"]


class Outcome(Shown):
    """A guess against its measurement, in a sentence."""

    def __init__(self, guess: Guess, show: bool = True):
        self.text = f"{guess.question} Measured: {guess.say(guess.outcome)}"
        self.text += f" ({guess.detail}). " if guess.detail else ". "
        if guess.value is None:
            self.text += "No guess was stored."
        else:
            self.text += f"Your guess was {guess.say(guess.value)}: {guess.verdict()}."
        if show:
            self.show()

    def mimebundle(self) -> dict[str, Any]:
        return {"text/html": f"<p>{escape(self.text)}</p>", "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def predict(
    question: str, options: Sequence[Any] | None = None, unit: str = "", show: bool = True
) -> Guess:
    """Ask for a guess before an experiment; never waits for one.

    options: what can be chosen; None asks for a number, in ``unit``. Later call
    ``.measured(value)`` on what this returns. ValueError for one option or an empty question.
    """
    return Guess(question, options, unit, show)


def prediction_record(show: bool = True) -> ShownTable:
    """The guesses of this session against what was measured, as a table."""
    rows: list[tuple] = [("question", "your guess", "measured", "verdict")]
    for guess in _RECORD.values():
        mine = "–" if guess.value is None else guess.say(guess.value)
        came = "–" if guess.outcome is None else guess.say(guess.outcome)
        rows.append((guess.question, mine, came, guess.verdict()))
    if len(rows) == 1:
        rows.append(("nothing was asked", "–", "–", ""))
    guessed = sum(guess.value is not None for guess in _RECORD.values())
    title = f"Guesses against measurements: {guessed} of {len(_RECORD)} questions have a guess."
    if not guessed:
        title = "Guesses against measurements. Nobody has guessed in this session."
    return ShownTable(rows, title, show)


def forget_predictions() -> None:
    """Start the record afresh."""
    _RECORD.clear()
