"""The matplotlib style of the course, and figures that never touch anybody's backend.

    use_style()                           # once, in a notebook's first cell
    fig, ax = plt.subplots()              # with pyplot and the notebook's own backend
    fig, ax = new_figure()                # or without pyplot at all
    with style():                         # or for a few lines only

Neither chooses a backend: a script that imports this keeps the one it had.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course.show.palette import PAPER

STYLE_FILE = str(Path(__file__).with_name("course.mplstyle"))
LINE_STYLES = ("-", "--", "-.", ":", (0, (6, 2, 1.5, 2, 1.5, 2)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")


@contextmanager
def style():
    """Plots made inside look like the course's; the settings outside stay as they were."""
    import matplotlib.style

    with matplotlib.style.context(STYLE_FILE):
        yield


def use_style() -> None:
    """Every plot of this notebook or script from here on looks like the course's."""
    import matplotlib.style

    matplotlib.style.use(STYLE_FILE)


def new_figure(
    width: float = 7.6, height: float = 3.7, columns: int = 1, rows: int = 1, **kwargs: Any
) -> tuple[Any, Any]:
    """A matplotlib figure and its axes (one, or an array of them) in the course's style.

    Sizes in inches; 7.6 fills a notebook page. It does not appear by itself: hand it to
    ``figure(fig, alt=..., caption=...)``. Other arguments go to ``Figure.subplots``.
    """
    with style():
        from matplotlib.figure import Figure as MplFigure

        fig = MplFigure(figsize=(width, height))
        return fig, fig.subplots(rows, columns, **kwargs)


def direct_label(ax: Any, x: float, y: float, text: str, colour: str, **kwargs: Any) -> None:
    """Words at a line's end instead of a legend: the eye need not go back and forth."""
    from matplotlib.patheffects import withStroke

    options = {"xytext": (7, 0), "va": "center", "ha": "left", "fontsize": 10} | kwargs
    options["path_effects"] = [withStroke(linewidth=3, foreground=PAPER)]
    ax.annotate(
        text, (x, y), textcoords="offset points", color=colour, annotation_clip=False, **options
    )
