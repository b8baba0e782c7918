"""The cases of the benchmark: prompts as token ids and how many tokens each must produce."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One workload. Every request produces exactly its number of tokens, greedily."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]

    @property
    def output_tokens(self) -> int:
        return sum(self.max_tokens)


# Ids from this range are ordinary text in SmolLM2's vocabulary of 49,152; specials lie below it.
_LOW, _HIGH = 1000, 49000


def make_cases(seed: int = 0) -> dict[str, Case]:
    """The cases by name, the same for the same seed."""
    rng = random.Random(seed)

    def case(name: str, lengths: list[tuple[int, int]]) -> Case:
        prompts = tuple(
            tuple(rng.randrange(_LOW, _HIGH) for _ in range(prompt)) for prompt, _ in lengths
        )
        return Case(name, prompts, tuple(output for _, output in lengths))

    mixed = [(rng.randint(16, 400), rng.randint(16, 200)) for _ in range(64)]
    cases = [
        case("1 request, 16 in, 128 out", [(16, 128)]),
        case("8 requests, 64 in, 64 out", [(64, 64)] * 8),
        case("32 requests, 64 in, 64 out", [(64, 64)] * 32),
        case("64 mixed, 16-400 in, 16-200 out", mixed),
    ]
    return {c.name: c for c in cases}
