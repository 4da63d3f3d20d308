"""Programs that make the arrays of an engine's state, empty: at its start, and when it wakes and has none left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from jaxengine.device.layers.cache import Cache
from jaxengine.device.runtime.mesh_caches import joined, joined_states
from jaxengine.device.sampling import Slots
from pallas_kernels import zeros
from pallas_kernels.native import calling

States = dict[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True, kw_only=True)
class EmptyState:
    """Each of these is compiled when it is first looked at, and kept: an engine that wakes compiles nothing.

    `caches` and `snapshots` are those of each mesh, in order; the slots lie on the last. `embeddings` None: there is no pool of
    them. `native` is as in `ProgramSpace`.
    """

    caches: Sequence[Cache]
    slots: Slots
    snapshots: Sequence[States]
    adapters: Sequence[jax.ShapeDtypeStruct]
    embeddings: jax.ShapeDtypeStruct | None
    native: str | None
    compiler_options: Mapping[str, Any]

    @cached_property
    def lowered(self) -> tuple[jax.stages.Lowered, ...]:
        """What makes the cache of each mesh, that of the last one with the slots."""
        *caches, last = self.caches
        return tuple(_lowered_zeros(like, self.native) for like in (*caches, (last, self.slots)))

    @cached_property
    def cache_and_slots(self) -> Callable[[], tuple[Cache, Slots]]:
        *caches, last = (lowered.compile(dict(self.compiler_options)) for lowered in self.lowered)

        def make() -> tuple[Cache, Slots]:
            cache, slots = last()
            return joined([*(of_mesh() for of_mesh in caches), cache]), slots

        return make

    @cached_property
    def all_snapshots(self) -> Callable[[], dict[str, jax.Array]]:
        makes = [zeroed(of_mesh) for of_mesh in self.snapshots]
        return lambda: joined_states([make() for make in makes])

    @cached_property
    def adapter_slots(self) -> Callable[[], tuple[jax.Array, ...]]:
        return zeroed(tuple(self.adapters))

    @cached_property
    def embedding_pool(self) -> Callable[[], jax.Array]:
        return zeroed(self.embeddings)


def zeroed(like: Any) -> Callable[[], Any]:
    """What makes zeros of the shapes, types and places of a tree of arrays or structs."""
    return _lowered_zeros(like).compile()


def _lowered_zeros(like: Any, native: str | None = None) -> jax.stages.Lowered:
    """The same before it is compiled; it may call the libraries of `native` (`pallas_kernels.native`), on a CPU."""
    places = jax.tree.map(lambda leaf: leaf.sharding, like)
    structs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
    platform = None if native is None else "cpu"

    def make() -> Any:
        with calling(native):
            return jax.tree.map(lambda leaf: zeros(leaf.shape, leaf.dtype, platform=platform), structs)

    lowered: jax.stages.Lowered = jax.jit(make, out_shardings=places).lower()
    return lowered
