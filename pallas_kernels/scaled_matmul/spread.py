"""XLA's product on a TPU, for what `tpu` does not take: a product spreads scales over inputs, fused into the large one.

A broadcast over the inputs of a group is not fused: the matrix is written to memory and read again. Of two numbers to a byte
there are two products, of even and of odd outputs. Other forms are in `benchmarks/tpu_products.py`.

Zeros inside of the matrix would undo the fusion. What they take away is the sum of a group's inputs times zero
and scale, a small product as well.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul import matmul
from pallas_kernels.scaled_matmul.dense import floats, halves, multiply_dense


def supports(*args: Any, **options: Any) -> str | None:
    """None: XLA multiplies whatever it is given."""
    return None


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    round_rows: bool,
    precision: jax.lax.Precision,
    used: jax.Array | None = None,
) -> jax.Array:
    """See the op's contract."""
    multiply = functools.partial(matmul, precision=precision, backend="xla")

    def of_some(weight: jax.Array, scales: jax.Array, zeros: jax.Array | None) -> jax.Array:
        if len(scales) == 1:
            products = multiply_dense(
                x, weight, scales, None, group=group, compute=compute, pairs=pairs, multiply=multiply
            )
        else:
            products = _spread(x.astype(compute), weight, scales, group=group, precision=precision)
        if zeros is None:
            return products
        return without_zeros(products, x.astype(compute), scales, zeros, group=group, precision=precision)

    if weight.dtype != jnp.uint8:
        return of_some(weight, scales, zeros)
    evens_and_odds = [
        of_some(half, scales[:, number::2], None if zeros is None else zeros[:, number::2])
        for number, half in enumerate(halves(weight, pairs))
    ]
    return jnp.stack(evens_and_odds, axis=-1).reshape(*x.shape[:-1], -1)


def _spread(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    *,
    group: int,
    precision: jax.lax.Precision,
) -> jax.Array:
    own = _own_group(len(scales), weight.shape[1], group, x.dtype)
    wide = {"precision": precision, "preferred_element_type": jnp.float32}
    spread = jax.lax.dot_general(scales.astype(x.dtype), own, (((0,), (0,)), ((), ())), **wide)
    matrix = (weight.astype(jnp.float32) * spread).astype(x.dtype)
    return matmul(x, matrix, precision=precision, backend="xla")


def without_zeros(
    products: jax.Array,
    x: jax.Array,
    scales: jax.Array,
    zeros: jax.Array,
    *,
    group: int,
    precision: jax.lax.Precision,
) -> jax.Array:
    """`products` with a matrix whose zeros were left out, less what they take away: `x [..., I]` is as it was multiplied."""
    sums = group_sums(x, len(scales), group=group, precision=precision)
    taken = floats(zeros) * floats(scales)
    return products - jnp.einsum("...k,ko->...o", sums, taken, precision=jax.lax.Precision.HIGHEST)


def group_sums(x: jax.Array, groups: int, *, group: int, precision: jax.lax.Precision) -> jax.Array:
    """Of the inputs `x [..., I]` of each group, float32 `[..., Q]`."""
    wide = {"precision": precision, "preferred_element_type": jnp.float32}
    found: jax.Array = jnp.einsum("...i,ki->...k", x, _own_group(groups, x.shape[-1], group, x.dtype), **wide)
    return found


def _own_group(groups: int, inputs: int, group: int, dtype: DTypeLike) -> jax.Array:
    """`[Q, I]`, one where an input is of a group and zero elsewhere."""
    return (jnp.arange(groups)[:, None] == jnp.arange(inputs) // group).astype(dtype)
