"""The buffer of `device/runtime/inputs.py`, cut into what a model takes: the other end of the one transfer of a step."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxengine.device.layers.step import Step
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import SampleInputs


def tokens(layout: StepLayout, buffer: jax.Array, last_token: jax.Array) -> jax.Array:
    """Tokens `[N]` of a step; those that only the device knows come from `last_token [S]`."""
    given = _field(layout, buffer, "tokens")
    of_slots = jnp.take(last_token, jnp.maximum(-given, 0), mode="clip")
    return jnp.where(given < 0, of_slots, given)


def positions(layout: StepLayout, buffer: jax.Array) -> jax.Array:
    """Positions `[N]` of a step."""
    return _field(layout, buffer, "positions")


def step_of(space: ProgramSpace, layout: StepLayout, buffer: jax.Array) -> Step:
    """What a model needs of a step, beside its tokens."""
    return Step(
        positions(layout, buffer),
        page_table=_field(layout, buffer, "page_table"),
        offsets=_field(layout, buffer, "offsets"),
        starts=_field(layout, buffer, "starts"),
        slot_mapping=_field(layout, buffer, "slot_mapping"),
        row_slots=_field(layout, buffer, "row_slots"),
        indices=space.cache.indices,
        num_pages=space.num_pages,
        page_size=space.page_size,
        attention_backend=space.attention_backend,
    )


def kept_rows(layout: StepLayout, x: jax.Array, buffer: jax.Array) -> jax.Array:
    """The rows `[K, ...]` of `x [N, ...]` at the kept places."""
    return jnp.take(x, _field(layout, buffer, "kept_places"), axis=0, mode="clip")


def kept_fields(layout: StepLayout, buffer: jax.Array) -> SampleInputs:
    """What sampling needs of the kept places."""
    names = ("slots", "positions", "targets", "writes")
    fields = {name: _field(layout, buffer, f"kept_{name}") for name in names}
    return SampleInputs(**fields, count=_field(layout, buffer, "count"))


def _field(layout: StepLayout, buffer: jax.Array, name: str) -> jax.Array:
    offset, shape = layout.fields[name]
    return jax.lax.slice_in_dim(buffer, offset, offset + math.prod(shape)).reshape(shape)
