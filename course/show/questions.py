"""``check_yourself``: a question whose every choice answers back.

    check_yourself(
        "A holds 7 tokens in blocks of 4. Its 8th arrives. Does A need a new block?",
        {"yes": "It fills the last slot of block 1. Only the 9th needs one.",
         "no": "`blocks_needed(8, 4)` is 2, and A's table has 2 entries."},
        right="no",
    )

Each choice unfolds with a click or with Enter. That is plain HTML: it works without a kernel, in
an exported page and on a code-hosting site, and the stored output is the question itself.
"""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from course.show.display import Shown

RIGHT, WRONG = "Right.", "Not this one."


def _markup(text: str) -> str:
    """Escaped, with `code` in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


class Question(Shown):
    """One question with its choices."""

    def __init__(self, question: str, choices: Mapping[str, str], right: str, show: bool = True):
        if not question.strip():
            raise ValueError("the question is empty")
        if len(choices) < 2:
            raise ValueError(f"{question!r} has {len(choices)} choices: give at least two")
        silent = [choice for choice, answer in choices.items() if not answer.strip()]
        if silent:
            raise ValueError(f"{question!r}: the choices {silent} have no answer; each needs one")
        if right not in choices:
            raise ValueError(f"{question!r}: right={right!r} is none of {list(choices)}")
        self.question, self.choices, self.right = question, dict(choices), right
        if show:
            self.show()

    def mimebundle(self) -> dict[str, Any]:
        html = [
            '<div class="course-question" style="margin:10px 0 14px;max-width:780px">',
            f"<p><strong>{_markup(self.question)}</strong></p>",
        ]
        text, answers = [self.question, ""], []
        for letter, (choice, answer) in zip("abcdefghij", self.choices.items(), strict=False):
            verdict = RIGHT if choice == self.right else WRONG
            html.append(
                f'<details style="margin:3px 0 3px 8px"><summary style="cursor:pointer">({letter}) '
                f'{_markup(choice)}</summary><p style="margin:4px 0 10px 20px">'
                f"<strong>{verdict}</strong> {_markup(answer)}</p></details>"
            )
            text.append(f"  ({letter}) {choice}")
            answers.append(f"  ({letter}) {verdict} {answer}")
        html.append("</div>")
        return {"text/html": "".join(html), "text/plain": "\n".join([*text, "", *answers])}

    def __repr__(self) -> str:
        return self.mimebundle()["text/plain"]


def check_yourself(
    question: str, choices: Mapping[str, str], right: str, show: bool = True
) -> Question:
    """Ask a question. choices: each choice with its answer, in the order to show; the wrong ones
    need an answer too. right: the right choice. Backticks mark code. ValueError for a choice
    without an answer, fewer than two choices, or a right one that is not among them."""
    return Question(question, choices, right, show)
