"""Values of 8 and 16 bits out of a TPU's 32-bit words, as bfloat16, which holds them all exactly."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.storage import LANES

SIGN = 0x80000000
FLOAT8 = {jnp.dtype(jnp.float8_e4m3fn): (4, 3), jnp.dtype(jnp.float8_e5m2): (5, 2)}
"""Bits of the exponent and of the mantissa."""


def unpacked(words: jax.Array, at: int, dtype: Any) -> jax.Array:
    """Value `at` (0 the lowest) of each of `words`, uint32, that hold as many of `dtype` as fit, as bfloat16.

    Whatever float8 it is, NaN and infinity become large numbers: `write_kv` saturates, and stores a NaN for a NaN alone.
    """
    return _exact(words, at, dtype).astype(jnp.bfloat16)


def unpack_rows(packed: Any, pairs: Any) -> None:
    """Rows of 8-bit values, `[pages, T, W]`, as bfloat16 in their order: into `pairs`, uint32 `[W / 128, rows / 2, 128]`.

    Four neighbouring rows share a word where they come from, and two where they go. What means nothing becomes numbers, too.
    """
    rows = packed.shape[1]

    def unpack(page: jax.Array, _: None) -> None:
        words = pltpu.bitcast(packed[page], jnp.uint32)
        for pair in (0, 1):
            low, high = (
                pltpu.bitcast(_exact(words, 2 * pair + at, packed.dtype), jnp.uint32) for at in (0, 1)
            )  # of which a bfloat16 is the upper half
            both = low >> 16 | high
            for vector in range(pairs.shape[0]):
                part = both[:, vector * LANES : (vector + 1) * LANES]
                pairs[vector, pl.ds(page * (rows // 2) + pair, rows // 4, stride=2)] = part

    # By the compiler's schedule for v6e 64 rows of 640 take 42 bundles of int8 and 122 of float8; page by page 53 and 134.
    lax.fori_loop(0, packed.shape[0], unpack, None, unroll=math.gcd(packed.shape[0], 4))


def unpacked_rows(pairs: Any, rows: int) -> jax.Array:
    """The first of the rows that `unpack_rows` has left, bfloat16 `[rows, W]`."""
    parts = [pltpu.bitcast(pairs[vector, pl.ds(0, rows // 2)], jnp.bfloat16) for vector in range(pairs.shape[0])]
    return jnp.concatenate(parts, axis=1)


def _exact(words: jax.Array, at: int, dtype: Any) -> jax.Array:
    """As `unpacked`, in float32."""
    bits = 8 * jnp.dtype(dtype).itemsize
    above = 32 - bits * (at + 1)
    top = words << jnp.uint32(above) if above else words  # what lies below the upper `bits` are other values
    if dtype == jnp.bfloat16:  # the upper half of a float32
        top = top & jnp.uint32(0xFFFF0000) if at else top
        return pltpu.bitcast(top, jnp.float32)
    if dtype == jnp.int8:
        return lax.shift_right_arithmetic(pltpu.bitcast(top, jnp.int32), jnp.int32(24)).astype(jnp.float32)
    return _float8(top, *FLOAT8[jnp.dtype(dtype)])


def _float8(top: jax.Array, exponent_bits: int, mantissa_bits: int) -> jax.Array:
    """The float in the upper 8 bits of each word. TPUs take subnormal float32 for 0, so those of float8 are made by hand."""
    shift = 8 - exponent_bits  # from its place to that of a float32's exponent and mantissa
    fraction = 23 - mantissa_bits
    kept = SIGN | ((1 << 31 - shift) - (1 << fraction))
    placed = lax.shift_right_arithmetic(pltpu.bitcast(top, jnp.int32), jnp.int32(shift))
    placed = pltpu.bitcast(placed, jnp.uint32) & jnp.uint32(kept)
    rebias = (128 - (1 << exponent_bits - 1)) << 23
    normal = pltpu.bitcast(placed + jnp.uint32(rebias), jnp.float32)
    # Without exponent bits this is smallest / 2 * (1 + m), m the mantissa as a fraction, and the value is smallest * m.
    smallest = pltpu.bitcast((placed & jnp.uint32(SIGN)) | jnp.uint32(rebias + (1 << 23)), jnp.float32)
    is_normal = (placed & jnp.uint32(kept & ~SIGN)) >= jnp.uint32(1 << 23)
    return jnp.where(is_normal, normal, normal + normal - smallest)
