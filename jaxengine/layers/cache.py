"""What the device keeps of sequences, of all layers: one value that every layer takes and gives back."""

from __future__ import annotations

from dataclasses import dataclass

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """`pages [lanes * pages, T, C, L]` as `pallas_kernels` has them, and an array `[layers, slots, ...]` for each `PerSlot`.

    It is donated to every program that changes it. Slot 0 is the sink of padding.
    """

    pages: jax.Array
    states: tuple[jax.Array, ...] = ()
