"""float4_e2m1fn as bfloat16 on chips that do not have it: words of eight numbers are shifted to where bfloat16 has its bits.

Input `8 r + k` of 64 is in bits `4 k` of word `r`. One shift and one mask take numbers `k` and `k + 4` out of a word, as the two
halves that are rows `2 r` and `2 r + 1` of a tile of bfloat16: a tile has the inputs `k, k + 4, k + 8, ...`. Rows that are
multiplied have their inputs in that order instead of the matrix.

Bits of exponent and mantissa, at the end of bfloat16's exponent and in front of its mantissa, are `2^e (1 + m / 2)` when the
right number is added to them. Half of that is the value but for exponents of 0, where it is `m / 2`: twice the half less one is
that, and more than the half everywhere else.

Chips that turn float8 into float32 themselves take less: four numbers of a word at once are put where float8_e5m2 has its sign,
the end of its exponent and the front of its mantissa, which is the value times `2^-14`, numbers without exponent bits included. A
tile then has the even inputs of 64, or the odd ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.chip import SIMULATED, Chip

TILE = 64
"""Inputs of eight words."""
SUBLANES = 8
"""Words of a register."""
FLOAT8_CHIPS = ("v6e", "6e", SIMULATED)
"""Where float8_e5m2 becomes bfloat16 in hardware, in matrix units as well; elsewhere that is emulated."""
MAGNITUDES, TOPS = 0x0E0E0E0E, -0x7F7F7F80
"""In four bytes what float8_e5m2 has of such numbers beside the sign, and that."""
FLOAT8_LESS = 2.0**14
"""How often numbers are smaller as float8_e5m2."""
SHIFT, BITS = 6, 0x01C001C0
"""Where a number's lowest bit goes, and where its exponent and mantissa are then, in both halves of a word."""
SIGN, SIGNS = 12, -0x7FFF8000
"""The same of its sign."""
HALF = 0x3F003F00
"""Two of it in bfloat16."""


def refused(group: int, count: int, zeros: Any) -> str | None:
    """None, or why scales of `count` groups are not what a tile can have."""
    if zeros is not None:
        return "float4 with zeros, which no format has"
    if count > 1 and TILE % group and group % TILE:
        return f"groups of {group} inputs neither fill tiles of {TILE} nor share one"
    return None


def ordered(x: jax.Array, chip: Chip) -> jax.Array:
    """`x [N, I]` with its inputs in the order of `matrix`."""
    (count, inputs), step = x.shape, 2 if chip.name in FLOAT8_CHIPS else 4
    return x.reshape(count, inputs // TILE, TILE // step, step).swapaxes(2, 3).reshape(count, inputs)


def input_of_place(place: jax.Array) -> jax.Array:
    """Which input is at a place of `ordered` on `FLOAT8_CHIPS`."""
    half = TILE // 2
    return place // TILE * TILE + place % half * 2 + place % TILE // half


def matrix(kept: jax.Array, scales: Callable[[int], jax.Array] | None, group: int, chip: Chip) -> list[jax.Array]:
    """`kept` uint8 `[I / 2, B]` as tiles of bfloat16 that are `[I, B]` together, `less` times smaller.

    `scales` gives the `words` of a group, `[8, B]` of equal rows; None: they are factors of something else.
    """
    apart = _float8_numbers if chip.name in FLOAT8_CHIPS else _four_numbers
    of_words = pltpu.bitcast(kept, jnp.int32)
    tiles: list[jax.Array] = []
    for first in range(0, 2 * len(kept), TILE):
        found = apart(of_words[first // 8 : first // 8 + 8])
        if scales is not None:
            factors = _factors(scales, first, group, found[0].shape)
            found = tuple(numbers * factors for numbers in found)
        tiles += found
    return tiles


def float8(kept: jax.Array) -> jax.Array:
    """`kept` uint8 `[I / 2, B]` as float8_e5m2 `[I, B]`, `FLOAT8_LESS` times smaller, on `FLOAT8_CHIPS`."""
    of_words = pltpu.bitcast(kept, jnp.int32)
    pieces = (of_words[first : first + SUBLANES] for first in range(0, len(of_words), SUBLANES))
    return jnp.concatenate([half for piece in pieces for half in _float8(piece)], axis=0)


def less(chip: Chip) -> float:
    """How many times smaller numbers are that `matrix` gives."""
    return FLOAT8_LESS if chip.name in FLOAT8_CHIPS else 1.0


def words(factors: jax.Array) -> jax.Array:
    """Of float32, two of the same bfloat16 each: a word that is read into all sublanes is a tile of it."""
    upper = pltpu.bitcast(factors.astype(jnp.bfloat16).astype(jnp.float32), jnp.int32)
    return upper | lax.shift_right_logical(upper, 16)


def spread(row: jax.Array, rows: int) -> jax.Array:
    """A row of `words [1, B]` as bfloat16 `[rows, B]`."""
    return pltpu.bitcast(jnp.broadcast_to(row, (rows // 2, row.shape[1])), jnp.bfloat16)


def _float8_numbers(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The even and the odd inputs of words `[8, B]`, bfloat16 `[32, B]` each, too small by `FLOAT8_LESS`."""
    even, odd = (float8.astype(jnp.bfloat16) for float8 in _float8(words))
    return even, odd


def _float8(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same as they are."""
    even = (lax.shift_left(words, 1) & MAGNITUDES) | (lax.shift_left(words, 4) & TOPS)
    odd = (lax.shift_right_logical(words, 3) & MAGNITUDES) | (words & TOPS)
    return pltpu.bitcast(even, jnp.float8_e5m2), pltpu.bitcast(odd, jnp.float8_e5m2)


def _four_numbers(words: jax.Array) -> tuple[jax.Array, ...]:
    """Four tiles of words `[8, B]`, bfloat16 `[16, B]` each."""
    return tuple(_numbers(words, 4 * number) for number in range(4))


def _numbers(words: jax.Array, at: int) -> jax.Array:
    """Those in bits `at` and `at + 16` of words `[8, B]`, as bfloat16 `[16, B]`."""
    half = pltpu.bitcast((_shifted(words, SHIFT - at) & BITS) + HALF, jnp.bfloat16)
    magnitude = jnp.minimum(half, half + half - 1)
    return pltpu.bitcast(pltpu.bitcast(magnitude, jnp.int32) | (_shifted(words, SIGN - at) & SIGNS), jnp.bfloat16)


def _factors(scales: Callable[[int], jax.Array], first: int, group: int, shape: tuple[int, ...]) -> jax.Array:
    """bfloat16 of this shape for a tile of `TILE` inputs from `first` on, of which each row is of as many."""
    rows, columns = shape[0] // 2, shape[1]
    numbers, own = range(first // group, (first + TILE - 1) // group + 1), rows * min(group, TILE) // TILE
    if own % SUBLANES == 0:
        pieces = [scales(number) for number in numbers for _ in range(own // SUBLANES)]
        return pltpu.bitcast(jnp.concatenate(pieces, axis=0), jnp.bfloat16)
    row = lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    of_groups = (jnp.concatenate([scales(number)] * (rows // SUBLANES), axis=0) for number in numbers)
    found = next(of_groups)
    for number, of_group in enumerate(of_groups, start=1):
        found = jnp.where(row >= number * own, of_group, found)
    return pltpu.bitcast(found, jnp.bfloat16)


def _shifted(words: jax.Array, by: int) -> jax.Array:
    if by == 0:
        return words
    return lax.shift_left(words, by) if by > 0 else lax.shift_right_logical(words, -by)
