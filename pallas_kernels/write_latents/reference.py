"""The definition: token by token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.storage import to_storage
from pallas_kernels.write_latents.xla import supports as supports


def write_latents(pages: jax.Array, latents: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    page_tokens, lanes = pages.shape[2:]
    padded = jnp.pad(latents, ((0, 0), (0, lanes - latents.shape[1])))
    stored = to_storage(padded, storage=pages.dtype, kv_dtype=kv_dtype)

    def write(token: int | jax.Array, pages: jax.Array) -> jax.Array:
        return pages.at[slots[token] // page_tokens, 0, slots[token] % page_tokens].set(stored[token])

    result: jax.Array = lax.fori_loop(0, slots.shape[0], write, pages)
    return result
