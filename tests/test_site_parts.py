"""The parts of the site's build: colours, markdown, what a widget needs, films, a sheet."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.show import block_grid, memory_map, scheduler_timeline
from course.show.palette import contrast
from course.site import frames, notebook, rerun, style, summary
from course.site.markdown import Renderer

# ---- Colours ------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_words_and_lines_stand_out(theme):
    for ground in ("page", "card"):
        for ink in ("ink", "muted", "accent"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["edge"], theme[ground]) >= 3, ground
    for ink in ("ink", "comment", "keyword", "string", "number", "name", "error", "accent"):
        assert contrast(theme[ink], theme["code"]) >= 4.5, ink
    assert contrast(theme["ink"], theme["mark"]) >= 4.5


def test_both_themes_name_the_same_colours_and_the_sheet_uses_no_other():
    assert list(style.LIGHT) == list(style.DARK)
    sheet = style.sheet()
    used = set(re.findall(r"var\(--(\w+)\)", sheet))
    assert used <= {*style.LIGHT, "sans", "mono"}
    plain = (style.ASSETS / "site.css").read_text(encoding="utf-8")
    assert re.findall(r"#[0-9a-fA-F]{3,6}\b(?=[;\s])", plain) == []


# ---- Markdown -----------------------------------------------------------------------------------


def test_markdown_keeps_to_the_page():
    asked = []

    def resolve(target):
        asked.append(target)
        return None if target.startswith("../") else target.replace(".md", ".html")

    renderer = Renderer(resolve)
    html = renderer.render(
        "# The `pool`\n\n## Again\n\n## Again\n\n[a](b.md) [c](../d.py)\n\n"
        '<a id="kv"></a>\n\n## KV\n\n<a id="other"></a>\n\n## x\n\n'
        '<picture>\n<source srcset="s.md">\n</picture>\n\n'
        '| | n |\n|-|-|\n| x | 1 |\n\n<a href="e.md">e</a>\n\n```python\ndef f(): pass\n```'
    )
    assert [(level, part) for level, part, _ in renderer.headings] == [
        (1, "the-pool"), (2, "again"), (2, "again-1"), (2, "kv"), (2, "x")
    ]  # fmt: skip
    assert renderer.headings[0][2] == "The <code>pool</code>"
    assert '<a href="b.html">a</a> <span class="no-link">c</span>' in html
    assert '<a href="e.html">e</a>' in html
    assert html.count('id="kv"') == 1  # the heading's
    assert '<a id="other"></a>' in html
    assert 'srcset="s.html"' in html
    assert "<th></th>" not in html
    assert '<span class="k">def</span>' in html
    assert asked == ["b.md", "../d.py", "s.md", "e.md"]


# ---- The lines that a widget needs --------------------------------------------------------------

CELLS = [
    "import time\nfrom course.show import pool_film, table\nlog = []\nunused = time.sleep(0)",
    "size = 4\nother = 5\nstarted = time.time()",
    "def double(n):\n    return n * factor",
    "factor = 2\nlog.append(double(size))\ntable([('a', 'b'), (1, size)])",
    "print(size)\nsize += 1\nlog[0] = 7",
    "film = pool_film(log, step=size)",
]


def test_a_widget_gets_what_it_needs_and_no_more():
    code = rerun.needed(CELLS, 5)
    for line in ("log = []", "size = 4", "def double", "factor = 2", "log.append", "size += 1",
                 "log[0] = 7", "import pool_film"):  # fmt: skip
        assert line in code, line
    for line in ("unused", "other", "time.time", "print", "table([", "import time"):
        assert line not in code, line
    assert code.index("size = 4") < code.index("size += 1") < code.index("film =")


@pytest.mark.parametrize(
    ("code", "moves"),
    [
        ("memory_map(stream)", True),
        ("w = memory_map(stream)", True),
        ("print(1)", False),
        ("memory_map(stream, show=False)", False),
        ("waste_ledger({})", False),
        ("%timeit memory_map()", False),
    ],
)
def test_cells_whose_widget_moves(code, moves):
    assert rerun.makes_widget(code) is moves


def test_a_run_leaves_no_trace(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COURSE_STATIC", raising=False)
    show = rerun.widgets.Widget.show
    code = "from course.show import memory_map\nprint('x')\nmemory_map()\nmemory_map(show=False)"
    (widget,) = rerun.run(code, tmp_path)
    assert type(widget).__name__ == "memory_map"
    assert capsys.readouterr().out == ""
    with pytest.raises(ZeroDivisionError):
        rerun.run("1 / 0", tmp_path)
    assert rerun.widgets.Widget.show is show
    assert "COURSE_STATIC" not in rerun.os.environ


# ---- Films --------------------------------------------------------------------------------------


def lesson(code, shown):
    html = new_output("display_data", data={"text/html": shown, "text/plain": ""})
    return new_notebook(cells=[new_code_cell(code, id="figure", outputs=[html])])


def test_a_film_has_every_position_and_small_packing():
    widget = memory_map(show=False)
    film = frames.film_of(widget)
    assert film is not None
    packed = film.packed()
    htmls = ["".join(packed["parts"][i] for i in frame) for frame in packed["frames"]]
    assert htmls == [picture.html(live=True) for picture in film.pictures]
    assert sum(map(len, packed["parts"])) < sum(map(len, htmls)) / 2
    assert film.pictures[film.start].alt == widget.picture.alt


def test_a_figure_moves_only_from_the_picture_that_is_stored(tmp_path):
    code = "from course.show import memory_map\nmemory_map(step=2)"
    right = memory_map(step=2, show=False).twin_html()
    wrong = memory_map(step=3, show=False).twin_html()
    found, notes = frames.films(lesson(code, right), tmp_path)
    assert found["figure"].start == 2
    assert notes == []
    found, notes = frames.films(lesson(code, wrong), tmp_path)
    assert found == {}
    assert "not the stored one" in notes[0]
    found, notes = frames.films(lesson("memory_map(1 / 0)", right), tmp_path)
    assert found == {}
    assert "does not move" in notes[0]


def test_main_controls_are_there():
    assert set(frames.MAIN) <= rerun.MAKERS
    assert frames.film_of(scheduler_timeline(show=False)) is not None


# ---- Notebooks ----------------------------------------------------------------------------------


def test_cells_become_html():
    picture = block_grid({"A": [1]}, {"A": 2}, show=False).mimebundle()
    cells = [
        new_markdown_cell("# Title\n\n**You are here: x** · next\n\ntext", id="top"),
        new_code_cell("x = 1 < 2", id="code", outputs=[
            new_output("stream", text="a < b\n"),
            new_output("display_data", data=picture),
            new_output("error", ename="E", evalue="v", traceback=["E: <v>"]),
        ]),
        new_code_cell("check_yourself(1)", id="ask", metadata={"jupyter": {"source_hidden": True}}),
        new_markdown_cell("bye", id="end"),
    ]  # fmt: skip
    html = notebook.to_html(
        notebook.lesson(new_notebook(cells=cells)), Renderer(lambda target: target), {"code"}
    )
    assert "You are here" not in html
    assert "bye" not in html
    assert '<span class="o">&lt;</span>' in html
    assert "a &lt; b" in html
    assert "E: &lt;v&gt;" in html
    assert picture["text/html"] in html
    assert picture["text/plain"] not in html
    assert 'data-film="code"' in html
    assert "<summary>The code of these questions</summary>" in html


# ---- A sheet ------------------------------------------------------------------------------------


def test_what_is_worth_remembering_is_found():
    prose = [
        "Text\n\n    a = b\n\nmore `code`",
        "1. `x = 1`\n2. `y = 2`\n\n---\n\n1. words `z`\n2. `w`",
        "## Key takeaways\n\n- one\n- two",
    ]
    assert summary.formulas(prose) == ["```\na = b\n```", "1. `x = 1`\n2. `y = 2`"]
    assert summary.section(prose, "Key takeaways") == "- one\n- two"
    assert summary.section(prose, "Nothing") == ""
