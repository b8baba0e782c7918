"""One submission in Gradescope's format of results.

https://gradescope-autograders.readthedocs.io/en/latest/specs/ . Text is sent as text: no part of it
is read as HTML or Markdown there.
"""

from __future__ import annotations

from typing import Any

from course.grading.exports.feedback import exercise_lines, opening_lines
from course.grading.results import NOT_GRADED, RIGHT, IsolationReport, Submission

SURE = "kept apart from the grader, the network and the system"
UNSURE = "WARNING to teachers: nothing but the container kept this submission in"


def results(submission: Submission, isolation: IsolationReport | None = None) -> dict[str, Any]:
    """The object of results.json: a test for each exercise, its points, its feedback."""
    told = opening_lines(submission)
    if isolation is not None:
        words = SURE if isolation.sufficient else UNSURE
        told.append(f"Isolation: {isolation.level} ({words}).")
    made: dict[str, Any] = {
        "score": round(submission.points, 2),
        "output": "\n".join(told),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }
    for e in submission.exercises:
        made["tests"].append(
            {
                "number": e.id,
                "name": e.title,
                "score": round(e.points, 2),
                "max_score": float(e.of),
                "status": "passed" if e.state == RIGHT else "failed",
                "output": "\n".join(exercise_lines(e)),
                "output_format": "text",
                "name_format": "text",
                "visibility": "visible",
            }
        )
    if submission.state == NOT_GRADED:
        return ungraded("This was not graded. It says nothing of your work.")
    return made


def ungraded(why: str) -> dict[str, Any]:
    """What stands there when there is nothing to grade, or no grading."""
    return {
        "score": 0.0, "output": why, "output_format": "text", "visibility": "visible",
        "stdout_visibility": "hidden", "tests": [],
    }  # fmt: skip
