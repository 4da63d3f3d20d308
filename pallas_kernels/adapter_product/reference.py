"""The definition of adding adapters' products: each row with copies of its adapter's matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.adapter_product import AdapterRows


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits but memory."""
    return None


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
    adapter = jnp.minimum(rows.adapters, len(inward) - 1)
    own, axes = inward[adapter].astype(jnp.float32), "ni,nri->nr" if by_rank else "ni,nir->nr"
    highest = jax.lax.Precision.HIGHEST
    low = jnp.einsum(axes, x.astype(inward.dtype).astype(jnp.float32), own, precision=highest)
    low = low.astype(outward.dtype).astype(jnp.float32)
    added = jnp.einsum("nr,nro->no", low, outward[adapter].astype(jnp.float32), precision=highest)
    return jnp.where(rows.adapted[:, None], (base.astype(jnp.float32) + added).astype(base.dtype), base)
