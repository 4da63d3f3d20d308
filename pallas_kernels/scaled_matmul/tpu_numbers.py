"""Numbers of 4 and 8 bits inside of a TPU's kernels, as bfloat16, which holds them all exactly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.chip import Chip

FLOAT4_CHIPS = ("tpu7x", "7x")
"""Those that turn such numbers into bfloat16 themselves."""


def numbers(kept: jax.Array, *, pairs: str, chip: Chip) -> jax.Array:
    """Those of `kept [A, B]`, bfloat16: of two to a byte `[2 A, B]`, that of row `2 j` being in the low bits."""
    if kept.dtype != jnp.uint8:
        return kept.astype(jnp.bfloat16)
    if pairs == "int4":
        return _bits(kept ^ jnp.uint8(0x88), jnp.int4)
    if chip.name in FLOAT4_CHIPS:
        return _bits(kept, jnp.float4_e2m1fn)
    # The larger half of these integers are negative numbers; twice a magnitude is the upper one of three lines through it.
    integers = _bits(kept, jnp.int4)
    negative = integers < 0
    magnitude = jnp.where(negative, integers + 8, integers)
    half = magnitude * 0.5
    value = jnp.maximum(jnp.maximum(half, magnitude - 2), magnitude * 2 - 8)
    return jnp.where(negative, -value, value)


def _bits(kept: jax.Array, dtype: Any) -> jax.Array:
    return pltpu.bitcast(kept, dtype).astype(jnp.bfloat16)
