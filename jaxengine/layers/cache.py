"""What the device keeps of sequences, of all layers: one value that every layer takes and gives back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax


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
