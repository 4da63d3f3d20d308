"""A model whose layers lie on several meshes: what each of them has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from jaxengine.device.layers.sharding import Layout
from jaxengine.device.models.interface import LOGITS, Model
from jaxengine.device.models.parameters import ModelGraph, merge_some, model_parts

Structs = dict[str, jax.ShapeDtypeStruct]

COPY_PREFIX = "first."
"""Begins the paths of what the first stage has of parameters that are the last one's too."""


@dataclass(frozen=True, kw_only=True)
class MeshPart:
    """What one mesh of a pipeline has: these layers, and the numbers of the parameters of no layer, `outer`.

    `graph` and `parameters` are of the whole model as it would lie on this mesh's `layout`; those of other layers are not there.
    """

    layers: range
    layout: Layout
    graph: ModelGraph
    parameters: Structs
    outer: tuple[int, ...] = ()

    @property
    def own(self) -> Structs:
        """The parameters that lie here."""
        numbers = model_parts(self.graph, self.parameters)
        here = {*self.outer, *(number for layer in self.layers for number in numbers.layers[layer])}
        return {path: struct for number, (path, struct) in enumerate(self.parameters.items()) if number in here}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The meshes in the order in which a step passes through them.

    `parameters` has each where it lies, in the order of the model's, and `copies` those that the first stage has beside the last
    one, as tied embeddings: by `COPY_PREFIX` and their path.
    """

    parts: tuple[MeshPart, ...]
    parameters: Structs
    copies: Structs


def pipeline_of(
    stages: Sequence[tuple[range, Layout]], make: Callable[[Layout], tuple[ModelGraph, Structs]]
) -> Pipeline:
    """A model over stages, of which each has these layers on the mesh of its layout; `make` is `abstract_model` of a layout."""
    parts = [
        MeshPart(layers=layers, layout=layout, graph=graph, parameters=structs)
        for layers, layout in stages
        for graph, structs in [make(layout)]
    ]
    first, last = parts[0], parts[-1]
    numbers = model_parts(last.graph, last.parameters)
    begins, ends = _used(last, numbers.outer)
    paths = list(last.parameters)
    parameters = dict(last.parameters)
    for number in begins - ends:
        parameters[paths[number]] = first.parameters[paths[number]]
    for part in parts:
        for number in (number for layer in part.layers for number in numbers.layers[layer]):
            parameters[paths[number]] = part.parameters[paths[number]]
    outer = {0: begins, len(parts) - 1: set(numbers.outer) - (begins - ends)}
    return Pipeline(
        parts=tuple(
            MeshPart(
                layers=part.layers,
                layout=part.layout,
                graph=part.graph,
                parameters=part.parameters,
                outer=tuple(sorted(outer.get(place, ()))),
            )
            for place, part in enumerate(parts)
        ),
        parameters=parameters,
        copies={COPY_PREFIX + paths[number]: first.parameters[paths[number]] for number in sorted(begins & ends)},
    )


def _used(part: MeshPart, outer: Sequence[int]) -> tuple[set[int], set[int]]:
    """Which of the parameters of no layer embedding tokens needs, and which what follows the last layer."""
    structs = list(part.parameters.values())
    given = [structs[number] for number in outer]
    integers = jax.ShapeDtypeStruct((1,), jnp.int32)

    def model(arrays: Sequence[Any]) -> Model:
        return merge_some(part.graph, part.parameters, outer, arrays)

    def begin(arrays: Sequence[Any], tokens: Any, positions: Any) -> Any:
        return model(arrays).embed_tokens(tokens, positions)

    def end(arrays: Sequence[Any], x: Any, offsets: Any) -> Any:
        whole = model(arrays)
        hidden = whole.final_norm(x)
        return [head(hidden) if name == LOGITS else head(hidden, offsets) for name, head in whole.heads.items()]

    with nullcontext() if part.layout.mesh is None else jax.set_mesh(part.layout.mesh):
        x, _ = jax.eval_shape(begin, given, integers, integers)
        of_begin = _needed(begin, given, integers, integers)
        of_end = _needed(end, given, x, jax.ShapeDtypeStruct((2,), jnp.int32))
    begins, ends = ({outer[place] for place in found} for found in (of_begin, of_end))
    return begins, ends


def _needed(function: Callable[..., Any], arrays: Sequence[Any], *rest: Any) -> list[int]:
    """The places of those of `arrays` that any result depends on."""
    closed = jax.make_jaxpr(function)(arrays, *rest)
    _, needed = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return [place for place in range(len(arrays)) if needed[place]]
