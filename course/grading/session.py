"""One worker, from its start to its end, and the conversation with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.grading import leftovers, sandbox
from course.grading.near import Near
from course.grading.room import Room
from course.grading.wall.wire import Channel, Gone
from course.practice.exercise import Exercise
from course.practice.guard import TooLong

START = 60.0  # s that Python and an exercise's imports may take


@dataclass(frozen=True)
class Limits:
    """Of one worker: seconds for an exercise in all, bytes of memory, of a file, tasks."""

    seconds: float = 60.0
    memory: int = 2 * 2**30
    file_size: int = 16 * 2**20
    processes: int = 64


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """TooLong after so many seconds, once: for the grader's own code, which does not swallow it.

    In the main thread only; a job works in no other.
    """

    def ring(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Session:
    """A context: the worker lives inside of it, and nothing of it is left afterwards."""

    def __init__(
        self,
        room: Room,
        level: str,
        limits: Limits,
        slot: int = 0,
        exercise: Exercise | None = None,
    ):
        self.room, self.level, self.limits = room, level, limits
        self.slot, self.exercise = slot, exercise
        self.on: dict[str, Any] = {}
        self.peak = 0

    def __enter__(self) -> Session:
        self.tmp = leftovers.make("worker")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        order = sandbox.order(self.room, self.level, self.limits, self.tmp, self.slot)
        # Of its start; once it is locked in, nothing comes here.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        there, write = os.pipe()
        read, back = os.pipe()
        self.process: subprocess.Popen | None = None
        try:
            self.process = subprocess.Popen(
                sandbox.command(self.room, self.level, self.tmp, there, back),
                pass_fds=(there, back),
                env=sandbox.ENVIRONMENT,
                cwd=self.tmp,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,
            )
        finally:
            os.close(there)
            os.close(back)
            self.channel = Channel(read, write, self._look)
        self.peer = Near(self.channel, self.exercise)
        self.channel.deadline = time.monotonic() + START
        try:
            self.channel.send(order)
            self.on = self.channel.receive().get("on", {})
        except Gone as gone:
            self.errors.seek(0)
            told = self.errors.read(2000).decode("utf-8", errors="replace").strip()
            raise Gone(gone.kind, f"{gone.why} ({told[-300:]})" if told else gone.why) from gone
        if missing := sandbox.missing_layers(self.on, order):
            raise RuntimeError(f"the sandbox is not whole: {', '.join(missing)} could not be set")
        if "imports" in self.on:
            raise RuntimeError(f"the imports of {self.room.key} fail there: {self.on['imports']}")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.channel.read)
            os.close(self.channel.write)
        process = getattr(self, "process", None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        with contextlib.suppress(AttributeError):
            self.errors.close()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def within(self, seconds: float) -> None:
        """The worker has so long from now on."""
        self.channel.deadline = time.monotonic() + seconds

    def load(self, text: str, name: str) -> None:
        """Run an answer's text there. What it raises comes through, as does Gone."""
        label = f"<answer {self.room.exercise_id}>"
        with self._fresh(self.limits.seconds):
            self.peer.ask("load", text=text, label=label, name=name)

    def begin_case(self, seconds: float) -> Any:
        """A stand-in for the answer; nothing that crossed before is known any more."""
        with self._fresh(seconds):
            self.peer.ask("case")
        return self.peer.decode({"ref": 0, "kind": "builtins:object", "text": "the answer"})

    def fetch(self) -> Any:
        """The answer's own value."""
        with self._fresh(self.limits.seconds):
            return self.peer.ask("value")

    @contextlib.contextmanager
    def _fresh(self, seconds: float) -> Iterator[None]:
        """A new count of what comes in; what comes may not take long to read either."""
        self.within(seconds)
        self.peer.reset()
        self.channel.received = 0
        with alarm(seconds + 2):
            yield

    def why_gone(self, gone: Gone) -> str:
        """What became of the worker, in words for a report."""
        if gone.kind != "died" or self.process is None:
            return gone.why
        try:
            code = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "it closed the connection to the grader"
        number = -code if code < 0 else code - 128
        if number > 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(number).name
                more = " (its CPU time was used up)" if name == "SIGXCPU" else ""
                return f"its process was ended by {name}{more}"
        return f"its process ended before it answered (exit status {code})"

    def _look(self) -> None:
        """About ten times a second: is it using too much memory?"""
        assert self.process is not None
        used = resident(self.process.pid)
        self.peak = max(self.peak, used)
        if used > self.limits.memory:
            told = f"{self.limits.memory / 2**20:.0f} MiB"
            raise Gone("memory", f"it used more than {told} of memory")


def resident(pid: int, fair: bool = False) -> int:
    """Bytes of memory of a process and all that it started; 0 where /proc does not say.

    fair: what several of them share is counted once, not for each.
    """
    total, todo = 0, [pid]
    for number in todo:
        try:
            total += _of_one(number, fair)
            for task in os.listdir(f"/proc/{number}/task"):
                children = Path(f"/proc/{number}/task/{task}/children").read_text()
                todo += map(int, children.split())
        except (OSError, IndexError, ValueError):
            continue
        if len(todo) > 500:
            break
    return total


def _of_one(pid: int, fair: bool) -> int:
    if not fair:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
