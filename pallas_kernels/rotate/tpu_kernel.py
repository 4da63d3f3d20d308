"""Heads turned on their way from a projection, whose tiles have tokens below each other, to attention, whose tiles have heads.

Two heads of a token share words of 32 bits, and one store moves a word of each of 8 tokens. XLA would take the rows of a tile
one by one, which takes several times what reading and writing them in HBM does (`benchmarks/tpu_steps.py`). Heads of 64, two of
which a projection has in a row of a register, turn together, and go to attention with the rest of their row empty.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.storage import LANES, SUBLANES, few_channels
from pallas_kernels.tpu.attention.blocks import power_of_two
from pallas_kernels.tpu.channels import SOME_PLACES, put_channels
from pallas_kernels.tpu.chip import SIMULATED, target_chip

BLOCK, BLOCK_HEADS = 128, 8192
"""Tokens whose heads are on their way at once, and heads of all of them: 2 MiB that arrive and 2 that leave, twice."""


def takes(x: Any) -> bool:
    """Whether the kernel is for `x [N, heads, H]`: many tokens of bfloat16, whose heads fill tiles, or half of their rows."""
    tokens, heads, size = x.shape
    whole = heads in few_channels(x.dtype) or heads % SUBLANES == 0
    if tokens % BLOCK or not whole or x.dtype != jnp.bfloat16 or target_chip() is None:
        return False
    return size == LANES or (2 * size == LANES and heads % SUBLANES == 0)


def turn(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """`x [N, heads, 128]` or `[N, heads, 64]` by angles, cosines and sines float32 of half as many channels."""
    tokens, heads, size = x.shape
    chip = target_chip()
    assert chip is not None  # `takes` has seen to it
    block = min(BLOCK, max(SOME_PLACES, power_of_two(BLOCK_HEADS // heads)))
    blocks = [pl.BlockSpec((block, width), lambda at: (at, 0)) for width in (heads * size, LANES, LANES)]
    together = LANES // size
    call = pl.pallas_call(
        functools.partial(_kernel, simulated=chip.name == SIMULATED),
        grid=(tokens // block,),
        in_specs=blocks,
        out_specs=pl.BlockSpec((block, heads, size), lambda at: (at, 0, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((SOME_PLACES, heads, LANES), x.dtype)] if together > 1 else [],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name="rotate",
    )
    turned: jax.Array = call(
        x.reshape(tokens, heads * size),
        jnp.concatenate([cos, cos] * together, axis=1),
        jnp.concatenate([-sin, sin] * together, axis=1),
    )
    return turned


def _kernel(x: Any, cos: Any, sin: Any, turned: Any, *whole_rows: Any, simulated: bool) -> None:
    """`whole_rows` has room for some tokens' heads where each fills half of a row."""
    heads, size = turned.shape[1:]

    def turn_some(at: jax.Array, _: None) -> None:
        places = pl.ds(pl.multiple_of(at * SOME_PLACES, SOME_PLACES), SOME_PLACES)
        own_cos, own_sin = cos[places], sin[places]

        def by_row(row: int) -> jax.Array:
            channels = x[places, pl.ds(row * LANES, LANES)].astype(jnp.float32)
            return channels * own_cos + _partners(channels, size) * own_sin

        if not whole_rows:
            put_channels(turned.at[places], map(by_row, range(heads)), simulated=simulated)
            return
        [held] = whole_rows
        pairs = map(by_row, range(heads // 2))
        put_channels(held, (head for pair in pairs for head in (pair, pltpu.roll(pair, size, 1))), simulated=simulated)
        turned[places] = held[:, :, :size]

    lax.fori_loop(0, x.shape[0] // SOME_PLACES, turn_some, None)


def _partners(channels: jax.Array, size: int) -> jax.Array:
    """Of heads in a row of 128 channels, each channel's partner in its head."""
    half = size // 2
    after = pltpu.roll(channels, half, 1)
    if size == LANES:
        return after
    lane = lax.broadcasted_iota(jnp.int32, channels.shape, 1)
    return jnp.where(lane % size < half, pltpu.roll(channels, LANES - half, 1), after)
