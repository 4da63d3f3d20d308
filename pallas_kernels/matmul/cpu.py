"""XLA's product on a CPU, which never has a single row, nor few columns.

From two rows and eight columns on, a row's product is the same to the last bit for any number of rows beside it, which keeps
results independent of the batch; XLA:CPU sums a single row in another order, and of one or two columns the last rows. A single
row is slower too, for bfloat16 8 to 38 times (jax 0.10.2 and 0.12).

int8 needs nothing else: XLA:CPU multiplies it as integers, faster than any other form here. Milliseconds for a matrix of
`[3072, 1024]` on two shared cores of a Xeon with AVX-512 VNNI (`benchmarks/quantization.py products`, jax 0.10.2):

    rows                            1     2     8    32   128   512
    float32                       3.3   6.0   5.5   6.5  23.1  55.2
    bfloat16                      1.1   1.9   2.1   5.8  24.8  87.0
    int8                          0.7   1.2   0.9   4.4  18.3  57.5
    int8, a row never padded      3.1
    int8 converted to float32     4.6  12.8   9.5  10.1  29.8  62.2
    int8 converted to bfloat16   12.4  19.5  14.1  19.6  50.0  94.3
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
