"""Products of one input with several scaled matrices, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pallas_kernels import scaled_matmul


def supports(*args: Any, **options: Any) -> str | None:
    """None: each chooses a backend of its own."""
    return None


def scaled_matmul_each(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array],
    zeros: Sequence[jax.Array | None],
    factors: Sequence[jax.Array | None],
    **options: Any,
) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    return tuple(scaled_matmul(x, *each, **options) for each in zip(weights, scales, zeros, factors, strict=True))
