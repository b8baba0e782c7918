"""The cases of the benchmark: prompts as token ids and how many tokens each must produce."""

import random
from dataclasses import dataclass

from course.workload import mix

BLOCK_SIZE = 16  # of every engine that pages, and what a pool is counted in

# Ids from this range are ordinary text in SmolLM2's vocabulary of 49,152; specials lie below it.
_LOW, _HIGH = 1000, 49000

# Two minutes of arrivals at 0.4 requests a second, more than two cores can serve: so they queue,
# and all are offered at once. Lengths are a trace's, divided so that a prompt has 128 tokens in the
# mean: at full length a case would take a quarter of an hour.
_SLICE_REQUESTS, _SLICE_PROMPT = 48, 128
_SLICES = {
    "azure_code_2023": "Azure code",
    "azure_conv_2023": "Azure conversation",
    "sharegpt_8k_filtered": "ShareGPT",
    "arxiv_summarization": "arXiv summaries",
}


@dataclass(frozen=True)
class Case:
    """One workload. Every sample produces exactly its number of tokens.

    Greedy, unless num_samples > 1: these are drawn, as equal ones would teach nothing.
    pool_tokens: room for the keys and values of so many tokens; None: more than enough.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    num_samples: int = 1
    pool_tokens: int | None = None

    @property
    def output_tokens(self) -> int:
        return sum(self.max_tokens) * self.num_samples


def make_cases(seed: int = 0) -> dict[str, Case]:
    """The cases by name, the same for the same seed."""
    rng = random.Random(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(_LOW, _HIGH) for _ in range(count))

    def case(name: str, lengths: list[tuple[int, int]], **more) -> Case:
        prompts = tuple(words(prompt) for prompt, _ in lengths)
        return Case(name, prompts, tuple(output for _, output in lengths), **more)

    mixed = [(rng.randint(16, 400), rng.randint(16, 200)) for _ in range(64)]
    cases = [
        case("1 request, 16 in, 128 out", [(16, 128)]),
        case("8 requests, 64 in, 64 out", [(64, 64)] * 8),
        case("32 requests, 64 in, 64 out", [(64, 64)] * 32),
        case("64 mixed, 16-400 in, 16-200 out", mixed),
    ]
    prefix = words(400)
    prompts = tuple(prefix + words(16) for _ in range(32))
    cases.append(Case("32 requests sharing a prefix of 400", prompts, (64,) * 32))
    cases.append(case("1 prompt of 64, 8 samples of 64", [(64, 64)], num_samples=8))
    for name, title in _SLICES.items():
        lengths = slice_lengths(name, seed)
        need = sum(-(-(prompt + output) // BLOCK_SIZE) for prompt, output in lengths)
        longest = max(-(-(prompt + output) // BLOCK_SIZE) for prompt, output in lengths)
        pool = max(need // 4, longest) * BLOCK_SIZE
        cases.append(case(f"{title}, a quarter of the memory", lengths, pool_tokens=pool))
    return {c.name: c for c in cases}


def slice_lengths(mix_name: str, seed: int = 0) -> list[tuple[int, int]]:
    """(prompt, output) tokens of the requests of one slice."""
    lengths = mix(mix_name).sample(_SLICE_REQUESTS, seed=seed)
    divisor = sum(prompt for prompt, _ in lengths) / (_SLICE_REQUESTS * _SLICE_PROMPT)
    return [(max(1, round(p / divisor)), max(1, round(o / divisor))) for p, o in lengths]
