"""The definition of the norm, of means and roots as the platform has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.inverse_root import inverse_root
from pallas_kernels.mean_last import mean_last


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None,
    *,
    epsilon: float,
    offset: float,
    dtype: DTypeLike,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""
    wide = x.astype(jnp.float32)
    mean_square = mean_last(wide * wide, platform=platform)
    normed = wide * inverse_root(mean_square + epsilon, platform=platform)
    if scale is None:
        return normed.astype(dtype)
    if offset:
        return (normed * (offset + scale.astype(jnp.float32))).astype(dtype)
    normed = normed.astype(dtype)
    return normed * scale.astype(dtype)
