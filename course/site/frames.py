"""Every position of a widget's main control as a picture, small enough to be sent with the page.

The pictures of one widget have most of their parts in common, so each part is stored once and a
picture is a list of part numbers: about a fifth of the size, and one line of JavaScript to read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from nbformat import NotebookNode

from course.show.display import Picture
from course.show.widget import Steps, Widget
from course.site import rerun

# The control that a page moves where a widget has several and none of them is a step.
MAIN = {"address_microscope": "token", "kv_calculator": "tokens", "limit_dial": "limit"}


@dataclass
class Film:
    """The positions of one widget. ``start``: the one that the page shows first."""

    label: str
    start: int
    names: list[str]
    pictures: list[Picture]

    def packed(self) -> dict:
        """As JSON: ``parts``, and for each position the numbers of its parts."""
        places: dict[str, int] = {}
        coded = [
            [places.setdefault(part, len(places)) for part in re.split(r"(?=<)", html) if part]
            for html in (picture.html(live=True) for picture in self.pictures)
        ]
        return {
            "label": self.label,
            "start": self.start,
            "names": self.names,
            "parts": list(places),
            "frames": coded,
        }


def film_of(widget: Widget) -> Film | None:
    """All positions of the widget's main control; None if it has none."""
    steps = [control for control in widget.controls() if isinstance(control, Steps)]
    name = steps[0].name if steps else MAIN.get(type(widget).__name__)
    if name is None:
        return None
    control = next(c for c in widget.controls() if c.name == name)
    frames = widget.frames(name)
    pictures = [picture for _, picture in frames]
    start = [_said(picture) for picture in pictures].index(_said(widget.picture))
    if len({picture.alt for picture in pictures}) == 1:
        # It tells of the whole run. What is true at this position, the sentence tells.
        pictures = [_with_alt(picture, f"{picture.alt} {picture.caption}") for picture in pictures]
    return Film(control.label, start, [label for label, _ in frames], pictures)


def _said(picture: Picture) -> tuple[str, str]:
    return escape(picture.alt, quote=True), escape(picture.caption)


def _with_alt(picture: Picture, alt: str) -> Picture:
    old, new = (f'aria-label="{escape(words, quote=True)}"' for words in (picture.alt, alt))
    return replace(picture, alt=alt, data=str(picture.data).replace(old, new, 1))


def films(book: NotebookNode, folder: Path) -> tuple[dict[str, Film], list[str]]:
    """Cell id -> film for each widget of a lesson, and why a widget has none.

    A film is taken only if it starts with the picture that the notebook stores: otherwise the
    notebook is older than the code, or something that the widget depends on was missed.
    """
    found: dict[str, Film] = {}
    notes: list[str] = []
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    for place, cell in enumerate(cells):
        if not rerun.makes_widget(cell.source):
            continue
        stored = "".join(o.get("data", {}).get("text/html", "") for o in cell.outputs)
        try:
            shown = rerun.run(rerun.needed([c.source for c in cells], place), folder)
        except Exception as error:  # what a lesson's code may raise: anything
            notes.append(f"{cell.id}: does not move: {type(error).__name__}: {error}")
            continue
        same = [w for w in shown if all(words in stored for words in _said(w.picture))]
        film = film_of(same[-1]) if same else None
        if film:
            found[cell.id] = film
        else:
            notes.append(f"{cell.id}: does not move: its picture is not the stored one; rebuild it")
    return found, notes


def script(page: str, found: dict[str, Film]) -> str:
    """The films of one page as JavaScript that any page may load, also from a folder on disk."""
    packed = json.dumps({cell: film.packed() for cell, film in found.items()}, ensure_ascii=False)
    packed = packed.replace("<", "\\u003c")  # keeps the file free of tags
    return f"(window.courseFilms = window.courseFilms || {{}})[{json.dumps(page)}] = {packed};\n"
