"""What `scaled_matmul` and `grouped_scaled_matmul` share on GPUs: sums of products, each scaled by its group's.

Scales are read a step ahead: Triton reads only operands of products ahead by itself.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.gpu.device import interpreted
from pallas_kernels.scaled_matmul.dense import floats

LEAST_INPUTS = 16
"""That tensor cores multiply at once."""
MOST_VALUES = 2**31
"""Offsets into matrices are 32 signed bits."""


class Product(NamedTuple):
    """Of a piece of the inputs: float32 `[rows, outputs]`, and the sums of its inputs `[rows]` where there are zeros."""

    sums: jax.Array
    inputs: jax.Array | None


class Factors(NamedTuple):
    """Of some outputs, of a piece's group: scales, and zeros if there are any, float32 `[outputs]`."""

    scales: jax.Array
    zeros: jax.Array | None


def piece_inputs(most: int, group: int | None) -> int:
    """Inputs of one product, a power of two; if a group is given, no more than divide it."""
    return most if group is None else min(most, group & -group)


def scaled_sums(
    steps: tuple[jax.Array, jax.Array],
    pieces: int,
    products: Callable[[jax.Array], list[Product]],
    factors: Callable[[jax.Array], list[Factors]] | None,
    nothing: list[jax.Array],
) -> list[jax.Array]:
    """Sums over the steps from the first up to the other, of `pieces` each: of products times scales less zeros.

    `products` and `factors` are given a piece's number, over all steps; without `factors` products are added as they are.
    """
    begin, end = steps

    def of_step(step: jax.Array) -> list[list[Factors]]:
        return [] if factors is None else [factors(step * pieces + piece) for piece in range(pieces)]

    def add(step: jax.Array, carry: tuple[list[jax.Array], list[list[Factors]]]) -> Any:
        sums, own = carry
        following = of_step(step + 1)  # on their way while this step is computed
        for piece in range(pieces):
            found = products(step * pieces + piece)
            if factors is None:
                sums = [before + product.sums for before, product in zip(sums, found, strict=True)]
            else:
                sums = [_scaled(*of) for of in zip(sums, found, own[piece], strict=True)]
        return sums, following

    sums, _ = lax.fori_loop(begin, end, add, (nothing, of_step(begin)))
    return sums


def _scaled(before: jax.Array, product: Product, factors: Factors) -> jax.Array:
    sums = product.sums
    if product.inputs is not None and factors.zeros is not None:
        sums = sums - product.inputs[:, None] * factors.zeros[None, :]
    return multiply_add(sums, jnp.broadcast_to(factors.scales[None, :], sums.shape), before)


def multiply_add(one: jax.Array, other: jax.Array, added: jax.Array) -> jax.Array:
    """One instruction, which XLA makes two of."""
    if interpreted():
        return one * other + added
    [result] = plgpu.elementwise_inline_asm(
        "fma.rn.f32 $0, $1, $2, $3;",
        args=[one, other, added],
        constraints="=f,f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(one.shape, jnp.float32)],
    )
    return result


def load(ref: Any, *masks: jax.Array | None) -> jax.Array:
    """Zeros where there is nothing; masks that are None are of what is always there."""
    given = [mask for mask in masks if mask is not None]
    mask = functools.reduce(operator.and_, given) if given else None
    found: jax.Array = plgpu.load(ref, mask=mask, other=0 if given else None)
    return found


def load_factors(scales: Any, zeros: Any | None, at: tuple[jax.Array, ...], exists: jax.Array | None) -> Factors:
    """Of refs of scales, and zeros if there are any."""
    own, *rest = (floats(load(ref.at[at], exists)) for ref in (scales, zeros) if ref is not None)
    return Factors(own, rest[0] if rest else None)
