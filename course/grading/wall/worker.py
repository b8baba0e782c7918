"""The far side of the wall: runs one answer, and gives what it is asked for.

Started afresh for each exercise, with two pipes and nothing else. It is told the answer's text and
the imports before it. Whatever it says after the answer ran may be a lie, and is taken for one: it
knows no expected value and no mark.

    python -I -S -B wall/worker.py READ WRITE
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
import types
from typing import Any

ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(ROOM)

from wall import lockdown, watch  # noqa: E402
from wall.peer import Peer  # noqa: E402
from wall.wire import Channel, Gone  # noqa: E402


class Far(Peer):
    """Serves the grader. Object number 0 is the answer."""

    def __init__(self, channel: Channel):
        super().__init__(channel, guarded=False, find_class=find)
        self.answer: Any = None
        self.imports = ""
        self.drives: Any = None

    def _done(self, message: dict) -> Any:
        match message.get("do"):
            case "load":
                self.reset()
                self.answer = self.load(message["text"], message["label"], message["name"])
                return None
            case "case":
                self.reset()
                self.mine[0] = self.answer
                return None
            case "value":
                return self.answer
            case "drive":
                return self._drive(message)
        return super()._done(message)

    def load(self, text: str, label: str, name: str) -> Any:
        """Run an answer's text after its imports; the thing that it calls ``name``."""
        module = types.ModuleType("answer")
        sys.modules["answer"] = module
        exec(compile(self.imports, "<imports>", "exec"), module.__dict__)
        linecache.cache[label] = (len(text), None, text.splitlines(keepends=True), label)
        exec(compile(text, label, "exec"), module.__dict__)
        if name not in module.__dict__:
            raise LookupError(f"there is no {name} in it")
        return module.__dict__[name]

    def _drive(self, message: dict) -> str:
        """A probe on this side, where its arguments cannot cross. Its outcome as JSON."""
        from wall import inside

        if self.drives is None:
            self.drives = inside.drives(message["exercise"])
        drive = self.drives[message["number"]]
        return inside.outcome(drive, self.answer, message["inputs"], message["seconds"])

    def describe(self, error: BaseException) -> dict:
        deep: BaseException | None = error
        for _ in range(10):  # Triton's interpreter wraps what happened inside a kernel
            if deep is None or isinstance(deep, NotImplementedError):
                break
            deep = deep.__cause__ or deep.__context__
        if isinstance(deep, NotImplementedError):
            error = deep
        elif type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
            error = error.__cause__
        told = super().describe(error)
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith("<answer"):
                code = linecache.getline(frame.f_code.co_filename, line).strip()[:120]
                told["where"] = {"line": line, "code": code, "function": frame.f_code.co_name}
        if isinstance(error, SyntaxError) and str(error.filename).startswith("<answer"):
            told["where"] = {"line": error.lineno, "code": str(error.text or "").strip()[:120]}
        return told


def find(module: str, name: str) -> Any:
    """A class of the course, in this room's copy."""
    from importlib import import_module

    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def lock(order: dict) -> dict:
    """Everything that must be on before packages start threads. What is on."""
    limits = lockdown.limits(**order["limits"])
    on: dict[str, Any] = {"limits": limits}
    if order["lock"]:
        on["user"] = lockdown.become(order["user"]) if order["user"] is not None else False
        on["no new privileges"] = lockdown.no_new_privileges()
        if order["readable"]:
            on["landlock"] = lockdown.landlock(
                order["readable"], order["writable"], order["listable"]
            )
    return on


def main() -> None:
    channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
    far = Far(channel)
    try:
        order = channel.receive()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        # Packages come last: nothing in them stands before Python's own modules or the course.
        sys.path += order["packages"]
        on = lock(order)
        far.imports = order["imports"]
        try:
            exec(compile(far.imports, "<imports>", "exec"), {"__name__": "imports"})
        except Exception as error:
            on["imports"] = f"{type(error).__name__}: {error}"[:300]
        on["seccomp"] = bool(order["lock"]) and lockdown.seccomp()
        channel.send({"on": on})
        watch.start(far.notes)
        while True:
            message = channel.receive()
            far._heed(message)
            far._serve(message)
    except Gone:
        os._exit(0)


if __name__ == "__main__":
    main()
