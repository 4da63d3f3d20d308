"""Means as a product with ones: XLA:CPU sums over an axis in an order that depends on the number of rows, products of two rows
and more it does not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.matmul import cpu

ONES_COLUMNS = 8


def supports(*args: Any) -> str | None:
    """None: any number of rows can be multiplied."""
    return None


def mean_last(x: jax.Array) -> jax.Array:
    """See the op's contract."""
    # Without the barrier XLA may turn the ones round, and that product depends on the rows (jax 0.12, fewer than 64 columns).
    ones = jax.lax.optimization_barrier(jnp.ones((ONES_COLUMNS, x.shape[-1]), x.dtype))
    return cpu.matmul(x, ones, None, precision=jax.lax.Precision.HIGHEST)[..., :1] / x.shape[-1]
