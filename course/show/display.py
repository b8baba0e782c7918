"""How a picture reaches its reader.

A picture goes out as ``text/html`` (an ``<img>`` with its data inside and its alternative text, a
sentence, a table that unfolds) and as ``text/plain`` that says the same in words. That one form
reads in JupyterLab, Notebook 7, VS Code, exported pages and code-hosting sites, trusted or not,
with or without a kernel; a console and a screen reader get the words.

Everything in ``course.show`` appears when it is called, like ``print``, so a trailing semicolon or
an assignment does not hide it; as the last expression of a cell it does not appear twice.

Set ``COURSE_STATIC=1`` to get static twins only: what is stored in a built notebook, what nbval
compares, what is printed.
"""

import os
import sys
from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from typing import Any

from course.show.palette import HAIRLINE
from course.show.text import fold, html_table, text_table

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def has_widgets() -> bool:
    """Whether ipywidgets is installed."""
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


def static_only() -> bool:
    """True where live widgets are not wanted (COURSE_STATIC=1) or ipywidgets is not installed."""
    return os.environ.get("COURSE_STATIC", "") not in ("", "0") or not has_widgets()


def _shell() -> Any:
    """The running IPython, or None in plain Python."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


class Shown:
    """Base of all that appears when made: knows its mimebundle and shows itself once a cell run."""

    _shown_at: int | None = None

    def mimebundle(self) -> dict[str, Any]:
        raise NotImplementedError

    def show(self) -> None:
        """Send it to the front end (nothing happens in plain Python)."""
        shell = _shell()
        if shell is None:
            return
        from IPython.display import publish_display_data

        self._shown_at = shell.execution_count
        publish_display_data(self.mimebundle())

    def _ipython_display_(self) -> None:
        shell = _shell()
        if shell is not None and shell.execution_count != self._shown_at:
            self.show()


@dataclass
class Picture:
    """One picture with all that is told about it.

    data: SVG text or PNG bytes. alt: the alternative text. caption: a sentence under it.
    table: key values, in any form that ``course.show.table`` takes. words: longer plain text, such
    as the picture drawn in letters, for consoles.
    """

    data: str | bytes
    alt: str
    caption: str = ""
    table: Any = None
    words: str = ""
    width: int | None = None
    more: list[tuple[str, str, str]] = field(default_factory=list)  # (summary, html, plain text)

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise ValueError("a picture needs alternative text: say in a sentence what it shows")
        if not self.caption.strip() and not self.table:
            raise ValueError("a picture needs its key values in words: give a caption or a table")

    def image(self, live: bool = False) -> str:
        """The picture alone. Live: SVG in the page, which changes without a flicker. Stored: an
        <img>, which survives where SVG in a page is taken out as unsafe."""
        if live and isinstance(self.data, str):
            return self.data
        if isinstance(self.data, str):
            raw, mime, edge = self.data.encode(), "image/svg+xml", ""
        else:
            raw, mime, edge = self.data, "image/png", f"border:1px solid {HAIRLINE};"
        width = f' width="{self.width}"' if self.width else ""
        return (
            f'<img src="data:{mime};base64,{b64encode(raw).decode()}" '
            f'alt="{escape(self.alt, quote=True)}"{width} '
            f'style="max-width:100%;height:auto;{edge}border-radius:8px">'
        )

    def html(self, live: bool = False, folds: bool = True) -> str:
        """Picture, sentence and folds."""
        parts = [self.image(live)]
        if self.caption:
            role = ' role="status" aria-live="polite"' if live else ""
            parts.append(
                f'<figcaption{role} style="margin:6px 2px">{escape(self.caption)}</figcaption>'
            )
        if self.table and folds:
            parts.append(fold("Values as a table", html_table(self.table)))
        parts += [fold(summary, inner) for summary, inner, _ in self.more]
        return f'<figure style="margin:6px 0;max-width:780px">{"".join(parts)}</figure>'

    def text(self) -> str:
        """The same in words."""
        parts = [f"[{self.alt}]", self.words, self.caption]
        if self.table:
            parts.append(text_table(self.table))
        parts += [plain for _, _, plain in self.more if plain]
        return "\n\n".join(part for part in parts if part)


class ShownPicture(Shown):
    """A picture that appears when made. ``.picture`` holds it."""

    def __init__(self, picture: Picture, show: bool = True):
        self.picture = picture
        if show:
            self.show()

    @property
    def alt(self) -> str:
        return self.picture.alt

    def mimebundle(self) -> dict[str, Any]:
        return {"text/html": self.picture.html(), "text/plain": self.picture.text()}

    def __repr__(self) -> str:
        return self.picture.text()
