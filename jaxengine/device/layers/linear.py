"""Matrices of a model, kept and multiplied as a scheme says."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.schemes import WEIGHT, Scheme
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.step import Step
from pallas_kernels import matmul, matmul_each


class Matrix(nnx.Module):
    """`[out, in]` numbers in the checkpoint's own layout: `weight`, and whatever else the scheme keeps beside it."""

    NUMBERS: ClassVar[str] = WEIGHT
    """What this class calls the parameter that schemes call `weight`."""

    def __init__(self, in_size: int, out_size: int, *, axes: tuple[str, str], context: ModelContext) -> None:
        """`axes` are the logical names of (out, in)."""
        self.context = context
        self.shape, self.axes = (out_size, in_size), axes
        if context.scheme is not None:
            self.keep_by(context.scheme)

    def keep_by(self, scheme: Scheme) -> None:
        """Make what `scheme` keeps of it: once, and where the context leaves open which it is."""
        self.scheme = scheme
        parameters = scheme.parameters(self.shape, self.axes, self.context)
        self.names = tuple(self.NUMBERS if name == WEIGHT else name for name in parameters)
        for name, parameter in zip(self.names, parameters.values(), strict=True):
            setattr(self, name, parameter)

    def multiply(self, x: jax.Array, *, dtype: DTypeLike = jnp.float32) -> jax.Array:
        """`x [N, in]` -> `[N, out]` of `dtype`."""
        return self.scheme.multiply(x, self.arrays(), self.axes, self.context, dtype=dtype)

    def arrays(self) -> dict[str, jax.Array]:
        """What is kept, by the scheme's names."""
        return {WEIGHT if name == self.NUMBERS else name: getattr(self, name)[...] for name in self.names}


class Linear(Matrix):
    """A matrix and what is added to its products: `x [N, in]` -> `[N, out]` in the activation dtype."""

    def __init__(
        self, in_size: int, out_size: int, *, axes: tuple[str, str], bias: bool, context: ModelContext
    ) -> None:
        """`axes` are the logical names of (out, in)."""
        super().__init__(in_size, out_size, axes=axes, context=context)
        self.bias = context.parameter((out_size,), axes[:1]) if bias else None

    def __call__(self, x: jax.Array, step: Step | None) -> jax.Array:
        """`step` says which sequence each of the `N` places is of; None outside of the layers, where nothing depends on it."""
        context, layout = self.context, self.context.layout
        out_axis, in_axis = self.axes
        if x.ndim == 2 and layout.splits_stream(x.shape[0], platform=context.platform):
            if out_axis == "embed" and self.scheme is DENSE and layout.across(in_axis) == layout.across("split_tokens"):
                return self._sum_by_token(x)
            if in_axis == "embed":  # each device scales its own tokens and not what it gathered
                x = layout.constrain_stream(x, platform=context.platform)
            if self.scheme is DENSE and not layout.own_tokens:  # others say what devices send each other
                x = layout.constrain(x, ("tokens", in_axis))
        y = self.finished(self.multiply(x, dtype=context.activation_dtype if self.bias is None else jnp.float32))
        if out_axis != "embed" or y.ndim != 2:
            return y
        return layout.constrain_stream(y, platform=context.platform)

    def finished(self, y: jax.Array) -> jax.Array:
        """What it gives, from the products of its matrix in float32, or without a bias in any type that becomes its own."""
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype)
        return y.astype(self.context.activation_dtype)

    def _sum_by_token(self, x: jax.Array) -> jax.Array:
        """The products, of each token on the device that has its part of the residual stream."""
        context = self.context

        def product(x: jax.Array, weight: jax.Array) -> jax.Array:
            y = matmul(x, weight, precision=context.precision, platform=context.platform)
            return y.astype(context.activation_dtype)

        y = context.layout.sum_by_token(product, x, getattr(self, WEIGHT)[...], self.axes[1])
        return self.finished(y)


def project(x: jax.Array, step: Step | None, *linears: Linear) -> tuple[jax.Array, ...]:
    """`linear(x, step)` of each, to the last bit: matrices of one input, which a backend may multiply together."""
    context = linears[0].context
    factors = [found for linear in linears if (found := linear.scheme.factor(linear.arrays())) is not None]
    if context.layout.mesh is not None or len(factors) < len(linears):
        return tuple(linear(x, step) for linear in linears)
    products = matmul_each(
        x,
        [weight for weight, _ in factors],
        scales=[scales for _, scales in factors],
        precision=context.precision,
        dtype=context.activation_dtype if all(linear.bias is None for linear in linears) else jnp.float32,
        platform=context.platform,
    )
    return tuple(linear.finished(product) for linear, product in zip(linears, products, strict=True))
