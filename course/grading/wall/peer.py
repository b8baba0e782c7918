"""Calls through the wall: each end asks, and serves what it is asked meanwhile."""

from __future__ import annotations

import re
from typing import Any

from .codec import Codec, is_course, name_of
from .remote import Remote
from .wire import Channel, Gone, Uncrossable


class Peer(Codec):
    """One end of a connection.

    ``notes``: what the other end says of itself beside its answers, as far as it can be believed.
    """

    def __init__(self, channel: Channel, guarded: bool, find_class: Any = None):
        super().__init__(guarded, find_class)
        self.channel = channel
        self.notes: set[str] = set()
        self.asked = 0

    def ask(self, verb: str, **what: Any) -> Any:
        """Send a request, serve the other side until it answers, give the answer."""
        if self.guarded and self.channel.unread:
            raise Gone("broken", "it wrote to the answer pipe without being asked")
        self.asked += 1
        turn = self.asked
        self._say({"do": verb, "turn": turn, **what})
        while True:
            message = self.channel.receive()
            if self.guarded and "do" not in message and message.get("to") != turn:
                raise Gone("broken", "it wrote to the answer pipe what answers no question")
            try:
                self._heed(message)
                error = self._raised(message["bad"]) if "bad" in message else None
            except Exception as bad:
                raise Gone("broken", "it wrote to the answer pipe what is no answer") from bad
            if error is not None:
                raise error
            if "do" in message:
                self._serve(message)
            elif "ok" in message:
                return self.decode(message["ok"])
            else:
                raise Gone("broken", "it wrote to the answer pipe what is no answer")

    def _say(self, message: dict) -> None:
        if changes := self._changes():
            message["changes"] = changes
        if not self.guarded and self.notes:
            message["notes"] = sorted(self.notes)
        self.channel.send(message)

    def _heed(self, message: dict) -> None:
        notes = message.get("notes", [])
        if self.guarded and type(notes) is list:
            self.notes.update(str(note)[:200] for note in notes[: 50 - len(self.notes)])
        for number, content in message.get("changes", []):
            self._change(number, content)

    def _serve(self, message: dict) -> None:
        to = message.get("turn")
        try:
            answer: dict = {"ok": self.encode(self._done(message))}
        except Gone:
            raise
        except Uncrossable as error:
            answer = {"bad": {"kinds": ["builtins:TypeError"], "message": str(error)}}
        except BaseException as error:
            answer = {"bad": self.describe(error)}
        try:
            self._say({**answer, "to": to})
        except Uncrossable as error:  # too large: what it holds is not shared any more
            self.shared.clear()
            self.numbers.clear()
            bad = {"kinds": ["builtins:TypeError"], "message": str(error)}
            self._say({"bad": bad, "to": to})

    def _done(self, message: dict) -> Any:
        """What the other side asks of an object of ours."""
        verb = message.get("do")
        target = self.mine.get(message.get("on", 0))
        if target is None:
            raise Uncrossable("there is no such object")
        arguments = [self.decode(node) for node in message.get("with", [])]
        names = {str(k): self.decode(v) for k, v in message.get("names", {}).items()}
        if self.guarded:
            self._allow(target, str(verb), arguments)
        match verb:
            case "call":
                return target(*arguments, **names)
            case "get":
                return getattr(target, str(arguments[0]))
            case "set":
                return setattr(target, str(arguments[0]), arguments[1])
            case "item":
                return target[arguments[0]]
            case "put":
                return target.__setitem__(arguments[0], arguments[1])
            case "len":
                return len(target)
            case "iter":
                return iter(target)
            case "reversed":
                return reversed(target)
            case "next":
                return next(target)
            case "in":
                return arguments[0] in target
            case "bool":
                return bool(target)
        raise Uncrossable(f"{verb!r} is not served")

    def _allow(self, target: Any, verb: str, arguments: list) -> None:
        """A worker may call what a probe handed it, read public names of the course's things, and
        set those that hold data. Through names with an underscore it would reach the grader's
        globals, through methods put in the place of others what a probe finds."""
        name = arguments[0] if arguments else ""
        if verb == "in" and hasattr(type(target), "__next__"):
            raise AttributeError("an iterator holds nothing")  # nor might looking ever end
        if verb == "put":
            raise AttributeError("what the probe handed over cannot be changed in this way")
        if verb in ("get", "set"):
            kind = type(target)
            if type(name) is not str or name.startswith("_") or not is_course(kind):
                raise AttributeError(f"{kind.__name__!r} has no {name!r} for you")
        if verb == "set":
            data = name in getattr(target, "__dict__", {}) or name in slots_of(type(target))
            if not data or isinstance(arguments[1], Remote):
                raise AttributeError(f"{name!r} cannot be changed in this way")

    def describe(self, error: BaseException) -> dict:
        """An exception as plain data: the names of its kinds, its message."""
        try:
            message = str(error)[:300]
        except Exception:
            message = ""
        kinds = [name_of(k) for k in type(error).__mro__[:-1]]
        return {"kinds": kinds, "message": message}

    def _raised(self, bad: Any) -> Exception:
        """The other side's exception as one of ours: the nearest kind that both sides know."""
        bad = bad if type(bad) is dict else {}
        kinds = [str(kind)[:100] for kind in bad.get("kinds", []) if type(kind) is str][:20]
        message = str(bad.get("message", ""))[:300]
        error: Exception | None = None
        for kind in kinds:
            found = self.known_class(kind)
            if isinstance(found, type) and issubclass(found, Exception):
                try:
                    error = found(message)
                    break
                except Exception:
                    continue
        error = error or Exception(message)
        kind = re.split("[:.]", kinds[0])[-1][:60] if kinds else "Exception"
        error.told = {  # type: ignore[attr-defined]
            "type": kind if kind.isidentifier() else "Exception",
            "message": message,
            **place_of(bad.get("where")),
        }
        return error


def place_of(told: Any) -> dict:
    """Line, its code and function, if that is what was told."""
    if type(told) is not dict or type(told.get("line")) is not int:
        return {}
    return {"line": told["line"], **{k: str(told.get(k, ""))[:120] for k in ("code", "function")}}


def slots_of(kind: type) -> set[str]:
    """Names that the class keeps room for, instead of a dict."""
    return {name for k in kind.__mro__ for name in getattr(k, "__slots__", ())}
