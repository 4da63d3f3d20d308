"""Attention within chunks of a sequence (Llama 4): a chunk is a row of its own, so that kernels need not know of them."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from jaxengine.device.layers.step import Step
from jaxengine.errors import ConfigError


def by_chunk(step: Step, chunk: int) -> Step:
    """A layer's step (`Step.for_layer`) whose rows are cut where chunks of so many positions begin.

    Each piece is a row with the pages of its chunk alone, in which it begins at a position counted from the chunk's first, so
    that a token attends to its own chunk up to itself. Tokens stay in their places, and slots as they are.

    Raises:
        ConfigError: a page would lie in two chunks.
    """
    assert step.until is None, "positions in a chunk are its own"
    size, width = step.page_size, step.page_table.shape[1]
    if width * size <= chunk:
        return step
    if chunk % size:
        raise ConfigError(f"attention in chunks of {chunk} positions needs a page_size that divides them, got {size}")
    offsets, starts = step.offsets, step.starts
    counts = offsets[1:] - offsets[:-1]
    first = starts // chunk
    pieces = jnp.where(counts > 0, (starts + counts - 1) // chunk - first + 1, 0)
    ends = jnp.cumsum(pieces, dtype=jnp.int32)
    places, rows = step.positions.shape[0], len(starts)
    # A row of n tokens lies in 1 + ceil((n - 1) / chunk) chunks at most.
    number = jnp.arange(min(places, 2 * rows + places // chunk), dtype=jnp.int32)
    row = jnp.minimum((number[:, None] >= ends[None]).sum(axis=1, dtype=jnp.int32), rows - 1)
    real = number < ends[-1]
    of_row = first[row] + number - (ends - pieces)[row]
    begin = jnp.where(real, jnp.maximum(starts[row], of_row * chunk), 0)
    pages = of_row[:, None] * (chunk // size) + jnp.arange(chunk // size, dtype=jnp.int32)
    table = jnp.take_along_axis(step.page_table[row], jnp.clip(pages, 0, width - 1), axis=1)
    return replace(
        step,
        page_table=table,
        offsets=jnp.append(jnp.where(real, offsets[row] + begin - starts[row], offsets[-1]), offsets[-1]),
        starts=jnp.where(real, begin - of_row * chunk, 0),
    )
