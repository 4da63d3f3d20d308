"""The buffer of `device/runtime/inputs.py`, cut into what a model takes: the other end of the one transfer of a step."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxengine.device.layers.step import Crossed, Step
from jaxengine.device.models.shared.seeing import Seen
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import SampleInputs
from pallas_kernels import AdapterRows


def tokens(layout: StepLayout, buffer: jax.Array, last_token: jax.Array) -> jax.Array:
    """Tokens `[N]` of a step; those that only the device knows come from `last_token [S]`."""
    given = field(layout, buffer, "tokens")
    # A TPU takes numbers one by one, which takes longer than to compare all places with all slots.
    own = -given[:, None] == jnp.arange(len(last_token), dtype=jnp.int32)
    return jnp.where(given < 0, jnp.where(own, last_token, 0).sum(axis=1, dtype=jnp.int32), given)


def positions(layout: StepLayout, buffer: jax.Array) -> jax.Array:
    """Positions `[N]` of a step."""
    return field(layout, buffer, "positions")


def offsets(layout: StepLayout, buffer: jax.Array) -> jax.Array:
    """Where the rows of a step begin and end, `[B + 1]`."""
    return field(layout, buffer, "offsets")


def step_of(space: ProgramSpace, layout: StepLayout, buffer: jax.Array) -> Step:
    """What a model needs of a step, beside its tokens."""
    return Step(
        positions(layout, buffer),
        page_table=field(layout, buffer, "page_table"),
        offsets=offsets(layout, buffer),
        starts=field(layout, buffer, "starts"),
        slot_mapping=field(layout, buffer, "slot_mapping"),
        row_slots=field(layout, buffer, "row_slots"),
        used=field(layout, buffer, "used"),
        adapters=adapters(layout, buffer),
        until=field(layout, buffer, "until") if layout.media is not None and layout.media.sight else None,
        crossed=_crossed(layout, buffer),
        indices=space.cache.indices,
        num_pages=space.num_pages,
        page_size=space.page_size,
        attention_backend=space.attention_backend,
    )


def seen_by(layout: StepLayout, buffer: jax.Array, pool: jax.Array) -> Seen:
    """What a step's places take from the pool of embeddings."""
    embeds = field(layout, buffer, "embeds")
    return Seen(jnp.take(pool, jnp.maximum(embeds, 0), axis=0, mode="clip"), embeds >= 0)


def rotary_positions(layout: StepLayout, buffer: jax.Array) -> jax.Array:
    """Positions `[N]`, or where they have several axes `[A, N]`."""
    several = layout.media is not None and layout.media.num_axes
    return field(layout, buffer, "axes" if several else "positions")


def _crossed(layout: StepLayout, buffer: jax.Array) -> Crossed | None:
    if layout.media is None or not layout.media.crossed_pages:
        return None
    return Crossed(field(layout, buffer, "crossed_table"), field(layout, buffer, "crossed_until"))


def kept_rows(layout: StepLayout, x: jax.Array, buffer: jax.Array) -> jax.Array:
    """The rows `[K, ...]` of `x [N, ...]` at the kept places."""
    return jnp.take(x, field(layout, buffer, "kept_places"), axis=0, mode="clip")


def kept_fields(layout: StepLayout, buffer: jax.Array, *, adapted: bool = False) -> SampleInputs:
    """What sampling needs of the kept places; where the head is `adapted`, in a step with adapters theirs."""
    names = ("slots", "positions", "targets", "writes", *(("nth",) if layout.drafts else ()))
    fields = {name: field(layout, buffer, f"kept_{name}") for name in names}
    drafts = _drafts_behind(layout, buffer, fields["nth"]) if layout.drafts else None
    through = adapters(layout, buffer) if adapted else None
    if through is not None:
        fields["adapters"] = kept_rows(layout, through.adapters, buffer)
    return SampleInputs(**fields, drafts=drafts, count=field(layout, buffer, "count"))


def adapters(layout: StepLayout, buffer: jax.Array) -> AdapterRows | None:
    """Which adapter each place goes through; None of a step in which none goes through any."""
    if not layout.adapters:
        return None
    return AdapterRows(*(field(layout, buffer, f"adapter_{name}") for name in AdapterRows._fields))


def _drafts_behind(layout: StepLayout, buffer: jax.Array, nth: jax.Array) -> jax.Array:
    """The draft that stands behind each kept place, `[K]`, where the next kept place is that of it; else -1."""
    following = jnp.take(field(layout, buffer, "tokens"), field(layout, buffer, "kept_places") + 1, mode="clip")
    return jnp.where(jnp.roll(nth, -1) == nth + 1, following, -1)


def field(layout: StepLayout, buffer: jax.Array, name: str) -> jax.Array:
    """A field of the buffer, as `StepLayout.fields` has it."""
    offset, shape = layout.fields[name]
    return jax.lax.slice_in_dim(buffer, offset, offset + math.prod(shape)).reshape(shape)
