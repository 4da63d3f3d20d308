"""Experts of 4 bits with many rows each on an NVIDIA GPU: all are made dense by a kernel, then multiplied in bfloat16.

A kernel that takes numbers apart does so again for each block of rows, and cuts products at groups: MXFP4 experts of gpt-oss-20b
with 256 rows each took 1,148 us on an H200. Making all of them dense and reading them again is 300 at 4 TB/s, and experts in
bfloat16 took 5.8 us for 10^9 multiplications and additions, which makes 400 (`results/gpu_engines.json`). Not run on a GPU yet.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.gpu.dense import make_dense
from pallas_kernels.gpu.device import AMPERE, gpu_refused
from pallas_kernels.gpu.scaled import MOST_VALUES
from pallas_kernels.grouped_matmul import grouped_matmul

LEAST_ROWS = 128
"""Of a group on average, for it to pay: with some 90 both ways would take as long, by the figures above."""


def supports(
    x: Any,
    weights: Any,
    sizes: Any,
    scales: Any,
    zeros: Any,
    *,
    compute: DTypeLike,
    rows: Any = None,
    **options: Any,
) -> str | None:
    """None, or why not."""
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the GPU kernel makes matrices of bfloat16"
    if weights.dtype != jnp.uint8:
        return f"matrices are of {weights.dtype}, which takes little to multiply as it is kept"
    mean = (x if rows is None else rows).shape[0] // weights.shape[0]
    if mean < LEAST_ROWS:
        return f"{mean} rows to a matrix; making it dense pays from {LEAST_ROWS} on"
    if 2 * math.prod(weights.shape) >= MOST_VALUES:
        return f"matrices of {2 * math.prod(weights.shape)} numbers; the kernel counts to {MOST_VALUES}"
    return gpu_refused(AMPERE)


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
    matrices = make_dense(weights, scales, zeros, group=group, pairs=pairs, inputs=0)
    return grouped_matmul(
        x.astype(compute), matrices, sizes, rows=rows, precision=precision, dtype=dtype, platform="gpu"
    )
