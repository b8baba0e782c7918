"""The pictures of the README and of docs/: ``python -m course.site.pictures`` draws them.

``memory.svg`` is the memory map of the lessons as a short film: every step is a list of parts that
most steps have in common, shown in turn by CSS. Where motion is not wanted, one step stands still.
``memory-still.svg`` is that step alone. ``architecture.svg`` is drawn from the syntax trees: the
parts of ``course/`` and who imports whom. tests/test_site_pictures.py draws all again and compares.
"""

from __future__ import annotations

import ast
import re
from html import escape
from itertools import pairwise
from pathlib import Path

from course.pins import ROOT
from course.show import memory_map
from course.show.palette import ACCENT, HAIRLINE, INK, MUTED, PAPER, SANS
from course.show.svg import Drawing, number

FOLDER = "docs/pictures"

# ---- The film ------------------------------------------------------------------------------------

SECONDS = 0.9  # a step
STILL = 3  # the step that stands for all: the arena refuses C with room to spare, blocks take it
STRIP = 34.0  # height of what the film adds below the picture: which step this is
PATTERN = re.compile(r'<pattern id="(?P<id>[^"]+)"(?P<rest>.*?)</pattern>')
FILM = (
    "Three memories of the same size serve the same requests, step by step: one slab for each "
    "request, an arena, and blocks. With slabs, C waits until A has left. The arena refuses C with "
    "enough slots free, because no hole is long enough. With blocks, C enters at once."
)


def film() -> str:
    """The memory map of the running example as one animated SVG."""
    steps = [picture.data for _, picture in memory_map(show=False).frames("step")]
    patterns: dict[str, str] = {}  # what a hatch looks like -> its id, the same in all steps
    drawn, last = [], len(steps) - 1
    for svg in map(str, steps):
        body = re.sub(r"\A<svg[^>]*><rect[^>]*/>|</svg>\Z", "", svg)
        for found in PATTERN.finditer(body):
            name = patterns.setdefault(found["rest"], f"h{len(patterns)}")
            body = body.replace(f"#{found['id']})", f"#{name})")
        body = re.sub(r"<defs>.*?</defs>", "", body)
        drawn.append([part for part in re.split(r"(?=<(?!/))", body) if part])
    parts: dict[str, int] = {}
    shots = []
    for place, step in enumerate(joined(drawn)):
        used = "".join(f'<use href="#p{parts.setdefault(p, len(parts))}"/>' for p in step)
        still = " still" if place == STILL else ""
        delay = f"animation-delay:{number(place * SECONDS)}s"
        shots.append(f'<g class="shot{still}" style="{delay}">{used}{_strip(place, last)}</g>')
    width, height = _size(str(steps[0]))
    tiles = "".join(f'<pattern id="{name}"{rest}</pattern>' for rest, name in patterns.items())
    shared = "".join(f'<g id="p{at}">{part}</g>' for part, at in parts.items())
    share = number(100 / len(steps))
    style = (
        "<style>.shot{visibility:hidden}"
        f"@keyframes turn{{0%{{visibility:visible}}{share}%,100%{{visibility:hidden}}}}"
        "@media (prefers-reduced-motion:no-preference){"
        f".shot{{animation:turn {number(len(steps) * SECONDS)}s step-end infinite}}}}"
        "@media (prefers-reduced-motion:reduce){.still{visibility:visible}}</style>"
    )
    return _frame(width, height + STRIP, FILM, f"{style}<defs>{tiles}{shared}</defs>", *shots)


def still() -> str:
    """One step of it, for readers who want no motion."""
    return str(memory_map(step=STILL, show=False).picture.data) + "\n"


def joined(steps: list[list[str]]) -> list[list[str]]:
    """The same steps with fewer parts: what always stands together becomes one.

    >>> joined([["a", "b", "c"], ["c", "a", "b"]])
    [['ab', 'c'], ['c', 'ab']]
    """
    after: dict[str, set[str | None]] = {}
    before: dict[str, set[str | None]] = {}
    for step in steps:
        for one, two in pairwise([None, *step, None]):
            if one is not None:
                after.setdefault(one, set()).add(two)
            if two is not None:
                before.setdefault(two, set()).add(one)
    found = []
    for step in steps:
        row = step[:1]
        for one, two in pairwise(step):
            if after[one] == {two} and before[two] == {one}:
                row[-1] += two
            else:
                row.append(two)
        found.append(row)
    return found


def _strip(step: int, last: int) -> str:
    """Which step this is, in words and as a bar."""
    d = Drawing(760, STRIP)
    d.text(28, 456, f"step {step} of {last}", 12.5, fill=MUTED)
    d.rect(128, 447, 604, 8, HAIRLINE, radius=4)
    d.rect(128, 447, max(8.0, 604 * step / last), 8, ACCENT, radius=4)
    return "".join(d._parts)


def _size(svg: str) -> tuple[float, float]:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found, "a picture without a size"
    return float(found[1]), float(found[2])


def _frame(width: float, height: float, alt: str, *parts: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(alt)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" '
        f'height="{number(height)}" font-family="{escape(SANS)}" fill="{INK}">'
        f'<rect x="0.5" y="0.5" width="{number(width - 1)}" height="{number(height - 1)}" rx="8" '
        f'fill="{PAPER}" stroke="{HAIRLINE}"/>{"".join(parts)}</svg>\n'
    )


# ---- The house -----------------------------------------------------------------------------------

# Parts that are drawn, floor by floor from below, and what each is for.
HOUSE: tuple[dict[str, str], ...] = (
    {"sizing": "KV bytes of known models", "workload": "lengths and arrivals"},
    {"engine": "the reference engine"},
    {"memory": "policies, ledger, simulator"},
    {"practice": "exercises and checks", "show": "figures and widgets"},
    {"authoring": "sources to notebooks", "labs": "their sources", "lessons": "their sources"},
    {"release": "for teachers", "grading": "marks, in a sandbox", "site": "pages to read",
     "bench": "beside other engines"},
    {"commands": "python -m course ..."},
)  # fmt: skip
PAGE, TOP, STOREY, BOX = 760.0, 18.0, 82.0, 48.0


def parts_of(root: Path = ROOT) -> dict[str, set[str]]:
    """Each part that is drawn, and what it imports of the others, read from the syntax trees."""
    drawn = [name for floor in HOUSE for name in floor]
    found = {}
    for name in drawn:
        place = root / "course" / name
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
        uses = {other for tree in trees for other in _imports(tree)}
        found[name] = (uses & set(drawn)) - {name}
    return found


def _imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("course.")}


def arrows(parts: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Imports without those that follow from others: A uses C is left out where A uses a B that
    leads to C."""

    def reach(name: str, seen: set[str]) -> set[str]:
        for other in parts[name] - seen:
            seen |= {other} | reach(other, seen)
        return seen

    behind = {name: reach(name, set()) for name in parts}
    return {
        (name, other)
        for name, uses in parts.items()
        for other in uses
        if not any(other in behind[third] for third in uses - {other})
    }


def house(root: Path = ROOT) -> str:
    """The parts on their floors, with arrows to what they import."""
    parts = parts_of(root)
    height = 2 * TOP + STOREY * (len(HOUSE) - 1) + BOX
    places: dict[str, tuple[float, float, float]] = {}  # name -> left, top, width
    for level, floor in enumerate(HOUSE):
        width = min(200.0, (PAGE - 56 - 16 * (len(floor) - 1)) / len(floor))
        left = (PAGE - len(floor) * width - 16 * (len(floor) - 1)) / 2
        for at, name in enumerate(floor):
            top = height - TOP - STOREY * level - BOX
            places[name] = (left + at * (width + 16), top, width)
    d = Drawing(PAGE, height)
    for name, other in sorted(arrows(parts)):
        _arrow(d, places[name], places[other])
    for level, floor in enumerate(HOUSE):
        for name, what in floor.items():
            left, top, width = places[name]
            d.rect(left, top, width, BOX, "#FFFFFF", INK, 1.2, radius=6)
            d.text(left + 10, top + 20, name, 15, weight="700")
            d.text(left + 10, top + 37, what, 12)
        d.text(14, places[next(iter(floor))][1] + BOX / 2 + 4, level, 12, "middle", MUTED)
    return d.svg(house_words(parts)) + "\n"


def _arrow(d: Drawing, start: tuple[float, float, float], end: tuple[float, float, float]) -> None:
    (left, top, width), (other, low, wide) = start, end
    if top == low:  # on one floor
        x1, x2 = (left, other + wide) if other < left else (left + width, other)
        d.line(x1, top + BOX / 2, x2, low + BOX / 2, MUTED, 1.4, arrow=True)
        return
    middle, target = left + width / 2, other + wide / 2
    lean = max(-wide / 3, min(wide / 3, (middle - target) / 4))  # not all end in one point
    d.line(middle - lean / 2, top + BOX, target + lean, low, MUTED, 1.4, arrow=True)


def house_words(parts: dict[str, set[str]]) -> str:
    """The drawing in words."""
    told = []
    for floor in HOUSE:
        for name in floor:
            uses = sorted(parts[name])
            told.append(f"{name} uses {', '.join(uses)}" if uses else f"{name} uses none of them")
    return f"The parts of course/ on {len(HOUSE)} floors, from below: {'; '.join(told)}."


PICTURES = {"memory.svg": film, "memory-still.svg": still, "architecture.svg": house}


def main() -> None:
    folder = ROOT / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        text = draw()
        (folder / name).write_text(text, encoding="utf-8")
        print(f"{FOLDER}/{name}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
