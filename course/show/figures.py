"""``figure``: a matplotlib figure with alternative text and its key values in words.

fig, ax = new_figure()
ax.plot(lengths, times)
figure(fig, alt="Time per token over length: rises from 20 ms at 64 to 95 ms at 1,024 tokens.",
       table=[("length", "ms per token"), (64, 20.1), (1024, 95.3)])
"""

import sys
from io import BytesIO
from typing import Any

from course.show.display import Picture, ShownPicture
from course.show.plot_style import style


def figure(
    fig: Any,
    *,
    alt: str,
    table: Any = None,
    caption: str = "",
    show: bool = True,
) -> ShownPicture:
    """Show a matplotlib figure, with what a reader who does not see it needs.

    alt: one or two sentences that say what the plot shows, with its key values. table: the key
    values (a mapping, a list of mappings, or rows with a header), folded under the plot. caption:
    a sentence under it. One of table and caption must be given; ValueError otherwise.

    The stored output is an <img> with a PNG inside, the same bytes for the same plot and
    matplotlib. The figure is closed, so that no inline backend shows it again without its text.
    """
    if not hasattr(fig, "savefig"):
        fig = getattr(fig, "figure", fig)  # an axes will do
    if not hasattr(fig, "savefig"):
        raise ValueError(f"figure() wants a matplotlib figure, got {type(fig).__name__}")
    picture = Picture(png(fig), alt, caption, table, width=round(fig.get_size_inches()[0] * 100))
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(fig)
    return ShownPicture(picture, show)


def png(fig: Any) -> bytes:
    """The figure as PNG of at most 128 colours (a third of the size), without a date or a version
    inside. The backend stays as it is."""
    from PIL import Image

    raw, out = BytesIO(), BytesIO()
    with style():
        fig.savefig(raw, format="png")
    image = Image.open(raw).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(out, format="png", optimize=True)
    return out.getvalue()
