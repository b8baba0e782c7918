"""How many blocks sharing saves, for samples of one prompt and for beams.

"Saved" is what the PagedAttention paper counts (sec. 6.3): blocks that sharing makes unnecessary
over the blocks that would be held without it, here summed over every step of the answer.
"""

import numpy as np

from course.engine.block_table import blocks_needed
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams

# Kwon et al., SOSP 2023 (arXiv 2309.06180), Fig. 15: percent saved at 2, 4 and 6 sequences, Alpaca.
PAPER_SAVED = {"parallel": (6.09, 8.53, 9.79), "beam": (37.56, 53.13, 55.16)}
PAPER_SEQUENCES = (2, 4, 6)


def blocks_held(
    prompt: int, output: int, parents: list[list[int]], block_size: int = 16
) -> tuple[int, int]:
    """(blocks with sharing, blocks without), summed over the steps of the answer.

    parents[t][i] is the sequence of step t - 1 that sequence i goes on from; ``parents[0]`` forks
    them all from the prompt (0). Real bookkeeping: fork, copy-on-write and release of a KVManager.
    """
    width = len(parents[0]) if parents else 1
    num_blocks = 2 * width * blocks_needed(prompt + output + 1, block_size)
    kv = KVManager(num_blocks, block_size, prefix_caching=False)
    first = _sequence("prompt", prompt)
    kv.admit(first, prompt)
    first.num_computed_tokens = prompt
    alive, shared, alone = [first], 0, 0
    for step, choice in enumerate(parents[:output]):
        born = []
        for place, parent in enumerate(choice):
            child = _sequence(f"{step}/{place}", alive[parent].num_tokens)
            kv.fork(alive[parent], child)
            born.append(child)
        for old in alive:
            kv.release(old)
        for child in born:
            child.token_ids.append(0)
            kv.grow(child, child.num_tokens)
            child.num_computed_tokens = child.num_tokens
        alive = born
        shared += kv.pool.num_used
        alone += width * blocks_needed(prompt + step + 1, block_size)
    return shared, alone


def samples(output: int, width: int) -> list[list[int]]:
    """Parents of independent samples: forked once from the prompt, then each for itself."""
    return [[0] * width, *([list(range(width))] * (output - 1))]


def random_beams(output: int, width: int, generator: np.random.Generator) -> list[list[int]]:
    """Parents of beams that go on from a parent drawn evenly among all of the step before.

    An assumption: a real beam search goes on from the likeliest, which may be one or many.
    """
    chosen = generator.integers(0, width, size=(max(output - 1, 0), width))
    return [[0] * width, *chosen.tolist()]


def saved(held: list[tuple[int, int]]) -> float:
    """Share of the blocks saved over several requests, 0 to 1."""
    alone = sum(pair[1] for pair in held)
    return 1 - sum(pair[0] for pair in held) / alone if alone else 0.0


def _sequence(name: str, num_tokens: int) -> Request:
    return Request(name, [0] * num_tokens, SamplingParams())
