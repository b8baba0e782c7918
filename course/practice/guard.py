"""Run somebody's code without letting it take the kernel along.

An exception becomes an outcome that names the learner's line. An endless loop is stopped and said
to be one. What is printed meanwhile is held back. Only code that can harm the process itself (a
kernel that writes out of bounds) needs more: practice/apart.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import linecache
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from course.practice.plain import plain

COURSE = str(Path(__file__).resolve().parents[1])
IN_ALL = 20.0  # s that the calls of a check may take together
CROWDED = 3  # times as long may pass on the clock if the processor was mostly busy elsewhere
AGAIN = 0.01  # s between attempts to stop code that catches everything
AT_ONCE = 1e-6  # s; a timer of 0 would be none
PATIENCE = 10  # such attempts before another way is taken
CALL = re.compile(r"[\w.<>]+\(\) (takes|missing|got an unexpected keyword|got multiple values) ?")
MAX_PRINTED = 100_000  # characters kept of what a learner's code prints


class TooLong(BaseException):
    """The time is up. Not an Exception, so that ``except Exception`` does not catch it."""


class Clock:
    """Time that passes for this thread: not what it stands in the queue for a processor."""

    def __init__(self) -> None:
        self._began, self._worked, self._queued = time.monotonic(), time.process_time(), _queued()

    def seconds(self) -> float:
        passed = time.monotonic() - self._began
        queued = _queued()
        if queued is not None and self._queued is not None:
            return passed - (queued - self._queued)
        # Not told here. What the process did not work is taken to be queue, but not all of it.
        return max(time.process_time() - self._worked, passed / CROWDED)


def _queued() -> float | None:
    """Seconds that this thread was ready to run and did not; None: the system does not say."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class Unusable(Exception):
    """A result that cannot be looked at further: raised by a probe, in the learner's words."""


def attempt(call: Callable[[], Any], *expected: type[Exception]) -> dict[str, Any]:
    """What a call gave: {"returned": value} or, for an expected exception, {"raised": its name}.

    Probes use it where an error is the right answer. Other exceptions come through.
    """
    try:
        value = call()
    except NotImplementedError:
        raise
    except expected as error:
        name = next(kind.__name__ for kind in expected if isinstance(error, kind))
        return {"raised": name}
    return {"returned": value}


def int_list(value: Any, what: str) -> list[int]:
    """The value, if it is a list of ints; else Unusable, which says what it is instead."""
    if type(value) is not list:
        raise Unusable(f"{what} gave {_short(value)}, not a list")
    for item in value:
        if type(item) is not int:
            raise Unusable(f"{what} gave a list with {_short(item)} in it, not ints")
    return value


def _short(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) < 40 else text[:39] + '…'} ({type(value).__name__})"


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in this thread after so many seconds, again and again until it gets through.

    By a timer signal in the main thread of Unix systems; elsewhere from a watching thread, which
    cannot interrupt a call that waits inside C.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and hasattr(signal, "setitimer"):
        yield from _by_signal(seconds)
    else:
        yield from _by_thread(seconds)


class _Limit:
    """One limit that is in force in the main thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.rings, self.rang, self.tracer = seconds, 0, 0.0, sys.gettrace()
        self.began, self.clock, self.tells = time.monotonic(), Clock(), _queued() is not None

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def is_over(self) -> bool:
        if self.left > 0:
            return False
        # On a crowded machine the time went to others: wait on for a while, until it is spent here.
        enough = self.seconds if self.tells else self.seconds / 2
        is_late = time.monotonic() - self.began >= CROWDED * self.seconds
        return bool(self.rings) or is_late or self.clock.seconds() >= enough


# The outermost first. One timer serves them all, set anew for whichever is next: what is left of
# the others' time is known here, and not asked of the system, which says 0 of a timer that rings
# just then.
_limits: list[_Limit] = []
if hasattr(os, "register_at_fork"):  # a child has no timers
    os.register_at_fork(after_in_child=_limits.clear)


def _by_signal(seconds: float) -> Iterator[None]:
    limit, before, others = _Limit(seconds), None, (0.0, 0.0)
    try:
        if not _limits:
            _let_others_ring()
            others = signal.setitimer(signal.ITIMER_REAL, 0)
            before = signal.signal(signal.SIGALRM, _ring)
        _limits.append(limit)
        _set_timer()
        yield
    finally:
        # A late ring may come here: keep silencing until the timer is off.
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if limit in _limits:
                    _limits.remove(limit)
                if limit.rings > PATIENCE:
                    sys.settrace(limit.tracer)
                if before is not None:
                    signal.signal(signal.SIGALRM, before)
                break
            except TooLong:
                continue
        if _limits:
            _set_timer()
        elif others[0]:  # somebody else's timer was running: give it what it had left
            passed = time.monotonic() - limit.began
            signal.setitimer(signal.ITIMER_REAL, max(others[0] - passed, AT_ONCE), others[1])


def _let_others_ring() -> None:
    """A timer in its last microsecond is said to be none, and would be lost: wait for it."""
    while (left := signal.getitimer(signal.ITIMER_REAL)[0]) < 1e-4:
        end = time.perf_counter() + 5e-6
        while time.perf_counter() < end:
            pass
        if not left:
            return


def _set_timer() -> None:
    left = min(limit.left for limit in _limits)
    signal.setitimer(signal.ITIMER_REAL, max(left, AT_ONCE), AGAIN)


def _ring(signum: int, frame: FrameType | None) -> None:
    # A limit that was set after another one rang is for tidying up: in peace, but not for ever.
    newest = _limits[-1].began if _limits else 0.0
    may_ring = (limit for limit in _limits if not limit.rings or limit.rang >= newest)
    limit = next((limit for limit in may_ring if limit.is_over()), None)
    if limit is None:
        return
    limit.rings, limit.rang = limit.rings + 1, time.monotonic()
    if limit.rings <= PATIENCE:
        raise TooLong
    # It is caught each time. Between two lines there are places outside of any `try`.
    sys.settrace(_stop)
    while frame is not None:
        if is_learners(frame.f_code.co_filename):
            frame.f_trace = _stop
        frame = frame.f_back


def _stop(frame: FrameType, event: str, argument: Any) -> Any:
    if is_learners(frame.f_code.co_filename):
        raise TooLong
    return None


def _by_thread(seconds: float) -> Iterator[None]:
    done = threading.Event()
    target = threading.get_ident()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            wait = AGAIN
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(target), ctypes.py_object(TooLong)
            )

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        # In here, since the end of a longer limit may come while this one begins: a watcher that
        # nobody stops would go on throwing, into whichever thread is called so later.
        watcher.start()
        yield
    finally:
        while True:
            try:
                done.set()
                if watcher.is_alive():  # one that is still being started finds it done
                    watcher.join()
                # One that was sent last arrives in this loop. To take it back instead (with None)
                # leaves Python 3.11 looking for it for ever: the next tracer or debugger hangs.
                for _ in range(1_000):
                    pass
                break
            except TooLong:
                continue


class _Held(io.StringIO):
    """Holds back what is printed, up to a limit."""

    def write(self, text: str) -> int:
        if self.tell() < MAX_PRINTED:
            super().write(text)
        return len(text)

    def close(self) -> None:
        """Stays open: whoever closes ``sys.stdout`` closes it for themselves."""


def call(function: Callable[[], Any], seconds: float) -> tuple[dict[str, Any], str]:
    """(outcome, what was printed) of a call; never raises but for an interrupt by the user.

    An outcome is one of, all plain data:
        {"value": plain value}
        {"unwritten": the stub's message}
        {"unusable": why the result cannot be looked at}
        {"timeout": seconds, "line": n, "code": text, "function": name}
        {"error": {"type": name, "message": text, "line": n, "code": text, "function": name}}
    """
    held = _Held()
    outcome: dict[str, Any]
    try:
        # Warnings go to stderr: they are not the learner's prints.
        with contextlib.redirect_stdout(held), contextlib.redirect_stderr(_Held()):
            try:
                with time_limit(seconds):
                    outcome = {"value": plain(function())}
            except TooLong as error:
                outcome = {"timeout": seconds, **_where(error.__traceback__)}
    except Unusable as error:
        outcome = {"unusable": str(error)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        outcome = _error(error)
    return outcome, held.getvalue()


def is_stub(error: BaseException | None) -> bool:
    """It comes from a body that is not written yet, and not from an operation that PyTorch lacks or
    a console that cannot be asked: those are NotImplementedErrors, too."""
    if type(error) is not NotImplementedError:
        return False
    raised = _where(error.__traceback__).get("code", "")
    return "NotImplementedError" in raised or re.match(r"\d+\.\d+: write ", str(error)) is not None


def _error(error: BaseException) -> dict[str, Any]:
    deep: BaseException | None = error
    for _ in range(10):  # Triton's interpreter wraps what happened inside a kernel
        if is_stub(deep):
            return {"unwritten": str(deep)}
        if deep is None:
            break
        deep = deep.__cause__ or deep.__context__
    where: dict[str, Any] = {}
    # What happened inside a kernel, and where: with a helper in it, each of the two wraps it.
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
        where = _where(error.__traceback__) or where
    try:
        message = str(error)[:300]
    except Exception:
        message = ""
    where = _where(error.__traceback__) or where
    uncalled = isinstance(error, TypeError) and CALL.match(message)  # no line of theirs was reached
    if (
        not where
        and not uncalled
        and not isinstance(error, SyntaxError | ImportError | MemoryError)
    ):
        # It happened in the probe, on what the learner's code gave.
        told = f"{type(error).__name__}: {message}".rstrip(": ")
        return {"unusable": f"what came back is of no use to the check ({told})"}
    found = {"type": type(error).__name__, "message": message, **where}
    if isinstance(error, RecursionError):
        found["message"] = "the function calls itself without end"
    return {"error": found}


def _where(trace: TracebackType | None) -> dict[str, Any]:
    """The learner's deepest line in a traceback; nothing if only the course's own were on it."""
    found: dict[str, Any] = {}
    for frame, number in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        if is_learners(name):
            code = linecache.getline(name, number).strip()
            found = {"line": number, "code": code[:120], "function": frame.f_code.co_name}
    return found


def is_learners(filename: str) -> bool:
    """A cell of a notebook, a loaded answer, a file of the learner's own: not a library's."""
    if filename.startswith(("<ipython-input", "<answer")) or "ipykernel_" in filename:
        return True
    path = Path(filename)
    if filename.startswith("<") or filename.startswith(COURSE) or path.suffix != ".py":
        return False
    libraries = (sys.prefix, sys.base_prefix)
    return not filename.startswith(libraries) and "/lib/python" not in path.as_posix()
