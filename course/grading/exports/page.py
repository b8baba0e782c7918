"""HTML pages that stand alone: no scripts, no fonts, nothing from elsewhere; light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from course.grading.exports.cells import OVERRIDES

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #ffffff; --soft: #595959;
  --line: #c4c4c4; --bar: #2f6f9f; --tint: #f1f4f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --paper: #17191c; --soft: #b4b4b4;
  --line: #4a4f55; --bar: #6fb1de; --tint: #22262b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
h3 { font-size: 1.05rem; margin-bottom: .3rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; max-width: 100%; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem .3rem 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; } th[scope="row"] { min-width: 9rem; }
td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
.bar { display: inline-block; height: .8em; background: var(--bar); }
.quiet { color: var(--soft); } .box { background: var(--tint); padding: .8rem 1rem; }
pre, code { font: .92em/1.45 ui-monospace, monospace; }
pre { background: var(--tint); padding: .7rem; overflow-x: auto; }
a { color: var(--bar); }
@media print { .wide { overflow: visible; } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def text(words: object) -> str:
    """Escaped; without characters that cannot stand in a page or turn its direction around."""
    clean = str(words).translate(OVERRIDES).encode("utf-8", "replace").decode()
    clean = "".join(c if c in "\n\t" or (ord(c) >= 32 and ord(c) != 127) else " " for c in clean)
    return escape(clean)


def name(words: object) -> str:
    """Somebody's name: its direction stays its own."""
    return f"<bdi>{text(words)}</bdi>"


def page(title: str, body: Iterable[str]) -> str:
    """A whole page. ``title`` is escaped, ``body`` is HTML."""
    inner = "\n".join(body)
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="robots" content="noindex">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{text(title)}</h1>\n{inner}\n</main>\n</body>\n</html>\n"
    )


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
) -> str:
    """Cells are HTML; the first of each row is its header. numbers: columns set to the right."""

    def kind(place: int) -> str:
        return ' class="number"' if place in numbers else ""

    top = "".join(f'<th scope="col"{kind(n)}>{text(h)}</th>' for n, h in enumerate(head))
    made = []
    for row in rows:
        cells = "".join(
            f'<th scope="row"{kind(n)}>{cell}</th>' if n == 0 else f"<td{kind(n)}>{cell}</td>"
            for n, cell in enumerate(row)
        )
        made.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="wide"><table><caption>{text(caption)}</caption>\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n" + "\n".join(made) + "\n</tbody></table></div>"
    )


def bar(share: float) -> str:
    """A bar whose number stands beside it in the table: for eyes only."""
    width = round(100 * max(0.0, min(1.0, share)), 1)
    return f'<span class="bar" aria-hidden="true" style="width: {width / 100 * 8:.2f}rem"></span>'
