"""From logits to tokens: greedy, temperature, top-k and top-p, for a whole batch at once.

Rules that make a seed mean the same tokens in any company:

- A request draws one number a token, from its own generator; the rest is arithmetic on its row.
- Equal logits: the lowest token id comes first. Greedy takes it, top-k and top-p keep it.
- Order of the cuts: temperature, then top-k, then top-p of what is left.
"""

from collections.abc import Sequence

import torch

from course.engine.sampling_params import SamplingParams

_FIRST_LOOK = 256  # candidates that are tried before sorting the whole vocabulary


class BadLogits(ValueError):
    """Logits that hold NaN or +inf, or nothing but -inf. `.rows` lists the rows."""

    def __init__(self, rows: list[int]):
        self.rows = rows
        super().__init__(
            f"rows {rows} of the logits hold NaN or +inf, or only -inf: no token can be chosen. "
            "Look for damaged weights or an overflow (float16?) in the step before."
        )


def make_generator(seed: int | None) -> torch.Generator:
    """A request's own random numbers, on the host; without a seed, from the system's entropy."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
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
    best, tokens = logits.max(dim=-1)  # the first of equals
    rows = [i for i, p in enumerate(params) if p.temperature > 0]
    if rows:
        some = len(rows) < len(params)
        tokens[rows] = _draw(
            logits[rows] if some else logits,
            best[rows] if some else best,
            [params[i] for i in rows],
            [generators[i] for i in rows],
        )
    tokens = torch.where(best.isfinite(), tokens, -1).tolist()  # the step's one trip to the host
    if -1 in tokens:
        raise BadLogits([i for i, token in enumerate(tokens) if token == -1])
    return tokens


def _draw(logits, best, params, generators) -> torch.Tensor:
    """Inverse transform sampling: the first token whose running total passes u x total."""
    vocab_size = logits.shape[-1]

    def column(values, dtype):
        return torch.tensor(values, dtype=dtype, device=logits.device)[:, None]

    # Subtracting the best first keeps small temperatures from overflowing. Long before float32
    # runs out, all the weight is on the best, or all tokens weigh the same.
    temperature = column([min(max(p.temperature, 1e-30), 1e30) for p in params], logits.dtype)
    scaled = (logits - best[:, None]) / temperature
    cut = [i for i, p in enumerate(params) if p.top_p < 1 or 0 < p.top_k < vocab_size]
    if cut:
        top_k = [min(params[i].top_k or vocab_size, vocab_size) for i in cut]
        top_p = column([params[i].top_p for i in cut], torch.float64)
        look_at = max([_FIRST_LOOK, *(k for k in top_k if k < vocab_size)])
        scaled[cut] = _forbid_unlikely(scaled[cut], column(top_k, torch.int64), top_p, look_at)
    running = scaled.exp().cumsum(dim=-1, dtype=torch.float64)
    u = [torch.rand((), dtype=torch.float64, generator=g).item() for g in generators]
    # right=True passes over tokens of weight 0, which do not raise the running total.
    target = column(u, torch.float64) * running[:, -1:]
    return torch.searchsorted(running, target, right=True)[:, 0]


def _forbid_unlikely(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, look_at: int
) -> torch.Tensor:
    """-inf for all but the top_k likeliest, and of those for all but the fewest that reach top_p.

    scaled [N, vocab_size]; top_k int64 [N, 1], at most `look_at` or all of the vocabulary; top_p
    float64 [N, 1]. Sorting a whole vocabulary costs a CPU more than the layers of a small model,
    and the likeliest few usually settle where to cut: the others are looked at only if not.
    """
    vocab_size = scaled.shape[-1]
    if scaled.is_cuda or look_at > vocab_size:  # a GPU sorts faster than it answers a question
        look_at = vocab_size
    total = scaled.exp().cumsum(dim=-1, dtype=torch.float64)[:, -1:]
    while True:
        likely = scaled.topk(look_at, dim=-1).values
        running = likely.exp().cumsum(dim=-1, dtype=torch.float64)
        in_top_k = running.gather(-1, top_k.clamp(max=look_at) - 1)
        goal = top_p * torch.where(top_k < vocab_size, in_top_k, total)
        if look_at == vocab_size or bool((running[:, -1:] >= goal).all()):
            break
        look_at = min(8 * look_at, vocab_size)
    num_kept = torch.minimum((running < goal).sum(dim=-1, keepdim=True) + 1, top_k)
    last = likely.gather(-1, num_kept - 1)
    above, equal = scaled > last, scaled == last
    room_for_equals = num_kept - above.sum(dim=-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(dim=-1) <= room_for_equals))
    return scaled.masked_fill(~keep, float("-inf"))
