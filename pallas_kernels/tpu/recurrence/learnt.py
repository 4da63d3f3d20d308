"""What tokens of a chunk learn on a TPU: products in float32 or nearly so, and the solution of a triangle of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.storage import LANES

BLOCK = 16
"""Tokens of a chunk that learn one after the other; those behind them learn of all of them at once, by a product."""
Terms = tuple[jax.Array, ...]
"""What a matrix is the sum of: itself in float32, or two matrices of bfloat16, which leave out 2^-17 of a number at most."""


def product(a: jax.Array, b: jax.Array, *, exact: bool, turned: bool = False) -> jax.Array:
    """`a` times `b`, or the transpose of `b` where that is `turned`: exact in float32, or of numbers in bfloat16."""
    contracting = (((1,), (1 if turned else 0,)), ((), ()))
    if not exact:
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    precision = lax.Precision.HIGHEST if exact else None
    found: jax.Array = lax.dot_general(a, b, contracting, precision=precision, preferred_element_type=jnp.float32)
    return found


def terms(x: jax.Array, *, exact: bool) -> Terms:
    """`x` as `multiply` takes it."""
    if exact:
        return (x,)
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)


def multiply(a: Terms, b: Terms, *, turned: bool = False) -> jax.Array:
    """The `product` in float32, less that of the smaller terms of both."""
    if len(a) == 1:
        return product(a[0], b[0], exact=True, turned=turned)
    (a_high, a_low), (b_high, b_low) = a, b
    of = functools.partial(product, exact=False, turned=turned)
    return of(a_high, b_high) + (of(a_high, b_low) + of(a_low, b_high))


def solve(matrices: list[jax.Array], given: list[jax.Array], split: Callable[[jax.Array], Terms]) -> list[jax.Array]:
    """Every `x` with `x + tril(matrix, -1) x = given`, `[C, C]` and `[C, 128]`, all of them step by step together."""
    some = 8  # rows of a vector
    place = lax.broadcasted_iota(jnp.int32, (some, LANES), 0)
    found: list[list[jax.Array]] = [[] for _ in given]
    rest = list(given)
    for start in range(0, len(matrices[0]), BLOCK):
        blocks = [[x[at : at + some] for at in range(0, BLOCK, some)] for x in rest]
        for token in range(BLOCK):
            number, member = divmod(token, some)
            for later in range(number, BLOCK // some):
                row, column = start + later * some, start + token
                for matrix, parts in zip(matrices, blocks, strict=True):
                    by = jnp.broadcast_to(matrix[row : row + some, column : column + 1], (some, LANES))
                    if later == number:
                        by = jnp.where(place > member, by, 0.0)
                    parts[later] = parts[later] - by * parts[number][member : member + 1]
        end = start + BLOCK
        for index, (matrix, parts) in enumerate(zip(matrices, blocks, strict=True)):
            found[index] += parts
            if end < len(matrix):
                of_block = multiply(split(matrix[end:, start:end]), split(jnp.concatenate(parts)))
                rest[index] = rest[index][BLOCK:] - of_block
    return [jnp.concatenate(parts) for parts in found]
