"""The parts of docs/teaching.md that are made from the banks and from measurements.

They stand between ``<!-- made: NAME -->`` and ``<!-- end -->``; everything else is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from course.pins import ROOT
from course.practice import registry
from course.release.measure import Need

PAGE = ROOT / "docs" / "teaching.md"
PART = re.compile(r"(<!-- made: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LISTEN = 2  # mistakes of an exercise that are worth listening for: the bank has them first
ROW = re.compile(r"^\| (\d\d) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


def timing() -> str:
    """Minutes and points of every exercise."""
    rows = ["| exercise | minutes | points | difficulty |", "| --- | ---: | ---: | ---: |"]
    for number in registry.labs():
        mine = registry.lab(number)
        minutes, points = sum(e.minutes for e in mine), sum(e.points for e in mine)
        rows.append(f"| **Lab {number:02d}** | **{minutes}** | **{points}** | |")
        rows += [f"| {e.id} {e.title} | {e.minutes} | {e.points} | {e.difficulty} |" for e in mine]
    every = registry.every()
    minutes, points = sum(e.minutes for e in every), sum(e.points for e in every)
    rows.append(f"| **All {len(every)}** | **{minutes}** | **{points}** | |")
    return "\n".join(rows) + "\n"


def listen() -> str:
    """What learners believe, in the bank's words: it goes on after "when"."""
    told = []
    for number in registry.labs():
        told.append(f"**Lab {number:02d}**\n")
        for e in registry.lab(number):
            told += [f"- {e.id}: {m.name}. {_first(m.note)}" for m in e.answers.mistakes[:LISTEN]]
        told.append("")
    return "\n".join(told)


def _first(note: str) -> str:
    """The first sentence that says something; a dot within a code span ends none."""
    sentences = re.findall(r"(?:[^`.!?]|`[^`]*`|[.!?](?!\s|$))+[.!?](?=\s|$)", note)
    taken = next((n for n, words in enumerate(sentences) if len(words.split()) > 3), 0)
    return "".join(sentences[: taken + 1]).strip() or note


def machine(needs: list[Need]) -> str:
    rows = ["| lab | memory, MiB | CPU, s | in all, s |", "| --- | ---: | ---: | ---: |"]
    rows += [f"| {n.lab:02d} | {n.memory:,} | {n.cpu:.0f} | {n.wall:.0f} |" for n in needs]
    return "\n".join(rows) + "\n"


def measured(page: str) -> dict[int, Need]:
    """The measurements that a page holds, by lab."""
    part = next((p[3] for p in PART.finditer(page) if p[2] == "machine"), "")
    return {
        int(lab): Need(int(lab), int(memory.replace(",", "")), float(cpu), float(wall))
        for lab, memory, cpu, wall in ROW.findall(part)
    }


def made(page: str, needs: dict[int, Need]) -> str:
    """The page with its made parts renewed. ValueError: it has a part that nobody makes."""
    parts: dict[str, Callable[[], str]] = {
        "timing": timing,
        "listen": listen,
        "machine": lambda: machine([needs[n] for n in sorted(needs)]),
    }

    def renewed(part: re.Match[str]) -> str:
        if part[2] not in parts:
            raise ValueError(f"nothing makes the part {part[2]!r}; there are {', '.join(parts)}")
        return f"{part[1]}{parts[part[2]]()}{part[4]}"

    return PART.sub(renewed, page)


def read(path: Path = PAGE) -> str:
    return path.read_text(encoding="utf-8")
