"""The generalised delta rule on a TPU: a kernel for rows of one token, which reads and writes each state once.

Longer rows are XLA's, in place.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.generalised_delta import xla
from pallas_kernels.recurrent_rows.rows import Places, Rows, as_float32, longer_rows
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.chip import NO_TPU, target_chip

BLOCK = SUBLANES
"""Tiles that are computed together; where 8 does not divide them all, if they are few."""
MOST = 32
"""Tiles that are computed together at most: of 64 rows, with one block on its way in and one out, 4 MB of the vector memory."""


def supports(
    q: Any, k: Any, v: Any, decays: Any, removed: Any, rates: Any, states: Any, *args: Any, **options: Any
) -> str | None:
    """None, or why not."""
    _, tiles, size, lanes = states.shape
    if target_chip() is None:
        return NO_TPU
    if size % SUBLANES or lanes != LANES:
        return f"states in tiles of {size} by {lanes}; the TPU kernel takes multiples of {SUBLANES} by {LANES}"
    if _block(tiles) > MOST:
        return f"{tiles} tiles; the TPU kernel takes multiples of {BLOCK}, or no more than {MOST}"
    return None


def _block(tiles: int) -> int:
    return BLOCK if tiles % BLOCK == 0 else tiles


def generalised_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    removed: jax.Array,
    rates: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    places = (q, k, v, decays, removed, rates)
    count = len(q)
    found, states = _rows_of_one_token(places, states, rows)
    single = jnp.where(rows.lengths == 1, rows.offsets[:-1], count + xla.CHUNK)
    out = jnp.zeros((count + xla.CHUNK, *found.shape[1:]), jnp.float32).at[single].set(found, mode="drop")
    if count == 1:
        return out[:1], states
    return longer_rows(xla.chunk(precision), places, out, states, rows, size=xla.CHUNK)


def _rows_of_one_token(places: Places, states: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """`[B, heads, V]` of every row and the states, in place; of rows of another length zeros, and their states as they are."""
    _, tiles, size, _ = states.shape
    together = _block(tiles)
    slots, starts, offsets = rows
    first = jnp.minimum(offsets[:-1], len(places[0]) - 1)
    q, k, v, decays, removed, rates = as_float32(*(place[first] for place in places))
    # Slot 0 is the sink of padding: what an empty row has in its slot need not be some running sequence's.
    scalars = [jnp.where(rows.lengths > 0, slots, 0), starts, (rows.lengths == 1).astype(jnp.int32)]
    keys = [
        x.reshape(len(slots), tiles, -1, size).swapaxes(1, 2) for x in (q, k, jnp.exp(decays), removed, rates * removed)
    ]
    of_key = pl.BlockSpec((1, keys[0].shape[1], together, size), lambda block, row, *_: (row, 0, block, 0))
    of_value = pl.BlockSpec((1, together, LANES), lambda block, row, *_: (row, block, 0))
    in_pool = pl.BlockSpec((1, together, size, LANES), lambda block, row, slots, *_: (slots[row], block, 0, 0))
    out, states = pl.pallas_call(
        _row,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(tiles // together, len(slots)),
            in_specs=[*[of_key] * 5, of_value, in_pool],
            out_specs=[of_value, in_pool],
        ),
        out_shape=(
            jax.ShapeDtypeStruct((len(slots), tiles, LANES), jnp.float32),
            jax.ShapeDtypeStruct(states.shape, states.dtype),
        ),
        input_output_aliases={len(scalars) + 6: 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary")),
        name="generalised_delta_of_one_token",
    )(*scalars, *keys, v.reshape(len(slots), tiles, LANES), states)
    return out.reshape(v.shape), states


def _row(
    slots: Any,
    starts: Any,
    single: Any,
    q: Any,
    k: Any,
    left: Any,
    removed: Any,
    written: Any,
    v: Any,
    before: Any,
    out: Any,
    after: Any,
) -> None:
    row = pl.program_id(1)

    @pl.when(single[row] == 1)
    def advance() -> None:
        kept = before[0]
        state = jnp.where(starts[row] > 0, kept, jnp.zeros_like(kept))
        gone = (state * _columns(removed[0])).sum(axis=1, keepdims=True)
        state = _columns(left[0]) * state - _columns(written[0]) * gone + _columns(k[0]) * v[0][:, None]
        out[0], after[0] = (state * _columns(q[0])).sum(axis=1), state

    @pl.when(single[row] == 0)
    def leave() -> None:
        out[...] = jnp.zeros(out.shape, out.dtype)
        after[...] = before[...]


def _columns(rows: jax.Array) -> jax.Array:
    """`[heads of a tile, T, H]` -> `[T, H, 128]`: each head's numbers, down the rows of its state and over its lanes."""
    members, tiles, size = rows.shape
    down, across = (lax.broadcasted_iota(jnp.int32, (1, size, size), axis) for axis in (1, 2))
    lane = lax.broadcasted_iota(jnp.int32, (tiles, size, LANES), 2)
    found = jnp.zeros(lane.shape, jnp.float32)
    for member in range(members):
        column = jnp.where(down == across, rows[member][:, None], 0.0).sum(axis=2, keepdims=True)
        found = jnp.where(lane >= member * (LANES // members), column, found)
    return found
