"""The record that every trace reader and every generator gives, and ways to put some together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload: lengths and times, no text.

    arrival_s      seconds after the start of the workload; 0.0 where the source has no times
    prompt_tokens  tokens of the prompt, at least 1
    output_tokens  tokens generated, at least 1
    prefix_hashes   one number for each block of the prompt, where the source has them: two equal
                   numbers mean equal prompts up to the end of that block
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hashes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.arrival_s < float("inf"):
            raise ValueError(f"arrival_s is {self.arrival_s}: it must be 0 or more, and finite.")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"A request with {self.prompt_tokens} prompt and {self.output_tokens} output "
                "tokens: both must be at least 1."
            )

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


def make_requests(
    lengths: Iterable[tuple[int, int]], arrivals_s: Iterable[float] | None = None
) -> list[WorkloadRequest]:
    """Requests from (prompt, output) lengths and arrival times; without times all arrive at 0.

    >>> make_requests([(7, 21)], [0.5])
    [WorkloadRequest(arrival_s=0.5, prompt_tokens=7, output_tokens=21, prefix_hashes=None)]
    """
    lengths = list(lengths)
    times = [0.0] * len(lengths) if arrivals_s is None else list(arrivals_s)
    if len(times) != len(lengths):
        raise ValueError(f"{len(lengths)} lengths and {len(times)} arrival times: give one each.")
    return [
        WorkloadRequest(float(t), int(p), int(o)) for t, (p, o) in zip(times, lengths, strict=True)
    ]


def with_arrivals(
    requests: Sequence[WorkloadRequest], arrivals_s: Iterable[float]
) -> list[WorkloadRequest]:
    """The same requests in the same order at other times."""
    times = [float(t) for t in arrivals_s]
    if len(times) != len(requests):
        raise ValueError(f"{len(requests)} requests and {len(times)} arrival times: give one each.")
    return [replace(r, arrival_s=t) for r, t in zip(requests, times, strict=True)]
