"""The front of the engine: forms of input, streams, stops, bad input, interrupts, statistics."""

import gc
import math

import pytest
import torch

from course.engine import LLM, Completion, RequestRefused, SamplingParams, load_model
from course.engine.completion import Piece


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny", dtype=torch.float32, device="cpu")


@pytest.fixture
def llm(tiny):
    engine = LLM(tiny, block_size=4, num_blocks=32, max_model_len=64)
    yield engine
    engine.check_invariants()
    assert not engine.has_work
    assert engine.kv_manager.num_free == 32
    assert engine.core.jobs == {}
    assert engine.core.runner.generators == {}


GO = SamplingParams(max_tokens=6, ignore_eos=True)


# ---- forms of input


def test_one_text_many_texts_ids_and_arrays_are_all_prompts(llm):
    by_text = llm.generate("hello", GO)
    ids = llm.tokenizer.encode("hello")
    assert isinstance(by_text, list)
    assert isinstance(by_text[0], Completion)
    forms = [["hello"], ids, [ids], torch.tensor(ids), [torch.tensor(ids)], tuple(ids)]
    for form in forms:
        (completion,) = llm.generate(form, GO)
        assert completion.token_ids == by_text[0].token_ids
        assert completion.prompt_token_ids == ids


def test_answers_keep_the_order_of_the_prompts_and_their_own_params(llm):
    prompts = ["a", "bcd", "efghijkl"]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (5, 1, 3)]
    completions = llm.generate(prompts, params)
    assert [len(c.token_ids) for c in completions] == [5, 1, 3]
    assert [c.prompt_token_ids for c in completions] == [llm.tokenizer.encode(p) for p in prompts]


def test_no_prompts_no_work(llm):
    assert llm.generate([]) == []


def test_chat_renders_the_template(llm):
    messages = [{"role": "user", "content": "hi"}]
    text = llm.tokenizer.apply_chat_template(messages)
    assert "hi" in text
    assert llm.chat(messages, GO).token_ids == llm.generate(text, GO)[0].token_ids


# ---- streams


def test_a_stream_joins_to_the_generated_text(llm):
    whole = llm.generate("stream me", GO)[0]
    pieces = list(llm.stream("stream me", GO))
    assert all(isinstance(piece, Piece) for piece in pieces)
    assert "".join(pieces) == whole.text
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].num_tokens == 6
    assert all(piece.finish_reason is None for piece in pieces[:-1])


def test_two_streams_and_a_call_take_turns(llm):
    expected = [llm.generate(p, GO)[0].text for p in ("one", "two", "three")]
    one, two = llm.stream("one", GO), llm.stream("two", GO)
    got_one, got_two = next(one), next(two)
    three = llm.generate("three", GO)[0].text
    got_one += "".join(one)
    got_two += "".join(two)
    assert [got_one, got_two, three] == expected


@pytest.mark.parametrize("read", [0, 1])
def test_a_stream_that_nobody_reads_on_leaves_nothing_behind(llm, read):
    stream = llm.stream("abandoned", GO)
    for _ in range(read):
        next(stream)
    assert llm.has_work
    del stream
    gc.collect()
    assert not llm.has_work


def test_stream_takes_one_prompt_and_one_sample(llm):
    with pytest.raises(TypeError, match="one prompt"):
        llm.stream(["a", "b"], GO)
    with pytest.raises(ValueError, match="n=2"):
        llm.stream("a", SamplingParams(n=2))


# ---- stops


def test_stop_string_cuts_the_text_before_it_even_across_tokens(llm):
    text = llm.generate("tell me", SamplingParams(max_tokens=24, ignore_eos=True))[0].text
    assert len(text) >= 8
    stop = text[4:7]  # three characters, in a byte-level vocabulary several tokens
    end = text.index(stop)
    params = SamplingParams(max_tokens=24, ignore_eos=True, stop=(stop,))
    completion = llm.generate("tell me", params)[0]
    assert completion.text == text[:end]
    assert completion.finish_reason == "stop"
    assert "".join(llm.stream("tell me", params)) == text[:end]


def test_stop_token_ends_the_request_and_is_kept_out_of_the_text(llm):
    ids = llm.generate("stop at a token", GO)[0].token_ids
    stop = ids[3]
    upto = ids.index(stop) + 1
    params = SamplingParams(max_tokens=6, ignore_eos=True, stop_token_ids=(stop,))
    completion = llm.generate("stop at a token", params)[0]
    assert completion.token_ids == ids[:upto]
    assert completion.finish_reason == "stop"
    assert completion.text == llm.tokenizer.decode(ids[: upto - 1])


def test_eos_stops_unless_ignored(tiny):
    """Make the first greedy token the end-of-sequence token (cases L1, L2)."""
    model, tokenizer = tiny
    first = LLM(tiny, num_blocks=8).generate("x", GO)[0].token_ids[0]

    class Ending:
        def __getattr__(self, name):
            return first if name == "eos_token_id" else getattr(tokenizer, name)

    llm = LLM((model, Ending()), num_blocks=8)
    ended = llm.generate("x", SamplingParams(max_tokens=6))[0]
    assert (ended.token_ids, ended.finish_reason, ended.text) == ([first], "stop", "")
    assert len(llm.generate("x", GO)[0].token_ids) == 6
    kept = llm.generate("x", SamplingParams(max_tokens=6, min_tokens=3))[0]
    assert len(kept.token_ids) >= 3


def test_max_tokens_zero_gives_no_token(llm):
    completion = llm.generate("x", SamplingParams(max_tokens=0))[0]
    assert (completion.token_ids, completion.text) == ([], "")
    assert completion.finish_reason == "length"
    assert list(llm.stream("x", SamplingParams(max_tokens=0)))[-1].finish_reason == "length"


# ---- bounds


def test_the_longest_prompt_gets_one_token_and_one_more_is_refused(llm):
    """Case I6: prompt = max_model_len - 1 runs for one token, max_model_len is refused."""
    fits = llm.generate([[5] * 63], SamplingParams(max_tokens=10, ignore_eos=True))[0]
    assert len(fits.token_ids) == 1
    assert fits.finish_reason == "length"
    with pytest.raises(RequestRefused, match="64"):
        llm.generate([[5] * 64], GO)


def test_a_prompt_longer_than_the_pool_is_refused_and_the_rest_go_on(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=4)
    with pytest.raises(RequestRefused, match="16"):
        llm.generate([[5] * 17], GO)
    with pytest.warns(UserWarning, match="refused"):
        good, bad, also_good = llm.generate([[1, 2], [5] * 17, [3]], GO)
    assert bad.finish_reason == "refused"
    assert "16" in bad.error
    assert len(good.token_ids) == len(also_good.token_ids) == 6
    llm.check_invariants()


def test_output_is_cut_at_what_the_pool_holds(tiny):
    """Fault 31: growth past the whole pool ends the request, not the engine."""
    llm = LLM(tiny, block_size=4, num_blocks=2)
    completion = llm.generate([[1] * 6], SamplingParams(max_tokens=50, ignore_eos=True))[0]
    assert completion.finish_reason == "length"
    assert 1 <= len(completion.token_ids) <= 3
    assert llm.generate([[1]], GO)[0].finish_reason == "length"
    llm.check_invariants()


# ---- bad input


@pytest.mark.parametrize("empty", ["", [[]], [""]])
def test_an_empty_prompt_is_refused(llm, empty):
    with pytest.raises(ValueError, match="empty"):
        llm.generate(empty, GO)


def test_a_batch_is_answered_also_when_every_prompt_of_it_is_refused(llm):
    with pytest.warns(UserWarning, match="empty"):
        answers = llm.generate([[], [1] * 64], GO)
    assert [a.finish_reason for a in answers] == ["refused", "refused"]
    assert "empty" in answers[0].error
    assert "max_model_len" in answers[1].error


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([1, -1], ValueError, "token 1"),
        ([1, 10**9], ValueError, "vocabulary"),
        ([1, 2**64], ValueError, "vocabulary"),
        ([1.5, 2], TypeError, "token"),
        ([True, False], TypeError, "token"),
        (b"text", TypeError, "bytes"),
        ([b"text"], TypeError, "bytes"),
        ([[1, "2"]], TypeError, "token"),
        (None, TypeError, "prompt"),
        (7, TypeError, "prompt"),
        ([None], TypeError, "prompt"),
        ([{"role": "user"}], TypeError, "prompt"),
    ],
)
def test_what_is_no_prompt_is_named(llm, prompt, error, words):
    with pytest.raises(error, match=words):
        llm.generate(prompt, GO)


def test_params_must_match_the_prompts(llm):
    with pytest.raises(ValueError, match="2 prompts but 3 params"):
        llm.generate(["a", "b"], [GO] * 3)
    with pytest.raises(TypeError, match="SamplingParams"):
        llm.generate(["a"], [{"max_tokens": 3}])


def test_nan_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=math.nan)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"block_size": 0}, "block_size"),
        ({"block_size": 2.5}, "block_size"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"num_blocks": 4, "kv_cache_bytes": 10**6}, "give one"),
        ({"kv_cache_bytes": 10}, "holds no block"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_model_len": 10**9}, "max_model_len"),
        ({"kv_policy": "buddy"}, "kv_policy"),
        ({"attention_backend": "magic"}, "magic"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"watermark": 1.5}, "watermark"),
    ],
)
def test_a_setting_out_of_range_is_named(tiny, settings, words):
    with pytest.raises(ValueError, match=words):
        LLM(tiny, **settings)


def test_a_pool_larger_than_any_memory_is_refused_at_once(tiny):
    with pytest.raises(RuntimeError, match="make the pool smaller"):
        LLM(tiny, kv_cache_bytes=2**60)


def test_unknown_model_says_what_there_is():
    with pytest.raises(FileNotFoundError, match="smollm2") as caught:
        LLM("gpt-17")
    assert "tiny" in str(caught.value)


# ---- interrupts and errors inside


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", ["forward", "schedule", "sample"])
def test_an_interrupt_leaves_the_engine_whole(llm, monkeypatch, error, at):
    before = llm.generate("steady", GO)[0].token_ids
    calls = 0

    def stumble(function):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == 3:
                raise error("stumbled")
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        if at == "forward":
            patch.setattr(llm.model, "forward", stumble(llm.model.forward))
        elif at == "schedule":
            patch.setattr(llm.scheduler, "schedule", stumble(llm.scheduler.schedule))
        else:
            import course.engine.runner as runner

            patch.setattr(runner, "sample", stumble(runner.sample))
        with pytest.raises(error):
            llm.generate(["steady", "other", "third"], GO)
    llm.check_invariants()
    assert not llm.has_work
    assert llm.generate("steady", GO)[0].token_ids == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_failed_after_its_draw_does_not_shift_the_dice(llm, monkeypatch, error):
    """Another request's bad row may fail a step when this one's number is drawn already."""
    dice = SamplingParams(max_tokens=8, temperature=1.5, seed=7, ignore_eos=True)
    alone = llm.generate("steady", dice)[0].text
    stream = llm.stream("steady", dice)
    text = next(stream) + next(stream)
    run = llm.core.runner.run

    def stumble(step):
        run(step)
        raise error("stumbled")

    with monkeypatch.context() as patch:
        patch.setattr(llm.core.runner, "run", stumble)
        with pytest.raises(error):
            llm.generate("other", GO)
    assert text + "".join(stream) == alone


def test_a_stream_may_be_dropped_while_the_model_runs(llm, monkeypatch):
    """The garbage collector closes a lost stream whenever it likes, in the middle of a step too."""
    alone = llm.generate("steady", GO)[0].token_ids
    lost, run = [llm.stream("lost", GO)], llm.core.runner.run

    def run_and_collect(step):
        tokens = run(step)
        if llm.stats.steps > 8 and lost:
            lost.pop().close()
        return tokens

    monkeypatch.setattr(llm.core.runner, "run", run_and_collect)
    assert llm.generate("steady", GO)[0].token_ids == alone
    assert not lost


def test_a_request_whose_text_cannot_be_made_is_not_left_in_the_queue(llm, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(llm.tokenizer, "stream_decoder", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate("no", GO)
    assert not llm.has_work


# ---- statistics


def test_stats_add_up(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=32)
    llm.generate([[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 1, GO)
    llm.generate([[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 1, GO)
    stats = llm.stats
    assert stats.finished == 2
    assert stats.prompt_tokens == 18
    assert stats.cached_tokens == 8
    assert stats.hit_rate == pytest.approx(8 / 18)
    assert stats.generated_tokens == 12
    assert stats.steps == 12
    assert stats.mean_batch == 1
    assert stats.blocks == 32
    assert stats.blocks_live + stats.blocks_cached + stats.blocks_free == 32
    assert stats.blocks_live == 0
    assert stats.blocks_cached >= 3
    assert 0 < stats.time_to_first_token < 60
    assert 0 < stats.model_seconds <= stats.seconds
    assert "tokens_per_second" in str(stats)


def test_waste_is_what_the_last_blocks_do_not_hold(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=32)
    seen = []
    llm.generate(
        [[1] * 5],
        SamplingParams(max_tokens=2, ignore_eos=True),
        on_step=lambda e: seen.append((e.stats.blocks_live, e.stats.waste)),
    )
    assert seen[0] == (2, pytest.approx(3 / 8))  # 5 tokens written in 2 blocks of 4


# ---- separate prefixes


def test_blocks_are_shared_only_under_the_same_extra_key(tiny):
    llm = LLM(tiny, block_size=4, num_blocks=32)
    prompt = list(range(20, 32))
    assert llm.generate(prompt, GO, extra_key="tenant a")[0].num_cached_tokens == 0
    assert llm.generate(prompt, GO, extra_key="tenant b")[0].num_cached_tokens == 0
    assert llm.generate(prompt, GO)[0].num_cached_tokens == 0
    again = llm.generate(prompt, GO, extra_key="tenant a")[0]
    assert again.num_cached_tokens == 8
    assert "".join(llm.stream(prompt, GO, extra_key="tenant a")) == again.text
    assert llm.stats.cached_tokens == 16
    with pytest.raises(ValueError, match="extra_key"):
        llm.generate(prompt, GO, extra_key=7)
    assert not llm.has_work
