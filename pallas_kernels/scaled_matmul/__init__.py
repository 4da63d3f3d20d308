"""Multiplying rows with a matrix of 4 or 8 bits a number, scaled by groups of inputs: the contract and its backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.scaled_matmul.packed import is_packed, plain_shape, unpacked

OP = Op(
    "scaled_matmul",
    backends={
        name: f"{__name__}.{name}"
        for name in ("reference", "xla", "gpu", "gpu_dense", "cpu", "native", "spread", "tpu", "tpu_float8")
    },
    preferred={"gpu": ("gpu", "gpu_dense"), "cpu": ("native", "cpu"), "tpu": ("tpu", "tpu_float8", "spread")},
    portable="xla",
)

EACH = Op(
    "scaled_matmul_each",
    backends={name: f"{__name__}.{name}" for name in ("apart", "together")},
    preferred={"cpu": ("together",)},
    portable="apart",
)

ROUNDING = ("tpu", "gpu_dense")
"""Backends that round results themselves; those of others are rounded behind them."""
TAKING_FACTORS = ("native",)
"""Backends that multiply results by factors themselves."""

WEIGHTS = tuple(map(jnp.dtype, (jnp.uint8, jnp.int8, jnp.float8_e4m3fn, jnp.float8_e5m2)))
"""The types of such matrices. bfloat16 holds each of their values exactly.

A byte of uint8 is two numbers of 4 bits, that of output `2 j` in the low bits, that of `2 j + 1` in the high ones. JAX's own int4
is not for this: jax 0.10's compiled programs refuse arrays of it on a CPU.
"""

BYTES = (jnp.dtype(jnp.uint8), jnp.dtype(jnp.int8))
"""The types of scales and of zeros that are a byte each: zeros are sixteenths."""

PAIRS = ("int4", "float4_e2m1fn")
"""What they are: integers from -8 to 7, each as what it is above -8, or a sign, two bits of exponent and one of mantissa."""


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    factors: jax.Array | None = None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str = "int4",
    round_rows: bool = False,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    used: jax.Array | None = None,
    result: DTypeLike = jnp.float32,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`x` times the transpose of what `weight` stands for, `(weight[o, i] - zeros[i // group, o]) * scales[i // group, o]`.

    `x` and the matrix are rounded to the type `compute`, products are summed in float32.

    Args:
        x: `[N, ..., I]` of floating point, two axes or more; all but the last count rows.
        weight: `[O, I]`, of one of `WEIGHTS`; of two numbers to a byte `[O / 2, I]`, or packed (`packed.py`).
        scales: `[Q, O]` of floating point or uint8, for `Q` groups of `group` inputs; the last may have fewer.
        zeros: `[Q, O]` of floating point, which number of `weight` is zero, or beside scales of uint8 sixteen times that in
            int8; None: 0.
        factors: float32 `[O]`, or `[1]` of all outputs, by which sums are multiplied before they are rounded; None: by none.
        group: inputs.
        compute: float32, bfloat16 or float16.
        pairs: of `PAIRS`, what two numbers to a byte are.
        round_rows: rows may be rounded to float8 instead, each over a scale of its own, where that is faster.
        precision: of the products.
        used: int32 `[]`, of an `x [N, I]`: rows behind so many are padding. What these get means nothing, and is finite where
            the matrix is and `x` is.
        result: the type that sums are rounded to.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, ..., O]`. On the CPU a row's numbers are the same to the last bit whatever rows there are beside it.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    _check(x, weight, scales, zeros, factors, used, group=group, pairs=pairs)
    options: dict[str, Any] = {
        "group": group,
        "compute": compute,
        "pairs": pairs,
        "round_rows": round_rows,
        "precision": precision,
        "used": used,
    }
    chosen = OP.choose(platform, x, weight, scales, zeros, **options) if backend == AUTO else backend
    if is_packed(weight) and chosen != "native":
        weight = unpacked(weight)
    if chosen in ROUNDING:
        options["result"] = result if factors is None else jnp.float32
    if chosen in TAKING_FACTORS:
        options["factors"], factors = factors, None
    products: jax.Array = OP.run(chosen, platform, x, weight, scales, zeros, **options)
    return (products if factors is None else products * factors).astype(result)


def scaled_matmul_each(
    x: jax.Array,
    weights: Sequence[jax.Array],
    scales: Sequence[jax.Array],
    zeros: Sequence[jax.Array | None],
    factors: Sequence[jax.Array | None],
    *,
    group: int,
    compute: DTypeLike,
    pairs: str = "int4",
    round_rows: bool = False,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    used: jax.Array | None = None,
    result: DTypeLike = jnp.float32,
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, ...]:
    """What `scaled_matmul` gives with each of the weights, its scales, zeros and factors, to the last bit: `[N, ..., O_n]` each.

    Raises:
        ValueError: as `scaled_matmul`, or there are not as many scales, zeros and factors, each an array or None, as weights.
        KernelUnsupported: the named backend cannot do this case.
    """
    counts = {"weights": len(weights), "scales": len(scales), "zeros": len(zeros), "factors": len(factors)}
    check_equal("weights, scales, zeros and factors", **counts)
    for each in zip(weights, scales, zeros, factors, strict=True):
        _check(x, *each, used, group=group, pairs=pairs)
    results: tuple[jax.Array, ...] = EACH.run(
        backend,
        platform,
        x,
        tuple(weights),
        tuple(scales),
        tuple(zeros),
        tuple(factors),
        group=group,
        compute=compute,
        pairs=pairs,
        round_rows=round_rows,
        precision=precision,
        used=used,
        result=result,
        platform=platform,
    )
    return results


def _check(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    factors: jax.Array | None,
    used: jax.Array | None,
    *,
    group: int,
    pairs: str,
) -> None:
    plain = jax.ShapeDtypeStruct(plain_shape(weight.shape), weight.dtype)
    check_rank(weight=(plain, "O I"), scales=(scales, "Q O"))
    check_equal("I (inputs)", x=x.shape[-1], weight=plain.shape[1])
    check_equal("O (outputs)", weight=plain.shape[0] * numbers_to_a_byte(weight), scales=scales.shape[1])
    check_groups(weight, scales, zeros, group=group, inputs=plain.shape[1], pairs=pairs)
    if factors is not None and (factors.shape not in ((1,), scales.shape[1:]) or factors.dtype != jnp.float32):
        outputs = scales.shape[1]
        raise ValueError(f"factors must be float32[{outputs}] or [1], got {factors.dtype}{list(factors.shape)}")
    if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be of floating point with two axes or more, got {x.dtype}{list(x.shape)}")
    if used is not None:
        check_int32(used=used)
        check_equal("axes", used=used.ndim + 2, x=x.ndim)


def numbers_to_a_byte(weight: jax.Array) -> int:
    """2 for numbers of 4 bits."""
    return 2 if weight.dtype == jnp.uint8 else 1


def check_groups(
    weight: jax.Array, scales: jax.Array, zeros: jax.Array | None, *, group: int, inputs: int, pairs: str
) -> None:
    """What is said of scales and zeros, of a matrix or of many, whose inputs are so many.

    Raises:
        ValueError: naming what does not fit.
    """
    if jnp.dtype(weight.dtype) not in WEIGHTS:
        raise ValueError(f"a scaled matrix is of {', '.join(map(str, WEIGHTS))}, got {weight.dtype}")
    if pairs not in PAIRS:
        raise ValueError(f"pairs must be one of {', '.join(PAIRS)}, got {pairs!r}")
    check_equal(f"Q (groups of {group} inputs)", scales=scales.shape[-2], inputs=-(-inputs // group))
    if zeros is not None and zeros.shape != scales.shape:
        raise ValueError(f"zeros must have the shape of scales, {list(scales.shape)}, got {list(zeros.shape)}")
    kept = (scales.dtype, None if zeros is None else zeros.dtype)
    in_bytes = kept[0] == BYTES[0] and kept[1] in (None, BYTES[1])
    if not in_bytes and not all(dtype is None or jnp.issubdtype(dtype, jnp.floating) for dtype in kept):
        raise ValueError(
            f"scales and zeros must be of floating point, or uint8 and int8, got {scales.dtype} and {kept[1]}"
        )
