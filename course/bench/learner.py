"""What a learner waits for: the import, each check, each move of a widget.

`python -m course bench --learner` prints it; with `--out` a line is added to history.jsonl, so that
a change that makes the course slower can be seen beside the runs before it.
"""

import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

IMPORT_LIMIT, CHECK_LIMIT, KERNEL_LIMIT, WIDGET_LIMIT = 0.5, 2.0, 5.0, 0.1  # seconds


def import_seconds() -> float:
    """`import course` in a fresh Python, less what Python itself takes: the least of five."""

    def run(script: str) -> float:
        started = perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True)
        return perf_counter() - started

    return max(0.0, min(run("import course") for _ in range(5)) - min(run("") for _ in range(5)))


def check_seconds(exercise) -> float:
    """A check of the right answer, as a notebook does it: the second one, when all is loaded."""
    from course.practice.run import expected, make_cases

    taken = []
    for seed in (1, 2):
        started = perf_counter()
        # The notebook drives the learner's object and then the reference: the same work twice.
        for _ in range(2):
            expected(exercise, make_cases(exercise, seed))
        taken.append(perf_counter() - started)
    return taken[-1]


def widget_seconds() -> dict[str, float]:
    """The slowest move of each widget that a lesson shows."""
    from course.show import (
        address_microscope,
        arena_playground,
        boundary_clinic,
        kv_calculator,
        memory_map,
        scheduler_timeline,
    )
    from course.show.widget import Choice, Number, Steps

    found = {}
    for make in (
        address_microscope,
        arena_playground,
        boundary_clinic,
        kv_calculator,
        memory_map,
        scheduler_timeline,
    ):
        widget = make(show=False)
        slowest = 0.0
        for control in widget.controls():
            now: Any = widget.state.get(control.name)
            if isinstance(control, Steps):
                other = now + 1 if now < control.last else now - 1
            elif isinstance(control, Number):
                other = now + control.step if now < control.high else now - control.step
            elif isinstance(control, Choice):
                other = next((value for _, value in control.pairs() if value != now), now)
            else:
                continue
            started = perf_counter()
            widget.set(control.name, other)
            slowest = max(slowest, perf_counter() - started)
            widget.set(control.name, now)
        found[make.__name__] = slowest
    return found


def measure(say: Callable[[str], None] = lambda text: None) -> list[tuple[str, float, float]]:
    """(what, seconds, limit) of everything; minutes, as every exercise is checked twice."""
    from course.practice.registry import every

    say("import course")
    rows = [("import course", import_seconds(), IMPORT_LIMIT)]
    say("widgets")
    rows += [(name, seconds, WIDGET_LIMIT) for name, seconds in widget_seconds().items()]
    for exercise in every():
        say(f"check {exercise.label}")
        is_kernel = any(probe.risky for probe in exercise.probes)
        limit = KERNEL_LIMIT if is_kernel else CHECK_LIMIT
        rows.append((f"check {exercise.label}", check_seconds(exercise), limit))
    return rows


def markdown(rows: list[tuple[str, float, float]]) -> str:
    """The measurements as a table, the slowest first within each limit."""
    lines = ["| what | seconds | limit | |", "| --- | ---: | ---: | --- |"]
    for what, seconds, limit in sorted(rows, key=lambda row: -row[1] / row[2]):
        over = "over" if seconds > limit else ""
        lines.append(f"| {what} | {seconds:.3f} | {limit:g} | {over} |")
    return "\n".join(lines) + "\n"
