"""What generating costs, token by token: which positions are computed in which step.

generation_work(prompt=7, output=21)
"""

from course.show.display import Picture, ShownPicture
from course.show.palette import INK, MUTED, request_style
from course.show.svg import Drawing

WIDTH, PANEL, LEFT = 760, 366, 30


def generation_work(prompt: int, output: int, name: str = "A", show: bool = True) -> ShownPicture:
    """A row for each step, a column for each position: without a cache and with one.

    prompt, output: tokens of the request. The last token is sampled and never computed, so there
    are ``output`` steps and ``prompt + output - 1`` positions. ValueError for counts below 1 or
    more than 40 positions, which nobody could count.
    """
    for what, count in (("prompt", prompt), ("output", output)):
        if count < 1:
            raise ValueError(f"{what}={count}: give at least 1")
    positions = prompt + output - 1
    if positions > 40:
        raise ValueError(f"{positions} positions: give a prompt and an output of 41 in all at most")
    without = [prompt + step for step in range(output)]
    with_cache = [prompt] + [1] * (output - 1)
    size = min(12.0, (PANEL - 80) / positions)
    d = Drawing(WIDTH, 84 + output * size)
    panels = (("without a cache", without), ("with a cache", with_cache))
    for index, (title, computed) in enumerate(panels):
        _panel(d, 20 + index * PANEL, title, computed, prompt, size, name)
    totals = [sum(computed) for _, computed in panels]
    said = (
        f"Request {name}, {prompt} prompt tokens and {output} output tokens, one row a step. "
        f"Without a cache each step computes all tokens so far, {without[0]} to {without[-1]}: "
        f"{totals[0]:,} in all. With a cache the first step computes {prompt} and each later one "
        f"computes 1: {totals[1]:,} in all."
    )
    rows = [
        ("", "without a cache", "with a cache"),
        ("tokens computed in step 1", prompt, prompt),
        (f"tokens computed in step {output}", without[-1], with_cache[-1]),
        ("tokens computed in all", *totals),
    ]
    caption = "Strong: computed in this step. Pale: keys and values read from the cache."
    return ShownPicture(Picture(d.svg(said), said, caption, rows, width=WIDTH), show)


def _panel(d: Drawing, x: float, title: str, computed: list[int], prompt, size, name) -> None:
    look, top, left = request_style(name), 58, x + LEFT
    d.text(x, 28, title, 15, weight="600")
    d.text(left, 50, "position", 11.5, fill=MUTED)
    for row, count in enumerate(computed):
        y, seen = top + row * size, prompt + row
        if row in (0, len(computed) - 1):
            d.text(left - 8, y + size - 1, row + 1, 11.5, "end", MUTED)
        for position in range(seen):
            is_new = position >= seen - count
            d.rect(
                left + position * size, y, size - 1.5, size - 1.5,
                look.fill if is_new else look.tint, look.edge if is_new else "", 0.6,
            )  # fmt: skip
    d.text(x, 50, "step", 11.5, fill=MUTED)
    end = top + len(computed) * size + 17
    d.text(left, end, f"{sum(computed):,} tokens computed", 13.5, fill=INK, weight="600")
