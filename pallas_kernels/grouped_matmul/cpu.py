"""Blocks of rows of one group, one after the other (`blocks.py`).

XLA:CPU makes `lax.ragged_dot` a product of all rows with all matrices. `benchmarks/experts.py products` times this form beside
others.

All blocks have one shape, so a row's bits do not depend on how many rows its group has.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.blocks import multiply_blocks
from pallas_kernels.grouped_matmul.groups import group_of_row, quantised, taken

BLOCK_ROWS = 16


def supports(*args: Any, **options: Any) -> str | None:
    """None: it is made of plain products."""
    return None


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    rows: jax.Array | None,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    across: tuple[str, ...],
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract."""
    if scales is None:
        return _sums(taken(x.astype(weights.dtype), rows), weights, sizes, jnp.dtype(jnp.float32), precision).astype(
            dtype
        )
    values, row_scales = quantised(x, rows, across=across)
    sums = _sums(values, weights, sizes, jnp.dtype(jnp.int32), None)
    own_scales = scales[group_of_row(sizes, rows=values.shape[0])]
    return (sums.astype(jnp.float32) * row_scales * own_scales).astype(dtype)


def _sums(
    x: jax.Array, weights: jax.Array, sizes: jax.Array, dtype: jnp.dtype, precision: jax.lax.Precision | None
) -> jax.Array:
    multiply = functools.partial(lax.dot, precision=precision, preferred_element_type=dtype)
    return multiply_blocks(x, weights, sizes, multiply, block_rows=BLOCK_ROWS, outputs=weights.shape[2], dtype=dtype)
