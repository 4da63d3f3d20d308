"""Sums as a product with ones and zeros, which a TPU makes of few rows in less time than it moves them.

They are about as exact as the type of the sums: for float32 the product is of the two bfloat16 that a row is but for its last 8
bits. Infinity times zero is no number, so the largest number stands for what is none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def supports(*args: Any, **options: Any) -> str | None:
    """None: it is a product."""
    return None


def sum_rows(sums: jax.Array, rows: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
    """See the op's contract."""
    most, count = float(jnp.finfo(jnp.bfloat16).max), len(sums)
    found = jnp.where((places < count)[:, None], rows.astype(jnp.float32) * weights[:, None], 0.0)
    found = jnp.nan_to_num(found, nan=most, posinf=most, neginf=-most)
    parts = [found.astype(jnp.bfloat16)]
    ones = (jnp.arange(count, dtype=places.dtype)[:, None] == places).astype(jnp.bfloat16)
    if sums.dtype != jnp.bfloat16:
        parts.append((found - parts[0].astype(jnp.float32)).astype(jnp.bfloat16))
    ones = jnp.concatenate([ones] * len(parts), axis=1)
    products = jnp.dot(ones, jnp.concatenate(parts), preferred_element_type=jnp.float32)
    return (sums + products).astype(sums.dtype)
