"""Which tokens may be sampled: each filter as one threshold per row, found without sorting.

A filter keeps the tokens whose logit is at least some value, so together they are the largest of their thresholds; XTC keeps
those whose logit is at most some value. Those of top_k and top_p are `pallas_kernels.threshold`, which costs less than a sort
(`benchmarks/sampler.py`). Every sum is of integers, so that no order of summation, hence no bucket, row count or sharding, can
move a token across a threshold.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.sampling.noise import uniform
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.vocabulary import Vocabulary
from pallas_kernels import threshold

Array = jax.Array


def keep(logits: Array, rows: Rows, vocabulary: Vocabulary, *, platform: str | None = None) -> Array:
    """Which tokens a row may sample, `bool[R, width]`: of top_n_sigma and min_p, then top_k of what is left, top_p of that, XTC.

    `logits f32[R, width]` are already divided by temperature. Greedy rows keep all. top_k keeps every token that ties with the
    k-th. top_p keeps the smallest set of the most likely tokens that reaches `top_p` of the probability, with every token that
    ties with its least likely one; the most likely token is always in.

    top_n_sigma (arXiv 2411.07641) keeps the logits within so many standard deviations of the largest, the deviation being that
    of all finite ones. XTC, as llama.cpp has it, leaves out with `xtc_probability` the tokens whose probability among what is
    left is at least `xtc_threshold`, but the least likely of them with what ties with it.
    """
    random = rows.need(Needs.RANDOM)
    options = rows.options
    top_k, top_p, min_p = options["top_k"], options["top_p"], options["min_p"]
    best = vocabulary.max(logits)
    best = jnp.where(jnp.isfinite(best), best, 0.0)
    floor = jnp.where(random & (min_p > 0), best + jnp.log(min_p), -jnp.inf)
    search = partial(threshold, logits, best=best, axis=vocabulary.axis, platform=platform)

    def after_top_n_sigma(floor: Array) -> Array:
        least = best - jnp.minimum(options["top_n_sigma"], 1e30) * _deviation(logits, best, vocabulary)
        return jnp.where(with_top_n_sigma, jnp.maximum(floor, least), floor)

    def after_top_k(floor: Array) -> Array:
        return search(None, floor=floor, target=top_k, active=with_top_k)

    def after_top_p(floor: Array) -> Array:
        weights, unit = _weights(logits, best, floor, vocabulary)
        total = vocabulary.sum(weights)
        target = jnp.ceil(top_p * total.astype(jnp.float32)).astype(jnp.int32)
        return search(
            weights,
            floor=floor,
            target=jnp.clip(target, 1, total),
            active=with_top_p,
            lightest=lambda at_least: _weigh(at_least, best, 0.999 * unit),
        )

    def below_xtc(floor: Array) -> Array:
        weights, _ = _weights(logits, best, floor, vocabulary)
        total = vocabulary.sum(weights).astype(jnp.float32)
        left = (logits >= floor[:, None]) & (logits > -jnp.inf)
        likely = left & (weights.astype(jnp.float32) >= (options["xtc_threshold"] * total)[:, None])
        least = -vocabulary.max(jnp.where(likely, -logits, -jnp.inf))
        active = with_xtc & (uniform(rows.seeds, rows.positions) < options["xtc_probability"])
        return jnp.where(active, least, jnp.inf)  # one token above the threshold is its own ceiling

    with_top_n_sigma = random & (options["top_n_sigma"] > 0)
    with_xtc = random & (options["xtc_probability"] > 0)
    with_top_k = random & (top_k > 0) & (top_k < vocabulary.size)
    with_top_p = random & (top_p < 1)
    floor = lax.cond(jnp.any(with_top_n_sigma), after_top_n_sigma, lambda floor: floor, floor)
    floor = lax.cond(jnp.any(with_top_k), after_top_k, lambda floor: floor, floor)
    floor = lax.cond(jnp.any(with_top_p), after_top_p, lambda floor: floor, floor)
    ceiling = lax.cond(jnp.any(with_xtc), below_xtc, lambda floor: jnp.full_like(floor, jnp.inf), floor)
    return (logits >= floor[:, None]) & (logits <= ceiling[:, None])


def _deviation(logits: Array, best: Array, vocabulary: Vocabulary) -> Array:
    """The standard deviation `f32[R]` of the finite logits, to some millionths of what lies between the largest and the least.

    Their distances from the largest become integers of `digits` bits, and squares go into two sums that cannot overflow.
    """
    digits = min(15, 30 - vocabulary.size.bit_length())
    finite = logits > -jnp.inf
    distance = jnp.where(finite, jnp.minimum(best[:, None] - logits, 1e38), 0.0)
    widest = vocabulary.max(distance)
    steps = jnp.round(distance / jnp.where(widest > 0, widest, 1.0)[:, None] * 2.0**digits).astype(jnp.int32)
    count = jnp.maximum(vocabulary.count(finite), 1).astype(jnp.float32)
    mean = vocabulary.sum(steps).astype(jnp.float32) / count
    middle = jnp.round(mean).astype(jnp.int32)
    squares = jnp.where(finite, (steps - middle[:, None]) ** 2, 0)
    high = vocabulary.sum(squares >> digits).astype(jnp.float32)
    low = vocabulary.sum(squares & (2**digits - 1)).astype(jnp.float32)
    variance = (high * 2.0**digits + low) / count - (mean - middle.astype(jnp.float32)) ** 2
    return jnp.sqrt(jnp.maximum(variance, 0.0)) * 2.0**-digits * widest


def _weights(logits: Array, best: Array, floor: Array, vocabulary: Vocabulary) -> tuple[Array, Array]:
    """Integers `i32[R, width]` in proportion to the probabilities of the tokens from `floor` on, and `_unit`."""
    unit = _unit(logits, best, floor, vocabulary)
    return jnp.where(logits >= floor[:, None], _weigh(logits, best[:, None], unit[:, None]), 0), unit


def _weigh(value: Array, best: Array, unit: Array) -> Array:
    return jnp.round(jnp.exp(value - best) * unit).astype(jnp.int32)


def _unit(logits: Array, best: Array, floor: Array, vocabulary: Vocabulary) -> Array:
    """The scale `f32[R]` that turns `exp(logit - best)` into integers whose sum just fits 31 bits.

    The sum of the exponentials is needed first, and in float32 it would depend on the order of summation. So it is taken
    of their first `2 * digits` binary digits, in two integer sums that cannot overflow.
    """
    digits = min(12, 30 - vocabulary.size.bit_length())
    kept = jnp.where(logits >= floor[:, None], jnp.exp(logits - best[:, None]), 0.0)
    fixed = (kept * 4.0**digits).astype(jnp.int32)
    high = vocabulary.sum(fixed >> digits).astype(jnp.float32)
    low = vocabulary.sum(fixed & (2**digits - 1)).astype(jnp.float32)
    at_most = high * 2.0**-digits + (low + vocabulary.size) * 4.0**-digits
    return 0.99 * 2.0**31 / at_most
