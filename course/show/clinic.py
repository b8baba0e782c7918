"""The boundary clinic: when does a request take a new block? Step by step, guess by guess.

    boundary_clinic(block_size=4, tokens=range(6, 14));

Each token of a request goes through four phases. *Schedule*: the only one that may take a block.
*Write*: key and value of the newest token go to a slot. *Sample*: the model draws the next token,
a number without a slot. *Append*: the number joins the request's tokens. So the token that was
just sampled counts (``num_tokens``) before it is stored (``num_computed``), and its block is taken
one phase later than most people guess.
"""

from collections.abc import Sequence

from course.engine.block_table import blocks_needed, slot_mapping
from course.memory import example
from course.show.display import Picture
from course.show.palette import ACCENT, INK, MUTED, OUTLINE, PAPER, request_style
from course.show.slots import draw_slot
from course.show.svg import Drawing
from course.show.widget import Press, Steps, Widget

PHASES = ("schedule", "write", "sample", "append")
# Request A's blocks in the running example, in the order in which it takes them.
BLOCKS_OF_A = (7, 1, 3, 0, 2, 6, 13)


class boundary_clinic(Widget):
    """Step one request through schedule, write, sample, append; guess "new block now?".

    block_size: slots a block. tokens: the numbers of tokens of the request to go through, a range
    or list that rises by one. blocks: the ids it is given, in order. step: where to start. The two
    answer buttons store a guess for the next phase, take it, and say whether the guess was right.
    Raises ValueError for token counts that do not rise by one or exceed the blocks.
    """

    def __init__(
        self,
        block_size: int = example.BLOCK_SIZE,
        tokens: Sequence[int] = range(6, 14),
        *,
        name: str = "A",
        blocks: Sequence[int] = BLOCKS_OF_A,
        step: int = 0,
        show: bool = True,
    ):
        counts = list(tokens)
        if not counts or counts[0] < 1 or counts != list(range(counts[0], counts[0] + len(counts))):
            raise ValueError(f"tokens {counts} must be counts from 1 that rise by one")
        need = blocks_needed(counts[-1], block_size)
        if need > len(blocks):
            raise ValueError(
                f"{counts[-1]} tokens need {need} blocks of {block_size}, "
                f"but only {len(blocks)} ids are given: pass more blocks"
            )
        if counts[-1] > 40:
            raise ValueError(f"{counts[-1]} tokens do not fit the picture: at most 40")
        self.block_size, self.counts, self.name, self.blocks = (
            block_size,
            counts,
            name,
            list(blocks),
        )
        # After the last count's write there is nothing more to learn: it has no sample and append.
        self.last = 4 * (len(counts) - 1) + 2
        self.answers: dict[int, bool] = {}  # step -> was a new block guessed for it?
        super().__init__({"step": step}, show)

    def controls(self) -> list:
        return [
            Press("yes", "Guess: new block", "The next phase takes a new block"),
            Press("no", "Guess: no block", "The next phase takes no block"),
            Steps("step", self.last, interval_ms=1800),
        ]

    def pressed(self, name: str) -> None:
        if self.state["step"] < self.last:
            self.state["step"] += 1
            self.answers[self.state["step"]] = name == "yes"

    # -- what is true after a step --------------------------------------------------------------

    def at(self, step: int) -> tuple[int, int, list[int], str]:
        """(num_tokens, num_computed, block table, phase just done) after a step; phase "" at 0."""
        turn, done = divmod(step, 4)
        n = self.counts[0] + turn
        if step and done == 0:  # the append of the turn before
            turn, done = turn - 1, 4
        held = n - 1 if done in (0, 4) else n
        computed = n - 1 if done in (0, 1, 4) else n
        table = self.blocks[: blocks_needed(held, self.block_size)]
        return n, computed, table, PHASES[done - 1] if step else ""

    def takes(self, step: int) -> list[int]:
        """Blocks taken in the phase that leads to ``step``."""
        if step == 0:
            return []
        return self.at(step)[2][len(self.at(step - 1)[2]) :]

    def explain(self, step: int) -> str:
        """What the phase that leads to ``step`` did, and why it took a block or not."""
        n, _, table, phase = self.at(step)
        need, size = blocks_needed(n, self.block_size), self.block_size
        if phase == "":
            return (
                f"{self.name} has {n} tokens; {n - 1} are stored. The newest was appended a moment "
                "ago and has no key and value yet."
            )
        if phase == "schedule":
            before = len(self.at(step - 1)[2])
            said = f"Schedule: blocks_needed({n}, {size}) = {need}, the table has {before}. "
            new = self.takes(step)
            return said + (f"Take block {new[0]}." if new else "Nothing to take.")
        if phase == "write":
            slot = slot_mapping(table, [n - 1], size)[0]
            return (
                f"Write: key and value of position {n - 1} go to slot {slot}, row {slot % size} of "
                f"block {slot // size}. num_computed is {n}."
            )
        if phase == "sample":
            return "Sample: the model draws the next token. It is a number, without key and value."
        more = need > len(table)
        return (
            f"Append: the number joins the list, num_tokens is {n}. "
            + (f"blocks_needed({n}, {size}) = {need} is now more than the table's {len(table)}, "
               "but the block is taken when it is needed: at the next schedule."
               if more else "Its slot is there already, in the last block.")
        )  # fmt: skip

    def feedback(self, step: int) -> str:
        """What is said about the guess for this step; empty without one."""
        if step not in self.answers:
            return ""
        guess, truth = self.answers[step], bool(self.takes(step))
        said = "a new block" if guess else "no block"
        return f"You guessed {said}: {'right' if guess == truth else 'not so'}."

    # -- drawing --------------------------------------------------------------------------------

    def draw(self) -> Picture:
        step = self.state["step"]
        n, computed, table, phase = self.at(step)
        most = self.counts[-1]
        gap = 10
        room = 640 - gap * (blocks_needed(most, self.block_size) - 1)
        cell = min(42.0, room / (blocks_needed(most, self.block_size) * self.block_size))
        d = Drawing(760, 316)
        self._phases(d, phase, step)
        look = request_style(self.name)
        d.text(24, 112, "tokens", 13, fill=MUTED)
        d.text(24, 176, "slots", 13, fill=MUTED)
        for position in range(most):
            x = 92 + position * cell + gap * (position // self.block_size)
            if position < n:
                newest = position >= computed
                d.rect(
                    x + 1, 90, cell - 2, 32, "#FFFFFF" if newest else look.tint,
                    ACCENT if newest else look.edge, 2 if newest else 1, radius=4,
                    dash="4 3" if newest else "",
                )  # fmt: skip
                d.text(x + cell / 2, 111, position, 13, "middle")
        if phase == "sample":  # drawn, and not yet one of the request's tokens
            x = 92 + n * cell + gap * (n // self.block_size)
            d.text(x + cell / 2, 111, "?", 17, "middle", ACCENT, "700")
        self._blocks(d, cell, gap, computed, table, step)
        need = blocks_needed(n, self.block_size)
        wide = 176
        for place, (value, words) in enumerate(
            ((n, "num_tokens"), (computed, "num_computed"),
             (need, f"blocks_needed({n}, {self.block_size})"), (len(table), "len(table)"))
        ):  # fmt: skip
            x = 28 + place * wide
            strong = place >= 2 and need != len(table)
            d.text(x, 274, value, 26, weight="700", fill=ACCENT if strong else INK)
            d.text(x, 296, words, 12.5, fill=MUTED, mono=True)
        caption = " ".join(
            s for s in (self.feedback(step), self.explain(step), self._asks(step)) if s
        )
        alt = (
            f"Request {self.name} after step {step} ({phase or 'start'}): num_tokens {n}, "
            f"num_computed {computed}, blocks needed {need}, block table {table}."
        )
        rows = {
            "phase done": phase or "start", "num_tokens": n, "num_computed": computed,
            "blocks needed": need, "block table": str(table),
            "guesses right": f"{self.right} of {len(self.answers)}",
        }  # fmt: skip
        return Picture(d.svg(alt), alt, caption, rows)

    @property
    def right(self) -> int:
        """Guesses that came true."""
        return sum(guess == bool(self.takes(step)) for step, guess in self.answers.items())

    def _asks(self, step: int) -> str:
        if step >= self.last:
            return f"The end: {self.right} of {len(self.answers)} guesses right."
        return f"Next: {PHASES[step % 4]}. A new block in it?"

    def _phases(self, d: Drawing, phase: str, step: int) -> None:
        upcoming = PHASES[step % 4] if step < self.last else ""
        for place, name in enumerate(PHASES):
            x, done = 24 + place * 152, name == phase
            edge = INK if done else ACCENT if name == upcoming else OUTLINE
            d.rect(x, 20, 128, 34, INK if done else "#FFFFFF", edge, 1.6, radius=17,
                   dash="5 3" if name == upcoming and not done else "")  # fmt: skip
            d.text(
                x + 64, 42, name, 14, "middle", PAPER if done else INK, "600" if done else "normal"
            )
            if place < 3:
                d.line(x + 130, 37, x + 149, 37, OUTLINE, 1.4, arrow=True)
        if self.answers:
            d.text(736, 42, f"{self.right} of {len(self.answers)} right", 13, "end", MUTED)
        d.text(24, 70, "filled: just done; dashed: next", 11.5, fill=MUTED)

    def _blocks(
        self, d: Drawing, cell: float, gap: float, computed: int, table: list[int], step: int
    ) -> None:
        new = self.takes(step)
        size = self.block_size
        for place, block_id in enumerate(table):
            x = 92 + place * (size * cell + gap)
            for row in range(size):
                kind = "live" if place * size + row < computed else "reserved"
                draw_slot(
                    d, x + row * cell, 150, cell, kind, self.name, "" if kind != "live" else None
                )
            taken = block_id in new
            d.rect(x, 150, size * cell, cell, stroke=ACCENT if taken else INK,
                   stroke_width=3.2 if taken else 1.6)  # fmt: skip
            d.text(x, 150 + cell + 18, f"block {block_id}", 13, weight="600", mono=True)
            if taken:
                d.text(x + size * cell, 150 + cell + 18, "new", 13, "end", ACCENT, "700")

    def story(self) -> list[tuple[int, str]]:
        return [(step, self.explain(step)) for step in range(self.last + 1)]
