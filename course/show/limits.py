"""The reservation, to scale: slabs in a pool, and what the choice of max_model_len does to them.

slab_figure([512] * 8, max_model_len=4096)
limit_explorer()                                   # move max_model_len
limit_explorer("sharegpt_8k_filtered", limit=2048)
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from course.memory.emptiness import Emptiness, emptiness
from course.show.display import Picture, ShownPicture
from course.show.palette import ACCENT, HAIRLINE, INK, MEMORY, MUTED, OUTLINE
from course.show.svg import Drawing
from course.show.text import cell
from course.show.widget import Choice, Number, Widget
from course.workload import make_requests, mix, mix_names

LEFT, WIDE = 24, 712
LOWEST, HIGHEST, STEP = 512, 16_384, 512
DRAWN = 3000  # requests drawn from a mix; with 3,000 the shares stand to about a point


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
    caption = "The small dark parts are what the requests wrote. Drawn to scale."
    return ShownPicture(Picture(d.svg(alt), alt, caption, rows), show)


@cache
def _measured(mix_name: str, limit: int, block_size: int) -> Emptiness:
    return emptiness(_requests(mix_name), limit, block_size)


@cache
def _requests(mix_name: str):
    return make_requests(mix(mix_name).sample(DRAWN, seed=0))


def _moments(mix_name: str, limit: int, count: int) -> list[int]:
    """Tokens written in ``count`` slabs at a moment: requests that fit, each as often as it has
    decode steps, somewhere in its life. Their mean empty share is ``lifetime_per_step``."""
    fitting = [r for r in _requests(mix_name) if r.total_tokens <= limit]
    if not fitting:
        return []
    chance = np.array([r.output_tokens for r in fitting], dtype=float)
    generator = np.random.default_rng(1)
    chosen = generator.choice(len(fitting), size=count, p=chance / chance.sum())
    return [
        fitting[i].prompt_tokens + 1 + int(generator.integers(fitting[i].output_tokens))
        for i in chosen
    ]


class limit_explorer(Widget):
    """Move max_model_len, and watch how many slabs fit, how empty they are, and who is turned away.

    mix_name: one of ``course.workload.mix_names()``. limit: 512 to 16,384 in steps of 512.
    pool_tokens: slots of the pool. The shares are ``course.memory.emptiness`` of 3,000 requests
    drawn from the mix, empty slots as a mean over decode steps; requests longer than the limit are
    turned away and counted in nothing else. ValueError for an unknown mix or a limit out of range.
    """

    def __init__(
        self,
        mix_name: str = "azure_conv_2023",
        limit: int = 4096,
        *,
        pool_tokens: int = 32_768,
        block_size: int = 16,
        show: bool = True,
    ):
        if pool_tokens < HIGHEST:
            raise ValueError(f"pool_tokens is {pool_tokens}: at least {HIGHEST}, the largest limit")
        self.pool, self.block_size = pool_tokens, block_size
        super().__init__({"mix": mix_name, "limit": limit}, show)

    def controls(self) -> list:
        names = [(mix(name).title, name) for name in mix_names()]
        return [
            Number("limit", "max_model_len", LOWEST, HIGHEST, STEP),
            Choice("mix", "Requests", names),
        ]

    @property
    def measured(self) -> Emptiness:
        """The shares at the present limit."""
        return _measured(self.state["mix"], self.state["limit"], self.block_size)

    @property
    def batch(self) -> int:
        """Slabs, and so requests, that the pool holds at once."""
        return self.pool // self.state["limit"]

    @property
    def paged_batch(self) -> float:
        """Requests that the pool would hold in blocks, on average."""
        return self.measured.gain * self.pool / self.state["limit"]

    def draw(self) -> Picture:
        limit, now = self.state["limit"], self.measured
        kept = now.num_kept > 0
        empty = f"{100 * now.lifetime_per_step:.0f} %" if kept else "–"
        paged = f"{self.paged_batch:.0f}" if kept else "–"
        dropped = f"{100 * now.dropped_share:.1f} %"
        title = mix(self.state["mix"]).title
        d = Drawing(760, 434)
        d.text(LEFT, 32, title, 14, weight="600")
        numbers = (
            (str(self.batch), "run together"),
            (empty, "of their slots empty"),
            (dropped, "turned away: too long"),
            (paged, f"would run, blocks of {self.block_size}"),
        )
        for place, (value, words) in enumerate(numbers):
            d.text(LEFT + place * 180, 76, value, 25, weight="700")
            d.text(LEFT + place * 180, 96, words, 12.5, fill=MUTED)
        live = _moments(self.state["mix"], limit, self.batch)
        draw_slabs(d, 116, 54, live, limit, self.pool)
        d.text(LEFT, 188, f"{self.batch} slabs at some moment, to scale: dark is written", 12,
               fill=MUTED)  # fmt: skip
        d.text(736, 188, f"pool: {self.pool:,} slots", 12, "end", MUTED)
        self._curves(d, 220, 156)
        alt = (
            f"{title}. With max_model_len {limit:,} a pool of {self.pool:,} slots holds "
            f"{self.batch} slabs; {empty} of their slots are empty on average, {dropped} of the "
            f"requests are turned away; in blocks {paged} requests would run."
        )
        said = f"max_model_len {limit:,}: {self.batch} slabs, {empty} empty, {dropped} turned away."
        return Picture(d.svg(alt), alt, said, self._table())

    def _curves(self, d: Drawing, top: float, high: float) -> None:
        limits = range(LOWEST, HIGHEST + 1, STEP)
        all_of = [_measured(self.state["mix"], n, self.block_size) for n in limits]

        def at(limit: int, share: float) -> tuple[float, float]:
            return LEFT + 40 + (limit - LOWEST) / (HIGHEST - LOWEST) * 540, top + high * (1 - share)

        for share in (0, 0.5, 1):
            _, y = at(LOWEST, share)
            d.line(LEFT + 40, y, LEFT + 580, y, HAIRLINE)
            d.text(LEFT + 32, y + 4, f"{100 * share:.0f} %", 11.5, "end", MUTED)
        for mark in (512, 4096, 8192, 12_288, 16_384):
            x, _ = at(mark, 0)
            d.text(x, top + high + 17, f"{mark:,}", 11.5, "middle", MUTED)
        d.text(LEFT + 310, top + high + 36, "max_model_len", 12, "middle", MUTED)
        x, _ = at(self.state["limit"], 0)
        d.line(x, top - 8, x, top + high, ACCENT, 1.6)
        shares = [("empty slots", INK, "", [e.lifetime_per_step for e in all_of]),
                  ("turned away", ACCENT, "6 4", [e.dropped_share for e in all_of])]  # fmt: skip
        for name, colour, dash, values in shares:
            points = [at(n, v) for n, v in zip(limits, values, strict=True) if v == v]
            if not points:
                continue
            d.path("M" + " L".join(f"{px:.1f},{py:.1f}" for px, py in points), colour, 2.2,
                   dash=dash)  # fmt: skip
            d.text(points[-1][0] + 8, points[-1][1] + 4, name, 13, fill=colour, weight="600")
            now = values[limits.index(self.state["limit"])]
            if now == now:
                px, py = at(self.state["limit"], now)
                d.rect(px - 4, py - 4, 8, 8, colour, "#FFFFFF", 1.2)

    def _table(self) -> list[tuple]:
        rows: list[tuple] = [
            ("max_model_len", "slabs", "empty, %", "turned away, %", "in blocks")
        ]  # fmt: skip
        for limit in sorted({512, 1024, 2048, 4096, 8192, 16_384, self.state["limit"]}):
            e = _measured(self.state["mix"], limit, self.block_size)
            empty = round(100 * e.lifetime_per_step, 1) if e.num_kept else "–"
            paged = round(e.gain * self.pool / limit) if e.num_kept else "–"
            dropped = round(100 * e.dropped_share, 1)
            rows.append((limit, self.pool // limit, empty, dropped, paged))
        return rows

    def story(self) -> list[tuple[int, str]]:
        return [
            (place + 1, f"max_model_len {cell(row[0])}: {row[1]} slabs, {row[2]} % of them empty, "
             f"{row[3]} % of requests turned away; {row[4]} would run in blocks.")
            for place, row in enumerate(self._table()[1:])
        ]  # fmt: skip
