"""Products of one input with several scaled matrices in one call of the CPU's library (`native`).

A call wakes the other threads and waits for them, and makes integers of the rows that it multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.scaled_matmul import native
from pallas_kernels.scaled_matmul.packed import is_packed


def supports(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array],
    zeros: Sequence[jax.Array | None],
    factors: Sequence[jax.Array | None],
    **options: Any,
) -> str | None:
    """None, or which type it does not multiply, or that the library is not registered."""
    if len({is_packed(weight) for weight in weights}) > 1:
        return "some matrices are packed and some are not"
    if len({weight.dtype for weight in weights}) > 1:
        return f"weights are of {', '.join(str(weight.dtype) for weight in weights)}, and it takes those of one type"
    if len({each is None for each in zeros}) > 1:
        return "some have zeros and some have none"
    return native.supports(x, weights[0], scales[0], zeros[0], **options)


def scaled_matmul_each(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array],
    zeros: Sequence[jax.Array | None],
    factors: Sequence[jax.Array | None],
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    used: jax.Array | None,
    result: DTypeLike,
    **options: Any,
) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    products = native.products(x, weights, scales, zeros, factors, group=group, compute=compute, pairs=pairs, used=used)
    return tuple(product.astype(result) for product in products)
