"""Block tables: from a token's position in its request to its slot in the pool.

A request's block table is a plain list: entry i is the block that holds its tokens
i * block_size to (i + 1) * block_size - 1. An entry of -1 marks a block that was given back
because no later token can see it (see sliding_window.py).
"""

from collections.abc import Iterable, Sequence


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """How many blocks `num_tokens` tokens of one request fill or begin.

    This is the count of *all* blocks wanted. What must be allocated is the difference to what the
    request holds: need = blocks_needed(num_tokens, block_size) - len(table).

    >>> [blocks_needed(n, 4) for n in (0, 1, 4, 5, 8, 9)]
    [0, 1, 1, 2, 2, 3]
    """
    if num_tokens < 0:
        raise ValueError(f"num_tokens is {num_tokens}; it must be 0 or more")
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be 1 or more")
    return (num_tokens + block_size - 1) // block_size


def slot_mapping(block_ids: Sequence[int], positions: Iterable[int], block_size: int) -> list[int]:
    """The slot of each position of one request.

    Slot s is row s % block_size of block s // block_size, counted over the whole pool.
    ValueError for a position that is negative, past the table, or in a block given back (-1).

    >>> slot_mapping([7, 1, 3], [0, 6, 7, 8], block_size=4)
    [28, 6, 7, 12]
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be 1 or more")
    num_slots = len(block_ids) * block_size
    slots = []
    for position in positions:
        if not 0 <= position < num_slots:
            raise ValueError(
                f"position {position} is outside the table: {len(block_ids)} blocks of "
                f"{block_size} hold {num_slots} positions, from 0; grow the table first"
            )
        logical_block, row = divmod(int(position), block_size)
        block_id = int(block_ids[logical_block])
        if block_id < 0:
            raise ValueError(
                f"position {position} lies in a block that was given back ({block_id})"
            )
        slots.append(block_id * block_size + row)
    return slots
