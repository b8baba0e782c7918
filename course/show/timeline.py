"""The scheduler timeline: who computes what, and when, under each way of batching.

    scheduler_timeline()                                            # the twelve requests, four ways
    scheduler_timeline({"static": run_batching("static"), "chunked": run_batching("chunked")})
    scheduler_timeline({"engine": steps})     # steps: a list of lists of (request, kind, tokens)

A bar is a request computing: hatched its prompt, plain its output. A line is a request waiting. An
empty crossed bar is a seat that is held and computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from course.memory.batching import BATCHING, BatchRun, Row, Tick, run_batching
from course.show.display import Picture
from course.show.palette import ACCENT, INK, MUTED, OUTLINE, request_style
from course.show.svg import Drawing
from course.show.text import cell
from course.show.widget import Choice, Steps, Widget

KINDS = ("prefill", "decode", "idle")
MOMENTS = 40
LEFT, WIDTH = 44.0, 690.0
Steplike = Sequence[Sequence[tuple[str, str, int]]]


class Day:
    """One timeline: ticks, arrivals, the end, and what is known of each request."""

    def __init__(self, name: str, run: "BatchRun | Steplike"):
        self.name = name
        self.run = run if isinstance(run, BatchRun) else None
        if isinstance(run, BatchRun):
            self.ticks = run.ticks
            self.arrivals = {job.name: job.arrival for job in run.jobs}
        else:
            self.ticks = [
                Tick(i, 1.0, tuple(Row(*row) for row in rows)) for i, rows in enumerate(run)
            ]
            names = [row.request for tick in self.ticks for row in tick.rows]
            self.arrivals = dict.fromkeys(names, 0.0)
        for tick in self.ticks:
            for row in tick.rows:
                if row.kind not in KINDS:
                    raise ValueError(f"{name}: kind {row.kind!r} is none of {', '.join(KINDS)}")
        if not self.ticks:
            raise ValueError(f"{name!r} has no steps to draw")
        self.end = self.ticks[-1].start + self.ticks[-1].duration
        self.requests = list(self.arrivals)

    def bars(self, request: str) -> list[tuple[float, float, str, int]]:
        """(start, end, kind, tokens), neighbours of one kind run together."""
        bars: list[list[Any]] = []
        for tick in self.ticks:
            for row in tick.rows:
                if row.request != request:
                    continue
                end = tick.start + tick.duration
                if bars and bars[-1][2] == row.kind and abs(bars[-1][1] - tick.start) < 1e-9:
                    bars[-1][1], bars[-1][3] = end, bars[-1][3] + row.tokens
                else:
                    bars.append([tick.start, end, row.kind, row.tokens])
        return [tuple(bar) for bar in bars]

    def at(self, time: float) -> Tick | None:
        """The step that runs at a time."""
        return next((t for t in self.ticks if t.start <= time < t.start + t.duration), None)

    def says(self, time: float, unit: str) -> str:
        """What happens at a time, in words."""
        if time >= self.end:
            return f"done since {self.end:,.0f} {unit}"
        tick = self.at(time)
        if tick is None:
            return "nothing runs"
        parts = []
        for kind, words in (("prefill", "prompt"), ("decode", "decode"), ("idle", "idle")):
            names = [
                f"{row.request} ({row.tokens})" if kind == "prefill" else row.request
                for row in tick.rows
                if row.kind == kind
            ]
            if names:
                parts.append(f"{words} {', '.join(names)}")
        return "; ".join(parts)


class scheduler_timeline(Widget):
    """Timelines one above another, with a moment to move through them.

    runs: name -> a ``BatchRun``, or a list of steps, each a list of (request, kind, tokens) with
    kind "prefill", "decode" or "idle". None: the twelve requests of ``course.memory.batching``
    under static, dynamic, continuous and chunked. show_only: the name of one to start with.
    moment: 0 to 40, fortieths of the longest day. ValueError for unknown kinds or empty days.
    """

    def __init__(
        self,
        runs: "Mapping[str, BatchRun | Steplike] | None" = None,
        *,
        show_only: str = "all",
        moment: int = 0,
        show: bool = True,
    ):
        if runs is None:
            runs = {policy: run_batching(policy) for policy in BATCHING}
        if not runs:
            raise ValueError("there is no run to draw: give at least one")
        self.days = {name: Day(name, run) for name, run in runs.items()}
        self.longest = max(day.end for day in self.days.values())
        self.unit = "ms" if all(day.run for day in self.days.values()) else "steps"
        if len(self.days) == 1:
            show_only = "all"
        super().__init__({"which": show_only, "moment": moment}, show)

    def controls(self) -> list:
        menu = [Choice("which", "Show", ["all", *self.days])] if len(self.days) > 1 else []
        return [*menu, Steps("moment", MOMENTS, "Moment", 500)]

    def draw(self) -> Picture:
        which = self.state["which"]
        days = list(self.days.values()) if which == "all" else [self.days[which]]
        single = len(days) == 1
        longest = days[0].end if single else self.longest
        lane = 20.0 if single else max(9.0, min(13.0, 700 / (len(days) * len(days[0].requests))))
        heights = [lane * len(day.requests) + 44 for day in days]
        d = Drawing(760, sum(heights) + 74)
        time = self.state["moment"] / MOMENTS * longest
        y = 18.0
        for day, height in zip(days, heights, strict=True):
            self._day(d, day, y, lane, longest, time)
            y += height
        self._axis(d, y, longest)
        self._key(d, y + 42)
        said = "; ".join(f"{day.name}: {day.says(time, self.unit)}" for day in days)
        caption = f"At {time:,.0f} {self.unit}: {said}."
        numbers = self._numbers(days)
        heads = numbers[0][1:]
        alt = "Timelines of who computes when. " + "; ".join(
            f"{row[0]}: "
            + ", ".join(f"{h} {cell(v)}" for h, v in zip(heads, row[1:], strict=True))
            for row in numbers[1:]
        ) + "."  # fmt: skip
        return Picture(d.svg(alt), alt, caption, numbers, self._words(days, longest))

    def _day(
        self, d: Drawing, day: Day, y: float, lane: float, longest: float, time: float
    ) -> None:
        scale = WIDTH / longest
        d.text(LEFT, y + 14, day.name, 14.5, weight="700")
        d.text(LEFT + WIDTH, y + 14, self._headline(day), 12.5, "end", MUTED)
        top = y + 22
        for line, request in enumerate(day.requests):
            middle = top + line * lane + lane / 2
            look = request_style(request)
            d.text(LEFT - 8, middle + 4, request, min(lane * 0.86, 12.5), "end", weight="600")
            bars = day.bars(request)
            if bars and bars[0][0] > day.arrivals[request]:
                came, began = day.arrivals[request] * scale, bars[0][0] * scale
                d.line(LEFT + came, middle, LEFT + began, middle, look.edge, 1.4, dash="2 2.5")
            for start, end, kind, tokens in bars:
                x, wide = LEFT + start * scale, max((end - start) * scale, 0.8)
                box = (x, top + line * lane + 1, wide, lane - 2)
                if kind == "idle":
                    d.rect(*box, "#FFFFFF", OUTLINE, 0.8, hatch="x", hatch_colour="#A9ADB3")
                elif kind == "prefill":
                    d.rect(*box, look.tint, look.edge, 1.2, hatch="/", hatch_colour=look.edge)
                else:
                    d.rect(*box, look.fill, look.edge, 0.8)
                if lane > 16 and wide > 14 + 8 * len(str(tokens)) and kind != "idle":
                    d.text(x + wide / 2, middle + 4.5, tokens, 11.5, "middle",
                           look.on_fill if kind == "decode" else INK,
                           halo=look.tint if kind == "prefill" else "")  # fmt: skip
        bottom = top + lane * len(day.requests)
        d.line(LEFT, bottom + 3, LEFT + WIDTH, bottom + 3, "#D6D2C6")
        x = LEFT + time * scale
        d.line(x, y + 20, x, bottom + 3, ACCENT, 2)

    def _headline(self, day: Day) -> str:
        if day.run is None:
            return f"{day.end:,.0f} steps"
        return f"{day.end:,.0f} ms, {day.run.throughput:,.0f} tokens per second"

    def _axis(self, d: Drawing, y: float, longest: float) -> None:
        step = next(s * 10**e for e in range(7) for s in (1, 2, 5) if longest / (s * 10**e) <= 10)
        mark = 0
        while mark <= longest:
            x = LEFT + mark / longest * WIDTH
            d.line(x, y - 18, x, y - 12, OUTLINE)
            last = mark + step > longest
            said = f"{mark:,} {self.unit}" if last else f"{mark:,}"
            d.text(x, y + 4, said, 11.5, "end" if x > 700 else "middle", MUTED)
            mark += step

    def _key(self, d: Drawing, y: float) -> None:
        look = request_style("A")
        x = LEFT
        for words, kind in (
            ("waiting", "wait"), ("prompt (prefill)", "prefill"), ("output (decode)", "decode"),
            ("seat held for nothing", "idle"), ("now", "now"),
        ):  # fmt: skip
            if kind == "wait":
                d.line(x, y - 4, x + 24, y - 4, look.edge, 1.4, dash="2 2.5")
            elif kind == "prefill":
                d.rect(
                    x, y - 10, 24, 12, look.tint, look.edge, 1.2, hatch="/", hatch_colour=look.edge
                )
            elif kind == "decode":
                d.rect(x, y - 10, 24, 12, look.fill, look.edge)
            elif kind == "idle":
                d.rect(
                    x, y - 10, 24, 12, "#FFFFFF", OUTLINE, 0.8, hatch="x", hatch_colour="#A9ADB3"
                )
            else:
                d.line(x + 12, y - 12, x + 12, y + 4, ACCENT, 2)
            d.text(x + 31, y, words, 12, fill=MUTED)
            x += 53 + 6.4 * len(words)

    def _numbers(self, days: Sequence[Day]) -> list[tuple]:
        if all(day.run for day in days):
            summaries = [(day.name, day.run.summary()) for day in days if day.run]
            return [("", *summaries[0][1]), *((name, *s.values()) for name, s in summaries)]
        rows: list[tuple] = [("", "steps", "prompt tokens", "output tokens", "requests")]
        for day in days:
            every = [row for tick in day.ticks for row in tick.rows]
            prompt = sum(r.tokens for r in every if r.kind == "prefill")
            output = sum(r.tokens for r in every if r.kind == "decode")
            rows.append((day.name, len(day.ticks), prompt, output, len(day.requests)))
        return rows

    def _words(self, days: Sequence[Day], longest: float, width: int = 64) -> str:
        lines = []
        for day in days:
            lines.append(day.name)
            for request in day.requests:
                row = [" "] * width
                for start, end, kind, _ in day.bars(request):
                    first, last = int(start / longest * width), int(end / longest * width)
                    mark = {"prefill": "P", "decode": "=", "idle": "x"}[kind]
                    row[first : max(last, first + 1)] = mark * (max(last, first + 1) - first)
                lines.append(f"{request:>4} {''.join(row[:width]).rstrip()}")
        return "\n".join([*lines, "P prompt  = output  x seat held, nothing computed"])

    def story(self) -> list[tuple[int, str]]:
        told = []
        for moment in range(0, MOMENTS + 1, 4):
            time = moment / MOMENTS * self.longest
            said = "; ".join(f"{n}: {day.says(time, self.unit)}" for n, day in self.days.items())
            told.append((moment, f"At {time:,.0f} {self.unit}: {said}."))
        return told
