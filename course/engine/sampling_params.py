"""What a caller may ask of one request: how long, how random, where to stop."""

from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any

MAX_TOKEN_ID = 2**32 - 1
MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class SamplingParams:
    """Sampling choices of one request. A value out of its range is a ValueError naming the range.

    Greedy by default: temperature 0 takes the likeliest token and ignores top_k, top_p and seed.
    """

    max_tokens: int = 16  # 0 or more; 0 finishes with no token
    temperature: float = 0.0  # 0 or more
    top_k: int = 0  # keep the k likeliest tokens; 0: all
    top_p: float = 1.0  # over 0, up to 1: keep the likeliest tokens that add up to it
    stop_token_ids: tuple[int, ...] = ()  # these end the output and stay in it
    stop: tuple[str, ...] = ()  # these texts end the output; a single string is one text
    ignore_eos: bool = False  # go on after the model's end-of-sequence token
    min_tokens: int = 0  # no stop token counts before so many output tokens
    seed: int | None = None  # None: not reproducible
    n: int = 1  # samples of the same prompt, which share its blocks

    def __post_init__(self):
        self._integer("max_tokens", 0)
        self._number("temperature", 0.0, above=False)
        self._integer("top_k", 0)
        self._number("top_p", 0.0, above=True, high=1.0)
        self._integer("min_tokens", 0, self.max_tokens, "max_tokens")
        self._integer("n", 1)
        if self.seed is not None:
            self._integer("seed", 0, MAX_SEED)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}; it must be True or False")
        self._set("stop_token_ids", self._token_ids(self.stop_token_ids))
        self._set("stop", self._texts(self.stop))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the way round `frozen`, allowed while being made

    def _integer(self, name: str, low: int, high: int | None = None, high_name: str = "") -> None:
        value = getattr(self, name)
        wanted = f"{low} or more" if high is None else f"{low} to {high_name or high}"
        if high_name:
            wanted += f" ({high})"
        # A bool is an int to Python; as a count it is always a mistake.
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name} is {value!r}; it must be an integer, {wanted}")
        value = int(value)
        if value < low or (high is not None and value > high):
            raise ValueError(f"{name} is {value}; it must be {wanted}")
        self._set(name, value)

    def _number(self, name: str, low: float, above: bool, high: float | None = None) -> None:
        value = getattr(self, name)
        wanted = f"over {low:g}" if above else f"{low:g} or more"
        wanted += "" if high is None else f", up to {high:g}"
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} is {value!r}; it must be a number, {wanted}")
        value = float(value)
        too_low = value <= low if above else value < low
        if not isfinite(value) or too_low or (high is not None and value > high):
            raise ValueError(f"{name} is {value}; it must be {wanted}")
        self._set(name, value)

    @staticmethod
    def _token_ids(values: Any) -> tuple[int, ...]:
        wanted = f"stop_token_ids must be a list of token ids, each 0 to {MAX_TOKEN_ID}"
        if isinstance(values, str | bytes | dict) or not hasattr(values, "__iter__"):
            raise ValueError(f"stop_token_ids is {values!r}; {wanted}")
        values = tuple(values)  # once: an iterator is empty after it
        for value in values:
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(f"stop_token_ids has {value!r}; {wanted}")
            if not 0 <= int(value) <= MAX_TOKEN_ID:
                raise ValueError(f"stop_token_ids has {value}; {wanted}")
        return tuple(int(value) for value in values)

    @staticmethod
    def _texts(values: Any) -> tuple[str, ...]:
        wanted = "stop must be a text or a list of texts, none of them empty"
        if isinstance(values, str):
            values = (values,)
        if isinstance(values, bytes | dict) or not hasattr(values, "__iter__"):
            raise ValueError(f"stop is {values!r}; {wanted}")
        values = tuple(values)
        for value in values:
            if not isinstance(value, str) or not value:
                raise ValueError(f"stop has {value!r}; {wanted}")
        return values
