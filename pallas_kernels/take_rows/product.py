"""Rows of few on a TPU: a product with ones and zeros, which takes less time there than moving rows one by one.

What is multiplied are the bytes of the rows. As numbers they are exact in bfloat16, as is a sum of which one term is not zero:
rows come out to the last bit, and what is no number stays in its row. Rows that are finite are multiplied as they are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.tpu.chip import target_chip

UNITS = 2
"""Of `x` there can be as many rows as so many matrix units have columns: with more the product takes longer than moving."""


def supports(x: Any, rows: Any, used: Any, **options: Any) -> str | None:
    """None, or why not."""
    chip = target_chip()
    if x.dtype != jnp.bfloat16:
        return f"x is {x.dtype}; the product is of the two bytes of bfloat16"
    if chip is not None and len(x) > UNITS * chip.matrix_columns:
        return f"{len(x)} rows are too many for a product"
    return None


def take_rows(x: jax.Array, rows: jax.Array, used: jax.Array, *, finite: bool) -> jax.Array:
    """See the op's contract."""
    places = jnp.arange(len(x), dtype=rows.dtype)
    ones = (jnp.clip(rows, 0, len(x) - 1)[:, None] == places).astype(jnp.bfloat16)
    if finite:
        return jnp.dot(ones, x, preferred_element_type=jnp.float32).astype(x.dtype)
    words = jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32)
    found = (
        jnp.dot(ones, part.astype(jnp.bfloat16), preferred_element_type=jnp.float32).astype(jnp.int32)
        for part in (words >> 8, words & 255)
    )
    high, low = found
    return jax.lax.bitcast_convert_type((high << 8 | low).astype(jnp.uint16), jnp.bfloat16)
