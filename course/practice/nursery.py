"""Processes that need not import PyTorch and Triton again: forked from one that has done so.

Most of a kernel's check was waiting for imports. A *nursery* imports once and then, for each job,
makes a child by forking, in a few milliseconds. What a learner's kernel does to its memory it does
to the child; the nursery and the notebook never run a line of it. A nursery ends with the process
that started it.

Only on Linux without a GPU, where fork is safe for what was imported: elsewhere ``open_job`` gives
None, and its caller starts a process in the ordinary way.

``python -m course.practice.nursery KIND SOCKET [SOCKET]`` is the nursery itself. Over its socket
comes, for each job, a connection. The child's keeper writes ``{"pid": n}`` to it, the child
answers the job in lines of JSON, and at the end the keeper writes ``{"ended": status}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

WORKERS, COMPILERS = "workers", "compilers"
PATIENCE = 60.0  # s that a nursery may take for its imports

_nurseries: dict[str, tuple[int, socket.socket]] = {}  # kind -> (who started it, its socket)
_lock = threading.Lock()


class Job:
    """A child at work on a job: its lines, how it ended."""

    def __init__(self, connection: socket.socket, job: dict[str, Any]):
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")
        self._ended: int | None = None
        self._pid = 0
        with contextlib.suppress(OSError):
            connection.settimeout(PATIENCE)  # while the nursery may still be importing
            connection.sendall(json.dumps(job).encode() + b"\n")
            connection.settimeout(None)
        if select.select([connection], [], [], PATIENCE)[0]:
            first = self._lines.readline()
            self._pid = json.loads(first)["pid"] if first.endswith("\n") else 0

    @property
    def is_there(self) -> bool:
        """False: the nursery is gone, and nobody works on it."""
        return bool(self._pid)

    def readline(self) -> str:
        """The next line; what there is of one, or nothing, when the child has ended."""
        line = self._lines.readline()
        before, mark, status = line.rpartition('{"ended": ')
        if not mark:
            return line
        self._ended = int(status.rstrip().rstrip("}"))
        return before

    def kill(self) -> None:
        if self._pid and self._ended is None:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)

    def status(self) -> int | None:
        """As of subprocess: below 0 the number of the signal that ended it; None: not known."""
        while self._ended is None:
            if not self.readline() and self._ended is None:
                return None
        return self._ended

    def close(self) -> None:
        self.kill()
        self._lines.close()
        self._connection.close()


def open_job(kind: str, job: dict[str, Any]) -> Job | None:
    """Have a child do a job; None where there is no nursery to be had."""
    for _ in range(2):  # one that ended meanwhile is started again
        with _lock:
            control = _control(kind)
        if control is None:
            return None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(control, [b"j"], [theirs.fileno()])
        except OSError:
            ours.close()
            _nurseries.pop(kind, None)
            continue
        finally:
            theirs.close()
        found = Job(ours, job)
        if found.is_there:
            return found
        found.close()
        _nurseries.pop(kind, None)
    return None


def is_possible() -> bool:
    """Whether there can be nurseries here."""
    from course.practice.run import missing

    return sys.platform == "linux" and bool(missing("cuda"))


def _control(kind: str) -> socket.socket | None:
    """The socket of the nursery; it is started where there is none yet."""
    owner, control = _nurseries.get(kind, (0, None))
    if control is not None and owner in (os.getpid(), _ANY):  # not of one that forked this process
        return control
    if not is_possible():
        return None
    ours, theirs = socket.socketpair()
    passed, more = [theirs.fileno()], []
    if kind == WORKERS:  # its children ask the compiler
        compilers = _control(COMPILERS)
        if compilers is not None:
            passed.append(compilers.fileno())
            more = [str(compilers.fileno())]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if kind == WORKERS:
        env["TRITON_INTERPRET"] = "1"
    try:
        subprocess.Popen(
            [sys.executable, "-m", "course.practice.nursery", kind, str(theirs.fileno()), *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            pass_fds=passed,
            start_new_session=True,  # an interrupt of the notebook is not for it
        )
    except OSError:
        ours.close()
        return None
    finally:
        theirs.close()
    _nurseries[kind] = (os.getpid(), ours)
    return ours


# ---- In the nursery -----------------------------------------------------------------------------

_ANY = -1  # in the nursery's children: a socket that belongs to all of them


def main() -> None:
    kind = sys.argv[1]
    control = socket.socket(fileno=int(sys.argv[2]))
    if kind == WORKERS:
        from course.practice import apart

        apart.warm()
        do = apart.do
        if len(sys.argv) > 3:
            _nurseries[COMPILERS] = (_ANY, socket.socket(fileno=int(sys.argv[3])))
    else:
        from course.practice import compiles

        compiles.warm()
        do = compiles.do
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return  # whoever started it is gone
        for descriptor in descriptors:
            if os.fork() == 0:
                control.close()
                _keep(socket.socket(fileno=descriptor), do)
            os.close(descriptor)


def _keep(connection: socket.socket, do: Any) -> None:
    """In a child of the nursery: let a child of its own do the job, and tell how that ended."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            if os.read(reading, 1):  # its number was told
                _work(connection, do)
            os._exit(0)
        os.close(reading)
        connection.sendall(json.dumps({"pid": child}).encode() + b"\n")
        os.write(writing, b"1")
        events = select.poll()
        events.register(os.pidfd_open(child), select.POLLIN)
        events.register(connection.fileno(), 0)  # that is: when the other side has hung up
        if connection.fileno() in dict(events.poll()):
            os.kill(child, signal.SIGKILL)  # for whoever asked is gone
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(json.dumps({"ended": status}).encode() + b"\n")
    except OSError:
        pass
    finally:
        os._exit(0)


def _work(connection: socket.socket, do: Any) -> None:
    """In a child of the keeper: the job itself."""
    try:
        with connection.makefile("r", encoding="utf-8") as lines:
            job = json.loads(lines.readline())

        def say(answer: dict[str, Any]) -> None:
            connection.sendall(json.dumps(answer).encode() + b"\n")

        do(job, say)
    except BrokenPipeError:
        pass
    except BaseException:
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    # Under its own name: what it imports asks that module for the sockets, not ``__main__``.
    from course.practice import nursery

    nursery.main()
