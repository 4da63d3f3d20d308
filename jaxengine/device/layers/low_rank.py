"""A projection through few numbers."""

from __future__ import annotations

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.step import Step


class LowRank(nnx.Module):
    """`up(activation(down(x)))`. Every device has all of the few numbers, and its heads of what they are projected to."""

    def __init__(
        self,
        width: int,
        rank: int,
        channels: int,
        *,
        activation: str | None = None,
        bias: bool = False,
        context: ModelContext,
    ) -> None:
        """`bias` is that of `up`."""
        self.activation = activation
        self.down = Linear(width, rank, axes=("head_dim", "embed"), bias=False, context=context)
        self.up = Linear(rank, channels, axes=("heads", "head_dim"), bias=bias, context=context)

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, E]` -> `[N, channels]`."""
        inner = self.down(x, step)
        return self.up(inner if self.activation is None else ACTIVATIONS[self.activation](inner), step)
