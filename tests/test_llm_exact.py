"""The engine says exactly what a dense recomputation of the same weights says, token for token.

The oracle has no cache, no blocks and no batch: it runs the whole text through the model again for
every token. Whatever the engine does to save that work must not show in a single token.
"""

import random

import pytest
import torch

from course.engine import LLM, SamplingParams, load_model
from course.engine.model import dense_attend

BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny", dtype=torch.float32, device="cpu")


_known: dict[tuple, list[int]] = {}  # the oracle is slow and is asked the same things again


def dense_greedy(model, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy tokens by full recomputation."""
    known = _known.setdefault((id(model), *prompt), [])
    while len(known) < max_tokens:
        ids = torch.tensor(prompt + known)
        hidden = model.forward(ids, torch.arange(len(ids)), dense_attend())
        known.append(int(model.logits(hidden[-1:]).argmax()))
    return known[:max_tokens]


def random_prompts(seed: int, count: int, vocab_size: int, shared: int = 0) -> list[list[int]]:
    """Prompts of odd lengths around the block boundaries, the first `shared` tokens in common."""
    rng = random.Random(seed)
    prefix = [rng.randrange(vocab_size) for _ in range(shared)]
    lengths = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE + 1]
    return [
        prefix + [rng.randrange(vocab_size) for _ in range(rng.choice([*lengths, 17, 23]))]
        for _ in range(count)
    ]


def expect_dense(tiny, llm, prompts, params_list):
    for completion, prompt, params in zip(
        llm.generate(prompts, params_list), prompts, params_list, strict=True
    ):
        assert completion.token_ids == dense_greedy(tiny[0], prompt, params.max_tokens)
        assert completion.finish_reason == "length"
    llm.check_invariants()
    assert llm.kv_manager.num_free == llm.kv_manager.pool.num_blocks


def greedy(rng) -> SamplingParams:
    return SamplingParams(max_tokens=rng.randint(1, 14), ignore_eos=True)


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["prefix", "no-prefix"])
@pytest.mark.parametrize("chunk", [5, 16, 256])
def test_equals_dense_under_every_pool_that_can_serve(tiny, prefix_caching, chunk):
    """From the smallest pool that holds the longest request alone to one that holds them all."""
    rng = random.Random(chunk)
    prompts = random_prompts(chunk, 5, tiny[1].vocab_size, shared=6)
    params = [greedy(rng) for _ in prompts]
    need = [-(-(len(p) + q.max_tokens) // BLOCK_SIZE) for p, q in zip(prompts, params, strict=True)]
    preemptions = 0
    for num_blocks in range(max(need), sum(need) + 2):
        llm = LLM(
            tiny,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_batched_tokens=chunk,
            prefix_caching=prefix_caching,
        )
        expect_dense(tiny, llm, prompts, params)
        preemptions += llm.stats.preemptions
    assert preemptions > 0, "no pool was small enough: the test did not see a preemption"


@pytest.mark.parametrize("seed", range(4))
def test_equals_dense_with_a_second_helping(tiny, seed):
    """The prefix cache is warm, the pool worn: the same prompts again, longer, and others."""
    rng = random.Random(seed)
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=24, max_num_batched_tokens=11)
    first = random_prompts(seed, 4, tiny[1].vocab_size, shared=9)
    for prompts in (first, [p + [7] * 5 for p in first], first[::-1]):
        expect_dense(tiny, llm, prompts, [greedy(rng) for _ in prompts])
    assert llm.stats.hit_rate > 0


def test_whole_prompt_cached_twice(tiny):
    """A prompt of whole blocks, twice: one token is left to compute (case D4, fault 1)."""
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=16)
    prompt = list(range(40, 52))
    params = [SamplingParams(max_tokens=6, ignore_eos=True)]
    expect_dense(tiny, llm, [prompt], params)
    expect_dense(tiny, llm, [prompt], params)
    assert llm.generate(prompt, params)[0].num_cached_tokens == 8


def test_two_identical_prompts_in_one_step_over_poisoned_memory(tiny):
    """The second must not read what the first has not written yet (case D14, fault 5)."""
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=16)
    llm.cache.keys.fill_(float("nan"))
    llm.cache.values.fill_(float("nan"))
    prompt = list(range(60, 69))
    expect_dense(tiny, llm, [prompt, prompt], [SamplingParams(max_tokens=5, ignore_eos=True)] * 2)


def test_poisoned_pool_is_never_read(tiny):
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=20, max_num_batched_tokens=7)
    llm.cache.keys.fill_(float("nan"))
    llm.cache.values.fill_(float("nan"))
    rng = random.Random(5)
    prompts = random_prompts(5, 6, tiny[1].vocab_size)
    expect_dense(tiny, llm, prompts, [greedy(rng) for _ in prompts])


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_equals_dense_at_any_block_size(tiny, block_size):
    rng = random.Random(block_size)
    prompts = random_prompts(block_size, 3, tiny[1].vocab_size)
    llm = LLM(tiny, block_size=block_size, num_blocks=-(-128 // block_size) + 3)
    expect_dense(tiny, llm, prompts, [greedy(rng) for _ in prompts])


@pytest.mark.parametrize("num_blocks", [9, 12, 30])
def test_slabs_say_the_same_as_pages(tiny, num_blocks):
    """The contiguous baseline is an engine too: same words, fewer requests at a time."""
    rng = random.Random(num_blocks)
    prompts = random_prompts(num_blocks, 5, tiny[1].vocab_size, shared=3)
    llm = LLM(
        tiny, block_size=BLOCK_SIZE, num_blocks=num_blocks, kv_policy="slab", max_model_len=36
    )
    params = [SamplingParams(max_tokens=rng.randint(1, 9), ignore_eos=True) for _ in prompts]
    most = 0

    def watch(llm):
        nonlocal most
        most = max(most, len(llm.scheduler.running))

    completions = llm.generate(prompts, params, on_step=watch)
    for completion, prompt, p in zip(completions, prompts, params, strict=True):
        assert completion.token_ids == dense_greedy(tiny[0], prompt, p.max_tokens)
    assert most <= num_blocks // 9
    llm.check_invariants()


@pytest.mark.parametrize("num_blocks", [8, 11, 40])
def test_samples_of_one_prompt_share_it_and_do_not_disturb_each_other(tiny, num_blocks):
    """n samples forked from a prompt with a half full block: each is what it is alone."""
    prompt = random_prompts(1, 1, tiny[1].vocab_size, shared=6)[0][:10]
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=11, n=4, ignore_eos=True)
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=num_blocks)
    together = [s.token_ids for s in llm.generate(prompt, params)[0].samples]
    assert len({tuple(ids) for ids in together}) > 1
    alone = []
    for i in range(4):
        one = SamplingParams(max_tokens=9, temperature=1.0, seed=11 + i, ignore_eos=True)
        alone.append(LLM(tiny, num_blocks=64).generate(prompt, one)[0].token_ids)
    assert together == alone
    llm.check_invariants()
    assert llm.kv_manager.num_free == num_blocks


def test_greedy_samples_are_equal_and_exact(tiny):
    prompt = list(range(30, 41))
    params = SamplingParams(max_tokens=7, n=3, ignore_eos=True)
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=32)
    for sample in llm.generate(prompt, params)[0].samples:
        assert sample.token_ids == dense_greedy(tiny[0], prompt, 7)


def test_prompt_blocks_are_shared_while_samples_run(tiny):
    """Three samples of a prompt of 4 full blocks hold its blocks once, not three times."""
    llm = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=64)
    params = SamplingParams(max_tokens=3, temperature=1.0, seed=0, n=3, ignore_eos=True)
    most = 0

    def watch(llm):
        nonlocal most
        most = max(most, llm.stats.blocks_live)

    llm.generate(list(range(16)), params, on_step=watch)
    assert most == 4 + 3


def test_a_seeded_sample_does_not_depend_on_its_company(tiny):
    prompts = random_prompts(3, 4, tiny[1].vocab_size)
    params = [SamplingParams(max_tokens=8, temperature=0.8, seed=i, top_p=0.9) for i in range(4)]
    together = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=64).generate(prompts, params)
    for prompt, one_params, completion in zip(prompts, params, together, strict=True):
        alone = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=64).generate(prompt, one_params)
        assert alone[0].token_ids == completion.token_ids


def test_preempted_samples_go_on_where_they_were(tiny):
    """A sampled (not greedy) request under pressure loses and repeats nothing (fault 37)."""
    prompts = random_prompts(9, 4, tiny[1].vocab_size)
    params = [
        SamplingParams(max_tokens=12, temperature=1.0, seed=i, ignore_eos=True) for i in range(4)
    ]
    need = max(-(-(len(p) + 12) // BLOCK_SIZE) for p in prompts)
    tight = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=need + 2)
    roomy = LLM(tiny, block_size=BLOCK_SIZE, num_blocks=200)
    assert [c.token_ids for c in tight.generate(prompts, params)] == [
        c.token_ids for c in roomy.generate(prompts, params)
    ]
    assert tight.stats.preemptions > 0
    assert roomy.stats.preemptions == 0
