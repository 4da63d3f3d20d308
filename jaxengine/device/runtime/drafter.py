"""Calls the programs of `drafting.py` with a draft model's parameters."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jaxengine.device.layers.cache import Cache
from jaxengine.device.runtime.draft_space import DRAFT_PREFIX
from jaxengine.device.runtime.drafting import Known, draft_name, place_name
from jaxengine.device.runtime.forward import Call
from jaxengine.device.runtime.inputs import FlatRows, StepLayout
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import Slots


class Drafter:
    """What drafts with the parameters of a runner, in the order of `space.all_parameters`; nothing where the device does not."""

    def __init__(self, space: ProgramSpace, parameters: Sequence[jax.Array]) -> None:
        self._space = space
        self._draft = space.draft
        by_path = dict(zip(space.all_parameters, parameters, strict=True))
        self._parameters = (
            ()
            if space.draft is None
            else tuple(by_path[space.draft.shared.get(path, DRAFT_PREFIX + path)] for path in space.draft.parameters)
        )

    def place(self, call: Call, layout: StepLayout, rows: FlatRows, slots: Slots, buffer: jax.Array) -> jax.Array:
        """The buffer with rows of tokens that the device has where their sequences end."""
        if self._draft is None or not (rows.tokens < 0).any():
            return buffer
        return self.place_all(call, layout, slots, buffer)

    def place_all(self, call: Call, layout: StepLayout, slots: Slots, buffer: jax.Array) -> jax.Array:
        """The same, whatever the rows."""
        placed: jax.Array = call(place_name(layout), Known.of(slots), buffer)
        return placed

    def draft(
        self,
        call: Call,
        layout: StepLayout,
        states: tuple[jax.Array, ...],
        slots: Slots,
        cache: Cache,
        buffer: jax.Array,
    ) -> tuple[jax.Array, Slots, Cache]:
        """Draft behind a step that was sampled, of which the draft reads `states`: the drafts of its rows, slots and cache."""
        part = cache.part(self._space.draft_pools, ())
        drafts, slots, changed = call(draft_name(layout), self._parameters, states, slots, part, buffer)
        return drafts, slots, cache.with_part(changed)
