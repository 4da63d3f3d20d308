"""The first product of all adapters at once, and the second one of each row's own.

The CPU's products by groups have lanes for 64 outputs, of which an adapter's rank fills few: so as long as all ranks together are
no more than some, one plain product is less work than one for each adapter (`benchmarks/adapters.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.matmul import matmul


def supports(*args: Any, by_rank: bool, **options: Any) -> str | None:
    """None, or that the matrices do not lie beside each other."""
    return None if by_rank else "the first matrices lie by inputs"


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
    count, rank, _ = inward.shape
    if low is None:
        low = matmul(x, inward.reshape(count * rank, -1), precision=precision, platform=platform)
    own = jnp.minimum(rows.adapters, count - 1)[:, None] * rank + jnp.arange(rank)
    low = jnp.take_along_axis(low, own, axis=1)
    sums = grouped_matmul(low, outward, rows.sizes, rows=rows.order, precision=precision, platform=platform)
    added = jnp.take(sums, rows.places, axis=0)
    return jnp.where(rows.adapted[:, None], (base.astype(jnp.float32) + added).astype(base.dtype), base)
