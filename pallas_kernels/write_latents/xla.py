"""Writing latent vectors as one XLA scatter over whole tokens, which stays in place in a donated cache on every platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.storage import KV_DTYPES, to_storage
from pallas_kernels.write_kv.xla import MIN_TOKENS


def supports(pages: Any, *args: Any, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"pages of {pages.dtype} hold no latent vectors"


def write_latents(pages: jax.Array, latents: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    missing = max(0, MIN_TOKENS - slots.shape[0])
    latents = jnp.pad(latents, ((0, missing), (0, pages.shape[3] - latents.shape[1])))
    stored = to_storage(latents, storage=pages.dtype, kv_dtype=kv_dtype)
    by_slot = pages.reshape(-1, pages.shape[3])
    return by_slot.at[jnp.pad(slots, (0, missing))].set(stored, mode="drop").reshape(pages.shape)
