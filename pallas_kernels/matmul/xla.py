"""One dot_general in the operands' own type: a TPU multiplies int8 in its matrix units, at twice the rate of bfloat16 or more."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.rows import quantise_rows


def supports(*args: Any, **options: Any) -> str | None:
    """None: XLA multiplies whatever it is given."""
    return None


def matmul(x: jax.Array, weight: jax.Array, scales: jax.Array | None, *, precision: jax.lax.Precision) -> jax.Array:
    """See the op's contract."""
    last = (((x.ndim - 1,), (1,)), ((), ()))
    if scales is None:
        return jax.lax.dot_general(
            x.astype(weight.dtype), weight, last, precision=precision, preferred_element_type=jnp.float32
        )
    values, row_scales = quantise_rows(x)
    sums = jax.lax.dot_general(values, weight, last, preferred_element_type=jnp.int32)
    return sums.astype(jnp.float32) * row_scales * scales
