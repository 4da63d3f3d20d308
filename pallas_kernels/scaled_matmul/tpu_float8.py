"""float8 by float8 on a TPU whose matrix units take it, for rows that may be rounded; few of them `tpu` multiplies faster.

On tpu7x, which has no products of integers, it is the fastest of XLA's forms; v6e has both, and converts the matrix on the way as
fast as it would round rows (`benchmarks/tpu_products.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.tpu.chip import NO_TPU, target_chip

CHIPS = ("tpu7x", "7x")
"""Where it is the fastest."""
FLOAT8 = jnp.dtype(jnp.float8_e4m3fn)


def supports(x: Any, weight: Any, scales: Any, zeros: Any, *, round_rows: bool, **options: Any) -> str | None:
    """None, or why not."""
    if not round_rows:
        return "rows are to stay as they are (round_rows)"
    if weight.dtype != FLOAT8 or zeros is not None or len(scales) != 1:
        return f"it multiplies {FLOAT8} with one scale for each output and no zeros"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    return None if chip.name in CHIPS else f"on {chip.name} rows that stay as they are take no longer"


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    round_rows: bool,
    precision: jax.lax.Precision,
    used: jax.Array | None = None,
) -> jax.Array:
    """See the op's contract."""
    wide = x.astype(jnp.float32)
    row_scales = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) / float(jnp.finfo(FLOAT8).max)
    rows = (wide / jnp.where(row_scales == 0, 1, row_scales)).astype(FLOAT8)
    last = (((x.ndim - 1,), (1,)), ((), ()))
    products = jax.lax.dot_general(rows, weight, last, preferred_element_type=jnp.float32)
    return products * row_scales * scales[0].astype(jnp.float32)
