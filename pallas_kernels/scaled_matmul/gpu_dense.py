"""The product with a matrix of groups beside many rows on an NVIDIA GPU: made dense by a kernel, multiplied by XLA.

Results are rounded by what multiplies, as in `pallas_kernels/matmul/gpu.py`.
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
from pallas_kernels.matmul import matmul
from pallas_kernels.scaled_matmul import numbers_to_a_byte


def supports(x: Any, weight: Any, scales: Any, zeros: Any, *, compute: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the GPU kernel makes matrices of bfloat16"
    if len(scales) == 1:
        return "a scale for each output alone, which is multiplied with results"
    values = numbers_to_a_byte(weight) * math.prod(weight.shape)
    if values >= MOST_VALUES:
        return f"a matrix of {values} numbers; the kernel counts to {MOST_VALUES}"
    return gpu_refused(AMPERE)


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    round_rows: bool,
    precision: jax.lax.Precision,
    used: jax.Array | None = None,
    result: DTypeLike = jnp.float32,
) -> jax.Array:
    """See the op's contract."""
    zero = None if zeros is None else zeros[None]
    [matrix] = make_dense(weight[None], scales[None], zero, group=group, pairs=pairs, inputs=1)
    return matmul(x.astype(compute), matrix, precision=precision, dtype=result, platform="gpu")
