"""The ledger of a pool as one bar that always sums to the pool: live, reserved, internal,
external, free.

    waste_ledger(Ledger(live=14, reserved=41, internal=9, external=0, free=0))
    waste_ledger({"slab": ledger_a, "paged": ledger_b})     # several policies, one above another
    waste_ledger([ledger_0, ledger_1, ledger_2])            # a history: steppable and playable
"""

from collections.abc import Mapping, Sequence
from typing import Any

from course.memory.ledger import Ledger
from course.show.display import Picture, ShownPicture
from course.show.palette import INK, MEMORY, MUTED
from course.show.svg import Drawing
from course.show.text import cell
from course.show.widget import Steps, Widget


def draw_bar(
    d: Drawing, x: float, y: float, width: float, height: float, ledger: Ledger, size: float = 12.5,
    percent: bool = True,
) -> None:  # fmt: skip
    """One ledger as a bar; each part that is wide enough has its share, or its count, in it."""
    at = x
    for name, share in ledger.shares().items():
        part, look = share * width, MEMORY[name]
        if part <= 0:
            continue
        draw_swatch(d, at, y, part, height, name)
        said = f"{share * 100:.0f} %" if percent else f"{getattr(ledger, name):g}"
        if part > 9 + size * 0.62 * len(said):
            halo = look.fill if look.hatch else ""
            d.text(
                at + part / 2, y + height / 2 + size * 0.36, said, size, "middle", look.on_fill,
                "600", halo=halo,
            )  # fmt: skip
        at += part
    d.rect(x, y, width, height, stroke=INK, stroke_width=1.4)


def draw_swatch(d: Drawing, x: float, y: float, width: float, height: float, name: str) -> None:
    """A patch that looks like one kind of memory."""
    look = MEMORY[name]
    d.rect(x, y, width, height, look.fill, INK, 0.9, hatch=look.hatch, hatch_colour="#8A6A3F")


def draw_memory_key(d: Drawing, x: float, y: float, width: float, names: Sequence[str]) -> float:
    """What the parts of a bar mean, in lines that fit the width; gives the y below."""
    left = x
    for name in names:
        look = MEMORY[name]
        said = f"{name}: {look.meaning}" if look.meaning else name
        need = 36 + 6.4 * len(said)
        if left > x and left + need > x + width:
            left, y = x, y + 22
        draw_swatch(d, left, y, 18, 13, name)
        d.text(left + 25, y + 11, said, 12, fill=MUTED)
        left += need
    return y + 22


def waste_ledger(
    ledgers: Ledger | Mapping[str, Ledger] | Sequence[Ledger],
    unit: str = "tokens",
    caption: str = "",
    title: str = "",
    show: bool = True,
) -> "ShownPicture | LedgerHistory":
    """The bar of one ledger, of several by name, or of a history (a list) that can be stepped.

    Each bar is its whole pool. unit: what the ledgers count ("tokens", "bytes", "% of the pool").
    ValueError for an empty pool or nothing to draw.
    """
    if isinstance(ledgers, Ledger):
        ledgers = {title or "pool": ledgers}
        title = ""
    if isinstance(ledgers, Mapping):
        return ShownPicture(ledger_picture(ledgers, unit, caption, title), show)
    return LedgerHistory(list(ledgers), unit, show)


def ledger_picture(
    ledgers: Mapping[str, Ledger], unit: str, caption: str = "", title: str = ""
) -> Picture:
    """Bars of named ledgers, one above another, each the whole of its pool."""
    if not ledgers:
        raise ValueError("no ledger to draw: give one, a mapping of them, or a list")
    for name, ledger in ledgers.items():
        if ledger.pool <= 0:
            raise ValueError(f"the ledger {name!r} sums to {ledger.pool}: a pool has slots")
    label = 24 + max(7.6 * max(len(n) for n in ledgers), 40)
    top, step = (44 if title else 20), 44
    used = [n for n in MEMORY if any(getattr(le, n) > 0 for le in ledgers.values())]
    key_y = top + step * len(ledgers) + 4
    probe = Drawing(760, 10)
    d = Drawing(760, draw_memory_key(probe, 24, key_y, 712, used) + 8)
    if title:
        d.text(24, 26, title, 14, weight="600")
    for line, (name, ledger) in enumerate(ledgers.items()):
        y = top + line * step
        d.text(label - 10, y + 20, name, 13.5, "end")
        draw_bar(d, label, y, 736 - label, 30, ledger)
    draw_memory_key(d, 24, key_y, 712, used)
    parts = []
    for name, ledger in ledgers.items():
        shares = ", ".join(f"{k} {v * 100:.1f} %" for k, v in ledger.shares().items() if v > 0)
        parts.append(f"{name}: {shares}")
    alt = "Where the slots of the pool are. " + "; ".join(parts) + "."
    rows: list[tuple] = [("", *MEMORY, f"pool ({unit})")]
    rows += [
        (name, *(_exact(v) for v in le.as_dict().values()), _exact(le.pool))
        for name, le in ledgers.items()
    ]
    said = "; ".join(_live_share(name, ledger, unit) for name, ledger in ledgers.items())
    text = caption or said + "."
    words = "\n".join(
        f"{name:<{max(map(len, ledgers))}} {_text_bar(le)}" for name, le in ledgers.items()
    )
    words += "\n" + "  ".join(f"{MEMORY[n].mark} {n}" for n in used)
    return Picture(d.svg(alt), alt, text, rows, words)


def _live_share(name: str, ledger: Ledger, unit: str) -> str:
    pool = "" if "%" in unit else f" of {cell(_exact(ledger.pool))} {unit}"
    return f"{name}: {ledger.shares()['live'] * 100:.1f} %{pool} live"


def _exact(value: float) -> Any:
    return int(value) if float(value).is_integer() else float(value)


def _text_bar(ledger: Ledger, width: int = 50) -> str:
    """The bar in letters. Rounded so that it always has exactly ``width`` of them."""
    text, total = "", 0.0
    for name, share in ledger.shares().items():
        total += share
        text += MEMORY[name].mark * (round(total * width) - len(text))
    return "|" + text.ljust(width, MEMORY["free"].mark) + "|"


class LedgerHistory(Widget):
    """The bar over time: Back, Next, play."""

    def __init__(self, ledgers: list[Ledger], unit: str = "tokens", show: bool = True):
        if not ledgers:
            raise ValueError("no ledger to draw: the history is empty")
        self.ledgers, self.unit = ledgers, unit
        super().__init__({"step": 0}, show)

    def controls(self) -> list:
        return [Steps("step", len(self.ledgers) - 1)]

    def draw(self) -> Picture:
        step = self.state["step"]
        ledger = self.ledgers[step]
        shares = ", ".join(f"{k} {v * 100:.1f} %" for k, v in ledger.shares().items())
        caption = f"Step {step} of {len(self.ledgers) - 1}: {shares}."
        return ledger_picture({"pool": ledger}, self.unit, caption)
