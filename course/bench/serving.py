"""What the engine itself costs, and what pages bring: `python -m course bench --serving`.

Two tables. One takes a step apart: how much of it is not the model. The other serves the same
requests from pages and from slabs of equal memory, beside what the simulator says of both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from course.bench.cases import BLOCK_SIZE, slice_lengths
from course.engine.kv_manager import KVManager
from course.engine.request import Request
from course.engine.sampling_params import SamplingParams
from course.engine.scheduler import Scheduler, SchedulerConfig
from course.engine.stats import written_slots
from course.memory.policies import Paged, Slab
from course.memory.simulate import simulate
from course.workload import make_requests, mix

BATCHES = (1, 8, 32, 1_000)
MIXES = {
    "sharegpt_8k_filtered": "ShareGPT",
    "azure_conv_2023": "Azure conversation",
    "azure_code_2023": "Azure code",
}
ROUNDS = 2
FULL_REQUESTS = 200  # of full length, for the share of slots that hold a token


@dataclass(frozen=True)
class Overhead:
    """One decode step of `batch` requests, milliseconds on the clock: median over the steps."""

    batch: int
    step_ms: float
    model_ms: float  # layers and logits

    @property
    def outside_ms(self) -> float:
        """Scheduler, tables, metadata, sampling, text."""
        return self.step_ms - self.model_ms


def overhead(loaded, batch: int, steps: int = 40) -> Overhead:
    """Decode `batch` requests side by side and time what is in a step. `loaded`: model, tokenizer.

    The clock is put around the two calls of the model, so their own Python counts as model.
    """
    from course.engine import LLM

    blocks = batch * (2 + (16 + steps) // BLOCK_SIZE)
    llm = LLM(
        loaded,
        num_blocks=blocks + 2,
        block_size=BLOCK_SIZE,
        max_num_seqs=batch,
        max_num_batched_tokens=max(1_024, 16 * batch),
        watermark=0.0,
        prefix_caching=False,
    )
    inside, times = [0.0], []

    def timed(call):
        def run(*args):
            started = perf_counter()
            try:
                return call(*args)
            finally:
                inside[0] += perf_counter() - started

        return run

    model = llm.core.runner.model
    llm.core.runner.model = _Timed(model, timed(model.forward), timed(model.logits))
    began = [perf_counter()]

    def on_step(_):
        now = perf_counter()
        times.append((now - began[0], inside[0]))
        began[0], inside[0] = now, 0.0

    prompts = made_up([16] * batch, loaded[1].vocab_size)
    llm.generate(prompts, SamplingParams(max_tokens=steps, ignore_eos=True), on_step=on_step)
    decode = times[2:-1]  # not the prompts, not the end
    step, model_time = (1e3 * median(t[i] for t in decode) for i in (0, 1))
    return Overhead(batch, step, model_time)


def made_up(lengths: list[int], vocab_size: int) -> list[list[int]]:
    """Prompts of these lengths, all different; ids from the middle, where no special ones are."""
    low, many = vocab_size // 4, vocab_size // 2
    return [[low + (i * 37 + j * 11) % many for j in range(n)] for i, n in enumerate(lengths)]


class _Timed:
    """The model as the runner sees it, with a clock at its two calls."""

    def __init__(self, model, forward, logits):
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "forward", forward)
        object.__setattr__(self, "logits", logits)

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def __setattr__(self, name: str, value) -> None:
        setattr(self.model, name, value)


@dataclass(frozen=True)
class Served:
    """One mix served by one policy, and the simulator's word on it."""

    mean_batch: float
    predicted_batch: float
    tokens_per_second: float


def serve(loaded, lengths: list[tuple[int, int]], policy: str) -> Served:
    """Offer all requests at once to an engine with a quarter of the memory that they need."""
    from course.engine import LLM

    need = [-(-(prompt + output) // BLOCK_SIZE) for prompt, output in lengths]
    num_blocks, limit = max(sum(need) // 4, max(need)), max(need) * BLOCK_SIZE
    prompts = made_up([prompt for prompt, _ in lengths], loaded[1].vocab_size)
    params = [SamplingParams(max_tokens=output, ignore_eos=True) for _, output in lengths]
    llm = LLM(
        loaded,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=limit,
        max_num_seqs=len(lengths),
        max_num_batched_tokens=sum(prompt for prompt, _ in lengths) + len(lengths),
        watermark=0.0,
        prefix_caching=False,
        kv_policy=policy,
    )
    llm.generate(prompts, params)
    pool = num_blocks * BLOCK_SIZE
    memory = Paged(pool, limit, BLOCK_SIZE) if policy == "paged" else Slab(pool, limit)
    # The engine counts a token when its key is written, the simulator when it is produced.
    told = simulate(make_requests([(p - 1, o) for p, o in lengths]), memory, all_at_once=True)
    stats = llm.stats
    return Served(stats.mean_batch, told.mean_batch, stats.tokens_per_second)


def live_share(lengths: list[tuple[int, int]], every: int = 50) -> float:
    """Of the slots in blocks in use, those that hold a token: mean over steps under pressure.

    The engine's scheduler and block manager, without a model; a pool for about thirty requests.
    """
    need = [-(-(prompt + output) // BLOCK_SIZE) for prompt, output in lengths]
    manager = KVManager(max(30 * sum(need) // len(need), max(need)), BLOCK_SIZE)
    scheduler = Scheduler(SchedulerConfig(256, 4_096), manager)
    for i, (prompt, output) in enumerate(lengths):
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        scheduler.add(Request(f"r{i}", [i] + [7] * (prompt - 1), params))
    shares, number = [], 0
    while scheduler.waiting or not number:
        step = scheduler.schedule()
        scheduler.update(step, {request.request_id: 1 for request in step.samples})
        number += 1
        if number % every == 0:
            shares.append(written_slots(manager) / (manager.pool.num_used * BLOCK_SIZE))
    return sum(shares) / len(shares)


def measure(model: str, dtype: str, say: Callable[[str], None] = lambda text: None) -> dict:
    """Both tables as plain data; ten minutes on two cores."""
    import torch

    from course.engine import load_model

    loaded = load_model(model, getattr(torch, dtype))
    steps = []
    for batch in BATCHES:
        say(f"a step of {batch:,} requests")
        found = overhead(loaded, batch, 40 if batch <= 100 else 8)
        steps.append({"batch": batch, "step_ms": found.step_ms, "model_ms": found.model_ms})
    rows = []
    for name, title in MIXES.items():
        lengths = [(max(2, prompt), output) for prompt, output in slice_lengths(name)]
        runs: dict[str, list[Served]] = {"paged": [], "slab": []}
        for turn in range(ROUNDS):
            for policy, found in runs.items():
                say(f"{title}, {policy}: round {turn + 1} of {ROUNDS}")
                found.append(serve(loaded, lengths, policy))
        paged, slab = runs["paged"][0], runs["slab"][0]
        rate = {p: median(run.tokens_per_second for run in found) for p, found in runs.items()}
        rows.append(
            {
                "mix": title,
                "batch": {"paged": paged.mean_batch, "slab": slab.mean_batch},
                "batch_ratio": paged.mean_batch / slab.mean_batch,
                "predicted_ratio": paged.predicted_batch / slab.predicted_batch,
                "throughput_ratio": rate["paged"] / rate["slab"],
                "live_share": live_share(mix(name).sample(FULL_REQUESTS, seed=0)),
            }
        )
    return {"dtype": dtype, "threads": torch.get_num_threads(), "steps": steps, "pages": rows}


def markdown(result: dict) -> str:
    """The two tables."""
    lines = [
        f"{result['dtype']}, {result['threads']} threads.",
        "",
        "## A decode step, taken apart",
        "",
        "Outside the model: scheduler, block tables, metadata, sampling, text. Median over steps.",
        "",
        "| requests | a step, ms | of it the model, ms | outside, ms | outside, share |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["steps"]:
        outside = row["step_ms"] - row["model_ms"]
        lines.append(
            f"| {row['batch']:,} | {row['step_ms']:.2f} | {row['model_ms']:.2f} | {outside:.2f} | "
            f"{outside / row['step_ms']:.1%} |"
        )
    lines += [
        "",
        "## Pages against slabs",
        "",
        "The same requests, the same memory: a quarter of what they need together. A slab is as "
        "long as the longest request. Batch: requests in a step, mean of the run. Lengths are a "
        "trace's, divided so that a prompt has 128 tokens in the mean; the last column is at full "
        "length, while requests wait.",
        "",
        "| lengths | batch, pages | batch, slabs | ratio | simulator's ratio | throughput ratio | "
        "slots in used blocks that hold a token |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['mix']} | {row['batch']['paged']:.2f} | {row['batch']['slab']:.2f} | "
        f"{row['batch_ratio']:.2f} | {row['predicted_ratio']:.2f} | "
        f"{row['throughput_ratio']:.2f} | {row['live_share']:.1%} |"
        for row in result["pages"]
    ]
    return "\n".join(lines) + "\n"
