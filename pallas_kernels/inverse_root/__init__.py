"""One over the square root: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "inverse_root",
    backends={"reference": f"{__name__}.reference", "cpu": f"{__name__}.cpu"},
    preferred={"cpu": ("cpu",)},
    portable="reference",
)


def inverse_root(x: jax.Array, *, backend: str = AUTO, platform: str | None = None) -> jax.Array:
    """`1 / sqrt(x)` of float32 numbers of any shape.

    On the CPU the result is the same to the last bit whatever numbers there are beside it.

    Args:
        x: float32.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: numbers of another type, or an unknown backend.
    """
    if x.dtype != jnp.float32:
        raise ValueError(f"x must be float32, got {x.dtype}")
    result: jax.Array = OP.run(backend, platform, x)
    return result
