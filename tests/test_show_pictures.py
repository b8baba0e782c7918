"""Pictures: what they say, that it is true, that it comes out the same every time."""

import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import course.show
from course.memory.ledger import Ledger
from course.show import (
    STYLE_FILE,
    bar_plot,
    block_grid,
    block_table_figure,
    figure,
    histogram,
    line_plot,
    new_figure,
    roofline,
    table,
    waste_ledger,
)
from course.show.display import Picture
from course.show.svg import Drawing
from course.show.text import as_rows, cell, text_table

TABLES, TOKENS = {"A": [7, 1], "B": [10], "C": [12, 5]}, {"A": 7, "B": 3, "C": 6}


def plain_figure():
    fig, ax = new_figure(4, 2)
    ax.plot([1, 2, 3], [1, 4, 9])
    return fig


PICTURES = {
    "figure": lambda: figure(plain_figure(), alt="Squares: from 1 to 9.", table={"1": 1, "3": 9},
                             show=False),
    "block_grid": lambda: block_grid(TABLES, TOKENS, show=False),
    "shared": lambda: block_grid({"A": [7, 1], "A/1": [7, 3]}, {"A": 7, "A/1": 7}, highlight=[3],
                                 show=False),
    "tables": lambda: block_table_figure(TABLES, TOKENS, follow="A", show=False),
    "window": lambda: block_table_figure({"A": [-1, 1, 3]}, {"A": 9}, show=False),
    "ledger": lambda: waste_ledger(Ledger(14, 41, 9, 0, 0), show=False),
    "ledgers": lambda: waste_ledger({"slab": Ledger(14, 41, 9, 0, 0),
                                     "paged": Ledger(20, 8, 0, 0, 36)}, show=False),
    "lines": lambda: line_plot({"slow": ([1, 2, 4], [1, 2, 4.5]), "fast": ([1, 2, 4], [1, 1, 1])},
                               "tokens", "ms", "Time", show=False),
    "log": lambda: line_plot({"a": ([1, 10, 100], [1, 50, 2])}, "n", "y", log="xy", show=False),
    "bars": lambda: bar_plot({"slab": 7.0, "paged": 30.42}, "requests", "Batch", show=False),
    "histogram": lambda: histogram({"chat": [1, 5, 9, 100]}, "tokens", log=True, show=False),
    "roofline": lambda: roofline({"decode": 1.0, "prefill": (512.0, 5e14)}, 989e12, 3.35e12, "H100",
                                 show=False),
}  # fmt: skip


class Images(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.found.append(dict(attrs))


@pytest.fixture(scope="module")
def shown():
    return {name: make() for name, make in PICTURES.items()}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_words_in_every_form(name, shown):
    bundle = shown[name].mimebundle()
    assert set(bundle) == {"text/html", "text/plain"}
    (image,) = Images(bundle["text/html"]).found
    assert len(image["alt"]) > 15
    assert image["alt"] in bundle["text/plain"]
    assert "<figcaption" in bundle["text/html"] or "<table" in bundle["text/html"]
    kind, data = image["src"].removeprefix("data:").split(";base64,")
    raw = b64decode(data)
    if kind == "image/png":
        assert raw[:4] == b"\x89PNG"
    else:
        assert kind == "image/svg+xml"
        root = ElementTree.fromstring(raw)  # well-formed, and with its name inside
        assert root.get("aria-label") == image["alt"]
        assert root.get("role") == "img"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_comes_out_the_same_every_time(name, shown):
    assert PICTURES[name]().mimebundle() == shown[name].mimebundle()


@pytest.mark.parametrize("name", [n for n in PICTURES if n not in ("figure",)])
def test_nothing_is_drawn_outside_its_card(name, shown):
    data = shown[name].picture.data
    if isinstance(data, bytes):
        return
    root = ElementTree.fromstring(data)
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter():
        for x, size, limit in (("x", "width", width), ("y", "height", height)):
            if element.tag.endswith("rect") and element.get(x):
                assert float(element.get(x)) >= -0.1
                assert float(element.get(x)) + float(element.get(size)) <= limit + 0.1
        if element.tag.endswith("text"):
            x, size = float(element.get("x")), float(element.get("font-size"))
            wide = 0.62 * size * len(element.text or "")  # a generous guess of its width
            start = {"start": x, "middle": x - wide / 2, "end": x - wide}[
                element.get("text-anchor")
            ]
            assert start >= -6, element.text
            assert start + wide <= width + 14, element.text
            assert size * 0.7 <= float(element.get("y")) <= height - 2


def test_alternative_texts_hold_the_key_values(shown):
    assert "A holds 7, 1 (7 tokens)" in shown["block_grid"].alt
    assert "11 free" in shown["block_grid"].alt
    assert "block 7 has 2 owners (A, A/1)".removeprefix("block ") in shown["shared"].alt
    assert "Pointed out: block 3" in shown["shared"].alt
    assert "A: tokens 7, table [7, 1]" in shown["tables"].alt
    assert "live 21.9 %" in shown["ledger"].alt
    assert "paged: live 31.2 %, reserved 12.5 %, free 56.2 %" in shown["ledgers"].alt
    assert "slow: 1 at 1 to 4.5 at 4" in shown["lines"].alt
    assert "at most 50 at 10" in shown["log"].alt
    assert "paged 30.42 requests" in shown["bars"].alt
    assert "median 7" in shown["histogram"].alt
    assert "ridge at 295.2 FLOP per byte" in shown["roofline"].alt
    assert "decode: 1.0 FLOP per byte, 3.35 TFLOP/s, bound by bandwidth" in shown["roofline"].alt


def test_a_block_given_back_is_named():
    assert "given back" in PICTURES["window"]().picture.text()


def test_a_bar_in_letters_has_the_length_of_the_pool():
    ledgers = [Ledger(1, 1, 1, 1, 1), Ledger(1 / 3, 1 / 3, 1 / 3, 0, 0), Ledger(0.1, 99.9, 0, 0, 0)]
    for ledger in ledgers:
        line = waste_ledger(ledger, show=False).picture.words.splitlines()[0]
        assert len(line[line.index("|") :]) == 52


def test_the_parts_of_a_bar_fill_it_exactly():
    data = waste_ledger(Ledger(14, 30, 9, 5, 6), show=False).picture.data
    rects = [e for e in ElementTree.fromstring(data).iter() if e.tag.endswith("rect")]
    bars = [e for e in rects if e.get("height") == "30" and e.get("stroke")]
    *parts, whole = bars
    assert len(parts) == 5
    edges = [float(e.get("x")) for e in parts] + [
        float(parts[-1].get("x")) + float(parts[-1].get("width"))
    ]
    assert edges[0] == pytest.approx(float(whole.get("x")), abs=0.02)
    assert edges[-1] == pytest.approx(float(whole.get("x")) + float(whole.get("width")), abs=0.02)
    for part, after in zip(parts, edges[1:], strict=True):
        assert float(part.get("x")) + float(part.get("width")) == pytest.approx(after, abs=0.02)


def test_lines_take_numpy_and_keep_numbers():
    shown = line_plot({"a": (np.array([1, 2]), np.array([3.0, 4.5]))}, "x", "y", show=False)
    assert shown.picture.table == [("x", "a"), (1, 3), (2, 4.5)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figure(plain_figure(), alt=" ", caption="x"), "needs alternative text"),
        (lambda: figure(plain_figure(), alt="x"), "key values"),
        (lambda: figure("no figure", alt="x", caption="y"), "wants a matplotlib figure, got str"),
        (lambda: block_grid({"A": [16]}), "A holds block 16; the pool has blocks 0 to 15"),
        (lambda: block_table_figure({}, {}), "no tables"),
        (lambda: block_table_figure(TABLES, TOKENS, follow="Z"), "follow is 'Z'"),
        (lambda: waste_ledger({}), "no ledger"),
        (lambda: waste_ledger([]), "history is empty"),
        (lambda: waste_ledger({"x": Ledger(0, 0, 0, 0, 0)}), "sums to 0"),
        (lambda: line_plot({}, "x", "y"), "at least one series"),
        (lambda: line_plot({"a": ([1], [1, 2])}, "x", "y"), "'a' has 1 x and 2 y"),
        (lambda: bar_plot({}), "at least one"),
        (lambda: bar_plot({"a": -1.0}), "bars start at 0"),
        (lambda: bar_plot({"a": float("nan")}), "bars start at 0"),
        (lambda: histogram({"a": []}, "x"), "at least one value"),
        (lambda: roofline({}, 1, 1, "x"), "no points"),
        (lambda: roofline({"a": 0}, 1, 1, "x"), "above 0"),
        (lambda: roofline({"a": 1}, 0, 1, "x"), "above 0"),
        (lambda: table([]), "at least one row"),
        (lambda: table([("a", "b"), (1,)]), "1 cells, the header"),
        (lambda: Drawing(9, 9).rect(0, 0, 1, 1, hatch="?"), "no hatch"),
        (lambda: Picture("<svg/>", "alt"), "key values"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_tables_read_alike_in_html_and_in_text():
    rows = [("policy", "batch", "fits"), ("slab", 7, True), ("paged", 30.417, False)]
    shown = table(rows, "Batches", show=False)
    text = shown.mimebundle()["text/plain"].splitlines()
    assert text[0] == "Batches"
    assert text[3:] == ["slab        7  yes", "paged   30.42  no"]
    for word in ("policy", "30.42", "yes", "Batches"):
        assert word in shown.html
    assert shown.html.count('scope="col"') == 3
    assert shown.html.count('scope="row"') == 2
    assert as_rows([{"a": 1, "b": None}])[1] == [["1", "–"]]
    assert text_table({"x": 1234567}).splitlines()[-1].endswith("1,234,567")
    assert table([("a",), ("<b>",)], show=False).html.count("&lt;b&gt;") == 1


def test_a_column_keeps_as_many_decimals_as_it_was_rounded_to():
    rows = as_rows([("rounded", "not"), (58.1, 0.5), (16.0, 0.25), (0.0, 0.0)])[1]
    assert rows == [["58.1", "0.50"], ["16.0", "0.25"], ["0.0", "0"]]


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (True, "yes"), (12345, "12,345"), (0.0001234, "0.000123"), (3.14159, "3.14"),
     (123.456, "123.5"), (12345.6, "12,346"), (float("nan"), "–"), ("x", "x"), (0.0, "0"),
     (58.1, "58.1"), (-0.5, "-0.5"), (16.0, "16.0"), (0.25, "0.25")],
)  # fmt: skip
def test_cells(value, said):
    assert cell(value) == said


def test_a_closed_figure_does_not_come_twice():
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    ax.plot([1, 2])
    number = fig.number
    figure(ax, alt="one to two", caption="1, 2", show=False)
    assert number not in plt.get_fignums()


PROBE = """
import sys
import course.show
from course.show import block_grid, memory_map, line_plot, figure, new_figure
assert not {"matplotlib", "ipywidgets", "torch", "triton"} & set(sys.modules), "imported too much"
block_grid({"A": [7, 1]}); memory_map(); line_plot({"a": ([1, 2], [1, 2])}, "x", "y")
figure(new_figure()[0], alt="empty", caption="nothing")
assert "matplotlib.pyplot" not in sys.modules
import matplotlib
matplotlib.use("svg")
line_plot({"a": ([1, 2], [1, 2])}, "x", "y")
print(matplotlib.get_backend())
before = matplotlib.rcParams["axes.facecolor"]
with course.show.style():
    assert matplotlib.rcParams["axes.facecolor"] != before
assert matplotlib.rcParams["axes.facecolor"] == before
"""


def test_nobodys_backend_is_touched():
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["svg"]


def test_the_style_file_is_there_and_sets_no_backend():
    with open(STYLE_FILE) as file:
        settings = [line for line in file if line.strip() and not line.startswith("#")]
    assert len(settings) > 20
    assert not any("backend" in line for line in settings)


def test_every_name_is_there_and_none_hides_behind_its_module():
    for name in course.show.__all__:
        thing = getattr(course.show, name)
        assert callable(thing) or isinstance(thing, str), name
    assert set(dir(course.show)) == set(course.show.__all__)
    with pytest.raises(AttributeError, match="memory_map"):
        _ = course.show.no_such_thing


def test_the_owners_of_a_block_do_not_run_into_its_number():
    """Three names are longer than a block: then their number stands there, the names in the alt."""
    few = block_grid({"A": [7], "B": [7]}, show=False).picture
    many = block_grid({"A": [7], "A/1": [7], "A/2": [7]}, show=False).picture
    assert "A + B: 2 owners" in few.data
    assert ">3 owners<" in many.data
    assert "A + A/1" not in many.data
    assert "7 has 3 owners (A, A/1, A/2)" in many.alt
