"""The running example: three requests in a pool of 16 blocks of 4 tokens, as plain data.

Its numbers are chosen so that one set of requests tells every story. Two slabs of 32 slots fill
the pool and C waits (lesson 02). In an arena, C is refused although 9 slots are free (lesson 03).
With blocks all three run to their ends and fill the pool to the last block: 7 + 7 + 2 = 16
(lesson 04). A's table is [7, 1] after its prompt and [7, 1, 3] from its 9th token on.
"""

from typing import NamedTuple


class ExampleRequest(NamedTuple):
    """One request; each word of its prompt stands for one token."""

    name: str
    prompt: str
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.split())

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


A = ExampleRequest("A", "Tell me why the sky is blue", output_tokens=21)
B = ExampleRequest("B", "Count to ten", output_tokens=24)
C = ExampleRequest("C", "Write a short poem about rain", output_tokens=2)
REQUESTS = (A, B, C)

BLOCK_SIZE = 4
NUM_BLOCKS = 16
POOL_TOKENS = BLOCK_SIZE * NUM_BLOCKS
MAX_MODEL_LEN = 32

# The order in which the pool hands out its blocks. Not 0, 1, 2, ...: whoever takes a position for
# an address should see it go wrong.
BLOCK_ORDER = (7, 1, 10, 12, 5, 3, 14, 0, 9, 2, 11, 6, 15, 4, 13, 8)

# The tables after the three prompts were admitted in order, and A's after its 9th token.
TABLES = {"A": [7, 1], "B": [10], "C": [12, 5]}
TABLE_OF_A_AT_9_TOKENS = [7, 1, 3]

# The arena's day: two short requests came first and leave, one slot range on either side of A.
ARENA_TRACE = (
    ("allocate", "first visitor", 5),
    ("allocate", "A", A.total_tokens),
    ("allocate", "second visitor", 4),
    ("allocate", "B", B.total_tokens),
    ("free", "first visitor", 0),
    ("free", "second visitor", 0),
    ("allocate", "C", C.total_tokens),
)
