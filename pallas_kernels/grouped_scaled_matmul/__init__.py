"""Multiplying sorted rows, each group of them with a scaled matrix of its own: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.scaled_matmul import check_groups, numbers_to_a_byte

OP = Op(
    "grouped_scaled_matmul",
    backends={name: f"{__name__}.{name}" for name in ("reference", "xla", "gpu", "gpu_dense", "cpu", "native", "tpu")},
    preferred={"gpu": ("gpu_dense", "gpu"), "cpu": ("native", "cpu"), "tpu": ("tpu",)},
    portable="xla",
)


def grouped_scaled_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str = "int4",
    rows: jax.Array | None = None,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    dtype: DTypeLike = jnp.float32,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """The first `sizes[0]` rows of `x` times matrix 0, the next `sizes[1]` times matrix 1, and so on, summed in float32.

    Matrix g is `(weights[g, i, o] - zeros[g, i // group, o]) * scales[g, i // group, o]`. `x` is rounded to `compute`, and so
    is the matrix unless a backend multiplies numbers before scales.

    Args:
        x: `[M, I]` of floating point, sorted by group; with `rows`, `[N, I]` in any order.
        weights: `[G, I, O]` of the types of `scaled_matmul`; of two numbers to a byte `[G, I / 2, O]`, that of
            input `2 j` being in the low bits.
        sizes: int32 `[G]`, how many rows each group has; their sum is `M` at most.
        scales: `[G, Q, O]` of floating point or uint8, for `Q` groups of `group` inputs; the last may have fewer.
        zeros: `[G, Q, O]` of floating point, or beside scales of uint8 sixteenths in int8; None: 0.
        group: inputs that have a scale in common.
        compute: float32, bfloat16 or float16.
        pairs: what two numbers to a byte are, as in `scaled_matmul`.
        rows: int32 `[M]`, which row of `x` each row is.
        precision: of the products.
        dtype: of the results.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[M, O]`. Rows behind the last group hold anything, also what is no number. On the CPU a row's numbers are the same to the
        last bit whatever rows there are beside it.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "M I"), weights=(weights, "G I O"), sizes=(sizes, "G"), scales=(scales, "G Q O"))
    check_equal("I (inputs)", x=x.shape[1], weights=weights.shape[1] * numbers_to_a_byte(weights))
    check_equal("O (outputs)", weights=weights.shape[2], scales=scales.shape[2])
    check_equal("G (groups)", weights=weights.shape[0], sizes=sizes.shape[0], scales=scales.shape[0])
    check_groups(weights, scales, zeros, group=group, inputs=x.shape[1], pairs=pairs)
    check_int32(sizes=sizes)
    if rows is not None:
        check_rank(rows=(rows, "M"))
        check_int32(rows=rows)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be of floating point, got {x.dtype}")
    result: jax.Array = OP.run(
        backend,
        platform,
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
    )
    return result
