"""XLA's product in 16 bits, rounded by what multiplies: a GPU's library would write float32, for others to read and round.

Sums are float32 all the same. Where devices share the inputs each rounds its part of a sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul.parts import WHOLE, Parts


def supports(x: Any, weight: Any, scales: Any, *, dtype: DTypeLike = jnp.float32, **options: Any) -> str | None:
    """None, or why not."""
    if weight.dtype not in (jnp.bfloat16, jnp.float16) or jnp.dtype(dtype) != weight.dtype:
        return f"a weight of {weight.dtype} for results of {jnp.dtype(dtype)}; both are to be of the same 16 bits"
    return None


def matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    dtype: DTypeLike,
    used: jax.Array | None = None,
    parts: Parts = WHOLE,
) -> jax.Array:
    """See the op's contract."""
    last = (((x.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(x.astype(weight.dtype), weight, last, precision=precision, preferred_element_type=dtype)
