"""Risky probes in a process of their own: what crashes there leaves the kernel alone.

A worker is forked by a nursery (nursery.py) or, where there is none, ``python -m
course.practice.apart``: it reads one JSON object (exercise, texts of answers, cases) and writes one
JSON line for each outcome; with the outcomes of another answer in the object, one line for each
text: how far it agrees with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from course.practice.exercise import Exercise
from course.practice.guard import CROWDED, IN_ALL, Clock
from course.practice.nursery import WORKERS, Job, open_job
from course.practice.run import Case, Outcome, loaded, missing, one, used_up

START = 60.0  # s that importing torch and Triton may take
INTERPRETED = 3.0  # s that a case may take in the interpreter
COMPILER = 30.0  # s; a probe that is given more asks the compiler
SLACK = 5.0  # s beyond a case's own limit before its process is ended


def run_apart(exercise: Exercise, cases: list[Case], text: str) -> list[Outcome]:
    """The outcomes of these cases, in order. A process that dies or hangs is told as an outcome."""
    if not text:
        why = "the answer's text is not to be found, and these checks run it in another process"
        return [{"unusable": why}] * len(cases)
    results: list[Outcome] = []
    while len(results) < len(cases):
        left = cases[len(results) :]
        results += _one_process(exercise, left, text)
        ended = "died" in results[-1] or "timeout" in results[-1]
        if ended and len([r for r in results if "died" in r or "timeout" in r]) >= 2:
            results += [{"skipped": "its process died before"}] * (len(cases) - len(results))
    return results


def match_apart(
    exercise: Exercise,
    texts: list[str],
    pairs: list[tuple[Case, Outcome]],
    first: bool = False,
) -> list[int]:
    """For each text: in how many of these cases, from the first on, it gives these outcomes.

    A text that ends its process, or is too slow, agrees in none. first: it is enough to know the
    first text that agrees in all; those after it need not be tried, and then agree in none.
    """
    job = {
        "exercise": exercise.key,
        "cases": [[case.probe.behaviour, case.inputs] for case, _ in pairs],
        "outcomes": [outcome for _, outcome in pairs],
        "first": first,
    }
    limit = sum(_limit(case) for case, _ in pairs)

    def match(texts: list[str]) -> list[int]:
        found: list[int] = []
        while len(found) < len(texts):
            left = texts[len(found) :]
            lines = _talk({**job, "texts": left}, [START] + [limit] * len(left))
            found += [line.get("agreed", 0) for line in lines] or [0]
        return found

    half = -(-len(texts) // 2)  # two at a time
    with ThreadPoolExecutor(1) as beside:
        later = beside.submit(match, texts[half:])
        return match(texts[:half]) + later.result()


def outcomes_apart(exercise: Exercise, cases: list[Case], texts: list[str]) -> list[list[Outcome]]:
    """The outcomes of several answers, in one process as long as none of them ends it."""
    job = {
        "exercise": exercise.key,
        "texts": texts,
        "cases": [[case.probe.behaviour, case.inputs] for case in cases],
    }
    limits = [START] + [_limit(case) for _ in texts for case in cases]
    lines = _talk(job, limits)
    count = len(cases)
    whole = [lines[n * count : (n + 1) * count] for n in range(len(texts))]
    return [
        found
        if len(found) == count and not any("died" in o or "timeout" in o for o in found)
        else run_apart(exercise, cases, text)
        for found, text in zip(whole, texts, strict=True)
    ]


def _one_process(exercise: Exercise, cases: list[Case], text: str) -> list[Outcome]:
    job = {
        "exercise": exercise.key,
        "texts": [text],
        "cases": [[case.probe.behaviour, case.inputs] for case in cases],
    }
    return _talk(job, [START] + [_limit(case) for case in cases])


def _limit(case: Case) -> float:
    """When its process is ended: long after it should have stopped the case itself."""
    return case.probe.seconds * CROWDED + SLACK


class _Process:
    """A worker of its own, started from nothing: where there is no nursery."""

    def __init__(self, job: dict[str, Any]):
        env = dict(os.environ)
        if missing("cuda"):
            env["TRITON_INTERPRET"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "course.practice.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
            encoding="utf-8",
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job))
            self._process.stdin.close()

    def readline(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()

    def status(self) -> int | None:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def _talk(job: dict[str, Any], limits: list[float]) -> list[Outcome]:
    """What a worker answers after its first line; each line is awaited for so many seconds."""
    worker = open_job(WORKERS, job) or _Process(job)
    results: list[Outcome] = []
    try:
        for number, limit in enumerate(limits):
            line = _read_line(worker, limit)
            if line is None:
                results.append({"timeout": limit})
                return results
            if not line.endswith("\n"):
                results.append({"died": _how(worker)})
                return results
            if number:  # the first says that it is ready
                results.append(json.loads(line))
        return results
    finally:
        worker.close()


def _read_line(worker: Job | _Process, seconds: float) -> str | None:
    """One line; a piece of one when the process ended; None when the time is up."""
    timer = threading.Timer(seconds, worker.kill)
    timer.start()
    line = worker.readline()
    late = not timer.is_alive()
    timer.cancel()
    return None if late and not line.endswith("\n") else line


def _how(worker: Job | _Process) -> str:
    code = worker.status()
    if code is None:
        return "its process went silent"
    if code < 0:
        import signal

        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process left with exit status {code}"


def warm() -> None:
    """Import what jobs need, before there is one."""
    from course.practice import registry, verdict  # noqa: F401

    registry.every()
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
        import triton.language  # noqa: F401

        from course.engine import triton_decode  # noqa: F401
        from course.practice import compiles  # noqa: F401


def do(job: dict[str, Any], say: Callable[[Outcome], None]) -> None:
    """A worker's work."""
    from course.practice.registry import find
    from course.practice.verdict import num_agreeing

    exercise = find(job["exercise"])
    probes = {probe.behaviour: probe for probe in exercise.probes}
    cases = [Case(probes[behaviour], 0, inputs, True) for behaviour, inputs in job["cases"]]
    needs = {need for case in cases for need in case.probe.needs}
    # Now, and not on the first case's time: to interrupt the import of such a module can crash.
    with contextlib.suppress(ImportError):
        if needs & {"torch", "triton"}:
            import torch  # noqa: F401
        if "triton" in needs:
            import triton.language  # noqa: F401
    say({"ready": True})
    found = False
    for text in job["texts"]:
        if found and job["first"]:
            say({"agreed": 0})
            continue
        answer, failure = loaded(exercise, text, START)
        if "outcomes" in job:
            pairs = list(zip(cases, job["outcomes"], strict=True))
            agreed = 0 if failure else num_agreeing(answer, pairs)
            found = agreed == len(pairs)
            say({"agreed": agreed})
            continue
        clock = Clock()
        for number, case in enumerate(cases):
            late = not failure and clock.seconds() > IN_ALL
            say(failure or (used_up(number) if late else one(case, answer, _short(case))[0]))


def _short(case: Case) -> float | None:
    """Where nothing is compiled, a kernel's case takes a blink: an endless loop need not go on for
    as long as a compiler may take."""
    compiled = not missing("cuda") or case.probe.seconds > COMPILER
    return None if compiled else min(INTERPRETED, case.probe.seconds)


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # prints from C go nowhere

    def say(outcome: Outcome) -> None:
        out.write(json.dumps(outcome) + "\n")
        out.flush()

    do(job, say)


if __name__ == "__main__":
    main()
