"""Products of one input with several matrices in one call of the CPU's library (`native`).

A call wakes the other threads and waits for them, and rounds what it multiplies; and memory rests between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.matmul import native


def supports(
    x: jax.Array, weights: Sequence[jax.Array], scales: Sequence[jax.Array | None], **options: Any
) -> str | None:
    """None, or which type it does not multiply, or that the library is not registered."""
    if len({weight.dtype for weight in weights}) > 1:
        return f"weights are of {', '.join(str(weight.dtype) for weight in weights)}, and it takes those of one type"
    return native.supports(x, weights[0], scales[0])


def matmul_each(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array | None],
    *,
    dtype: DTypeLike,
    used: jax.Array | None,
    platform: str | None,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    return native.products(x, weights, scales, dtype=dtype, used=used)
