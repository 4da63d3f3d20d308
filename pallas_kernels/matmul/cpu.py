"""XLA's product on a CPU, which never has a single row, nor few columns.

From two rows and eight columns on, a row's product is the same to the last bit for any number of rows beside it, which keeps
results independent of the batch; XLA:CPU sums a single row in another order, and of one or two columns the last rows. A single
row is slower too.

int8 needs nothing else: XLA:CPU multiplies it as integers, faster than any other form here (`benchmarks/quantization.py
products`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul import xla
from pallas_kernels.matmul.parts import WHOLE, Parts

MIN_ROWS = 2
MIN_COLUMNS = 8


def supports(*args: Any, **options: Any) -> str | None:
    """None: what XLA multiplies, it multiplies for two rows as well."""
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
    rows, outputs = x.shape[0], weight.shape[0]
    more_rows = max(0, MIN_ROWS - rows)
    more = 0 if scales is not None else max(0, MIN_COLUMNS - outputs)  # sums of integers are exact
    if parts != WHOLE or (not more_rows and not more):
        return xla.matmul(x, weight, scales, precision=precision, dtype=dtype, parts=parts)
    x = jnp.pad(x, ((0, more_rows), *((0, 0),) * (x.ndim - 1)))
    product = xla.matmul(x, jnp.pad(weight, ((0, more), (0, 0))), scales, precision=precision, dtype=dtype)
    return product[:rows, ..., :outputs]
