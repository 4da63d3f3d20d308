"""Chosen attention in plain XLA: latent attention of rows of one token, over pages of one token.

So a token attends in as many steps as it has chosen blocks, and as there alike to the last bit whatever else is in the step. One
that sees no more tokens than are chosen reads them in the blocks of latent attention.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.chosen_attention.rows import chosen_rows
from pallas_kernels.latent_attention import xla as latent


def supports(q: Any, pages: Any, *args: Any, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    return latent.supports(q, pages, kv_dtype=kv_dtype)


def chosen_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    chosen: jax.Array,
    *,
    scale: float,
    value_size: int,
    kv_dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract."""
    rows = chosen_rows(pages, page_table, offsets, starts, chosen)
    return latent.latent_attention(q, *rows, scale=scale, value_size=value_size, kv_dtype=kv_dtype)
