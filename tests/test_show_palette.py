"""The colours hold what they promise: contrast, colour-blindness, black and white."""

from itertools import combinations
from pathlib import Path

import pytest

from course.show import plots
from course.show.palette import (
    ACCENT,
    INK,
    MEMORY,
    MUTED,
    OUTLINE,
    PAPER,
    contrast,
    luminance,
    mix,
    request_style,
)

TWELVE = "ABCDEFGHIJKL"

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                   (0.004733, 0.691367, 0.303900)),
}  # fmt: skip


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
    assert luminance("#FF0000") == pytest.approx(0.2126)


@pytest.mark.parametrize("name", [*TWELVE, "v", "chat-7", 3, "B/1"])
def test_a_request_reads_on_its_colours(name):
    look = request_style(name)
    assert contrast(look.on_fill, look.fill) >= 4.5
    assert contrast(INK, look.tint) >= 4.5
    assert contrast(look.edge, PAPER) >= 3
    assert contrast(look.edge, "#FFFFFF") >= 3


def test_words_and_lines_read_on_the_card_and_on_white():
    for ground in (PAPER, "#FFFFFF"):
        for text in (INK, MUTED, ACCENT, *plots.COLOURS):
            assert contrast(text, ground) >= 4.5, text
        assert contrast(OUTLINE, ground) >= 3


@pytest.mark.parametrize("page", ["#FFFFFF", "#111111", "#212121"])
def test_the_card_brings_its_own_ground(page):
    """What is inside a card never meets the page; the card's light ground is there in any theme."""
    assert contrast(INK, PAPER) >= 4.5
    if luminance(page) < 0.5:
        assert contrast(PAPER, page) >= 3


def test_every_kind_of_memory_reads_and_has_more_than_a_colour():
    marks = [look.mark for look in MEMORY.values()]
    assert len(set(marks)) == len(marks)
    for look in MEMORY.values():
        assert contrast(look.on_fill, look.fill) >= 4.5
    # neighbours in a bar differ in lightness or in hatch, so that grey print keeps them apart
    for one, other in combinations(MEMORY.values(), 2):
        assert contrast(one.fill, other.fill) >= 1.5 or one.hatch != other.hatch


def _linear(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def _lab(rgb):
    x = 0.4124 * rgb[0] + 0.3576 * rgb[1] + 0.1805 * rgb[2]
    y = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]
    z = 0.0193 * rgb[0] + 0.1192 * rgb[1] + 0.9505 * rgb[2]

    def f(t):
        return t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116

    fx, fy, fz = f(x / 0.9505), f(y), f(z / 1.089)
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("kind", BLINDNESS)
def test_a_b_and_c_differ_for_every_eye(kind):
    seen = {}
    for name in "ABC":
        rgb = _linear(request_style(name).fill)
        seen[name] = _lab([max(0, sum(m * c for m, c in zip(row, rgb, strict=True)))
                           for row in BLINDNESS[kind]])  # fmt: skip
    for one, other in combinations(seen.values(), 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 20


def test_a_b_and_c_differ_in_black_and_white():
    for one, other in combinations("ABC", 2):
        assert contrast(request_style(one).fill, request_style(other).fill) >= 1.6


def test_the_same_name_always_looks_the_same():
    assert request_style("A") == request_style("A")
    assert request_style(0).fill == request_style("A").fill
    assert request_style("B/1").fill == request_style("B").fill
    assert request_style("v").fill != request_style("V").fill
    assert len({request_style(n).fill for n in TWELVE[:11]}) == 11


def test_a_colour_must_be_six_digits():
    with pytest.raises(ValueError, match="#RRGGBB"):
        contrast("red", "#FFFFFF")
    assert mix("#000000", "#FFFFFF", 0.5) == "#808080"


def test_the_style_file_uses_the_same_ink_and_paper():
    text = (Path(plots.__file__).parent / "course.mplstyle").read_text()
    for colour in (PAPER, INK, OUTLINE, *plots.COLOURS):
        assert colour[1:].upper() in text.upper()
