"""What all widgets share: controls, a picture drawn from their state, and a static twin.

A widget is plain Python first: ``w.set("step", 3)`` and ``w.press("next")`` change its state and
redraw ``w.picture``, with no front end at all. In a notebook the same controls appear as ipywidgets
(native buttons, menus and number boxes, all reached with Tab and worked with Enter, Space and
arrows), and the picture is replaced at each change, in a few milliseconds.

Shown twice over: first the static twin (text/html and text/plain, the state at the time of the
call), then the live view, which hides the twin while it is alive. Where there is no live view, in a
stored notebook, on a page, in print, the twin remains. With ``COURSE_STATIC=1`` only the twin goes
out, and the output of a cell is the same in every run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from time import perf_counter
from typing import Any

from course.show.display import WIDGET_VIEW, Picture, Shown, has_widgets, static_only

RUN_ME = "This is the static picture of a figure that moves: run the cell to work its controls."
NO_WIDGETS = (
    "This is the static picture of a figure that moves: it needs ipywidgets in this kernel."
)


@dataclass
class Steps:
    """A position 0 .. last, with Back, Next, a number box and a player."""

    name: str
    last: int
    label: str = "Step"
    interval_ms: int = 900


@dataclass
class Choice:
    """One of several options: a menu, or buttons in a row (``row=True``). ``options`` is a list of
    values, of (label, value) pairs, or a function that gives one, asked again after each change."""

    name: str
    label: str
    options: Sequence | Callable[[], Sequence]
    row: bool = False

    def pairs(self) -> list[tuple[str, Any]]:
        options = self.options() if callable(self.options) else self.options
        return [o if isinstance(o, tuple) else (str(o), o) for o in options]


@dataclass
class Number:
    """A whole number in a range."""

    name: str
    label: str
    low: int
    high: int
    step: int = 1


@dataclass
class Press:
    """A button."""

    name: str
    label: str
    tip: str = ""


Control = Steps | Choice | Number | Press


@dataclass
class Live:
    """The ipywidgets of one live view: the box to show, the parts by name, picture and table."""

    box: Any
    parts: dict[str, Any] = field(default_factory=dict)
    picture: Any = None
    table: Any = None
    busy: bool = False


class Widget(Shown):
    """Base of the widgets. Each gives ``controls`` and ``draw``; one with buttons, ``pressed``."""

    def __init__(self, state: dict[str, Any], show: bool = True):
        self.state = state
        self.live: Live | None = None
        self.last_update_ms = 0.0
        for control in self.controls():
            if not isinstance(control, Press):
                self._check(control, state[control.name])
        self.picture = self.draw()
        self._twin = self.picture  # what is stored: the state at the time of the call
        if show:
            self.show()

    # -- what a subclass gives ------------------------------------------------------------------

    def controls(self) -> list[Control]:
        raise NotImplementedError

    def draw(self) -> Picture:
        raise NotImplementedError

    def pressed(self, name: str) -> None:
        raise ValueError(f"this widget has no button {name!r}")

    def story(self) -> list[tuple[int, str]]:
        """(step, what happens then) for the static twin: the whole of it in words."""
        return []

    # -- working it -----------------------------------------------------------------------------

    def set(self, name: str, value: Any) -> None:
        """Move a control. Raises ValueError for an unknown control or a value out of range."""
        self._check(self._control(name), value)
        self.state[name] = value
        self._redraw()

    def press(self, name: str) -> None:
        """Press a button."""
        control = self._control(name)
        if not isinstance(control, Press):
            raise ValueError(f"{name!r} is no button: use set({name!r}, value)")
        self.pressed(name)
        self._redraw()

    def frames(self, name: str) -> list[tuple[str, Picture]]:
        """(label, picture) for every position of one control, the state left as it was. With these
        a page without a kernel can move too."""
        control = self._control(name)
        match control:
            case Steps():
                values = [(str(i), i) for i in range(control.last + 1)]
            case Number():
                values = [(str(i), i) for i in range(control.low, control.high + 1, control.step)]
            case Choice():
                values = control.pairs()
            case _:
                raise ValueError(f"{name!r} is a button and has no positions")
        before, frames = dict(self.state), []
        for label, value in values:
            self.state |= before | {name: value}
            self._settle()
            frames.append((label, self.draw()))
        self.state.clear()
        self.state.update(before)
        return frames

    def _control(self, name: str) -> Control:
        for control in self.controls():
            if control.name == name:
                return control
        names = ", ".join(control.name for control in self.controls())
        raise ValueError(f"no control {name!r}; this widget has {names}")

    def _check(self, control: Control, value: Any) -> None:
        match control:
            case Steps():
                fits, wanted = _whole(value) and 0 <= value <= control.last, f"0 to {control.last}"
            case Number():
                fits = _whole(value) and control.low <= value <= control.high
                wanted = f"{control.low} to {control.high}"
            case Choice():
                values = [v for _, v in control.pairs()]
                fits, wanted = value in values or not values, f"one of {values}"
            case _:
                raise ValueError(f"{control.name!r} is a button: use press({control.name!r})")
        if not fits:
            raise ValueError(f"{control.label} must be {wanted}, got {value!r}")

    def _settle(self) -> None:
        """Where one control decides what another may be: bring the other back into its range."""
        for control in self.controls():
            match control:
                case Choice():
                    values = [value for _, value in control.pairs()]
                    if self.state[control.name] not in values:
                        self.state[control.name] = values[0] if values else None
                case Number():
                    value = max(control.low, min(self.state[control.name], control.high))
                    self.state[control.name] = value

    def _redraw(self) -> None:
        start = perf_counter()
        self._settle()
        self.picture = self.draw()
        if self.live is not None:
            from course.show.live import refresh

            refresh(self)
        self.last_update_ms = (perf_counter() - start) * 1000

    # -- showing it -----------------------------------------------------------------------------

    def twin_html(self) -> str:
        """The static twin."""
        picture = self._twin
        html = picture.html()
        key = sha256(html.encode()).hexdigest()[:10]
        steps = self.story()
        words = ""
        if steps:
            items = "".join(f'<li value="{step}">{escape(said)}</li>' for step, said in steps)
            words = (
                '<details style="margin:4px 0"><summary style="cursor:pointer">Every step in words'
                f"</summary><ol>{items}</ol></details>"
            )
        return (
            f'<div class="course-twin course-twin-{key}">{html}{words}'
            f"<p><em>{RUN_ME if has_widgets() else NO_WIDGETS}</em></p></div>"
        )

    def twin_class(self) -> str:
        key = sha256(self._twin.html().encode()).hexdigest()[:10]
        return f"course-twin-{key}"

    def mimebundle(self) -> dict[str, Any]:
        text = self._twin.text()
        steps = self.story()
        if steps:
            text += "\n\n" + "\n".join(f"{step:>3}. {said}" for step, said in steps)
        return {"text/html": self.twin_html(), "text/plain": text}

    def show(self) -> None:
        self._twin = self.picture
        super().show()
        if self._shown_at is None or static_only():
            return
        from IPython.display import publish_display_data

        bundle = self.make_live().box._repr_mimebundle_()
        publish_display_data({WIDGET_VIEW: bundle[WIDGET_VIEW]})

    def make_live(self) -> Live:
        """The live view as ipywidgets, made once."""
        if self.live is None:
            from course.show.live import build

            self.live = build(self)
        return self.live

    def __repr__(self) -> str:
        return self.mimebundle()["text/plain"]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
