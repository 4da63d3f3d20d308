"""The forward pass as a tuple of stages, of which each says what it needs: devices, parameters, its part of the cache, a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from buckets import Bucket
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import CacheIndex, Keeps, Paged, PerSlot, Takes
from jaxengine.device.layers.schemes.coded import is_coded
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.layer_loop import addresses_of, table_struct
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put

FEW_PLACES = 8
"""Up to so many places of a step its layers are one program where they can be a loop. Larger steps take long enough for launches
not to count, and too long for all of their layers to be run while an engine warms up."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the forward pass, one program a bucket: it may begin the pass, run layers that follow each other, and end it.

    It runs on the devices of its `space`, which are mesh number `mesh` of those that a step passes through, in steps of its
    `buckets`. `parameters` are the numbers of those it needs, in steps with adapters those of `adapters` too; `pools` and
    `states` what its layers keep or read: it is given this part of the cache and no other. Stages of one name are one program of
    one layer: which one it is, and where in the cache its `index` is, is given to it as data then, but for pools, which are part
    of it. Layers of one that `loops` are alike, and run one after the other by the code of one: its `parameters` are the first
    layer's, and where those of all lie is given to it as data.
    """

    name: str
    space: ProgramSpace
    buckets: tuple[Bucket, ...]
    parameters: tuple[int, ...]
    adapters: tuple[int, ...] = ()
    begins: bool = False
    layers: range = range(0)
    ends: bool = False
    pools: tuple[int, ...] = ()
    states: tuple[str, ...] = ()
    index: CacheIndex | None = None
    loops: bool = False

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
    """The forward pass, in the order in which it runs: on each mesh whole, or in buckets of few places as a loop, or layer by
    layer."""
    return tuple(stage for view in space.views for stage in _of_mesh(view))


def _of_mesh(space: ProgramSpace) -> Iterator[Stage]:
    stem = space.stem
    whole = stage_of(space, stem.rstrip(), layers=space.layers, begins=space.begins, ends=space.ends)
    if not space.layer_by_layer:
        yield whole
        return
    few = tuple(bucket for bucket in space.grid.buckets if bucket.tokens <= FEW_PLACES) if loops(space) else ()
    others = tuple(bucket for bucket in space.grid.buckets if bucket not in few)
    if few:
        given = (*space.outer, *space.parts.layers[space.layers.start])
        yield replace(whole, buckets=few, parameters=tuple(sorted(given)), loops=True)
    for stage in _layer_by_layer(space) if others else ():
        yield replace(stage, buckets=others)


def _layer_by_layer(space: ProgramSpace) -> Iterator[Stage]:
    parts, stem = space.parts, space.stem
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


def loops(space: ProgramSpace) -> bool:
    """Whether the layers can be one loop (`layer_loop.py`): on a CPU, where all are alike and keep keys and values in one pool,
    and custom calls multiply all their matrices. They do in models of bfloat16, but for experts' and what adapters add."""
    if not space.layer_by_layer or space.native is None or space.taps or space.adapters is not None:
        return False
    parts, structs = space.parts, tuple(space.parameters.values())
    own = [structs[number] for layer in space.layers for number in parts.layers[layer]]
    types = {struct.dtype for struct in own}
    keeps = {kept for layer in space.layers for kept in space.graph.cache[layer]}
    return (
        len({parts.alike[layer] for layer in space.layers}) == 1
        and len({space.cache.indices[layer].pools for layer in space.layers}) == 1
        and len(keeps) == 1
        and all(isinstance(kept, Paged) and kept.value > 0 for kept in keeps)
        and (jnp.dtype(jnp.bfloat16) in types or any(map(is_coded, own)))
        and jnp.dtype(jnp.float16) not in types
        and not space.graph.experts
    )


def place_of(stage: Stage, parameters: Sequence[jax.Array]) -> jax.Array | None:
    """What a stage is told of its layers, `place_struct`."""
    if stage.loops:
        of_layers = (stage.space.places(stage.space.parts.layers[layer]) for layer in stage.layers)
        table = addresses_of([tuple(parameters[place] for place in places) for places in of_layers])
        return put(table, stage.space.replicated)
    return None if stage.place is None else put(np.array(stage.place, np.int32), stage.space.replicated)


def place_struct(stage: Stage) -> jax.ShapeDtypeStruct | None:
    """Where the arrays of all layers lie, of a stage that loops; which layer it is, of one that runs any of some."""
    space = stage.space
    if stage.loops:
        return space.replicated_struct(*table_struct(len(stage.layers), len(space.parts.layers[stage.layers.start])))
    return None if stage.place is None else space.replicated_struct((len(stage.place),), jnp.int32)


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
        buckets=space.grid.buckets,
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
