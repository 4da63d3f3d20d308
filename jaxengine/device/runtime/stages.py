"""The forward pass as a tuple of stages, of which each says what it needs: devices, parameters, its part of the cache, a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax

from buckets import Grid
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import CacheIndex, Keeps, PerSlot, Takes
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.space import ProgramSpace


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the forward pass, one program a bucket: it may begin the pass, run layers that follow each other, and end it.

    It runs on the devices of its `space`, which are mesh number `mesh` of those that a step passes through, in the buckets of its
    `grid`. `parameters` are the numbers of those it needs, in steps with adapters those of `adapters` too; `pools` and `states`
    what its layers keep or read: it is given this part of the cache and no other. Stages of one name are one program of one
    layer: which one it is, and where in the cache its `index` is, is given to it as data then, but for pools, which are part of
    it.
    """

    name: str
    space: ProgramSpace
    grid: Grid
    parameters: tuple[int, ...]
    adapters: tuple[int, ...] = ()
    begins: bool = False
    layers: range = range(0)
    ends: bool = False
    pools: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    index: CacheIndex | None = None

    @property
    def mesh(self) -> int:
        """The number of its mesh."""
        return self.space.mesh or 0

    @property
    def place(self) -> tuple[int | jax.Array, ...] | None:
        """The number of the only layer, and its index but for the pools."""
        return None if self.index is None else (self.layers.start, *self.index.numbers)

    @property
    def first(self) -> int:
        """The number of the layer before which the residual stream is what the stage is given; -1 of one that begins."""
        return -1 if self.begins else self.layers.start

    def program_name(self, layout: StepLayout) -> str:
        """Of the program that computes it for steps of this layout."""
        return f"forward {layout} {self.name}".rstrip()

    def numbers(self, layout: StepLayout) -> tuple[int, ...]:
        """The parameters that it is given in steps of this layout."""
        return self.parameters + self.adapters if layout.adapters else self.parameters

    def part_of(self, cache: Cache) -> Cache | None:
        """What it is given of the cache of its mesh; None: it has no layers."""
        return cache.part(self.pools, self.states) if self.layers else None


def stages(space: ProgramSpace) -> tuple[Stage, ...]:
    """The forward pass, in the order in which it runs: on each mesh whole, or layer by layer."""
    return tuple(stage for view in space.views for stage in _of_mesh(view))


def _of_mesh(space: ProgramSpace) -> Iterator[Stage]:
    parts, stem = space.parts, space.stem
    if not space.layer_by_layer:
        yield stage_of(space, stem.rstrip(), layers=space.layers, begins=space.begins, ends=space.ends)
        return
    if space.begins:
        yield stage_of(space, f"{stem}begin", begins=True)
    for layers in together(space.graph.cache, space.layers):
        if len(layers) > 1:
            yield stage_of(space, f"{stem}layers {layers.start} to {layers.stop - 1}", layers=layers)
        else:
            [layer] = layers
            yield stage_of(space, f"{stem}layer {parts.alike[layer]}", layers=layers, index=space.cache.indices[layer])
    if space.ends:
        behind = range(len(parts.layers), len(parts.layers))
        yield stage_of(space, f"{stem}end", layers=behind, ends=True)


def together(cache: Sequence[Keeps], layers: range) -> Iterator[range]:
    """The layers one by one, but those that hand something on with those that take it."""
    start = layers.start
    for layer in layers:
        if layer + 1 == layers.stop or not any(isinstance(kept, Takes) for kept in cache[layer + 1]):
            yield range(start, layer + 1)
            start = layer + 1


def stage_of(
    space: ProgramSpace,
    name: str,
    *,
    layers: range = range(0),
    begins: bool = False,
    ends: bool = False,
    index: CacheIndex | None = None,
) -> Stage:
    """The stage of these layers, with the parameters that it needs and what its layers keep or read."""
    parts = space.parts
    keeps = [(layer, kept) for layer in layers for kept in space.graph.cache[layer]]
    outer = space.outer if begins or ends else ()
    return Stage(
        name=name,
        space=space,
        grid=space.grid,
        parameters=tuple(sorted((*outer, *(number for layer in layers for number in parts.layers[layer])))),
        adapters=(parts.looking if begins else ())
        + tuple(number for layer in layers for number in parts.adapters[layer]),
        begins=begins,
        layers=layers,
        ends=ends,
        pools=tuple(
            sorted(
                {
                    pool
                    for layer, kept in keeps
                    if not isinstance(kept, PerSlot)
                    for pool in space.cache.indices[layer].pools
                }
            )
        ),
        states=tuple(sorted({state.name for _, kept in keeps if isinstance(kept, PerSlot) for state in kept.states})),
        index=index,
    )
