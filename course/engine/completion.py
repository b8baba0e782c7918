"""What goes into the engine and what comes out: prompts, parameters, completions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral

from course.engine.sampling_params import SamplingParams


@dataclass
class Completion:
    """The answer to one prompt. With n samples, `samples` holds all of them, this one first."""

    request_id: str
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length", "abort" or "refused"
    num_cached_tokens: int = 0  # prompt tokens whose keys and values were found in the prefix cache
    time_to_first_token: float | None = None  # seconds
    time_per_token: float | None = None  # seconds
    error: str | None = None  # why the prompt was refused
    samples: Sequence["Completion"] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, prompt_token_ids, jobs) -> "Completion":
        """From the jobs of one prompt, or from the refusal that it met."""
        if isinstance(jobs, Exception):
            return cls("", prompt_token_ids, "", [], "refused", error=str(jobs))
        samples = [
            cls(
                request_id=job.request.request_id,
                prompt_token_ids=prompt_token_ids,
                text=job.output.text,
                token_ids=list(job.request.output_token_ids),
                finish_reason=job.request.finish_reason,
                num_cached_tokens=job.request.num_cached_tokens,
                time_to_first_token=job.timing.time_to_first_token,
                time_per_token=job.timing.time_per_token,
            )
            for job in jobs
        ]
        samples[0].samples = samples
        return samples[0]

    def as_dict(self) -> dict:
        """Plain data, for JSON. `samples` is there when there are several."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "samples"}
        if len(self.samples) > 1:  # the first is this one: leave its own list out of itself
            plain["samples"] = [replace(s, samples=[]).as_dict() for s in self.samples]
        return plain


class Piece(str):
    """A piece of streamed text that also knows how its request stands."""

    num_tokens: int  # output tokens of the request so far
    finish_reason: str | None  # set on the last piece

    def __new__(cls, text: str, request):
        piece = super().__new__(cls, text)
        piece.num_tokens = len(request.output_token_ids)
        piece.finish_reason = request.finish_reason
        return piece


def _is_ids(prompt) -> bool:
    """A list of integers is one prompt; a list of anything else is a list of prompts."""
    return len(prompt) > 0 and all(isinstance(item, Integral) for item in prompt)


def as_prompts(prompts, tokenizer, one: bool = False) -> list[list[int]]:
    """Prompts as lists of token ids, whatever form they came in.

    Raises TypeError for what is neither text nor token ids, ValueError for an id that the model's
    vocabulary does not have. An empty prompt passes: refusing it is the scheduler's business.
    """
    if isinstance(prompts, bytes | bytearray):  # a sequence of integers, but of bytes, not tokens
        raise TypeError("a prompt is text or a list of token ids, got bytes; decode them first")
    single = isinstance(prompts, str) or (isinstance(prompts, Sequence) and _is_ids(prompts))
    if not single and not isinstance(prompts, Sequence):
        if not hasattr(prompts, "tolist"):
            raise TypeError(
                f"a prompt is text or a list of token ids, got {type(prompts).__name__}"
            )
        return as_prompts(prompts.tolist(), tokenizer, one)  # an array or tensor of ids
    if one and not single:
        if len(prompts):
            raise TypeError("stream takes one prompt: text, or a list of token ids")
        single = True  # an empty list of ids
    return [_as_ids(prompt, tokenizer) for prompt in ([prompts] if single else prompts)]


def _as_ids(prompt, tokenizer) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise TypeError(f"a prompt is text or a list of token ids, got {type(prompt).__name__}")
    for place, token_id in enumerate(prompt):
        if isinstance(token_id, bool) or not isinstance(token_id, Integral):
            raise TypeError(f"token {place} of the prompt is {token_id!r}, not a token id")
        if not 0 <= int(token_id) < tokenizer.vocab_size:
            raise ValueError(
                f"token {place} of the prompt is {token_id}, outside the vocabulary of"
                f" {tokenizer.vocab_size} ids (0..{tokenizer.vocab_size - 1})"
            )
    return [int(token_id) for token_id in prompt]


def pair_params(params, num_prompts: int) -> list[SamplingParams]:
    """One SamplingParams for each prompt."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    params = list(params)
    for item in params:
        if not isinstance(item, SamplingParams):
            raise TypeError(f"params must be SamplingParams, got {type(item).__name__}")
    if len(params) != num_prompts:
        raise ValueError(
            f"{num_prompts} prompts but {len(params)} params; give one for all, or one each"
        )
    return params
