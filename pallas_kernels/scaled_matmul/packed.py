"""Matrices of 4 bits packed as the vectors of a CPU read them in `native`, which multiplies with them as they are.

Of `[O / 2, I]`, lines of two outputs each, four inputs of eight lines lie together: `[O / 16, I / 4, 8, 4]`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

LINES, INPUTS = 8, 4


def packed_shape(shape: tuple[int, ...], group: int) -> tuple[int, ...] | None:
    """How a matrix `[lines, inputs]` lies whose scales are of `group` inputs; None: it cannot."""
    lines, inputs = shape
    if lines % LINES or inputs % INPUTS or (group < inputs and group % INPUTS):
        return None
    return lines // LINES, inputs // INPUTS, LINES, INPUTS


def is_packed(weight: Any) -> bool:
    """Whether an array is a packed matrix."""
    return len(weight.shape) == 4


def plain_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[O / 2, I]` of a packed matrix; any other shape is what it is."""
    return (shape[0] * LINES, shape[1] * INPUTS) if len(shape) == 4 else shape


def packed(weight: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`[O / 2, I]` as it lies packed: a copy."""
    words = np.ascontiguousarray(weight).view(np.uint32)  # of four inputs, a tenth of the time of single bytes
    turned = words.reshape(-1, LINES, words.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(turned).view(np.uint8).reshape(*turned.shape, INPUTS)


def unpacked(weight: jax.Array) -> jax.Array:
    """`[O / 2, I]` of a packed matrix."""
    return weight.swapaxes(1, 2).reshape(plain_shape(weight.shape))
