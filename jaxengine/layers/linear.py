"""Matrices of a model, kept and multiplied as the context's scheme says."""

from __future__ import annotations

import jax
from flax import nnx

from jaxengine.layers.context import ModelContext


class Matrix(nnx.Module):
    """`[out, in]` numbers in the checkpoint's own layout: `weight`, and whatever else the scheme keeps beside it."""

    def __init__(self, in_size: int, out_size: int, *, axes: tuple[str, str], context: ModelContext) -> None:
        """`axes` are the logical names of (out, in)."""
        self.context = context
        parameters = context.scheme.parameters((out_size, in_size), axes, context)
        self.names = tuple(parameters)
        for name, parameter in parameters.items():
            setattr(self, name, parameter)

    def multiply(self, x: jax.Array) -> jax.Array:
        """`x [N, in]` -> float32 `[N, out]`."""
        parameters = {name: getattr(self, name)[...] for name in self.names}
        return self.context.scheme.multiply(x, parameters, self.context)


class Linear(Matrix):
    """A matrix and what is added to its products: `x [N, in]` -> `[N, out]` in the activation dtype."""

    def __init__(
        self, in_size: int, out_size: int, *, axes: tuple[str, str], bias: bool, context: ModelContext
    ) -> None:
        """`axes` are the logical names of (out, in)."""
        super().__init__(in_size, out_size, axes=axes, context=context)
        self.bias = context.parameter((out_size,), axes[:1]) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.multiply(x)
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype)
        return y.astype(self.context.activation_dtype)
