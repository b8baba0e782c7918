"""Synthetic conversations: requests of many turns whose prompts repeat what was said before.

No public trace of conversations is shipped with the course, so this one is drawn. Its shape is an
assumption: every length and every pause is set by a mean, and all draws are seeded.
"""

from dataclasses import dataclass

import numpy as np

from course.workload.arrivals import poisson
from course.workload.requests import WorkloadRequest


@dataclass(frozen=True)
class Conversations:
    """What a conversation is like; all means are of geometric or exponential distributions.

    system_prompts   different system prompts; each conversation has one, the first is the commonest
                     (the i-th is taken with a weight of 1 / i)
    system_tokens    tokens of a system prompt; 0 for none
    mean_turns       requests of a conversation
    mean_message     tokens of a user's message, at least 1
    mean_answer      tokens of an answer, at least 1
    mean_pause_s     seconds between a request and the next of its conversation
    rate_per_s       conversations that begin each second
    """

    system_prompts: int = 4
    system_tokens: int = 512
    mean_turns: float = 4.0
    mean_message: float = 60.0
    mean_answer: float = 200.0
    mean_pause_s: float = 60.0
    rate_per_s: float = 0.5

    def __post_init__(self) -> None:
        least = {"system_prompts": 1, "system_tokens": 0, "mean_turns": 1}
        least |= {"mean_message": 1, "mean_answer": 1}
        for name, low in least.items():
            if not low <= getattr(self, name) < 1e6:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {low}.")
        for name in ("mean_pause_s", "rate_per_s"):
            if not 0 < getattr(self, name) < 1e9:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0.")


def multi_turn(
    num_conversations: int,
    seed: int,
    shape: Conversations | None = None,
    block_tokens: int = 16,
) -> list[WorkloadRequest]:
    """Requests of ``num_conversations`` conversations in order of arrival, with block hashes.

    The prompt of a turn is the system prompt, all earlier messages and answers, and the new
    message. It has one hash for each full block of ``block_tokens`` tokens: equal for conversations
    with the same system prompt as long as the block lies inside it, and equal for the turns of one
    conversation. A partial last block has none.

    >>> len(multi_turn(3, seed=0)) >= 3
    True
    """
    if num_conversations < 0:
        raise ValueError(f"num_conversations is {num_conversations}: it must be 0 or more.")
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}: it must be at least 1.")
    shape = shape or Conversations()
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, shape.system_prompts + 1)
    systems = generator.choice(
        shape.system_prompts, size=num_conversations, p=weights / weights.sum()
    )
    begins = poisson(num_conversations, shape.rate_per_s, seed)
    shared = shape.system_tokens // block_tokens  # blocks that lie inside the system prompt
    numbers: dict[tuple[str, int, int], int] = {}  # block -> its hash, counted up
    requests = []
    for conversation, (system, when) in enumerate(zip(systems, begins, strict=True)):
        tokens, time = shape.system_tokens, float(when)
        for _ in range(generator.geometric(1 / shape.mean_turns)):
            tokens += int(generator.geometric(1 / shape.mean_message))
            answer = int(generator.geometric(1 / shape.mean_answer))
            blocks = [
                ("system", int(system), i) if i < shared else ("chat", conversation, i)
                for i in range(tokens // block_tokens)
            ]
            hashes = tuple(numbers.setdefault(block, len(numbers)) for block in blocks)
            requests.append(WorkloadRequest(time, tokens, answer, hashes))
            tokens += answer
            time += float(generator.exponential(shape.mean_pause_s))
    return sorted(requests, key=lambda request: request.arrival_s)
