"""The definition of a feed-forward of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.sum_rows import reference as summing


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def grouped_mlp(
    sums: jax.Array,
    x: jax.Array,
    matrices: tuple[jax.Array, jax.Array, jax.Array],
    sizes: jax.Array,
    rows: jax.Array,
    weights: jax.Array,
    *,
    activated: Callable[[jax.Array, jax.Array], jax.Array],
    usual: int,
    begun: Any = None,
) -> jax.Array:
    """See the op's contract."""

    def product(x: jax.Array, matrix: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(x, matrix, sizes, preferred_element_type=jnp.float32)

    gate, up, down = matrices
    given = jnp.take(x, rows, axis=0, mode="clip")
    inner = activated(product(given, gate), product(given, up)).astype(x.dtype)
    places = jnp.where(jnp.arange(len(rows)) < sizes.sum(), rows, len(sums))
    return summing.sum_rows(sums, product(inner, down), places, weights)
