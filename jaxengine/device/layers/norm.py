"""Normalisation, computed in float32 whatever the dtype around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.step import Step
from pallas_kernels import layer_norm, rms_norm


def by_root_mean_square(x: jax.Array, *, epsilon: float, context: ModelContext) -> jax.Array:
    """`x` over its root mean square along the last axis, in float32."""
    return rms_norm(x, epsilon=epsilon, platform=context.platform)


def by_deviation(x: jax.Array, *, epsilon: float, context: ModelContext) -> jax.Array:
    """`x` without its mean, over its standard deviation along the last axis, in float32."""
    return layer_norm(x, epsilon=epsilon, platform=context.platform)


class RMSNorm(nnx.Module):
    """Divide by the root mean square over the last axis, then scale where there are weights.

    With an `offset` the parameter is what the scale has beyond it, and the product is made in float32 (Gemma).
    """

    def __init__(
        self,
        size: int,
        *,
        epsilon: float,
        axis: str = "embed",
        offset: float = 0.0,
        affine: bool = True,
        context: ModelContext,
    ) -> None:
        self.context = context
        self.epsilon = epsilon
        self.offset = offset
        self.scale = context.parameter((size,), (axis,)) if affine else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(
            x,
            None if self.scale is None else self.scale[...],
            epsilon=self.epsilon,
            offset=self.offset,
            dtype=self.context.activation_dtype,
            platform=self.context.platform,
        )


class LayerNorm(nnx.Module):
    """Subtract the mean and divide by the standard deviation over the last axis, then scale and shift where there are weights."""

    def __init__(self, size: int, *, epsilon: float, affine: bool, bias: bool = True, context: ModelContext) -> None:
        self.context = context
        self.epsilon = epsilon
        self.scale = context.parameter((size,), ("embed",)) if affine else None
        self.bias = context.parameter((size,), ("embed",)) if affine and bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self._normed(x)

    def of_sum(self, x: jax.Array, y: jax.Array, step: Step) -> jax.Array:
        """The norm of `x + y`, `[N, E]` each, places of the step."""
        if self.context.platform != "cpu" or self.context.layout.mesh is not None:
            return self(x + y)
        return self._normed(x, added=y, used=step.used)

    def _normed(self, x: jax.Array, *, added: jax.Array | None = None, used: jax.Array | None = None) -> jax.Array:
        return layer_norm(
            x,
            *(None if of is None else of[...] for of in (self.scale, self.bias)),
            epsilon=self.epsilon,
            added=added,
            used=used,
            dtype=self.context.activation_dtype,
            platform=self.context.platform,
        )


class HeadNorms(nnx.Module):
    """A layer norm of each head by itself, each with a scale of its own `[heads, H]` and without a shift.

    Heads that are stored several times, side by side, share their scale.
    """

    def __init__(self, count: int, size: int, *, epsilon: float, context: ModelContext) -> None:
        self.context = context
        self.epsilon = epsilon
        self.scale = context.parameter((count, size), ("all_heads", "head_dim"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[N, heads, H]` -> the same."""
        y = by_deviation(x, epsilon=self.epsilon, context=self.context)
        scale = self.scale[...].astype(y.dtype)
        scale = jnp.repeat(scale, x.shape[1] // scale.shape[0], axis=0)
        return (y * scale).astype(self.context.activation_dtype)


Norm = RMSNorm | LayerNorm
