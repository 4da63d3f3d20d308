"""How a TPU kernel that moves whole rows cuts them: blocks of rows, and of columns that registers hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.storage import LANES
from pallas_kernels.tpu.channels import SOME_PLACES

MOST_ROWS = 256


def block_of(rows: int) -> int:
    """Rows of a block, of so many; the last block may have fewer."""
    return min(MOST_ROWS, _whole(rows, SOME_PLACES))


def held_rows(rows: int) -> int:
    """Of all blocks, whole ones."""
    return _whole(rows, block_of(rows))


def padded(scalars: jax.Array, value: int = 0) -> jax.Array:
    """One of each row, `[M]`, up to the end of the last block."""
    return jnp.pad(scalars, (0, held_rows(len(scalars)) - len(scalars)), constant_values=value)


def some(at: Any) -> Any:
    """Rows of a tile, from `at` on."""
    return pl.ds(pl.multiple_of(at, SOME_PLACES), SOME_PLACES)


def column(channel: int) -> Any:
    """128 columns."""
    return pl.ds(channel * LANES, LANES)


def width_of(columns: int, channels: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The first of so many `channels` of 128 columns that `columns` fill and that fits; 0: none."""
    widths = (LANES * count for count in channels if LANES * count <= columns)
    return next(filter(fits, widths), 0)


def _whole(count: int, of: int) -> int:
    return -(-count // of) * of
