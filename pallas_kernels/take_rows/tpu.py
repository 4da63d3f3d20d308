"""Many rows on a TPU: in VMEM each lies in a register of its own, so that one load and one store take 2,048 numbers.

Where XLA keeps rows, a register holds 16 of them for 128 columns, and its gather takes a row out of each such register.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.storage import LANES
from pallas_kernels.tpu.channels import SOME_PLACES, channels_of, put_channels
from pallas_kernels.tpu.chip import MIB, NO_TPU, SIMULATED, Chip, target_chip
from pallas_kernels.tpu.row_blocks import MOST_ROWS, block_of, column, held_rows, padded, some, width_of

LEAST_ROWS = 1024
"""Fewer XLA takes itself."""


def supports(x: Any, rows: Any, used: Any, **options: Any) -> str | None:
    """None, or why not."""
    chip = target_chip()
    if chip is None:
        return NO_TPU
    if x.dtype != jnp.bfloat16:
        return f"x is {x.dtype}; the TPU kernel takes rows of bfloat16"
    if chip.name != SIMULATED and len(rows) < LEAST_ROWS:
        return f"{len(rows)} rows are few, which XLA takes"
    if not _width(chip, x):
        return f"{x.shape} do not fit {chip.vmem_bytes} bytes of VMEM, or have no columns to cut"
    if 4 * len(rows) > chip.smem_bytes // 2:
        return f"the numbers of {len(rows)} rows do not fit {chip.smem_bytes} bytes of SMEM"
    return None


def take_rows(x: jax.Array, rows: jax.Array, used: jax.Array, *, finite: bool) -> jax.Array:
    """See the op's contract."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    return _take(chip, x, jnp.clip(rows, 0, len(x) - 1), used.reshape(1))


@functools.partial(jax.jit, static_argnums=0)  # layers share what takes a while to trace
def _take(chip: Chip, x: jax.Array, rows: jax.Array, used: jax.Array) -> jax.Array:
    (places, columns), count, width = x.shape, len(rows), _width(chip, x)
    block, taken = block_of(places), block_of(count)
    laid = pl.cdiv(places, block)

    def of_given(at: Any, step: Any, rows: Any, used: Any) -> tuple[Any, ...]:
        return jnp.minimum(step, laid - 1), at

    def of_taken(at: Any, step: Any, rows: Any, used: Any) -> tuple[Any, ...]:
        return jnp.clip(step - laid, 0, jnp.maximum(pl.cdiv(used[0], taken) - 1, 0)), at

    held = (width // LANES, LANES)
    return pl.pallas_call(
        functools.partial(_kernel, laid=laid, simulated=chip.name == SIMULATED),
        name="take_rows",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(columns, width), laid + pl.cdiv(count, taken)),
            in_specs=[pl.BlockSpec((block, width), of_given)],
            out_specs=pl.BlockSpec((taken, width), of_taken),
            scratch_shapes=[pltpu.VMEM((held_rows(places), *held), x.dtype), pltpu.VMEM((taken, *held), x.dtype)],
        ),
        out_shape=jax.ShapeDtypeStruct((count, columns), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, _vmem_bytes(places, width) + 4 * MIB),
        ),
    )(padded(rows), used, x)


def _kernel(rows: Any, used: Any, given: Any, found: Any, held: Any, taken: Any, *, laid: int, simulated: bool) -> None:
    """Blocks of `given` are laid out first, all of them; then those of `found` are made."""
    step, channels = pl.program_id(1), range(held.shape[1])

    @pl.when(step < laid)
    def lay_out() -> None:
        @pl.loop(0, given.shape[0], step=SOME_PLACES)
        def lay_some(at: jax.Array) -> None:
            values = (given[some(at), column(channel)].astype(jnp.float32) for channel in channels)
            put_channels(held.at[some(step * given.shape[0] + at)], values, simulated=simulated)

    first = (step - laid) * found.shape[0]

    @pl.when((step >= laid) & (first < used[0]))
    def take() -> None:
        @pl.loop(0, found.shape[0], step=SOME_PLACES)
        def load_some(at: jax.Array) -> None:
            loaded = [held[rows[first + at + number]] for number in range(SOME_PLACES)]
            for number, row in enumerate(loaded):
                taken[at + number] = row

        @pl.loop(0, found.shape[0], step=SOME_PLACES)
        def give_some(at: jax.Array) -> None:
            for channel, values in enumerate(channels_of(taken.at[some(at)], simulated=simulated)):
                found[some(at), column(channel)] = values


def _width(chip: Chip, x: Any) -> int:
    """Columns that are in VMEM at once; 0: none fit."""
    return width_of(x.shape[1], (16, 8, 4), lambda width: _vmem_bytes(len(x), width) <= chip.vmem_bytes * 3 // 4)


def _vmem_bytes(places: int, width: int) -> int:
    """Of all rows, of some that are taken, and of blocks, two of each that is copied while another is in use."""
    return 2 * width * (held_rows(places) + 5 * MOST_ROWS)
