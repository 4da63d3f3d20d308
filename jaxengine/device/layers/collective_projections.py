"""Projections of tokens that devices split, whose products hide what the devices send each other (`collective_matmul.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxengine.device.layers.collective_matmul import in_order, multiply_gathered, multiply_scattered
from jaxengine.device.layers.schemes import WEIGHT
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.step import Step

if TYPE_CHECKING:
    from jaxengine.device.layers.linear import Linear


def project_gathered(x: jax.Array, step: Step | None, linears: Sequence[Linear]) -> tuple[jax.Array, ...] | None:
    """What each gives, of tokens that devices gather while they multiply; None where they do not."""
    axis = _square(x, step, linears)
    if axis is None:
        return None
    layout = linears[0].context.layout

    def of_device(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
        def products(part: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(
                linear.own_product(part, weight, dtype=None if linear.bias is None else jnp.float32)
                for linear, weight in zip(linears, weights, strict=True)
            )

        parts = multiply_gathered(x, products, axis)
        return tuple(in_order(of_one, axis) for of_one in zip(*parts, strict=True))

    found: tuple[jax.Array, ...] = layout.per_device(
        of_device,
        inputs=(("split_tokens", "embed"), *(linear.axes for linear in linears)),
        outputs=[("tokens", linear.axes[0]) for linear in linears],
    )(x, *(linear.arrays()[WEIGHT] for linear in linears))
    return tuple(linear.finished(product) for linear, product in zip(linears, found, strict=True))


def project_and_back(
    x: jax.Array,
    step: Step | None,
    outward: Sequence[Linear],
    activated: Callable[..., jax.Array],
    inward: Linear,
) -> jax.Array | None:
    """`inward(activated(*project(x, step, *outward)), step)`, gathered and scattered meanwhile; None where tokens are not."""
    axis = _square(x, step, outward)
    plain = all(linear.bias is None for linear in outward) and inward.scheme is DENSE and not inward.adapts(step)
    if axis is None or not plain or inward.axes != ("embed", outward[0].axes[0]):
        return None

    def of_device(x: jax.Array, outward_weights: tuple[jax.Array, ...], weight: jax.Array) -> jax.Array:
        def inner(part: jax.Array) -> jax.Array:
            return activated(
                *(linear.own_product(part, one) for linear, one in zip(outward, outward_weights, strict=True))
            )

        parts = multiply_gathered(x, inner, axis)
        return multiply_scattered(parts, lambda part: inward.own_product(part, weight), axis)

    sums: jax.Array = inward.context.layout.per_device(
        of_device, inputs=(("split_tokens", "embed"), outward[0].axes, inward.axes), outputs=("split_tokens", "embed")
    )(x, tuple(linear.arrays()[WEIGHT] for linear in outward), inward.arrays()[WEIGHT])
    return inward.finished(sums)


def _square(x: jax.Array, step: Step | None, linears: Sequence[Linear]) -> str | None:
    """The mesh axis of devices that have a part of each matrix's outputs, and whose products hide what they send, or None."""
    context = linears[0].context
    layout = context.layout
    if x.ndim != 2 or any(linear.scheme is not DENSE or linear.adapts(step) for linear in linears):
        return None
    split = layout.across("split_tokens")
    if any(linear.axes[1] != "embed" or layout.across(linear.axes[0]) != split for linear in linears):
        return None
    return layout.square(len(x), platform=context.platform)
