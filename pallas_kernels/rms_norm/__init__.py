"""Rows over their root mean square: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "rms_norm",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native", "reference")},
    portable="reference",
)


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    *,
    epsilon: float,
    offset: float = 0.0,
    dtype: DTypeLike = jnp.float32,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`x` over its root mean square along the last axis (arXiv:1910.07467), times `scale`; the norm is computed in float32.

    Without an `offset` the norm is rounded to `dtype` before it is scaled, as the code of Llama's relatives does; with one the
    factor is `offset + scale`, and the product is made in float32 (Gemma).

    On the CPU a row's numbers are the same to the last bit whatever rows there are beside it.

    Args:
        x: `[..., E]` of floating point, two axes or more.
        scale: `[E]` of floating point, or None.
        epsilon: added to the mean of squares.
        offset: added to `scale`.
        dtype: of the result.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be of floating point with two axes or more, got {x.dtype}{list(x.shape)}")
    if scale is not None:
        check_equal("E (numbers)", x=x.shape[-1], scale=scale.size)
    result: jax.Array = OP.run(
        backend, platform, x, scale, epsilon=epsilon, offset=offset, dtype=dtype, platform=platform
    )
    return result
