"""Recurrences on a TPU, rows of one token: each state is read from its slot in HBM and written back there, once.

States are tiles `[S, 128]` of channels, whose keys and queries are columns. A tile forgets, takes up its token's values and is
asked while the next block of tiles is on its way in and the last one on its way out. `benchmarks/recurrences.py` holds that
against the bandwidth.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows, as_float32
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.chip import MIB, NO_TPU, Chip, target_chip
from pallas_kernels.tpu.padding import Padding

BLOCK_BYTES = MIB
"""Of states that one copy moves: with one on its way in and one out, as much as keeps HBM busy."""
BUFFERS = 3
"""Blocks: one arrives, one is computed, one leaves."""
TOGETHER = 4
"""Tiles that are computed in one pass of a loop."""
ZERO_PLACES = 64


def refused(states: Any, head_size: int, rows: Rows) -> str | None:
    """None, or why a TPU's kernels cannot take states `[P, T, S, L]` of heads of `head_size` channels."""
    chip = target_chip()
    if chip is None:
        return NO_TPU
    _, _, size, lanes = states.shape
    if lanes != LANES or size % LANES:
        return f"states in tiles of {size} by {lanes}; the TPU kernel takes multiples of {LANES} by {LANES}"
    if LANES % head_size:
        return f"heads of {head_size} channels; the TPU kernel takes those that {LANES} lanes hold a whole number of"
    most = chip.smem_bytes // 2 // 16
    if rows.slots.shape[0] > most:
        return f"{rows.slots.shape[0]} rows; the scalar memory holds the slots of {most}"
    return None


def rows_of_one_token(form: Form, tokens: Tokens, states: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Rows of one token; the others are left alone.

    Args:
        form: which recurrence it is.
        tokens: of the step, padding with them.
        states: float32 `[P, T, S, 128]`.
        rows: of the step.

    Returns:
        float32 `[N, T, 128]`, zeros in padding and anything in places of longer rows; and the states, in place.
    """
    chip = target_chip()
    assert chip is not None  # `refused` has seen to it
    q, k, v, decays, rates = tokens
    operands = [*as_float32(q, k, v), by_head(*([rates] if form.by_channel else [decays, rates]))]
    if form.by_channel:
        operands.append(jnp.exp(decays))
    return _call(chip, form, rates.shape[1], operands, states, rows)


def by_head(*numbers: jax.Array) -> jax.Array:
    """Numbers of each head and place, `[N, heads]`, as a kernel copies them: float32 `[N, F, heads]`, in whole vectors."""
    stacked = jnp.stack([x.astype(jnp.float32) for x in numbers], axis=1)
    return jnp.pad(stacked, ((0, 0), (0, 0), (0, -stacked.shape[2] % LANES)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # the layers of a model share what takes seconds to trace
def _call(
    chip: Chip, form: Form, heads: int, tokens: list[jax.Array], states: jax.Array, rows: Rows
) -> tuple[jax.Array, jax.Array]:
    count, keys = tokens[0].shape[:2]
    _, tiles, size, lanes = states.shape
    block = block_tiles(tiles, keys, size)
    cores = chip.cores if tiles % (chip.cores * math.lcm(block, SUBLANES)) == 0 else 1
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    scalars = [rows.slots, rows.starts, rows.offsets]
    out = jax.ShapeDtypeStruct((count, tiles, lanes), jnp.float32)
    spread = tokens[3].shape[1:]
    result: tuple[jax.Array, jax.Array] = pl.pallas_call(
        functools.partial(_kernel, form=form, block=block, cores=cores, of_tile=heads // tiles),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(cores,),
            in_specs=[anywhere] * (len(tokens) + 1),
            out_specs=[anywhere] * 2,
            scratch_shapes=[
                pltpu.SMEM(rows.slots.shape, jnp.int32),
                [pltpu.VMEM((2, *x.shape[1:]), jnp.float32) for x in tokens],
                pltpu.VMEM((spread[1], lanes), jnp.float32),
                pltpu.VMEM((spread[0], tiles, lanes), jnp.float32),
                pltpu.VMEM((BUFFERS, block, size, lanes), jnp.float32),
                pltpu.VMEM((2, tiles, lanes), jnp.float32),
                pltpu.VMEM((min(ZERO_PLACES, count), tiles, lanes), jnp.float32),
                *[pltpu.SemaphoreType.DMA((2,))] * 2,
                *[pltpu.SemaphoreType.DMA((BUFFERS,))] * 2,
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=(out, jax.ShapeDtypeStruct(states.shape, states.dtype)),
        input_output_aliases={len(scalars) + len(tokens): 1},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",),
            disable_bounds_checks=True,  # simulated kernels are checked
        ),
        name="rows_of_one_token",
    )(*scalars, *tokens, states)
    return result


def block_tiles(tiles: int, keys: int, size: int) -> int:
    """Tiles of a block, which have whole keys or all the same one."""
    shared = tiles // keys
    fitting = (
        count
        for count in range(1, tiles + 1)
        if tiles % count == 0
        and count * size * LANES * 4 <= BLOCK_BYTES
        and (count % shared == 0 or shared % count == 0)
    )
    return max(fitting, default=1)


def _kernel(
    slots: Any, starts: Any, offsets: Any, *refs: Any, form: Form, block: int, cores: int, of_tile: int
) -> None:
    """Refs: tokens, states, results, states again; scratch."""
    inputs = 5 if form.by_channel else 4
    tokens, (out, pool) = refs[:inputs], refs[inputs + 1 : inputs + 3]
    listed, held, turned, spread, ring, asked, zeros, *semaphores = refs[inputs + 3 :]
    tokens_arrived, results_left, arrived, left, zeros_left = semaphores
    core = pl.program_id(0)
    blocks = pool.shape[1] // block // cores
    first_tile = core * (blocks * block)

    def list_row(row: jax.Array, count: jax.Array) -> jax.Array:
        single = offsets[row + 1] - offsets[row] == 1

        @pl.when(single)
        def add() -> None:
            listed[count] = row

        return count + single.astype(jnp.int32)

    padding = Padding(offsets[slots.shape[0]], out, zeros, zeros_left)
    pl.when(core == 0)(padding.start)
    count = lax.fori_loop(0, slots.shape[0], list_row, 0)
    total = count * blocks

    def copies_of_token(index: jax.Array) -> list[Any]:
        place, buffer = offsets[listed[index]], index % 2
        return [
            pltpu.make_async_copy(source.at[place], target.at[buffer], tokens_arrived.at[buffer])
            for source, target in zip(tokens, held, strict=True)
        ]

    def fetch_token(index: jax.Array) -> None:
        for copy in copies_of_token(index):
            copy.start()

    def result(index: jax.Array) -> Any:
        mine = pl.ds(first_tile, blocks * block) if cores > 1 else slice(None)
        source, target = asked.at[index % 2, mine], out.at[offsets[listed[index]], mine]
        return pltpu.make_async_copy(source, target, results_left.at[index % 2])

    def in_pool(item: jax.Array) -> Any:
        return pool.at[slots[listed[item // blocks]], pl.ds(first_tile + item % blocks * block, block)]

    def goes_on(item: jax.Array) -> jax.Array:
        return starts[listed[item // blocks]] > 0

    def fetching(item: jax.Array) -> Any:
        buffer = item % BUFFERS
        return pltpu.make_async_copy(in_pool(item), ring.at[buffer], arrived.at[buffer])

    def leaving(item: jax.Array) -> Any:
        buffer = item % BUFFERS
        return pltpu.make_async_copy(ring.at[buffer], in_pool(item), left.at[buffer])

    def fetch(item: jax.Array) -> None:
        pl.when(goes_on(item))(lambda: fetching(item).start())

    def advance_row(index: jax.Array, _: None) -> None:
        buffer = index % 2
        for copy in copies_of_token(index):
            copy.wait()
        pl.when(index + 1 < count)(lambda: fetch_token(index + 1))
        pl.when(index > 1)(lambda: result(index - 2).wait())
        _spread(held[3].at[buffer], turned, spread, of_tile)

        def advance_block(number: jax.Array, _: None) -> None:
            item = index * blocks + number
            pl.when(item >= BUFFERS - 1)(lambda: leaving(item - (BUFFERS - 1)).wait())
            pl.when(item + 1 < total)(lambda: fetch(item + 1))
            begins = jnp.logical_not(goes_on(item))
            states = ring.at[item % BUFFERS]
            pl.when(goes_on(item))(lambda: fetching(item).wait())

            @pl.when(begins)
            def clear() -> None:
                states[...] = jnp.zeros(states.shape, states.dtype)

            mine = [x.at[buffer] for x in (*held[:3], *held[4:])]
            _advance(form, states, mine, spread, asked.at[buffer], first_tile + number * block)
            leaving(item).start()

        lax.fori_loop(0, blocks, advance_block, None)
        result(index).start()

    @pl.when(count > 0)
    def advance() -> None:
        fetch_token(jnp.int32(0))
        fetch(jnp.int32(0))
        lax.fori_loop(0, count, advance_row, None)
        for before in range(BUFFERS - 1, 0, -1):
            pl.when(total >= before)(functools.partial(lambda item: leaving(item).wait(), total - before))
        pl.when(count > 1)(lambda: result(count - 2).wait())
        result(count - 1).wait()

    pl.when(core == 0)(padding.wait)


def _spread(given: Any, turned: Any, spread: Any, of_tile: int) -> None:
    """Numbers of each head `[F, heads]` over the lanes of its channels, `[F, T, 128]`; `of_tile` heads share a tile."""
    tiles = spread.shape[1]
    for number in range(spread.shape[0]):
        turned[...] = columns(given[pl.ds(number, 1)])
        found = turned[pl.ds(0, tiles, of_tile)] if of_tile > 1 else turned[pl.ds(0, tiles)]
        lane = lax.broadcasted_iota(jnp.int32, found.shape, 1)
        for member in range(1, of_tile):
            here = lane >= member * (LANES // of_tile)
            found = jnp.where(here, turned[pl.ds(member, tiles, of_tile)], found)
        spread[number] = found


def columns(row: jax.Array) -> jax.Array:
    """`[1, S]` -> `[S, 128]`, the same in all lanes."""
    return jnp.broadcast_to(row, (LANES, row.shape[1])).T


def _advance(form: Form, states: Any, token: list[Any], spread: Any, asked: Any, first: jax.Array) -> None:
    """One token of the tiles from `first` on, `states [tiles, S, 128]`."""
    q, k, v, *decays = token
    block, shared = states.shape[0], v.shape[0] // k.shape[0]
    of_key, rates = min(block, shared), spread.shape[0] - 1

    def advance_key(number: jax.Array, _: None) -> None:
        key = pl.ds((first + number * of_key) // shared, 1)
        by, question = columns(k[key]), columns(q[key])

        def advance_tile(member: jax.Array, _: None) -> None:
            tile = number * of_key + member
            here = pl.ds(first + tile, 1)
            left = columns(decays[0][here]) if form.by_channel else jnp.exp(spread[0, here])
            state = states[tile] * left
            value = v[here]
            if form.learns:
                value -= (state * by).sum(axis=0, keepdims=True)
            state += by * (spread[rates, here] * value)
            states[tile] = state
            asked[here] = (state * question).sum(axis=0, keepdims=True)

        lax.fori_loop(0, of_key, advance_tile, None, unroll=math.gcd(of_key, TOGETHER))

    lax.fori_loop(0, block // of_key, advance_key, None)
