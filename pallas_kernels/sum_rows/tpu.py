"""Many rows on a TPU: sums stay in VMEM in float32, each in registers of its own, and rows are added to them one by one.

Rows of one place are added in their order, so that its sum does not depend on others. Some at a time are loaded before any is
stored, if they are of different places.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.tpu.channels import SOME_PLACES, channels_of, put_channels
from pallas_kernels.tpu.chip import MIB, NO_TPU, SIMULATED, Chip, target_chip
from pallas_kernels.tpu.row_blocks import MOST_ROWS, block_of, column, held_rows, padded, some, width_of

TOGETHER = 16
"""Rows that are loaded before any of them is stored."""
LEAST_PLACES = 512
"""Of fewer a product takes no longer."""
PLACES_OF_ROW = 4
"""The same where there are as many places for each row: to lay sums out and back takes longer then than to add rows to them."""


def supports(sums: Any, rows: Any, places: Any, weights: Any) -> str | None:
    """None, or why not."""
    chip = target_chip()
    if chip is None:
        return NO_TPU
    if rows.dtype != jnp.bfloat16:
        return f"rows are {rows.dtype}; the TPU kernel adds up bfloat16"
    if chip.name != SIMULATED and len(sums) < LEAST_PLACES:
        return f"{len(sums)} places are few, for which a product takes no longer"
    if chip.name != SIMULATED and len(sums) > PLACES_OF_ROW * len(rows):
        return f"{len(rows)} rows are few beside {len(sums)} places, for which a product takes less"
    if not _width(chip, sums):
        return f"sums {sums.shape} do not fit {chip.vmem_bytes} bytes of VMEM, or have no columns to cut"
    if 9 * len(rows) > chip.smem_bytes // 2:
        return f"the places of {len(rows)} rows do not fit {chip.smem_bytes} bytes of SMEM"
    return None


def sum_rows(sums: jax.Array, rows: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
    """See the op's contract."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    return _sum(chip, sums, rows, places, weights)


@functools.partial(jax.jit, static_argnums=0)  # layers share what takes a while to trace
def _sum(chip: Chip, sums: jax.Array, rows: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
    (count, columns), width = sums.shape, _width(chip, sums)
    block, given = block_of(count), block_of(len(rows))
    laid, steps = pl.cdiv(count, block), pl.cdiv(len(rows), given)
    exists = places < count
    used = jnp.max(jnp.where(exists, jnp.arange(1, len(rows) + 1, dtype=jnp.int32), 0), keepdims=True)
    places = padded(jnp.where(exists, places, count), count)  # one behind the last, which nobody reads
    several = places.reshape(-1, TOGETHER)
    equal = (several[:, :, None] == several[:, None]).sum(axis=(1, 2), dtype=jnp.int32) > TOGETHER

    def of_sums(at: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
        return jnp.minimum(step, laid - 1), at

    def of_rows(at: Any, step: Any, places: Any, weights: Any, equal: Any, used: Any) -> tuple[Any, ...]:
        return jnp.clip(step - laid, 0, jnp.maximum(pl.cdiv(used[0], given) - 1, 0)), at

    def of_found(at: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
        return jnp.maximum(step - laid - steps, 0), at

    # All sums of some columns are laid out before any goes back. The interpreter widens what blocks do not fill.
    in_place = chip.name != SIMULATED or (count % block == 0 and columns % width == 0)
    channels = width // LANES
    held = max(1, channels // SUBLANES), held_rows(count + 1), min(channels, SUBLANES), LANES
    return pl.pallas_call(
        functools.partial(_kernel, laid=laid, steps=steps, simulated=chip.name == SIMULATED),
        name="sum_rows",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(pl.cdiv(columns, width), 2 * laid + steps),
            in_specs=[pl.BlockSpec((block, width), of_sums), pl.BlockSpec((given, width), of_rows)],
            out_specs=pl.BlockSpec((block, width), of_found),
            scratch_shapes=[
                pltpu.VMEM(held, jnp.float32),
                pltpu.VMEM((given, channels, LANES), rows.dtype),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(sums.shape, sums.dtype),
        input_output_aliases={4: 0} if in_place else {},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, _vmem_bytes(count, width) + 4 * MIB),
        ),
    )(places, padded(weights), equal.astype(jnp.int32), used, sums, rows)


def _kernel(
    places: Any,
    weights: Any,
    equal: Any,
    used: Any,
    sums: Any,
    rows: Any,
    found: Any,
    held: Any,
    laid_rows: Any,
    *,
    laid: int,
    steps: int,
    simulated: bool,
) -> None:
    """All `sums` are laid out first, block by block; then come the `rows`, and at last the sums go to `found`."""
    step, (registers, _, channels, _) = pl.program_id(1), held.shape
    columns = list(map(column, range(registers * channels)))

    def lay(source: Any, at: Any, of: Sequence[Any], target: Any) -> None:
        values = (source[some(at), column].astype(jnp.float32) for column in of)
        put_channels(target, values, simulated=simulated)

    def of_register(register: int) -> Sequence[Any]:
        return columns[register * channels : (register + 1) * channels]

    @pl.when(step < laid)
    def lay_sums() -> None:
        @pl.loop(0, sums.shape[0], step=SOME_PLACES)
        def lay_some_sums(at: jax.Array) -> None:
            for register in range(registers):
                own = held.at[register, some(step * sums.shape[0] + at)]
                lay(sums, at, of_register(register), own)

    number = step - laid
    left = used[0] - number * rows.shape[0]

    @pl.when((step >= laid) & (step < laid + steps) & (left > 0))
    def add() -> None:
        @pl.loop(0, rows.shape[0], step=SOME_PLACES)
        def lay_some_rows(at: jax.Array) -> None:
            lay(rows, at, columns, laid_rows.at[some(at)])

        before = number * rows.shape[0]

        @pl.loop(0, pl.cdiv(jnp.minimum(left, rows.shape[0]), TOGETHER))
        def add_some(chunk: jax.Array) -> None:
            def added(row: Any) -> tuple[jax.Array, list[jax.Array]]:
                """The place of a row of the chunk, and what its registers are with it."""
                at = chunk * TOGETHER + row
                place, weight = places[before + at], weights[before + at]
                parts = (weight * laid_rows[at].astype(jnp.float32)).reshape(registers, channels, LANES)
                return place, [held[register, place] + parts[register] for register in range(registers)]

            def put(place: jax.Array, sums: Sequence[jax.Array]) -> None:
                for register, sum_ in enumerate(sums):
                    held[register, place] = sum_

            apart = equal[number * (rows.shape[0] // TOGETHER) + chunk] == 0

            @pl.when(apart)
            def add_at_once() -> None:
                for found in list(map(added, range(TOGETHER))):
                    put(*found)

            @pl.when(jnp.logical_not(apart))
            def add_in_turn() -> None:
                pl.loop(0, TOGETHER)(lambda row: put(*added(row)))

    @pl.when(step >= laid + steps)
    def give() -> None:
        @pl.loop(0, found.shape[0], step=SOME_PLACES)
        def give_some(at: jax.Array) -> None:
            for register in range(registers):
                own = held.at[register, some((step - laid - steps) * found.shape[0] + at)]
                for own_column, values in zip(
                    of_register(register), channels_of(own, simulated=simulated), strict=True
                ):
                    found[some(at), own_column] = values.astype(found.dtype)


def _width(chip: Chip, sums: Any) -> int:
    """Columns that are in VMEM at once; 0: none fit."""
    return width_of(sums.shape[1], (16, 8, 4), lambda width: _vmem_bytes(len(sums), width) <= chip.vmem_bytes * 3 // 4)


def _vmem_bytes(count: int, width: int) -> int:
    """Of sums, of blocks of them and of rows, two of each that is copied while another is in use, and of rows laid out."""
    return width * (4 * held_rows(count + 1) + (16 + 4 + 4) * MOST_ROWS)
