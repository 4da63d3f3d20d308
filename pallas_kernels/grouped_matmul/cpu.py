"""Blocks of rows of one group, one after the other (`blocks.py`).

XLA:CPU makes `lax.ragged_dot` a product of all rows with all matrices. CPU-milliseconds of a gated feed-forward of 32 experts,
4 of them for each token, 512 wide and 256 inside, on two shared cores of a Xeon with AVX-512 (`benchmarks/experts.py products`):

                              bfloat16              float32
    tokens                   8    64   512       8    64    512
    lax.ragged_dot          46   262  1609      73   141   1050
    a loop over experts     16   182  1202      23    87    785
    blocks of 8 rows       5.8    17    92      11    18    100
    blocks of 16            10    18    68      12    18     78
    blocks of 32            17    28    65      18    24     68

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
