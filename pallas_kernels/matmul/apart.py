"""Products of one input with several matrices, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pallas_kernels import matmul


def supports(*args: Any, **options: Any) -> str | None:
    """None: each chooses a backend of its own."""
    return None


def matmul_each(
    x: jax.Array, weights: Sequence[jax.Array], scales: Sequence[jax.Array | None], **options: Any
) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    return tuple(matmul(x, weight, scales=each, **options) for weight, each in zip(weights, scales, strict=True))
