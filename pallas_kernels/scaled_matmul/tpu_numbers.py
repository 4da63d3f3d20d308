"""Numbers of 4 and 8 bits inside of a TPU's kernels, as bfloat16, which holds them all exactly.

v6e has float8_e4m3b11fnuz in hardware and takes seven vector instructions for float8_e4m3fn beside it. The bits of both are the
same numbers, sixteen times smaller, but for two: what is -0 is no number there, and what is none is 30. Zeros lose their sign
here, four numbers at once; NaN, which no matrix has, is 480.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.chip import SIMULATED, Chip

FLOAT4_CHIPS = ("tpu7x", "7x")
"""Those that turn such numbers into bfloat16 themselves."""


FLOAT8_CHIPS, FLOAT8_LESS = ("v6e", "6e", SIMULATED), 16
"""Those with float8_e4m3b11fnuz, and how much smaller its numbers are."""
FLOAT8_ROWS = 32
"""Of a tile."""
MAGNITUDES = 0x7F7F7F7F
"""Four of them beside their signs."""


def less(kept: Any, chip: Chip) -> int:
    """How many times smaller `numbers` gives those of `kept [A, B]`."""
    return FLOAT8_LESS if _as_smaller_float8(kept, chip) else 1


def numbers(kept: jax.Array, *, pairs: str, chip: Chip) -> jax.Array:
    """Those of `kept [A, B]` over `less`, bfloat16: of two to a byte `[2 A, B]`, that of row `2 j` being in the low bits."""
    if _as_smaller_float8(kept, chip):
        words = pltpu.bitcast(kept, jnp.int32)
        unsigned_zeros = words & (((words & MAGNITUDES) + MAGNITUDES) | MAGNITUDES)
        return pltpu.bitcast(unsigned_zeros, jnp.float8_e4m3b11fnuz).astype(jnp.bfloat16)
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


def _as_smaller_float8(kept: Any, chip: Chip) -> bool:
    return kept.dtype == jnp.float8_e4m3fn and chip.name in FLOAT8_CHIPS and kept.shape[0] % FLOAT8_ROWS == 0
