"""XLA's product on a CPU, which never has a single row.

From two rows on, a row's product is the same to the last bit for any number of rows beside it, which keeps results independent
of the batch; XLA:CPU sums a single row in another order. It is slower too: of bfloat16 8 to 38 times, of int8 3 to 8 (jax 0.10.2;
int8 `[3072, 1024]` on two cores: 3.1 ms for one row, 0.8 for two). int8 needs nothing else: XLA:CPU multiplies it as integers, in
half the time of bfloat16 at 2 to 8 rows (1.1 ms, bfloat16 2.1, float32 4.6) and in three quarters at 32 and more. Converting the
weight to either in the product takes 2 to 15 times as long, by blocks that stay in the caches 1.3 to 17 times.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.matmul import xla

MIN_ROWS = 2


def supports(*args: Any, **options: Any) -> str | None:
    """None: what XLA multiplies, it multiplies for two rows as well."""
    return None


def matmul(x: jax.Array, weight: jax.Array, scales: jax.Array | None, *, precision: jax.lax.Precision) -> jax.Array:
    """See the op's contract."""
    rows = x.shape[0]
    if rows >= MIN_ROWS:
        return xla.matmul(x, weight, scales, precision=precision)
    x = jnp.pad(x, ((0, MIN_ROWS - rows), *((0, 0),) * (x.ndim - 1)))
    return xla.matmul(x, weight, scales, precision=precision)[:rows]
