"""What a step does where the device drafts: rows are put where their sequences end, and after sampling a draft model guesses on.

Which drafts were right is known on the device when a step was sampled, and on the host a step later. So a row of tokens that the
device has is planned for the case that all are right, and `place` moves it back to where its sequence has come to, with the
drafts in their places: from then on the step's buffer is as if the host had known.

    place    buffer as planned, slots                    -> buffer
    forward, sample                                      as without drafts
    draft    parameters, states, slots, cache, buffer    -> drafts [B, k], slots with them, cache

`draft` first goes through all places of the step, so that the draft model knows what the target knows, and then token by token
through a row for each sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from buckets import Bucket
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Step
from jaxengine.device.models.drafts.interface import BlockDraft, Draft, DraftRows
from jaxengine.device.runtime.draft_space import DraftSpace
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.unpack import field, step_of
from jaxengine.device.sampling import Slots
from jaxengine.device.sampling.guess import guess
from xla_cache import Program

Array = jax.Array


def place_name(layout: StepLayout) -> str:
    """Of the program that puts the rows of such a step where their sequences end."""
    return f"place {layout}"


def draft_name(layout: StepLayout) -> str:
    """Of the program that drafts behind such a step."""
    return f"draft {layout}"


def draft_names(space: ProgramSpace, bucket: Bucket) -> tuple[str, ...]:
    """The names of `draft_programs`."""
    if space.draft is None:
        return ()
    return tuple(name(layout) for layout in space.layouts(bucket) for name in (place_name, draft_name))


def draft_programs(space: ProgramSpace, bucket: Bucket, hidden: jax.ShapeDtypeStruct) -> list[Program]:
    """What steps of this bucket do beside the target's forward pass; `hidden [_, E]` is what its `final_norm` gives."""
    if space.draft is None:
        return []
    return [
        program
        for layout in space.layouts(bucket)
        for program in (_place_program(space, layout), _draft_program(space, space.draft, layout, hidden))
    ]


class Known(NamedTuple):
    """What of the slots says where sequences end: `length [S]`, `last_token [S]`, `drafts [S, k]`."""

    length: Any
    last_token: Any
    drafts: Any

    @classmethod
    def of(cls, slots: Slots) -> Known:
        return cls(slots.length, slots.last_token, slots.drafts)


def _place_program(space: ProgramSpace, layout: StepLayout) -> Program:
    def run(known: Known, buffer: Array) -> Array:
        return space.everywhere(place(layout, known, buffer, page_size=space.page_size))  # type: ignore[no-any-return]

    return space.program(
        place_name(layout),
        run,
        (Known.of(space.slots), space.replicated_struct((layout.size,), jnp.int32)),
        kind=ProgramKind.WRITE,
        facts={"page_size": space.page_size, "pages_per_row": layout.pages_per_row, "kept": space.kept},
    )


def place(layout: StepLayout, known: Known, buffer: Array, *, page_size: int) -> Array:
    """The buffer with the tokens that the device has, and with rows of such tokens where their sequences end."""
    given, row_slots, starts = (field(layout, buffer, name) for name in ("tokens", "row_slots", "starts"))
    offsets, page_table = field(layout, buffer, "offsets"), field(layout, buffer, "page_table")
    by_slot = jnp.concatenate([known.last_token[None], known.drafts.T]).reshape(-1)
    tokens = jnp.where(given < 0, jnp.take(by_slot, jnp.maximum(-given, 0), mode="clip"), given)

    of_device = (jnp.take(given, offsets[:-1], mode="clip") < 0) & (offsets[1:] > offsets[:-1])
    too_far = jnp.where(of_device, starts - jnp.take(known.length, row_slots, mode="clip"), 0)
    places = jnp.arange(given.shape[0], dtype=jnp.int32)
    row = jnp.minimum((places[:, None] >= offsets[None, 1:]).sum(axis=1, dtype=jnp.int32), starts.shape[0] - 1)
    real = places < offsets[-1]
    positions = field(layout, buffer, "positions") - jnp.where(real, too_far[row], 0)
    pages = page_table[:, row, positions // page_size]
    slot_mapping = jnp.where(real, pages * page_size + positions % page_size, 0)

    kept_places = field(layout, buffer, "kept_places")
    sampled = jnp.arange(kept_places.shape[0], dtype=jnp.int32) < field(layout, buffer, "count")
    kept_positions = jnp.where(sampled, positions[kept_places] + 1, field(layout, buffer, "kept_positions"))
    changed = {
        "tokens": tokens,
        "positions": positions,
        "slot_mapping": slot_mapping,
        "starts": starts - too_far,
        "kept_positions": kept_positions,
    }
    if layout.media is not None:
        moved = jnp.where(real, too_far[row], 0)
        changed |= {name: field(layout, buffer, name) - moved for name in layout.media.moving}
    for name, values in changed.items():
        buffer = lax.dynamic_update_slice(buffer, values.reshape(-1), (layout.spans[name][0],))
    return buffer


def _draft_program(space: ProgramSpace, draft: DraftSpace, layout: StepLayout, hidden: jax.ShapeDtypeStruct) -> Program:
    def run(
        parameters: tuple[Array, ...], states: tuple[Array, ...], slots: Slots, cache: Cache, buffer: Array
    ) -> tuple[Array, Slots, Cache]:
        model = draft.merge(parameters)
        drafts, cache = propose(space, layout, model, states, slots, cache, buffer)
        row_slots = field(layout, buffer, "row_slots")
        number = lax.broadcasted_iota(jnp.int32, (slots.length.shape[0], row_slots.shape[0]), 0)
        here = (number == row_slots[None]) & (number > 0)
        chosen = jnp.take(drafts, jnp.argmax(here, axis=1), axis=0)
        of_slots = jnp.where(jnp.any(here, axis=1)[:, None], chosen, slots.drafts)
        return space.everywhere(drafts), space.pinned(replace(slots, drafts=of_slots)), cache

    state = space.replicated_struct((layout.bucket.tokens, hidden.shape[1]), hidden.dtype)
    states = (state,) * max(1, len(draft.taps)) if draft.ahead else ()
    return space.program(
        draft_name(layout),
        run,
        (
            draft.structs,
            states,
            space.slots,
            space.cache_struct.part(space.draft_pools, ()),
            space.replicated_struct((layout.size,), jnp.int32),
        ),
        kind=ProgramKind.DRAFT,
        donate=(2, 3),
        weight=layout.bucket.tokens,
        facts={
            "page_size": space.page_size,
            "num_pages": space.num_pages,
            "pages_per_row": layout.pages_per_row,
            "kept": space.kept,
            "attention_backend": space.attention_backend,
            "num_drafts": space.num_drafts,
        },
        nodes=(Slots, Cache),
        places=layout.bucket.tokens,
    )


def propose(
    space: ProgramSpace,
    layout: StepLayout,
    model: Draft,
    states: tuple[Array, ...],
    slots: Slots,
    cache: Cache,
    buffer: Array,
) -> tuple[Array, Cache]:
    """Guesses `int32 [B, k]` of what follows each row of a step that was sampled, and the cache."""
    step = step_of(space, layout, buffer)
    step = replace(step, indices=space.cache.indices[len(space.graph.cache) :])
    taken = model.take_in(jnp.concatenate(states, axis=-1)) if states else None
    given = _draft_rows(step, layout, slots, buffer, taken, model)
    row_slots = field(layout, buffer, "row_slots")

    def guessed(logits: Array, positions: Array) -> Array:
        return guess(logits, row_slots, positions, slots, layout=space.device_layout)

    if isinstance(model, BlockDraft):
        logits, cache = model.draft(given, cache, space.num_drafts)
        nth = [guessed(logits[:, at], given.positions + 1 + at) for at in range(space.num_drafts)]
        return jnp.stack(nth, axis=1), cache
    x, cache = _pass(model, given.tokens, given.states, step, cache)
    if not model.ahead:
        return _chain(model, given, given.sampled, None, cache, guessed, count=space.num_drafts)
    hidden, handed = model.end(jnp.take(x, given.last, axis=0, mode="clip"))
    first = guessed(model.logits(hidden), given.positions + 1)
    rest, cache = _chain(model, given, first, handed, cache, guessed, count=space.num_drafts - 1)
    return jnp.concatenate([first[:, None], rest], axis=1), cache


def _chain(
    model: Draft,
    given: DraftRows,
    tokens: Array,
    states: Array | None,
    cache: Cache,
    guessed: Callable[[Array, Array], Array],
    *,
    count: int,
) -> tuple[Array, Cache]:
    """So many guesses `int32 [B, count]`, one after the other, and the cache.

    They follow `tokens [B]`, which stand at the rows' positions, or behind them for a draft that is ahead; `states [B, Ed]` are
    what such a one has for them, None else. `guessed(logits [B, V], positions [B])` are tokens `[B]`.
    """
    if not count:
        return jnp.zeros((tokens.shape[0], 0), jnp.int32), cache
    ahead = int(model.ahead)

    def one(
        number: Array, carried: tuple[Array, Array | None, Array, Cache]
    ) -> tuple[Array, Array | None, Array, Cache]:
        tokens, states, found, cache = carried
        positions = given.positions + number
        x, cache = _pass(model, tokens, states, given.rows(positions, 1), cache)
        hidden, handed = model.end(x)
        tokens = guessed(model.logits(hidden), positions + 1 + ahead)
        found = lax.dynamic_update_slice(found, tokens[:, None], (0, number))
        return tokens, handed if ahead else None, found, cache

    found = jnp.zeros((tokens.shape[0], count), jnp.int32)
    _, _, found, cache = lax.fori_loop(0, count, one, (tokens, states, found, cache))
    return found, cache


def _pass(model: Draft, tokens: Array, states: Array | None, step: Step, cache: Cache) -> tuple[Array, Cache]:
    x, shared = model.begin(tokens, states, step.positions)
    return run_layers(model.layers, x, cache, step.sharing(shared))


def _draft_rows(
    step: Step, layout: StepLayout, slots: Slots, buffer: Array, states: Array | None, model: Draft
) -> DraftRows:
    """What a draft is given of a step. A row that has sampled nothing yet, as its prompt goes on, has nothing to guess."""
    row_slots = field(layout, buffer, "row_slots")
    length, sampled = (jnp.take(values, row_slots, mode="clip") for values in (slots.length, slots.last_token))
    active = (row_slots > 0) & (length > 0)
    positions = jnp.where(active, length, 0)
    last = step.offsets[:-1] + positions - 1 - step.starts
    tokens = field(layout, buffer, "tokens")
    if model.ahead:
        places = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        row = step.row_of_place
        tokens = jnp.where(active[row] & (places == last[row]), sampled[row], jnp.roll(tokens, -1))

    def rows(starts: Array, count: int) -> Step:
        return _rows(step, starts, active, count)

    return DraftRows(tokens, states, step, jnp.where(active, last, 0), sampled, positions, rows)


def _rows(step: Step, starts: Array, active: Array, count: int) -> Step:
    """A row of `count` tokens for each row of `step`, from `starts` on; what rows that are not active write goes to the sink."""
    num_rows = starts.shape[0]
    starts = jnp.where(active, starts, 0)
    positions = starts[:, None] + jnp.arange(count, dtype=jnp.int32)
    number = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
    page = jnp.minimum(positions // step.page_size, step.page_table.shape[2] - 1)
    mapping = step.page_table[:, number, page] * step.page_size + positions % step.page_size
    return replace(
        step,
        positions=positions.reshape(-1),
        page_table=jnp.where(active[None, :, None], step.page_table, 0),
        offsets=count * jnp.arange(num_rows + 1, dtype=jnp.int32),
        starts=starts,
        slot_mapping=jnp.where(active[None, :, None], mapping, 0).reshape(step.slot_mapping.shape[0], -1),
        used=jnp.int32(num_rows * count),
    )
