"""Which tokens may be sampled: each filter as one threshold per row, found without sorting.

A filter keeps the tokens whose logit is at least some value, so together they are the largest of their thresholds; XTC keeps
those whose logit is at most some value. Thresholds of top_k and top_p are found by bisection over float32 itself: at most 32
rounds of one reduction over `[R, V]`, which cost less than a sort (`benchmarks/sampler.py`). Every sum is of integers, so that
no order of summation, hence no bucket, row count or sharding, can move a token across a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.sampling.noise import uniform
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.vocabulary import Vocabulary

Array = jax.Array


def keep(logits: Array, rows: Rows, vocabulary: Vocabulary) -> Array:
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

    def after_top_n_sigma(floor: Array) -> Array:
        least = best - jnp.minimum(options["top_n_sigma"], 1e30) * _deviation(logits, best, vocabulary)
        return jnp.where(with_top_n_sigma, jnp.maximum(floor, least), floor)

    def after_top_k(floor: Array) -> Array:
        def count(at_least: Array) -> Array:
            return vocabulary.count(logits >= at_least[:, None])

        return _search(count, floor=floor, best=best, target=top_k, active=with_top_k, lightest=jnp.ones_like)

    def after_top_p(floor: Array) -> Array:
        weights, unit = _weights(logits, best, floor, vocabulary)
        total = vocabulary.sum(weights)
        target = jnp.ceil(top_p * total.astype(jnp.float32)).astype(jnp.int32)

        def mass(at_least: Array) -> Array:
            return vocabulary.sum(jnp.where(logits >= at_least[:, None], weights, 0))

        return _search(
            mass,
            floor=floor,
            best=best,
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


class _Bracket(NamedTuple):
    """For each row: `low` is a threshold that reaches the target and `high` one that does not, as keys, with their totals."""

    low: Array
    high: Array
    low_total: Array
    high_total: Array
    done: Array


def _search(
    total: Callable[[Array], Array],
    *,
    floor: Array,
    best: Array,
    target: Array,
    active: Array,
    lightest: Callable[[Array], Array],
) -> Array:
    """The largest threshold `f32[R]` from `floor` on whose `total` is at least `target`; `floor` for rows not `active`.

    `total(threshold)` falls with its argument. `lightest(threshold)` is at most what any one token at or above the
    threshold adds to it.
    """

    def settled(low: Array, high: Array, low_total: Array, high_total: Array) -> Array:
        one_value = high <= low + 1
        exact = low_total == target
        one_token = (low_total - high_total) // 2 < lightest(_value(low))
        return one_value | exact | one_token

    def halve(state: _Bracket) -> _Bracket:
        middle = (state.low & state.high) + ((state.low ^ state.high) >> 1)
        reached = total(_value(middle))
        enough = reached >= target
        low = jnp.where(~state.done & enough, middle, state.low)
        high = jnp.where(~state.done & ~enough, middle, state.high)
        low_total = jnp.where(~state.done & enough, reached, state.low_total)
        high_total = jnp.where(~state.done & ~enough, reached, state.high_total)
        return _Bracket(low, high, low_total, high_total, state.done | settled(low, high, low_total, high_total))

    low, high = _key(floor), _key(best) + 1
    most = jnp.full(low.shape, jnp.iinfo(jnp.int32).max)
    start = _Bracket(low, high, most, jnp.zeros_like(most), ~active | (high <= low + 1))
    return _value(lax.while_loop(lambda state: ~jnp.all(state.done), halve, start).low)


def _key(value: Array) -> Array:
    """The int32 that orders as the float32 does."""
    bits = lax.bitcast_convert_type(value, jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _value(key: Array) -> Array:
    """The float32 of a key, by the inverse of `_key`, which is its own; 0 for what devices may read as 0."""
    value = lax.bitcast_convert_type(key ^ ((key >> 31) & 0x7FFFFFFF), jnp.float32)
    return jnp.where(jnp.abs(value) < jnp.finfo(jnp.float32).tiny, 0.0, value)
