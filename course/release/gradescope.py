"""An autograder for Gradescope: one zip file a lab.

Layout and result format: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from course.pins import ROOT
from course.practice import registry
from course.release.tree import Tree, notebooks, package

PARTS = (
    "__init__.py", "__main__.py", "cli.py", "pins.py", "replay.py", "sizing.py",
    "authoring/__init__.py", "authoring/blank.py",
    "engine", "memory", "workload", "practice", "grading", "release",
    "commands/__init__.py", "commands/grade.py",
)  # fmt: skip

SETUP = """\
#!/usr/bin/env bash
# Runs once, as root, when Gradescope builds the image. Python 3.11 to 3.13 is needed: choose a base
# image that has one, such as Ubuntu 24.04.
set -euo pipefail
HOME_OF_IT="${{AUTOGRADER_HOME:-/autograder}}"
VENV="${{COURSE_VENV:-/opt/course-venv}}"
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
{index}
apt-get update
# bubblewrap keeps submissions in where the container allows it; Landlock does where it does not.
apt-get install -y --no-install-recommends bubblewrap python3 python3-venv || true
PYTHON=""
for candidate in python3.12 python3.13 python3.11 python3; do
  if "$candidate" -c 'import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    PYTHON="$candidate"
    break
  fi
done
if [ -z "$PYTHON" ]; then
  echo "This image has no Python 3.11, 3.12 or 3.13: choose another base image." >&2
  exit 1
fi
"$PYTHON" -m venv "$VENV"
"$VENV/bin/pip" install -c "$HOME_OF_IT/source/constraints.txt" -e "$HOME_OF_IT/source"
# Submissions run as a user that is nobody's, and have no business in here.
chmod -R go-rwx "$HOME_OF_IT/source"
"""

RUN = """\
#!/usr/bin/env bash
# Runs for each submission, as root. Submissions never do: each exercise runs in a worker that gives
# up root, its privileges and the network first. What is on is said in results.json.
set -u
HOME_OF_IT="${AUTOGRADER_HOME:-/autograder}"
PYTHON="${COURSE_PYTHON:-${COURSE_VENV:-/opt/course-venv}/bin/python}"
umask 077
cd "$HOME_OF_IT/source" || exit 1
mkdir -p "$HOME_OF_IT/results"
rm -f "$HOME_OF_IT/results/results.json"
"$PYTHON" -m course.release.container "$HOME_OF_IT"
code=$?
if [ ! -s "$HOME_OF_IT/results/results.json" ]; then
  cat > "$HOME_OF_IT/results/results.json" <<'RESULTS'
{"score": 0, "tests": [], "output":
 "This was not graded: the grader did not start. It says nothing of your work; tell your teacher."}
RESULTS
fi
chmod 644 "$HOME_OF_IT/results/results.json"
exit $code
"""


def autograder(
    lab: int, unsandboxed: bool = False, index: str = "", root: Path = ROOT, seed: str = ""
) -> Tree:
    """The files of one lab's autograder. ValueError: no such lab, or an index that is no address.

    unsandboxed: grade even where nothing keeps submissions in but the container. index: address of
    a package index for pip to look into as well, such as one with PyTorch's CPU builds. seed: of
    the hidden inputs, the same for every run of this autograder; a new secret when not given.
    """
    registry.lab(lab)
    if index and (not index.startswith(("https://", "http://")) or set(index) & set("'\" \n`$\\")):
        raise ValueError(f"--index {index!r} is no address that begins with https://")
    tree = package(PARTS, root) | notebooks("exercises", [lab], root)
    export = f"export PIP_EXTRA_INDEX_URL='{index}'" if index else "# PIP_EXTRA_INDEX_URL: not set"
    tree["setup.sh"] = SETUP.format(index=export).encode()
    tree["run_autograder"] = RUN.encode()
    told = {"lab": lab, "seed": seed or secrets.token_hex(16), "unsandboxed": unsandboxed}
    tree["release.json"] = (json.dumps(told, indent=1) + "\n").encode()
    return tree


def names(labs: Sequence[int]) -> dict[int, str]:
    """Lab -> what its zip file is called."""
    return {number: f"gradescope_lab_{number:02d}.zip" for number in labs}
