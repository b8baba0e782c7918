"""The picture of generation counts what it draws."""

import pytest

from course.show import generation_work
from course.show.palette import request_style


def test_every_computed_token_is_drawn_and_counted():
    shown = generation_work(7, 21, show=False)
    fill = request_style("A").fill
    assert shown.picture.data.count(f'fill="{fill}"') == 357 + 27
    assert shown.picture.table[-1] == ("tokens computed in all", 357, 27)
    assert "7 to 27: 357 in all" in shown.alt


def test_one_token_costs_the_same_both_ways():
    assert generation_work(3, 1, show=False).picture.table[-1][1:] == (3, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0, 3), "prompt=0"), ((3, 0), "output=0"), ((30, 12), "41 positions")],
)
def test_counts_that_make_no_picture_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        generation_work(*arguments, show=False)
