"""The definition of the layer norm of a sum, of means and roots as the platform has them."""

from __future__ import annotations

from typing import Any

import jax

from pallas_kernels.inverse_root import inverse_root
from pallas_kernels.mean_last import mean_last


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def sum_norm(
    x: jax.Array,
    y: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    epsilon: float,
    used: jax.Array | None,
    platform: str | None,
) -> jax.Array:
    """See the op's contract."""
    both = x + y
    centred = both - mean_last(both, platform=platform)
    variance = mean_last(centred * centred, platform=platform)
    normed = centred * inverse_root(variance + epsilon, platform=platform)
    normed = normed if scale is None else normed * scale
    return normed if bias is None else normed + bias
