"""The definition of turning heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, *, projected: bool) -> jax.Array:
    """See the op's contract."""
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)
