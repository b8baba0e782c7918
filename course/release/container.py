"""What runs in Gradescope's container: ``python -m course.release.container /autograder``.

Reads ``submission/`` and ``submission_metadata.json``, grades one student, and always writes
``results/results.json``: where grading could not be done, one that says so.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from course.grading import isolation, run
from course.grading.exports import gradescope
from course.grading.session import Limits
from course.practice.my_engine import write_whole

NOT_GRADED = "This was not graded: {why}. It says nothing of your work; please tell your teacher."


def student(home: Path) -> str:
    """Whose submission this is, from its metadata; the same for each of their tries."""
    try:
        told = json.loads((home / "submission_metadata.json").read_text(encoding="utf-8"))
        who = sorted(str(user.get("email") or user["id"]) for user in told["users"])
        return " ".join(who)[:200] or "student"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "student"


def grade(home: Path) -> dict:
    """The submission's results, in Gradescope's format."""
    told = json.loads((home / "source" / "release.json").read_text(encoding="utf-8"))
    work = Path(tempfile.mkdtemp(prefix="course-gradescope-"))
    try:
        # The hidden inputs depend on the name that a student has here.
        given = work / "in" / "submitted" / _folder_name(student(home)) / "lab"
        given.parent.mkdir(parents=True)
        # Links are kept as links, so that what they point to is not copied; the grader skips them.
        shutil.copytree(home / "submission", given, symlinks=True)
        options = run.Options(
            work / "in", work / "out", told["lab"], seed=told["seed"],
            limits=Limits(), allow_unsandboxed=told["unsandboxed"],
        )  # fmt: skip
        found = run.grade(options)
        print("Isolation:", isolation.words(found.isolation))
        if len(found.submissions) != 1:
            why = "no notebook was found in what you handed in"
            return gradescope.ungraded(why)
        made = gradescope.results(found.submissions[0], found.isolation)
        made["execution_time"] = round(found.seconds, 1)
        return made
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _folder_name(words: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "@.-" else "_" for letter in words)


def main() -> int:
    home = Path(sys.argv[1])
    code = 0
    try:
        found = grade(home)
    except PermissionError as error:
        print(error)
        found = gradescope.ungraded(
            NOT_GRADED.format(why="the machine cannot keep submissions apart from the grader")
        )
        code = 1
    except Exception:
        traceback.print_exc()  # Gradescope shows this to teachers only
        found = gradescope.ungraded(NOT_GRADED.format(why="the grader failed"))
        code = 1
    (home / "results").mkdir(exist_ok=True)
    write_whole(home / "results" / "results.json", json.dumps(found, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
