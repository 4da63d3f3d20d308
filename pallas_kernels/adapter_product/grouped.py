"""Rows sorted by adapter, and the grouped product of experts twice: each row costs its own adapter, one without nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.grouped_matmul import grouped_matmul


def supports(*args: Any, by_rank: bool, **options: Any) -> str | None:
    """None, or that the matrices lie beside each other."""
    return "the first matrices lie by rank" if by_rank else None


def adapter_product(
    base: jax.Array,
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
    """See the op's contract."""
    low = grouped_matmul(x, inward, rows.sizes, rows=rows.order, precision=precision, platform=platform)
    sums = grouped_matmul(low, outward, rows.sizes, precision=precision, platform=platform)
    added = jnp.take(sums, rows.places, axis=0)
    return jnp.where(rows.adapted[:, None], (base.astype(jnp.float32) + added).astype(base.dtype), base)
