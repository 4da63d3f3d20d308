"""Blocks of rows of one group times tiles of its scaled matrix, in Pallas through Triton, for NVIDIA GPUs from Ampere on.

As `pallas_kernels/grouped_matmul/gpu.py`: matrices of groups without rows are not read. Numbers become bfloat16 in registers and
the sums of each group of inputs are scaled, as in `pallas_kernels/scaled_matmul/gpu.py`. Of two numbers to a byte there are two
products, of even and of odd inputs; rows are parted so before the kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu.device import AMPERE, gpu_refused, interpreted
from pallas_kernels.gpu.numbers import as_bytes, numbers
from pallas_kernels.gpu.scaled import (
    LEAST_INPUTS,
    MOST_VALUES,
    Factors,
    Product,
    load,
    load_factors,
    piece_inputs,
    scaled_sums,
)
from pallas_kernels.grouped_matmul.groups import most_blocks, row_blocks
from pallas_kernels.scaled_matmul import numbers_to_a_byte


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """What one program multiplies: `rows` by `outputs`, `inputs` at a time, powers of two; `splits` programs share the inputs."""

    rows: int
    outputs: int
    inputs: int
    splits: int
    warps: int
    stages: int


def choose_tiles(*, rows: int, groups: int, inputs: int) -> Tiles:
    """Blocks about as long as a group has rows."""
    mean, some = rows // groups, max(2 * LEAST_INPUTS, pl.next_power_of_2(inputs))
    if mean < 1:
        return Tiles(16, 64, min(128, some), splits=1 if inputs < 1024 else 2, warps=4, stages=4)
    if mean <= 8:
        return Tiles(16, 128, min(128, some), splits=1, warps=4, stages=3)
    if mean <= 32:
        return Tiles(32, 128, min(128, some), splits=1, warps=4, stages=4)
    if mean <= 64:
        return Tiles(64, 128, min(64, some), splits=1, warps=4, stages=3)
    return Tiles(128, 128, min(64, some), splits=1, warps=8, stages=3)


def supports(
    x: Any,
    weights: Any,
    sizes: Any,
    scales: Any,
    zeros: Any,
    *,
    group: int,
    compute: DTypeLike,
    **options: Any,
) -> str | None:
    """None, or why not."""
    least = LEAST_INPUTS * numbers_to_a_byte(weights)
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the GPU kernel multiplies bfloat16"
    if scales.shape[1] > 1 and group % least:
        return f"groups of {group} inputs; the GPU kernel multiplies {least} of a group at once"
    if math.prod(weights.shape) >= MOST_VALUES:
        return f"matrices of {math.prod(weights.shape)} bytes; the kernel counts to {MOST_VALUES}"
    return gpu_refused(AMPERE)


def grouped_scaled_matmul(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    rows: jax.Array | None,
    precision: jax.lax.Precision,
    dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract. Rows are gathered by the kernel; matrices are not rounded."""
    count = (x if rows is None else rows).shape[0]
    tiles = choose_tiles(rows=count, groups=weights.shape[0], inputs=x.shape[1])
    return multiply(
        x.astype(compute), weights, sizes, scales, zeros, rows, group=group, pairs=pairs, dtype=dtype, tiles=tiles
    )


def multiply(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    rows: jax.Array | None,
    *,
    group: int,
    pairs: str,
    dtype: DTypeLike,
    tiles: Tiles,
) -> jax.Array:
    """`x [N, I]` of bfloat16 times the matrices -> `[M, O]`."""
    count = (x if rows is None else rows).shape[0]
    groups, kept, outputs = weights.shape
    each = numbers_to_a_byte(weights)
    parts = x.reshape(len(x), kept, each).transpose(2, 0, 1)  # inputs whose numbers are in the same bits
    blocks = most_blocks(count, groups, tiles.rows)
    operands = [*row_blocks(sizes, blocks, tiles.rows), parts, as_bytes(weights), scales]
    operands += [array for array in (zeros, rows) if array is not None]
    wide = dtype if tiles.splits == 1 else jnp.float32
    partial = pl.pallas_call(
        functools.partial(
            _kernel,
            kept_as=weights.dtype,
            group=group,
            pairs=pairs,
            tiles=tiles,
            has_zeros=zeros is not None,
            gathers=rows is not None,
        ),
        out_shape=jax.ShapeDtypeStruct((tiles.splits, count, outputs), wide),
        # A block's programs follow each other: its rows stay in the cache.
        grid=(pl.cdiv(outputs, tiles.outputs), tiles.splits, blocks),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpreted(),
        name="grouped_scaled_matmul",
    )(*operands)
    return functools.reduce(operator.add, (partial[split] for split in range(tiles.splits))).astype(dtype)


def _kernel(
    group_of_block: Any,
    first: Any,
    length: Any,
    x: Any,
    weights: Any,
    scales: Any,
    *rest: Any,
    kept_as: DTypeLike,
    group: int,
    pairs: str,
    tiles: Tiles,
    has_zeros: bool,
    gathers: bool,
) -> None:
    """Refs: the blocks; `x [P, N, I / P]` for `P` numbers to a byte; `weights` as bytes; `scales`.

    `rest`: if any, `zeros` and `rows [M]`; results `[splits, M, O]`. The grid is `(tiles of O, splits, blocks)`. Rows of no block
    are not written.
    """
    *given, results = rest
    zeros = given.pop(0) if has_zeros else None
    tile, split, block = (pl.program_id(axis) for axis in range(3))
    own, exist = group_of_block[block], length[block]
    each, kept = x.shape[0], x.shape[2]
    outputs = weights.shape[2]
    count = scales.shape[1]
    by_group = count > 1 or has_zeros
    piece = piece_inputs(tiles.inputs, group if count > 1 else None)

    @pl.when(exist > 0)
    def _() -> None:
        place = jnp.arange(tiles.rows, dtype=jnp.int32)
        row, exists = first[block] + place, place < exist
        source = load(given[0].at[row], exists) if gathers else row
        output = tile * tiles.outputs + jnp.arange(tiles.outputs, dtype=jnp.int32)
        wanted = None if outputs % tiles.outputs == 0 else output < outputs

        def products(number: jax.Array) -> list[Product]:
            byte = number * (piece // each) + jnp.arange(piece // each, dtype=jnp.int32)
            inside = None if kept * each % tiles.inputs == 0 else byte < kept
            of_matrix = load(
                weights.at[own, byte[:, None], output[None, :]],
                None if inside is None else inside[:, None],
                None if wanted is None else wanted[None, :],
            )
            parts = [
                load(
                    x.at[part, source[:, None], byte[None, :]],
                    exists[:, None],
                    None if inside is None else inside[None, :],
                )
                for part in range(each)
            ]
            sums = None
            if zeros is not None:
                sums = functools.reduce(operator.add, (part.astype(jnp.float32).sum(axis=1) for part in parts))
            found = [
                lax.dot(part, matrix, preferred_element_type=jnp.float32)
                for part, matrix in zip(parts, numbers(of_matrix, kept_as, pairs=pairs), strict=True)
            ]
            return [Product(functools.reduce(operator.add, found), sums)]

        def factors(number: jax.Array) -> list[Factors]:
            at = jnp.minimum(number * piece // group, count - 1)
            return [load_factors(scales, zeros, (own, at, output), wanted)]

        steps = pl.cdiv(kept * each, tiles.inputs)
        share = pl.cdiv(steps, tiles.splits)
        begin = split * share
        [sums] = scaled_sums(
            (begin, jnp.minimum(begin + share, steps)),
            tiles.inputs // piece,
            products,
            factors if by_group else None,
            [jnp.zeros((tiles.rows, tiles.outputs), jnp.float32)],
        )
        if not by_group:
            sums *= factors(jnp.int32(0))[0].scales[None, :]
        mask = exists[:, None] if wanted is None else exists[:, None] & wanted[None, :]
        at = results.at[split, row[:, None], output[None, :]]
        plgpu.store(at, sums.astype(results.dtype), mask=mask)
