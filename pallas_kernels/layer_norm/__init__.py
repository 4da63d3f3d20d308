"""The layer norm of rows, or of sums of two: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "layer_norm",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native", "reference")},
    portable="reference",
)


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    epsilon: float,
    added: jax.Array | None = None,
    used: jax.Array | None = None,
    dtype: DTypeLike = jnp.float32,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`x + added` without its mean, over its standard deviation along the last axis, times `scale`, plus `bias`.

    It is computed in float32 (arXiv:1607.06450). A row on the CPU is the same to the last bit whatever rows there are beside it.

    Args:
        x: `[..., E]` of floating point, two axes or more.
        scale: `[E]` of floating point, or None.
        bias: `[E]` of floating point, or None.
        epsilon: added to the variance.
        added: of the shape of `x`, of floating point; None: nothing is.
        used: int32 `[]`, of an `x [N, E]`: rows behind so many are padding. What these get means nothing, and is finite where `x`
            and `added` are.
        dtype: of the result.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be of floating point with two axes or more, got {x.dtype}{list(x.shape)}")
    if added is not None and added.shape != x.shape:
        raise ValueError(f"added must have the shape of x, {list(x.shape)}, got {list(added.shape)}")
    of_channels = {name: given.size for name, given in {"scale": scale, "bias": bias}.items() if given is not None}
    check_equal("E (numbers)", x=x.shape[-1], **of_channels)
    if used is not None:
        check_int32(used=used)
        check_equal("axes", used=used.ndim + 2, x=x.ndim)
    result: jax.Array = OP.run(
        backend, platform, x, scale, bias, added, epsilon=epsilon, used=used, dtype=dtype, platform=platform
    )
    return result
