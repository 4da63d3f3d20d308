"""The CPU's products by groups in C++ (`pallas_kernels/native/grouped.h`): what is kept of a matrix is read once, if it has rows.

Numbers are multiplied as they are, which bfloat16 holds exactly, and scales multiply the sum of a group's inputs: what the
reference does but for the order of sums, where other backends round the matrix to bfloat16. `benchmarks/cpu_experts.py` times
it beside XLA's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import native
from pallas_kernels.grouped_matmul.groups import taken
from pallas_kernels.grouped_matmul.native import multiply
from pallas_kernels.scaled_matmul.native import as_read


def supports(
    x: Any, weights: Any, sizes: Any, scales: Any, zeros: Any, *, group: int, compute: DTypeLike, **options: Any
) -> str | None:
    """None, or what it does not multiply, or that it is not registered."""
    if native.call_name(native.GROUPED_PRODUCT) is None:
        return native.NOT_REGISTERED
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the product in C++ is of bfloat16"
    if scales.shape[1] > 1 and group % 2:
        return f"groups of {group} inputs, where it multiplies two at once"
    return None


def grouped_scaled_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    rows: jax.Array | None,
    precision: jax.lax.Precision,
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract. `precision` changes nothing: products are never rounded."""
    factors, subtracted = as_read(scales, zeros)
    return multiply(
        taken(x.astype(compute), rows),
        weights,
        sizes,
        scales=factors,
        zeros=subtracted,
        group=group,
        float4=pairs != "int4",
    ).astype(dtype)
