"""Multiplying rows with a matrix, of floating point or quantised: the contract and its backends."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.matmul.parts import WHOLE, Parts

OP = Op(
    "matmul",
    backends={name: f"{__name__}.{name}" for name in ("reference", "xla", "tpu", "cpu", "native", "gpu")},
    preferred={"cpu": ("native", "cpu"), "tpu": ("tpu",), "gpu": ("gpu",)},
    portable="xla",
)

EACH = Op(
    "matmul_each",
    backends={name: f"{__name__}.{name}" for name in ("apart", "together")},
    preferred={"cpu": ("together",)},
    portable="apart",
)

MAX_INT8_INPUTS = (2**31 - 1) // 127**2
"""Longest row of int8 whose product cannot leave int32."""


def matmul(
    x: jax.Array,
    weight: jax.Array,
    *,
    scales: jax.Array | None = None,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    dtype: DTypeLike = jnp.float32,
    used: jax.Array | None = None,
    parts: Parts = WHOLE,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`x` times the transpose of `weight`, in float32 but for the result's type.

    With a weight of floating point, `x` is rounded to its type and products are summed in float32. An int8 weight stands for
    `weight[o] * scales[o]`: each row of `x` is rounded to int8 over a scale of its own, the row's largest magnitude over 127;
    the integers are multiplied and summed exactly, and the sum is multiplied by both scales in float32. A row of zeros gives
    zeros, a row with a value that is not finite gives none that is.

    Args:
        x: `[N, ..., I]` of floating point, two axes or more; all but the last count rows.
        weight: `[O, I]`, of floating point or int8.
        scales: float32 `[O]`, of an int8 weight and only there.
        precision: of the products of floating point.
        dtype: of the result, which float32 is rounded to.
        used: int32 `[]`, of an `x [N, I]`: rows behind so many are padding. What these get means nothing, and is finite where
            `x` is.
        parts: inside `shard_map`, how devices share the rows beside an int8 weight: `x` is this one's part of them.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, ..., O]`, with `parts` of all rows. On the CPU, and with int8 on every platform, a row's numbers are the same to the
        last bit whatever rows there are beside it.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    _check(x, weight, scales, parts, used)
    result: jax.Array = OP.run(
        backend, platform, x, weight, scales, precision=precision, dtype=dtype, used=used, parts=parts
    )
    return result


def matmul_each(
    x: jax.Array,
    weights: Sequence[jax.Array],
    *,
    scales: Sequence[jax.Array | None],
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    dtype: DTypeLike = jnp.float32,
    used: jax.Array | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, ...]:
    """What `matmul` gives with each of the weights `[O_n, I]` and its scales, to the last bit: `[N, ..., O_n]` each.

    Raises:
        ValueError: as `matmul`, or there are not as many scales, each an array or None, as weights.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_equal("weights and scales", weights=len(weights), scales=len(scales))
    for weight, each in zip(weights, scales, strict=True):
        _check(x, weight, each, WHOLE, used)
    options = {"used": used, "precision": precision, "dtype": dtype, "platform": platform}
    results: tuple[jax.Array, ...] = EACH.run(backend, platform, x, tuple(weights), tuple(scales), **options)
    return results


def _check(x: jax.Array, weight: jax.Array, scales: jax.Array | None, parts: Parts, used: jax.Array | None) -> None:
    check_rank(weight=(weight, "O I"))
    check_equal("I (inputs)", x=x.shape[-1] * parts.input_count, weight=weight.shape[1])
    if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be of floating point with two axes or more, got {x.dtype}{list(x.shape)}")
    if used is not None:
        check_int32(used=used)
        check_equal("axes", used=used.ndim + 2, x=x.ndim)
    if (weight.dtype == jnp.int8) != (scales is not None):
        raise ValueError(
            f"scales belong to an int8 weight and to no other, got weight of {weight.dtype}, scales {scales}"
        )
    if scales is not None:
        check_rank(scales=(scales, "O"))
        check_equal("O (outputs)", weight=weight.shape[0], scales=scales.shape[0])
        if weight.shape[1] > MAX_INT8_INPUTS:
            raise ValueError(f"axis I of an int8 product may have {MAX_INT8_INPUTS} at most, got {weight.shape[1]}")
    elif parts != WHOLE:
        raise ValueError(
            f"products of floating point are cut by the compiler; got {parts} and a weight of {weight.dtype}"
        )
