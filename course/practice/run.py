"""Drive an answer with the probes of its exercise: inputs in, plain outcomes out.

The same three steps serve the notebook's check and a grader: ``make_cases`` (from a seed),
``outcomes`` (where the answer is; gives plain data only), and ``judge`` in verdict.py (where the
expected outcomes are).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from course.practice import guard
from course.practice.exercise import Exercise, Inputs, Probe
from course.practice.plain import plain
from course.practice.source import load, reference

NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which mmap does not name
MAX_TIMEOUTS = 2  # after so many, the rest is not tried

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One set of inputs for one probe. ``number``: its place among the probe's cases."""

    probe: Probe
    number: int
    inputs: Inputs
    drawn: bool  # at random, not a fixed example


def make_cases(exercise: Exercise, seed: int | str) -> list[Case]:
    """All inputs of a run. The same seed gives the same."""
    return [
        Case(probe, number, inputs, number >= len(probe.examples))
        for probe in exercise.probes
        for number, inputs in enumerate(probe.inputs(seed))
    ]


@cache
def missing(need: str) -> str:
    """Why this machine cannot run what needs this; empty when it can."""
    if need == "torch":
        return "" if find_spec("torch") else "PyTorch is not installed"
    if need == "triton":
        return "" if find_spec("triton") else "Triton is not installed"
    if need == "cuda":
        if find_spec("torch") is None:
            return "PyTorch is not installed"
        import torch

        return "" if torch.cuda.is_available() else "there is no CUDA GPU"
    if need == "interpreter":
        return "" if missing("cuda") else "kernels are compiled here, and not interpreted"
    if need == "model":
        from course.engine.loading.model_file import model_file

        return "" if model_file() else "the model file is not installed"
    if need == "addresses":
        return "" if _has_addresses() else "there are no 4 GiB of address space"
    raise ValueError(f"unknown need {need!r}; torch, triton, cuda, interpreter, model or addresses")


def _has_addresses() -> bool:
    """4 GiB of addresses can be had. No memory: only pages that are touched cost any.

    Shared, since private ones count as a process's data, which a grader limits.
    """
    import mmap

    try:
        mmap.mmap(
            -1, 2**32 + 2**16, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
        ).close()
    except (OSError, ValueError, OverflowError, AttributeError, TypeError):
        return False
    return True


def cannot_run(probe: Probe) -> str:
    """Why the probe cannot run here; empty when it can."""
    return "; ".join(filter(None, map(missing, probe.needs)))


def one(case: Case, answer: Any, seconds: float | None = None) -> tuple[Outcome, str]:
    """(outcome, what was printed) of one case, in this process."""
    inputs = deepcopy(case.inputs)
    limit = seconds or case.probe.seconds
    with one_thread():
        return guard.call(lambda: case.probe.drive(answer, inputs), limit)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch with a single thread: on a busy machine several wait for each other at every small
    tensor, until a right answer looks like an endless loop."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def outcomes(
    exercise: Exercise,
    cases: Iterable[Case],
    answer: Any,
    text: str = "",
    on_print: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """What each case gave, in order.

    answer: the learner's object. text: its source, needed for risky probes, which run in a process
    of their own. An outcome is {"not_run": why} where the machine lacks something and
    {"skipped": why} after endless loops.
    """
    cases = list(cases)
    if exercise.kind == "data":
        answer = unplain(plain(answer))
    results: list[Outcome] = [{"skipped": "not tried"}] * len(cases)
    remote: list[int] = []
    timeouts = 0
    stuck: set[str] = set()
    clock = guard.Clock()
    for place, case in enumerate(cases):
        behaviour = case.probe.behaviour
        if why := cannot_run(case.probe):
            results[place] = {"not_run": why}
        elif timeouts >= MAX_TIMEOUTS or behaviour in stuck:
            results[place] = {"skipped": "an endless loop before it"}
        elif clock.seconds() > guard.IN_ALL:
            results[place] = used_up(place)
        elif case.probe.risky:
            remote.append(place)
        else:
            results[place], printed = one(case, answer)
            on_print(printed)
            if "timeout" in results[place]:
                timeouts += 1
                stuck.add(behaviour)
    if remote:
        from course.practice.apart import run_apart

        chosen = [cases[place] for place in remote]
        for place, outcome in zip(remote, run_apart(exercise, chosen, text), strict=True):
            results[place] = outcome
    return results


def used_up(calls: int) -> Outcome:
    """What is said of a case for which there is no time left, after so many others."""
    return {
        "skipped": f"the {guard.IN_ALL:g} s for all calls together were used up after {calls} of "
        "them. Does it sleep, or do work again that it has done?"
    }


def expected(exercise: Exercise, cases: Iterable[Case]) -> list[Outcome]:
    """What the reference gives. RuntimeError: it fails its own probe."""
    cases = list(cases)
    # A kernel's module needs Triton, which may not be here; then nothing is run with it either.
    is_used = any(not case.probe.risky and not cannot_run(case.probe) for case in cases)
    answer = reference(exercise) if is_used else None
    results = outcomes(exercise, cases, answer, _reference_text(exercise))
    for case, outcome in zip(cases, results, strict=True):
        if "value" not in outcome and "not_run" not in outcome:
            raise RuntimeError(
                f"the reference of {exercise.label} fails at {case.probe.behaviour!r}: {outcome}"
            )
    return results


def _reference_text(exercise: Exercise) -> str:
    if not any(probe.risky for probe in exercise.probes):
        return ""
    from course.practice.source import reference_text

    return reference_text(exercise)


def loaded(exercise: Exercise, text: str, seconds: float = 10.0) -> tuple[Any, Outcome]:
    """(answer, {}) of a text, or (None, the outcome that says why there is none)."""
    box: list[Any] = []
    outcome, _ = guard.call(lambda: box.append(load(exercise, text)), seconds)
    return (box[0], {}) if box else (None, outcome)


def unplain(node: Any) -> Any:
    """A plain value back as Python's own: tuples, dicts with any keys; arrays stay tagged."""
    from course.practice.plain import tag

    match tag(node):
        case "$tuple":
            return tuple(unplain(item) for item in node["$tuple"])
        case "$dict":
            return {unplain(key): unplain(value) for key, value in node["$dict"]}
        case "$float":
            return float(node["$float"])
        case "$array" | "$other":
            return node
    if type(node) is list:
        return [unplain(item) for item in node]
    if type(node) is dict:
        return {key: unplain(value) for key, value in node.items()}
    return node
