"""The definition of coded matrices, and of products with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.coded_matmul import HEAD, PIECE

HALF, EIGHT, CODES, MOST_OTHERS, PLAIN = PIECE // 2, 8, 16, 11, 255
HEAD_BYTES, PIECE_BYTES = 2 * HEAD, PIECE // 2 * 3


def supports(*args: Any, **options: Any) -> str | None:
    """None: the definition has no limits."""
    return None


def coded_matmul(x: jax.Array, matrices: Sequence[jax.Array], *, used: jax.Array | None) -> tuple[jax.Array, ...]:
    """See the op's contract."""
    return tuple(
        jnp.einsum("ni,oi->no", x, decoded(matrix), precision="highest", preferred_element_type=jnp.float32)
        for matrix in matrices
    )


def coded_rows(numbers: jax.Array, matrix: jax.Array) -> jax.Array:
    """See the op's contract."""
    return jnp.take(decoded(matrix), numbers, axis=0, mode="clip")


def decoded(matrix: jax.Array) -> jax.Array:
    """The plain matrix, bfloat16 `[O, I]`."""
    outputs, inputs = matrix.shape[0], matrix.shape[1] - HEAD
    everything = jax.lax.bitcast_convert_type(matrix, jnp.uint8).reshape(-1)
    of_rows = outputs * (HEAD_BYTES + inputs // PIECE * PIECE_BYTES)
    rows, rest = everything[:of_rows].reshape(outputs, -1), everything[of_rows:].reshape(outputs, inputs // 2)
    head, numbers = rows[:, :HEAD_BYTES], rows[:, HEAD_BYTES:]
    upper, others = head[:, :CODES], head[:, CODES].astype(jnp.int32)
    pieces = numbers.reshape(outputs, -1, 3, 4, 2, EIGHT)  # of a piece codes and lower bytes of each half, as they lie
    codes = jnp.stack([pieces[:, :, 0] & 15, pieces[:, :, 0] >> 4], axis=2)
    both = [_in_order(codes, outputs), _in_order(pieces[:, :, 1:], outputs)]
    found = jnp.take_along_axis(upper, both[0].astype(jnp.int32), axis=1).astype(jnp.uint16)
    places = jnp.arange(inputs)
    for number in range(MOST_OTHERS):
        words = head[:, CODES + 4 + 4 * number :][:, :4].astype(jnp.int32)
        place = words[:, 1] | words[:, 2] << 8 | words[:, 3] << 16
        here = (others[:, None] > number) & (places == place[:, None])
        found = jnp.where(here, words[:, :1].astype(jnp.uint16), found)
    plain = jax.lax.bitcast_convert_type(
        jnp.concatenate([numbers, rest], axis=1).reshape(outputs, inputs, 2), jnp.uint16
    )
    bits = jnp.where(others[:, None] == PLAIN, plain, found << 8 | both[1].astype(jnp.uint16))
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16)


def _in_order(halves: jax.Array, outputs: int) -> jax.Array:
    """`[O, pieces, 2 halves, 4, 2, 8]`, of which the 2 are of 32 inputs each, as `[O, I]`."""
    return halves.swapaxes(3, 4).reshape(outputs, -1)
