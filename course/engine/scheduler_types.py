"""What goes into the scheduler and what comes out of it."""

from dataclasses import dataclass, field
from operator import index

from course.engine.request import Request
from course.engine.sampling_params import MAX_TOKEN_ID


class RequestRefused(ValueError):
    """The request can never be served; the message names the limit and what to change."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step. A value out of its range is a ValueError."""

    max_num_seqs: int  # requests running at once, 1 or more
    max_num_batched_tokens: int  # the token budget: tokens computed in one step, 1 or more
    chunked_prefill: bool = True  # may a prompt be computed in pieces, over several steps?
    max_model_len: int | None = None  # longest sequence, prompt and output; None: the pool decides

    def __post_init__(self):
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if name == "max_model_len" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be an integer, 1 or more")
        if not isinstance(self.chunked_prefill, bool):
            raise ValueError(f"chunked_prefill is {self.chunked_prefill!r}; True or False")

    def may_split(self, num_tokens: int) -> bool:
        """May so many tokens of one request be computed over several steps?

        Without chunked prefill they wait for a step that has room for all of them. But a preempted
        request that has outgrown the whole budget would wait for ever: it comes in pieces.
        """
        return self.chunked_prefill or num_tokens > self.max_num_batched_tokens


@dataclass
class Step:
    """The work of one forward pass.

    Invariant: each scheduled request computes at least one token, together at most the token
    budget, and every block that they write has one owner.
    """

    scheduled: list[tuple[Request, int, int]] = field(default_factory=list)
    """(request, start, num_tokens): compute its tokens start .. start + num_tokens - 1."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination) blocks to copy before anything is written."""
    preempted: list[Request] = field(default_factory=list)
    """Requests that lost their blocks in this step, in the order in which they did."""
    samples: list[Request] = field(default_factory=list)
    """Requests that get a new token: those whose every token is computed after this step."""
    sample_rows: list[int] = field(default_factory=list)
    """For each of `samples`, the index into `scheduled` whose last token it samples from."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(num_tokens for _, _, num_tokens in self.scheduled)

    def checked_tokens(self, sampled: dict[str, int]) -> dict[str, int]:
        """The sampled tokens as plain integers, if there is one for each of `samples`.

        ValueError if one is missing (only finished requests may lack theirs), if one is for a
        request that is not in this step, or if it is no token id.
        """
        required = {request.request_id for request in self.samples if not request.is_finished}
        known = {request.request_id for request in self.samples}
        # A prompt that is not computed to its end samples nothing; a token for it is ignored.
        known |= {request.request_id for request, _, _ in self.scheduled}
        wrong = (required - sampled.keys()) | (sampled.keys() - known)
        if wrong:
            raise ValueError(f"one token for each of step.samples; not so for {sorted(wrong)[:5]}")
        tokens = {request_id: index(token_id) for request_id, token_id in sampled.items()}
        for request_id, token_id in tokens.items():
            if not 0 <= token_id <= MAX_TOKEN_ID:
                raise ValueError(f"{request_id!r}: token {token_id} is outside 0..{MAX_TOKEN_ID}")
        return tokens
