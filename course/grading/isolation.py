"""Measure what keeps a worker in on this machine, by letting one try to get out."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from pathlib import Path

from course.grading import leftovers, room, sandbox
from course.grading.results import IsolationReport
from course.grading.session import Limits, Session
from course.grading.wall.wire import Gone
from course.pins import ROOT

# What a worker must not be able to do, in the words of the report. The first four decide.
DECIDE = (
    "cannot read the course's folder",
    "cannot write outside its own folder",
    "cannot reach the network",
    "cannot signal or look at other processes",
)
ATTEMPT = '''
def attempt(hidden, target, port, parent, name):
    import os, socket
    def refused(action):
        try:
            action()
        except BaseException:
            return True
        return False
    def connect():
        socket.create_connection(("127.0.0.1", port), 2).close()
    def fork():
        if os.fork() == 0:
            os._exit(0)
    def spawn():
        if os.spawnv(os.P_WAIT, "/bin/true", ["true"]) not in (0,):
            raise OSError
    def effective():
        for line in open("/proc/self/status"):
            if line.startswith("CapEff") and int(line.split()[1], 16):
                return
        raise OSError
    return {
        "cannot read the course's folder": all(
            refused(lambda path=path: open(path).read(1)) for path in hidden
        ),
        "cannot write outside its own folder": all(
            refused(lambda path=path: open(path + "/left-by-a-worker", "w").close())
            for path in target
        ),
        "cannot reach the network": refused(connect),
        "cannot signal or look at other processes": all((
            refused(lambda: os.kill(parent, 0)),
            refused(lambda: open(f"/proc/{parent}/environ").read(1)),
        )),
        "cannot start a process": refused(fork),
        "cannot start a program": refused(spawn),
        "has no privileges": refused(effective),
        "has an empty environment": name not in os.environ,
    }
'''  # fmt: skip


def find(where: Path, wanted: str = "") -> IsolationReport:
    """The best level that holds here; ``wanted``: only this one. "none" where none does."""
    report = IsolationReport("none")
    for level in (wanted,) if wanted else sandbox.LEVELS:
        if why := sandbox.is_there(level):
            report.why_not[level] = why
            continue
        try:
            layers, measured = measure(level, where)
        except (OSError, RuntimeError, Gone) as error:
            report.why_not[level] = str(error)[:200] or type(error).__name__
            continue
        sufficient = level != "none" and all(measured.get(name) for name in DECIDE)
        found = IsolationReport(level, layers, measured, sufficient, report.why_not)
        if sufficient or level == "none" or wanted:
            return found
        failed = [name for name in DECIDE if not measured.get(name)]
        report.why_not[level] = "a worker on this level does not hold: " + "; ".join(failed)
    return report


def measure(level: str, where: Path) -> tuple[list[str], dict[str, bool]]:
    """(layers that are on, what was tried and refused). RuntimeError, Gone: it does not start."""
    bare = room.Room(room.base(where), "isolation", "0", "")
    hidden = [str(path) for path in (ROOT / "course" / "practice" / "answers").glob("lab_*.py")]
    hidden.append(str(ROOT / "pyproject.toml"))
    name = f"COURSE_{secrets.token_hex(4)}"
    os.environ[name] = "1"
    listener = socket.create_server(("127.0.0.1", 0))
    open_folder = leftovers.make("open")
    open_folder.chmod(0o777)
    targets = [str(bare.path), str(ROOT), *sandbox.packages()[:1], str(open_folder), "/var/tmp"]
    try:
        with Session(bare, level, Limits(seconds=20)) as session:
            on = session.on
            session.load(ATTEMPT, "attempt")
            attempt = session.begin_case(20)
            port = listener.getsockname()[1]
            told = attempt(hidden, targets, port, os.getpid(), name)
        measured = {str(key): value is True for key, value in dict(told).items()}
        left = [p for t in targets if (p := Path(t, "left-by-a-worker")).exists()]
        measured[DECIDE[1]] = measured.get(DECIDE[1], False) and not left
        for path in left:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        listener.close()
        del os.environ[name]
        for path in open_folder.iterdir():
            path.unlink()
        open_folder.rmdir()
    layers = [level] if level == "bubblewrap" else []
    layers += [key for key, value in on.items() if value is True]
    layers += [f"limits: {', '.join(on.get('limits', []))}"]
    return layers, measured


def words(report: IsolationReport) -> str:
    """One line for a person."""
    if report.level == "none":
        told = "no isolation: limits of time and memory only"
    else:
        told = ", ".join(report.layers)
    held = sum(report.measured.values())
    return f"{told}; {held} of {len(report.measured)} attempts to get out were refused"


def remedy(report: IsolationReport) -> str:
    """What to tell whoever cannot grade here."""
    why = "\n".join(f"  {level}: {reason}" for level, reason in report.why_not.items())
    how = "install bubblewrap (apt install bubblewrap)" if sys.platform == "linux" else "use Linux"
    return (
        "this machine cannot keep submissions in, so nothing is graded.\n"
        f"{why}\nEither {how}, or use a kernel with Landlock (5.13 or newer), or, in a container "
        "or virtual machine that holds nothing of worth, say --allow-unsandboxed."
    )
