"""Chosen tokens as rows of their own: every place is a row of one token, whose pages are the tokens chosen for it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class ChosenRows(NamedTuple):
    """`page_table [N, C]`, `offsets [N + 1]` and `starts [N]` over pages of one token; `pages [pages * T, 1, 1, L]`."""

    pages: jax.Array
    page_table: jax.Array
    offsets: jax.Array
    starts: jax.Array


def chosen_rows(
    pages: jax.Array, page_table: jax.Array, offsets: jax.Array, starts: jax.Array, chosen: jax.Array
) -> ChosenRows:
    """What latent attention takes for `chosen_attention`. A row's `starts` is the last of its chosen tokens, by number."""
    places, count = chosen.shape
    page_tokens, width = pages.shape[2:]
    place = jnp.arange(places + 1, dtype=jnp.int32)
    row = jnp.minimum((place[:-1, None] >= offsets[1:]).sum(axis=1, dtype=jnp.int32), starts.shape[0] - 1)
    position = starts[row] + place[:-1] - offsets[row]
    page = page_table[row[:, None], jnp.minimum(chosen // page_tokens, page_table.shape[1] - 1)]
    slots = page * page_tokens + chosen % page_tokens
    return ChosenRows(
        pages.reshape(-1, 1, 1, width),
        slots,
        jnp.minimum(place, offsets[-1]),
        jnp.clip(position, 0, count - 1),
    )
