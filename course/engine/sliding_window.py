"""Sliding windows: which blocks of a request no later token can see."""


def num_passed_blocks(num_computed_tokens: int, block_size: int, sliding_window: int | None) -> int:
    """Blocks at the start of a table that the window has passed; 0 without a window.

    The next token to be computed stands at position num_computed_tokens. It sees itself and the
    sliding_window - 1 tokens before it; every later token sees less of the past.

    With a window of 4 and 5 tokens computed, the next one sees positions 2 to 5: the block with
    positions 0 and 1 has been passed.

    >>> [num_passed_blocks(n, 2, sliding_window=4) for n in (4, 5, 6, 7, 11)]
    [0, 1, 1, 2, 4]
    """
    if sliding_window is None:
        return 0
    first_visible = max(0, num_computed_tokens - sliding_window + 1)
    return first_visible // block_size
