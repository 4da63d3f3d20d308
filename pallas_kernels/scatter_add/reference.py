"""The definition of adding up by place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def scatter_add(places: jax.Array, values: jax.Array, *, width: int) -> jax.Array:
    """See the op's contract."""
    return jnp.zeros((values.shape[0], width), values.dtype).at[:, places].add(values, mode="drop")
