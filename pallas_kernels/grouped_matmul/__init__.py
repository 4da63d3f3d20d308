"""Multiplying sorted rows, each group of them with a matrix of its own: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.matmul import MAX_INT8_INPUTS

OP = Op(
    "grouped_matmul",
    backends={name: f"{__name__}.{name}" for name in ("reference", "xla", "gpu", "tpu", "cpu", "native")},
    preferred={"gpu": ("gpu",), "tpu": ("tpu",), "cpu": ("native", "cpu")},
    portable="xla",
)


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    *,
    rows: jax.Array | None = None,
    scales: jax.Array | None = None,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    across: tuple[str, ...] = (),
    dtype: DTypeLike = jnp.float32,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """The first `sizes[0]` rows of `x` times `weights[0]`, the next `sizes[1]` times `weights[1]`, and so on, summed in float32.

    Types are those of `matmul`: with weights of floating point, `x` is rounded to their type; int8 weights stand for
    `weights[g, i, o] * scales[g, o]`, and rows are rounded to int8 over a scale of their own.

    Args:
        x: `[M, I]` of floating point, sorted by group; with `rows`, `[N, I]` in any order.
        weights: `[G, I, O]`, of floating point or int8. The transpose of what `matmul` takes: a TPU's kernel reads it so.
        sizes: int32 `[G]`, how many rows each group has; their sum is `M` at most.
        rows: int32 `[M]`, which row of `x` each row is: a row that several groups have is rounded once.
        scales: float32 `[G, O]`, of int8 weights and only there.
        precision: of the products of floating point.
        across: inside `shard_map`, the mesh axes over which `I` is cut, so that int8 rows have the scale of the whole row. The
            results are this device's terms of a sum over those axes.
        dtype: of floating point, of the results; sums are made in float32 all the same.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[M, O]`. Rows behind the last group hold anything, also what is no number. On the CPU, and with int8 on every
        platform, a row's numbers are the same to the last bit whatever rows there are beside it.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "M I"), weights=(weights, "G I O"), sizes=(sizes, "G"))
    check_equal("I (inputs)", x=x.shape[1], weights=weights.shape[1])
    check_equal("G (groups)", weights=weights.shape[0], sizes=sizes.shape[0])
    check_int32(sizes=sizes)
    if rows is not None:
        check_rank(rows=(rows, "M"))
        check_int32(rows=rows)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be of floating point, got {x.dtype}")
    if (weights.dtype == jnp.int8) != (scales is not None):
        raise ValueError(
            f"scales belong to int8 weights and to no others, got weights of {weights.dtype}, scales {scales}"
        )
    if scales is not None:
        check_rank(scales=(scales, "G O"))
        check_equal("G (groups)", weights=weights.shape[0], scales=scales.shape[0])
        check_equal("O (outputs)", weights=weights.shape[2], scales=scales.shape[1])
        if x.shape[1] > MAX_INT8_INPUTS:
            raise ValueError(f"axis I of an int8 product may have {MAX_INT8_INPUTS} at most, got {x.shape[1]}")
    result: jax.Array = OP.run(
        backend, platform, x, weights, sizes, rows, scales, precision=precision, across=across, dtype=dtype
    )
    return result
