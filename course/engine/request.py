"""One request: its tokens, and how far the engine has come with them."""

from collections.abc import Iterable
from enum import Enum
from operator import index

from course.engine.prefix_cache import extend_hashes
from course.engine.sampling_params import MAX_TOKEN_ID, SamplingParams


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = "waiting"  # not admitted yet
    RUNNING = "running"  # has a block table
    PREEMPTED = "preempted"  # had one, lost it, waits at the front of the queue
    FINISHED = "finished"


class Request:
    """A prompt, its output so far, and two counts that must not be mixed up.

    num_tokens           all tokens: the prompt and every output token, the newest one included
    num_computed_tokens  those whose keys and values are stored in the cache

    Invariant: num_computed_tokens <= num_tokens, and while it decodes they differ by one: the
    newest token was sampled in the last step and its key and value are written in the next.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        extra_key: str | bytes | None = None,
        eos_token_id: int | None = None,
    ):
        """extra_key: requests share cached blocks only with requests that have the same one.

        ValueError for a token id that is not an integer from 0 to 2**32 - 1. An empty prompt is
        refused by the scheduler, not here.
        """
        if not isinstance(request_id, str):
            raise ValueError(f"request_id is {request_id!r}; it must be a string")
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params is {params!r}; it must be a SamplingParams")
        if extra_key is not None and not isinstance(extra_key, str | bytes):
            raise ValueError(f"extra_key is {extra_key!r}; it must be str, bytes or None")
        self.request_id = request_id
        self.token_ids = _checked_token_ids(prompt_token_ids)  # prompt, then output
        self.num_prompt_tokens = len(self.token_ids)
        self.params = params
        self.extra_key = extra_key
        self.eos_token_id = eos_token_id

        self.status = RequestStatus.WAITING
        self.finish_reason: str | None = None  # "stop", "length" or "abort" when finished
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0  # taken from the prefix cache at the first admission
        self.num_preemptions = 0
        self.max_num_tokens: int | None = None  # bound on num_tokens, set by the scheduler
        self.parent_id: str | None = None  # of a child: whose prompt it shares
        self.children: list[Request] = []  # for params.n > 1, made by the scheduler
        self._block_hashes: list[bytes] = []
        self._hash_block_size = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    @property
    def unforked_children(self) -> "list[Request]":
        """Children that still wait for this request's prompt to be computed."""
        return [child for child in self.children if child.status is RequestStatus.WAITING]

    def block_hashes(self, block_size: int) -> list[bytes]:
        """The chained hashes of all full blocks of its tokens. Each block is hashed once."""
        if block_size != self._hash_block_size:
            self._hash_block_size, self._block_hashes = block_size, []
        extend_hashes(self._block_hashes, self.token_ids, block_size, self.extra_key)
        return self._block_hashes

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, {self.num_prompt_tokens} prompt + "
            f"{self.num_output_tokens} output tokens, {self.num_computed_tokens} computed)"
        )


def _checked_token_ids(token_ids: Iterable[int]) -> list[int]:
    checked = []
    for position, token_id in enumerate(token_ids):
        try:
            value = index(token_id)
        except TypeError:
            value = -1
        if not 0 <= value <= MAX_TOKEN_ID:
            raise ValueError(
                f"token {token_id!r} at position {position} of the prompt: "
                f"a token id is an integer from 0 to {MAX_TOKEN_ID}"
            )
        checked.append(value)
    return checked
