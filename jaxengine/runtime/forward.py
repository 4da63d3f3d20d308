"""The forward pass of a step shape as programs: one for all of it, or on the CPU parts, one of which runs every layer.

An accelerator gets one program: TPUs fetch the next layer's weights while they compute. By the TPU compiler's own figures a
decode step of 64 rows on v6e takes 1.35 ms with the layers of Qwen3-0.6B unrolled, 2.16 in a loop over stacked weights and 5.45
in a loop over four layers at a time; of Llama-3.1-8B 10.8, 11.2 and 72 ms, for which they compile in 12.9, 5.9 and 18.2
CPU-seconds (`benchmarks/layer_forms.py`). So layers are unrolled there, large ones at a small gain.

On the CPU nothing is gained from seeing more than a layer at once, and machine code that grows with depth is what a start would
spend its time on. Qwen3-0.6B, 28 layers, decode of 8 rows, CPU-seconds: as a whole 7.3 to compile and 1.1 to load, in parts 1.8
and 0.05. The results are the same to the last bit. What it costs: a decode step of 1, 8 and 32 rows takes 7, 5 and 1% longer
(two cores, medians of 10 alternating steps: 69.8, 82.4 and 147.7 ms against 65.4, 78.7 and 145.8). A loop over stacked weights is
no way: XLA:CPU copies each layer's weights out of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from buckets import StepShape
from jaxengine.models.parameters import merge, merge_some
from jaxengine.runtime.executables import Executables
from jaxengine.runtime.inputs import StepLayout
from jaxengine.runtime.space import ProgramSpace
from jaxengine.runtime.unpack import unpack
from xla_cache import Program

Call = Callable[..., Any]
"""`(name, *arguments) -> results` of the program of that name."""

HEAVY = 1e6
"""Weight of the programs that hold layers, beside their tokens: these are compiled first."""


def forward_names(space: ProgramSpace, shape: StepShape) -> tuple[str, ...]:
    """The names of `forward_programs`, in the same order."""
    name = f"forward {shape}"
    if not space.layer_by_layer:
        return (name,)
    return (f"{name} begin", *(f"{name} layer {first}" for first in sorted(set(space.parts.alike))), f"{name} end")


def forward_programs(space: ProgramSpace, shape: StepShape) -> list[Program]:
    """What computes a step of this shape.

    forward    (parameters, kv_pages, buffer) -> (hidden [R, E] of the sampled places, kv_pages)

    or, for a pass of N token places, where `shared` is what the model hands to every layer:

    begin      (parameters of no layer, buffer) -> (x [N, E], shared)
    layer 0    (a layer's parameters, x, kv_pages, shared, buffer, layer number) -> (x, kv_pages), for layers like the first
    end        (parameters of no layer, x, buffer) -> hidden [R, E] of the sampled places
    """
    if not space.layer_by_layer:
        return [_whole(space, shape, *forward_names(space, shape))]
    begin, *layers, end = forward_names(space, shape)
    firsts = sorted(set(space.parts.alike))
    residual = _residual(space, shape.tokens)
    return [
        _begin(space, shape, begin),
        *(_layer(space, shape, name, first, residual) for name, first in zip(layers, firsts, strict=True)),
        _end(space, shape, end, residual),
    ]


def hidden_struct(space: ProgramSpace) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the hidden states `[1, E]` of one place."""
    x, _ = _residual(space, 1)
    outer = space.parts.outer

    def leave(parameters: Any, x: Any) -> Any:
        return merge_some(space.graph, space.parameters, outer, parameters).leave(x)

    return _shapes(space, leave, space.structs(outer), x)  # type: ignore[no-any-return]


class ForwardPass:
    """Runs the forward pass of any shape with one model's parameters, in the order of `space.parameters`."""

    def __init__(self, space: ProgramSpace, parameters: Sequence[jax.Array]) -> None:
        parts = space.parts
        firsts = sorted(set(parts.alike))
        self._parameters = tuple(parameters)
        self._names = {shape: forward_names(space, shape) for shape in space.grid.shapes}
        self._place = {first: 1 + place for place, first in enumerate(firsts)}
        self._layers = [
            (first, tuple(parameters[number] for number in numbers), jax.device_put(jnp.int32(layer)))
            for layer, (first, numbers) in enumerate(zip(parts.alike, parts.layers, strict=True))
        ]
        self.outer = tuple(parameters[number] for number in parts.outer)

    def exists(self, shape: StepShape, executables: Executables) -> bool:
        """Whether all programs of a shape are there."""
        return shape in self._names and all(name in executables for name in self._names[shape])

    def run(
        self, call: Call, shape: StepShape, kv_pages: jax.Array, buffer: jax.Array, *, once: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """`(hidden [R, E], kv_pages)` of `buffer`, through `call`. With `once` no program is called for a second layer."""
        names = self._names[shape]
        if len(names) == 1:
            return call(names[0], self._parameters, kv_pages, buffer)  # type: ignore[no-any-return]
        x, shared = call(names[0], self.outer, buffer)
        for layer, (first, parameters, number) in enumerate(self._layers):
            if layer == first or not once:
                x, kv_pages = call(names[self._place[first]], parameters, x, kv_pages, shared, buffer, number)
        return call(names[-1], self.outer, x, buffer), kv_pages


def _whole(space: ProgramSpace, shape: StepShape, name: str) -> Program:
    layout = space.layout(shape)

    def forward(
        parameters: tuple[jax.Array, ...], kv_pages: jax.Array, buffer: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        tokens, positions, attention = unpack(space, layout, buffer)
        model = merge(space.graph, parameters)
        hidden, kv_pages = model(tokens, positions, kv_pages, attention)
        return _sampled(layout, hidden, buffer), kv_pages

    return space.program(
        name,
        forward,
        (tuple(space.parameters.values()), space.kv_pages, _buffer(space, shape)),
        donate=(1,),
        weight=HEAVY + shape.tokens,
        facts=_facts(space, layout),
    )


def _begin(space: ProgramSpace, shape: StepShape, name: str) -> Program:
    layout, outer = space.layout(shape), space.parts.outer

    def begin(parameters: tuple[jax.Array, ...], buffer: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
        tokens, positions, _ = unpack(space, layout, buffer)
        entered: tuple[jax.Array, tuple[Any, ...]] = merge_some(space.graph, space.parameters, outer, parameters).enter(
            tokens, positions
        )
        return entered

    arguments = (space.structs(outer), _buffer(space, shape))
    return space.program(name, begin, arguments, weight=shape.tokens, facts=_facts(space, layout))


def _layer(space: ProgramSpace, shape: StepShape, name: str, first: int, residual: tuple[Any, Any]) -> Program:
    layout, numbers = space.layout(shape), space.parts.layers[first]
    x, shared = residual

    def layer(
        parameters: tuple[jax.Array, ...],
        x: jax.Array,
        kv_pages: jax.Array,
        shared: tuple[Any, ...],
        buffer: jax.Array,
        number: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        # The rows are unpacked again in every layer: it is a few integers, and goes into what moves them to the layer's pages.
        _, _, attention = unpack(space, layout, buffer)
        model = merge_some(space.graph, space.parameters, numbers, parameters)
        result: tuple[jax.Array, jax.Array] = model.layers[first](x, kv_pages, attention.for_layer(number), *shared)
        return result

    number = space.replicated_struct((), jnp.int32)
    return space.program(
        name,
        layer,
        (space.structs(numbers), x, space.kv_pages, shared, _buffer(space, shape), number),
        donate=(2,),
        weight=HEAVY + shape.tokens,
        facts=_facts(space, layout),
    )


def _end(space: ProgramSpace, shape: StepShape, name: str, residual: tuple[Any, Any]) -> Program:
    layout, outer = space.layout(shape), space.parts.outer
    x, _ = residual

    def end(parameters: tuple[jax.Array, ...], x: jax.Array, buffer: jax.Array) -> jax.Array:
        model = merge_some(space.graph, space.parameters, outer, parameters)
        hidden: jax.Array = model.leave(_sampled(layout, x, buffer))
        return hidden

    arguments = (space.structs(outer), x, _buffer(space, shape))
    return space.program(name, end, arguments, weight=shape.tokens, facts=_facts(space, layout))


def _sampled(layout: StepLayout, x: jax.Array, buffer: jax.Array) -> jax.Array:
    """The rows of `x [N, ...]` at the places that are sampled, `[R, ...]`."""
    places = jax.lax.dynamic_slice_in_dim(buffer, layout.sampled_offset, layout.sampled_rows)
    return jnp.take(x, places, axis=0, mode="clip")


def _residual(space: ProgramSpace, places: int) -> tuple[Any, Any]:
    """The structs of `enter` for so many places: the residual stream, and what the layers share."""
    outer = space.parts.outer

    def enter(parameters: Any, tokens: Any, positions: Any) -> Any:
        return merge_some(space.graph, space.parameters, outer, parameters).enter(tokens, positions)

    integers = space.replicated_struct((places,), jnp.int32)
    return _shapes(space, enter, space.structs(outer), integers, integers)  # type: ignore[no-any-return]


def _shapes(space: ProgramSpace, function: Callable[..., Any], *arguments: Any) -> Any:
    with nullcontext() if space.mesh is None else jax.set_mesh(space.mesh):
        return jax.eval_shape(function, *arguments)


def _buffer(space: ProgramSpace, shape: StepShape) -> jax.ShapeDtypeStruct:
    return space.replicated_struct((space.layout(shape).size,), jnp.int32)


def _facts(space: ProgramSpace, layout: StepLayout) -> dict[str, Any]:
    return {
        "page_size": space.page_size,
        "num_pages": space.num_pages,
        "pages_per_row": space.pages_per_row,
        "sampled_rows": layout.sampled_rows,
        "attention_backend": space.attention_backend,
    }
