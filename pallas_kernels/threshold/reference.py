"""Thresholds by bisection over float32 itself: at most 32 rounds of one reduction over `[R, V]`, which cost less than a sort.

Every sum is of integers, so that no order of summation, and no cut of the rows, moves a value across a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


class _Bracket(NamedTuple):
    """For each row: `low` is a threshold that reaches the target and `high` one that does not, as keys, with their totals."""

    low: Array
    high: Array
    low_total: Array
    high_total: Array
    done: Array


def threshold(
    values: Array,
    weights: Array | None,
    *,
    floor: Array,
    best: Array,
    target: Array,
    active: Array,
    lightest: Callable[[Array], Array] | None,
    axis: tuple[str, ...] | None,
) -> Array:
    """See the op's contract."""

    def total(at_least: Array) -> Array:
        """It falls with its argument. Counted in float32, exact below 2^24, which CPUs sum faster than integers."""
        here = values >= at_least[:, None]
        sums = jnp.sum(here.astype(jnp.float32) if weights is None else jnp.where(here, weights, 0), axis=-1)
        return (sums if axis is None else lax.psum(sums, axis)).astype(jnp.int32)

    def settled(low: Array, high: Array, low_total: Array, high_total: Array) -> Array:
        stop = (high <= low + 1) | (low_total == target)
        if weights is not None and lightest is None:
            return stop
        least = jnp.ones_like(low) if lightest is None else lightest(_value(low))
        return stop | ((low_total - high_total) // 2 < least)  # one value is between them

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
