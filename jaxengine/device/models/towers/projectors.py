"""What makes embeddings of a prompt from what a tower saw."""

from __future__ import annotations

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import LayerNorm


class TwoLayers(nnx.Module):
    """`down(activation(up(x)))`, perhaps behind a norm."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        activation: str,
        bias: bool = True,
        norm_epsilon: float | None = None,
        context: ModelContext,
    ) -> None:
        self.activation = activation
        self.norm = (
            None if norm_epsilon is None else LayerNorm(in_size, epsilon=norm_epsilon, affine=True, context=context)
        )
        self.up = Linear(in_size, out_size, axes=("mlp", "embed"), bias=bias, context=context)
        self.down = Linear(out_size, out_size, axes=("embed", "mlp"), bias=bias, context=context)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[M, W]` -> `[M, E]`."""
        x = x if self.norm is None else self.norm(x)
        return self.down(ACTIVATIONS[self.activation](self.up(x, None)), None)
