"""`lax.ragged_dot`, of which the TPU compiler makes a kernel of its own, for int8 as well: a whole matrix a step, read once.

With matrices as `[G, O, I]` it copies all of them first (`benchmarks/grouped_products.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.groups import group_of_row, quantised, taken


def supports(*args: Any, **options: Any) -> str | None:
    """None: XLA multiplies whatever it is given."""
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
        return jax.lax.ragged_dot(
            taken(x.astype(weights.dtype), rows), weights, sizes, precision=precision, preferred_element_type=dtype
        )
    values, row_scales = quantised(x, rows, across=across)
    sums = jax.lax.ragged_dot(values, weights, sizes, preferred_element_type=jnp.int32)
    own_scales = scales[group_of_row(sizes, rows=values.shape[0])]
    return (sums.astype(jnp.float32) * row_scales * own_scales).astype(dtype)
