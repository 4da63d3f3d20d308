"""The definition of products with packed matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def packed_matmul(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    *,
    activation: str | None,
    used: jax.Array | None,
) -> tuple[jax.Array, ...]:
    """See the op's contract."""

    def product(matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
        plain = unpacked(matrix)
        y = jnp.einsum(
            "ni,oi->no", x.astype(plain.dtype), plain, precision="highest", preferred_element_type=jnp.float32
        )
        y = y if bias is None else y + bias
        return y if activation is None else jax.nn.gelu(y, approximate=False)

    return tuple(product(matrix, bias) for matrix, bias in zip(matrices, biases, strict=True))


def unpacked(matrix: jax.Array) -> jax.Array:
    """`[O, I]` of a matrix in panels."""
    panels, steps, columns, *together = matrix.shape
    pairs = matrix.reshape(panels, steps, columns, *(together or (1,)))
    return pairs.transpose(0, 2, 1, 3).reshape(panels * columns, -1)
