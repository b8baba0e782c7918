"""A class as `course grade` writes it down, with names that are hard on files, for tests."""

from course.grading.results import (
    BehaviourResult,
    ClassResult,
    ExerciseResult,
    IsolationReport,
    Submission,
)

# What no student may read: details of a behaviour, notes for the teacher, another's answer.
SECRET = "HIDDEN-INPUT-7731"
NASTY = [
    "Ada Lovelace", "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1:A9)", "\t=1+1", "\r=2",
    'Groß, "Jürgen" Ö.', "יעל כהן", "محمد علي", "<script>alert(1)</script>", "a" * 300,
    "evil\u202egnp.exe", "line\nbreak", "＝1+1", "x\ud800y", "O'Neil; DROP", "[link](http://x)",
]  # fmt: skip


def exercise(number, state="right", points=2.0, of=2, mistake="", says="", answer="x = 1\n"):
    states = ["holds"] * 3 if state == "right" else ["holds", "wrong", "wrong"]
    if state in ("untouched", "missing"):
        states = ["not written"] * 3
    behaviours = [
        BehaviourResult("the docstring's example", states[0], of / 3),
        BehaviourResult("a table that is not in order", states[1], of / 3, True, says or "got 32"),
        BehaviourResult(
            "random tables", states[2], of / 3, False,
            "on an input that is not in the notebook: a wrong value", SECRET,
        ),
    ]  # fmt: skip
    return ExerciseResult(
        number, f"04-x{number}", f"Exercise {number}", points, of, state, behaviours, "cell id",
        mistake=mistake, mistake_note="Ask the table." if mistake else "", answer=answer,
        notes=[f"line 3: {SECRET}"] if state == "wrong" else [], how="outside",
        feedback=["..."],
    )  # fmt: skip


def submission(place, student, exercises, **more):
    return Submission(
        **{
            "name": f"student-{place}-04", "student": student, "display": student,
            "lab": 4, "system": "folder",
            "state": "graded", "points": round(sum(e.points for e in exercises), 2),
            "of": sum(e.of for e in exercises), "exercises": exercises,
            "source": f"{place}/04_block_tables.ipynb", "notes": [n for e in exercises
                                                                  for n in e.notes],
            **more,
        }
    )  # fmt: skip


def of(submissions, sufficient=True):
    report = IsolationReport("bubblewrap", sufficient=sufficient)
    return ClassResult("0", sorted({s.lab for s in submissions}), report, list(submissions))


def nasty(**more):
    """One student for each hard name, every third of them wrong."""
    found = []
    for place, name in enumerate(NASTY):
        wrong = place % 3 == 2
        made = [
            exercise("4.1"),
            exercise("4.2", "partly right" if wrong else "right", 0.67 if wrong else 2.0,
                     mistake="the next block is taken" if wrong else "",
                     says="got '<b>&=1+1' from ![x](http://y)" if wrong else ""),
            exercise("4.3", "untouched", 0.0),
        ]  # fmt: skip
        found.append(submission(place, name, made, **more))
    return of(found)
