"""A gate and what it lets through, with what low-rank adapters add to the products of both: the contract and its backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.typing import DTypeLike

from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "adapted_gate",
    backends={name: f"{__name__}.{name}" for name in ("apart", "tpu")},
    preferred={"tpu": ("tpu",)},
    portable="apart",
)


class AdaptedMatrix(NamedTuple):
    """A `weight [O, I]` of floating point, and its adapters: `inward [S, R, I]` and `outward [S, R, O]`, both of one type."""

    weight: jax.Array
    inward: jax.Array
    outward: jax.Array


def adapted_gate(
    x: jax.Array,
    gate: AdaptedMatrix,
    up: AdaptedMatrix,
    rows: AdapterRows,
    *,
    gated: Callable[[jax.Array, jax.Array], jax.Array],
    dtype: DTypeLike,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`gated(g, u)`, `g` and `u` being `adapter_product` of a matrix's products with `x` and of its adapters, `by_rank`.

    Args:
        x: `[N, I]` of floating point.
        gate: the matrix of `g`.
        up: the matrix of `u`, of the same shapes and types.
        rows: which adapter each row goes through.
        gated: what is made of both, number by number: a kernel traces it in float32.
        dtype: of the result, and of `g` and `u` where these are written to memory.
        precision: of the products.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, O]` of `dtype`.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(
        x=(x, "N I"), weight=(gate.weight, "O I"), inward=(gate.inward, "S R I"), outward=(gate.outward, "S R O")
    )
    check_rank(order=(rows.order, "N"), places=(rows.places, "N"), sizes=(rows.sizes, "S"))
    check_int32(order=rows.order, places=rows.places, sizes=rows.sizes)
    check_equal("I (inputs)", x=x.shape[1], weight=gate.weight.shape[1], inward=gate.inward.shape[2])
    check_equal("O (outputs)", weight=gate.weight.shape[0], outward=gate.outward.shape[2])
    check_equal("R (rank)", inward=gate.inward.shape[1], outward=gate.outward.shape[1])
    check_equal("S (adapters)", inward=len(gate.inward), outward=len(gate.outward), sizes=len(rows.sizes))
    check_equal("N (rows)", x=len(x), order=len(rows.order), places=len(rows.places))
    for name, of_gate, of_up in zip(AdaptedMatrix._fields, gate, up, strict=True):
        if (of_gate.shape, of_gate.dtype) != (of_up.shape, of_up.dtype):
            raise ValueError(
                f"{name} of gate and up must be alike, got {of_gate.dtype}{list(of_gate.shape)} and "
                f"{of_up.dtype}{list(of_up.shape)}"
            )
    options = {"gated": gated, "dtype": dtype, "precision": precision, "platform": platform}
    result: jax.Array = OP.run(backend, platform, x, gate, up, rows, **options)
    return result
