"""Rows of activations as int8, each over a scale of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.parts import Parts


def quantise_rows(x: jax.Array, *, across: tuple[str, ...] = ()) -> tuple[jax.Array, jax.Array]:
    """`x [..., I]` -> int8 `[..., I]` and float32 scales `[..., 1]`, whose product is near `x`. Ties go to even.

    Inside `shard_map`, `across` names the mesh axes over which rows are cut: a scale is that of the whole row.
    """
    return round_rows(x, Parts(inputs=across).largest(largest_magnitudes(x)))


def largest_magnitudes(x: jax.Array) -> jax.Array:
    """Of each row of `x [..., I]`, float32 `[..., 1]`."""
    return jnp.max(jnp.abs(x.astype(jnp.float32)), axis=-1, keepdims=True)


def round_rows(x: jax.Array, largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows over scales that make their `largest` magnitudes, `[..., 1]`, 127."""
    scales = largest / 127
    return jnp.round(x.astype(jnp.float32) / jnp.where(scales == 0, 1, scales)).astype(jnp.int8), scales
