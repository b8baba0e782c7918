"""Ways to give a request memory, under one interface: slab, arenas, pages.

| name | asks for | placed by |
| --- | --- | --- |
| slab | max_model_len slots | slabs of equal size |
| pow2 | prompt + output rounded up to a power of two | buddy arena |
| oracle | prompt + output, known in advance | buddy arena |
| first-fit, best-fit, buddy | prompt + output, known in advance | that arena |
| paged | whole blocks, when they are needed | any free block |

``pow2`` and ``oracle`` are the PagedAttention paper's Orca baselines (Kwon et al., SOSP 2023,
sec. 6.1), which place reservations by a buddy allocator; ``oracle`` and ``buddy`` are the same.
Any other pair of rule and arena is ``Contiguous(rule, arena, max_model_len)``.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from course.engine.block_pool import BlockPool
from course.engine.block_table import blocks_needed
from course.memory.arena import Arena, check_size
from course.memory.buddy import BuddyArena
from course.memory.slab import SlabAllocator
from course.memory.trace import AnyArena

POLICY_NAMES = ("slab", "pow2", "oracle", "first-fit", "best-fit", "buddy", "paged")
RULES = ("max", "pow2", "exact")


class Policy(Protocol):
    """Who gets which slots. Lengths are in tokens, one slot each.

    ``admit`` and ``grow`` are all or nothing: False, and nothing has changed. A request is
    admitted with room for its prompt and the first output token.
    """

    name: str
    pool_tokens: int
    max_model_len: int

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        ...

    def asks(self, prompt: int, output: int) -> int:
        """Slots that a request wants at admission."""
        ...

    def fits(self, prompt: int, output: int) -> bool:
        """Whether ``admit`` would succeed now."""
        ...

    def possible(self, prompt: int, output: int) -> bool:
        """Whether the request could run to its end if it were alone."""
        ...

    def admit(self, request_id: str, prompt: int, output: int) -> bool:
        """Give the request its slots."""
        ...

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """Room for ``num_tokens`` in all."""
        ...

    def release(self, request_id: str) -> None:
        """Take all of the request's slots back."""
        ...

    def held(self, request_id: str) -> int:
        """Slots that the request holds."""
        ...

    def spans(self, request_id: str) -> list[tuple[int, int]]:
        """(first slot, slots) of each piece that the request holds, in the order of its tokens."""
        ...


def make_policy(
    name: str, pool_tokens: int, max_model_len: int, block_size: int = 16
) -> "Slab | Contiguous | Paged":
    """One of ``POLICY_NAMES`` on an empty pool; only ``paged`` looks at ``block_size``."""
    if name == "slab":
        return Slab(pool_tokens, max_model_len)
    if name == "paged":
        return Paged(pool_tokens, max_model_len, block_size)
    makers: dict[str, Callable[[], Contiguous]] = {
        "pow2": lambda: Contiguous("pow2", BuddyArena(pool_tokens), max_model_len),
        "oracle": lambda: Contiguous("exact", BuddyArena(pool_tokens), max_model_len),
        "first-fit": lambda: Contiguous("exact", Arena(pool_tokens, "first"), max_model_len),
        "best-fit": lambda: Contiguous("exact", Arena(pool_tokens, "best"), max_model_len),
        "buddy": lambda: Contiguous("exact", BuddyArena(pool_tokens), max_model_len),
    }
    if name not in makers:
        raise ValueError(f"There is no policy {name!r}: choose one of {', '.join(POLICY_NAMES)}.")
    policy = makers[name]()
    policy.name = name
    return policy


class Slab:
    """One slab of max_model_len slots for each request."""

    def __init__(self, pool_tokens: int, max_model_len: int) -> None:
        self.name = "slab"
        self.pool_tokens = pool_tokens
        self.max_model_len = max_model_len
        self.slabs = SlabAllocator(pool_tokens, max_model_len)

    @property
    def num_free(self) -> int:
        used = self.slabs.num_slabs - self.slabs.num_free
        return self.pool_tokens - used * self.max_model_len

    def asks(self, prompt: int, output: int) -> int:
        return self.max_model_len

    def fits(self, prompt: int, output: int) -> bool:
        return self.slabs.num_free > 0

    def possible(self, prompt: int, output: int) -> bool:
        return self.slabs.num_slabs > 0 and prompt + output <= self.max_model_len

    def admit(self, request_id: str, prompt: int, output: int) -> bool:
        return self.slabs.reserve(request_id) is not None

    def grow(self, request_id: str, num_tokens: int) -> bool:
        return num_tokens <= self.held(request_id)

    def release(self, request_id: str) -> None:
        self.slabs.release(request_id)

    def held(self, request_id: str) -> int:
        self.slabs.first_slot(request_id)
        return self.max_model_len

    def spans(self, request_id: str) -> list[tuple[int, int]]:
        return [(self.slabs.first_slot(request_id), self.max_model_len)]


class Contiguous:
    """One run of slots for each request, as long as ``rule`` says, placed by an arena.

    ``max`` reserves max_model_len, ``pow2`` the prompt and the next power of two of the output,
    at most max_model_len, ``exact`` prompt and output. The last two know the output length in
    advance, which no server does. With ``compact`` a refused request for which enough slots are
    free in total makes the arena slide its runs together first; ``moved_tokens`` counts the
    slots copied.
    """

    def __init__(
        self, rule: str, arena: AnyArena, max_model_len: int, compact: bool = False
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"rule is {rule!r}: choose one of {', '.join(RULES)}.")
        if compact and not isinstance(arena, Arena):
            raise ValueError("Only an Arena can compact: a buddy block cannot lie anywhere.")
        check_size("max_model_len", max_model_len)
        self.name = f"{rule} in {type(arena).__name__}"
        self.rule = rule
        self.arena = arena
        self.pool_tokens = arena.size
        self.max_model_len = max_model_len
        self.compact = compact
        self.num_compactions = self.moved_tokens = 0
        # a buddy arena with a smallest block may leave a tail that it never gives
        self._never_given = arena.size - arena.num_free - sum(size for _, size in arena.runs)
        self._offsets: dict[str, int] = {}
        self._asked: dict[str, int] = {}

    @property
    def num_free(self) -> int:
        return self.arena.num_free + self._never_given

    def asks(self, prompt: int, output: int) -> int:
        if self.rule == "max":
            return self.max_model_len
        if self.rule == "exact":
            return prompt + output
        return min(prompt + (1 << (output - 1).bit_length()), self.max_model_len)

    def fits(self, prompt: int, output: int) -> bool:
        size = self.asks(prompt, output)
        return self.arena.fits(size) or (self.compact and size <= self.arena.num_free)

    def possible(self, prompt: int, output: int) -> bool:
        if prompt + output > self.max_model_len:
            return False
        # the largest piece of an empty arena: all of it, or the largest power of two in it
        size = self.asks(prompt, output)
        if isinstance(self.arena, BuddyArena):
            return self.arena.rounded(size) <= self.arena.largest_part
        return size <= self.pool_tokens

    def admit(self, request_id: str, prompt: int, output: int) -> bool:
        if request_id in self._offsets:
            raise ValueError(f"Request {request_id!r} is already admitted: release it first.")
        size = self.asks(prompt, output)
        offset = self.arena.allocate(size)
        if offset is None and self.compact and size <= self.arena.num_free:
            self._compact()
            offset = self.arena.allocate(size)
        if offset is None:
            return False
        self._offsets[request_id] = offset
        self._asked[request_id] = size
        return True

    def grow(self, request_id: str, num_tokens: int) -> bool:
        return num_tokens <= self.asked(request_id)

    def release(self, request_id: str) -> None:
        self.arena.free(self._offset(request_id))
        del self._offsets[request_id], self._asked[request_id]

    def held(self, request_id: str) -> int:
        return self.arena.held(self._offset(request_id))

    def asked(self, request_id: str) -> int:
        """Slots that the request asked for; the arena may have rounded them up."""
        self._offset(request_id)
        return self._asked[request_id]

    def spans(self, request_id: str) -> list[tuple[int, int]]:
        return [(self._offset(request_id), self.held(request_id))]

    def _compact(self) -> None:
        assert isinstance(self.arena, Arena)
        owners = {offset: request_id for request_id, offset in self._offsets.items()}
        self.num_compactions += 1
        for move in self.arena.compact():
            self._offsets[owners[move.source]] = move.destination
            self.moved_tokens += move.size

    def _offset(self, request_id: str) -> int:
        if request_id not in self._offsets:
            raise ValueError(f"Request {request_id!r} was never admitted, or is already released.")
        return self._offsets[request_id]


class Paged:
    """Blocks of ``block_size`` slots, taken one at a time when a token needs one.

    Slots after the pool's last whole block are never used. ``order`` is the order in which the
    pool hands out its blocks, as in ``BlockPool``.
    """

    def __init__(
        self,
        pool_tokens: int,
        max_model_len: int,
        block_size: int = 16,
        order: Iterable[int] | None = None,
    ) -> None:
        for name, value in (("max_model_len", max_model_len), ("block_size", block_size)):
            check_size(name, value)
        if pool_tokens < block_size:
            raise ValueError(
                f"A pool of {pool_tokens} slots has no room for one block of {block_size}."
            )
        self.name = "paged"
        self.pool_tokens = pool_tokens
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.pool = BlockPool(pool_tokens // block_size, order)
        self.tables: dict[str, list[int]] = {}

    @property
    def num_free(self) -> int:
        return self.pool_tokens - self.pool.num_used * self.block_size

    def asks(self, prompt: int, output: int) -> int:
        return prompt + 1

    def fits(self, prompt: int, output: int) -> bool:
        return blocks_needed(prompt + 1, self.block_size) <= self.pool.num_free

    def possible(self, prompt: int, output: int) -> bool:
        total = prompt + output
        return (
            total <= self.max_model_len
            and blocks_needed(total, self.block_size) <= self.pool.num_blocks
        )

    def admit(self, request_id: str, prompt: int, output: int) -> bool:
        if request_id in self.tables:
            raise ValueError(f"Request {request_id!r} is already admitted: release it first.")
        if not self.fits(prompt, output):
            return False
        self.tables[request_id] = self.pool.allocate(blocks_needed(prompt + 1, self.block_size))
        return True

    def grow(self, request_id: str, num_tokens: int) -> bool:
        table = self._table(request_id)
        need = blocks_needed(num_tokens, self.block_size) - len(table)
        if need > self.pool.num_free:
            return False
        table += self.pool.allocate(max(0, need))
        return True

    def release(self, request_id: str) -> None:
        self.pool.free(reversed(self._table(request_id)))
        del self.tables[request_id]

    def held(self, request_id: str) -> int:
        return len(self._table(request_id)) * self.block_size

    def spans(self, request_id: str) -> list[tuple[int, int]]:
        return [(block * self.block_size, self.block_size) for block in self._table(request_id)]

    def _table(self, request_id: str) -> list[int]:
        if request_id not in self.tables:
            raise ValueError(f"Request {request_id!r} was never admitted, or is already released.")
        return self.tables[request_id]
