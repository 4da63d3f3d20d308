"""Online softmax in a TPU kernel, of queries that meet one block of keys and values after the other.

Products are in the type of their operands, sums in float32, weights in base 2 with a running maximum that is a whole number, so
that rescaling is exact and a block that a token does not see changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.storage import LANES

UNSEEN = -1e30  # finite: the maximum over nothing stays a number
LOG2_E = math.log2(math.e)


def accumulate(
    scores: jax.Array, values: jax.Array, largest: Any, total: Any, mixed: Any, *, spare_columns: bool = False
) -> None:
    """Add values `[tokens, W]` by their scores, float32 `[M, tokens]` in base 2, -inf where a query does not see one.

    `largest [M, 128]` is the score rounded up and `total [M, 128]` the weight so far, `mixed [M, W]` are values, all float32.
    With `spare_columns`, for which the matrix unit has room beside the values, weights are summed there, as rounded for it.
    """
    before = largest[...]
    after = jnp.maximum(before, jnp.ceil(scores.max(axis=1, keepdims=True)))
    weights = jnp.exp2(scores - repeat(after, scores.shape[1]))
    decay = jnp.exp2(before - after)
    largest[...] = after
    if spare_columns:
        ones = jnp.ones((values.shape[0], LANES), values.dtype)
        added = product(weights.astype(values.dtype), jnp.concatenate([values, ones], axis=1), axis=0)
        added, weight = added[:, : values.shape[1]], added[:, values.shape[1] :]
    else:
        added = product(weights.astype(values.dtype), values, axis=0)
        weight = weights.sum(axis=1, keepdims=True)
    total[...] = total[...] * decay + weight
    mixed[...] = mixed[...] * repeat(decay, added.shape[1]) + added


def product(left: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
    """`left [M, i]` times `right`, whose `axis` is i, in float32."""
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return lax.dot_general(
        left, right, (((1,), (axis,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def repeat(columns: jax.Array, width: int) -> jax.Array:
    """`[M, 128]` of equal columns as `[M, width]`."""
    return columns if width == LANES else jnp.concatenate([columns] * (width // LANES), axis=1)


def fill(ref: Any, value: float) -> None:
    """Write a value everywhere."""
    ref[...] = jnp.full(ref.shape, value, ref.dtype)
