"""A pencil for small SVG pictures.

Pictures that move are drawn with this rather than with matplotlib: a drawing takes about a
millisecond, so a slider answers at once, and the same text is the live picture and its static twin.
"""

from hashlib import sha256
from html import escape

from course.show.palette import HAIRLINE, INK, MONO, MUTED, OUTLINE, PAPER, SANS

_STROKES = {  # name of a hatch -> the lines of one 8 x 8 tile
    "/": "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4",
    "\\": "M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4",
    "x": "M0,8 l8,-8 M0,0 l8,8",
    "-": "M0,4 h8",
    "|": "M4,0 v8",
    "+": "M0,4 h8 M4,0 v8",
    ".": "M4,3.4 v1.2",
    "o": "M2.6,4 a1.4,1.4 0 1 0 2.8,0 a1.4,1.4 0 1 0 -2.8,0",
    "*": "M4,2 v4 M2.3,3 l3.4,2 M2.3,5 l3.4,-2",
}


def number(value: float) -> str:
    """A coordinate, short and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Drawing:
    """A picture of ``width`` x ``height`` points on the course's light card.

    >>> d = Drawing(100, 40)
    >>> d.text(50, 25, "A", anchor="middle")
    >>> d.svg("the letter A").startswith("<svg")
    True
    """

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._parts: list[str] = []
        self._hatches: dict[tuple[str, str], str] = {}

    def rect(
        self, x, y, width, height, fill="none", stroke=None, stroke_width=1.0, radius=0.0,
        hatch="", hatch_colour=INK, dash="", opacity=1.0,
    ):  # fmt: skip
        """A box; ``hatch`` lays one of matplotlib's hatch names over its fill."""
        shape = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        if radius:
            shape += f' rx="{number(radius)}"'
        shade = f' fill-opacity="{number(opacity)}"' if opacity < 1 else ""
        edge = ""
        if stroke:
            edge = f' stroke="{stroke}" stroke-width="{number(stroke_width)}"'
            edge += f' stroke-dasharray="{dash}"' if dash else ""
        if hatch:  # the hatch lies between fill and edge
            self._parts.append(f'<rect {shape} fill="{fill}"{shade}/>' if fill != "none" else "")
            fill, shade = f"url(#{self._hatch(hatch, hatch_colour)})", ""
        self._parts.append(f'<rect {shape} fill="{fill}"{shade}{edge}/>')

    def text(
        self, x, y, text, size=14.0, anchor="start", fill=INK, weight="normal", mono=False,
        halo="", turn=0.0,
    ):  # fmt: skip
        """Words with their baseline at y; ``halo`` paints a rim of that colour around them."""
        extra = f' font-family="{MONO}"' if mono else ""
        if weight != "normal":
            extra += f' font-weight="{weight}"'
        if halo:
            extra += f' stroke="{halo}" stroke-width="4" paint-order="stroke"'
        if turn:
            extra += f' transform="rotate({number(turn)} {number(x)} {number(y)})"'
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" '
            f'text-anchor="{anchor}" fill="{fill}"{extra}>{escape(str(text))}</text>'
        )

    def line(self, x1, y1, x2, y2, stroke=OUTLINE, stroke_width=1.0, dash="", arrow=False):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path d="M{number(x1)},{number(y1)} L{number(x2)},{number(y2)}" fill="none" '
            f'stroke="{stroke}" stroke-width="{number(stroke_width)}"{dashes}/>'
        )
        if arrow:
            self.arrow_head(x1, y1, x2, y2, stroke)

    def path(self, d, stroke=OUTLINE, stroke_width=1.0, fill="none", dash=""):
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path d="{d}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{number(stroke_width)}"{dashes}/>'
        )

    def arrow_head(self, x1, y1, x2, y2, fill=OUTLINE, size=7.0):
        """The head of an arrow that comes from (x1, y1) and ends at (x2, y2)."""
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length * size, (y2 - y1) / length * size
        points = [
            (x2, y2),
            (x2 - dx - dy / 2, y2 - dy + dx / 2),
            (x2 - dx + dy / 2, y2 - dy - dx / 2),
        ]
        text = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._parts.append(f'<polygon points="{text}" fill="{fill}"/>')

    def _hatch(self, hatch: str, colour: str) -> str:
        key = (hatch[0], colour)
        if hatch[0] not in _STROKES:
            raise ValueError(f"no hatch {hatch!r}; there are {' '.join(_STROKES)}")
        return self._hatches.setdefault(key, f"@hatch-{len(self._hatches)}")

    def svg(self, alt: str) -> str:
        """The picture as SVG text with ``alt`` as its accessible name."""
        body = "".join(self._parts)
        tiles = []
        for (hatch, colour), name in self._hatches.items():
            wide = 2.2 if hatch == "." else 1.1
            tiles.append(
                f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
                f'<path d="{_STROKES[hatch]}" stroke="{colour}" stroke-width="{wide}" '
                f'fill="none"/></pattern>'
            )
        if tiles:
            body = "<defs>" + "".join(tiles) + "</defs>" + body
            # Two pictures on one page must not use each other's hatches: a name from the contents.
            prefix = "h" + sha256(body.encode()).hexdigest()[:8]
            body = body.replace("@hatch", prefix)
        label = escape(alt, quote=True)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
            f'viewBox="0 0 {number(self.width)} {number(self.height)}" '
            f'width="{number(self.width)}" height="{number(self.height)}" '
            f'style="display:block;max-width:100%;height:auto" font-family="{SANS}" fill="{INK}">'
            f'<rect x="0.5" y="0.5" width="{number(self.width - 1)}" '
            f'height="{number(self.height - 1)}" rx="8" fill="{PAPER}" stroke="{HAIRLINE}"/>'
            f"{body}</svg>"
        )


__all__ = ["HAIRLINE", "INK", "MUTED", "OUTLINE", "PAPER", "Drawing", "number"]
