"""int8 beside many rows by `tpu_int8.py`, all else by `xla.py`; on v6e what many rows are multiplied of is computed before.

XLA would compute a norm, or an activation times a gate, within the product, anew for every block of outputs that reads it, in
tiles for which the product has the less memory, and units of 256 x 256 are what large tiles feed. That takes a fifth of a
layer's time away (`benchmarks/tpu_steps.py`). On v5e, whose units are smaller, products gain nothing and the pass over memory
costs a tenth.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul import tpu_int8, xla
from pallas_kernels.matmul.parts import WHOLE, Parts
from pallas_kernels.tpu.chip import target_chip

CHIPS = ("v6e",)
FEW_ROWS = 64
"""Beside which XLA's int8 products take little longer than reading the matrix."""
MANY_ROWS = 512
"""About what it takes that a product on v6e lasts longer than reading its matrix."""


def supports(*args: Any, **options: Any) -> str | None:
    """None: XLA multiplies whatever it is given."""
    return None


def matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    dtype: DTypeLike = jnp.float32,
    used: jax.Array | None = None,
    parts: Parts = WHOLE,
) -> jax.Array:
    """See the op's contract."""
    chip = target_chip()
    if scales is not None and x.shape[0] * parts.row_count > FEW_ROWS and tpu_int8.takes(x, weight):
        return tpu_int8.multiply(x, weight, scales, dtype=dtype, parts=parts)
    if x.shape[0] >= MANY_ROWS and chip is not None and chip.name in CHIPS:
        x = jax.lax.optimization_barrier(x)
    return xla.matmul(x, weight, scales, precision=precision, dtype=dtype, parts=parts)
