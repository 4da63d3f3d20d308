"""XLA's product with the dense matrix, made anew at every call."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.matmul import matmul
from pallas_kernels.scaled_matmul.dense import multiply_dense


def supports(*args: Any, **options: Any) -> str | None:
    """None: XLA multiplies whatever it is given."""
    return None


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
) -> jax.Array:
    """See the op's contract."""
    multiply = functools.partial(matmul, precision=precision, backend="xla")
    return multiply_dense(x, weight, scales, zeros, group=group, compute=compute, pairs=pairs, multiply=multiply)
