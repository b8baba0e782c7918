"""Words about a prediction: how far off it is, without giving the measurement away.

The number itself comes with the answer that holds, or after three tries (``Probe.measured``).
"""

from __future__ import annotations

TRIES = 3  # wrong ones, after which the measurement is told

HOW_FAR = (
    (0.05, "less than a twentieth of"),
    (0.35, "less than about a third of"),
    (0.7, "about half of"),
    (1.0, "somewhat less than"),
    (1.4, "somewhat more than"),
    (1.75, "about half as much again as"),
    (2.8, "about twice"),
    (20.0, "several times"),
    (float("inf"), "far more than"),
)


def how_far(guess: float, measured: float, what: str = "what is measured") -> str:
    """Direction and rough size of an error: "about twice what is measured"."""
    if guess <= 0 or measured <= 0:  # no ratio
        return f"{'less' if guess < measured else 'more'} than {what}"
    return f"{next(words for limit, words in HOW_FAR if guess <= limit * measured)} {what}"
