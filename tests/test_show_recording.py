"""The film of a pool: what the engine did, step by step, and the pictures of it."""

import pytest

from course.engine.llm import LLM, SamplingParams
from course.memory import example
from course.show.recording import Recording, pool_film


def record(**options) -> Recording:
    """The running example on the tiny model, which counts tokens and means nothing by them."""
    llm = LLM("tiny", block_size=example.BLOCK_SIZE, num_blocks=example.NUM_BLOCKS,
              prefix_caching=False, **options)  # fmt: skip
    recording = Recording("ABC")
    llm.generate(
        [[3] * request.prompt_tokens for request in example.REQUESTS],
        [SamplingParams(max_tokens=r.output_tokens, ignore_eos=True) for r in example.REQUESTS],
        on_step=recording,
    )
    return recording


@pytest.fixture(scope="module")
def paged() -> Recording:
    return record(block_order=example.BLOCK_ORDER)


@pytest.fixture(scope="module")
def slabs() -> Recording:
    return record(kv_policy="slab", max_model_len=example.MAX_MODEL_LEN)


def test_the_running_example_as_the_engine_serves_it(paged, slabs):
    assert paged.frames[0].waiting == ("A", "B", "C")
    assert paged.frames[1].tables == example.TABLES
    assert paged.frames[1].written == {r.name: r.prompt_tokens for r in example.REQUESTS}
    assert [paged.first_step(name) for name in "ABC"] == [1, 1, 1]
    assert [paged.last_step(name) for name in "ABC"] == [r.output_tokens for r in example.REQUESTS]
    assert paged.frames[-1].blocks_held == 0
    # Two slabs fill the pool, so C waits until A has gone.
    assert slabs.frames[1].waiting == ("C",)
    assert slabs.frames[1].blocks_held == example.NUM_BLOCKS
    assert slabs.first_step("C") == slabs.last_step("A") + 1
    assert slabs.num_steps == paged.num_steps == example.B.output_tokens


def test_every_frame_fits_into_the_pool(paged, slabs):
    for recording in (paged, slabs):
        for frame in recording.frames:
            assert frame.slots_written <= frame.blocks_held * 4 <= 64
            held = [block for table in frame.tables.values() for block in table]
            assert len(held) == len(set(held))


def test_the_film_says_in_words_what_it_shows(paged, slabs):
    film = pool_film(slabs, step=1, title="Slabs")
    assert "Waiting: C." in film.picture.caption
    assert "10 of 64 slots" in film.picture.caption
    assert film.picture.alt in film.picture.data
    assert "22. C enters with blocks 0, 1, 2, 3, 4, 5, 6, 7." in repr(film)
    assert "2. C ends and gives its blocks back." in repr(pool_film(paged))


def test_the_film_moves_and_stays_quick(paged):
    film = pool_film(paged, step=0)
    assert "0 of 16 blocks" in film.picture.caption
    pictures = {picture.data for _, picture in film.frames("step")}
    assert len(pictures) == paged.num_steps + 1
    film.set("step", paged.fullest)
    assert film.last_update_ms < 100
    with pytest.raises(ValueError, match="0 to 24"):
        film.set("step", 25)


def test_the_live_view_follows(paged):
    film = pool_film(paged, step=1)
    live = film.make_live()
    live.parts["step"].value = paged.fullest
    assert film.state["step"] == paged.fullest
    assert f"After step {paged.fullest}" in live.picture.value


def test_an_empty_recording_is_refused():
    with pytest.raises(ValueError, match="nothing was recorded"):
        pool_film(Recording())
    with pytest.raises(ValueError, match="never admitted"):
        Recording().first_step("A")
