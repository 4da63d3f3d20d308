"""Matrices of a model, kept and multiplied as a scheme says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.adapters import AdapterSlots, AdapterSpec
from jaxengine.device.layers.collective_matmul import in_order, multiply_gathered, multiply_scattered
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.schemes import WEIGHT, KeptMatrix, Scheme
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.schemes.packed import PACKED, is_packed
from jaxengine.device.layers.step import Step
from pallas_kernels import AdaptedMatrix, adapted_gate, matmul, packed_matmul
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
        if self.packed:
            return _packed_products(x, step, [self])[0]
        context, layout = self.context, self.context.layout
        out_axis, in_axis = self.axes
        if self.scheme is DENSE and layout.mesh is None and _through(self, step) is not None:
            return project(x, step, self)[0]  # with its adapters
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
        if not added or self.bias is not None or _through(self, step) is not None:
            return None
        split = layout.splits_stream(len(x), platform=context.platform)
        dtype = context.activation_dtype if split else jnp.float32
        return self.scheme.multiply_parts(x, self.kept(), dtype=dtype)

    def adapted(self, y: jax.Array, x: jax.Array, step: Step | None, *, low: jax.Array | None = None) -> jax.Array:
        """The products `y` of its matrix and `x`, and in a step with adapters those of each token's (`AdapterSlots.add`)."""
        adapters = _through(self, step)
        if adapters is None or step is None or step.adapters is None:
            return y
        return adapters.add(y, x, step.adapters, low=low)

    def activated(self, x: jax.Array, step: Step | None, activation: str) -> jax.Array:
        """An activation of what it gives, which a backend may make with the product."""
        if self.packed and activation in PACKED_ACTIVATIONS:
            return _packed_products(x, step, [self], activation)[0]
        return ACTIVATIONS[activation](self(x, step))

    @property
    def packed(self) -> bool:
        """Whether its matrix lies in panels."""
        return self.scheme is PACKED and is_packed(self.arrays()[WEIGHT])

    def finished(self, y: jax.Array) -> jax.Array:
        """What it gives, from the products of its matrix in float32, or without a bias in any type that becomes its own."""
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype)
        return y.astype(self.context.activation_dtype)

    def _sum_by_token(self, x: jax.Array, step: Step | None) -> jax.Array:
        """The products, of each token on the device that has its part of the residual stream."""
        context, weight = self.context, getattr(self, WEIGHT)[...]
        y = context.layout.sum_by_token(self._own_product, x, weight, self.axes[1], platform=context.platform)
        return self.finished(self.adapted(y, x, step))

    def _own_product(self, x: jax.Array, weight: jax.Array, *, dtype: DTypeLike | None = None) -> jax.Array:
        """A device's own, inside of `Layout.per_device`; of the activations' type if none is named."""
        y = matmul(x, weight, precision=self.context.precision, platform=self.context.platform)
        return y.astype(self.context.activation_dtype if dtype is None else dtype)


def project(x: jax.Array, step: Step | None, *linears: Linear, sole: bool = False) -> tuple[jax.Array, ...]:
    """`linear(x, step)` of each, to the last bit: matrices of one input, which a backend may multiply together.

    With them go the first matrices of their adapters. `sole`: nothing else reads `x`, so that devices which split it need not
    gather it but for these, while they multiply.
    """
    context = linears[0].context
    if all(linear.packed for linear in linears):
        return _packed_products(x, step, linears)
    scheme, matrices = linears[0].scheme, [linear.kept() for linear in linears]
    slots = [_through(linear, step) for linear in linears]
    beside = [None if own is None else own.beside for own in slots]
    dtype = matrices[0].arrays[WEIGHT].dtype
    taken = [matrix for matrix in beside if matrix is not None and matrix.dtype == dtype]
    taken = taken if len(taken) == len(linears) else []
    products = None
    if context.layout.mesh is None and all(linear.scheme == scheme for linear in linears):
        products = scheme.multiply_each(
            x,
            [*matrices, *(replace(matrices[0], arrays={WEIGHT: matrix}) for matrix in taken)],
            dtype=context.activation_dtype if all(linear.bias is None for linear in linears) else jnp.float32,
            used=_used(x, step),
        )
    if sole and (square := _square(x, step, linears)) is not None:
        return _project_gathered(x, linears, square)
    if products is None:
        return tuple(linear(x, step) for linear in linears)
    lows = products[len(linears) :] or (None,) * len(linears)
    return tuple(
        linear.finished(linear.adapted(product, x, step, low=low))
        for linear, product, low in zip(linears, products[: len(linears)], lows, strict=True)
    )


def project_gated(
    x: jax.Array, step: Step, gate: Linear, up: Linear, gated: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """`gated(gate(x, step), up(x, step))`, which a TPU may make with the products of both and of their adapters."""
    context, found = gate.context, [_through(linear, step) for linear in (gate, up)]
    slots = [own for own in found if own is not None and own.by_rank]
    plain = all(linear.scheme is DENSE and linear.bias is None for linear in (gate, up)) and x.ndim == 2
    if context.platform != "tpu" or context.layout.parallel or not plain or len(slots) < 2:
        return gated(*project(x, step, gate, up))
    assert step.adapters is not None  # what a step through adapters has
    of_gate, of_up = (
        AdaptedMatrix(getattr(linear, WEIGHT)[...], own.inward[...], own.outward[...])
        for linear, own in zip((gate, up), slots, strict=True)
    )
    return adapted_gate(
        x,
        of_gate,
        of_up,
        step.adapters,
        gated=gated,
        dtype=context.activation_dtype,
        precision=context.precision,
        platform=context.platform,
    )


def project_and_back(
    x: jax.Array,
    step: Step | None,
    outward: Sequence[Linear],
    activated: Callable[..., jax.Array],
    inward: Linear,
) -> jax.Array | None:
    """`inward(activated(*project(x, step, *outward)), step)` where products hide what devices send, else None."""
    layout, square = inward.context.layout, _square(x, step, outward)
    plain = all(linear.bias is None for linear in outward) and inward.scheme is DENSE and _through(inward, step) is None
    if square is None or not plain or inward.axes != ("embed", outward[0].axes[0]):
        return None

    def of_device(x: jax.Array, outward_weights: tuple[jax.Array, ...], weight: jax.Array) -> jax.Array:
        def inner(part: jax.Array) -> jax.Array:
            return activated(
                *(linear._own_product(part, one) for linear, one in zip(outward, outward_weights, strict=True))
            )

        return multiply_scattered(
            multiply_gathered(x, inner, square), lambda part: inward._own_product(part, weight), square
        )

    sums: jax.Array = layout.per_device(
        of_device, inputs=(("split_tokens", "embed"), outward[0].axes, inward.axes), outputs=("split_tokens", "embed")
    )(x, tuple(linear.arrays()[WEIGHT] for linear in outward), inward.arrays()[WEIGHT])
    return inward.finished(sums)


def _project_gathered(x: jax.Array, linears: Sequence[Linear], square: str) -> tuple[jax.Array, ...]:
    """What each gives, of tokens that devices gather while they multiply."""
    layout = linears[0].context.layout

    def of_device(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
        def products(part: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(
                linear._own_product(part, weight, dtype=None if linear.bias is None else jnp.float32)
                for linear, weight in zip(linears, weights, strict=True)
            )

        parts = multiply_gathered(x, products, square)
        return tuple(in_order(of_one, square) for of_one in zip(*parts, strict=True))

    found: tuple[jax.Array, ...] = layout.per_device(
        of_device,
        inputs=(("split_tokens", "embed"), *(linear.axes for linear in linears)),
        outputs=[("tokens", linear.axes[0]) for linear in linears],
    )(x, *(linear.arrays()[WEIGHT] for linear in linears))
    return tuple(linear.finished(product) for linear, product in zip(linears, found, strict=True))


def _square(x: jax.Array, step: Step | None, linears: Sequence[Linear]) -> str | None:
    """The mesh axis of devices that have a part of each matrix's outputs, and whose products hide what they send, or None."""
    context = linears[0].context
    layout = context.layout
    if x.ndim != 2 or any(linear.scheme is not DENSE or _through(linear, step) is not None for linear in linears):
        return None
    split = layout.across("split_tokens")
    if any(linear.axes[1] != "embed" or layout.across(linear.axes[0]) != split for linear in linears):
        return None
    return layout.square(len(x), platform=context.platform)


def _through(linear: Linear, step: Step | None) -> AdapterSlots | None:
    """The adapters that a step goes through there."""
    return None if step is None or step.adapters is None else linear.adapters


def _packed_products(
    x: jax.Array, step: Step | None, linears: Sequence[Linear], activation: str | None = None
) -> tuple[jax.Array, ...]:
    """What each gives, through an activation, of matrices in panels."""
    context = linears[0].context
    products = packed_matmul(
        x.reshape(-1, x.shape[-1]).astype(jnp.float32),
        [linear.arrays()[WEIGHT] for linear in linears],
        [None if linear.bias is None else linear.bias[...].astype(jnp.float32) for linear in linears],
        activation=activation,
        used=_used(x, step),
        platform=context.platform,
    )
    return tuple(product.reshape(*x.shape[:-1], -1).astype(context.activation_dtype) for product in products)


def _used(x: jax.Array, step: Step | None) -> jax.Array | None:
    """How many rows of `x` have to be multiplied, where they are the places of the step; None: all."""
    return None if step is None or x.ndim != 2 or len(x) != len(step.positions) else step.used
