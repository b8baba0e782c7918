"""The live view of a widget, made of ipywidgets. The only module here that imports them."""

import asyncio
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from course.show.text import html_table
from course.show.widget import Choice, Live, Number, Press, Steps

if TYPE_CHECKING:
    from course.show.guesses import Guess
    from course.show.widget import Widget

SHOW, HIDE = "Show the values as a table", "Hide the table of values"
_PLAYING: set[asyncio.Task] = set()

# Nothing is animated: a picture stands until somebody moves it, or presses Play.
STYLE = """<style>
.{twin} {{ display: none }}
.course-live button:focus-visible, .course-live select:focus-visible,
.course-live input:focus-visible {{ outline: 3px solid #C2570C; outline-offset: 1px }}
.course-live .widget-html-content {{ line-height: 1.45 }}
.course-live .widget-dropdown > select {{ appearance: auto; background-image: none }}
</style>"""


def build(widget: "Widget") -> Live:
    """Make the ipywidgets of a widget and wire them to ``set`` and ``press``."""
    live = Live(box=None)
    rows = []
    for control in widget.controls():
        rows += _parts(widget, control, live)
    live.picture = ipywidgets.HTML(widget.picture.html(live=True, folds=False))
    style = ipywidgets.HTML(STYLE.format(twin=widget.twin_class()))
    bar = ipywidgets.HBox(
        rows,
        layout=ipywidgets.Layout(flex_flow="row wrap", align_items="center", max_width="780px"),
    )
    live.box = ipywidgets.VBox([style, bar, live.picture, *_values(widget, live)])
    live.box.add_class("course-live")
    return live


def _values(widget: "Widget", live: Live) -> list:
    """The table under the picture. A fold inside the picture would close at each change of it."""
    if not widget.picture.table:
        return []
    # Its words change with it: this button of ipywidgets tells no reader whether it is down.
    plain = ipywidgets.Layout(width="auto", align_self="flex-start")
    button = ipywidgets.Button(description=SHOW, layout=plain)
    live.parts["values"], live.table = button, ipywidgets.HTML()
    live.table.layout.display = "none"

    def turn(_: ipywidgets.Button) -> None:
        button.description = HIDE if button.description == SHOW else SHOW
        live.table.layout.display = "" if button.description == HIDE else "none"
        _fill_table(widget, live)

    button.on_click(turn)
    return [button, live.table]


def _fill_table(widget: "Widget", live: Live) -> None:
    if live.table is not None and live.parts["values"].description == HIDE:
        live.table.value = html_table(widget.picture.table)


def refresh(widget: "Widget") -> None:
    """Bring the ipywidgets in line with the state, and put up the new picture."""
    live = widget.live
    if live is None:
        return
    live.busy = True  # what is set here has not been moved by anybody
    try:
        for control in widget.controls():
            part, value = live.parts[control.name], widget.state.get(control.name)
            match control:
                case Choice():
                    pairs = control.pairs()
                    if [tuple(option) for option in part.options] != pairs:
                        part.options = pairs
                    part.disabled = not pairs
                    if pairs and part.value != value:
                        part.value = value
                case Number():
                    part.min, part.max = min(part.min, control.low), max(part.max, control.high)
                    part.value = value
                    part.min, part.max = control.low, control.high
                case Steps():
                    part.value = value
                    live.parts[control.name + " back"].disabled = value == 0
                    live.parts[control.name + " next"].disabled = value == control.last
    finally:
        live.busy = False
    live.picture.value = widget.picture.html(live=True, folds=False)
    _fill_table(widget, live)


def _observe(widget: "Widget", name: str, part: Any) -> None:
    def moved(change: dict) -> None:
        busy = widget.live is not None and widget.live.busy
        if not busy and change["new"] != widget.state[name]:
            widget.set(name, change["new"])

    part.observe(moved, "value")


def _parts(widget: "Widget", control: Any, live: Live) -> list:
    wide = {"description_width": "initial"}
    fit = ipywidgets.Layout(width="auto")
    match control:
        case Press():
            part = ipywidgets.Button(description=control.label, tooltip=control.tip, layout=fit)
            part.on_click(lambda _: widget.press(control.name))
            live.parts[control.name] = part
            return [part]
        case Choice():
            kind = ipywidgets.ToggleButtons if control.row else ipywidgets.Dropdown
            pairs = control.pairs()
            part = kind(options=pairs, description=control.label, style=wide, layout=fit)
            part.value = widget.state[control.name] if pairs else None
            part.disabled = not pairs
            if control.row:
                part.style.button_width = "auto"
        case Number():
            part = ipywidgets.BoundedIntText(
                value=widget.state[control.name], min=control.low, max=control.high,
                step=control.step, description=control.label, style=wide,
                layout=ipywidgets.Layout(width="190px"),
            )  # fmt: skip
        case Steps():
            return _steps(widget, control, live)
    live.parts[control.name] = part
    _observe(widget, control.name, part)
    return [part]


def _steps(widget: "Widget", control: Steps, live: Live) -> list:
    """Back, Next, Play and a number box. The player of ipywidgets has buttons without a name for a
    screen reader, so this one is a button with a word on it."""
    name, last = control.name, control.last
    wide = ipywidgets.Layout(width="72px")
    back = ipywidgets.Button(description="Back", layout=wide)
    forth = ipywidgets.Button(description="Next", layout=wide)
    play = ipywidgets.Button(description="Play", layout=wide)
    box = ipywidgets.BoundedIntText(
        value=widget.state[name], min=0, max=last, description=f"{control.label} (0 to {last})",
        style={"description_width": "initial"}, layout=ipywidgets.Layout(width="190px"),
    )  # fmt: skip

    def go(by: int, other: ipywidgets.Button) -> None:
        widget.set(name, max(0, min(widget.state[name] + by, last)))
        if widget.state[name] in (0, last):
            other.focus()  # the button just pressed goes off, and would take the focus with it

    back.on_click(lambda _: go(-1, forth))
    forth.on_click(lambda _: go(1, back))
    play.on_click(lambda _: _play(widget, control, play))
    back.disabled, forth.disabled = widget.state[name] == 0, widget.state[name] == last
    live.parts |= {name: box, name + " back": back, name + " next": forth, name + " play": play}
    _observe(widget, name, box)
    return [back, forth, play, box]


def _play(widget: "Widget", control: Steps, button: Any) -> None:
    """Start or stop the player: a task in the kernel's loop that takes one step at a time."""
    name = control.name
    if button.description == "Pause":
        button.description = "Play"
        return
    button.description = "Pause"
    if widget.state[name] == control.last:
        widget.set(name, 0)

    async def run() -> None:
        while button.description == "Pause" and widget.state[name] < control.last:
            await asyncio.sleep(control.interval_ms / 1000)
            if button.description == "Pause":  # it may have been stopped meanwhile
                widget.set(name, min(widget.state[name] + 1, control.last))
        button.description = "Play"

    task = asyncio.get_running_loop().create_task(run())
    _PLAYING.add(task)  # the loop keeps only a weak reference
    task.add_done_callback(_PLAYING.discard)


def guess_box(guess: "Guess") -> Live:
    """A button for each option, or a box for a number, and a line that says what is stored.

    Buttons rather than radio buttons: JupyterLab takes the arrow keys for itself while a cell is
    selected, and radio buttons cannot be chosen without them.
    """
    status = ipywidgets.HTML()
    title = ipywidgets.HTML(f"<strong>Your guess: {escape(guess.question)}</strong>")
    live = Live(None, {"status": status})

    def say(text: str) -> None:
        status.value = f'<span role="status" aria-live="polite">{escape(text)}</span>'

    def store(value: Any) -> None:
        try:
            if value not in (None, ""):
                guess.set(value)
            say(guess._status())
        except ValueError as error:
            say(str(error))
        for option in guess.options or ():
            mark = "\u2713 " if option == guess.value else ""
            live.parts[str(option)].description = f"{mark}{option}"

    if guess.options is None:
        answer = _number_box(guess, store)
        live.parts["guess"] = answer
    else:
        for option in guess.options:
            live.parts[str(option)] = ipywidgets.Button(layout=ipywidgets.Layout(width="auto"))
            live.parts[str(option)].on_click(lambda _, option=option: store(option))
        buttons = [live.parts[str(option)] for option in guess.options]
        answer = ipywidgets.HBox(buttons, layout=ipywidgets.Layout(flex_flow="row wrap"))
    store(guess.value)
    style = ipywidgets.HTML(STYLE.format(twin=guess.twin_class()))
    live.box = ipywidgets.VBox([style, title, answer, status])
    live.box.add_class("course-live")
    return live


def _number_box(guess: "Guess", store: Callable[[Any], None]) -> Any:
    label = f"A number, in {guess.unit}" if guess.unit else "A number"
    box = ipywidgets.Text(
        value="" if guess.value is None else f"{guess.value:g}",
        description=label,
        style={"description_width": "initial"},
        continuous_update=False,
        layout=ipywidgets.Layout(width="340px", max_width="100%"),
    )
    box.observe(lambda change: store(change["new"]), "value")
    return box
