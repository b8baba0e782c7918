"""The PagedAttention paper's memory figures, simulated again, with the difference point by point.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023 (arXiv 2309.06180): Fig. 2 (where the KV memory goes) and Fig. 13 (mean batch), both for
OPT-13B. What is taken from the paper: 12 GB for KV, read as 12 GiB since that gives its 15.7K
slots (Table 1); a limit of 2,048 tokens; mean lengths (Fig. 11); Orca's three reservations placed
by a buddy allocator; blocks of 16. Fig. 2 does not name its lengths; they are taken as ShareGPT's.

What is assumed, and what it does to the comparison:

- Lengths are geometric with the paper's means (see ``GeometricMix``). The real ones are not given.
- Every request waits from the start, so memory is the only limit. The paper sends ShareGPT at 2
  and Alpaca at 30 requests a second. There vLLM's batch on Alpaca is well below what memory would
  hold: with 132 running and 30 coming each second, requests stay 4.4 s on average (Little's law),
  and the server most likely kept up, so that memory was not what kept more from running.
- The paper's "external and other" is everything that is in no reservation. It includes what the
  buddy allocator adds by rounding up, which this course's ledger calls internal (nobody ever
  writes it), and free slots that nobody was refused. ``fig2`` groups as the paper does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from course.memory.buddy import BuddyArena
from course.memory.policies import Contiguous, Paged, Policy
from course.memory.simulate import Simulation, simulate
from course.sizing import GIB, MODELS, tokens_that_fit
from course.workload.lengths import mix
from course.workload.requests import make_requests

POOL_TOKENS = tokens_that_fit(MODELS["OPT-13B"], 12 * GIB)
MAX_MODEL_LEN = MODELS["OPT-13B"].max_model_len
BLOCK_SIZE = 16
SYSTEMS = ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")

# Fig. 2, percent of the KV memory: token states, reserved, internal, external and other
FIG2 = {
    "Orca (Max)": (20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": (26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": (38.2, 25.2, 0.0, 36.6),
    "vLLM": (96.3, None, None, None),
}
FIG2_ACCOUNTS = ("live", "reserved", "internal", "external and other")
# Fig. 13, mean number of requests that run together
FIG13 = {
    "ShareGPT": {"Orca (Max)": 7.00, "Orca (Pow2)": 9.81, "Orca (Oracle)": 13.62, "vLLM": 30.42},
    "Alpaca": {"Orca (Max)": 7.00, "Orca (Pow2)": 43.24, "Orca (Oracle)": 72.75, "vLLM": 132.44},
}


@dataclass(frozen=True)
class PaperRow:
    """One number of the paper beside ours; ``paper`` is None where the figure prints none."""

    figure: str
    data: str
    system: str
    account: str
    ours: float
    paper: float | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in the unit of the figure."""
        return None if self.paper is None else self.ours - self.paper


def system_policy(system: str) -> Policy:
    """The memory policy of one of ``SYSTEMS`` on the paper's pool, empty."""
    if system == "vLLM":
        return Paged(POOL_TOKENS, MAX_MODEL_LEN, BLOCK_SIZE)
    rules = {"Orca (Max)": "max", "Orca (Pow2)": "pow2", "Orca (Oracle)": "exact"}
    if system not in rules:
        raise ValueError(f"There is no system {system!r}: choose one of {', '.join(SYSTEMS)}.")
    return Contiguous(rules[system], BuddyArena(POOL_TOKENS), MAX_MODEL_LEN)


def paper_runs(
    data: str,
    num_requests: int = 4000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Simulation]:
    """A simulation for each system on "ShareGPT" or "Alpaca"."""
    if data not in FIG13:
        raise ValueError(f"There is no data set {data!r}: choose one of {', '.join(FIG13)}.")
    requests = make_requests(mix(f"paper_{data.lower()}").sample(num_requests, seed))
    runs = {}
    for place, system in enumerate(SYSTEMS):
        runs[system] = simulate(requests, system_policy(system), all_at_once=True)
        if progress:
            progress(place + 1, len(SYSTEMS))
    return runs


def fig2(num_requests: int = 4000, seed: int = 0) -> list[PaperRow]:
    """Percent of the KV memory in each account, for each system, as in Fig. 2."""
    rows = []
    for system, run in paper_runs("ShareGPT", num_requests, seed).items():
        ledger, padding = run.sustained, run.sustained_padding
        ours = (
            ledger.live,
            ledger.reserved,
            ledger.internal - padding,
            ledger.external + ledger.free + padding,
        )
        for account, slots, paper in zip(FIG2_ACCOUNTS, ours, FIG2[system], strict=True):
            percent = 100 * slots / run.pool_tokens
            rows.append(PaperRow("Fig. 2", "ShareGPT", system, account, percent, paper))
    return rows


def fig13(num_requests: int = 4000, seed: int = 0) -> list[PaperRow]:
    """The mean batch of each system on both data sets, as in Fig. 13."""
    return [
        PaperRow("Fig. 13", data, system, "mean batch", run.sustained_batch, FIG13[data][system])
        for data in FIG13
        for system, run in paper_runs(data, num_requests, seed).items()
    ]
