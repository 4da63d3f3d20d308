"""Matrices of a model, kept and multiplied as a scheme says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.adapters import AdapterSlots, AdapterSpec
from jaxengine.device.layers.collective_projections import project_gathered
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix, Scheme
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.schemes.packed import PACKED, is_packed
from jaxengine.device.layers.step import Step
from pallas_kernels import matmul, packed_matmul
from pallas_kernels.packed_matmul import ACTIVATIONS as PACKED_ACTIVATIONS


class Matrix(nnx.Module):
    """`[out, in]` numbers in the checkpoint's own layout: `weight`, and whatever else the scheme keeps beside it."""

    NUMBERS: ClassVar[str] = WEIGHT
    """What this class calls the parameter that schemes call `weight`."""
    adapters: AdapterSlots | None = None

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

    def adapt_by(self, spec: AdapterSpec) -> None:
        """Have slots of adapters beside it."""
        self.adapters = AdapterSlots(self.shape, self.axes, spec, self.context)

    def multiply(self, x: jax.Array, *, dtype: DTypeLike = jnp.float32, used: jax.Array | None = None) -> jax.Array:
        """`x [N, in]` -> `[N, out]` of `dtype`; with `used` rows behind so many are padding."""
        return self.scheme.multiply(x, self.kept(), dtype=dtype, used=used)

    def kept(self) -> KeptMatrix:
        """What its scheme multiplies with."""
        return KeptMatrix(self.arrays(), self.axes, self.context)

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

    def __call__(self, x: jax.Array, step: Step | None, *, gathered: bool = False) -> jax.Array:
        """`step` says which sequence each of the `N` places is of; None outside of the layers, where nothing depends on it.

        `gathered`: devices that split tokens have all of `x` each (`Layout.gather_stream`).
        """
        if (found := _of_panels(x, step, [self])) is not None:
            return found[0]
        context, layout = self.context, self.context.layout
        out_axis, in_axis = self.axes
        if self.scheme is DENSE and self.adapts(step) and (found := _together(x, step, [self])) is not None:
            return found[0]
        takes = gives = "tokens"
        if x.ndim == 2 and layout.splits_stream(x.shape[0], platform=context.platform):
            takes, gives = layout.rows_of_product(x.shape[0], self.axes, platform=context.platform)
            if self.scheme is DENSE and (takes, gives) == ("tokens", "split_tokens"):
                return self._sum_by_token(x, step)
            has_own = layout.own_tokens or not gathered
            if in_axis == "embed" and has_own:  # each device scales its own tokens and not what it gathered
                x = layout.constrain_stream(x, platform=context.platform)
            if self.scheme is DENSE and not layout.own_tokens:  # others say what devices send each other
                x = layout.constrain(x, (takes, in_axis))
        dtype = context.activation_dtype if self.bias is None else jnp.float32
        y = self.finished(self.adapted(self.multiply(x, dtype=dtype, used=_used(x, step)), x, step))
        if y.ndim != 2 or (out_axis != "embed" and gives == "tokens"):
            return y
        return layout.constrain_stream(y, out_axis, platform=context.platform)

    def parts(self, x: jax.Array, step: Step | None) -> jax.Array | None:
        """What each device has to add to `self(x, step)`, `[devices, N, out]`, for a sum of several such arrays.

        None: that is not how it is made, or there is more to it than products.
        """
        context, layout, (out_axis, in_axis) = self.context, self.context.layout, self.axes
        added = out_axis == "embed" and layout.shards(in_axis) > 1 and not layout.own_tokens and x.ndim == 2
        if not added or self.bias is not None or self.adapts(step):
            return None
        split = layout.splits_stream(len(x), platform=context.platform)
        dtype = context.activation_dtype if split else jnp.float32
        return self.scheme.multiply_parts(x, self.kept(), dtype=dtype)

    def adapted(self, y: jax.Array, x: jax.Array, step: Step | None, *, low: jax.Array | None = None) -> jax.Array:
        """The products `y` of its matrix and `x`, and in a step with adapters those of each token's (`AdapterSlots.add`)."""
        adapters = self.through(step)
        if adapters is None or step is None or step.adapters is None:
            return y
        return adapters.add(y, x, step.adapters, low=low)

    def activated(self, x: jax.Array, step: Step | None, activation: str) -> jax.Array:
        """An activation of what it gives, which a backend may make with the product."""
        found = _of_panels(x, step, [self], activation=activation) if activation in PACKED_ACTIVATIONS else None
        return ACTIVATIONS[activation](self(x, step)) if found is None else found[0]

    @property
    def in_panels(self) -> bool:
        """Whether its matrix lies in panels."""
        return self.scheme is PACKED and is_packed(self.arrays()[WEIGHT])

    def through(self, step: Step | None) -> AdapterSlots | None:
        """The adapters that a step goes through here."""
        return None if step is None or step.adapters is None else self.adapters

    def adapts(self, step: Step | None) -> bool:
        """Whether there are any."""
        return self.through(step) is not None

    def finished(self, y: jax.Array) -> jax.Array:
        """What it gives, from the products of its matrix in float32, or without a bias in any type that becomes its own."""
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype)
        return y.astype(self.context.activation_dtype)

    def own_product(self, x: jax.Array, weight: jax.Array, *, dtype: DTypeLike | None = None) -> jax.Array:
        """A device's own, inside of `Layout.per_device`; of the activations' type if none is named."""
        y = matmul(x, weight, precision=self.context.precision, platform=self.context.platform)
        return y.astype(self.context.activation_dtype if dtype is None else dtype)

    def _sum_by_token(self, x: jax.Array, step: Step | None) -> jax.Array:
        """The products, of each token on the device that has its part of the residual stream."""
        context, weight = self.context, getattr(self, WEIGHT)[...]
        y = context.layout.sum_by_token(self.own_product, x, weight, self.axes[1], platform=context.platform)
        return self.finished(self.adapted(y, x, step))


def project(x: jax.Array, step: Step | None, *linears: Linear, sole: bool = False) -> tuple[jax.Array, ...]:
    """`linear(x, step)` of each, to the last bit: matrices of one input, which a backend may multiply together.

    `sole`: nothing else reads `x`, so that devices which split it need not gather it but for these, while they multiply.
    """
    found = _of_panels(x, step, linears)
    if found is None:
        found = _together(x, step, linears)
    if found is None and sole:
        found = project_gathered(x, step, linears)
    return tuple(linear(x, step) for linear in linears) if found is None else found


def _of_panels(
    x: jax.Array, step: Step | None, linears: Sequence[Linear], *, activation: str | None = None
) -> tuple[jax.Array, ...] | None:
    """What each gives, through an activation, if all matrices lie in panels."""
    context = linears[0].context
    if not all(linear.in_panels for linear in linears):
        return None
    products = packed_matmul(
        x.reshape(-1, x.shape[-1]).astype(jnp.float32),
        [linear.arrays()[WEIGHT] for linear in linears],
        [None if linear.bias is None else linear.bias[...].astype(jnp.float32) for linear in linears],
        activation=activation,
        used=_used(x, step),
        platform=context.platform,
    )
    return tuple(product.reshape(*x.shape[:-1], -1).astype(context.activation_dtype) for product in products)


def _together(x: jax.Array, step: Step | None, linears: Sequence[Linear]) -> tuple[jax.Array, ...] | None:
    """What each gives, if their scheme multiplies several matrices at once; with them go the first ones of their adapters."""
    context, scheme = linears[0].context, linears[0].scheme
    if context.layout.mesh is not None or any(linear.scheme != scheme for linear in linears):
        return None
    matrices = [linear.kept() for linear in linears]
    dtype = matrices[0].arrays[WEIGHT].dtype
    slots = [linear.through(step) for linear in linears]
    beside = [own.beside for own in slots if own is not None]
    low_rank = [matrix for matrix in beside if matrix is not None and matrix.dtype == dtype]
    low_rank = low_rank if len(low_rank) == len(linears) else []
    products = scheme.multiply_each(
        x,
        [*matrices, *(replace(matrices[0], arrays={WEIGHT: matrix}) for matrix in low_rank)],
        dtype=context.activation_dtype if all(linear.bias is None for linear in linears) else jnp.float32,
        used=_used(x, step),
    )
    if products is None:
        return None
    lows = products[len(linears) :] or (None,) * len(linears)
    return tuple(
        linear.finished(linear.adapted(product, x, step, low=low))
        for linear, product, low in zip(linears, products[: len(linears)], lows, strict=True)
    )


def _used(x: jax.Array, step: Step | None) -> jax.Array | None:
    """How many rows of `x` have to be multiplied, where they are the places of the step; None: all."""
    return None if step is None or x.ndim != 2 or len(x) != len(step.positions) else step.used
