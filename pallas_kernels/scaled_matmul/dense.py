"""Scaled matrices made dense, and when that is not needed.

Of a matrix `[O, I]` the axis `inputs` is 1, of `[I, O]` it is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.scaled_matmul.packed import LINES, is_packed

Multiply = Callable[[jax.Array, jax.Array], jax.Array]
"""Rows `[N, ..., I]` and a matrix -> float32 `[N, ..., O]`."""


def multiply_dense(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    multiply: Multiply,
    inputs: int = 1,
) -> jax.Array:
    """The product with a matrix, by what multiplies dense ones.

    One group of all inputs needs no such matrix: its scales are factors of the results. Its zeros, integers as a rule, are taken
    off numbers, which stay exact; they could as well be taken off by the row's sum, but its neighbours decide in which order XLA
    makes that.
    """
    x = x.astype(compute)
    if len(scales) > 1:
        return multiply(x, dense(weight, scales, zeros, group=group, compute=compute, pairs=pairs, inputs=inputs))
    matrix = numbers(weight, pairs=pairs)
    if zeros is not None:
        matrix = matrix.astype(jnp.float32) - jnp.expand_dims(floats(zeros[0]), inputs)
    return multiply(x, matrix.astype(compute)) * floats(scales[0])


def floats(factors: jax.Array) -> jax.Array:
    """Scales or zeros as float32: int8 are sixteenths."""
    wide = factors.astype(jnp.float32)
    return wide * (1 / 16) if factors.dtype == jnp.int8 else wide


def dense(
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    inputs: int = 1,
) -> jax.Array:
    """The matrix that a scaled one stands for, rounded to `compute`."""

    def of_inputs(of_groups: jax.Array) -> jax.Array:
        turned = floats(of_groups)
        turned = turned.T if inputs else turned
        return jax.lax.slice_in_dim(jnp.repeat(turned, group, axis=inputs), 0, matrix.shape[inputs], axis=inputs)

    matrix = numbers(weight, pairs=pairs).astype(jnp.float32)
    if zeros is not None:
        matrix -= of_inputs(zeros)
    return (matrix * of_inputs(scales)).astype(compute)


def dense_rows(
    which: jax.Array, weight: jax.Array, scales: jax.Array, zeros: jax.Array | None, *, group: int, pairs: str
) -> jax.Array:
    """Rows `which [N]` of the matrix that `weight` stands for, as `scaled_matmul` takes it: float32 `[N, I]`."""

    def taken(of_outputs: jax.Array) -> jax.Array:
        return jnp.take(of_outputs, which, axis=1, mode="clip")

    if weight.dtype == jnp.uint8:
        low, high = halves(_lines(weight, which // 2), pairs)
        own = jnp.where((which % 2 == 0)[:, None], low, high)
    else:
        own = jnp.take(weight, which, axis=0, mode="clip")
    of_groups = taken(scales), None if zeros is None else taken(zeros)
    return dense(own, *of_groups, group=group, compute=jnp.float32, pairs=pairs)


def _lines(weight: jax.Array, which: jax.Array) -> jax.Array:
    if not is_packed(weight):
        return jnp.take(weight, which, axis=0, mode="clip")
    found = weight.at[which // LINES, :, which % LINES].get(mode="clip", wrap_negative_indices=False)
    return found.reshape(len(which), -1)


def numbers(weight: jax.Array, *, pairs: str) -> jax.Array:
    """Those of a matrix `[A, B]`, one to each place; of two to a byte `[2 A, B]`."""
    if weight.dtype != jnp.uint8:
        return weight
    return jnp.stack(halves(weight, pairs), axis=1).reshape(2 * weight.shape[0], weight.shape[1])


def halves(weight: jax.Array, pairs: str) -> tuple[jax.Array, jax.Array]:
    """The numbers in the low and in the high bits of bytes."""
    wide = weight.astype(jnp.int32)
    if pairs == "int4":
        return (wide & 15) - 8, (wide >> 4) - 8
    return _float4(wide & 15), _float4(wide >> 4)


def _float4(bits: jax.Array) -> jax.Array:
    """Numbers of a sign, two bits of exponent and one of mantissa, made as integers that are twice as large."""
    exponent = (bits >> 1) & 3
    twice = ((bits & 1) + jnp.where(exponent > 0, 2, 0)) << jnp.maximum(exponent - 1, 0)
    return jnp.where(bits > 7, -twice, twice).astype(jnp.float32) * 0.5
