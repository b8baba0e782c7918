"""What a student reads: written from their verdicts, as HTML, Markdown or plain lines.

Only fields that are for students are used: of a behaviour ``says`` and never ``detail``, of an
exercise neither ``notes`` nor ``answer``. Values that their code gave are shown as text.
"""

from __future__ import annotations

import re

from course.grading.exports import page
from course.grading.exports.cells import number, printable
from course.grading.results import (
    DAMAGED,
    ERROR,
    HOLDS,
    MISSING,
    NO_NOTEBOOK,
    NOT_GRADED,
    NOT_RUN,
    RIGHT,
    UNTOUCHED,
    WRONG_LAB,
    BehaviourResult,
    ExerciseResult,
    Submission,
)

VALUE = "value"  # how an answer is tried that is a value: there are no inputs
STATES = {
    NO_NOTEBOOK: "There is no notebook in what you handed in. Hand in the .ipynb file of the lab.",
    DAMAGED: "Your notebook cannot be read. Open it in JupyterLab, save it, and hand it in again.",
    WRONG_LAB: "The notebook that you handed in is of another lab.",
    NOT_GRADED: "This was not graded, for a reason that is not yours. Please tell your teacher.",
}
NO_ANSWER = {
    UNTOUCHED: "Not written yet.",
    MISSING: "No answer was found. It belongs into the cell under the task, which must stay there.",
    ERROR: "This could not be graded, for a reason that is not yours. Please tell your teacher.",
}


def opening(s: Submission) -> str:
    """One sentence on the whole."""
    if s.state in STATES:
        return STATES[s.state]
    right = sum(e.state == RIGHT for e in s.exercises)
    started = sum(e.state not in (UNTOUCHED, MISSING) for e in s.exercises)
    told = f"{number(s.points)} of {s.of} points. {right} of {len(s.exercises)} exercises are right"
    if started < len(s.exercises):
        told += f", {len(s.exercises) - started} are not written yet"
    return told + "."


def opening_lines(s: Submission) -> list[str]:
    found = [opening(s)]
    if s.late:
        found.append(f"Handed in late: {printable(s.late)}.")
    if s.superseded:
        found.append("You handed in more than one copy; the newest was graded.")
    if s.state != NOT_GRADED:  # there it is about the grader
        found += [f"About the file: {printable(words)}." for words in s.repairs]
    return found


def sentence(e: ExerciseResult) -> str:
    """One sentence on an exercise."""
    if e.state in NO_ANSWER:
        return NO_ANSWER[e.state]
    held = sum(b.state == HOLDS for b in e.behaviours)
    if e.state == RIGHT:
        hidden = "" if e.how == VALUE else ", also on hidden inputs"
        return f"Right: all {held} behaviours hold{hidden}."
    return f"{held} of {len(e.behaviours)} behaviours hold."


def mistaken(e: ExerciseResult) -> str:
    if not e.mistake:
        return ""
    return f"This is what comes out when {e.mistake}. {e.mistake_note}".strip()


def failed(e: ExerciseResult) -> list[BehaviourResult]:
    if e.state in NO_ANSWER:
        return []
    return [b for b in e.behaviours if b.state not in (HOLDS, NOT_RUN)]


def not_run(e: ExerciseResult) -> list[BehaviourResult]:
    return [] if e.state in NO_ANSWER else [b for b in e.behaviours if b.state == NOT_RUN]


def next_step(e: ExerciseResult) -> str:
    """What to do now."""
    if e.state in (RIGHT, ERROR, MISSING):
        return ""
    if e.state == UNTOUCHED:
        return "Start with the example in its docstring: do it by hand first."
    first = next(iter(failed(e)), None)
    if first is None:
        return ""
    if first.public:
        return "Run its check in the notebook: it shows this case, and the hints are beside it."
    return (
        "Your answer gets the notebook's own examples right. Think of sizes and orders that they "
        "do not have: one, none, a full block, one more than that."
    )


def exercise_lines(e: ExerciseResult) -> list[str]:
    """As plain text: one exercise."""
    found = [sentence(e)]
    found += [f"Not yet: {_line(b)}" for b in failed(e)]
    found += [f"Not run here, and not counted for or against you: {b.behaviour}"
              for b in not_run(e) if not b.points]  # fmt: skip
    found += [mistaken(e)] if e.mistake else []
    found += [next_step(e)] if next_step(e) else []
    found += [f"About the cell: {printable(words)}." for words in e.repairs]
    return found


def in_short(s: Submission) -> str:
    """On one line, for a gradebook's cell."""
    parts = [opening(s)]
    for e in s.exercises:
        if e.state != RIGHT:
            words = sentence(e)
            why = f" {mistaken(e)}" if e.mistake else ""
            parts.append(f"{e.id} {e.title}: {words}{why}")
    return printable(" | ".join(parts))[:1500]


def _line(b: BehaviourResult) -> str:
    return f"{b.behaviour}: {b.says}" if b.says else b.behaviour


# ---- HTML ---------------------------------------------------------------------------------------


def html(s: Submission) -> str:
    """A page for one student."""
    text = page.text
    body = [f"<p>{page.name(s.display or s.student)}</p>"]
    body += [f"<p>{text(line)}</p>" for line in opening_lines(s)]
    if s.exercises:
        rows = [
            [f"{text(e.id)} {text(e.title)}", f"{number(e.points)} of {e.of}", text(sentence(e))]
            for e in s.exercises
        ]
        body += [
            "<h2>In short</h2>",
            page.table("Points by exercise", ["exercise", "points", "how it stands"], rows, [1]),
        ]
    for e in s.exercises:
        if e.state == RIGHT and not e.repairs:  # the table has said so
            continue
        body.append(f"<h2>{text(e.id)} {text(e.title)}</h2>")
        body.append(f"<p>{text(sentence(e))} {number(e.points)} of {e.of} points.</p>")
        if bad := failed(e):
            items = "".join(
                f"<li>{text(b.behaviour)}" + (f": <code>{text(b.says)}</code>" if b.says else "")
                + "</li>" for b in bad
            )  # fmt: skip
            body.append(f"<h3>Not yet</h3><ul>{items}</ul>")
        good = [b for b in e.behaviours if b.state == HOLDS]
        if good and bad:
            items = "".join(f"<li>{text(b.behaviour)}</li>" for b in good)
            body.append(f"<h3>What holds</h3><ul>{items}</ul>")
        if e.mistake:
            body.append(f'<p class="box">{text(mistaken(e))}</p>')
        if step := next_step(e):
            body.append(f"<p>{text(step)}</p>")
        body += [f'<p class="quiet">About the cell: {text(words)}.</p>' for words in e.repairs]
    return page.page(f"Lab {s.lab:02d}: your feedback" if s.lab else "Your feedback", body)


# ---- Markdown -----------------------------------------------------------------------------------

SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$@])")
LINKS = re.compile(r"(?i)(:)(?=//)|(?<=\bwww)(\.)")
STARTS = re.compile(r"^(?:([-+>=])|(\d+)([.)]))")


def escaped(words: object) -> str:
    """Text that Markdown shows as it is: no link, list, heading, formula or tag comes of it."""
    clean = printable(words).replace("&", "&amp;").replace("<", "&lt;")
    clean = LINKS.sub(lambda found: "\\" + found[0], SPECIAL.sub(r"\\\1", clean))
    return STARTS.sub(lambda f: f"\\{f[1]}" if f[1] else f"{f[2]}\\{f[3]}", clean)


def markdown(s: Submission) -> str:
    """The same for one student, in Markdown."""
    told = [f"# Lab {s.lab:02d}: your feedback" if s.lab else "# Your feedback"]
    told += [escaped(s.display or s.student)]
    told += [escaped(line) for line in opening_lines(s)]
    for e in s.exercises:
        told.append(f"## {escaped(e.id)} {escaped(e.title)}")
        told.append(f"{escaped(sentence(e))} {escaped(number(e.points))} of {e.of} points.")
        bad = failed(e)
        if bad:
            told.append("**Not yet**")
            told.append("\n".join(f"- {escaped(_line(b))}" for b in bad))
        good = [b for b in e.behaviours if b.state == HOLDS]
        if bad and good:
            told.append("**What holds**")
            told.append("\n".join(f"- {escaped(b.behaviour)}" for b in good))
        told += [f"> {escaped(mistaken(e))}"] if e.mistake else []
        told += [escaped(next_step(e))] if next_step(e) else []
        told += [f"*About the cell: {escaped(words)}.*" for words in e.repairs]
    return "\n\n".join(told) + "\n"
