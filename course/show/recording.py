"""Watch the real engine: record who holds which blocks after each step, then play it back.

recording = Recording("ABC")
llm.generate(prompts, params, on_step=recording)
pool_film(recording)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase
from typing import Any

from course.show.blocks import _draw_block, _owners
from course.show.display import Picture
from course.show.palette import ACCENT, INK, MUTED, OUTLINE, request_style
from course.show.slots import draw_key, slot_marks, table_slots
from course.show.svg import Drawing
from course.show.widget import Steps, Widget

LEFT, WIDTH = 44.0, 700.0  # of the strip under the pool
STRIP = 116.0  # its height


@dataclass(frozen=True)
class Frame:
    """The pool after one step. ``written``: tokens of each running request that are stored."""

    tables: dict[str, list[int]]
    written: dict[str, int]
    waiting: tuple[str, ...]
    finished: tuple[str, ...]

    @property
    def blocks_held(self) -> int:
        return len({block for table in self.tables.values() for block in table if block >= 0})

    @property
    def slots_written(self) -> int:
        return sum(self.written.values())


class Recording:
    """A list of frames that fills itself: give it to ``generate`` as ``on_step``.

    names: what to call the requests, in order of arrival; A, B, C, ... when not given.
    ``frames[0]`` is the moment before the first step.
    """

    def __init__(self, names: Iterable[str] = ascii_uppercase):
        self.frames: list[Frame] = []
        self.final: dict[str, int] = {}  # tokens that each request will have in the end, at most
        self.num_blocks = self.block_size = 0
        self._names = iter(names)
        self._name_of: dict[str, str] = {}

    def __call__(self, llm: Any) -> None:
        jobs = {i: job.request for i, job in llm.core.jobs.items()}
        for request_id, request in jobs.items():
            if request_id not in self._name_of:
                name = next(self._names, request_id)
                self._name_of[request_id] = name
                # The last token is sampled and never stored.
                self.final[name] = len(request.prompt_token_ids) + request.params.max_tokens - 1
        tables = llm.kv_manager.tables
        named = {self._name_of[i]: request for i, request in jobs.items()}
        if not self.frames:
            self.num_blocks = llm.kv_manager.pool.num_blocks
            self.block_size = llm.kv_manager.block_size
            self.frames.append(Frame({}, {}, tuple(named), ()))
        inside = {self._name_of[i]: list(tables[i]) for i in jobs if i in tables}
        done = tuple(n for n, r in named.items() if r.finish_reason is not None)
        out = tuple(n for n in named if n not in inside and n not in done)
        written = {n: named[n].num_computed_tokens for n in inside}
        self.frames.append(Frame(inside, written, out, done))

    @property
    def num_steps(self) -> int:
        return len(self.frames) - 1

    def first_step(self, name: str) -> int:
        """The step in which this request was admitted."""
        for step, (before, after) in enumerate(pairwise(self.frames), 1):
            # Admitted and finished in one step: it is never seen with a table.
            if name in after.tables or (name in after.finished and name in before.waiting):
                return step
        raise ValueError(f"{name!r} was never admitted; there are {', '.join(self.final)}")

    def last_step(self, name: str) -> int:
        """The step in which this request finished."""
        for step, frame in enumerate(self.frames):
            if name in frame.finished:
                return step
        raise ValueError(f"{name!r} never finished; there are {', '.join(self.final)}")

    @property
    def fullest(self) -> int:
        """The first step after which the most slots were written."""
        return max(range(len(self.frames)), key=lambda i: self.frames[i].slots_written)


class pool_film(Widget):
    """A recording, step by step: the pool above, the whole run as a strip below.

    step: the one to show first; None: the fullest. Raises ValueError for an empty recording.
    """

    def __init__(
        self, recording: Recording, *, step: int | None = None, title: str = "", show: bool = True
    ):
        if not recording.frames:
            raise ValueError("nothing was recorded: give the recording to generate as on_step")
        self.recording, self.title = recording, title
        super().__init__({"step": recording.fullest if step is None else step}, show)

    def controls(self) -> list:
        return [Steps("step", self.recording.num_steps)]

    def draw(self) -> Picture:
        r, step = self.recording, self.state["step"]
        frame = r.frames[step]
        slots = table_slots(frame.tables, frame.written, r.num_blocks, r.block_size, r.final)
        columns = min(4, r.num_blocks)
        slot = min(26.0, 470 / (columns * (r.block_size + 0.6)))
        wide, high = slot * r.block_size + slot * 0.6, slot * 1.95
        rows = -(-r.num_blocks // columns)
        top = 66.0
        d = Drawing(760, top + rows * high + STRIP + 92)
        if self.title:
            d.text(20, 30, self.title, 16, weight="700")
        owners = _owners(frame.tables, r.num_blocks)
        for block in range(r.num_blocks):
            row, column = divmod(block, columns)
            x, y = 20 + column * wide, top + row * high
            _draw_block(d, x, y, slot, block, slots, r.block_size, owners.get(block, []))
        self._requests(d, 36 + columns * wide, top + 4, frame)
        kinds = ["live", "reserved", "internal", "free"]
        draw_key(d, 20, top + rows * high - 8, [k for k in kinds if any(s[0] == k for s in slots)])
        self._strip(d, top + rows * high + 36, step)
        alt = self._alt(step, frame)
        return Picture(d.svg(alt), alt, self._caption(step, frame), self._table(),
                       self._words(slots))  # fmt: skip

    def _requests(self, d: Drawing, x: float, y: float, frame: Frame) -> None:
        """Beside the pool: where each request stands."""
        for name in self.recording.final:
            look = request_style(name)
            d.rect(x, y - 12, 15, 15, look.fill, hatch=look.hatch, hatch_colour=look.on_fill)
            if name in frame.tables:
                said = f"{name}: {', '.join(map(str, frame.tables[name]))}"
                if len(said) > 30:
                    said = f"{name}: {len(frame.tables[name])} blocks"
                d.text(x + 22, y, said, 13)
                d.text(x + 22, y + 16, f"{frame.written[name]} tokens written", 12, fill=MUTED)
            else:
                state = "waiting" if name in frame.waiting else "finished"
                waits = state == "waiting"
                d.text(x + 22, y, f"{name}: {state}", 13, weight="700" if waits else "normal")
            y += 44

    def _strip(self, d: Drawing, y: float, step: int) -> None:
        """Every step as a column of blocks: full where written, pale where only held."""
        r = self.recording
        wide, unit = WIDTH / len(r.frames), STRIP / r.num_blocks
        floor = y + STRIP
        d.text(LEFT - 6, y + 5, r.num_blocks, 11.5, "end", MUTED)
        d.text(LEFT - 6, floor + 3, 0, 11.5, "end", MUTED)
        d.text(
            LEFT,
            y - 6,
            "blocks held after each step: strong where written, pale where only held",
            12,
            fill=MUTED,
        )
        d.line(LEFT, y, LEFT + WIDTH, y, OUTLINE, 1, dash="3 3")
        for i, frame in enumerate(r.frames):
            x, base = LEFT + i * wide, floor
            for name, table in frame.tables.items():
                look = request_style(name)
                held = unit * sum(block >= 0 for block in table)
                full = unit * frame.written[name] / r.block_size
                d.rect(x + 1, base - held, wide - 2, held, look.tint, look.edge, 0.7)
                d.rect(x + 1, base - min(full, held), wide - 2, min(full, held), look.fill,
                       hatch=look.hatch, hatch_colour=look.on_fill)  # fmt: skip
                base -= held
            if i % 4 == 0:
                d.text(x + wide / 2, floor + 15, i, 11, "middle", MUTED)
        d.line(LEFT, floor, LEFT + WIDTH, floor, INK, 1.2)
        d.rect(LEFT + step * wide, y - 2, wide, STRIP + 4, stroke=ACCENT, stroke_width=2.2)
        d.text(LEFT + WIDTH, floor + 31, "step", 11, "end", MUTED)

    def _caption(self, step: int, frame: Frame) -> str:
        r = self.recording
        queue = f" Waiting: {', '.join(frame.waiting)}." if frame.waiting else ""
        return (
            f"After step {step} of {r.num_steps}: {frame.blocks_held} of {r.num_blocks} blocks are"
            f" held, {frame.slots_written} of {r.num_blocks * r.block_size} slots are"
            f" written.{queue}"
        )

    def _alt(self, step: int, frame: Frame) -> str:
        held = [
            f"{n} holds blocks {', '.join(map(str, t))} with {frame.written[n]} tokens"
            for n, t in frame.tables.items()
        ]
        title = f"{self.title}. " if self.title else ""
        most = max(f.blocks_held for f in self.recording.frames)
        return (
            f"{title}The pool after step {step}: {'; '.join(held) or 'nobody holds a block'}. "
            f"Below, a strip of all {self.recording.num_steps} steps; at most {most} of "
            f"{self.recording.num_blocks} blocks are held."
        )

    def _table(self) -> list[tuple]:
        r = self.recording
        rows: list[tuple] = [("request", "starts in step", "ends in step", "most blocks held")]
        for name in r.final:
            most = max((len(f.tables.get(name, ())) for f in r.frames), default=0)
            ended = any(name in f.finished for f in r.frames)
            started = any(name in f.tables or name in f.finished for f in r.frames)
            rows.append((name, r.first_step(name) if started else None,
                         r.last_step(name) if ended else None, most))  # fmt: skip
        return rows

    def _words(self, slots: list[tuple[str, str]]) -> str:
        size = self.recording.block_size
        return "\n".join(
            f"block {b:>3}  {slot_marks(slots[b * size : (b + 1) * size])}"
            for b in range(self.recording.num_blocks)
        )

    def story(self) -> list[tuple[int, str]]:
        told = []
        frames = self.recording.frames
        for step, (before, after) in enumerate(pairwise(frames), 1):
            news = []
            for name in self.recording.final:
                old, new = before.tables.get(name), after.tables.get(name)
                if new and not old:
                    news.append(f"{name} enters with blocks {', '.join(map(str, new))}")
                elif new and old and len(new) > len(old):
                    news.append(f"{name} takes block {', '.join(map(str, new[len(old) :]))}")
                if name in after.finished and name not in before.finished:
                    news.append(f"{name} ends and gives its blocks back")
                elif old and not new:
                    news.append(f"{name} is sent back to the queue")
            if news:
                told.append((step, "; ".join(news) + "."))
        return told
