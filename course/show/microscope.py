"""The address microscope: where the key of one token and one head lies, and who reads it.

address_microscope()
address_microscope("A", token=8, head=1)
address_microscope(tables={"A": [7, 1, 3]}, num_tokens={"A": 9}, shape=MODELS["SmolLM2-135M"])
"""

from collections.abc import Mapping, Sequence

from course.engine.block_table import blocks_needed
from course.show.display import Picture
from course.show.palette import ACCENT, INK, MUTED, OUTLINE, request_style
from course.show.slots import draw_slot
from course.show.svg import Drawing
from course.show.widget import Choice, Number, Widget
from course.sizing import ModelShape

# The running example a step after C's arrival: A has just taken its third block.
TABLES = {"A": [7, 1, 3], "B": [10, 14], "C": [12, 5]}
NUM_TOKENS = {"A": 9, "B": 5, "C": 6}
SMALL = ModelShape("small", 1, 6, 2, 8, 64)


class address_microscope(Widget):
    """Request, token and KV head -> logical block, physical block, row, slot, byte, program.

    tables, num_tokens: block tables and tokens written of each request. shape: the model whose
    layout is read (one layer of it: ``[num_blocks, block_size, num_kv_heads, head_dim]``).
    bytes_per_value: 2 for fp16. num_splits: programs that share a request's context (split-KV); 1:
    one program reads it all. tile: tokens that a program reads in one turn of its loop (``TILE`` of
    ``paged_decode_kernel``); None: a block. ValueError for a token that is not written or a head
    that is not there.
    """

    def __init__(
        self,
        request: str = "A",
        token: int = 8,
        head: int = 1,
        *,
        tables: Mapping[str, Sequence[int]] | None = None,
        num_tokens: Mapping[str, int] | None = None,
        shape: ModelShape = SMALL,
        block_size: int = 4,
        num_blocks: int = 16,
        bytes_per_value: int = 2,
        num_splits: int = 1,
        tile: int | None = None,
        show: bool = True,
    ):
        self.tables = {n: list(t) for n, t in (tables or TABLES).items()}
        self.num_tokens = dict(num_tokens or NUM_TOKENS)
        self.shape, self.block_size, self.num_blocks = shape, block_size, num_blocks
        self.bytes_per_value, self.num_splits = bytes_per_value, num_splits
        self.tile = block_size if tile is None else tile
        if num_splits < 1 or self.tile < 1:
            raise ValueError(f"num_splits {num_splits} and tile {tile} must be 1 or more")
        for name, table in self.tables.items():
            need = blocks_needed(self.num_tokens[name], block_size)
            if not 1 <= need <= len(table):
                raise ValueError(
                    f"{name} has {self.num_tokens[name]} tokens and {len(table)} blocks"
                )
        super().__init__({"request": request, "token": token, "head": head}, show)

    def controls(self) -> list:
        # a request that is not there is refused by its own control
        most = self.num_tokens.get(self.state["request"], 1) - 1
        return [
            Choice("request", "Request", list(self.tables), row=False),
            Number("token", "Token", 0, most),
            Number("head", "KV head", 0, self.shape.num_kv_heads - 1),
        ]

    def address(self) -> dict[str, int]:
        """Every number on the way from the token to its byte."""
        s, shape, size = self.state, self.shape, self.block_size
        logical, row = divmod(s["token"], size)
        block = self.tables[s["request"]][logical]
        slot = block * size + row
        element = (slot * shape.num_kv_heads + s["head"]) * shape.head_dim
        # As paged_decode_kernel deals out a context: in whole tiles, evenly, the last may get less.
        tiles = -(-self.num_tokens[s["request"]] // self.tile)
        split, turn = divmod(s["token"] // self.tile, -(-tiles // self.num_splits))
        return {
            "logical block": logical, "row in block": row, "physical block": block, "slot": slot,
            "first element": element, "first byte": element * self.bytes_per_value,
            "bytes": shape.head_dim * self.bytes_per_value,
            "sequence": list(self.tables).index(s["request"]), "KV head": s["head"],
            "split": split, "turn of its loop": turn,
        }  # fmt: skip

    def draw(self) -> Picture:
        a, s = self.address(), self.state
        look = request_style(s["request"])
        d = Drawing(760, 430)
        self._logical(d, a, look)
        self._pool(d, a, look)
        self._row(d, a, look)
        self._program(d, a)
        alt = (
            f"Token {s['token']} of {s['request']}, KV head {s['head']}: logical block "
            f"{a['logical block']}, physical block {a['physical block']}, row {a['row in block']}, "
            f"slot {a['slot']}, bytes {a['first byte']} to {a['first byte'] + a['bytes'] - 1}; "
            f"read by program {self._program_words(a)}."
        )
        size, heads = self.block_size, self.shape.num_kv_heads
        block, row = a["physical block"], a["row in block"]
        caption = (
            f"{s['token']} = {a['logical block']} × {size} + {row}; entry {a['logical block']} of "
            f"the table is {block}; slot = {block} × {size} + {row} = {a['slot']}; byte = "
            f"({a['slot']} × {heads} + {s['head']}) × {self.shape.head_dim} × "
            f"{self.bytes_per_value} = {a['first byte']:,}."
        )
        rows = [("", "value"), *a.items()]
        return Picture(d.svg(alt), alt, caption, rows)

    def _logical(self, d: Drawing, a: dict, look) -> None:
        s, size = self.state, self.block_size
        table = self.tables[s["request"]]
        cell = min(34.0, 560 / (len(table) * size))
        d.text(24, 30, "1  the request's tokens", 13, fill=MUTED)
        d.text(24, 66, s["request"], 20, weight="700", fill=look.edge)
        for place, block in enumerate(table):
            x = 60 + place * (size * cell + 12)
            for row in range(size):
                token = place * size + row
                written = token < self.num_tokens[s["request"]]
                draw_slot(d, x + row * cell, 44, cell, "live" if written else "reserved",
                          s["request"], str(token) if written else "")  # fmt: skip
            here = place == a["logical block"]
            d.rect(x, 44, size * cell, cell, stroke=INK, stroke_width=1.4)
            d.rect(x + size * cell / 2 - 20, 84, 40, 22, "#FFFFFF", ACCENT if here else look.edge,
                   2.4 if here else 1.2, radius=4)  # fmt: skip
            d.text(x + size * cell / 2, 100, block, 13.5, "middle", INK, "600", mono=True)
            if here:
                mark = x + a["row in block"] * cell
                d.rect(mark, 44, cell, cell, stroke=ACCENT, stroke_width=3.4)
                self._link = x + size * cell / 2
        d.text(24, 100, "table", 12, fill=MUTED)

    def _pool(self, d: Drawing, a: dict, look) -> None:
        size, columns = self.block_size, 8
        cell = min(19.0, 690 / (columns * (size + 0.5)))
        owner = {b: n for n, t in self.tables.items() for b in t if b >= 0}
        y0 = 150
        # Its title keeps clear of the link, which comes down on the block.
        to_the_right = a["physical block"] % columns >= columns // 2
        at, side = (24, "start") if to_the_right else (736, "end")
        d.text(at, 144, "2  the pool, one layer's keys", 13, side, MUTED)
        for block in range(self.num_blocks):
            row, column = divmod(block, columns)
            x, y = 24 + column * cell * (size + 0.5), y0 + 10 + row * (cell + 24)
            name = owner.get(block, "")
            for inner in range(size):
                kind = "free"
                if name:
                    token = self.tables[name].index(block) * size + inner
                    kind = "live" if token < self.num_tokens[name] else "reserved"
                draw_slot(d, x + inner * cell, y, cell, kind, name)
            here = block == a["physical block"]
            d.rect(x, y, size * cell, cell, stroke=INK if name else OUTLINE, stroke_width=1.3)
            d.text(x, y + cell + 13, block, 11.5, weight="700" if here else "normal", mono=True)
            if here:
                mark = x + a["row in block"] * cell
                d.rect(mark, y, cell, cell, stroke=ACCENT, stroke_width=3.2)
                top = x + size * cell / 2
                start = self._link
                d.path(f"M{start:.1f},106 C{start:.1f},132 {top:.1f},124 {top:.1f},{y - 4:.1f}",
                       ACCENT, 1.8)  # fmt: skip
                d.arrow_head(top, y - 14, top, y - 2, ACCENT)

    def _row(self, d: Drawing, a: dict, look) -> None:
        """One slot, opened: its heads, with the bytes of each."""
        heads, y = self.shape.num_kv_heads, 292
        rows = -(-self.num_blocks // 8)
        y = max(y, 160 + rows * 44 + 30)
        d.text(24, y - 10, f"3  slot {a['slot']}, opened: one row per KV head", 13, fill=MUTED)
        wide = min(712 / heads, 240)
        each = a["bytes"]
        start = a["slot"] * heads * each
        for head in range(heads):
            x, here = 24 + head * wide, head == self.state["head"]
            fill, edge = (look.fill, ACCENT) if here else (look.tint, look.edge)
            d.rect(x, y, wide - 6, 40, fill, edge, 3 if here else 1)
            ink = look.on_fill if here else INK
            if wide > 110:
                d.text(x + 8, y + 17, f"head {head}: {self.shape.head_dim} values", 12.5, fill=ink)
                first = start + head * each
                said = f"bytes {first:,} to {first + each - 1:,}"
                d.text(x + 8, y + 33, said, 11.5, fill=ink, mono=wide > 200)
            else:
                d.text(x + wide / 2 - 3, y + 25, head, 13, "middle", ink)
        self._row_y = y

    def _program(self, d: Drawing, a: dict) -> None:
        y = self._row_y + 74
        group = self.shape.num_attention_heads // self.shape.num_kv_heads
        first = a["KV head"] * group
        heads = f"heads {first} to {first + group - 1}" if group > 1 else f"head {first}"
        d.text(24, y, "4  read by the Triton program", 13, fill=MUTED)
        ids = f"paged_decode_kernel ({a['sequence']}, {a['KV head']}, {a['split']})"
        d.text(24, y + 25, ids, 15, weight="600", mono=True)
        said = f"{self._program_words(a)}; once, for query {heads} of {self.state['request']}"
        d.text(24, y + 47, said, 12.5, fill=MUTED)

    def _program_words(self, a: dict) -> str:
        return (
            f"sequence {a['sequence']}, KV head {a['KV head']}, split {a['split']}, "
            f"turn {a['turn of its loop']} of its loop"
        )
