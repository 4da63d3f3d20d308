"""Channels of tokens in a TPU's VMEM: a token is `[C, 128]` as copies move it, a product wants `[tokens, 128]` of a channel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.unpack import unpacked

SOME_PLACES = 16
"""Tokens that are laid out at once: rows of a tile of 16-bit values."""


def channels_of(held: Any, *, simulated: bool) -> Iterator[jax.Array]:
    """One channel `[tokens, 128]` of tokens `[..., C, 128]` after the other."""
    *before, channels, lanes = held.shape
    tokens = math.prod(before)
    if simulated:  # TPU interpret mode knows no reshaped or reinterpreted references
        for channel in range(channels):
            values = held[(*(slice(None),) * len(before), channel)].reshape(tokens, lanes)
            yield values.astype(jnp.bfloat16 if held.dtype.itemsize == 1 else held.dtype)
        return
    words, packed = _words(held)
    for word in range(channels // packed):
        taken = words[pl.ds(word, tokens, stride=channels // packed)]
        yield from [taken] if packed == 1 else (unpacked(taken, at, held.dtype) for at in range(packed))


def put_channels(held: Any, values: Iterator[jax.Array], *, simulated: bool) -> None:
    """The other way round: store the channels, float32, of tokens `[tokens, C, 128]` of 32 or 16 bits.

    There may be fewer than C; what is in the others means nothing.
    """
    tokens, channels, _ = held.shape
    if simulated:
        for channel, value in enumerate(values):
            held[:, channel] = value.astype(held.dtype)
        return
    words, packed = _words(held)
    for word in range(channels // packed):
        parts = list(itertools.islice(values, packed))
        if parts:
            place = pl.ds(word, tokens, stride=channels // packed)
            words[place] = parts[0] if packed == 1 else _packed(parts[0], parts[-1])


def put_channel(held: Any, channel: Any, value: jax.Array, *, simulated: bool) -> None:
    """The same of one channel, of tokens of 32 bits."""
    tokens, channels, lanes = held.shape
    if simulated:
        held[:, channel] = value
    else:
        held.reshape(tokens * channels, lanes)[pl.ds(channel, tokens, stride=channels)] = value


def _words(held: Any) -> tuple[Any, int]:
    """Tokens `[..., C, 128]` as rows of 32-bit words, each of which holds so many neighbouring channels."""
    rows, packed = held.reshape(math.prod(held.shape[:-1]), held.shape[-1]), 4 // held.dtype.itemsize
    return rows if packed == 1 else rows.bitcast(jnp.uint32), packed


def _packed(low: jax.Array, high: jax.Array) -> jax.Array:
    """Two float32 values rounded to bfloat16, in a word."""
    low, high = (pltpu.bitcast(x.astype(jnp.bfloat16).astype(jnp.float32), jnp.uint32) for x in (low, high))
    return low >> 16 | high
