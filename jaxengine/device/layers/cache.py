"""What the device keeps of sequences, of all layers: one value that every layer takes and gives back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from jaxengine.device.layers.step import Step


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Of each pool `pages [lanes * pages, T, C, L]` as `pallas_kernels` has them; of each `State` `[layers, slots, ...]`.

    `crossed` are the pages that an encoder writes and layers with cross attention read, `[layers * pages, T, C, L]`; None of
    models without. It is donated to every program that changes it. Slot 0 is the sink of padding.

    `chosen`, int32 `[N, C]`, is kept for no step: which positions of its sequence each token attends to, from a layer that has
    chosen them for those behind it to the last of these.
    """

    pages: tuple[jax.Array | None, ...]
    states: Mapping[str, jax.Array] = field(default_factory=dict)
    crossed: jax.Array | None = None
    chosen: jax.Array | None = None

    def part(self, pools: Collection[int], states: Collection[str]) -> Cache:
        """These pools and states alone; in the places of other pools is None."""
        if len(pools) == len(self.pages) and len(states) == len(self.states):
            return self
        pages = tuple(pages if pool in pools else None for pool, pages in enumerate(self.pages))
        return Cache(pages, {name: self.states[name] for name in states}, self.crossed)

    def with_part(self, part: Cache) -> Cache:
        """The cache with what a part has of it changed."""
        if len(part.states) == len(self.states) and all(pages is not None for pages in part.pages):
            return part
        pages = tuple(old if new is None else new for old, new in zip(self.pages, part.pages, strict=True))
        return Cache(pages, {**self.states, **part.states}, part.crossed)

    def pages_of(self, step: Step) -> jax.Array:
        """The pages of the step's layer."""
        return self.pool(step.pool)

    def pool(self, number: int) -> jax.Array:
        """The pages of one pool."""
        pages = self.pages[number]
        assert pages is not None, "a layer is given what it keeps"
        return pages

    def with_pages(self, pool: int, pages: jax.Array) -> Cache:
        """The cache with the pages of one pool changed."""
        return replace(self, pages=(*self.pages[:pool], pages, *self.pages[pool + 1 :]))

    def handing_on(self, chosen: jax.Array | None) -> Cache:
        """The cache with what the next layer is to attend to; None: nothing is handed on any further."""
        return self if chosen is self.chosen else replace(self, chosen=chosen)

    def states_by_slot(self, name: str, step: Step) -> tuple[jax.Array, jax.Array]:
        """The states of this name, of all layers in one array `[S, ...]`, and where in it those of each row are, `int32 [B]`."""
        assert step.row_slots is not None
        states = self.states[name]
        return states.reshape(-1, *states.shape[2:]), step.state * states.shape[1] + step.row_slots

    def with_states(self, name: str, changed: jax.Array) -> Cache:
        """The cache with the states of this name changed, `[S, ...]`."""
        return replace(self, states={**self.states, name: changed.reshape(self.states[name].shape)})

    def state_of_rows(self, name: str, step: Step) -> jax.Array:
        """What the step's layer keeps of each row's sequence in the state of this name, `[B, ...]`; zeros where one begins."""
        states, rows = self.states_by_slot(name, step)
        kept = states[rows]
        goes_on = (step.starts > 0).reshape(-1, *(1,) * (kept.ndim - 1))
        return jnp.where(goes_on, kept, jnp.zeros((), kept.dtype))

    def with_state_of_rows(self, name: str, step: Step, changed: jax.Array) -> Cache:
        """The cache with what the step's layer keeps of the rows' sequences changed."""
        states, rows = self.states_by_slot(name, step)
        return self.with_states(name, states.at[rows].set(changed.astype(states.dtype)))
