"""Products of tokens that four devices split, computed while parts of them pass between devices, inside of `Layout.per_device`.

Four chips stand two by two: each has a neighbour along both axes and one device across, whose tokens come by both neighbours.
Sums go the way back, half of their channels along one axis first and half along the other. The links carry what an optimal gather
or scattered sum has to send; but XLA:TPU starts permutations ahead, and neither of those (libtpu 0.0.42.1,
`benchmarks/tpu_steps.py`). Barriers say beside which products a part passes: XLA's scheduler takes links for faster than they
are.

Every token's sum is of the same two pairs of devices, each pair rounded, wherever the token is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

SQUARE = 4
"""Devices: each is named by two bits, its place along both axes."""
MANY_ROWS = 512
"""Of each device from which on a product takes longer than reading its matrix, which every part does anew."""

T = TypeVar("T")
ALONG, BESIDE = 1, 2
"""What a neighbour's number differs in."""


def multiply_gathered(x: jax.Array, product: Callable[[jax.Array], T], axis: str) -> tuple[T, T, T, T]:
    """`product` of each device's `x [n, ...]`: the own one, the neighbours' along both axes, and that of the device across."""
    along, beside, own = lax.optimization_barrier((_swap(x, ALONG, axis), _swap(x, BESIDE, axis), product(x)))
    half = len(x) // 2
    first, second, of_along, of_beside = lax.optimization_barrier(
        (_swap(along[:half], BESIDE, axis), _swap(beside[half:], ALONG, axis), product(along), product(beside))
    )
    return own, of_along, of_beside, product(jnp.concatenate([first, second]))


def multiply_scattered(parts: Sequence[T], product: Callable[[T], jax.Array], axis: str) -> jax.Array:
    """The sum of all devices' products `[n, E]` for a device's own tokens; `parts` are in the order of `multiply_gathered`."""
    own, along, beside, across = parts
    of_across = product(across)
    half = of_across.shape[1] // 2
    first, second, of_along, of_beside = lax.optimization_barrier(
        (
            _swap(of_across[:, :half], ALONG, axis),
            _swap(of_across[:, half:], BESIDE, axis),
            product(along),
            product(beside),
        )
    )
    near_first, near_second, far_first, far_second, of_own = lax.optimization_barrier(
        (
            _swap(of_along[:, :half], ALONG, axis),
            _swap(of_beside[:, half:], BESIDE, axis),
            _swap(_pair(of_beside[:, :half], first), BESIDE, axis),
            _swap(_pair(of_along[:, half:], second), ALONG, axis),
            product(own),
        )
    )
    sums = _pair(of_own[:, :half], near_first) + far_first, _pair(of_own[:, half:], near_second) + far_second
    return jnp.concatenate(sums, axis=1)


def by_distance(x: jax.Array, axis: str) -> list[jax.Array]:
    """All tokens `x [N, ...]` as four devices' parts `[N / 4, ...]`, in the order of `multiply_gathered`."""
    parts = x.reshape(SQUARE, -1, *x.shape[1:])
    own = lax.axis_index(axis)
    return [lax.dynamic_index_in_dim(parts, own ^ apart, keepdims=False) for apart in range(SQUARE)]


def in_order(parts: Sequence[jax.Array], axis: str) -> jax.Array:
    """The way back."""
    places = jnp.arange(SQUARE) ^ lax.axis_index(axis)
    found = jnp.take(jnp.stack(parts), places, axis=0, mode="clip")
    return found.reshape(-1, *found.shape[2:])


def _swap(x: jax.Array, apart: int, axis: str) -> jax.Array:
    """What the neighbour has, for what this device has."""
    return lax.ppermute(x, axis, [(device, device ^ apart) for device in range(SQUARE)])


def _pair(one: jax.Array, other: jax.Array) -> jax.Array:
    """The sum of two, rounded to their type also where XLA could do without."""
    kept = jnp.finfo(one.dtype)
    return lax.reduce_precision(one + other, exponent_bits=kept.nexp, mantissa_bits=kept.nmant)
