"""The layers of a model, one after the other: unrolled for the compiler, traced once for all that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
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
    layers: Sequence[Layer],
    x: jax.Array,
    cache: Cache,
    step: Step,
    *,
    first: int = 0,
    streams: dict[int, jax.Array] | None = None,
) -> tuple[jax.Array, Cache]:
    """Call every layer with the step of it; what the last one returns. `first` is the number of the first one.

    `streams` is given the residual stream before each layer, by its number, and behind the last one.

    Layers of one structure (sizes, window, scale) become calls of one function, so that tracing and lowering, which are Python,
    do not take the longer the deeper a model is. XLA inlines the calls before anything else and sees unrolled layers.

    A layer whose parameters lie in the host's memory has them copied to the device when it is its turn.
    """
    traced: dict[Any, Callable[..., tuple[jax.Array, Cache]]] = {}
    for number, layer in enumerate(layers, first):
        structure, state = nnx.split(layer)
        if structure not in traced:
            traced[structure] = jax.jit(_caller(structure))
        if streams is not None:
            streams[number] = x
        call = partial(_from_host, traced[structure]) if _is_on_host(state) else traced[structure]
        x, cache = call(state, x, cache, step.for_layer(number))
    if streams is not None:
        streams[first + len(layers)] = x
    return x, cache


def _caller(structure: Any) -> Callable[..., tuple[jax.Array, Cache]]:
    def layer(state: Any, *arguments: Any) -> tuple[jax.Array, Cache]:
        return nnx.merge(structure, state)(*arguments)  # type: ignore[no-any-return]

    return layer


def _is_on_host(state: Any) -> bool:
    return any(jax.typeof(leaf).memory_space == jax.memory.Space.Host for leaf in jax.tree.leaves(state))


def _from_host(
    layer: Callable[..., tuple[jax.Array, Cache]], state: Any, x: jax.Array, cache: Cache, step: Step
) -> tuple[jax.Array, Cache]:
    """Call a layer on copies of its parameters, which the device has no longer than that.

    The TPU compiler begins all copies that it sees at once, whatever they are said to depend on, and the device would hold all
    weights after all. What is in a branch it begins when that is taken; this one always is, which the compiler cannot know.
    """

    def run() -> tuple[jax.Array, Cache]:
        return layer(jax.device_put(state, jax.memory.Space.Device), x, cache, step)

    handed = jax.eval_shape(run)[1].chosen
    same = cache.handing_on(None if handed is None else jnp.zeros(handed.shape, handed.dtype))
    taken: tuple[jax.Array, Cache] = jax.lax.cond(step.offsets[-1] >= 0, run, lambda: (x, same))
    return taken
