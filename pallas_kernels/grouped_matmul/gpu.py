"""Blocks of rows of one group times tiles of its matrix, in Pallas through Triton, for NVIDIA GPUs from Ampere on.

XLA makes `lax.ragged_dot` a product of all rows with all matrices on a GPU too. What a block does is data: which group, from
which row on, how many rows; so a group without rows costs nothing, and its matrix is not read. Microseconds on an H100 (jax
0.11.2) for one matrix of Qwen3-30B-A3B's 128 experts, 2,048 by 768 in bfloat16, of which a token takes 8; the kernel with the
best of 14 to 24 tiles, the limit being reading the touched matrices at the speed of a copy:

    tokens                 1     8    64    256   2,048
    lax.ragged_dot       161   186   296  1,079   8,504
    this kernel           29    80   164    172     240
    limit                  9    62   147    149     149

The tiles that are chosen here are among the best of several shapes (768 by 2,048 too, and 8 experts of 4,096 by 14,336), in int8
as well.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu.device import AMPERE, gpu_refused, interpreted
from pallas_kernels.grouped_matmul.groups import most_blocks, row_blocks
from pallas_kernels.matmul.rows import quantise_rows

MOST_VALUES = 2**31
"""Offsets into the matrices are 32 signed bits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """What one program multiplies: `rows` by `outputs`, `inputs` at a time; powers of two of at least 16."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def choose_tiles(*, rows: int, groups: int, itemsize: int) -> Tiles:
    """Blocks about as long as a group has rows."""
    if itemsize == 4:  # no tensor cores: operands lie in registers
        return Tiles(16, 32, 32, warps=4, stages=2)
    mean = rows // groups
    if mean < 1:
        return Tiles(16, 64, 256, warps=4, stages=3)
    if mean <= 16:
        return Tiles(16, 128, 64, warps=4, stages=3)
    if mean <= 64:
        return Tiles(64, 128, 32, warps=4, stages=3)
    if mean <= 256:
        return Tiles(128, 128, 64, warps=4, stages=3)
    return Tiles(128, 256, 64, warps=8, stages=3)


def supports(x: Any, weights: Any, *args: Any, **options: Any) -> str | None:
    """None, or why not."""
    if math.prod(weights.shape) >= MOST_VALUES:
        return f"matrices of {math.prod(weights.shape)} values; the kernel counts to {MOST_VALUES}"
    return gpu_refused(AMPERE)


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    rows: jax.Array | None,
    scales: jax.Array | None,
    *,
    precision: jax.lax.Precision,
    across: tuple[str, ...],
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract. Rows are gathered by the kernel; products of float32 are of float32, and not of TF32."""
    count = (x if rows is None else rows).shape[0]
    tiles = choose_tiles(rows=count, groups=weights.shape[0], itemsize=weights.dtype.itemsize)
    row_scales = None
    if scales is None:
        x = x.astype(weights.dtype)
    else:
        x, row_scales = quantise_rows(x, across=across)
        row_scales = row_scales[:, 0]
    return multiply(x, weights, sizes, rows, row_scales, scales, dtype=dtype, tiles=tiles)


def multiply(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    rows: jax.Array | None,
    row_scales: jax.Array | None,
    scales: jax.Array | None,
    *,
    dtype: DTypeLike,
    tiles: Tiles,
) -> jax.Array:
    """`x [N, I]` in the weights' own type, with `row_scales [N]` and `scales [G, O]` of int8 -> `[M, O]`."""
    count = (x if rows is None else rows).shape[0]
    groups, _, outputs = weights.shape
    blocks = most_blocks(count, groups, tiles.rows)
    operands = [*row_blocks(sizes, blocks, tiles.rows), x, weights]
    operands += [array for array in (rows, row_scales, scales) if array is not None]
    body = functools.partial(_kernel, tiles=tiles, gathers=rows is not None, scaled=scales is not None)
    result: jax.Array = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((count, outputs), dtype),
        grid=(
            pl.cdiv(outputs, tiles.outputs),
            blocks,
        ),  # a block's programs follow each other: its rows stay in the cache
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpreted(),
        name="grouped_matmul",
    )(*operands)
    return result


class _Program(NamedTuple):
    """A block as scalars, the tile of outputs, and what is read and written."""

    group: jax.Array
    first: jax.Array
    length: jax.Array
    tile: jax.Array
    x: Any
    weights: Any
    rows: Any | None
    row_scales: Any | None
    scales: Any | None
    result: Any


def _kernel(group: Any, first: Any, count: Any, *refs: Any, tiles: Tiles, gathers: bool, scaled: bool) -> None:
    """Refs: the blocks; `x [N, I]`, `weights [G, I, O]`; if any, `rows [M]`, `row_scales [N]` and `scales [G, O]`; the result.

    The grid is `(tiles of O, blocks)`. Rows of no block are not written.
    """
    x, weights, *given, result = refs
    rows = given.pop(0) if gathers else None
    row_scales, scales = given if scaled else (None, None)
    block = pl.program_id(1)
    program = _Program(
        group[block], first[block], count[block], pl.program_id(0), x, weights, rows, row_scales, scales, result
    )
    pl.when(program.length > 0)(functools.partial(_multiply, program, tiles))


def _multiply(program: _Program, tiles: Tiles) -> None:
    inputs, outputs = program.weights.shape[1:]
    exact = program.weights.dtype == jnp.float32
    sums_dtype = jnp.float32 if program.scales is None else jnp.int32
    place = jnp.arange(tiles.rows, dtype=jnp.int32)
    row, exists = program.first + place, place < program.length
    source = row if program.rows is None else plgpu.load(program.rows.at[row], mask=exists, other=0)
    output = program.tile * tiles.outputs + jnp.arange(tiles.outputs, dtype=jnp.int32)
    wanted = output < outputs

    def add(step: jax.Array, sums: jax.Array) -> jax.Array:
        channel = step * tiles.inputs + jnp.arange(tiles.inputs, dtype=jnp.int32)
        inside = channel < inputs
        at_left = program.x.at[source[:, None], channel[None, :]]
        left = plgpu.load(at_left, mask=exists[:, None] & inside[None, :], other=0)
        at_right = program.weights.at[program.group, channel[:, None], output[None, :]]
        right = plgpu.load(at_right, mask=inside[:, None] & wanted[None, :], other=0)
        precision = lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT
        return sums + lax.dot(left, right, precision=precision, preferred_element_type=sums_dtype)

    nothing = jnp.zeros((tiles.rows, tiles.outputs), sums_dtype)
    sums = lax.fori_loop(0, pl.cdiv(inputs, tiles.inputs), add, nothing)
    if program.scales is not None and program.row_scales is not None:
        by_row = plgpu.load(program.row_scales.at[source], mask=exists, other=0.0)
        by_output = plgpu.load(program.scales.at[program.group, output], mask=wanted, other=0.0)
        sums = sums.astype(jnp.float32) * by_row[:, None] * by_output[None, :]
    to = program.result.at[row[:, None], output[None, :]]
    plgpu.store(to, sums.astype(program.result.dtype), mask=exists[:, None] & wanted[None, :])
