"""The definition of the mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def supports(*args: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def mean_last(x: jax.Array) -> jax.Array:
    """See the op's contract."""
    return jnp.mean(x, axis=-1, keepdims=True)
