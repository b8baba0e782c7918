"""Make stored outputs the same on every run: keep what a reader sees, drop what only differs."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

WIDGET = "application/vnd.jupyter.widget-view+json"
# The chunks of a PNG that draw. The rest names programs, versions and times.
DRAWING = {b"IHDR", b"PLTE", b"tRNS", b"pHYs", b"IDAT", b"IEND"}
PNG_IN_HTML = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=]+)")
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def normalise(outputs: list[NotebookNode], root: Path) -> tuple[list[NotebookNode], list[str]]:
    """The outputs to store, and what is wrong with them (warnings, addresses, widgets untagged).

    ``root``: the folder of the course on this machine, which must not be seen in a notebook.
    """
    kept: list[NotebookNode] = []
    notes: list[str] = []
    for output in outputs:
        output = NotebookNode(output)
        kind = output.output_type
        if kind == "stream":
            text = finished_lines(output.text)
            if output.name == "stderr" and re.search(r"\w*Warning\b", text):
                notes.append(f"a warning was printed: {text.strip().splitlines()[0]}")
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text = finished_lines(kept[-1].text + output.text)
                continue
            output.text = text
        elif kind == "error":
            # The frames hold paths and colour codes of this machine; name and message do not.
            output.traceback = [f"{output.ename}: {output.evalue}"]
        else:
            if WIDGET in output.data:
                notes.append("widget")
                del output.data[WIDGET]
                # What is left of a bare widget is its repr, which tells a reader nothing.
                if not set(output.data) - {"text/plain"}:
                    continue
            if "image/png" in output.data:
                output.data["image/png"] = plain_png(output.data["image/png"])
            if "text/html" in output.data:
                output.data["text/html"] = PNG_IN_HTML.sub(
                    lambda found: found[1] + plain_png(found[2]), output.data["text/html"]
                )
            output.metadata = NotebookNode(
                {k: v for k, v in output.metadata.items() if k in output.data}
            )
        kept.append(output)
    return [_without_root(output, str(root)) for output in kept], notes


def finished_lines(text: str) -> str:
    """What a terminal shows in the end: a carriage return writes over its line."""
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def plain_png(encoded: str) -> str:
    """A base64 PNG without the chunks that do not draw."""
    data = base64.b64decode(encoded)
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return encoded
    out, at = data[:8], 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if name in DRAWING:
            out += struct.pack(">I", length) + name + body
            out += struct.pack(">I", zlib.crc32(name + body))
        at += 12 + length
    return base64.b64encode(out).decode()


def _without_root(node: Any, root: str) -> Any:
    """Paths under the course's folder become relative to it."""
    if isinstance(node, str):
        return node.replace(root + "/", "").replace(root, ".")
    if isinstance(node, list):
        return [_without_root(item, root) for item in node]
    if isinstance(node, dict):
        return type(node)({key: _without_root(value, root) for key, value in node.items()})
    return node
