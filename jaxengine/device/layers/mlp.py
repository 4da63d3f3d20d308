"""Feed-forward blocks: column-parallel up, row-parallel down."""

from __future__ import annotations

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.step import Step


class GatedMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(self, width: int, inner: int, *, activation: str, bias: bool, context: ModelContext) -> None:
        self.context = context
        self.activation = activation
        self.gate = Linear(width, inner, axes=("mlp", "embed"), bias=bias, context=context)
        self.up = Linear(width, inner, axes=("mlp", "embed"), bias=bias, context=context)
        self.down = Linear(inner, width, axes=("embed", "mlp"), bias=bias, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        gate, up = project(x, step, self.gate, self.up)
        inner = ACTIVATIONS[self.activation](gate) * up
        inner = self.context.layout.constrain_stream(inner, "mlp", platform=self.context.platform)
        return self.down(inner, step)


class MLP(nnx.Module):
    """`down(activation(up(x)))`."""

    def __init__(self, width: int, inner: int, *, activation: str, bias: bool, context: ModelContext) -> None:
        self.context = context
        self.activation = activation
        self.up = Linear(width, inner, axes=("mlp", "embed"), bias=bias, context=context)
        self.down = Linear(inner, width, axes=("embed", "mlp"), bias=bias, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        inner = ACTIVATIONS[self.activation](self.up(x, step))
        inner = self.context.layout.constrain_stream(inner, "mlp", platform=self.context.platform)
        return self.down(inner, step)
