"""Streams of allocations and frees, and what an arena makes of them."""

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol


class AnyArena(Protocol):
    """What ``Arena`` and ``BuddyArena`` have in common."""

    size: int
    num_free: int

    @property
    def holes(self) -> list[tuple[int, int]]: ...
    @property
    def runs(self) -> list[tuple[int, int]]: ...
    @property
    def largest_hole(self) -> int: ...
    def held(self, offset: int) -> int: ...
    def fits(self, size: int) -> bool: ...
    def allocate(self, size: int) -> int | None: ...
    def free(self, offset: int) -> None: ...


class Outcome(NamedTuple):
    """What one operation did. ``refused_with_room``: no hole was long enough, but the sum was."""

    action: str
    name: str
    size: int
    offset: int | None
    num_free: int
    largest_hole: int
    refused_with_room: bool


def play(arena: AnyArena, operations: Iterable[tuple[str, str, int]]) -> Iterator[Outcome]:
    """Run ("allocate", name, size) and ("free", name, 0) on an arena, one outcome each.

    ``num_free`` and ``largest_hole`` are those after the operation. A free of a name whose
    allocation was refused does nothing (its offset is None); a name in use twice or never seen
    raises ValueError.
    """
    offsets: dict[str, int | None] = {}
    for action, name, size in operations:
        refused_with_room = False
        if action == "allocate":
            if name in offsets:
                raise ValueError(f"{name!r} is already there: free it before it comes again.")
            offset = offsets[name] = arena.allocate(size)
            refused_with_room = offset is None and size <= arena.num_free
        elif action == "free":
            if name not in offsets:
                raise ValueError(f"{name!r} was never allocated, so it cannot be freed.")
            offset = offsets.pop(name)
            if offset is not None:
                size = arena.held(offset)
                arena.free(offset)
        else:
            raise ValueError(f'The action is {action!r}: choose "allocate" or "free".')
        yield Outcome(
            action, name, size, offset, arena.num_free, arena.largest_hole, refused_with_room
        )


def random_operations(
    num_operations: int, mean_size: int, mean_alive: int, seed: int
) -> list[tuple[str, str, int]]:
    """A random stream: sizes uniform from 1 to 2 * mean_size - 1, frees out of order.

    Requests come until about ``mean_alive`` are there, then come and go in turn; who goes is
    drawn evenly from all. The same seed gives the same stream.
    """
    random_ = random.Random(seed)
    alive: list[str] = []
    operations: list[tuple[str, str, int]] = []
    for number in range(num_operations):
        if alive and random_.random() < len(alive) / (2 * mean_alive):
            index = random_.randrange(len(alive))
            operations.append(("free", alive.pop(index), 0))
        else:
            alive.append(f"r{number}")
            operations.append(("allocate", alive[-1], random_.randint(1, 2 * mean_size - 1)))
    return operations
