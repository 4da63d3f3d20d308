"""The slow obvious sampler that tests compare with: one row at a time, sorts, Python sets, float64 where it matters."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.sampling_options import SamplingOptions

Row = NDArray[np.float32]
FUZZ = 1e-5
"""Probability that the device's 31-bit sums may move a top_p cut by, far above what they do, far below what tests look for."""
Fuzz = tuple[float, ...]
FUZZES: tuple[Fuzz, ...] = tuple(itertools.product((0.0, FUZZ, -FUZZ), repeat=3))


@dataclass
class Options(SamplingOptions):
    """The sampling options of one row, in the units a user gives them; greedy if nothing is said."""

    temperature: float = 0.0
    seed: int = 0
    position: int = 0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    bias: dict[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    target: int | None = None


def clean(logits: Row) -> Row:
    """NaN is never chosen, and plus infinity is a large number."""
    return np.where(np.isnan(logits), -np.inf, np.minimum(logits, np.float32(1e30))).astype(np.float32)


def adjust(logits: Row, options: Options) -> Row:
    """Logits after mask, bias and penalties."""
    row = logits.copy()
    if options.allowed:
        for token in range(len(row)):
            if token not in options.allowed:
                row[token] = -np.inf
    for token, amount in options.bias.items():
        row[token] += np.float32(amount)
    for token in {*options.prompt, *options.output}:
        factor = np.float32(options.repetition_penalty)
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(options.output):
        row[token] -= np.float32(options.frequency_penalty) * np.float32(options.output.count(token))
        row[token] -= np.float32(options.presence_penalty)
    return row


def keep(scaled: Row, options: Options, *, fuzz: Fuzz, coin: float = 0.0) -> set[int]:
    """The token ids that top_n_sigma and min_p, then top_k, top_p and XTC leave.

    XTC acts if `coin` is less than its probability. `fuzz` moves three cuts a little: of min_p and top_p, top_n_sigma, XTC.
    """
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    best = scaled[order[0]]
    if not np.isfinite(best):
        return set(order)
    left = order
    if options.top_n_sigma > 0:
        finite = scaled[np.isfinite(scaled)].astype(np.float64)
        cut = best - np.float32(options.top_n_sigma) * finite.std() * (1 + 10 * fuzz[1])
        left = [token for token in left if scaled[token] >= cut] or order[:1]
    if options.min_p > 0:
        left = [token for token in left if scaled[token] >= best + np.log(np.float32(options.min_p)) + fuzz[0]]
        left = left or order[:1]
    if 0 < options.top_k < len(left):
        left = [token for token in left if scaled[token] >= scaled[left[options.top_k - 1]]]
    if options.top_p < 1:
        chances = np.exp(scaled[left].astype(np.float64) - best)
        chances /= chances.sum()
        reached = np.searchsorted(np.cumsum(chances), options.top_p + fuzz[0])
        least = scaled[left[min(int(reached), len(left) - 1)]]
        left = [token for token in left if scaled[token] >= least]
    if coin < options.xtc_probability:
        left = [token for token in left if np.isfinite(scaled[token])]
        chances = np.exp(scaled[left].astype(np.float64) - best)
        likely = chances / chances.sum() >= np.float32(options.xtc_threshold) + fuzz[2]
        ceiling = scaled[left][likely].min(initial=np.inf)
        left = [token for token in left if scaled[token] <= ceiling]
    return set(left)


def acceptable(logits: Row, options: Options, noise: Row, coin: float) -> set[int]:
    """The tokens that a right sampler may return: more than one only where rounding decides."""
    row = adjust(clean(logits), options)
    if options.temperature < 1e-5:
        return {int(np.argmax(row))}
    scaled = row / np.float32(options.temperature)
    found = set()
    for fuzz in FUZZES:
        kept = keep(scaled, options, fuzz=fuzz, coin=coin)
        noisy = np.array([scaled[t] + noise[t] if t in kept else -np.inf for t in range(len(row))])
        slack = 1e-5 * max(1.0, abs(noisy.max())) if np.isfinite(noisy.max()) else 0.0
        found |= set(np.flatnonzero(noisy >= noisy.max() - slack).tolist()) if slack else {int(np.argmax(noisy))}
    return found


def logprobs(logits: Row) -> NDArray[np.float64]:
    """The raw log-softmax in float64."""
    row = clean(logits).astype(np.float64)
    best = row.max()
    return row - (best + np.log(np.exp(row - best).sum())) if np.isfinite(best) else row
