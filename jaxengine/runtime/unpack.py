"""The buffer of `runtime/inputs.py`, cut into what a model takes: the other end of the one transfer of a step."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxengine.layers.attention import AttentionInputs, RowBlock
from jaxengine.runtime.inputs import BlockLayout, StepLayout
from jaxengine.runtime.space import ProgramSpace


def unpack(space: ProgramSpace, layout: StepLayout, buffer: jax.Array) -> tuple[jax.Array, jax.Array, AttentionInputs]:
    """Cut a step's buffer into tokens `[N]`, positions `[N]` and what attention needs."""
    tokens, positions, slots, blocks = [], [], [], []
    for block in layout.blocks:
        fields = _fields(block, buffer)
        rows = RowBlock(
            page_table=fields["page_table"], starts=fields["starts"], lengths=fields["lengths"], seq=block.bucket.seq
        )
        place = jnp.arange(block.bucket.seq, dtype=jnp.int32)
        real = place[None, :] < rows.lengths[:, None]
        at = jnp.where(real, rows.starts[:, None] + place[None, :], 0)
        page = jnp.take_along_axis(rows.page_table, at // space.page_size, axis=1, mode="clip")
        slot = jnp.where(real, page * space.page_size + at % space.page_size, 0)
        tokens.append(fields["tokens"])
        positions.append(at.reshape(-1))
        slots.append(slot.reshape(-1))
        blocks.append(rows)
    attention = AttentionInputs(
        blocks=tuple(blocks),
        slots=jnp.concatenate(slots),
        num_pages=space.num_pages,
        page_size=space.page_size,
        backend=space.attention_backend,
    )
    return jnp.concatenate(tokens), jnp.concatenate(positions), attention


def _fields(block: BlockLayout, buffer: jax.Array) -> dict[str, jax.Array]:
    fields = {}
    offset = block.offset
    for name, shape in block.fields:
        size = math.prod(shape)
        fields[name] = jax.lax.slice_in_dim(buffer, offset, offset + size).reshape(shape)
        offset += size
    return fields
