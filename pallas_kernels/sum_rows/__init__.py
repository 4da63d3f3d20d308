"""Adding weighted rows up by where they belong: the contract and its backends."""

from __future__ import annotations

import jax

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "sum_rows",
    backends={name: f"{__name__}.{name}" for name in ("reference", "product", "tpu")},
    preferred={"tpu": ("tpu", "product")},
    portable="reference",
)


def sum_rows(
    sums: jax.Array,
    rows: jax.Array,
    places: jax.Array,
    weights: jax.Array,
    *,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`sums [N, E]` with `weights[m] * rows[m]` added to row `places[m]`, summed in float32.

    Args:
        sums: `[N, E]`, of float32 or bfloat16.
        rows: `[M, E]`. Those of no place may hold anything, also what is no number.
        places: int32 `[M]`; from N on they are of no place.
        weights: float32 `[M]`.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, E]` in the type of `sums`.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(sums=(sums, "N E"), rows=(rows, "M E"), places=(places, "M"), weights=(weights, "M"))
    check_int32(places=places)
    check_equal("E (columns)", sums=sums.shape[1], rows=rows.shape[1])
    check_equal("M (rows)", rows=rows.shape[0], places=places.shape[0], weights=weights.shape[0])
    result: jax.Array = OP.run(backend, platform, sums, rows, places, weights)
    return result
