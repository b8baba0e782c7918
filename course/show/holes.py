"""What a memory monitor shows, and what is there: the same free bytes, in one piece or in many.

memory_bars({"one hole": arena, "many": other}, ask=8)
segment_figure(allocator.segments())
"""

from collections.abc import Mapping, Sequence

from course.memory.trace import AnyArena
from course.show.calculator import size_words
from course.show.display import Picture, ShownPicture
from course.show.palette import ACCENT, INK, MEMORY, MUTED, OUTLINE
from course.show.svg import Drawing

LEFT, WIDE = 24, 712
USED = MEMORY["live"].fill


def memory_bars(arenas: Mapping[str, AnyArena], ask: int, *, show: bool = True) -> ShownPicture:
    """For each arena two bars, one above the other: used and free as a monitor adds them up, and
    the slots where they are, with the length of each hole. ask: slots of the request that comes
    next; whether it fits is written beside. ValueError for no arenas."""
    if not arenas:
        raise ValueError("no arena to draw: give a mapping, name -> arena")
    rows: list[tuple] = [
        ("memory", "free", "holes", "longest hole", f"room for {ask} in one piece")
    ]
    d = Drawing(760, 24 + 112 * len(arenas))
    for line, (name, arena) in enumerate(arenas.items()):
        top, unit, fits = 24 + 112 * line, WIDE / arena.size, arena.fits(ask)
        free = arena.num_free
        rows.append((name, free, len(arena.holes), arena.largest_hole, fits))
        verdict = f"{ask} in one piece: {'fits' if fits else 'refused'}"
        d.text(LEFT, top + 14, name, 14, weight="600")
        d.text(736, top + 14, verdict, 13.5, "end", INK if fits else ACCENT, "600")
        d.rect(LEFT, top + 24, WIDE, 20, "#FFFFFF", OUTLINE, 1)
        d.rect(LEFT, top + 24, (arena.size - free) * unit, 20, "#8A9099", OUTLINE, 1)
        d.text(LEFT + 8, top + 38.5, f"monitor: {arena.size - free} used", 12, fill="#FFFFFF",
               weight="600")  # fmt: skip
        d.text(728, top + 38.5, f"{free} free", 12, "end", weight="600")
        for offset, size in arena.runs:
            d.rect(LEFT + offset * unit, top + 50, size * unit, 32, USED, "#FFFFFF", 1)
        for offset, size in arena.holes:
            look = MEMORY["free" if fits else "external"]
            d.rect(LEFT + offset * unit, top + 50, size * unit, 32, look.fill, OUTLINE, 1,
                   hatch="" if fits else "x", hatch_colour="#9A4F2C")  # fmt: skip
            if size * unit > 9 * len(str(size)):
                d.text(LEFT + (offset + size / 2) * unit, top + 71, size, 13, "middle", INK,
                       "600", halo=look.fill)  # fmt: skip
        d.rect(LEFT, top + 50, WIDE, 32, stroke=INK, stroke_width=1.4)
    said = "; ".join(
        f"{n}: {free} free in {_count(holes, 'hole')}, longest {longest}, "
        f"{'fits' if fits else 'refused'}"
        for n, free, holes, longest, fits in rows[1:]
    )
    alt = f"Memory monitors and the memory behind them; a request asks for {ask} slots. {said}."
    caption = "Above, what a monitor adds up. Below, the same slots where they are."
    return ShownPicture(Picture(d.svg(alt), alt, caption, rows), show)


def segment_figure(
    segments: Sequence[Sequence[tuple[int, bool]]], title: str = "", *, show: bool = True
) -> ShownPicture:
    """Segments of a caching allocator, one line each, to scale: (bytes, in use) of every piece.
    ValueError for none."""
    if not segments:
        raise ValueError("no segment to draw: allocate something first")
    widest = max(sum(size for size, _ in pieces) for pieces in segments)
    top = 44 if title else 20
    d = Drawing(760, top + 62 * len(segments) + 34)
    if title:
        d.text(LEFT, 28, title, 14, weight="600")
    rows: list[tuple] = [("segment", "reserved", "in tensors", "cached", "largest free piece")]
    for line, pieces in enumerate(segments):
        y, x = top + 62 * line, float(LEFT)
        total, used = sum(s for s, _ in pieces), sum(s for s, busy in pieces if busy)
        largest = max((s for s, busy in pieces if not busy), default=0)
        sizes = (total, used, total - used, largest)
        rows.append((line + 1, *(size_words(size) if size else "0" for size in sizes)))
        d.text(LEFT, y + 12, f"segment {line + 1}: {size_words(total)}", 12.5, fill=MUTED)
        for size, busy in pieces:
            wide = size / widest * WIDE
            words = size_words(size)
            d.rect(x, y + 18, wide, 30, USED if busy else "#FFFFFF", INK, 1,
                   dash="" if busy else "4 3")  # fmt: skip
            if wide > 8 * len(words):
                d.text(x + wide / 2, y + 38, words, 12.5, "middle", "#FFFFFF" if busy else INK,
                       "600")  # fmt: skip
            x += wide
    y = d.height - 24
    d.rect(LEFT, y, 18, 13, USED, INK, 0.9)
    d.text(LEFT + 25, y + 11, "in a tensor", 12, fill=MUTED)
    d.rect(LEFT + 110, y, 18, 13, "#FFFFFF", INK, 0.9, dash="4 3")
    d.text(LEFT + 135, y + 11, "cached: reserved from the driver, in no tensor", 12, fill=MUTED)
    said = "; ".join(
        f"segment {row[0]}, {row[1]}: "
        + ", ".join(f"{size_words(s)} {'used' if busy else 'cached'}" for s, busy in pieces)
        for row, pieces in zip(rows[1:], segments, strict=True)
    )
    alt = f"{title + '. ' if title else ''}Segments of a caching allocator. {said}."
    return ShownPicture(Picture(d.svg(alt), alt, "Drawn to scale.", rows), show)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
