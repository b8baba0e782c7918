"""The picture of split-KV counts what the decode kernel's grid would be."""

import pytest

from course.show import split_figure


def test_programs_and_idle_processors_are_counted():
    shown = split_figure(8, 132, 32_768, (1, 16), show=False)
    assert shown.picture.table[1:] == [(1, 8, 124, 32_768), (16, 128, 4, 2_048)]
    assert "1 split: 8 programs, 124 of 132 processors without work" in shown.alt
    # two panels of 132 squares and one bar each, on one card
    busy = shown.picture.data.count('stroke="#A9ADB3"')
    assert busy == 124 + 4


def test_the_last_share_is_not_lost():
    assert split_figure(1, 4, 10, (3,), show=False).picture.table[1][3] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 132, 100), "kv_heads=0"),
        ((8, 132, 0), "context=0"),
        ((8, 132, 100, (1, 2, 3)), "one or two"),
        ((8, 132, 100, (0,)), "at least 1"),
        ((8, 132, 100, (17,)), "at most 16 splits"),
    ],
)
def test_numbers_that_make_no_picture_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        split_figure(*arguments, show=False)
