"""From logits to tokens: greedy, temperature, top-k and top-p, for a whole batch at once.

Rules that make a seed mean the same tokens in any company:

- A request draws one number a token, from its own generator; the rest is arithmetic on its row.
- Equal logits: the lowest token id comes first. Greedy takes it, top-k and top-p keep it.
- Order of the cuts: temperature, then top-k, then top-p of what is left.
"""

from collections.abc import Sequence
from math import isfinite

import torch

from course.engine.native.operations import inverse_transform, largest
from course.engine.sampling_params import SamplingParams

_FIRST_LOOK = 256  # candidates that top-k and top-p look at before they look at more
_ROWS_AT_ONCE = 8  # on a CPU: larger scratch tensors cost more in fresh memory than in arithmetic


class BadLogits(ValueError):
    """Logits that hold NaN or +inf, or nothing but -inf. `.rows` lists the rows."""

    def __init__(self, rows: list[int]):
        self.rows = rows
        super().__init__(
            f"rows {rows} of the logits hold NaN or +inf, or only -inf: no token can be chosen. "
            "Look for damaged weights or an overflow (float16?) in the step before."
        )


def make_generator(seed: int | None, num_drawn: int = 0) -> torch.Generator:
    """A request's own random numbers, on the host; without a seed, from the system's entropy.

    num_drawn: tokens that the request has drawn already, so that it goes on behind them.
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
        return generator
    generator.manual_seed(seed)
    for _ in range(num_drawn):
        _uniform(generator)
    return generator


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator | None],
) -> list[int]:
    """One token for each row of logits [N, vocab_size] (float32; -inf forbids a token).

    `params` and `generators` have one entry a row; a greedy row (temperature 0) never touches its
    generator, so it may be None. Raises BadLogits; changes nothing but the generators.
    """
    if not len(logits) == len(params) == len(generators):
        raise ValueError(
            f"{len(logits)} rows of logits, {len(params)} params and {len(generators)} generators:"
            " one of each for every row is needed"
        )
    if not len(params):
        return []
    best, tokens = largest(logits)  # the first of equals
    free, cut = [], []  # rows to draw, from all tokens or from the likeliest
    for i, p in enumerate(params):
        if p.temperature > 0:
            is_cut = p.top_p < 1 or 0 < p.top_k < logits.shape[-1]
            (cut if is_cut else free).append(i)
    step = _ROWS_AT_ONCE if logits.device.type == "cpu" else len(params)
    for rows, draw in ((free, _draw_any), (cut, _draw_likely)):
        for some in (rows[at : at + step] for at in range(0, len(rows), step)):
            chosen = [params[i] for i in some]
            # Subtracting the best first keeps small temperatures from overflowing. Long before
            # float32 runs out, all the weight is on the best, or all tokens weigh the same.
            temperature = [min(max(p.temperature, 1e-30), 1e30) for p in chosen]
            scaled = logits[some] - best[some, None]
            scaled /= _column(temperature, torch.float32, logits)
            u = [_uniform(generators[i]) for i in some]
            tokens[some] = draw(scaled, chosen, _column(u, torch.float64, logits))
    if tokens.device.type == "cpu":
        bad = [i for i, most in enumerate(best.tolist()) if not isfinite(most)]
        chosen = tokens.tolist()
    else:  # one trip to the host for both
        chosen = torch.where(best.isfinite(), tokens, -1).tolist()
        bad = [i for i, token in enumerate(chosen) if token == -1]
    if bad:
        raise BadLogits(bad)
    return chosen


def _uniform(generator: torch.Generator | None) -> float:
    return torch.rand((), dtype=torch.float64, generator=generator).item()


def _column(values: list, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]


def _draw_any(scaled: torch.Tensor, params, u: torch.Tensor) -> torch.Tensor:
    """A token of each row, of all; scaled [N, vocab_size], u float64 [N, 1] in [0, 1)."""
    return inverse_transform(scaled.exp_(), u)[:, 0]


def _draw_likely(scaled: torch.Tensor, params, u: torch.Tensor) -> torch.Tensor:
    """A token of each row, of its top_k likeliest, and of those of the fewest that reach top_p.

    Sorting a whole vocabulary costs a CPU more than the layers of a small model, and the likeliest
    few usually settle where to cut: the others are looked at only if not.
    """
    vocab_size = scaled.shape[-1]
    limits = [min(p.top_k or vocab_size, vocab_size) for p in params]
    top_k = _column(limits, torch.int64, scaled)
    top_p = _column([p.top_p for p in params], torch.float64, scaled)
    total = scaled.exp().sum(dim=-1, keepdim=True, dtype=torch.float64)
    look_at = max([_FIRST_LOOK, *(k + 1 for k in limits if k < vocab_size)])
    while True:
        # A GPU sorts faster than it answers whether that was enough.
        if scaled.device.type != "cpu" or look_at > vocab_size:
            look_at = vocab_size
        likely, ids = scaled.topk(look_at, dim=-1)
        weights = likely.exp()
        running = weights.cumsum(dim=-1, dtype=torch.float64)
        in_top_k = running.gather(-1, top_k.clamp(max=look_at) - 1)
        goal = top_p * torch.where(top_k < vocab_size, in_top_k, total)
        num_kept = torch.minimum((running < goal).sum(dim=-1, keepdim=True) + 1, top_k)
        last = likely.gather(-1, num_kept.clamp(max=look_at) - 1)
        # Settled when something less likely was seen: then all equals of the last one were, too.
        if look_at == vocab_size or bool((last > likely[:, -1:]).all()):
            break
        look_at *= 8
    # Among equals topk keeps no order: put the lowest id first.
    ids, order = ids.sort(dim=-1)
    likely, by_likelihood = likely.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    kept = torch.arange(look_at, device=scaled.device) < num_kept
    place = inverse_transform(likely.exp() * kept, u)
    return ids.gather(-1, by_likelihood).gather(-1, place)[:, 0]
