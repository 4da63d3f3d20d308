"""As `wide`; of many rows the adapters' products are computed before the matrix's, which then adds them to its own.

Many rows keep the matrix units busy while memory rests: what is read meanwhile costs nothing, what is read before or after does.
Left to itself XLA adds the matrix's products to the adapters', and reads and writes all of them in between.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.adapter_product.wide import products, supports

__all__ = ["adapter_product", "supports"]

MANY_ROWS = 512
"""About what it takes that a product on v6e lasts longer than reading its matrix."""


def adapter_product(
    base: jax.Array,
    x: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    rows: AdapterRows,
    **options: Any,
) -> jax.Array:
    """See the op's contract."""
    added = products(x, inward, outward, rows, **options)
    if len(x) >= MANY_ROWS:
        added = jax.lax.optimization_barrier(added.astype(base.dtype))
    sums = base.astype(jnp.float32) + added.astype(jnp.float32)
    return jnp.where(rows.adapted[:, None], sums.astype(base.dtype), base)
