"""An interrupt (Ctrl-C, the stop button) at any line of the engine leaves it whole.

Real signals: a trace function raises SIGINT when a given number of the engine's lines have run.
"""

import random
import signal
import sys
import threading

import pytest
import torch

from course.engine import LLM, SamplingParams, load_model
from course.engine.interrupts import interrupts_held

NUM_BLOCKS = 14
STREAMED = SamplingParams(max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True, n=2)


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny", dtype=torch.float32, device="cpu")


def small(tiny) -> LLM:
    """So small that it preempts, chunks and shares within a few steps."""
    return LLM(
        tiny, block_size=2, num_blocks=NUM_BLOCKS, max_model_len=28, max_num_batched_tokens=6
    )


def interrupt_after(lines: int, action) -> bool:
    """Run `action`, raise SIGINT after so many lines of the engine; was it interrupted?"""
    left = lines

    def trace(frame, event, arg):
        nonlocal left
        if "course/engine" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("part", range(4))
def test_an_interrupt_at_any_line_leaves_the_engine_whole(tiny, part):
    expected = small(tiny).generate("steady!", STREAMED)[0].text
    interrupted = 0
    for trial in range(part * 40, part * 40 + 40):
        rng = random.Random(trial)
        llm = small(tiny)
        stream = llm.stream("steady!", STREAMED)
        text = "".join(next(stream) for _ in range(rng.randrange(4)))
        interrupted += interrupt_after(
            rng.randrange(1, 2500), lambda llm=llm: llm.generate(["other one", "x"], SAMPLED)
        )
        llm.check_invariants()
        text += "".join(stream)  # whoever was not interrupted goes on, with nothing lost
        assert text == expected, trial
        llm.check_invariants()
        assert not llm.has_work, trial
        assert llm.core.jobs == {}, trial
        assert llm.kv_manager.num_free == NUM_BLOCKS, trial
    assert interrupted >= 20, "most trials never reached their line: the test showed too little"


@pytest.mark.parametrize("lines", range(1, 600, 23))
def test_an_interrupted_stream_leaves_nothing_behind(tiny, lines):
    llm = small(tiny)
    interrupt_after(lines, lambda: "".join(llm.stream("steady!", STREAMED)))
    llm.check_invariants()
    assert not llm.has_work
    assert llm.kv_manager.num_free == NUM_BLOCKS
    assert llm.generate("steady!", STREAMED)[0].finish_reason == "length"


def test_an_interrupt_waits_and_is_not_lost():
    seen = []

    def block():
        with interrupts_held() as interrupted:
            seen.append(interrupted())
            signal.raise_signal(signal.SIGINT)
            seen.append(interrupted())

    with pytest.raises(KeyboardInterrupt):
        block()
    assert seen == [False, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait():
    seen = []

    def block():
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                seen.append("at once")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert seen == ["at once"]


def test_nested_blocks_hold_until_the_outermost_ends():
    reached = []

    def block():
        with interrupts_held() as interrupted:
            with interrupts_held():
                signal.raise_signal(signal.SIGINT)
            reached.append(interrupted())

    with pytest.raises(KeyboardInterrupt):
        block()
    assert reached == [True]


def test_another_thread_runs_undisturbed(tiny):
    answers = []
    thread = threading.Thread(
        target=lambda: answers.extend(small(tiny).generate("steady!", STREAMED))
    )
    thread.start()
    thread.join(timeout=60)
    assert len(answers) == 1
