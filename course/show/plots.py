"""Plots that explain themselves: lines and bars with their names at them, and words that are made
from the same numbers.

    line_plot({"without cache": (lengths, slow), "with cache": (lengths, fast)},
              x="tokens", y="ms per token", title="Time per token")
    bar_plot({"slab": 7.0, "paged": 30.4}, unit="requests", title="Mean batch")
    histogram({"chat": lengths}, x="prompt tokens", log=True)
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from course.show.display import Picture, ShownPicture
from course.show.figures import figure
from course.show.palette import INK, MUTED, OUTLINE
from course.show.plot_style import LINE_STYLES, MARKERS, direct_label, new_figure, style
from course.show.svg import Drawing
from course.show.text import cell

COLOURS = ("#004488", "#8F6700", "#B04558", "#117733", "#7A4A8C", "#5B6270")
Line = tuple[Sequence[float], Sequence[float]]


def line_plot(
    series: Mapping[str, Line],
    x: str,
    y: str,
    title: str = "",
    *,
    log: str = "",
    zero: bool = True,
    steps: bool = False,
    marks: bool | None = None,
    caption: str = "",
    alt: str = "",
    note: str = "",
    names_at: str = "end",
    height: float = 3.7,
    show: bool = True,
) -> ShownPicture:
    """Lines with their names at their ends, different in colour, dash and mark.

    series: name -> (xs, ys). x, y: what the axes show, with units. log: "x", "y" or "xy". zero: let
    y start at 0. steps: stairs instead of slopes. marks: a mark at each point (by default for up to
    20 points). note: where it was measured, written small under the title. names_at: "end" or
    "peak" of each line. The alternative text and
    the table are made from the numbers; alt replaces the first. ValueError for no or uneven series.
    """
    clean = _checked(series)
    with style():
        fig, ax = new_figure(height=height)
        for index, (xs, ys) in enumerate(clean.values()):
            few = len(xs) <= 20 if marks is None else marks
            ax.plot(
                xs, ys, color=COLOURS[index % 6], linestyle=LINE_STYLES[index % 6],
                marker=MARKERS[index % 6] if few and not steps else "",
                drawstyle="steps-post" if steps else "default",
            )  # fmt: skip
        _scales(ax, log, zero, [v for xs, _ in clean.values() for v in xs])
        ax.set_xlabel(x)
        _heading(ax, title, y, note)
        if names_at == "peak":
            _peak_labels(ax, clean)
        else:
            _end_labels(fig, ax, clean)
        picture = figure(
            fig,
            alt=alt or _line_alt(clean, x, y, title),
            caption=caption,
            table=_line_table(clean, x),
            show=False,
        )
    return ShownPicture(picture.picture, show)


def _checked(series: Mapping[str, Line]) -> dict[str, tuple[list[float], list[float]]]:
    if not series:
        raise ValueError("nothing to plot: give at least one series, name -> (xs, ys)")
    clean = {}
    for name, (xs, ys) in series.items():
        xs, ys = [_plain(v) for v in xs], [_plain(v) for v in ys]
        if len(xs) != len(ys) or not xs:
            raise ValueError(
                f"{name!r} has {len(xs)} x and {len(ys)} y values: give as many, not 0"
            )
        clean[name] = (xs, ys)
    return clean


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's; whole ones as int."""
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _scales(ax: Any, log: str, zero: bool, xs: Sequence[float] = ()) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    for letter, axis, scale in (("x", ax.xaxis, ax.set_xscale), ("y", ax.yaxis, ax.set_yscale)):
        if letter in log:
            halves = letter == "x" and all(v > 0 and float(v).is_integer() for v in xs)
            base = 2 if halves and all(int(v) & (int(v) - 1) == 0 for v in xs) else 10
            scale("log", base=base)
            low, high = axis.get_view_interval()
            subs = (1, 2, 5) if base == 10 and high / low < 2000 else (1,)
            axis.set_major_locator(LogLocator(base=base, subs=subs, numticks=14))
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
        elif letter == "y" and zero:
            ax.set_ylim(bottom=0)
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    if abs(value) >= 1 or value == 0:
        return (
            f"{value:,.0f}"
            if float(value).is_integer()
            else f"{value:,.1f}".rstrip("0").rstrip(".")
        )
    return f"{value:.3g}"


def _heading(ax: Any, title: str, y: str, note: str) -> None:
    """Title at the left, under it what the y axis shows: words that need no turned head."""
    lines = [line for line in (y, note) if line]
    ax.set_title(title, pad=10 + 14 * len(lines))
    for line, words in enumerate(reversed(lines)):
        ax.annotate(
            words, (0, 1), xycoords="axes fraction", xytext=(0, 8 + 14 * line),
            textcoords="offset points", color=MUTED if words == note else INK, fontsize=9.5,
        )  # fmt: skip


def _end_labels(fig: Any, ax: Any, series: Mapping[str, Line]) -> None:
    """Names at the right ends, pushed apart where they would touch."""
    fig.draw_without_rendering()
    to_points = 72 / fig.dpi
    ends = []
    for index, (name, (xs, ys)) in enumerate(series.items()):
        last = max(range(len(xs)), key=lambda i: xs[i])
        height = ax.transData.transform((xs[last], ys[last]))[1] * to_points
        ends.append([height, height, xs[last], ys[last], name, COLOURS[index % 6]])
    ends.sort(key=lambda end: end[0])
    for _ in range(60):  # neighbours push each other until all are 13 points apart
        for lower, upper in pairwise(ends):
            push = 13 - (upper[1] - lower[1])
            if push > 0.1:
                lower[1] -= push / 2
                upper[1] += push / 2
    right = max(end[2] for end in ends)
    for height, moved, x, y, name, colour in ends:
        shift = ax.transData.transform((right, y))[0] - ax.transData.transform((x, y))[0]
        near = shift * to_points < 60  # a line that ends early keeps its name at its end
        offset = (7 + (shift * to_points if near else 0), moved - height)
        direct_label(ax, x, y, name, colour, xytext=offset, fontweight="bold")


def _peak_labels(ax: Any, series: Mapping[str, Line]) -> None:
    ax.margins(y=0.16)
    ax.set_ylim(bottom=0)
    for index, (name, (xs, ys)) in enumerate(series.items()):
        top = max(range(len(ys)), key=lambda i: ys[i])
        options = {"xytext": (0, 6), "ha": "center", "va": "bottom", "fontweight": "bold"}
        direct_label(ax, xs[top], ys[top], name, COLOURS[index % 6], **options)


def _line_alt(series: Mapping[str, Line], x: str, y: str, title: str) -> str:
    parts = []
    for name, (xs, ys) in series.items():
        order = sorted(range(len(xs)), key=lambda i: xs[i])
        first, last = order[0], order[-1]
        start = f"{cell(ys[first])} at {cell(xs[first])}"
        said = f"{name}: {start} to {cell(ys[last])} at {cell(xs[last])}"
        peak = max(order, key=lambda i: ys[i])
        if peak not in (first, last) and ys[peak] > max(ys[first], ys[last]):
            said += f", at most {cell(ys[peak])} at {cell(xs[peak])}"
        parts.append(said)
    head = f"{title}. " if title else ""
    return f"{head}Line plot of {y} over {x}. " + "; ".join(parts) + "."


def _line_table(series: Mapping[str, Line], x: str, most: int = 12) -> list[tuple]:
    every = sorted({v for xs, _ in series.values() for v in xs})
    if len(every) > most:  # evenly picked, the ends included
        every = [every[round(i * (len(every) - 1) / (most - 1))] for i in range(most)]
    maps = {name: dict(zip(xs, ys, strict=True)) for name, (xs, ys) in series.items()}
    return [(x, *series), *((v, *(maps[name].get(v) for name in series)) for v in every)]


def bar_plot(
    values: Mapping[str, float],
    unit: str = "",
    title: str = "",
    *,
    digits: int = 1,
    emphasis: Sequence[str] = (),
    note: str = "",
    caption: str = "",
    alt: str = "",
    show: bool = True,
) -> ShownPicture:
    """Horizontal bars with their values at them, from zero.

    values: name -> value, none negative. digits: decimals of the values. emphasis: names to draw
    in the strong colour (by default all). note: where it was measured. ValueError for no values.
    """
    if not values:
        raise ValueError("nothing to plot: give at least one name and its value")
    plain = {name: _plain(value) for name, value in values.items()}
    bad = {name: value for name, value in plain.items() if not value >= 0}
    if bad:
        raise ValueError(f"bars start at 0, so {bad} cannot be drawn")
    top = 16 + (28 if title else 0) + (24 if note else 0)
    label = 36 + 7.9 * max(len(n) for n in plain)
    d = Drawing(760, top + 34 * len(plain) + 14)
    if title:
        d.text(24, 32, title, 15, weight="700")
    if note:
        d.text(24, top - 12, note, 12, fill=MUTED)
    most = max(plain.values()) or 1
    wide = 760 - label - 140
    for line, (name, value) in enumerate(plain.items()):
        y = top + 34 * line + 6
        strong = not emphasis or name in emphasis
        d.text(
            label - 10, y + 16, name, 13.5, "end", weight="600" if strong and emphasis else "normal"
        )
        length = value / most * wide
        d.rect(label, y, max(length, 1), 22, "#1D5C63" if strong else "#A9CFCB", INK, 0.8)
        said = f"{value:,.{digits}f}" if isinstance(value, float) else f"{value:,}"
        d.text(label + length + 8, y + 16, f"{said} {unit}".strip(), 13.5, weight="600")
    d.line(label, top, label, d.height - 14, OUTLINE, 1.2)
    said = "; ".join(f"{name} {cell(value)} {unit}".strip() for name, value in plain.items())
    text = alt or f"{title + '. ' if title else ''}Bars: {said}."
    rows = [("", unit or "value"), *plain.items()]
    return ShownPicture(Picture(d.svg(text), text, caption, rows, _text_bars(plain)), show)


def _text_bars(values: Mapping[str, float], width: int = 40) -> str:
    most, name_width = max(values.values()) or 1, max(map(len, values))
    return "\n".join(
        f"{n:<{name_width}} {'#' * round(v / most * width)}" for n, v in values.items()
    )


def histogram(
    groups: Mapping[str, Sequence[float]],
    x: str,
    title: str = "",
    *,
    bins: int = 40,
    log: bool = False,
    note: str = "",
    caption: str = "",
    show: bool = True,
) -> ShownPicture:
    """Shares of values per bin as outlines, one for each group, with medians and 95th percentiles
    in the table. log: bins that grow by a constant factor (values below 1 count as 1)."""
    import numpy as np

    arrays = {name: np.asarray(list(values), dtype=float) for name, values in groups.items()}
    if not arrays or any(a.size == 0 for a in arrays.values()):
        raise ValueError("nothing to plot: every group needs at least one value")
    high = max(a.max() for a in arrays.values())
    low = min(a.min() for a in arrays.values())
    if log:
        edges = np.geomspace(max(low, 1), max(high, 2) * 1.0001, bins + 1)
        arrays = {name: np.maximum(a, 1) for name, a in arrays.items()}
    else:
        edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    series = {}
    for name, values in arrays.items():
        counts, _ = np.histogram(values, edges)
        series[name] = (list(edges), [*(counts / values.size * 100), 0])
    rows: list[tuple] = [("", "count", "mean", "median", "95 % below", "largest")]
    for name, values in arrays.items():
        numbers = (values.mean(), np.median(values), np.percentile(values, 95), values.max())
        rows.append((name, int(values.size), *(float(n) for n in numbers)))
    said = "; ".join(f"{r[0]}: median {cell(r[3])}, 95 % below {cell(r[4])}" for r in rows[1:])
    alt = f"{title + '. ' if title else ''}Histogram of {x}. {said}."
    plot = line_plot(
        series, x, "share of values per bin, %", title, log="x" if log else "", steps=True,
        marks=False, note=note, caption=caption, alt=alt, names_at="peak",
        show=False,
    )  # fmt: skip
    plot.picture.table = rows
    if show:
        plot.show()
    return plot
