"""Prompt and output lengths: six mixes counted from public traces, and the paper's two data sets.

>>> len(mix("azure_conv_2023").sample(3, seed=0))
3
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol

import numpy as np


class LengthMix(Protocol):
    """Something that draws (prompt, output) lengths and says where they come from."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str: ...
    def sample(self, num_requests: int, seed: int) -> list[tuple[int, int]]: ...


@dataclass(frozen=True, eq=False)
class HistogramMix:
    """Joint counts of prompt and output lengths, counted from one public trace.

    ``prompt_edges[i]`` to ``prompt_edges[i + 1] - 1`` is bin i, likewise for outputs; ``cells``
    is [num_cells, 3]: prompt bin, output bin, count. ``bounds`` holds the smallest and largest
    prompt, output and total of the trace.
    """

    name: str
    title: str
    source: str
    licence: str
    cite: str
    num_requests: int
    bounds: dict[str, list[int]]
    prompt_edges: np.ndarray
    output_edges: np.ndarray
    cells: np.ndarray

    def sample(self, num_requests: int, seed: int) -> list[tuple[int, int]]:
        """(prompt, output) pairs: a cell by its count, then evenly among the lengths in it.

        Lengths beyond the trace's bounds are drawn again from the same cell, so that no cell
        loses weight. The same seed gives the same lengths.
        """
        _check_count(num_requests)
        generator = np.random.default_rng(seed)
        weights = self.cells[:, 2] / self.cells[:, 2].sum()
        cells = self.cells[generator.choice(len(self.cells), size=num_requests, p=weights)]
        lengths = np.zeros((num_requests, 2), dtype=np.int64)
        redraw = np.arange(num_requests)
        while len(redraw):
            lengths[redraw, 0] = self._inside("prompt", cells[redraw, 0], generator)
            lengths[redraw, 1] = self._inside("output", cells[redraw, 1], generator)
            total = lengths[redraw].sum(axis=1)
            low, high = self.bounds["total"]
            redraw = redraw[(total < low) | (total > high)]
        return _pairs(lengths)

    def _inside(self, which: str, bins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        edges = self.prompt_edges if which == "prompt" else self.output_edges
        low, high = self.bounds[which]
        return generator.integers(
            np.maximum(edges[bins], low), np.minimum(edges[bins + 1], high + 1)
        )


@dataclass(frozen=True)
class GeometricMix:
    """Prompt and output lengths of which nothing is known but the means.

    Assumed: both are geometric (after each token the same chance to stop, the distribution that
    says least beyond a mean), independent of each other, and only requests of at most
    ``max_total`` tokens are kept, since the model can serve no others. The chances are set so
    that what is kept has the given means. Real lengths are correlated and less spread out.
    """

    name: str
    title: str
    source: str
    mean_prompt: float
    mean_output: float
    max_total: int

    def sample(self, num_requests: int, seed: int) -> list[tuple[int, int]]:
        """(prompt, output) pairs; the same seed gives the same lengths."""
        _check_count(num_requests)
        generator = np.random.default_rng(seed)
        stop_prompt, stop_output = _calibrated(self.mean_prompt, self.mean_output, self.max_total)
        kept: list[np.ndarray] = [np.empty((0, 2), dtype=np.int64)]
        missing = num_requests
        while missing:
            prompts = generator.geometric(stop_prompt, size=missing)
            outputs = generator.geometric(stop_output, size=missing)
            good = prompts + outputs <= self.max_total
            kept.append(np.column_stack([prompts[good], outputs[good]]))
            missing -= int(good.sum())
        return _pairs(np.concatenate(kept))


_PAPER = "means from Fig. 11 of Kwon et al., SOSP 2023 (arXiv 2309.06180); geometric by assumption"
PAPER_MIXES = {
    m.name: m
    for m in (
        GeometricMix("paper_sharegpt", "ShareGPT as in the paper", _PAPER, 161.31, 337.99, 2048),
        GeometricMix("paper_alpaca", "Alpaca as in the paper", _PAPER, 19.31, 58.45, 2048),
    )
}


@cache
def trace_mixes() -> dict[str, HistogramMix]:
    """The six mixes counted from public traces; data/SOURCES.md says from which."""
    text = files("course.workload").joinpath("data/length_mixes.json").read_text("utf-8")
    mixes = {}
    for name, entry in json.loads(text).items():
        for key in ("prompt_edges", "output_edges", "cells"):
            entry[key] = np.array(entry[key], dtype=np.int64)
        mixes[name] = HistogramMix(name=name, **entry)
    return mixes


def mix_names() -> list[str]:
    """Every name that ``mix`` knows."""
    return [*trace_mixes(), *PAPER_MIXES]


def mix(name: str) -> HistogramMix | GeometricMix:
    """A mix by its name; an unknown one raises ValueError that lists those there are."""
    known: dict[str, HistogramMix | GeometricMix] = {**trace_mixes(), **PAPER_MIXES}
    if name not in known:
        raise ValueError(f"There is no mix {name!r}: choose one of {', '.join(known)}.")
    return known[name]


def _check_count(num_requests: int) -> None:
    if num_requests < 0:
        raise ValueError(f"num_requests is {num_requests}: it must be 0 or more.")


def _pairs(lengths: np.ndarray) -> list[tuple[int, int]]:
    return [(prompt, output) for prompt, output in lengths.tolist()]


@cache
def _calibrated(mean_prompt: float, mean_output: float, max_total: int) -> tuple[float, float]:
    """Stopping chances of the two geometric distributions whose kept part has these means."""
    wanted = np.array([mean_prompt, mean_output])
    if not (wanted >= 1).all() or mean_prompt + mean_output > max_total / 2:
        raise ValueError(
            f"Means of {mean_prompt} and {mean_output} tokens under a limit of {max_total}: "
            "each must be at least 1 and their sum at most half the limit."
        )
    before = wanted.copy()
    for _ in range(200):
        got = _means_kept(before, max_total)
        if np.abs(got - wanted).max() < 1e-6:
            break
        before = np.maximum(1.0, before * wanted / got)
    return float(1 / before[0]), float(1 / before[1])


def _means_kept(means: np.ndarray, max_total: int) -> np.ndarray:
    """Means of two geometric lengths given that their sum is at most max_total; summed exactly."""
    lengths = np.arange(1, max_total)
    prompt, output = ((1 / m) * (1 - 1 / m) ** (lengths - 1) for m in means)
    # for each prompt length: the outputs that still fit, 1 .. max_total - prompt
    fits = np.cumsum(output)[::-1]
    fits_times_length = np.cumsum(output * lengths)[::-1]
    kept = float(prompt @ fits)
    return np.array([(prompt * lengths) @ fits, prompt @ fits_times_length]) / kept
