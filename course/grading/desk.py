"""A trial in a process of its own: forked for it, and gone after it.

Probes run on the grader's side and look at what a worker sends. What an answer does to anything
that probes share dies with that process; and where looking takes without end, or ends the process,
that costs this exercise of this student, and nobody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any

from course.grading import trial
from course.grading.room import Room
from course.grading.session import START
from course.grading.trial import Bench, Trial
from course.practice.exercise import Exercise
from course.practice.run import Case, Outcome

CPU = 30.0  # s, at the least, that looking at one exercise of one student may take
TRIES = 2  # a machine that is short of memory may end a process that did nothing
TOO_LONG = "looking at what came back took too long"


def end_with_parent() -> None:
    """Killed graders leave nobody working behind them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL


def try_answer(
    bench: Bench, room: Room, exercise: Exercise, cases: list[Case], text: str, how: str, seed: str
) -> Trial:
    """As trial.try_answer. RuntimeError: no worker could be started."""
    arguments = (bench, room, exercise, cases, text, how, seed)
    if sys.platform != "linux":
        return trial.try_answer(*arguments)
    why = ""
    for _ in range(TRIES):
        told, why = _forked(arguments)
        if "failed" in told:
            raise RuntimeError(told["failed"])
        if told:
            return Trial(told["outcomes"], told["notes"], set(told["seen"]), told["peak"])
        if why == TOO_LONG:
            break
    died: Outcome = {"died": why}
    return Trial([died] * len(cases), [why])


def _forked(arguments: tuple) -> tuple[dict[str, Any], str]:
    """(what the process told, or nothing; then why)."""
    limits = arguments[0].limits
    read, write = os.pipe()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _work(arguments, write, max(CPU, limits.seconds))
    os.close(write)
    data = None
    try:
        data = _read(read, time.monotonic() + 2 * limits.seconds + 3 * START)
    finally:
        os.close(read)
        if data is None:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if data is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGVTALRM):
        return {}, TOO_LONG
    with contextlib.suppress(ValueError):
        return json.loads(data), ""
    return {}, "looking at what came back ended the grader's process"


def _read(descriptor: int, deadline: float) -> bytes | None:
    """Everything until the other end is closed; None: it was not, in time."""
    data = bytearray()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            part = os.read(descriptor, 1 << 20)
            if not part:
                return bytes(data)
            data += part
    return None


def _work(arguments: tuple, write: int, seconds: float) -> None:
    """In the forked process; never returns."""
    try:
        end_with_parent()
        # Loops inside of C hear no alarm; this one ends the process.
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            told = _plain(trial.try_answer(*arguments))
        except RuntimeError as error:
            told = {"failed": str(error)}
        with open(write, "w", encoding="utf-8") as out:
            out.write(json.dumps(told))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _plain(found: Trial) -> dict[str, Any]:
    outcomes = [o if _is_writable(o) else _unwritable() for o in found.outcomes]
    return {**asdict(found), "outcomes": outcomes, "seen": sorted(found.seen)}


def _is_writable(outcome: Outcome) -> bool:
    try:
        json.dumps(outcome, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _unwritable() -> Outcome:
    return {"unusable": "what came back cannot be written down"}
