"""The forward pass of a bucket as programs: one for all of it, or on the CPU parts, one of which runs every layer.

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

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from buckets import Bucket
from jaxengine.layers.step import Angles
from jaxengine.models.parameters import merge, merge_some
from jaxengine.runtime.space import ProgramSpace
from jaxengine.runtime.unpack import kept_fields, kept_rows, positions, step_of, tokens
from jaxengine.sampling import Kept
from xla_cache import Program

if TYPE_CHECKING:
    from jaxengine.runtime.executables import Executables

Call = Callable[..., Any]
"""`(name, *arguments) -> results` of the program of that name."""

HEAVY = 1e6
"""Weight of the programs that hold layers, beside their tokens: these are compiled first."""


def forward_names(space: ProgramSpace, bucket: Bucket) -> tuple[str, ...]:
    """The names of `forward_programs`, in the same order."""
    name = f"forward {bucket}"
    if not space.layer_by_layer:
        return (name,)
    return (f"{name} begin", *(f"{name} layer {first}" for first in sorted(set(space.parts.alike))), f"{name} end")


def forward_programs(space: ProgramSpace, bucket: Bucket) -> list[Program]:
    """What computes a step of this bucket. `kept` is what sampling needs of the kept places.

    forward    (parameters, kv_pages, last_token, buffer) -> (hidden [K, E] of the kept places, kept, kv_pages)

    or, for a pass of N token places:

    begin      (parameters of no layer, last_token, buffer) -> (x [N, E], angles)
    layer 0    (a layer's parameters, x, kv_pages, angles, buffer, its group and lane) -> (x, kv_pages), for layers like the first
    end        (parameters of no layer, x, buffer) -> (hidden [K, E] of the kept places, kept)
    """
    if not space.layer_by_layer:
        return [_whole(space, bucket, *forward_names(space, bucket))]
    begin, *layers, end = forward_names(space, bucket)
    firsts = sorted(set(space.parts.alike))
    residual = _residual(space, bucket.tokens)
    return [
        _begin(space, bucket, begin),
        *(_layer(space, bucket, name, first, residual) for name, first in zip(layers, firsts, strict=True)),
        _end(space, bucket, end, residual),
    ]


def hidden_struct(space: ProgramSpace) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the hidden states `[1, E]` of one place."""
    x, _ = _residual(space, 1)
    outer = space.parts.outer

    def leave(parameters: Any, x: Any) -> Any:
        return merge_some(space.graph, space.parameters, outer, parameters).leave(x)

    return _shapes(space, leave, space.structs(outer), x)  # type: ignore[no-any-return]


class ForwardPass:
    """Runs the forward pass of any bucket with one model's parameters, in the order of `space.parameters`."""

    def __init__(self, space: ProgramSpace, parameters: Sequence[jax.Array]) -> None:
        parts = space.parts
        firsts = sorted(set(parts.alike))
        self._parameters = tuple(parameters)
        self._names = {bucket: forward_names(space, bucket) for bucket in space.grid.buckets}
        self._program = {first: number for number, first in enumerate(firsts, 1)}
        self._layers = [
            (first, tuple(parameters[number] for number in numbers), jax.device_put(jnp.array(place, jnp.int32)))
            for first, numbers, place in zip(parts.alike, parts.layers, space.cache.places, strict=True)
        ]
        self.outer = tuple(parameters[number] for number in parts.outer)

    def exists(self, bucket: Bucket, executables: Executables) -> bool:
        """Whether all programs of a bucket are there."""
        return bucket in self._names and all(name in executables for name in self._names[bucket])

    def calls(self, bucket: Bucket) -> Counter[str]:
        """How often a pass calls each program."""
        names = self._names[bucket]
        if len(names) == 1:
            return Counter(names)
        return Counter([names[0], *(names[self._program[first]] for first, _, _ in self._layers), names[-1]])

    def run(
        self,
        call: Call,
        bucket: Bucket,
        kv_pages: jax.Array,
        last_token: jax.Array,
        buffer: jax.Array,
        *,
        only: int | None = None,
    ) -> tuple[jax.Array, Kept, jax.Array]:
        """`(hidden [K, E], kept, kv_pages)` of `buffer`, through `call`.

        With `only` one layer of each kind is run, this one of them.
        """
        names = self._names[bucket]
        if len(names) == 1:
            return call(names[0], self._parameters, kv_pages, last_token, buffer)  # type: ignore[no-any-return]
        x, angles = call(names[0], self.outer, last_token, buffer)
        for first, parameters, place in self._layers if only is None else self._one_of_each_kind(only):
            x, kv_pages = call(names[self._program[first]], parameters, x, kv_pages, angles, buffer, place)
        return *call(names[-1], self.outer, x, buffer), kv_pages

    def _one_of_each_kind(self, number: int) -> list[tuple[int, tuple[jax.Array, ...], jax.Array]]:
        kinds: dict[int, list[tuple[int, tuple[jax.Array, ...], jax.Array]]] = {}
        for layer in self._layers:
            kinds.setdefault(layer[0], []).append(layer)
        return [layers[number % len(layers)] for layers in kinds.values()]


def _whole(space: ProgramSpace, bucket: Bucket, name: str) -> Program:
    layout = space.layout(bucket)

    def forward(
        parameters: tuple[jax.Array, ...], kv_pages: jax.Array, last_token: jax.Array, buffer: jax.Array
    ) -> tuple[jax.Array, Kept, jax.Array]:
        model = merge(space.graph, parameters)
        x, kv_pages = model(tokens(layout, buffer, last_token), kv_pages, step_of(space, layout, buffer))
        return *space.everywhere((kept_rows(layout, x, buffer), kept_fields(layout, buffer))), kv_pages

    return space.program(
        name,
        forward,
        (tuple(space.parameters.values()), space.kv_pages, space.slots.last_token, _buffer(space, bucket)),
        donate=(1,),
        weight=HEAVY + bucket.tokens,
        facts=_facts(space),
        nodes=(Kept,),
    )


def _begin(space: ProgramSpace, bucket: Bucket, name: str) -> Program:
    layout, outer = space.layout(bucket), space.parts.outer

    def begin(
        parameters: tuple[jax.Array, ...], last_token: jax.Array, buffer: jax.Array
    ) -> tuple[jax.Array, tuple[Angles, ...]]:
        model = merge_some(space.graph, space.parameters, outer, parameters)
        entered: tuple[jax.Array, tuple[Angles, ...]] = model.enter(
            tokens(layout, buffer, last_token), positions(layout, buffer)
        )
        return entered

    arguments = (space.structs(outer), space.slots.last_token, _buffer(space, bucket))
    return space.program(name, begin, arguments, weight=bucket.tokens, facts=_facts(space))


def _layer(space: ProgramSpace, bucket: Bucket, name: str, first: int, residual: tuple[Any, Any]) -> Program:
    layout, numbers = space.layout(bucket), space.parts.layers[first]
    x, angles = residual

    def layer(
        parameters: tuple[jax.Array, ...],
        x: jax.Array,
        kv_pages: jax.Array,
        angles: tuple[Angles, ...],
        buffer: jax.Array,
        place: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        # The rows are cut out of the buffer again in every layer: it is a few integers, and goes into what moves them to the
        # layer's pages.
        step = step_of(space, layout, buffer).turning(angles).at(*place)
        model = merge_some(space.graph, space.parameters, numbers, parameters)
        result: tuple[jax.Array, jax.Array] = model.layers[first](x, kv_pages, step)
        return result

    place = space.replicated_struct((2,), jnp.int32)
    return space.program(
        name,
        layer,
        (space.structs(numbers), x, space.kv_pages, angles, _buffer(space, bucket), place),
        donate=(2,),
        weight=HEAVY + bucket.tokens,
        facts=_facts(space),
    )


def _end(space: ProgramSpace, bucket: Bucket, name: str, residual: tuple[Any, Any]) -> Program:
    layout, outer = space.layout(bucket), space.parts.outer
    x, _ = residual

    def end(parameters: tuple[jax.Array, ...], x: jax.Array, buffer: jax.Array) -> tuple[jax.Array, Kept]:
        model = merge_some(space.graph, space.parameters, outer, parameters)
        return model.leave(kept_rows(layout, x, buffer)), kept_fields(layout, buffer)

    arguments = (space.structs(outer), x, _buffer(space, bucket))
    return space.program(name, end, arguments, weight=bucket.tokens, facts=_facts(space), nodes=(Kept,))


def _residual(space: ProgramSpace, places: int) -> tuple[Any, Any]:
    """The structs of `enter` for so many places: the residual stream, and the angles."""
    outer = space.parts.outer

    def enter(parameters: Any, tokens: Any, positions: Any) -> Any:
        return merge_some(space.graph, space.parameters, outer, parameters).enter(tokens, positions)

    integers = space.replicated_struct((places,), jnp.int32)
    return _shapes(space, enter, space.structs(outer), integers, integers)  # type: ignore[no-any-return]


def _shapes(space: ProgramSpace, function: Callable[..., Any], *arguments: Any) -> Any:
    with nullcontext() if space.mesh is None else jax.set_mesh(space.mesh):
        return jax.eval_shape(function, *arguments)


def _buffer(space: ProgramSpace, bucket: Bucket) -> jax.ShapeDtypeStruct:
    return space.replicated_struct((space.layout(bucket).size,), jnp.int32)


def _facts(space: ProgramSpace) -> dict[str, Any]:
    return {
        "page_size": space.page_size,
        "num_pages": space.num_pages,
        "pages_per_row": space.pages_per_row,
        "kept": space.kept,
        "attention_backend": space.attention_backend,
    }
