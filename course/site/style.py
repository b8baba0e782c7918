"""The look of the pages: the palette of the figures as CSS variables, light and dark, and the
colours of code. tests/test_site_style.py holds each pair of colours to its contrast."""

from __future__ import annotations

from pathlib import Path

from course.show.palette import ACCENT, HAIRLINE, INK, MONO, MUTED, OUTLINE, PAPER, SANS

LIGHT = {
    "page": "#FFFFFF",
    "card": PAPER,
    "ink": INK,
    "muted": MUTED,
    "line": HAIRLINE,
    "edge": OUTLINE,
    "accent": ACCENT,
    "mark": "#F3E6D3",  # behind "you are here" and what was searched
    "code": "#F4F2EC",
    "comment": "#5C6169",
    "keyword": "#004488",
    "string": "#7A4A06",
    "number": "#882255",
    "name": "#0F5257",
    "error": "#9C1F2E",
}
DARK = {
    "page": "#14171B",
    "card": "#1C2026",
    "ink": "#E8E6DF",
    "muted": "#ABB1BA",
    "line": "#363C45",
    "edge": "#8A919C",
    "accent": "#F0A77C",
    "mark": "#3A2C20",
    "code": "#1B1F25",
    "comment": "#A0A7B1",
    "keyword": "#8EBBF0",
    "string": "#E6C07A",
    "number": "#EFA3C4",
    "name": "#86CFC8",
    "error": "#F29AA2",
}
# Pygments' classes of Python, by what they are.
TOKENS = {
    "comment": ("c", "c1", "ch", "cm", "cs", "sd"),
    "keyword": ("k", "kn", "kc", "kd", "kr", "ow", "nd", "bp"),
    "string": ("s", "s1", "s2", "sa", "sb", "si", "se", "sr", "ss", "dl"),
    "number": ("m", "mi", "mf", "mh", "mo", "il"),
    "name": ("nb", "nf", "nc", "ne", "fm", "nn"),
    "error": ("err", "gr", "gt"),
}
ASSETS = Path(__file__).parent / "assets"


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"  --{name}: {colour};\n" for name, colour in colours.items())


def sheet() -> str:
    """The whole style sheet."""
    light, dark = _variables(LIGHT), _variables(DARK)
    parts = [
        f":root {{\n  color-scheme: light;\n  --sans: {SANS};\n  --mono: {MONO};\n{light}}}\n",
        "@media screen and (prefers-color-scheme: dark) {\n"
        f":root:not([data-theme=light]) {{\n  color-scheme: dark;\n{dark}}}\n}}\n",
        f"@media screen {{\n:root[data-theme=dark] {{\n  color-scheme: dark;\n{dark}}}\n}}\n",
    ]
    for name, classes in TOKENS.items():
        chosen = ", ".join(f"code .{c}" for c in classes)
        parts.append(f"{chosen} {{ color: var(--{name}) }}\n")
    parts.append("code .k, code .kn, code .ow { font-weight: 600 }\n")
    return "".join(parts) + (ASSETS / "site.css").read_text(encoding="utf-8")
