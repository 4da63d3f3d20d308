"""The definition of the layer norm, of means and roots as the platform has them."""

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


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    added: jax.Array | None,
    *,
    epsilon: float,
    used: jax.Array | None,
    dtype: DTypeLike,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""
    wide = x.astype(jnp.float32)
    wide = wide if added is None else wide + added.astype(jnp.float32)
    centred = wide - mean_last(wide, platform=platform)
    variance = mean_last(centred * centred, platform=platform)
    normed = centred * inverse_root(variance + epsilon, platform=platform)
    normed = normed if scale is None else normed * scale.astype(jnp.float32)
    return (normed if bias is None else normed + bias.astype(jnp.float32)).astype(dtype)
