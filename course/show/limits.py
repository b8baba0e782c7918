"""The reservation, to scale: slabs in a pool, and what the choice of max_model_len does to them.

slab_figure([512] * 8, max_model_len=4096)
limit_dial(requests, 32_768, (1024, 2048, 4096, 8192), start=4096)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from course.memory.emptiness import emptiness
from course.memory.policies import make_policy
from course.memory.simulate import simulate
from course.show.display import Picture, ShownPicture
from course.show.palette import ACCENT, HAIRLINE, INK, MEMORY, MUTED, OUTLINE
from course.show.svg import Drawing
from course.show.widget import Choice, Widget
from course.workload import WorkloadRequest

LEFT, WIDE = 24, 712


def draw_slabs(
    d: Drawing, y: float, height: float, live: Sequence[int], max_model_len: int, pool_tokens: int
) -> None:
    """A pool as one row, to scale: each slab with its written part at its low end, and the rest of
    the pool, too short for a slab."""
    unit = WIDE / pool_tokens
    empty, full, rest = MEMORY["internal"], MEMORY["live"], MEMORY["free"]
    for index, written in enumerate(live):
        x, wide = LEFT + index * max_model_len * unit, max_model_len * unit
        d.rect(x, y, wide, height, empty.fill, INK, 1.2, hatch=empty.hatch, hatch_colour="#8A6A3F")
        d.rect(x, y, max(written * unit, 0.8), height, full.fill)
        d.rect(x, y, wide, height, stroke=INK, stroke_width=1.2)
    used = len(live) * max_model_len
    if used < pool_tokens:
        wide = (pool_tokens - used) * unit
        d.rect(LEFT + used * unit, y, wide, height, rest.fill, OUTLINE, 1, dash="4 3")


def slab_figure(
    live: Sequence[int], max_model_len: int, pool_tokens: int | None = None, *, show: bool = True
) -> ShownPicture:
    """Slabs of ``max_model_len`` slots in one row, to scale, with ``live[i]`` tokens written in
    slab i. pool_tokens: the whole pool; None: the slabs alone. ValueError when they do not fit, or
    a slab has more tokens than slots."""
    pool = len(live) * max_model_len if pool_tokens is None else pool_tokens
    if not live or max_model_len < 1 or len(live) * max_model_len > pool:
        raise ValueError(f"{len(live)} slabs of {max_model_len} slots in a pool of {pool}")
    if not all(0 <= written <= max_model_len for written in live):
        raise ValueError(f"live is {list(live)}: each slab holds 0 to {max_model_len} tokens")
    total = sum(live)
    empty = len(live) * max_model_len - total
    d = Drawing(760, 128)
    draw_slabs(d, 22, 62, live, max_model_len, pool)
    for x, name, words in ((LEFT, "live", "written"), (124, "internal", "reserved and empty")):
        look = MEMORY[name]
        d.rect(x, 100, 18, 13, look.fill, INK, 0.9, hatch=look.hatch, hatch_colour="#8A6A3F")
        d.text(x + 25, 111, words, 12, fill=MUTED)
    d.text(736, 111, f"{len(live)} slabs of {max_model_len:,} slots", 12, "end", MUTED)
    alt = (
        f"{len(live)} slabs of {max_model_len:,} slots in a row; {total:,} slots are written and "
        f"{empty:,} are reserved and empty."
    )
    rows = {"slabs": len(live), "slots reserved": total + empty, "slots written": total,
            "empty, %": round(100 * empty / (total + empty), 1)}  # fmt: skip
    caption = "Dark is what the requests wrote. Drawn to scale."
    return ShownPicture(Picture(d.svg(alt), alt, caption, rows), show)


class LimitResult(NamedTuple):
    """At one limit: share of requests dropped, mean batch, empty share of the slabs (0 to 1)."""

    dropped: float
    batch: float
    empty: float


class limit_dial(Widget):
    """Turn max_model_len, and watch how many requests run, how empty their slabs are, and who is
    turned away.

    requests: all wait from the start (``course.memory.simulate``), so memory is the only limit to
    the batch. pool_tokens: slots. limits: the positions of the dial; start: the first one shown.
    ``results`` has a ``LimitResult`` for each limit; ``in_blocks`` the requests that the pool holds
    in blocks on average. Requests longer than the limit are in no figure but ``dropped``.
    ValueError for no limits, one above the pool, or one that no request fits.
    """

    def __init__(
        self,
        requests: Sequence[WorkloadRequest],
        pool_tokens: int,
        limits: Sequence[int],
        *,
        start: int | None = None,
        block_size: int = 16,
        show: bool = True,
    ):
        if not limits:
            raise ValueError("no limit to turn to: give at least one max_model_len")
        self.requests, self.pool, self.block_size = list(requests), pool_tokens, block_size
        self.limits = sorted(limits)
        self.results: dict[int, LimitResult] = {}
        self.in_blocks: dict[int, float] = {}
        self._live: dict[int, list[int]] = {}
        for limit in self.limits:
            self._measure(limit)
        super().__init__({"limit": self.limits[0] if start is None else start}, show)

    def _measure(self, limit: int) -> None:
        if limit > self.pool:
            raise ValueError(f"a slab of {limit} slots does not fit into a pool of {self.pool}")
        shares = emptiness(self.requests, limit, self.block_size)
        if not shares.num_kept:
            raise ValueError(f"no request fits a limit of {limit}: take a longer one")
        run = simulate(self.requests, make_policy("slab", self.pool, limit), all_at_once=True)
        empty = 1 - run.sustained.live / run.sustained.held
        self.results[limit] = LimitResult(shares.dropped_share, run.sustained_batch, empty)
        self.in_blocks[limit] = shares.gain * self.pool / limit
        self._live[limit] = self._moment(limit, min(self.pool // limit, shares.num_kept))

    def _moment(self, limit: int, count: int) -> list[int]:
        """Tokens written in each slab at a moment: requests drawn as often as they have decode
        steps, each somewhere in its life."""
        fitting = [r for r in self.requests if r.total_tokens <= limit]
        chance = np.array([r.output_tokens for r in fitting], dtype=float)
        generator = np.random.default_rng(1)
        chosen = generator.choice(len(fitting), size=count, p=chance / chance.sum())
        written = []
        for request in (fitting[i] for i in chosen):
            step = int(generator.integers(request.output_tokens))
            written.append(request.prompt_tokens + 1 + step)
        return written

    def controls(self) -> list:
        return [Choice("limit", "max_model_len", [(f"{n:,}", n) for n in self.limits], row=True)]

    def draw(self) -> Picture:
        limit = self.state["limit"]
        now = self.results[limit]
        empty, dropped = f"{100 * now.empty:.1f} %", f"{100 * now.dropped:.1f} %"
        d = Drawing(760, 418)
        numbers = (
            (f"{now.batch:.1f}", "run together"),
            (empty, "of their slots empty"),
            (dropped, "turned away: too long"),
            (f"{self.in_blocks[limit]:.1f}", f"would run in blocks of {self.block_size}"),
        )
        for place, (value, words) in enumerate(numbers):
            d.text(LEFT + place * 180, 46, value, 25, weight="700")
            d.text(LEFT + place * 180, 66, words, 12.5, fill=MUTED)
        draw_slabs(d, 86, 54, self._live[limit], limit, self.pool)
        words = f"slabs of {limit:,} at some moment, to scale: dark is written"
        d.text(LEFT, 158, words, 12, fill=MUTED)
        d.text(736, 158, f"pool: {self.pool:,} slots", 12, "end", MUTED)
        self._curves(d, 200, 156)
        alt = (
            f"With max_model_len {limit:,}, a pool of {self.pool:,} slots runs {now.batch:.1f} "
            f"requests together; {empty} of their slots are empty and {dropped} of all requests "
            f"are turned away. In blocks {self.in_blocks[limit]:.1f} would run."
        )
        said = (
            f"max_model_len {limit:,}: {now.batch:.1f} run together, {empty} of their slots empty, "
            f"{dropped} turned away."
        )
        return Picture(d.svg(alt), alt, said, self._table())

    def _curves(self, d: Drawing, top: float, high: float) -> None:
        """Empty and turned away over the limits, which stand evenly spaced."""
        left, wide = LEFT + 52, 500
        apart = wide / max(1, len(self.limits) - 1)
        for share in (0, 0.5, 1):
            y = top + high * (1 - share)
            d.line(left - 12, y, left + wide, y, HAIRLINE)
            d.text(left - 18, y + 4, f"{100 * share:.0f} %", 11.5, "end", MUTED)
        for place, limit in enumerate(self.limits):
            here = limit == self.state["limit"]
            x = left + place * apart
            d.text(x, top + high + 18, f"{limit:,}", 12, "middle", INK if here else MUTED,
                   "700" if here else "normal")  # fmt: skip
            if here:
                d.line(x, top - 6, x, top + high, ACCENT, 1.4)
        d.text(left + wide / 2, top + high + 40, "max_model_len", 12, "middle", MUTED)
        for name, colour, dash in (("empty", INK, ""), ("dropped", ACCENT, "6 4")):
            shares = [getattr(self.results[n], name) for n in self.limits]
            points = [(left + i * apart, top + high * (1 - s)) for i, s in enumerate(shares)]
            path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
            d.path(path, colour, 2.2, dash=dash)
            for x, y in points:
                d.rect(x - 3.5, y - 3.5, 7, 7, colour, "#FFFFFF", 1)
            words = {"empty": "empty slots", "dropped": "turned away"}[name]
            d.text(points[-1][0] + 12, points[-1][1] + 4, words, 13, fill=colour, weight="600")

    def _table(self) -> list[tuple]:
        rows: list[tuple] = [("max_model_len", "run together", "empty, %", "turned away, %",
                              "would run in blocks")]  # fmt: skip
        for limit, (dropped, batch, empty) in self.results.items():
            shares = (round(100 * empty, 1), round(100 * dropped, 1))
            rows.append((limit, round(batch, 1), *shares, round(self.in_blocks[limit], 1)))
        return rows

    def story(self) -> list[tuple[int, str]]:
        return [
            (place + 1, f"Limit {n:,}: {b:.1f} run together, {100 * e:.1f} % empty, "
             f"{100 * d:.1f} % turned away.")
            for place, (n, (d, b, e)) in enumerate(self.results.items())
        ]  # fmt: skip
