"""One pair of dense products for all adapters: what is not a row's own between them is zero. No row is moved.

The matrix units of a TPU work on 128 or 256 numbers at once, as many as some adapters' ranks together have.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.dispatch import AUTO
from pallas_kernels.matmul import matmul


def supports(*args: Any, by_rank: bool, **options: Any) -> str | None:
    """None, or that the matrices do not lie beside each other."""
    return None if by_rank else "the first matrices lie by inputs"


def adapter_product(
    base: jax.Array, x: jax.Array, inward: jax.Array, outward: jax.Array, rows: AdapterRows, **options: Any
) -> jax.Array:
    """See the op's contract."""
    sums = base.astype(jnp.float32) + products(x, inward, outward, rows, **options)
    return jnp.where(rows.adapted[:, None], sums.astype(base.dtype), base)


def products(
    x: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    rows: AdapterRows,
    *,
    by_rank: bool,
    low: jax.Array | None,
    precision: jax.lax.Precision,
    platform: str | None,
) -> jax.Array:
    """The adapters' products alone, float32 `[N, O]`: zeros of rows without one."""
    count, rank, _ = inward.shape
    multiply = functools.partial(
        matmul, precision=precision, backend="cpu" if platform == "cpu" else AUTO, platform=platform
    )
    if low is None:
        low = multiply(x, inward.reshape(count * rank, -1))
    own = rows.adapters[:, None] == jnp.arange(count * rank) // rank
    return multiply(jnp.where(own, low, 0.0), outward.reshape(count * rank, -1).T)
