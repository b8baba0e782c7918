"""Split-KV: which processors of a GPU have work, and how much, at a given number of splits.

split_figure(kv_heads=8, processors=132, context=32_768, splits=(1, 16))
"""

from collections.abc import Sequence

from course.show.display import Picture, ShownPicture
from course.show.palette import INK, MUTED, request_style
from course.show.slots import SLOT_EDGE
from course.show.svg import Drawing

WIDTH, COLUMNS, CELL = 760, 22, 15


def split_figure(
    kv_heads: int,
    processors: int,
    context: int,
    splits: Sequence[int] = (1, 16),
    name: str = "A",
    show: bool = True,
) -> ShownPicture:
    """One request's decode attention in one layer, at each number of ``splits``.

    A program computes one KV head and one split of the context, and takes one processor for itself.
    Counted, not measured: work is tokens read, the merge is left out. Side by side, so two splits
    at most; more than ``processors`` programs are a ValueError, as are numbers below 1.
    """
    for what, number in (("kv_heads", kv_heads), ("processors", processors), ("context", context)):
        if number < 1:
            raise ValueError(f"{what}={number}: give at least 1")
    if not 1 <= len(splits) <= 2 or min(splits) < 1:
        raise ValueError(f"splits={tuple(splits)}: give one or two numbers, each at least 1")
    if kv_heads * max(splits) > processors:
        most = processors // kv_heads
        raise ValueError(
            f"{kv_heads} KV heads x {max(splits)} splits do not fit {processors} processors "
            f"at once: give at most {most} splits"
        )
    counts = [(n, kv_heads * n, processors - kv_heads * n, -(-context // n)) for n in splits]
    lines = -(-processors // COLUMNS)
    d = Drawing(WIDTH, 118 + lines * CELL)
    for index, row in enumerate(counts):
        _panel(d, 24 + index * 376, row, counts[0][3], processors, name)
    said = "; ".join(
        f"{_count(r[0], 'split')}: {_count(r[1], 'program')}, {r[2]} of {processors} processors "
        f"without work, each program reads {r[3]:,} tokens"
        for r in counts
    )
    alt = f"One request of {context:,} tokens and {kv_heads} KV heads. {said}."
    caption = "Each square is one processor of the GPU. Counted from the grid, not measured."
    head = ("splits", "programs", "processors without work", "tokens each program reads")
    return ShownPicture(Picture(d.svg(alt), alt, caption, [head, *counts], width=WIDTH), show)


def _panel(d: Drawing, x: float, row: tuple, most_tokens: int, processors: int, name: str) -> None:
    splits, programs, idle, tokens = row
    look = request_style(name)
    d.text(x, 26, f"{_count(splits, 'split')}: {_count(programs, 'program')}", 15, weight="600")
    d.text(x, 46, f"{idle} of {processors} processors without work", 12.5, fill=MUTED)
    for index in range(processors):
        line, column = divmod(index, COLUMNS)
        is_busy = index < programs
        fill, edge = (look.fill, INK) if is_busy else ("#FFFFFF", SLOT_EDGE)
        d.rect(x + column * CELL, 58 + line * CELL, CELL - 3, CELL - 3, fill, edge, 0.8)
    y = 58 + -(-processors // COLUMNS) * CELL + 14
    d.text(x, y + 4, f"each reads {tokens:,} tokens", 12.5, fill=MUTED)
    d.rect(x, y + 14, max(330 * tokens / most_tokens, 2), 14, look.fill, INK, 0.8)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
