"""All checks of the project, in one list: ``make test`` runs them, ``make check`` the quick ones.

    python -m course.checks [--quick] [--only NAME ...]

Each runs in a process of its own and ends as passed, failed or not run, with its time. A check
that could not run is never counted as passed; it says what it lacks. The closing line counts each
test that pytest ran, and each other check as one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from course.authoring.running import FILE, unfinished
from course.pins import ROOT

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
RESULTS = Path(".artifacts", "checks")


@dataclass(frozen=True)
class Task:
    """One check: a command for this Python, and what must be there for it to run."""

    name: str
    arguments: tuple[str, ...]  # of `python`
    lacks: Callable[[Path], str] = lambda root: ""  # why it cannot run here; empty if it can
    quick: bool = False
    counts: bool = False  # is pytest, and counts its tests
    required: bool = True  # if it could not run, the whole has not passed
    limit: int = 900  # seconds


@dataclass
class Result:
    task: Task
    status: str
    seconds: float = 0.0
    why: str = ""
    counts: dict[str, int] = field(default_factory=dict)


def needs_module(name: str) -> Callable[[Path], str]:
    def lacks(root: Path) -> str:
        return "" if importlib.util.find_spec(name) else f"{name} is not installed: make setup"

    return lacks


def needs_files(pattern: str) -> Callable[[Path], str]:
    def lacks(root: Path) -> str:
        return "" if any(root.glob(pattern)) else f"there is no {pattern}"

    return lacks


def notebooks_of(folder: str, required: bool = True) -> Task:
    """Run the notebooks of a folder again and compare with the outputs that they store."""
    return Task(
        f"outputs of {folder}/",
        ("-m", "pytest", "-p", "course.authoring.nbval_plugin", "--nbval", folder,
         "--nbval-cell-timeout=300", "--nbval-current-env", "-n", "2", "--dist", "loadfile"),
        needs_files(f"{folder}/*.ipynb"), counts=True, required=required,
    )  # fmt: skip


# A test that hangs in C, where pytest's own limit does not reach, ends its worker and is named.
ENDED = ("-o", "faulthandler_timeout=500", "-o", "faulthandler_exit_on_timeout=true")
SHAPE = ("tests/test_architecture.py", "tests/test_setup_agreement.py")
TASKS = (
    Task("lint", ("-m", "ruff", "check"), needs_module("ruff"), quick=True),
    Task("format", ("-m", "ruff", "format", "--check"), needs_module("ruff"), quick=True),
    Task("types", ("-m", "pyright"), needs_module("pyright"), quick=True),
    Task("shape", ("-m", "pytest", "-q", *SHAPE), quick=True, counts=True),
    Task("notebooks are built", ("-m", "course", "build", "--check")),
    Task(
        "tests",
        ("-m", "pytest", "-n", "2", "--dist", "worksteal", *ENDED,
         *(f"--ignore={path}" for path in SHAPE)),
        counts=True, limit=1500,
    ),
    notebooks_of("notebooks"),
    notebooks_of("solutions", required=False),
)  # fmt: skip


def run_task(task: Task, root: Path = ROOT) -> Result:
    why = task.lacks(root)
    if why:
        return Result(task, NOT_RUN, why=why)
    report = root / RESULTS / f"{task.name.replace(' ', '-').replace('/', '')}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command, environment = [sys.executable, *task.arguments], dict(os.environ)
    running = report.with_suffix(".running")
    running.unlink(missing_ok=True)
    if task.counts:
        command += ["-p", "course.authoring.running", f"--junitxml={report}"]
        environment[FILE] = str(running)
    started = time.time()
    # A group of its own, so that a check that hangs is ended with all that it started.
    child = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=os.name == "posix",
    )
    try:
        code = child.wait(timeout=task.limit)
        why = f"exit status {code}"
    except subprocess.TimeoutExpired:
        tests = "".join(f": {name}" for name in unfinished(running)[:4])
        code, why = 1, f"still running after {task.limit} s{tests}"
    finally:
        if child.poll() is None:
            _end(child)
    seconds = time.time() - started
    if not task.counts:
        return Result(task, FAILED if code else PASSED, seconds, why if code else "")
    counts = read_counts(report)
    if code == 0 and not counts.get("passed"):
        # Everything was skipped, or the report is missing: nothing has been shown.
        return Result(task, NOT_RUN, seconds, "no test ran", counts)
    if code == 5:  # pytest found no test
        return Result(task, NOT_RUN, seconds, "no test was found", counts)
    if code and not counts.get("failed"):
        counts["failed"] = counts.get("failed", 0) + 1  # pytest itself stopped
    return Result(task, FAILED if code else PASSED, seconds, why if code else "", counts)


def _end(child: subprocess.Popen) -> None:
    if os.name == "posix":
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def read_counts(report: Path) -> dict[str, int]:
    """Passed, failed and skipped of a JUnit report; empty if there is none."""
    try:
        suites = ElementTree.parse(report).getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError):
        return {}
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for suite in suites:
        number = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        total["failed"] += failed
        total["skipped"] += number["skipped"]
        total["passed"] += max(0, number["tests"] - failed - number["skipped"])
    return total


def summary(results: list[Result]) -> str:
    """A line for each check, and the counts alone on the last line."""
    lines = ["", "Checks:"]
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for result in results:
        counts = result.counts
        if not counts:
            key = {PASSED: "passed", FAILED: "failed", NOT_RUN: "skipped"}[result.status]
            total[key] += 1
        for key, number in counts.items():
            total[key] += number
        detail = ", ".join(f"{number} {key}" for key, number in counts.items() if number)
        notes = "; ".join(filter(None, (detail, result.why)))
        lines.append(
            f"  {result.task.name:<24} {result.status:<8} {result.seconds:7.1f} s"
            + (f"  {notes}" if notes else "")
        )
    lines.append(f"  {'in all':<24} {'':<8} {sum(r.seconds for r in results):7.1f} s")
    lines.append("{passed} passed, {failed} failed, {skipped} skipped".format(**total))
    return "\n".join(lines)


def main(argv: list[str] | None = None, tasks: tuple[Task, ...] = TASKS, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.checks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the quick checks")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these checks")
    arguments = parser.parse_args(argv)
    chosen = [task for task in tasks if task.quick or not arguments.quick]
    if arguments.only:
        unknown = sorted(set(arguments.only) - {task.name for task in tasks})
        if unknown:
            names = ", ".join(repr(task.name) for task in tasks)
            parser.error(f"no check is named {', '.join(unknown)}; there are {names}")
        chosen = [task for task in tasks if task.name in arguments.only]
    # Two workers share two cores: more threads inside each would only get in each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = []
    for task in chosen:
        print(f"\n=== {task.name}: python {' '.join(task.arguments)}", flush=True)
        results.append(run_task(task, root))
    print(summary(results), flush=True)
    bad = [r for r in results if r.status == FAILED or (r.status == NOT_RUN and r.task.required)]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
