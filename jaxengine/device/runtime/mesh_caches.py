"""The caches of a pipeline's meshes as one: pools and states of a mesh behind those of the meshes before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from jaxengine.device.layers.cache import Cache

Value = TypeVar("Value")


def joined(caches: Sequence[Cache]) -> Cache:
    """All of them; of a single one itself."""
    if len(caches) == 1:
        return caches[0]
    return Cache(tuple(pages for cache in caches for pages in cache.pages), joined_states([c.states for c in caches]))


def joined_states(states: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """By the number of the mesh and the name; of a single one by the name."""
    if len(states) == 1:
        return dict(states[0])
    return {f"{mesh} {name}": value for mesh, named in enumerate(states) for name, value in named.items()}


def part_of_mesh(cache: Cache, mesh: int, count: int) -> Cache:
    """What one of `count` meshes has."""
    if count == 1:
        return cache
    num_pools = len(cache.pages) // count
    pages = cache.pages[mesh * num_pools : (mesh + 1) * num_pools]
    return Cache(pages, states_of_mesh(cache.states, mesh, count))


def states_of_mesh(states: Mapping[str, Value], mesh: int, count: int) -> Mapping[str, Value]:
    """The states of one of `count` meshes, by their names there."""
    if count == 1:
        return states
    begin = f"{mesh} "
    return {name.removeprefix(begin): value for name, value in states.items() if name.startswith(begin)}


def with_mesh(cache: Cache, changed: Cache, mesh: int, count: int) -> Cache:
    """The cache where what one of `count` meshes has is changed, or some of it."""
    if count == 1:
        return cache.with_part(changed)
    num_pools = len(cache.pages) // count
    own = part_of_mesh(cache, mesh, count).with_part(changed)
    pages = (*cache.pages[: mesh * num_pools], *own.pages, *cache.pages[(mesh + 1) * num_pools :])
    return Cache(pages, {**cache.states, **{f"{mesh} {name}": value for name, value in own.states.items()}})
