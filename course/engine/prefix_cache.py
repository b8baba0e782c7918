"""The prefix cache: full blocks found again by a hash of all the tokens up to their end.

The hash of a block covers its own tokens and, through the hash of the block before, everything to
the left. Keys and values depend on exactly that, so equal hashes mean equal content.
"""

import struct
from collections.abc import Sequence
from hashlib import sha256

from course.engine.sliding_window import num_passed_blocks


def hash_blocks(
    token_ids: Sequence[int],
    block_size: int,
    extra_key: str | bytes | None = None,
    parent: bytes | None = None,
) -> list[bytes]:
    """The hash of each full block, 32 bytes each, chained from left to right.

    A block's hash covers its own tokens and the hash of the block before it, so equal hashes mean
    equal beginnings up to there. A last block that is not full has none.

    token_ids: list, tuple or array; ids from 0 to 2**32 - 1, else ValueError. The same ids hash
    alike whatever holds them, different ids differently, in this process and in every other.
    extra_key: anything else the keys and values depend on (an adapter's name, a tenant's salt).
    It enters the first block's hash, by `root_hash`, and through the chain all later ones.
    parent: the hash of the block before these, to go on with a chain; extra_key is in it already.

    >>> prompt = [31, 2, 14, 7, 9, 4, 40]  # A's seven tokens: one full block of 4
    >>> (first,) = hash_blocks(prompt, block_size=4)
    >>> longer = hash_blocks(prompt + [5], block_size=4)
    >>> longer == [first, *hash_blocks([9, 4, 40, 5], 4, parent=first)]
    True
    >>> hash_blocks([9, 4, 40, 5], 4) == longer[1:]  # the same tokens behind another beginning
    False
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be 1 or more")
    if parent is None:
        parent = root_hash(extra_key)
    hashes = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = token_ids[start : start + block_size]
        try:
            # A fixed width per id: [1, 23] and [12, 3] must not become the same bytes.
            packed = struct.pack(f"<{block_size}I", *block)
        except (struct.error, TypeError) as error:
            raise ValueError(
                f"token ids must be integers from 0 to 2**32 - 1; positions {start} to "
                f"{start + block_size - 1} hold {list(block)[:8]}"
            ) from error
        parent = sha256(b"block" + parent + packed).digest()
        hashes.append(parent)
    return hashes


def extend_hashes(
    hashes: list[bytes], token_ids: Sequence[int], block_size: int, extra_key: str | bytes | None
) -> None:
    """Append to `hashes` those of the full blocks it does not cover yet.

    `hashes` must be the start of the same chain. Costs only the new blocks, so a request that
    decodes hashes each of its blocks once and not the whole chain again.
    """
    parent = hashes[-1] if hashes else None
    new = token_ids[len(hashes) * block_size :]
    hashes += hash_blocks(new, block_size, extra_key, parent)


def root_hash(extra_key: str | bytes | None) -> bytes:
    """What stands before the first block: 32 bytes, different for every extra_key and for None."""
    # A tag per type: no text, the empty text and the same bytes are three different keys. The
    # words "root" and "block" keep a crafted key from imitating a block.
    if extra_key is None:
        return sha256(b"root none").digest()
    if isinstance(extra_key, str):
        return sha256(b"root text" + extra_key.encode("utf-8", "surrogatepass")).digest()
    if isinstance(extra_key, bytes):
        return sha256(b"root byte" + extra_key).digest()
    raise ValueError(f"extra_key is {extra_key!r}; it must be str, bytes or None")


class PrefixCache:
    """Which block holds which content.

    Invariant: block b is among the blocks of hash h exactly when the hash of b is h; no hash is
    kept without a block.

    Two blocks may hold the same content (two equal prompts computed in one step). Both are kept, so
    that losing one does not lose the other. Nothing here counts owners: that is the pool's work.
    """

    def __init__(self):
        self._blocks: dict[bytes, dict[int, None]] = {}  # the inner dict is a set in order
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Blocks with a hash."""
        return len(self._hashes)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._hashes

    def __iter__(self):
        return iter(self._hashes)

    def hash_of(self, block_id: int) -> bytes | None:
        """The hash of a block's content; None when it has none."""
        return self._hashes.get(block_id)

    def blocks_of(self, block_hash: bytes) -> list[int]:
        """All blocks that hold this content, the first published first."""
        return list(self._blocks.get(block_hash, ()))

    def lookup(self, block_hash: bytes) -> int | None:
        """One block that holds this content, or None."""
        blocks = self._blocks.get(block_hash)
        return next(iter(blocks)) if blocks else None

    def longest_hit(
        self, block_hashes: Sequence[bytes], block_size: int, num_tokens: int | None = None
    ) -> list[int]:
        """The blocks of the longest prefix after which a request can go on computing.

        block_hashes: the chain of the request. A prefix begins at the beginning: behind the first
        hash that is not here, no block is of use.
        num_tokens: how many tokens the request has. At least one of them is left to compute, as
        the next token is sampled from its output: with blocks of 4, a request of 8 tokens can use
        one block. None: as many blocks as there are hashes.

        >>> cache = PrefixCache()
        >>> cache.publish(7, b"a")
        >>> cache.publish(3, b"c")
        >>> cache.longest_hit([b"a", b"b", b"c"], block_size=4)
        [7]
        >>> cache.longest_hit([b"a"], block_size=4, num_tokens=4)
        []
        """
        if num_tokens is not None:
            block_hashes = block_hashes[: max(0, num_tokens - 1) // block_size]
        blocks = []
        for block_hash in block_hashes:
            block_id = self.lookup(block_hash)
            if block_id is None:
                break
            blocks.append(block_id)
        return blocks

    def windowed_hit(
        self, block_hashes: Sequence[bytes], block_size: int, sliding_window: int
    ) -> list[int]:
        """The longest hit where only the blocks that the next token sees must be here.

        The entries before those are -1.
        """
        blocks: list[int] = []
        best = num_found = 0  # num_found: blocks found in a row, up to here
        for block_hash in block_hashes:
            block_id = self.lookup(block_hash)
            blocks.append(-1 if block_id is None else block_id)
            num_found = 0 if block_id is None else num_found + 1
            num_passed = num_passed_blocks(len(blocks) * block_size, block_size, sliding_window)
            if num_found and num_found >= len(blocks) - num_passed:
                best = len(blocks)
        num_passed = num_passed_blocks(best * block_size, block_size, sliding_window)
        return [-1] * num_passed + blocks[num_passed:best]

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Make a block findable. Only after its keys and values are written.

        A second block with the same hash is kept beside the first. The same block with the same
        hash again changes nothing; with another hash it is a ValueError, and nothing changes.
        """
        known = self._hashes.setdefault(block_id, block_hash)
        if known != block_hash:
            raise ValueError(f"block {block_id} is published with other content; forget it first")
        self._blocks.setdefault(block_hash, {})[block_id] = None

    def forget(self, block_id: int) -> None:
        """The block is about to hold something else. Nothing happens if it had no hash."""
        block_hash = self._hashes.pop(block_id, None)
        if block_hash is not None:
            blocks = self._blocks[block_hash]
            del blocks[block_id]
            if not blocks:
                del self._blocks[block_hash]

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()
        self._hashes.clear()
