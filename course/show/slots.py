"""Slots and blocks as every picture draws them.

live        the request's colour, its letter in it
reserved    the request's tint, a small letter, a dashed edge
internal    the request's tint under diagonal lines, no letter
free        white, thin edge
external    white under a warm cross-hatch
"""

from collections.abc import Mapping, Sequence

from course.show.palette import INK, MEMORY, MUTED, OUTLINE, PAPER, mix, request_style
from course.show.svg import Drawing

SLOT_EDGE = "#A9ADB3"


def draw_slot(
    d: Drawing, x: float, y: float, size: float, kind: str, name: str = "", label: str | None = None
) -> None:
    """One slot of ``size`` points. ``label`` replaces the letter."""
    if kind in ("free", "external"):
        fill, hatch = ("#FFFFFF", "") if kind == "free" else (MEMORY["external"].fill, "x")
        d.rect(x, y, size, size, fill, SLOT_EDGE, 0.8, hatch=hatch, hatch_colour="#9A4F2C")
        return
    look = request_style(name)
    mark = (name[:1] if name else "") if label is None else label
    middle, base = x + size / 2, y + size * 0.68
    if kind == "live":
        d.rect(x, y, size, size, look.fill, PAPER, 1)
        d.text(middle, base, mark, size * 0.52, "middle", look.on_fill, "600")
    elif kind == "reserved":
        d.rect(x, y, size, size, look.tint, look.edge, 0.9, dash="2.5 2")
        d.text(middle, base, mark, size * 0.42, "middle", mix(look.edge, INK, 0.5))
    elif kind == "internal":
        d.rect(x, y, size, size, look.tint, look.edge, 0.9, hatch="/", hatch_colour=look.edge)
    else:
        raise ValueError(f"no slot kind {kind!r}: live, reserved, internal, external or free")


def draw_key(d: Drawing, x: float, y: float, kinds: Sequence[str], example: str = "A") -> None:
    """A line that explains the kinds of slot by example."""
    words = {
        "live": "written",
        "reserved": "held, to be written",
        "internal": "held, never written",
        "external": "free, of no use",
        "free": "free",
    }
    for kind in kinds:
        draw_slot(d, x, y, 14, kind, example)
        d.text(x + 20, y + 11.5, words[kind], 12, fill=MUTED)
        x += 36 + 6.3 * len(words[kind])


def draw_pool(
    d: Drawing,
    x: float,
    y: float,
    slots: Sequence[tuple[str, str]],
    slot: float,
    columns: int,
    block_size: int | None = None,
) -> None:
    """A pool as rows of ``columns`` slots in address order; each slot is (kind, request).

    With a block size every block gets an outline of its own.
    """
    for index, (kind, name) in enumerate(slots):
        row, column = divmod(index, columns)
        draw_slot(d, x + column * slot, y + row * slot, slot, kind, name)
    if block_size:
        for start in range(0, len(slots), block_size):
            row, column = divmod(start, columns)
            width = min(block_size, len(slots) - start)
            d.rect(
                x + column * slot, y + row * slot, width * slot, slot, stroke=INK, stroke_width=1.3
            )
    rows = -(-len(slots) // columns)
    d.rect(x, y, columns * slot, rows * slot, stroke=OUTLINE, stroke_width=1.2)


def table_slots(
    tables: Mapping[str, Sequence[int]],
    num_tokens: Mapping[str, int],
    num_blocks: int,
    block_size: int,
    final: Mapping[str, int] | None = None,
) -> list[tuple[str, str]]:
    """(kind, request) of every slot of a paged pool, from block tables and token counts.

    A slot past the written tokens is reserved if the request's ``final`` length reaches it and
    internal otherwise; without ``final`` it is reserved. Of a shared block the first owner counts.
    """
    slots = [("free", "")] * (num_blocks * block_size)
    for name in reversed(list(tables)):
        last = (final or {}).get(name)
        for place, block_id in enumerate(tables[name]):
            if block_id < 0:
                continue
            if block_id >= num_blocks:
                raise ValueError(
                    f"{name} holds block {block_id}; the pool has blocks 0 to {num_blocks - 1}"
                )
            for row in range(block_size):
                position = place * block_size + row
                if position < num_tokens[name]:
                    kind = "live"
                else:
                    kind = "reserved" if last is None or position < last else "internal"
                slots[block_id * block_size + row] = (kind, name)
    return slots


def slot_marks(slots: Sequence[tuple[str, str]]) -> str:
    """The slots in letters: A written, a held, - held and never written, x useless, . free."""
    marks = {"internal": "-", "external": "x", "free": "."}
    return "".join(
        name[:1].upper()
        if kind == "live"
        else name[:1].lower()
        if kind == "reserved"
        else marks[kind]
        for kind, name in slots
    )
