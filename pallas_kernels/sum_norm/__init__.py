"""The layer norm of a sum: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "sum_norm",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native", "reference")},
    portable="reference",
)


def sum_norm(
    x: jax.Array,
    y: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    epsilon: float,
    used: jax.Array | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`x + y` without its mean, over its standard deviation along the last axis, times `scale`, plus `bias`, in float32.

    On the CPU a row's numbers are the same to the last bit whatever rows there are beside it.

    Args:
        x: float32 `[N, E]`.
        y: float32 `[N, E]`.
        scale: float32 `[E]`, or None.
        bias: float32 `[E]`, or None.
        epsilon: added to the variance.
        used: int32 `[]`: rows behind so many are padding. What these get means nothing, and is finite where `x` and `y` are.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "N E"), y=(y, "N E"))
    check_equal("N (rows)", x=x.shape[0], y=y.shape[0])
    check_equal("E (numbers)", x=x.shape[1], y=y.shape[1])
    for name, given in {"x": x, "y": y, "scale": scale, "bias": bias}.items():
        if given is not None and given.dtype != jnp.float32:
            raise ValueError(f"{name} must be float32, got {given.dtype}")
    if used is not None:
        check_int32(used=used)
    result: jax.Array = OP.run(backend, platform, x, y, scale, bias, epsilon=epsilon, used=used, platform=platform)
    return result
