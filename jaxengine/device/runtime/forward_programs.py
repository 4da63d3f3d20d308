"""The forward pass of a bucket in stages, each a program: one for all of it, or on the CPU parts, one of which runs every layer.

An accelerator gets one program: TPUs fetch the next layer's weights while they compute. By the TPU compiler's own figures a
decode step of 64 rows on v6e takes 1.35 ms with the layers of Qwen3-0.6B unrolled, 2.16 in a loop over stacked weights and 5.45
in a loop over four layers at a time; of Llama-3.1-8B 10.8, 11.2 and 72 ms, for which they compile in 12.9, 5.9 and 18.2
CPU-seconds (`benchmarks/layer_forms.py`). So layers are unrolled there, large ones at a small gain.

On the CPU nothing is gained from seeing more than a layer at once, and machine code that grows with depth is what a start would
spend its time on. Qwen3-0.6B, 28 layers, decode of 8 rows, CPU-seconds: as a whole 7.3 to compile and 1.1 to load, in parts 1.8
and 0.05. The results are the same to the last bit. What it costs: a decode step of 1, 8 and 32 rows takes 7, 5 and 1% longer
(two cores, medians of 10 alternating steps: 69.8, 82.4 and 147.7 ms against 65.4, 78.7 and 145.8). So steps of few places are one
program there, too, where layers are alike, whose loop finds each layer's weights by their addresses (`layer_loop.py`): that is
compiled in the time of the parts, and in 4 bits a step of one row takes 39 and not 43 ms of the processor
(`benchmarks/layer_loops.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from buckets import Bucket
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Step
from jaxengine.device.models.interface import POOLED, Model
from jaxengine.device.models.parameters import merge_some
from jaxengine.device.models.shared.seeing import Seeing, Seen
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.layer_loop import Own, loop_layers
from jaxengine.device.runtime.passing import Passage
from jaxengine.device.runtime.program_kinds import HEAVY, ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.stages import Stage, place_struct, stages
from jaxengine.device.runtime.unpack import (
    adapters,
    kept_fields,
    kept_rows,
    offsets,
    positions,
    rotary_positions,
    seen_by,
    step_of,
    tokens,
)
from jaxengine.device.sampling import SampleInputs
from xla_cache import Program

Kept = tuple[jax.Array, SampleInputs, tuple[jax.Array, ...]]
"""The hidden states `[K, E]` of the kept places of a step, what sampling needs of them, and of all places what drafts read,
arrays `[N, E]` (`ProgramSpace.taps`)."""


def forward_names(space: ProgramSpace, bucket: Bucket) -> tuple[str, ...]:
    """The names of `forward_programs`, in the same order."""
    names = (
        stage.program_name(layout)
        for layout in space.layouts(bucket)
        for stage in stages(space)
        if bucket in stage.buckets
    )
    return tuple(dict.fromkeys(names))


def forward_programs(space: ProgramSpace, bucket: Bucket) -> list[Program]:
    """What computes a step of this bucket, of N token places: for each of its layouts and each stage

        (parameters, x, shared, cache, buffer, place) -> (x, shared, cache)

    on the devices of the stage. The residual stream `x [N, E]` and what all layers share go from stage to stage; to the first one
    `x` is `last_token`, and of a model that sees or hears the pool of embeddings too, and what leaves the last one is `Kept`, or
    of a model that pools `Pooled`. A stage is given its part of the cache, one without layers none.
    """
    firsts: dict[str, Stage] = {}
    arrives: dict[int, tuple[jax.ShapeDtypeStruct, Any]] = {}
    for stage in stages(space):
        if bucket in stage.buckets:
            firsts.setdefault(stage.name, stage)
            if stage.mesh not in arrives:  # it is traced, and every start asks for it
                of_mesh = _residual if space.pipeline is None else between
                arrives[stage.mesh] = of_mesh(stage.space, bucket.tokens)
    return [
        _program(space, layout, stage, arrives[stage.mesh])
        for layout in space.layouts(bucket)
        for stage in firsts.values()
    ]


def between(space: ProgramSpace, places: int) -> tuple[jax.ShapeDtypeStruct, Any]:
    """What goes from mesh to mesh in a step of so many places, as it lies on that of `space`: the residual stream `[N, E]`, and
    what all layers share."""
    x, made = _residual(space, places)
    layout = space.device_layout
    axes = layout.stream_axes(places, platform=space.platform)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding(axes)), jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout.replicated), made
    )


def passages(space: ProgramSpace) -> dict[tuple[int, int], Passage]:
    """The ways from each mesh to the next, by the token places of a step and the number of the next."""
    views = space.views
    return {
        (places, mesh): Passage(f"pass {places} to stage {mesh}", views[mesh - 1], view, between(view, places))
        for places in sorted({bucket.tokens for bucket in space.grid.buckets})
        for mesh, view in enumerate(views)
        if mesh
    }


def hidden_struct(space: ProgramSpace) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the hidden states `[1, E]` of one place."""
    x, _ = _residual(space, 1)
    outer = space.outer

    def norm(parameters: Any, x: Any) -> Any:
        return merge_some(space.graph, space.parameters, outer, parameters).final_norm(x)

    return _shapes(space, norm, space.structs(outer), x)  # type: ignore[no-any-return]


def _program(
    whole: ProgramSpace, layout: StepLayout, stage: Stage, between_stages: tuple[jax.ShapeDtypeStruct, Any]
) -> Program:
    space, bucket, given = stage.space, layout.bucket, stage.numbers(layout)
    arrives, made = between_stages
    sends = whole.pipeline is not None and space.device_layout.mesh is not None

    def run(
        parameters: tuple[jax.Array, ...],
        x: Any,
        shared: Any,
        cache: Cache | None,
        buffer: jax.Array,
        place: jax.Array | None,
    ) -> tuple[Any, Any, Cache | None]:
        model = merge_some(space.graph, space.parameters, given, parameters)
        if stage.begins:
            x, shared = _begin(layout, model, x, buffer)
        streams: dict[int, jax.Array] = {}
        if cache is not None:
            # The rows are cut out of the buffer again in every stage: it is a few integers, and goes into what moves them to the
            # layer's pages.
            step = step_of(space, layout, buffer).sharing(shared)
            if stage.loops:
                assert place is not None
                x, cache = _loop(space, stage, dict(zip(given, parameters, strict=True)), place, x, cache, step)
            elif place is None or stage.index is None:
                layers = [model.layers[number] for number in stage.layers]
                x, cache = run_layers(layers, x, cache, step, first=stage.layers.start, streams=streams)
            else:
                layer, *numbers = place
                index = stage.index.with_numbers(*numbers)
                x, cache = model.layers[stage.layers.start](x, cache, step.at(layer, index))
        if stage.ends:
            read = tuple(streams[tap] for tap in space.taps or () if tap in streams)
            return space.everywhere(_ending(space, model, layout, x, buffer, read)), None, cache
        if sends:
            places = jax.tree.map(lambda struct: struct.sharding, (arrives, made))
            x, shared = jax.lax.with_sharding_constraint((x, shared), places)
        return x, shared if stage.begins else None, cache

    entry = space.slots.last_token if space.embeddings is None else (space.slots.last_token, space.embeddings)
    x, shared = (entry, None) if stage.begins else (arrives, made)
    nodes = (
        (Cache, stage.layers),
        (Pooled if space.pools else SampleInputs, stage.ends),
        (type(made), stage.begins and not stage.ends),
    )
    return space.program(
        stage.program_name(layout),
        run,
        (
            space.structs(given),
            x,
            shared,
            stage.part_of(space.cache_struct),
            space.replicated_struct((layout.size,), jnp.int32),
            place_struct(stage),
        ),
        kind=ProgramKind.FORWARD,
        donate=(3,) if stage.layers else (),
        weight=bool(stage.layers) * HEAVY + bucket.tokens + layout.wide / 2,
        facts=_facts(space, layout) | ({"taps": space.taps} if stage.ends else {}),
        nodes=tuple(node for node, there in nodes if there),
        places=bucket.tokens,
    )


def _loop(
    space: ProgramSpace,
    stage: Stage,
    parameters: Mapping[int, jax.Array],
    addresses: jax.Array,
    x: jax.Array,
    cache: Cache,
    step: Step,
) -> tuple[jax.Array, Cache]:
    """The layers of a stage that loops. `parameters` are by their numbers."""
    first, numbers = stage.layers.start, space.parts.layers
    indices = [space.cache.indices[layer] for layer in stage.layers]

    def layer(own: Own, carry: tuple[jax.Array, Cache], place: jax.Array) -> tuple[jax.Array, Cache]:
        model = merge_some(space.graph, space.parameters, numbers[first], own)
        layer, *of_index = place
        return model.layers[first](*carry, step.at(layer, indices[0].with_numbers(*of_index)))

    own = tuple(parameters[number] for number in numbers[first])
    places = np.array([(layer, *index.numbers) for layer, index in zip(stage.layers, indices, strict=True)], np.int32)
    return loop_layers(layer, own, addresses, (x, cache), places)  # type: ignore[no-any-return]


def _begin(layout: StepLayout, model: Model, entry: Any, buffer: jax.Array) -> tuple[jax.Array, Any]:
    """The residual stream before the first layer, and what all layers are given."""
    through = adapters(layout, buffer)
    if layout.media is None or not layout.media.embeds:
        return model.embed_tokens(tokens(layout, buffer, entry), positions(layout, buffer), through)
    assert isinstance(model, Seeing)
    last_token, pool = entry
    seen = seen_by(layout, buffer, pool)
    return model.embed_prompt(tokens(layout, buffer, last_token), rotary_positions(layout, buffer), seen, through)


def _ending(
    space: ProgramSpace,
    model: Model,
    layout: StepLayout,
    x: jax.Array,
    buffer: jax.Array,
    read: tuple[jax.Array, ...],
) -> Kept | Pooled:
    """What is made of the residual stream after the last layer; `read` is what drafts read of streams before."""
    if space.pools:
        pooled: Pooled = model.heads[POOLED](model.final_norm(x), offsets(layout, buffer))
        return pooled
    if space.taps == ():
        read = (model.final_norm(x),)
    return (
        model.final_norm(kept_rows(layout, x, buffer)),
        kept_fields(layout, buffer, adapted=bool(space.parts.scoring)),
        read,
    )


def _residual(space: ProgramSpace, places: int) -> tuple[jax.ShapeDtypeStruct, Any]:
    """The structs of `embed_tokens` for so many places: the residual stream, and what all layers share."""
    outer = space.parts.outer
    integers = space.replicated_struct((places,), jnp.int32)
    if space.embeddings is None:
        given: tuple[Any, ...] = (integers, integers)
    else:
        assert space.media is not None
        traits = space.media.traits
        axes = space.replicated_struct((traits.num_axes, places), jnp.int32) if traits.num_axes else integers
        rows = space.replicated_struct((places, traits.width), traits.dtype)
        here = space.replicated_struct((places,), jnp.bool_)
        given = (integers, axes, Seen(rows, here))  # type: ignore[arg-type]

    def embed(parameters: Any, *given: Any) -> Any:
        model: Any = merge_some(space.graph, space.parameters, outer, parameters)
        return model.embed_tokens(*given) if space.embeddings is None else model.embed_prompt(*given)

    return _shapes(space, embed, space.structs(outer), *given)  # type: ignore[no-any-return]


def _shapes(space: ProgramSpace, function: Callable[..., Any], *arguments: Any) -> Any:
    with nullcontext() if space.device_layout.mesh is None else jax.set_mesh(space.device_layout.mesh):
        return jax.eval_shape(function, *arguments)


def _facts(space: ProgramSpace, layout: StepLayout) -> dict[str, Any]:
    return {
        "page_size": space.page_size,
        "num_pages": space.num_pages,
        "pages_per_row": layout.pages_per_row,
        "kept": space.kept,
        "attention_backend": space.attention_backend,
    }
