"""Layers of one structure are traced once, called with their own weights and pages, and unrolled by the compiler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.keeps import CacheIndex
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Step


class Layer(nnx.Module):
    """Adds its weight and the first position, and writes to the first slot; counts how often it is traced."""

    traced = 0

    def __init__(self, weight: float, *, factor: int = 1) -> None:
        self.weight = nnx.Param(jnp.float32(weight))
        self.factor = factor

    def __call__(self, x, cache, step):
        type(self).traced += 1
        return x * self.factor + self.weight[...] + step.positions[0] / 4, cache.at[step.slot_mapping].set(x)


def step(position: int = 0) -> Step:
    whole = jnp.zeros(1, jnp.int32)
    offsets = jnp.arange(2, dtype=jnp.int32)
    table, slots, indices = whole[None, None], jnp.array([[3]]), tuple(CacheIndex(lane=lane) for lane in range(5))
    rows = {"page_table": table, "offsets": offsets, "starts": whole, "slot_mapping": slots}
    return Step(whole + position, **rows, indices=indices, num_pages=(4,), page_size=2, attention_backend="auto")


def test_every_layer_has_its_own_weights_and_pages():
    x, pages = run_layers([Layer(1.0), Layer(10.0), Layer(100.0)], jnp.float32(0.5), jnp.zeros(24), step(1))
    assert float(x) == 0.5 + 111 + 3 * 0.25
    assert {i: float(value) for i, value in enumerate(pages) if value} == {3: 0.5, 11: 1.75, 19: 12.0}


def test_one_trace_for_each_structure():
    Layer.traced = 0
    layers = [Layer(1.0), Layer(2.0), Layer(3.0, factor=2), Layer(4.0), Layer(5.0, factor=2)]
    x, _ = run_layers(layers, jnp.float32(0), jnp.zeros(64), step())
    assert float(x) == ((1 + 2) * 2 + 3 + 4) * 2 + 5
    assert Layer.traced == 2


def test_the_compiler_sees_unrolled_layers():
    def model(x, pages):
        return run_layers([Layer(1.0), Layer(2.0)], x, pages, step())

    lowered = jax.jit(model).lower(jnp.float32(0), jnp.zeros(24))
    assert lowered.as_text().count("call @layer") == 2
    assert lowered.as_text().count("func.func private @layer") == 1
    assert " call(" not in lowered.compile().as_text()
