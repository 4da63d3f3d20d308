"""Recurrences on a TPU, rows of several tokens: a row's state stays in VMEM while its tokens pass by, some at a time.

What is done with such a chunk says `tpu_chunk.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.recurrent_rows.form import Form, Tokens
from pallas_kernels.recurrent_rows.rows import Rows, as_float32
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.chip import MIB, SIMULATED, Chip, target_chip
from pallas_kernels.tpu.recurrence.chunk import advance
from pallas_kernels.tpu.recurrence.decays import CHUNK, Settings
from pallas_kernels.tpu.recurrence.single import by_head


def fits(form: Form, keys: int, states: Any) -> bool:
    """Whether chunks of so many heads of keys and a state `[P, T, S, 128]` fit the chip's VMEM: not all models' on v4."""
    chip = target_chip()
    return chip is not None and _vmem_bytes(keys, states, by_channel=form.by_channel) <= chip.vmem_bytes * 3 // 4


def longer_rows(
    form: Form,
    tokens: Tokens,
    out: jax.Array,
    states: jax.Array,
    rows: Rows,
    *,
    precision: jax.lax.Precision,
) -> tuple[jax.Array, jax.Array]:
    """Rows of more than one token, in the results and states of `rows_of_one_token`.

    Args:
        form: which recurrence it is.
        tokens: of the step, padding with them.
        out: float32 `[N, T, 128]`.
        states: float32 `[P, T, S, 128]`.
        rows: of the step.
        precision: of the products. Those of what is learnt have the precision of 16 bits at least.

    Returns:
        `out` and the states, in place.
    """
    chip = target_chip()
    assert chip is not None  # `refused` has seen to it
    q, k, v, logs, rates = tokens
    settings = Settings(
        form=form,
        of_tile=rates.shape[1] // v.shape[1],
        exact=precision != lax.Precision.DEFAULT,
        simulated=chip.name == SIMULATED,
    )
    of_heads = [by_head(rates), logs] if form.by_channel else [by_head(logs, rates)]
    return _call(chip, settings, [*as_float32(q, k, v), *of_heads], out, states, rows)


@functools.partial(jax.jit, static_argnums=(0, 1))  # the layers of a model share what takes seconds to trace
def _call(
    chip: Chip, settings: Settings, tokens: list[jax.Array], out: jax.Array, states: jax.Array, rows: Rows
) -> tuple[jax.Array, jax.Array]:
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    heads = tokens[3].shape[2]
    first = 3 + len(tokens)
    needed = _vmem_bytes(tokens[0].shape[1], states, by_channel=settings.form.by_channel)
    result: tuple[jax.Array, jax.Array] = pl.pallas_call(
        functools.partial(_kernel, settings=settings),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(1,),
            in_specs=[anywhere] * (len(tokens) + 2),
            out_specs=[anywhere] * 2,
            scratch_shapes=[
                pltpu.SMEM(rows.slots.shape, jnp.int32),
                [pltpu.VMEM((2, CHUNK, *x.shape[1:]), jnp.float32) for x in tokens],
                pltpu.VMEM((2, CHUNK, *out.shape[1:]), jnp.float32),
                pltpu.VMEM((2, heads, LANES), jnp.float32),
                pltpu.VMEM(states.shape[1:], jnp.float32),
                *[pltpu.SemaphoreType.DMA((2,))] * 2,
                pltpu.SemaphoreType.DMA,
            ],
        ),
        out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (out, states)),
        input_output_aliases={first: 0, first + 1: 1},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            disable_bounds_checks=True,  # simulated kernels are checked
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, needed + 8 * MIB),
        ),
        name="longer_rows",
    )(rows.slots, rows.starts, rows.offsets, *tokens, out, states)
    return result


def _kernel(slots: Any, starts: Any, offsets: Any, *refs: Any, settings: Settings) -> None:
    """Refs: tokens, results, states, both again; scratch."""
    count = 5 if settings.form.by_channel else 4
    tokens, (out, pool) = refs[:count], refs[count + 2 : count + 4]
    listed, held, results, turned, state, arrived, left, moved = refs[count + 4 :]

    def list_row(row: jax.Array, count: jax.Array) -> jax.Array:
        longer = offsets[row + 1] - offsets[row] > 1

        @pl.when(longer)
        def add() -> None:
            listed[count] = row

        return count + longer.astype(jnp.int32)

    count = lax.fori_loop(0, slots.shape[0], list_row, 0)

    def places(row: jax.Array, chunk: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The first place of a chunk, and how many it has."""
        first = offsets[row] + chunk * CHUNK
        return first, jnp.minimum(CHUNK, offsets[row + 1] - first)

    def arriving(row: jax.Array, chunk: jax.Array, buffer: jax.Array) -> list[Any]:
        first, size = places(row, chunk)
        return [
            pltpu.make_async_copy(source.at[pl.ds(first, size)], target.at[buffer, pl.ds(0, size)], arrived.at[buffer])
            for source, target in zip(tokens, held, strict=True)
        ]

    def fetch(row: jax.Array, chunk: jax.Array, buffer: jax.Array) -> None:
        for copy in arriving(row, chunk, buffer):
            copy.start()

    def leaving(row: jax.Array, chunk: jax.Array, buffer: jax.Array) -> Any:
        first, size = places(row, chunk)
        return pltpu.make_async_copy(results.at[buffer, pl.ds(0, size)], out.at[pl.ds(first, size)], left.at[buffer])

    def advance_row(index: jax.Array, done: jax.Array) -> jax.Array:
        row = listed[index]
        slot, chunks = slots[row], pl.cdiv(offsets[row + 1] - offsets[row], CHUNK)
        following = listed[jnp.minimum(index + 1, count - 1)]

        @pl.when(starts[row] > 0)
        def load() -> None:
            copy = pltpu.make_async_copy(pool.at[slot], state, moved)
            copy.start()
            copy.wait()

        @pl.when(starts[row] == 0)
        def clear() -> None:
            def clear_tile(tile: jax.Array, _: None) -> None:
                state[tile] = jnp.zeros(state.shape[1:], state.dtype)

            lax.fori_loop(0, state.shape[0], clear_tile, None)

        def advance_chunk(chunk: jax.Array, _: None) -> None:
            buffer = (done + chunk) % 2
            within = chunk + 1 < chunks
            pl.when(within | (index + 1 < count))(
                lambda: fetch(jnp.where(within, row, following), jnp.where(within, chunk + 1, 0), 1 - buffer)
            )
            for arrival in arriving(row, chunk, buffer):
                arrival.wait()
            size = places(row, chunk)[1]

            def clear_token(place: jax.Array, _: None) -> None:
                for x in held:
                    x[buffer, place] = jnp.zeros(x.shape[2:], x.dtype)

            lax.fori_loop(size, CHUNK, clear_token, None)
            pl.when(chunk > 1)(lambda: leaving(row, chunk - 2, buffer).wait())
            advance(settings, [x.at[buffer] for x in held], results.at[buffer], turned, state)
            leaving(row, chunk, buffer).start()

        lax.fori_loop(0, chunks, advance_chunk, None)
        copy = pltpu.make_async_copy(state, pool.at[slot], moved)
        copy.start()
        for before in (2, 1):
            chunk = chunks - before
            pl.when(chunk >= 0)(functools.partial(lambda chunk: leaving(row, chunk, (done + chunk) % 2).wait(), chunk))
        copy.wait()
        return done + chunks

    @pl.when(count > 0)
    def advance_rows() -> None:
        zero = jnp.int32(0)
        fetch(listed[0], zero, zero)
        lax.fori_loop(0, count, advance_row, zero)


def _vmem_bytes(keys: int, states: Any, *, by_channel: bool) -> int:
    """Of two chunks, their results and a state."""
    _, tiles, size, lanes = states.shape
    decays = tiles * size if by_channel else 0
    return 4 * (tiles * size * lanes + 2 * CHUNK * (2 * keys * size + 2 * tiles * lanes + decays + 8 * LANES))
