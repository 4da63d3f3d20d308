"""Each product by itself, as the definition says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.adapted_gate import AdaptedMatrix
from pallas_kernels.adapter_product import AdapterRows, adapter_product
from pallas_kernels.matmul import matmul


def supports(*args: Any, **options: Any) -> str | None:
    """None: each product chooses a backend of its own."""
    return None


def adapted_gate(
    x: jax.Array,
    gate: AdaptedMatrix,
    up: AdaptedMatrix,
    rows: AdapterRows,
    *,
    gated: Callable[[jax.Array, jax.Array], jax.Array],
    dtype: DTypeLike,
    precision: jax.lax.Precision,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""

    def products(matrix: AdaptedMatrix) -> jax.Array:
        base = matmul(x, matrix.weight, dtype=dtype, precision=precision, platform=platform)
        return adapter_product(
            base, x, matrix.inward, matrix.outward, rows, by_rank=True, precision=precision, platform=platform
        )

    return gated(products(gate), products(up))
