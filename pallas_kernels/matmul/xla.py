"""One dot_general in the operands' own type: a TPU multiplies int8 in its matrix units, at twice the rate of bfloat16.

Beside many rows what is gained goes into rounding activations and into sums that lie in memory as int32: `tpu_int8.py` does
without. Neither a barrier before or behind the product nor multiplying by the reciprocal scale made that less
(`benchmarks/quantization.py cycles`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul.parts import WHOLE, Parts
from pallas_kernels.matmul.rows import quantise_rows


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
    last = (((x.ndim - 1,), (1,)), ((), ()))
    if scales is None:
        product = jax.lax.dot_general(
            x.astype(weight.dtype), weight, last, precision=precision, preferred_element_type=jnp.float32
        )
        return product.astype(dtype)
    values, row_scales = parts.gather(*quantise_rows(x, across=parts.inputs))
    sums = jax.lax.dot_general(values, weight, last, preferred_element_type=jnp.int32)
    return (sums.astype(jnp.float32) * row_scales * scales).astype(dtype)
