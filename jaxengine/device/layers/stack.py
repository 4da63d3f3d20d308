"""The layers of a model, one after the other: unrolled for the compiler, traced once for all that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.step import Step


class Layer(Protocol):
    """A layer of a model as a Flax NNX module, which declares what it `keeps` of a sequence."""

    @property
    def keeps(self) -> Keeps: ...

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """The residual stream `[N, E]`, the cache of all layers and the step of this one -> the stream and the cache."""
        ...


def run_layers(
    layers: Sequence[Layer], x: jax.Array, cache: Cache, step: Step, *, first: int = 0
) -> tuple[jax.Array, Cache]:
    """Call every layer with the step of it; what the last one returns. `first` is the number of the first one.

    Layers of one structure (sizes, window, scale) become calls of one function, so that tracing and lowering, which are Python,
    do not take the longer the deeper a model is. XLA inlines the calls before anything else and sees unrolled layers.
    """
    traced: dict[Any, Callable[..., tuple[jax.Array, Cache]]] = {}
    for number, layer in enumerate(layers, first):
        structure, state = nnx.split(layer)
        if structure not in traced:
            traced[structure] = jax.jit(_caller(structure))
        x, cache = traced[structure](state, x, cache, step.for_layer(number))
    return x, cache


def _caller(structure: Any) -> Callable[..., tuple[jax.Array, Cache]]:
    def layer(state: Any, *arguments: Any) -> tuple[jax.Array, Cache]:
        return nnx.merge(structure, state)(*arguments)  # type: ignore[no-any-return]

    return layer
