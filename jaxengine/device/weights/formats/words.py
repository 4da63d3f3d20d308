"""Numbers of 4 or 8 bits packed into words of 32."""

from __future__ import annotations

import numpy as np

from jaxengine.device.weights.rules import Array

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FLOAT4 = np.array([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)], np.float32)
"""What 4 bits stand for: a sign, two bits of exponent and one of mantissa."""


def unpacked(words: Array, bits: int) -> Array:
    """int32 `[..., n]` -> uint8 `[..., n * 32 / bits]`, the lowest bits of a word first."""
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    return halves(octets)


def halves(octets: Array) -> Array:
    """uint8 `[..., n]` -> uint8 `[..., 2 * n]`, the low 4 bits of each first."""
    numbers = np.empty((*octets.shape[:-1], 2 * octets.shape[-1]), np.uint8)
    np.bitwise_and(octets, 15, out=numbers[..., ::2])
    np.right_shift(octets, 4, out=numbers[..., 1::2])
    return numbers


def as_kept(numbers: Array, bits: int) -> Array:
    """Numbers from 0: of 4 bits as they are, of 8 as int8 from -128."""
    return numbers if bits == 4 else (numbers ^ np.uint8(128)).view(np.int8)


def counted_from_the_middle(zeros: Array, bits: int) -> Array:
    """Zeros of numbers from 0 as zeros of signed ones, in float32: one more than int8 holds may be among them."""
    return zeros.astype(np.float32) - (1 << (bits - 1))
