"""Read one lesson: a header of a few lines, then cells in jupytext's py:percent format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import jupytext
import yaml

# Anything else is a misspelling that would silently do nothing.
TAGS = {"nbval-ignore-output", "raises-exception"}
HEADER = re.compile(r"\A# ---\n(?P<yaml>(?:#.*\n)+?)# ---\n")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


class SourceError(ValueError):
    """A source that cannot be built: names the file, the cell and what to do."""


@dataclass
class Cell:
    """One cell as written: ``text`` still holds its ``{{ }}`` places."""

    id: str
    kind: str  # "markdown" or "code"
    text: str
    tags: list[str] = field(default_factory=list)


@dataclass
class Lesson:
    """One source file. ``number`` comes from the file's name: 04_block_tables.py is lesson 4."""

    path: Path
    number: int
    title: str
    summary: str
    minutes: int
    objectives: list[str]
    cells: list[Cell]
    digest: str
    needs: str = "CPU is enough"
    after: list[int] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def label(self) -> str:
        return f"{self.number:02d} {self.title}"


def slug(text: str) -> str:
    """Letters and digits of a heading, joined by hyphens, short enough for a cell id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:44].strip("-") or "part"


def read_header(path: Path) -> dict:
    """The header's fields, checked. Reads only the top of the file."""
    match = HEADER.match(path.read_text(encoding="utf-8"))
    if not match:
        raise SourceError(
            f"{path.name}: starts without a header. Begin with '# ---', fields, '# ---'."
        )
    try:
        fields = yaml.safe_load(re.sub(r"^# ?", "", match["yaml"], flags=re.MULTILINE))
    except yaml.YAMLError as error:
        raise SourceError(f"{path.name}: the header is not YAML: {error}") from error
    wanted = {"title": str, "summary": str, "minutes": int, "objectives": list}
    optional = {"needs": str, "after": list, "builds": list}
    if not isinstance(fields, dict):
        raise SourceError(f"{path.name}: the header holds no 'name: value' lines.")
    for name in fields:
        if name not in wanted | optional:
            known = ", ".join(wanted | optional)
            raise SourceError(f"{path.name}: unknown header field {name!r}. Known: {known}.")
    for name, kind in (wanted | optional).items():
        if name in wanted and name not in fields:
            raise SourceError(f"{path.name}: the header needs '{name}:'.")
        if name in fields and type(fields[name]) is not kind:
            got = f"{fields[name]!r} ({type(fields[name]).__name__})"
            raise SourceError(
                f"{path.name}: header field {name!r} is {got}, not a {kind.__name__}."
            )
    if not 2 <= len(fields["objectives"]) <= 5:
        raise SourceError(f"{path.name}: {len(fields['objectives'])} objectives; write 2 to 5.")
    return fields


def read_lesson(path: Path) -> Lesson:
    """Read and check one source; SourceError says what is wrong with it."""
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem):
        raise SourceError(
            f"{path.name}: a source is named NN_topic.py, such as 04_block_tables.py."
        )
    fields = read_header(path)
    text = path.read_text(encoding="utf-8")
    number = int(path.stem[:2])
    fields.setdefault("after", [number - 1] if number else [])
    notebook = jupytext.reads(HEADER.sub("", text).lstrip(), fmt="py:percent")
    return Lesson(
        path=path,
        number=number,
        cells=_cells(path, notebook.cells),
        digest=sha256(text.encode()).hexdigest(),
        **fields,
    )


def _cells(path: Path, raw_cells: list) -> list[Cell]:
    """Give every cell its id.

    An id is ``id="..."`` from the cell's first line or else section, kind and place in the section
    ("the-block-boundary-code-2"). So no edit of a text and no change in another section moves an
    id; a cell put in the middle of a section moves those of its kind after it, there only.
    """
    cells: list[Cell] = []
    section, counts, seen = "start", {}, set()
    for place, raw in enumerate(raw_cells, start=1):
        where = (
            f"{path.name}, cell {place} ({raw.source.strip().splitlines()[0][:50]!r})"
            if (raw.source.strip())
            else f"{path.name}, cell {place}"
        )
        if not raw.source.strip():
            raise SourceError(f"{where}: is empty.")
        if raw.cell_type not in ("markdown", "code"):
            raise SourceError(f"{where}: a {raw.cell_type} cell; write markdown or code.")
        tags = list(raw.metadata.get("tags", []))
        if unknown := set(tags) - TAGS:
            raise SourceError(f"{where}: unknown tag {sorted(unknown)}. Known: {sorted(TAGS)}.")
        if raw.cell_type == "markdown" and (heading := HEADING.search(raw.source)):
            section = slug(heading[1])
        kind = "text" if raw.cell_type == "markdown" else "code"
        counts[section, kind] = counts.get((section, kind), 0) + 1
        cell_id = raw.metadata.get("id") or f"{section}-{kind}-{counts[section, kind]}"
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell_id):
            raise SourceError(
                f"{where}: id {cell_id!r}; use up to 64 letters, digits, '-' and '_'."
            )
        if cell_id in seen:
            raise SourceError(f"{where}: a second cell with the id {cell_id!r}.")
        seen.add(cell_id)
        cells.append(Cell(cell_id, raw.cell_type, raw.source.rstrip(), tags))
    return cells
