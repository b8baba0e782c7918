"""One visual language for every figure, widget and print of the course.

Requests A, B and C have the three colours of Paul Tol's *high-contrast* scheme (blue, yellow, red;
https://sro.sron.nl/pault/), slightly darkened: they differ in lightness as well as in hue, so that
they survive every kind of colour-blindness and a black-and-white printer. Nothing is told by
colour alone: a slot carries its request's letter, a bar its hatch, and each kind of memory (live,
reserved, internal, external, free) a pattern of its own.

Every picture brings its own light card (``PAPER``), and so reads the same on a light and on a dark
page. Text that stands outside a picture takes the colour of the page.
"""

from dataclasses import dataclass

PAPER = "#FCFBF7"
INK = "#1F2328"
MUTED = "#565D67"
OUTLINE = "#6B727D"
HAIRLINE = "#D6D2C6"
ACCENT = "#8A3B12"

# Fonts that every system has one of; numbers in a table line up in the second.
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _channels(colour: str) -> tuple[int, int, int]:
    if len(colour) != 7 or colour[0] != "#":
        raise ValueError(f"colour {colour!r} is not of the form '#RRGGBB'")
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix(colour: str, other: str, share: float) -> str:
    """``colour`` with the given share (0 to 1) of ``other`` mixed in."""
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def luminance(colour: str) -> float:
    """Relative luminance, 0 for black to 1 for white (WCAG 2.1, definition of the term)."""
    linear = []
    for channel in _channels(colour):
        value = channel / 255
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1). Text wants 4.5, graphics want 3."""
    high, low = sorted((luminance(colour), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@dataclass(frozen=True)
class RequestStyle:
    """How one request looks: ``fill`` for what is written, ``tint`` for what is only held,
    ``on_fill`` for its letter, ``edge`` for outlines and ``hatch`` (matplotlib's name)."""

    name: str
    fill: str
    on_fill: str
    hatch: str

    @property
    def tint(self) -> str:
        return mix(self.fill, PAPER, 0.8)

    @property
    def edge(self) -> str:
        """The fill, darkened until a line of it stands out from the card (3:1)."""
        colour, share = self.fill, 0.0
        while contrast(colour, PAPER) < 3.6:
            share += 0.05
            colour = mix(self.fill, INK, share)
        return colour


# After the running example's three come eight from the same author's "muted" scheme.
_LOOKS = [
    ("#004488", "#FFFFFF", ""),
    ("#DDAA33", INK, "///"),
    ("#B04558", "#FFFFFF", "..."),
    ("#44AA99", INK, "xxx"),
    ("#7A4A8C", "#FFFFFF", "\\\\\\"),
    ("#88CCEE", INK, "++"),
    ("#117733", "#FFFFFF", "oo"),
    ("#CC9AA5", INK, "---"),
    ("#5B6270", "#FFFFFF", "|||"),
    ("#A3A64A", INK, "**"),
    ("#882255", "#FFFFFF", "//"),
]
_PASSER_BY = ("#C4C4C0", INK, "\\\\")


def request_style(name: object) -> RequestStyle:
    """The look of a request by its name: "A", "B", "C", ... or a number (0 is A, 1 is B).

    The same name looks the same everywhere. After the eleventh the colours repeat; the letter or
    number written in the slot tells the requests apart. Other names ("chat-7") are hashed, and
    small letters are passers-by: grey.
    """
    text = str(name)
    if len(text) == 1 and text.islower():
        return RequestStyle(text, *_PASSER_BY)
    if isinstance(name, int) and not isinstance(name, bool):
        index = name
    elif len(text) == 1 and text.isalpha():
        index = ord(text.upper()) - ord("A")
    elif text[:1].isalpha() and not text[1:2].isalnum():  # "B/1" is a child of B and looks like it
        index = ord(text[0].upper()) - ord("A")
    else:
        index = sum(ord(c) * (place + 1) for place, c in enumerate(text))
    return RequestStyle(text, *_LOOKS[index % len(_LOOKS)])


@dataclass(frozen=True)
class MemoryStyle:
    """How one kind of memory looks in a ledger: fill, hatch (matplotlib's name), its letter in
    text drawings, and the words that explain it."""

    name: str
    fill: str
    on_fill: str
    hatch: str
    mark: str
    meaning: str


MEMORY = {
    style.name: style
    for style in (
        MemoryStyle("live", "#1D5C63", "#FFFFFF", "", "#", "written by a running request"),
        MemoryStyle("reserved", "#A9CFCB", INK, "", "+", "held, will still be written"),
        MemoryStyle("internal", "#F3D9B1", INK, "///", "-", "held, never written"),
        MemoryStyle("external", "#E3B7A0", INK, "xxx", "x", "free, but useless to the next one"),
        MemoryStyle("free", "#FFFFFF", INK, "", ".", ""),
    )
}
