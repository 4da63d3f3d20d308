"""XLA's product on a TPU, with scales spread over their inputs by a product of their own, which XLA fuses into the large one.

A broadcast over the inputs of a group is not fused: the matrix is written to memory and read again. Thousands of cycles that the
TPU compiler estimates for a matrix `[14336, 4096]` in int4 with groups of 128 on v6e (31 is what reading it takes; as bfloat16 it
takes 160, 117 of them reading):

    rows                       64     256    2,048
    broadcast               1,390   1,477    2,390
    a product per group       568   1,023    5,945
    spread by a product       134     215    1,625
    one group of all inputs    44                570

Zeros inside of the matrix would undo the fusion (577 at 64 rows). What they take away is the sum of a group's inputs times zero
and scale, a small product as well.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul import matmul
from pallas_kernels.scaled_matmul.dense import multiply_dense


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
    precision: jax.lax.Precision,
) -> jax.Array:
    """See the op's contract."""
    multiply = functools.partial(matmul, precision=precision, backend="xla")
    if len(scales) == 1:
        return multiply_dense(x, weight, scales, zeros, group=group, compute=compute, multiply=multiply)
    x = x.astype(compute)
    own = jnp.arange(len(scales))[:, None] == jnp.arange(weight.shape[1]) // group
    spread = jax.lax.dot_general(
        scales.astype(compute),
        own.astype(compute),
        (((0,), (0,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    products = multiply(x, (weight.astype(jnp.float32) * spread).astype(compute))
    if zeros is None:
        return products
    # Of a rounded product the terms would not cancel: both factors are exact in bfloat16, and so is their sum's type.
    sums = jnp.einsum("...i,ki->...k", x, own.astype(compute), precision=precision, preferred_element_type=jnp.float32)
    taken = zeros.astype(jnp.float32) * scales.astype(jnp.float32)
    return products - jnp.einsum("...k,ko->...o", sums, taken, precision=jax.lax.Precision.HIGHEST)
