"""The mean over the last axis: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "mean_last",
    backends={"reference": f"{__name__}.reference", "cpu": f"{__name__}.cpu"},
    preferred={"cpu": ("cpu",)},
    portable="reference",
)


def mean_last(x: jax.Array, *, backend: str = AUTO, platform: str | None = None) -> jax.Array:
    """The mean of float32 `x [..., E]` over its last axis, float32 `[..., 1]`.

    On the CPU a row's mean is the same to the last bit whatever rows there are beside it.

    Args:
        x: float32, with two axes or more.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: not such an array, or an unknown backend.
    """
    if x.ndim < 2 or x.dtype != jnp.float32:
        raise ValueError(f"x must be float32 with two axes or more, got {x.dtype}{list(x.shape)}")
    result: jax.Array = OP.run(backend, platform, x)
    return result
