"""``table``: a few rows of numbers, as HTML for the page and aligned text for the console.

table([("policy", "batch", "waste"), ("slab", 7, 0.80), ("paged", 30, 0.04)])
table({"bytes per token": 23_040, "tokens": 512})
"""

from typing import Any

from course.show.display import Shown
from course.show.text import html_table, text_table


class ShownTable(Shown):
    """A table that appears when made."""

    def __init__(self, rows: Any, caption: str = "", show: bool = True):
        self.html, self.text = html_table(rows, caption), text_table(rows)
        self.caption = caption
        if show:
            self.show()

    def mimebundle(self) -> dict[str, Any]:
        text = f"{self.caption}\n{self.text}" if self.caption else self.text
        return {"text/html": self.html, "text/plain": text}

    def __repr__(self) -> str:
        return self.mimebundle()["text/plain"]


def table(rows: Any, caption: str = "", show: bool = True) -> ShownTable:
    """Show rows of values: numbers to the right, thousands separated, yes and no for bools.

    rows: a mapping name -> value, a list of mappings (their keys are the header), or a list of
    sequences whose first is the header. Raises ValueError for no rows or rows of unequal length.
    """
    return ShownTable(rows, caption, show)
