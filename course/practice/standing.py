"""Where a learner stands: one row for each exercise, from their own folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from course.practice import registry
from course.practice.my_engine import REMEDY, MyEngine

STATES = ("passed", "tried", "not yet")


@dataclass(frozen=True)
class Row:
    """One exercise. ``held`` of ``of`` behaviours held in the last check; ``tries``: checks."""

    id: str
    name: str
    title: str
    points: int
    state: str
    tries: int
    held: int
    of: int
    is_piece: bool
    changed: bool


class Progress:
    """The table; shows itself as text and as HTML."""

    def __init__(self, rows: list[Row], where: str):
        self.rows, self.where = rows, where

    @property
    def passed(self) -> list[Row]:
        return [row for row in self.rows if row.state == "passed"]

    def summary(self) -> str:
        pieces = [row for row in self.rows if row.is_piece]
        mine = [row for row in pieces if row.state == "passed"]
        points = sum(row.points for row in self.passed)
        return (
            f"{len(self.passed)} of {len(self.rows)} exercises passed, {points} of "
            f"{sum(row.points for row in self.rows)} points. "
            f"{len(mine)} of {len(pieces)} pieces of the engine are yours."
        )

    def cells(self) -> list[tuple[str, str, str, str]]:
        found = []
        for row in self.rows:
            state = row.state
            if row.state == "tried":
                state = f"tried: {row.held} of {row.of} behaviours"
            if row.state == "passed" and row.changed:
                state = "passed, then changed by hand"
            found.append((row.id, row.title, str(row.points), state))
        return found

    def text(self) -> str:
        head = ("", "exercise", "points", "where you are")
        table = [head, *self.cells()]
        widths = [max(len(line[i]) for line in table) for i in range(4)]
        lines = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip()
            for a, b, c, d in table
        ]
        return "\n".join([*lines, "", self.summary(), self.place()])

    def place(self) -> str:
        """Where it is saved, or was looked for."""
        where = Path(self.where)
        if where.is_dir():
            return f"Saved in {where}"
        if where.exists():
            return f"{where} is a file and no folder: nothing can be saved. {REMEDY}."
        return f"Nothing is saved yet; looked in {where}"

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th scope="col" style="text-align:left">{t}</th>'
            for t in ("Lab", "Exercise", "Points", "Where you are")
        )
        body = "".join(
            '<tr><th scope="row">{}</th><td style="text-align:left">{}</td><td>{}</td>'
            '<td style="text-align:left">{}</td></tr>'.format(*map(escape, cells))
            for cells in self.cells()
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(self.summary())} {escape(self.place())}.</p>"
        )

    def as_dict(self) -> dict:
        return {"folder": self.where, "exercises": [asdict(row) for row in self.rows]}


def progress(engine: MyEngine | None = None) -> Progress:
    """Where you stand in the labs."""
    engine = engine or MyEngine()
    last: dict[str, dict] = {}
    tries: dict[str, int] = {}
    ever: set[str] = set()
    for entry in engine.journal():
        key = str(entry.get("key"))
        last[key] = entry
        if entry.get("passed"):
            ever.add(key)
        tries[key] = tries.get(key, 0) + 1
    rows = []
    for exercise in registry.every():
        piece = engine.piece(exercise.key)
        entry = last.get(exercise.key, {})
        state = "tried" if entry else "not yet"
        if piece or exercise.key in ever:
            state = "passed"
        held, of = entry.get("held", 0), entry.get("of", len(exercise.probes))
        rows.append(
            Row(
                exercise.id,
                exercise.name,
                exercise.title,
                exercise.points,
                state,
                tries.get(exercise.key, 0),
                held,
                of,
                exercise.piece,
                bool(piece and piece.changed),
            )
        )
    return Progress(rows, str(engine.where))
