"""Probes on the far side: for exercises whose arguments cannot go through the wall.

They run beside the answer, which could change them; what they give is checked by the grader like
anything that comes from here. The order of the cases and which behaviour one belongs to stay with
the grader.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def drives(which: str) -> list[Callable[[Any, dict], Any]]:
    """The different drives of an exercise, in the order of its probes."""
    from course.practice.registry import find

    found: list[Callable[[Any, dict], Any]] = []
    for probe in find(which).probes:
        if probe.drive not in found:
            found.append(probe.drive)
    return found


def outcome(drive: Callable[[Any, dict], Any], answer: Any, inputs: dict, seconds: float) -> str:
    """One case, as JSON."""
    from course.practice import guard

    found, _ = guard.call(lambda: drive(answer, inputs), seconds)
    return json.dumps(found)
