"""From which of its values on a row weighs enough: the contract and its backends."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "threshold",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native", "reference")},
    portable="reference",
)


def threshold(
    values: jax.Array,
    weights: jax.Array | None,
    *,
    floor: jax.Array,
    best: jax.Array,
    target: jax.Array,
    active: jax.Array,
    lightest: Callable[[jax.Array], jax.Array] | None = None,
    axis: tuple[str, ...] | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """For each row a number from `floor` on such that the values at least as large weigh `target` or more, and those that are
    larger than the least of them less; the floor where all from it on weigh less.

    Which values are at least as large as the number is the same of every backend; the number itself may differ.

    Args:
        values: float32 `[R, V]`, without NaN. Numbers too small for a normal float are 0.
        weights: int32 `[R, V]`, none negative, a row's sum below 2^31; None: each value weighs 1, V below 2^24.
        floor: float32 `[R]`.
        best: float32 `[R]`, the largest value of each row.
        target: int32 `[R]`, 1 or more.
        active: bool `[R]`: of other rows the result is the floor.
        lightest: of numbers `[R]`, at most what any one value at least as large weighs; a search may stop by it.
        axis: inside `shard_map`, the axes of the mesh over which rows are cut.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[R]`, equal on every device.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(values=(values, "R V"), floor=(floor, "R"), best=(best, "R"), target=(target, "R"), active=(active, "R"))
    check_int32(target=target)
    check_equal(
        "R (rows)", **{name: len(given) for name, given in {"values": values, "floor": floor, "target": target}.items()}
    )
    if weights is not None:
        check_int32(weights=weights)
        check_equal("V (values)", values=values.shape[1], weights=weights.shape[1])
    if values.dtype != jnp.float32:
        raise ValueError(f"values must be float32, got {values.dtype}")
    found: jax.Array = OP.run(
        backend,
        platform,
        values,
        weights,
        floor=floor,
        best=best,
        target=target,
        active=active,
        lightest=lightest,
        axis=axis,
    )
    return found
