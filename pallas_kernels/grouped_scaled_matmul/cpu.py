"""XLA's: as on every platform, in blocks that do not waste a CPU's time on rows that are not there."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.grouped_scaled_matmul.blocks import multiply_scaled_blocks

BLOCK_ROWS = 16


def supports(*args: Any, **options: Any) -> str | None:
    """None: it is made of plain products."""
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
    """See the op's contract."""
    return multiply_scaled_blocks(
        x,
        weights,
        sizes,
        scales,
        zeros,
        group=group,
        compute=compute,
        pairs=pairs,
        rows=rows,
        precision=precision,
        dtype=dtype,
        block_rows=BLOCK_ROWS,
    )
