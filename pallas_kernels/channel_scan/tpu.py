"""The scan on a TPU: a kernel for rows of one token, which reads and writes each state once, and one for a chunk of a longer row.

Both hold blocks of tiles `[S, 128]` in vector registers and take token after token: a chunk's work is that of its tokens, on the
vector units, where plain XLA makes several passes over states of all of a chunk's tokens in memory.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.recurrent_rows.rows import Advance, Places, Rows, as_float32, longer_rows
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.chip import NO_TPU, target_chip

CHUNK = 64
"""Tokens of a longer row that a kernel takes at once."""
BLOCK = SUBLANES
"""Tiles that are computed together, with channels of a vector `[8, 128]`; where 8 does not divide them, all, if they are few."""


def supports(x: Any, steps: Any, rates: Any, *args: Any, **options: Any) -> str | None:
    """None, or why not."""
    tiles, size, lanes = rates.shape
    if target_chip() is None:
        return NO_TPU
    if size % SUBLANES or lanes != LANES:
        return f"tiles of {size} by {lanes}; the TPU kernels take multiples of {SUBLANES} by {LANES}"
    if _block(tiles) > 2 * BLOCK:
        return f"{tiles} tiles; the TPU kernels take multiples of {BLOCK}, or fewer than {2 * BLOCK}"
    return None


def _block(tiles: int) -> int:
    return BLOCK if tiles % BLOCK == 0 else tiles


def channel_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    rows: Rows,
) -> tuple[jax.Array, jax.Array]:
    """See the op's contract."""
    tiles = rates.shape[0]
    places = (
        *(channels.reshape(-1, tiles, LANES) for channels in as_float32(x, steps)),
        *as_float32(inward, outward),
    )
    found, states = _rows_of_one_token(places, rates, states, rows)
    count = len(x)
    single = jnp.where(rows.lengths == 1, rows.offsets[:-1], count + CHUNK)
    out = jnp.zeros((count + CHUNK, *found.shape[1:]), jnp.float32).at[single].set(found, mode="drop")
    if count > 1:
        out, states = longer_rows(_chunk(rates), places, out, states, rows, size=CHUNK)
    return out[:count].reshape(x.shape), states


def _rows_of_one_token(places: Places, rates: jax.Array, states: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """`[B, T, 128]` of every row and the states, in place; of rows of another length anything, and their states as they are."""
    tiles, size, _ = rates.shape
    together = _block(tiles)
    slots, starts, offsets = rows
    first = jnp.minimum(offsets[:-1], len(places[0]) - 1)
    x, step, *shared = (place[first] for place in places)
    # Slot 0 is the sink of padding: what an empty row has in its slot need not be some running sequence's.
    scalars = [jnp.where(rows.lengths > 0, slots, 0), starts, (rows.lengths == 1).astype(jnp.int32)]
    of_row = pl.BlockSpec((1, together, LANES), lambda block, row, *_: (row, block, 0))
    of_all = pl.BlockSpec((1, size, LANES), lambda block, row, *_: (row, 0, 0))
    of_tiles = pl.BlockSpec((together, size, LANES), lambda block, row, *_: (block, 0, 0))
    in_pool = pl.BlockSpec((1, together, size, LANES), lambda block, row, slots, *_: (slots[row], block, 0, 0))
    result: tuple[jax.Array, jax.Array] = pl.pallas_call(
        _row,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(tiles // together, len(slots)),
            in_specs=[of_row, of_row, of_all, of_all, of_tiles, in_pool],
            out_specs=[of_row, in_pool],
        ),
        out_shape=(jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct(states.shape, states.dtype)),
        input_output_aliases={len(scalars) + 5: 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary")),
        name="channels_of_one_token",
    )(*scalars, x, step, *map(_over_lanes, shared), rates, states)
    return result


def _row(
    slots: Any,
    starts: Any,
    single: Any,
    x: Any,
    step: Any,
    inward: Any,
    outward: Any,
    rates: Any,
    before: Any,
    out: Any,
    after: Any,
) -> None:
    row = pl.program_id(1)

    @pl.when(single[row] == 1)
    def advance() -> None:
        kept = before[0]
        state = jnp.where(starts[row] > 0, kept, jnp.zeros_like(kept))
        out[0], after[0] = _advance(x[0], step[0], inward[0], outward[0], rates[...], state)

    @pl.when(single[row] == 0)
    def leave() -> None:
        out[...] = jnp.zeros(out.shape, out.dtype)
        after[...] = before[...]


def _chunk(rates: jax.Array) -> Advance:
    """The recurrence of a chunk of one row."""
    tiles, size, _ = rates.shape
    together = _block(tiles)
    of_chunk = pl.BlockSpec((CHUNK, together, LANES), lambda block: (0, block, 0))
    of_all = pl.BlockSpec((CHUNK, size, LANES), lambda block: (0, 0, 0))
    of_tiles = pl.BlockSpec((together, size, LANES), lambda block: (block, 0, 0))

    def advance(places: Places, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, steps, *shared = places
        result: tuple[jax.Array, jax.Array] = pl.pallas_call(
            _tokens,
            grid=(tiles // together,),
            in_specs=[of_chunk, of_chunk, of_all, of_all, of_tiles, of_tiles],
            out_specs=[of_chunk, of_tiles],
            out_shape=(jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct(state.shape, state.dtype)),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            name="channels_of_a_chunk",
        )(x, steps, *map(_over_lanes, shared), rates, state)
        return result

    return advance


def _tokens(x: Any, steps: Any, inward: Any, outward: Any, rates: Any, before: Any, out: Any, after: Any) -> None:
    by = rates[...]

    def advance(token: jax.Array, state: jax.Array) -> jax.Array:
        out[token], state = _advance(x[token], steps[token], inward[token], outward[token], by, state)
        return state

    after[...] = lax.fori_loop(0, CHUNK, advance, before[...])


def _advance(
    x: jax.Array, step: jax.Array, inward: jax.Array, outward: jax.Array, rates: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One token of a block: channels `[tiles, 128]`, what all of them share `[S, 128]`, the state `[tiles, S, 128]`."""
    state = jnp.exp(step[:, None] * rates) * state + (step * x)[:, None] * inward[None]
    return (state * outward[None]).sum(axis=1), state


def _over_lanes(shared: jax.Array) -> jax.Array:
    """`[..., S]` -> `[..., S, 128]`, the same in all lanes: a column of numbers for vectors of channels."""
    return jnp.broadcast_to(shared[..., None], (*shared.shape, LANES))
