"""Adding up values by where they belong: the contract and its backends."""

from __future__ import annotations

import jax

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.scatter_add.tpu import LEAST_ELEMENTS

OP = Op(
    "scatter_add",
    backends={"reference": f"{__name__}.reference", "tpu": f"{__name__}.tpu"},
    preferred={"tpu": ("tpu",)},
    portable="reference",
)


def scatter_add(
    places: jax.Array, values: jax.Array, *, width: int, backend: str = AUTO, platform: str | None = None
) -> jax.Array:
    """Sums of `values [M, L]` at `places [L]`: zeros `[M, width]` with `values[:, l]` added at column `places[l]`.

    Args:
        places: int32 `[L]`; values at places from `width` on are dropped, and negative ones count from the end.
        values: `[M, L]`, of any numeric type. Those of one place are added in no particular order.
        width: columns of the result.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
    """
    check_rank(places=(places, "L"), values=(values, "M L"))
    check_int32(places=places)
    check_equal("L (values)", places=places.shape[0], values=values.shape[1])
    result: jax.Array = OP.run(backend, platform, places, values, width=width)
    return result


def scattered_rows(rows: int, width: int, *, platform: str) -> int:
    """How many rows an array of `rows` rows of `width` elements is given where programs scatter into it in place."""
    return max(rows, -(-LEAST_ELEMENTS // width)) if platform == "tpu" else rows
