"""Tables and folds, each as HTML and as plain text that says the same."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

Rows = Sequence[Sequence[object]]


def cell(value: object, tenths: bool | None = None) -> str:
    """A value as a table shows it: 12,345 and 3.14, yes and no, a dash for nothing.

    A float that was rounded to one decimal keeps one: 58.1, not 58.10, which would promise more
    than is known. tenths: whether to do so; None: as the value itself has it.
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value != value:
            return "–"
        size = abs(value)
        if size >= 1000:
            return f"{value:,.0f}"
        if size >= 100 or (size and in_tenths([value]) if tenths is None else tenths):
            return f"{value:.1f}"
        return f"{value:.2f}" if size >= 0.01 else f"{value:.3g}"
    return str(value)


def in_tenths(values: Iterable[object]) -> bool:
    """Whether all floats among these have at most one decimal."""
    return all(round(v, 1) == v for v in values if isinstance(v, float) and v == v)


def as_rows(table: Mapping | Rows) -> tuple[list[str], list[list[str]], list[bool]]:
    """(header, rows, which columns are numbers) of a mapping name -> value, a list of mappings, or
    a list of sequences whose first is the header."""
    if isinstance(table, Mapping):
        table = [("", "value"), *table.items()]
    table = list(table)
    if not table:
        raise ValueError("a table needs at least one row, got none")
    if isinstance(table[0], Mapping):
        keys = list(table[0])
        table = [keys, *([dict(row).get(key) for key in keys] for row in table)]  # type: ignore
    header, *body = [list(row) for row in table]
    for row in body:
        if len(row) != len(header):
            raise ValueError(
                f"row {row!r} has {len(row)} cells, the header {header!r} {len(header)}"
            )
    numeric = [
        bool(body)
        and all(isinstance(r[i], int | float) or r[i] is None for r in body)
        and not any(isinstance(r[i], bool) for r in body)
        for i in range(len(header))
    ]
    tenths = [in_tenths(row[i] for row in body) for i in range(len(header))]
    shown = [[cell(v, t) for v, t in zip(row, tenths, strict=True)] for row in body]
    return [str(h) for h in header], shown, numeric


def text_table(table: Mapping | Rows) -> str:
    """The table in aligned columns, numbers to the right."""
    header, body, numeric = as_rows(table)
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]

    def line(row: list[str]) -> str:
        cells = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, body)])


def html_table(table: Mapping | Rows, caption: str = "") -> str:
    """The table as HTML that needs no style sheet: headers with a scope, numbers to the right."""
    header, body, numeric = as_rows(table)
    sides = ["right" if right else "left" for right in numeric]

    def look(value: str, side: str, more: str = "") -> str:
        if len(value) <= 14 and (" " in value or "-" in value[1:]):  # "no guess" in one line
            more += ";white-space:nowrap"
        return f'align="{side}" style="text-align:{side};padding:2px 10px{more}"'

    def cells(row: list[str], tag: str, extra: str = "") -> str:
        return "".join(
            f"<{tag}{extra} {look(value, side)}>{escape(value)}</{tag}>"
            for value, side in zip(row, sides, strict=True)
        )

    head = cells(header, "th", ' scope="col"')
    if not header[0]:  # a corner without a word is no header
        head = (
            head.replace("<th", "<td", 1)
            .replace("</th>", "</td>", 1)
            .replace(' scope="col"', "", 1)
        )
    lines = []
    for row in body:
        plain = look(row[0], sides[0], ";font-weight:normal")
        first = f'<th scope="row" {plain}>{escape(row[0])}</th>'
        rest = "".join(
            f"<td {look(value, side)}>{escape(value)}</td>"
            for value, side in zip(row[1:], sides[1:], strict=True)
        )
        lines.append(f"<tr>{first}{rest}</tr>")
    title = ""
    if caption:
        whole = ";white-space:nowrap" if len(caption) <= 70 else ""  # may be wider than the table
        title = (
            f'<caption style="text-align:left;padding:2px 10px{whole}">{escape(caption)}</caption>'
        )
    return (
        f'<table style="border-collapse:collapse;margin:4px 0">{title}'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def fold(summary: str, inner_html: str, is_open: bool = False) -> str:
    """A part that unfolds on a click or on Enter, without any script."""
    state = " open" if is_open else ""
    return (
        f'<details{state} style="margin:4px 0"><summary style="cursor:pointer">'
        f"{escape(summary)}</summary>{inner_html}</details>"
    )
