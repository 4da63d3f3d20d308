"""Which of its values is the largest of a row: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "argmax",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native", "cpu")},
    preferred={"cpu": ("native", "cpu")},
    portable="reference",
)


def argmax(
    values: jax.Array,
    *,
    at_most: float,
    count: jax.Array | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """The number of each row's largest value, of equal ones the lowest: int32 `[R]`, the same of every backend.

    Args:
        values: float32 `[R, V]`, V 1 or more. NaN counts as minus infinity, and what is above `at_most` as that.
        at_most: a finite number.
        count: int32 `[]`: rows behind so many are padding. What these get means nothing.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: arguments that do not fit, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(values=(values, "R V"))
    if values.dtype != jnp.float32 or values.shape[1] < 1:
        raise ValueError(f"values must be float32, one of each row or more, got {values.dtype}{list(values.shape)}")
    if count is not None:
        check_int32(count=count)
    found: jax.Array = OP.run(backend, platform, values, at_most=at_most, count=count)
    return found
