"""Blocks saved by sharing: by hand, against a formula, and beside the paper's figures."""

import numpy as np
import pytest

from course.engine.block_table import blocks_needed
from course.memory.sharing import PAPER_SAVED, blocks_held, random_beams, samples, saved
from course.workload import mix


def test_three_samples_of_a_by_hand():
    """7 prompt tokens in blocks of 4. Step 1: all write token 8 into the second block, so each has
    its own, and the first is shared: 1 + 3 of 3 x 2. Step 2: each takes a third block."""
    assert blocks_held(7, 1, samples(1, 3), 4) == (1 + 3, 6)
    assert blocks_held(7, 2, samples(2, 3), 4) == (4 + 7, 6 + 9)


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_samples_share_exactly_the_full_blocks_of_the_prompt(prompt, width):
    output, full = 20, prompt // 16
    together, alone = blocks_held(prompt, output, samples(output, width))
    steps = [blocks_needed(prompt + t, 16) for t in range(1, output + 1)]
    assert alone == width * sum(steps)
    assert together == sum(full + width * (n - full) for n in steps)


def test_beams_from_one_parent_share_all_but_the_newest_block():
    parents = [[0, 0, 0]] * 8
    together, alone = blocks_held(8, 8, parents, 4)
    # every step all three go on from the first: one path, and a last block for each
    assert together == sum(blocks_needed(8 + t, 4) - 1 + 3 for t in range(1, 9))
    assert alone == 3 * sum(blocks_needed(8 + t, 4) for t in range(1, 9))


def test_one_sequence_saves_nothing():
    assert saved([blocks_held(20, 30, samples(30, 1))]) == 0
    assert saved([]) == 0


def test_alpaca_has_the_order_and_the_size_of_the_paper():
    lengths, generator = mix("paper_alpaca").sample(30, seed=0), np.random.default_rng(0)
    for place, width in enumerate((2, 4, 6)):
        parallel = saved([blocks_held(p, o, samples(o, width)) for p, o in lengths])
        beams = saved([blocks_held(p, o, random_beams(o, width, generator)) for p, o in lengths])
        assert parallel < beams
        assert 100 * parallel == pytest.approx(PAPER_SAVED["parallel"][place], abs=8)
        assert 100 * beams == pytest.approx(PAPER_SAVED["beam"][place], abs=15)
