"""How empty a reservation is: three metrics that differ, and what each leaves out.

Everything here is arithmetic on lengths: no pool, no queue, no scheduler. After its i-th output
token a request of prompt p has p + i tokens, so over its life it has p + (o + 1) / 2 on average.
The last output token is counted although an engine that stops there never writes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from course.workload.requests import WorkloadRequest


@dataclass(frozen=True)
class Emptiness:
    """Empty shares, between 0 and 1, of requests that fit into ``max_model_len``.

    The three metrics of a max-length slab:
    at_finish             when a request ends, each request counted once
    lifetime_per_request  on average over its life, each request counted once
    lifetime_per_step     the same, each decode step counted once: what a monitor of the server
                          would show; long answers weigh more

    Other reservations, per decode step: ``exact`` (prompt + output), ``pow2`` (prompt + output
    rounded up to a power of two, at most max_model_len), ``paged`` (whole blocks). ``paged`` also
    when requests end: over all slots together, and each request counted once. ``gain`` is how
    many times more requests pages hold than slabs. With no request kept, shares are NaN.
    """

    max_model_len: int
    block_size: int
    num_requests: int
    num_kept: int
    mean_total: float
    at_finish: float
    lifetime_per_request: float
    lifetime_per_step: float
    exact: float
    pow2: float
    paged: float
    paged_at_finish: float
    paged_at_finish_per_request: float
    mean_empty_slots_in_last_block: float
    gain: float

    @property
    def dropped_share(self) -> float:
        """Share of requests longer than max_model_len: they are in none of the figures."""
        return 1 - self.num_kept / self.num_requests


def emptiness(
    requests: Iterable[WorkloadRequest], max_model_len: int, block_size: int = 16
) -> Emptiness:
    """The metrics for a workload under a limit; requests longer than the limit are left out."""
    if max_model_len < 1 or block_size < 1:
        raise ValueError(
            f"max_model_len is {max_model_len} and block_size is {block_size}: "
            "both must be at least 1."
        )
    lengths = np.array([(r.prompt_tokens, r.output_tokens) for r in requests], dtype=np.int64)
    if not len(lengths):
        raise ValueError("There are no requests: emptiness needs at least one.")
    kept = lengths[lengths.sum(axis=1) <= max_model_len]
    prompt, output = kept[:, 0], kept[:, 1]
    total = prompt + output
    if not len(kept):
        nothing = [float("nan")] * 11
        return Emptiness(max_model_len, block_size, len(lengths), 0, *nothing)

    lived = prompt + (output + 1) / 2  # mean tokens over a life
    live_slots = lived * output  # summed over the decode steps of a life
    block_slots = _block_slots(total, block_size) - _block_slots(prompt, block_size)
    pow2 = np.minimum(prompt + next_power_of_two(output), max_model_len)
    last = -(-total // block_size) * block_size
    return Emptiness(
        max_model_len=max_model_len,
        block_size=block_size,
        num_requests=len(lengths),
        num_kept=len(kept),
        mean_total=float(total.mean()),
        at_finish=float(1 - total.mean() / max_model_len),
        lifetime_per_request=float(1 - lived.mean() / max_model_len),
        lifetime_per_step=float(1 - live_slots.sum() / (max_model_len * output.sum())),
        exact=float(1 - live_slots.sum() / (total * output).sum()),
        pow2=float(1 - live_slots.sum() / (pow2 * output).sum()),
        paged=float(1 - live_slots.sum() / block_slots.sum()),
        paged_at_finish=float(1 - total.sum() / last.sum()),
        paged_at_finish_per_request=float((1 - total / last).mean()),
        mean_empty_slots_in_last_block=float((last - total).mean()),
        gain=float(max_model_len * output.sum() / block_slots.sum()),
    )


def next_power_of_two(values: np.ndarray) -> np.ndarray:
    """The smallest power of two that is at least each value (values of at least 1)."""
    return np.int64(1) << np.ceil(np.log2(values)).astype(np.int64)


def _block_slots(num_tokens: np.ndarray, block_size: int) -> np.ndarray:
    """Slots in whole blocks summed over a growth from 1 token to num_tokens, a token a step."""
    full, rest = np.divmod(num_tokens, block_size)
    blocks = block_size * full * (full + 1) // 2 + rest * (full + 1)
    return blocks * block_size
