"""The roofline: how fast an operation can be, by how much it computes per byte it reads.

    roofline({"decode, batch 1": 1.0, "decode, batch 32": 32.0, "prefill, 1,024 tokens": 1024.0},
             peak_flops=989e12, bandwidth=3.35e12, device="H100 SXM, bf16, data sheet")

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from collections.abc import Mapping

from course.show.display import ShownPicture
from course.show.figures import figure
from course.show.palette import INK, MUTED
from course.show.plot_style import MARKERS, direct_label, new_figure, style
from course.show.plots import COLOURS, _heading
from course.show.text import cell

Point = float | tuple[float, float]


def roofline(
    points: Mapping[str, Point],
    peak_flops: float,
    bandwidth: float,
    device: str,
    title: str = "What bounds it: bandwidth or arithmetic",
    caption: str = "",
    show: bool = True,
) -> ShownPicture:
    """Operations under the roof of a device.

    points: name -> intensity in FLOP per byte (drawn on the roof, as the most it can reach), or
    (intensity, FLOP per second achieved). peak_flops: FLOP per second; bandwidth: bytes per second;
    device: what they belong to and where they come from. ValueError for values not above 0.
    """
    if not points:
        raise ValueError("no points: give at least one operation and its FLOP per byte")
    if not (peak_flops > 0 and bandwidth > 0):
        raise ValueError(f"peak {peak_flops} and bandwidth {bandwidth} must be above 0")
    ridge = peak_flops / bandwidth
    rows: list[tuple] = [("", "FLOP per byte", "FLOP/s", "of the roof, %", "bound by")]
    for name, point in points.items():
        intensity, reached = point if isinstance(point, tuple) else (point, None)
        if not intensity > 0 or (reached is not None and not reached > 0):
            raise ValueError(f"{name!r}: intensity and FLOP/s must be above 0, got {point!r}")
        roof = min(peak_flops, intensity * bandwidth)
        bound = "bandwidth" if intensity < ridge else "arithmetic"
        share = 100.0 if reached is None else reached / roof * 100
        rows.append((name, float(intensity), _si(reached or roof, "FLOP/s"), share, bound))
    with style():
        fig = _draw(points, peak_flops, bandwidth, ridge, device, title)
        said = "; ".join(
            f"{r[0]}: {cell(r[1])} FLOP per byte, {r[2]}, bound by {r[4]}" for r in rows[1:]
        )
        alt = (
            f"Roofline of {device}: {_si(bandwidth, 'B/s')}, {_si(peak_flops, 'FLOP/s')}, ridge at "
            f"{cell(float(ridge))} FLOP per byte. {said}."
        )
        return ShownPicture(
            figure(fig, alt=alt, caption=caption, table=rows, show=False).picture, show
        )


def _draw(points, peak_flops, bandwidth, ridge, device, title):
    fig, ax = new_figure(height=4.1)
    spots = [
        (p if isinstance(p, tuple) else (p, min(peak_flops, p * bandwidth)))
        for p in points.values()
    ]
    left = min([x for x, _ in spots] + [ridge / 64]) / 2
    right = max([x for x, _ in spots] + [ridge * 16]) * 2
    low = min([y for _, y in spots] + [left * bandwidth])
    ax.plot([left, ridge, right], [left * bandwidth, peak_flops, peak_flops], color=INK, lw=2)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(low / 2, peak_flops * 3)
    ax.axvline(ridge, color=MUTED, lw=1, ls=":")
    ax.annotate(
        f"ridge: {ridge:,.3g} FLOP per byte", (ridge, low / 2), xytext=(6, 8),
        textcoords="offset points", color=MUTED, fontsize=9.5,
    )  # fmt: skip
    ax.annotate(
        f"arithmetic: {_si(peak_flops, 'FLOP/s')}", (right, peak_flops), xytext=(-4, 10),
        textcoords="offset points", ha="right", fontsize=9.5,
    )  # fmt: skip
    middle = (left * ridge) ** 0.5
    ax.annotate(
        f"bandwidth: {_si(bandwidth, 'B/s')}", (middle, middle * bandwidth), xytext=(-6, 6),
        textcoords="offset points", ha="right", fontsize=9.5,
    )  # fmt: skip
    for index, (name, (x, y)) in enumerate(zip(points, spots, strict=True)):
        colour = COLOURS[index % 6]
        ax.plot([x], [y], MARKERS[index % 6], color=colour, ms=9, mec=INK, mew=0.8, zorder=3)
        beyond = x > (ridge * right) ** 0.5
        side = "right" if beyond else "left"
        place = {"xytext": (-9 if beyond else 10, -15), "ha": side, "va": "baseline"}
        direct_label(ax, x, y, name, colour, fontweight="bold", **place)
    ax.set_xlabel("FLOP per byte read (arithmetic intensity)")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    ax.yaxis.set_major_formatter(lambda value, _: _si(value, ""))
    ax.minorticks_off()
    _heading(ax, title, "FLOP per second", device)
    return fig


def _si(value: float, unit: str) -> str:
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}{unit}".strip()
    return f"{value:.3g} {unit}".strip()
