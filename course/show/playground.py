"""The arena playground: allocate and free by hand, until a request is refused with room to spare.

arena_playground()
arena_playground(example.ARENA_TRACE)     # start after these operations
"""

from collections.abc import Sequence
from string import ascii_uppercase

from course.memory import example
from course.memory.arena import FITS, Arena, external_fragmentation
from course.show.display import Picture
from course.show.palette import ACCENT, INK, MEMORY, MUTED, OUTLINE, request_style
from course.show.svg import Drawing
from course.show.widget import Choice, Number, Press, Widget

Operation = tuple[str, str, int]


class arena_playground(Widget):
    """An arena to break: allocate sizes, free whom you like, watch free slots and longest hole.

    operations: ("allocate", name, size) and ("free", name, 0) to run first. size: slots of the
    arena. fit: "first" or "best". Each picture says whether the last request was served, refused
    for want of slots, or refused although enough are free. ValueError for an operation that makes
    no sense (a name twice, a free of nobody) and for sizes outside the arena.
    """

    def __init__(
        self,
        operations: Sequence[Operation] = (),
        *,
        size: int = example.POOL_TOKENS,
        fit: str = "first",
        show: bool = True,
    ):
        if not 8 <= size <= 256:
            raise ValueError(f"an arena of {size} slots does not fit the picture: take 8 to 256")
        self.size = size
        self._start(fit)
        for action, name, amount in operations:
            if action == "allocate":
                self._allocate(amount, name)
            elif action == "free":
                self._free(name)
            else:
                raise ValueError(f'the action is {action!r}: "allocate" or "free"')
        state = {"fit": fit, "size": min(8, size), "who": next(iter(self.runs), None)}
        super().__init__(state, show)

    def _start(self, fit: str) -> None:
        self.arena = Arena(self.size, fit)
        self.runs: dict[str, tuple[int, int]] = {}  # name -> (offset, size)
        self.said = "The arena is empty."
        self.refused = 0
        self.log: list[str] = []

    def controls(self) -> list:
        return [
            Number("size", "Slots", 1, self.size),
            Press("allocate", "Allocate", "Ask for a run of so many slots"),
            Choice("who", "Request", lambda: list(self.runs)),
            Press("free", "Free", "Give this request's run back"),
            Press("compact", "Compact", "Slide all runs to the low end"),
            Choice("fit", "Fit", list(FITS)),
            Press("reset", "Start afresh", "Empty the arena"),
        ]

    def set(self, name: str, value: object) -> None:
        if name == "fit" and value in FITS:
            self.arena.fit = str(value)
        super().set(name, value)

    def pressed(self, name: str) -> None:
        if name == "allocate":
            self._allocate(self.state["size"])
        elif name == "free":
            if self.state["who"] in self.runs:
                self._free(self.state["who"])
            else:
                self.said = "There is nobody to free."
        elif name == "compact":
            self._compact()
        else:
            self._start(self.state["fit"])

    def _allocate(self, amount: int, name: str | None = None) -> None:
        if name is None:
            name = next((c for c in ascii_uppercase if c not in self.runs), None)
            if name is None:
                self.said = "All 26 letters are in use: free somebody first."
                return
        if name in self.runs:
            raise ValueError(f"{name!r} is in the arena already: free it first")
        free, hole = self.arena.num_free, self.arena.largest_hole
        offset = self.arena.allocate(amount)
        if offset is not None:
            self.runs[name] = (offset, amount)
            self.said = f"{name} gets {amount} slots from {offset} to {offset + amount - 1}."
        elif amount <= free:
            self.refused += 1
            self.said = (
                f"Refused: {name} needs {amount} in one piece. {free} slots are free, but the "
                f"longest hole has {hole}."
            )
        else:
            self.said = f"{name} needs {amount}; only {free} slots are free. The arena is full."
        self.log.append(self.said)

    def _free(self, name: str) -> None:
        if name not in self.runs:
            raise ValueError(f"{name!r} is not in the arena: it holds {list(self.runs)}")
        offset, amount = self.runs.pop(name)
        self.arena.free(offset)
        self.said = f"{name} gives {amount} slots back."
        self.log.append(self.said)

    def _compact(self) -> None:
        owners = {offset: name for name, (offset, _) in self.runs.items()}
        moved = 0
        for move in self.arena.compact():
            self.runs[owners[move.source]] = (move.destination, move.size)
            moved += move.size
        self.said = f"Compacted: {moved} slots were copied. The free ones are one hole now."
        self.log.append(self.said)

    def draw(self) -> Picture:
        d = Drawing(760, 214)
        unit = 712 / self.size
        stuck = self.said.startswith("Refused")
        for offset, amount in self.arena.holes:
            fill = MEMORY["external"].fill if stuck else "#FFFFFF"
            d.rect(24 + offset * unit, 58, amount * unit, 60, fill, OUTLINE, 1,
                   hatch="x" if stuck else "", hatch_colour="#9A4F2C")  # fmt: skip
            if amount * unit > 15:
                d.text(24 + (offset + amount / 2) * unit, 94, amount, 14, "middle", INK,
                       halo=fill if stuck else "")  # fmt: skip
        for name, (offset, amount) in self.runs.items():
            look = request_style(name[0])
            x, wide = 24 + offset * unit, amount * unit
            d.rect(x, 58, wide, 60, look.fill, INK, 1.4)
            label = name if wide > 9 * len(name) + 30 else name[0] if wide > 12 else ""
            if label:
                d.text(x + wide / 2, 84, label, 15, "middle", look.on_fill, "700")
                d.text(x + wide / 2, 104, amount, 13, "middle", look.on_fill)
        d.rect(24, 58, 712, 60, stroke=INK, stroke_width=1.6)
        for mark in range(0, self.size + 1, max(self.size // 8, 1)):
            d.line(24 + mark * unit, 118, 24 + mark * unit, 124, OUTLINE)
            d.text(24 + mark * unit, 138, mark, 11.5, "middle", MUTED, mono=True)
        free, hole = self.arena.num_free, self.arena.largest_hole
        d.text(
            24, 38, self.said.split(".")[0] + ".", 15, weight="600", fill=ACCENT if stuck else INK
        )
        for place, (value, words) in enumerate(
            ((free, "slots free"), (hole, "longest hole"), (len(self.arena.holes), "holes"),
             (self.refused, "refused with room"))
        ):  # fmt: skip
            d.text(24 + place * 180, 178, value, 24, weight="700")
            d.text(24 + place * 180, 198, words, 12.5, fill=MUTED)
        alt = (
            f"Arena of {self.size} slots: "
            + (", ".join(f"{n} at {o} to {o + a - 1}" for n, (o, a) in sorted(
                self.runs.items(), key=lambda run: run[1])) or "empty")
            + f". {free} free, longest hole {hole}. {self.said}"
        )  # fmt: skip
        rows = {
            "slots free": free, "longest hole": hole, "holes": len(self.arena.holes),
            "refused with room": self.refused,
            "free, outside the longest hole": f"{external_fragmentation(self.arena.holes):.0%}",
        }  # fmt: skip
        return Picture(d.svg(alt), alt, self.said, rows, self._letters())

    def _letters(self) -> str:
        marks = ["."] * self.size
        for name, (offset, amount) in self.runs.items():
            marks[offset : offset + amount] = name[0] * amount
        return "\n".join("".join(marks[i : i + 64]) for i in range(0, self.size, 64))

    def story(self) -> list[tuple[int, str]]:
        return [(place + 1, said) for place, said in enumerate(self.log)]
