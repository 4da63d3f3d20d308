"""Rows of an array, in any order and as often as wanted: the contract and its backends."""

from __future__ import annotations

import jax

from pallas_kernels.checks import check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "take_rows",
    backends={name: f"{__name__}.{name}" for name in ("reference", "product", "tpu")},
    preferred={"tpu": ("product", "tpu")},
    portable="reference",
)


def take_rows(
    x: jax.Array,
    rows: jax.Array,
    used: jax.Array,
    *,
    finite: bool = False,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """The `rows` of `x [N, E]` -> `[M, E]`, of which only the first `used` have to mean anything.

    Args:
        x: `[N, E]`.
        rows: int32 `[M]`; what lies outside of `x` counts as the nearest row.
        used: int32, how many of them are wanted.
        finite: `x` has neither NaN nor infinities. If it has, any row may be NaN.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: arguments of other ranks or types, naming them, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "N E"), rows=(rows, "M"), used=(used, ""))
    check_int32(rows=rows, used=used)
    result: jax.Array = OP.run(backend, platform, x, rows, used, finite=finite)
    return result
