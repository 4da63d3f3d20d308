"""A few rows of each group by float4 on chips whose matrix units take float8, which is all that numbers become.

What is scaled are the sums of a group of inputs, not its numbers. A row is eight to the matrix unit, each with the inputs of one
group in eight and zeros elsewhere, so that a register of results has eight groups of a row for 128 outputs, as one of scales has.
That is two vector instructions for a register of results, where a scale and bfloat16 are four for 2,048 numbers: of the few rows
that decode it is the less by far, of a prompt's many it is not.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped_scaled_matmul import tpu_float4
from pallas_kernels.grouped_scaled_matmul.tpu_few import MOST_TAKEN, visits, where_it_lies
from pallas_kernels.grouped_scaled_matmul.tpu_matrix import Kept, factor_bytes, outputs_of_block
from pallas_kernels.storage import LANES, SUBLANES
from pallas_kernels.take_rows import take_rows
from pallas_kernels.tpu.chip import MIB, SIMULATED, Chip

FEW, MORE = 8, 16
"""Rows of a group that are multiplied at once."""
MOST_FOR_FEW, MOST_FOR_MORE = 6, 16
"""Places for each group up to which that many do for nearly all: devices have half as many again as rows (`own_rows`)."""
MOST_AT_ONCE = 768, 512
"""Outputs that are made at once."""


def fitting(
    chip: Chip, kept: Kept, x: jax.Array, weights: jax.Array, rows: Any, sizes: jax.Array, scales: jax.Array
) -> tuple[int, jax.Array, jax.Array] | None:
    """How many rows of a group at once, rows, and which of them are taken, as `multiply` takes them; None: this is no way.

    Of many rows some are taken by XLA.
    """
    places, groups = len(x if rows is None else rows), len(weights)
    if chip.name not in tpu_float4.FLOAT8_CHIPS or kept.count == 1 or SUBLANES * kept.group % tpu_float4.TILE:
        return None
    if scales.shape[2] < LANES and chip.name != SIMULATED:  # strides are of whole registers
        return None
    window = FEW if places <= MOST_FOR_FEW * groups else MORE
    many = rows is not None and len(x) > MOST_TAKEN
    needed = _vmem_bytes(kept, weights, scales, places if many else len(x), places, window)
    if places > MOST_FOR_MORE * groups or needed > chip.vmem_bytes // 2:
        return None
    if many:
        x, rows = take_rows(x, rows, sizes.sum(), platform="tpu"), None
    return window, x, jnp.arange(places, dtype=jnp.int32) if rows is None else rows


def multiply(
    chip: Chip,
    kept: Kept,
    dtype: Any,
    window: int,
    x: jax.Array,
    rows: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
) -> jax.Array:
    """`x [N, I]` in bfloat16, its inputs in the order of `tpu_float4`, of which `rows [M]` are taken -> `[M, O]`."""
    scalars = visits(sizes, places=len(rows), window=window, tile=1)
    return _call(chip, kept, window, dtype, (*scalars[:-1], rows), x.astype(jnp.float32), weights, scales)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))  # layers share what takes seconds to trace
def _call(
    chip: Chip,
    kept: Kept,
    window: int,
    dtype: Any,
    scalars: tuple[jax.Array, ...],
    x: jax.Array,
    weights: jax.Array,
    scales: jax.Array,
) -> jax.Array:
    used, *given = scalars
    places, outputs, most = len(given[-1]), scales.shape[2], len(given[0])
    wide = outputs_of_block(weights, kept.pairs, chip)
    [factors], shape, of_factors = kept.blocks((scales,), wide)
    own = _own_inputs(x.shape[1], kept.group)
    columns = pl.cdiv(wide, LANES)
    tiles = pl.cdiv(kept.count, SUBLANES)
    return pl.pallas_call(
        functools.partial(_kernel, kept=kept, window=window),
        name="float8_grouped_matmul",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(given),
            grid=(pl.cdiv(outputs, wide), used),
            in_specs=[
                pl.BlockSpec(x.shape, lambda at, visit, *scalars: (0, 0)),
                pl.BlockSpec(own.shape, lambda at, visit, *scalars: (0, 0)),
                pl.BlockSpec((1, weights.shape[1], wide), lambda at, visit, groups, *rest: (groups[visit], 0, at)),
                pl.BlockSpec(shape, of_factors),
            ],
            out_specs=pl.BlockSpec((places, wide), lambda at, visit, *scalars: (0, at)),
            scratch_shapes=[
                pltpu.VMEM((most * window * SUBLANES, x.shape[1]), jnp.bfloat16),
                pltpu.VMEM((columns, tiles * SUBLANES * kept.together, min(wide, LANES)), jnp.float32),
                pltpu.VMEM((places + 1, wide), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((places, outputs), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"),
            vmem_limit_bytes=min(
                chip.vmem_bytes * 7 // 8, _vmem_bytes(kept, weights, scales, len(x), places, window) + 24 * MIB
            ),
        ),
    )(*given, x, own, where_it_lies(chip, weights), factors)


def _kernel(
    groups: Any,
    begins: Any,
    stops: Any,
    rows: Any,
    x: Any,
    own_inputs: Any,
    weight: Any,
    scales: Any,
    products: Any,
    spread: Any,
    wide: Any,
    sums: Any,
    *,
    kept: Kept,
    window: int,
) -> None:
    """`spread` are the rows of all visits as they are multiplied, `wide` the scales, `sums` those of places and one for no place.

    What is no number in a row stays in it, and with its group.
    """
    visit, (places, outputs) = pl.program_id(1), products.shape
    matrix, begin, stop = groups[visit], begins[visit], stops[visit]
    lines = window * SUBLANES
    first_line = pl.multiple_of(visit * lines, lines)

    for row in range(0, window, 2):  # two fill a tile of bfloat16

        @pl.when((pl.program_id(0) == 0) & (begin + row < stop))
        def _(row: int = row) -> None:
            pair = [
                jnp.where(own_inputs[...] > 0, x[pl.ds(rows[jnp.minimum(begin + row + more, stop - 1)], 1), :], 0.0)
                for more in range(2)
            ]
            at = pl.multiple_of(first_line + row * SUBLANES, 2 * SUBLANES)
            spread[pl.ds(at, 2 * SUBLANES), :] = jnp.concatenate(pair, axis=0).astype(spread.dtype)

    kept.lay_if_other(groups, visit, scales, wide, tpu_float4.FLOAT8_LESS)

    lanes = wide.shape[2]
    at_once = next(size for size in (*MOST_AT_ONCE, lanes) if outputs % size == 0)
    registers = at_once // lanes

    def multiply(rows: int) -> None:
        """By so many rows, of which no more than the last are none of the visit's."""

        @pl.loop(0, outputs // at_once)
        def _(column: jax.Array) -> None:
            own = pl.ds(pl.multiple_of(column * at_once, lanes), at_once)
            total = jnp.zeros((rows, SUBLANES, at_once), jnp.float32)
            inputs = SUBLANES * kept.group
            for tile, first in enumerate(range(0, x.shape[1], inputs)):
                last = min(first + inputs, x.shape[1])
                found = lax.dot_general(
                    spread[pl.ds(first_line, rows * SUBLANES), first:last],
                    tpu_float4.float8(weight[0, first // 2 : last // 2, own]),
                    (((1,), (0,)), ((), ())),
                    preferred_element_type=jnp.float32,
                )
                pieces = (column * registers + at for at in range(registers))
                factors = [kept.of_groups(wide, piece, matrix, tile * SUBLANES) for piece in pieces]
                total += found.reshape(total.shape) * jnp.concatenate(factors, axis=1)[None]
            for row in range(rows):
                place = jnp.where(begin + row < stop, begin + row, places)
                sums[pl.ds(place, 1), own] = total[row].sum(axis=0, keepdims=True)

    half = window // 2
    pl.when(stop - begin <= half)(lambda: multiply(half))
    pl.when(stop - begin > half)(lambda: multiply(window))

    @pl.when(visit == pl.num_programs(1) - 1)
    def _() -> None:
        products[...] = sums[:places, :].astype(products.dtype)


def _own_inputs(inputs: int, group: int) -> jax.Array:
    """`[8, I]`, one where an input's group is this one in eight, and zero elsewhere."""
    group_of = tpu_float4.input_of_place(jnp.arange(inputs)) // group
    return (group_of % SUBLANES == jnp.arange(SUBLANES)[:, None]).astype(jnp.float32)


def _vmem_bytes(kept: Kept, weights: Any, scales: Any, rows: int, places: int, window: int) -> int:
    """Of blocks, two of each that is copied while another is in use, of rows as they are multiplied, and of sums."""
    inputs, wide = 2 * weights.shape[1], outputs_of_block(weights, kept.pairs, kept.chip)
    spread = (len(weights) + places // window) * window * SUBLANES
    return (
        2 * wide * weights.shape[1]
        + factor_bytes(scales, None, wide)
        + (8 * rows + 2 * spread) * inputs
        + 12 * places * wide
    )
