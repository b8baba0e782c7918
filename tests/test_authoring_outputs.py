"""Outputs as stored: what a reader sees stays, what only differs goes."""

import base64
import io
import zlib
from pathlib import Path

import pytest
from nbformat.v4 import new_output
from PIL import Image, PngImagePlugin

from course.authoring.outputs import WIDGET, finished_lines, normalise, plain_png

ROOT = Path("/place/of/course")


def test_streams_are_merged_and_progress_bars_end():
    outputs = [
        new_output("stream", name="stdout", text="a\n"),
        new_output("stream", name="stdout", text=" 0%\r"),
        new_output("stream", name="stdout", text="50%\r100%\n"),
        new_output("stream", name="stderr", text="note\n"),
    ]
    kept, notes = normalise(outputs, ROOT)
    assert [(o.name, o.text) for o in kept] == [("stdout", "a\n100%\n"), ("stderr", "note\n")]
    assert notes == []


def test_finished_lines_keep_windows_line_ends_readable():
    assert finished_lines("a\r\nb\rc\n") == "a\nc\n"


def test_a_warning_is_reported():
    _, notes = normalise(
        [new_output("stream", name="stderr", text="x.py:1: UserWarning: no")], ROOT
    )
    assert "UserWarning" in notes[0]


def test_a_widget_leaves_its_static_twin():
    bare = new_output("display_data", data={WIDGET: {"model_id": "r"}, "text/plain": "IntSlider()"})
    twin = new_output("display_data", data={WIDGET: {"model_id": "r"}, "text/html": "<p>map</p>"})
    kept, notes = normalise([bare, twin], ROOT)
    assert [dict(o.data) for o in kept] == [{"text/html": "<p>map</p>"}]
    assert notes == ["widget", "widget"]


def test_an_error_keeps_name_and_message_only():
    error = new_output("error", ename="OutOfBlocks", evalue="2 of 1", traceback=["/home/me/x.py"])
    kept, _ = normalise([error], ROOT)
    assert kept[0].traceback == ["OutOfBlocks: 2 of 1"]


def test_paths_become_relative_everywhere():
    data = {"text/plain": f"{ROOT}/a/b", "application/json": {"p": [f"{ROOT}/c"]}}
    kept, _ = normalise([new_output("display_data", data=data)], ROOT)
    assert kept[0].data == {"text/plain": "a/b", "application/json": {"p": ["c"]}}


@pytest.mark.parametrize("software", ["Matplotlib 3.11", "Matplotlib 3.12"])
def test_a_png_forgets_who_drew_it(software):
    info, file = PngImagePlugin.PngInfo(), io.BytesIO()
    info.add_text("Software", software)
    picture = Image.linear_gradient("L")
    picture.save(file, "PNG", pnginfo=info)
    encoded = base64.b64encode(file.getvalue()).decode()
    plain = plain_png(encoded)
    assert b"Matplotlib" not in base64.b64decode(plain)
    again = Image.open(io.BytesIO(base64.b64decode(plain)))
    assert again.tobytes() == picture.tobytes()
    assert zlib.crc32(base64.b64decode(plain_png(plain))) == zlib.crc32(base64.b64decode(plain))
    html = new_output(
        "display_data", data={"text/html": f'<img src="data:image/png;base64,{encoded}">'}
    )
    kept, _ = normalise([html], ROOT)
    assert kept[0].data["text/html"] == f'<img src="data:image/png;base64,{plain}">'
