"""The pool as a grid of blocks, and block tables with the pool that they point into.

block_grid({"A": [7, 1], "B": [10], "C": [12, 5]}, {"A": 7, "B": 3, "C": 6})
block_table_figure({"A": [7, 1, 3]}, {"A": 9})
"""

from collections.abc import Mapping, Sequence
from typing import Any

from course.show.display import Picture, ShownPicture
from course.show.palette import ACCENT, INK, MUTED, OUTLINE, request_style
from course.show.slots import draw_key, draw_slot, slot_marks, table_slots
from course.show.svg import Drawing

Tables = Mapping[str, Sequence[int]]


def block_grid(
    tables: Tables,
    num_tokens: Mapping[str, int] | None = None,
    num_blocks: int = 16,
    block_size: int = 4,
    *,
    final: Mapping[str, int] | None = None,
    highlight: Sequence[int] = (),
    caption: str = "",
    columns: int = 4,
    show: bool = True,
) -> ShownPicture:
    """The pool as a grid of numbered blocks, each slot with its owner.

    tables: request -> its block ids, in order (-1 for a block given back). num_tokens: tokens
    written by each request (without it every slot held counts as written). final: length that each
    will reach, which tells slots still to be written from slots that never will be. A block in two
    tables shows its owners and its reference count. highlight: blocks to point out.
    Raises ValueError for a block outside the pool.
    """
    owners = _owners(tables, num_blocks)
    if num_tokens is None:
        num_tokens = {name: len(table) * block_size for name, table in tables.items()}
    slots = table_slots(tables, num_tokens, num_blocks, block_size, final)
    slot = min(30.0, 700 / (columns * (block_size + 1)))
    gap_x, gap_y = slot * 0.7, slot * 1.05
    cell_w, cell_h = slot * block_size + gap_x, slot + gap_y
    rows = -(-num_blocks // columns)
    d = Drawing(max(columns * cell_w - gap_x + 40, 420), rows * cell_h + 58)
    for block_id in range(num_blocks):
        row, column = divmod(block_id, columns)
        x, y = 20 + column * cell_w, 34 + row * cell_h
        _draw_block(d, x, y, slot, block_id, slots, block_size, owners.get(block_id, []))
        if block_id in highlight:
            d.rect(
                x - 5,
                y - 21,
                slot * block_size + 10,
                slot + 26,
                stroke=ACCENT,
                stroke_width=2.5,
                radius=5,
            )
    kinds = [k for k in ("live", "reserved", "internal", "free") if any(s[0] == k for s in slots)]
    draw_key(d, 20, d.height - 30, kinds, next(iter(tables), "A"))

    free = num_blocks - len(owners)
    held = "; ".join(
        f"{name} holds {', '.join(map(str, table)) or 'none'} ({num_tokens[name]} tokens)"
        for name, table in tables.items()
    )
    shared = [f"{b} has {len(o)} owners ({', '.join(o)})" for b, o in owners.items() if len(o) > 1]
    alt = f"Pool of {num_blocks} blocks of {block_size} slots, {free} free. "
    alt += f"Blocks: {held or 'none held'}."
    if shared:
        alt += " Shared: block " + "; block ".join(shared) + "."
    if highlight:
        alt += f" Pointed out: block {', '.join(map(str, highlight))}."
    words = "\n".join(
        f"block {b:>3}  {slot_marks(slots[b * block_size : (b + 1) * block_size])}"
        + (f"  shared by {', '.join(owners[b])}" if len(owners.get(b, [])) > 1 else "")
        for b in range(num_blocks)
    )
    text = caption or f"{num_blocks - free} of {num_blocks} blocks in use, {free} free."
    table = [("request", "block table", "tokens", "slots held")] + [
        (n, str(list(t)), num_tokens[n], block_size * sum(b >= 0 for b in t))
        for n, t in tables.items()
    ]
    return ShownPicture(Picture(d.svg(alt), alt, text, table if tables else None, words), show)


def _draw_block(
    d: Drawing, x: float, y: float, slot: float, block_id: int, slots: Sequence[tuple[str, str]],
    block_size: int, owners: Sequence[str], number: bool = True,
) -> None:  # fmt: skip
    for row in range(block_size):
        kind, name = slots[block_id * block_size + row]
        if len(owners) > 1 and kind == "live":  # the slots of a shared block take turns
            name = owners[row % len(owners)]
        draw_slot(d, x + row * slot, y, slot, kind, name)
    d.rect(x, y, slot * block_size, slot, stroke=INK if owners else OUTLINE, stroke_width=1.4)
    if number:
        d.text(x, y - 6, block_id, 12.5, weight="600" if owners else "normal", fill=INK, mono=True)
    if len(owners) > 1:
        note = f"{' + '.join(owners)}: {len(owners)} owners"
        if 5.9 * len(note) > slot * block_size - 18:  # it would run into the block's number
            note = f"{len(owners)} owners"
        d.text(x + slot * block_size, y - 6, note, 11.5, "end", MUTED)


def _owners(tables: Tables, num_blocks: int) -> dict[int, list[str]]:
    owners: dict[int, list[str]] = {}
    for name, table in tables.items():
        for block_id in table:
            if block_id >= num_blocks:
                raise ValueError(
                    f"{name} holds block {block_id}; the pool has blocks 0 to {num_blocks - 1}"
                )
            if block_id >= 0:
                owners.setdefault(block_id, []).append(name)
    return owners


def block_table_figure(
    tables: Tables,
    num_tokens: Mapping[str, int],
    num_blocks: int = 16,
    block_size: int = 4,
    *,
    words: Mapping[str, Sequence[Any]] | None = None,
    follow: str | None = None,
    caption: str = "",
    show: bool = True,
) -> ShownPicture:
    """Each request's tokens in order, its block table, and the pool that the table points into.

    tables: request -> block ids. num_tokens: tokens written. words: request -> its tokens as words,
    written into the logical blocks instead of positions. follow: the request whose pointers are
    drawn as lines (the only one, if there is only one); the others' blocks are labelled "B[0]",
    the first entry of B's table, and so on.
    """
    if not tables:
        raise ValueError("no tables to draw: give at least one request, e.g. {'A': [7, 1]}")
    _owners(tables, num_blocks)
    if follow is None and len(tables) == 1:
        follow = next(iter(tables))
    if follow is not None and follow not in tables:
        raise ValueError(f"follow is {follow!r}: there are tables of {', '.join(tables)}")
    # The followed request comes last, next to the pool, so that its lines cross nobody's tokens.
    tables = {
        **{n: t for n, t in tables.items() if n != follow},
        **({follow: tables[follow]} if follow else {}),
    }
    most = max(len(t) for t in tables.values())
    slot = min(46.0, 610 / max(most * block_size, 1))
    lane = slot + 50
    pool_slot, columns = 20.0, 8
    pool_rows = -(-num_blocks // columns)
    top = 44
    pool_y = top + lane * len(tables) + (58 if follow else 30)
    d = Drawing(760, pool_y + pool_rows * (pool_slot + 34) + 26)
    d.text(24, 26, "Each request's tokens in order, cut into logical blocks", 13, fill=MUTED)
    d.text(
        24,
        d.height - 18,
        "The pool: physical blocks in the order of their addresses",
        13,
        fill=MUTED,
    )
    anchors = _draw_pool_row(
        d, tables, num_tokens, num_blocks, block_size, pool_y, pool_slot, columns
    )
    links = []
    said = [str(w) for n in tables for w in list((words or {}).get(n, ()))[: num_tokens[n]]]
    letters = max((len(w) for w in said), default=0)
    for line, (name, table) in enumerate(tables.items()):
        y = top + lane * line
        look = request_style(name)
        d.text(24, y + slot * 0.66, name, 20, weight="700", fill=look.edge)
        d.text(24, y + slot + 21, "table", 12, fill=MUTED)
        for place, block_id in enumerate(table):
            x = 76 + place * (block_size * slot + 12)
            given_back = block_id < 0
            for row in range(block_size):
                position = place * block_size + row
                kind = "live" if position < num_tokens[name] else "reserved"
                own = (words or {}).get(name)
                label = str(own[position]) if own and position < len(own) else str(position)
                if given_back:
                    draw_slot(d, x + row * slot, y, slot, "free")
                    d.text(x + (row + 0.5) * slot, y + slot * 0.6, position, 12, "middle", MUTED)
                else:
                    shown = label if kind == "live" else ""
                    draw_word_slot(d, x + row * slot, y, slot, kind, name, shown, letters)
            edge = OUTLINE if given_back else INK
            d.rect(x, y, block_size * slot, slot, stroke=edge, stroke_width=1.4)
            middle = x + block_size * slot / 2
            d.rect(middle - 24, y + slot + 5, 48, 23, "#FFFFFF", look.edge, 1.6, radius=4)
            d.text(middle, y + slot + 21.5, block_id, 14, "middle", INK, "600", mono=True)
            if given_back:
                d.text(middle + 32, y + slot + 21, "given back", 12, fill=MUTED)
            if block_id >= 0 and name == follow:
                links.append((middle, y + slot + 28, block_id, look.edge))
    held = "; ".join(f"{n}: tokens {num_tokens[n]}, table {list(t)}" for n, t in tables.items())
    alt = (
        f"Block tables over a pool of {num_blocks} blocks of {block_size}. {held}. "
        "Entry i of a table names the block that holds the request's tokens "
        f"{block_size}i to {block_size}i+{block_size - 1}."
    )
    rows: list[tuple] = [("request", "logical block", "tokens", "physical block", "slots")]
    for name, table in tables.items():
        for place, block_id in enumerate(table):
            first = place * block_size
            last = min(first + block_size, num_tokens[name]) - 1
            span = f"{first} to {last}" if last >= first else "none yet"
            where = f"{block_id * block_size} to {(block_id + 1) * block_size - 1}"
            rows.append((name, place, span, block_id, where if block_id >= 0 else "given back"))
    _draw_links(d, links, anchors, pool_y)
    text = caption or " ".join(f"{n}'s table is {list(t)}." for n, t in tables.items())
    return ShownPicture(Picture(d.svg(alt), alt, text, rows), show)


def draw_word_slot(
    d: Drawing, x: float, y: float, size: float, kind: str, name: str, label: str, letters: int = 1
) -> None:
    """A slot with a word in it, as large as it fits. letters: of the longest word of the figure,
    so that all words come out alike."""
    draw_slot(d, x, y, size, kind, name, "")
    if label:
        look = request_style(name)
        fits = min(size * 0.4, size * 1.45 / max(len(label), letters))
        d.text(x + size / 2, y + size * 0.5 + fits * 0.36, label, fits, "middle", look.on_fill)


def _draw_pool_row(
    d: Drawing, tables: Tables, num_tokens: Mapping[str, int], num_blocks: int, block_size: int,
    y: float, slot: float, columns: int,
) -> dict[int, tuple[float, float]]:  # fmt: skip
    """The pool in rows of ``columns`` blocks; gives the point above each block."""
    slots = table_slots(tables, num_tokens, num_blocks, block_size)
    owners = _owners(tables, num_blocks)
    slot = min(slot, 700 / (columns * (block_size + 0.45)))
    anchors = {}
    for block_id in range(num_blocks):
        row, column = divmod(block_id, columns)
        x, top = 24 + column * slot * (block_size + 0.45), y + row * (slot + 34)
        _draw_block(d, x, top, slot, block_id, slots, block_size, owners.get(block_id, []), False)
        d.text(
            x + 1,
            top + slot + 14,
            block_id,
            12,
            weight="600" if block_id in owners else "normal",
            mono=True,
        )
        places = " ".join(
            f"{n}[{list(tables[n]).index(block_id)}]" for n in owners.get(block_id, [])
        )
        d.text(x + slot * block_size, top + slot + 14, places, 11.5, "end", MUTED, mono=True)
        anchors[block_id] = (x + slot * block_size / 2, top)
    return anchors


def _draw_links(d: Drawing, links: list, anchors: dict, pool_y: float) -> None:
    for x, y, block_id, colour in links:
        to_x, to_y = anchors[block_id]
        down = (pool_y - y) * 0.75
        d.path(
            f"M{x:.1f},{y:.1f} C{x:.1f},{y + down:.1f} {to_x:.1f},{pool_y - down:.1f} "
            f"{to_x:.1f},{to_y - 2:.1f}",
            colour,
            1.6,
        )
        d.arrow_head(to_x, to_y - 12, to_x, to_y - 1, colour, 7)
