"""The memory map: several memories side by side under one stream of requests.

memory_map()                    # slab, arena and paged under the running example
memory_map(step=2)              # the moment at which the arena refuses C
memory_map(policies=("first-fit", "best-fit", "buddy"))
memory_map([Arrival("A", 7, 28), Arrival("B", 3, 27), Arrival("C", 6, 8, step=4)])
"""

from collections.abc import Sequence

from course.memory import example
from course.show.display import Picture
from course.show.ledger import draw_bar, draw_memory_key
from course.show.memory_stream import Arrival, Snapshot, make_memory, run_stream
from course.show.palette import INK, MEMORY, MUTED
from course.show.slots import draw_pool, slot_marks
from course.show.svg import Drawing
from course.show.widget import Steps, Widget

# The running example's day. The two visitors, v and w, stay for two steps; then C comes.
DAY = (
    Arrival("v", 4, 5),
    Arrival("A", example.A.prompt_tokens, example.A.total_tokens),
    Arrival("w", 3, 4),
    Arrival("B", example.B.prompt_tokens, example.B.total_tokens),
    Arrival("C", example.C.prompt_tokens, example.C.total_tokens, step=2),
)
# Blocks for the visitors from the end of the example's order, so that A, B and C hold the blocks
# that they hold everywhere else: [7, 1, 3, ...], [10, 14, ...], [12, 5].
_REST = [b for b in example.BLOCK_ORDER if b not in (13, 8, 4)]
DAY_ORDER = (13, 8, *_REST[:2], 4, *_REST[2:])

SLOT, COLUMNS = 26.0, 8
PANEL = SLOT * COLUMNS
GAP = (760 - 2 * 28 - 3 * PANEL) / 2


class memory_map(Widget):
    """Three memories side by side under one stream, steppable and playable.

    stream: ``Arrival(name, prompt, final, step)``s in order of arrival, lengths in tokens; None:
    the running example. policies: up to three of ``course.memory.policies.POLICY_NAMES``, or
    "arena", which is first fit. The arenas are told how long each request will become, which no
    server knows, and still refuse. step: the step to show first. Raises ValueError for a step past
    the end, a policy unknown, or a request that could never run.
    """

    def __init__(
        self,
        stream: Sequence[Arrival] | None = None,
        *,
        policies: Sequence[str] = ("slab", "arena", "paged"),
        step: int = 0,
        num_blocks: int = example.NUM_BLOCKS,
        block_size: int = example.BLOCK_SIZE,
        max_model_len: int = example.MAX_MODEL_LEN,
        block_order: Sequence[int] | None = None,
        show: bool = True,
    ):
        if not 1 <= len(policies) <= 3:
            raise ValueError(f"{len(policies)} policies: one to three fit side by side")
        self.visitors = stream is None
        if stream is None:
            stream, block_order = DAY, block_order or DAY_ORDER
        self.pool, self.block_size = num_blocks * block_size, block_size
        self.days = {
            name: run_stream(
                make_memory(name, self.pool, max_model_len, block_size, block_order), stream
            )
            for name in policies
        }
        self.last = max(len(day) for day in self.days.values()) - 1
        super().__init__({"step": step}, show)

    def controls(self) -> list:
        return [Steps("step", self.last)]

    def at(self, policy: str, step: int) -> Snapshot:
        """The snapshot of "slab", "arena" or "paged" after a step."""
        return self.days[policy][min(step, len(self.days[policy]) - 1)]

    def draw(self) -> Picture:
        step = self.state["step"]
        rows = -(-self.pool // COLUMNS)
        grid = rows * SLOT
        now = {title: self.at(title, step) for title in self.days}
        under = 52 + grid
        d = Drawing(760, under + 180)
        left = (760 - len(now) * (PANEL + GAP) + GAP) / 2
        for place, (title, snap) in enumerate(now.items()):
            x = left + place * (PANEL + GAP)
            d.text(x, 36, title, 17, weight="700")
            d.text(x + PANEL, 36, f"{len(snap.running)} running", 12.5, "end", MUTED)
            size = self.block_size if title == "paged" else None
            self._addresses(d, x, rows, size)
            draw_pool(d, x, 48, snap.slots, SLOT, COLUMNS, size)
            draw_bar(d, x, under + 8, PANEL, 22, snap.ledger, 11.5, percent=False)
            inside = ", ".join(snap.running) or "nobody"
            d.text(x, under + 50, f"in: {inside}", 12.5)
            queue = ", ".join(snap.waiting) or "nobody"
            d.text(
                x, under + 67, f"waiting: {queue}", 12.5, weight="700" if snap.waiting else "normal"
            )
            for line, words in enumerate(_wrap("; ".join(snap.notes) or "one token each", 33)[:3]):
                d.text(x, under + 87 + 15 * line, words, 11.8, fill=MUTED)
        draw_memory_key(d, 28, under + 130, 720, list(MEMORY))
        if self.visitors:
            d.text(732, under + 141, "v, w: short visitors", 12, "end", MUTED)
        return Picture(d.svg(self._alt(step, now)), self._alt(step, now), self._caption(step, now),
                       self._table(now), self._words(now))  # fmt: skip

    def _addresses(self, d: Drawing, x: float, rows: int, block_size: int | None) -> None:
        """First slot of each row; in paged memory the ids of the first and the last block."""
        for row in range(rows):
            y, first = 48 + SLOT * (row + 0.64), row * COLUMNS
            if block_size is None:
                d.text(x - 5, y, first, 10.5, "end", MUTED, mono=True)
            elif first % block_size == 0:
                d.text(x - 5, y, first // block_size, 10.5, "end", INK, mono=True)
                last = (min(first + COLUMNS, self.pool) - 1) // block_size
                if last != first // block_size:
                    d.text(x + PANEL + 5, y, last, 10.5, "start", INK, mono=True)

    def _caption(self, step: int, now: dict[str, Snapshot]) -> str:
        parts = []
        for title, snap in now.items():
            queue = f", {' and '.join(snap.waiting)} waiting" if snap.waiting else ""
            parts.append(f"{title} {snap.ledger.live:g} of {self.pool} slots live{queue}")
        return f"Step {step} of {self.last}: " + "; ".join(parts) + "."

    def _alt(self, step: int, now: dict[str, Snapshot]) -> str:
        parts = []
        for title, snap in now.items():
            accounts = ", ".join(f"{v:g} {k}" for k, v in snap.ledger.as_dict().items() if v)
            parts.append(
                f"{title}: {' and '.join(snap.running) or 'nobody'} running, "
                f"{' and '.join(snap.waiting) or 'nobody'} waiting; slots {accounts}"
            )
        return f"Memory map, step {step}, pools of {self.pool} slots. " + ". ".join(parts) + "."

    def _table(self, now: dict[str, Snapshot]) -> list[tuple]:
        rows: list[tuple] = [("memory", "running", "waiting", *MEMORY)]
        for title, snap in now.items():
            accounts = [int(v) for v in snap.ledger.as_dict().values()]
            rows.append((title, ", ".join(snap.running), ", ".join(snap.waiting) or "–", *accounts))
        return rows

    def _words(self, now: dict[str, Snapshot]) -> str:
        drawn = []
        for title, snap in now.items():
            marks = slot_marks(snap.slots)
            lines = [marks[i : i + 16] for i in range(0, len(marks), 16)]
            drawn.append([title.ljust(16), *lines])
        text = "\n".join("   ".join(line) for line in zip(*drawn, strict=True))
        return (
            text + "\nA written  a held, to be written  - held, never written  x of no use  . free"
        )

    def story(self) -> list[tuple[int, str]]:
        told, before = [], {}
        for step in range(self.last + 1):
            news = []
            for title, day in self.days.items():
                notes = "; ".join(day[step].notes) if step < len(day) else ""
                if notes and notes != before.get(title):
                    news.append(f"{title}: {notes}")
                before[title] = notes
            if news:
                told.append((step, ". ".join(news) + "."))
        return told


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


__all__ = ["DAY", "Arrival", "memory_map"]
