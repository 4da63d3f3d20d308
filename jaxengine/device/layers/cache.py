"""What the device keeps of sequences, of all layers: one value that every layer takes and gives back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from jaxengine.device.layers.step import Step


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Of each pool `pages [lanes * pages, T, C, L]` as `pallas_kernels` has them; `[layers, slots, ...]` for each `PerSlot`.

    It is donated to every program that changes it. Slot 0 is the sink of padding.
    """

    pages: tuple[jax.Array, ...]
    states: tuple[jax.Array, ...] = ()

    def with_pages(self, pool: int, pages: jax.Array) -> Cache:
        """The cache with the pages of one pool changed."""
        return replace(self, pages=(*self.pages[:pool], pages, *self.pages[pool + 1 :]))

    def states_by_slot(self, number: int, step: Step) -> tuple[jax.Array, jax.Array]:
        """The states of this number, of all layers as one pool `[P, ...]`, and where in it those of each row are, `int32 [B]`."""
        assert step.row_slots is not None
        states = self.states[number]
        return states.reshape(-1, *states.shape[2:]), step.lane * states.shape[1] + step.row_slots

    def with_states(self, number: int, pool: jax.Array) -> Cache:
        """The cache with the states of this number changed, `[P, ...]`."""
        changed = pool.reshape(self.states[number].shape)
        return replace(self, states=(*self.states[:number], changed, *self.states[number + 1 :]))

    def state_of_rows(self, number: int, step: Step) -> jax.Array:
        """What the step's layer keeps of each row's sequence in the states of this number, `[B, ...]`; zeros where one begins."""
        pool, places = self.states_by_slot(number, step)
        kept = pool[places]
        goes_on = (step.starts > 0).reshape(-1, *(1,) * (kept.ndim - 1))
        return jnp.where(goes_on, kept, jnp.zeros((), kept.dtype))

    def with_state_of_rows(self, number: int, step: Step, rows: jax.Array) -> Cache:
        """The cache with what the step's layer keeps of the rows' sequences changed."""
        pool, places = self.states_by_slot(number, step)
        return self.with_states(number, pool.at[places].set(rows.astype(pool.dtype)))
