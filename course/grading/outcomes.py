"""What a case gave, as plain data that can be compared; or why nothing can be made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from course.grading.wall.peer import place_of
from course.practice.guard import Unusable
from course.practice.plain import array_of, plain, tag
from course.practice.run import Outcome

MAX_NODES, MAX_TEXT, MAX_DEPTH = 200_000, 16 * 2**20, 40


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """What a call gave, as in practice/guard.py. Gone and TooLong come through."""
    try:
        value = call()
        weigh(value)
        return {"value": plain(value)}
    except NotImplementedError as error:
        return {"unwritten": str(error)}
    except Unusable as error:
        return {"unusable": str(error)[:300]}
    except Exception as error:
        told = getattr(error, "told", None)
        if told is not None and ("line" in told or _is_loading(told)):
            if told["type"] == "RecursionError":
                told["message"] = "the function calls itself without end"
            return {"error": told}
        message = f"{type(error).__name__}: {str(error)[:200]}".rstrip(": ")
        return {"unusable": f"what came back is of no use to the check ({message})"}


def _is_loading(told: dict[str, Any]) -> bool:
    return told["type"] in ("SyntaxError", "ImportError", "ModuleNotFoundError", "MemoryError",
                            "LookupError", "IndentationError", "RecursionError")  # fmt: skip


def weigh(value: Any) -> None:
    """Unusable when it is too much to be looked at, shared parts counted each time."""
    nodes, text = 0, 0
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        nodes += 1
        kind = type(item)
        if kind in (str, bytes):
            text += len(item)
        inside: Iterable[Any] = ()
        if kind in (list, tuple, set, frozenset):
            inside = item
        elif kind is dict:
            inside = [*item.keys(), *item.values()]
        if depth < MAX_DEPTH:
            todo += [(part, depth + 1) for part in inside]
        if nodes + len(todo) > MAX_NODES or text > MAX_TEXT:
            raise Unusable("what came back is too large to be looked at")


def well_formed(told: Any) -> Outcome:
    """An outcome that a worker wrote itself, if it is one; nothing that only we may say."""
    bad: Outcome = {"unusable": "what came back is of no use to the check"}
    try:
        found = json.loads(told) if type(told) is str else None
    except (ValueError, RecursionError):
        return bad
    if type(found) is not dict:
        return bad
    if found.keys() == {"value"}:
        try:
            _check(found["value"])
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, MemoryError):
            return bad
        return found
    for kind in ("unwritten", "unusable"):
        if found.keys() == {kind} and type(found[kind]) is str:
            return {kind: found[kind][:300]}
    if "timeout" in found and type(found["timeout"]) in (int, float):
        return {"timeout": found["timeout"], **place_of(found)}
    error = found.get("error")
    if found.keys() == {"error"} and type(error) is dict:
        told = {key: str(error.get(key, ""))[:300] for key in ("type", "message")}
        return {"error": {**told, **place_of(error)}}
    return bad


def _check(node: Any, depth: int = 0) -> None:
    """ValueError and the like: not what ``plain`` makes."""
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    match tag(node):
        case "":
            for item in node.values() if type(node) is dict else node if type(node) is list else ():
                _check(item, depth + 1)
        case "$tuple":
            _check(list(node["$tuple"]), depth + 1)
        case "$dict":
            for key, value in node["$dict"]:
                _check(key, depth + 1)
                _check(value, depth + 1)
        case "$float":
            float(node["$float"])
        case "$array":
            array_of(node)
        case "$other":
            if type(node["$other"]) is not str or type(node["text"]) is not str:
                raise ValueError("no name")
        case _:
            raise ValueError("no tag")
