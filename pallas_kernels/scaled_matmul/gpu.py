"""The product with a matrix of 4 or 8 bits in Pallas through Triton, for NVIDIA GPUs from Ampere on: it is read as it is kept.

A program multiplies some rows of the kept matrix with some rows of `x`, over its share of the inputs; numbers become bfloat16 in
registers (`pallas_kernels/gpu/numbers.py`). The sums of each group of inputs are scaled, not the numbers: no number is rounded,
and beside few rows it is less work. Of two numbers to a byte there are two products, of even and of odd outputs. Where few
outputs would leave multiprocessors idle, several programs share the inputs; their sums are added in a fixed order.

Beside many rows numbers would be taken apart once for every tile of rows: there `xla` writes a dense matrix once.
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

MOST_ROWS, MOST_ROWS_OF_SMALL_GROUPS = 256, 64
"""Beside more rows `xla` makes the matrix dense, which is faster then (`benchmarks/gpu_products.py`, an H100); groups of fewer
than 64 inputs have more sums to scale.
"""
MULTIPROCESSORS = 132  # of an H100


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """What one program multiplies: `rows` by `kept` rows of the matrix as it is kept, `inputs` at a time; powers of two.

    `splits` programs share the inputs.
    """

    rows: int
    kept: int
    inputs: int
    splits: int
    warps: int
    stages: int


def choose_tiles(*, rows: int, kept: int, inputs: int) -> Tiles:
    """For a matrix of `kept` rows of bytes."""
    height = min(64, max(16, pl.next_power_of_2(rows)))
    width = 32 if height == 16 and kept >= 64 * MULTIPROCESSORS else 64
    programs = pl.cdiv(kept, width) * pl.cdiv(rows, height)
    splits = max(1, min(2 * MULTIPROCESSORS // programs, inputs // 512))
    return Tiles(height, width, min(128, max(LEAST_INPUTS, pl.next_power_of_2(inputs))), splits, warps=4, stages=4)


def supports(
    x: Any, weight: Any, scales: Any, zeros: Any, *, group: int, compute: DTypeLike, **options: Any
) -> str | None:
    """None, or why not."""
    rows = math.prod(x.shape[:-1])
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the GPU kernel multiplies bfloat16"
    if len(scales) > 1 and group % LEAST_INPUTS:
        return f"groups of {group} inputs; the GPU kernel multiplies {LEAST_INPUTS} of a group at once"
    if len(scales) == 1 and weight.dtype != jnp.uint8:
        return "a scale for each output alone; XLA's own product reads such numbers as they are kept, and no slower"
    most = MOST_ROWS if group >= 64 else MOST_ROWS_OF_SMALL_GROUPS
    if rows > most:
        return f"{rows} rows; beside more than {most} a dense matrix is faster"
    if math.prod(weight.shape) >= MOST_VALUES:
        return f"a matrix of {math.prod(weight.shape)} bytes; the kernel counts to {MOST_VALUES}"
    return gpu_refused(AMPERE)


def scaled_matmul(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    round_rows: bool,
    precision: jax.lax.Precision,
    used: jax.Array | None = None,
) -> jax.Array:
    """See the op's contract. The matrix is not rounded."""
    rows = x.reshape(-1, x.shape[-1]).astype(compute)
    kept, inputs = weight.shape
    tiles = choose_tiles(rows=len(rows), kept=kept, inputs=inputs)
    products = multiply(rows, weight, scales, zeros, group=group, pairs=pairs, tiles=tiles)
    return products.reshape(*x.shape[:-1], -1)


def multiply(
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    *,
    group: int,
    pairs: str,
    tiles: Tiles,
) -> jax.Array:
    """`x [N, I]` of bfloat16 times the matrix -> float32 `[N, O]`."""
    (count, _), kept, outputs = x.shape, weight.shape[0], scales.shape[1]
    operands = [x, as_bytes(weight), scales, *([] if zeros is None else [zeros])]
    partial = pl.pallas_call(
        functools.partial(_kernel, dtype=weight.dtype, group=group, pairs=pairs, tiles=tiles),
        out_shape=jax.ShapeDtypeStruct((tiles.splits, count, outputs), jnp.float32),
        grid=(pl.cdiv(count, tiles.rows), pl.cdiv(kept, tiles.kept), tiles.splits),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpreted(),
        name="scaled_matmul",
    )(*operands)
    return functools.reduce(operator.add, (partial[split] for split in range(tiles.splits)))


def _kernel(
    x: Any, weight: Any, scales: Any, *rest: Any, dtype: DTypeLike, group: int, pairs: str, tiles: Tiles
) -> None:
    """`weight` as bytes of `dtype`; `rest`: `zeros [Q, O]` if there are any, and results `[splits, N, O]`.

    The grid is `(tiles of N, tiles of kept rows, splits)`.
    """
    *given, results = rest
    zeros = given[0] if given else None
    (count, inputs), kept = x.shape, weight.shape[0]
    each = results.shape[2] // kept
    row = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows, dtype=jnp.int32)
    own = pl.program_id(1) * tiles.kept + jnp.arange(tiles.kept, dtype=jnp.int32)
    exists, wanted = row < count, None if kept % tiles.kept == 0 else own < kept
    outputs = [each * own + number for number in range(each)]
    by_group = scales.shape[0] > 1 or zeros is not None
    piece = piece_inputs(tiles.inputs, group if scales.shape[0] > 1 else None)

    def products(number: jax.Array) -> list[Product]:
        channel = number * piece + jnp.arange(piece, dtype=jnp.int32)
        inside = None if inputs % tiles.inputs == 0 else channel[None, :] < inputs
        of_matrix = load(weight.at[own[:, None], channel[None, :]], None if wanted is None else wanted[:, None], inside)
        rows = load(x.at[row[:, None], channel[None, :]], exists[:, None], inside)
        sums = None if zeros is None else rows.astype(jnp.float32).sum(axis=1)
        return [Product(_product(rows, matrix), sums) for matrix in numbers(of_matrix, dtype, pairs=pairs)]

    def factors(number: jax.Array) -> list[Factors]:
        at = jnp.minimum(number * piece // group, scales.shape[0] - 1)
        return [load_factors(scales, zeros, (at, output), wanted) for output in outputs]

    steps = pl.cdiv(inputs, tiles.inputs)
    share = pl.cdiv(steps, tiles.splits)
    begin = pl.program_id(2) * share
    nothing = [jnp.zeros((tiles.rows, tiles.kept), jnp.float32)] * each
    sums = scaled_sums(
        (begin, jnp.minimum(begin + share, steps)),
        tiles.inputs // piece,
        products,
        factors if by_group else None,
        nothing,
    )
    if not by_group:
        sums = [found * of.scales[None, :] for found, of in zip(sums, factors(jnp.int32(0)), strict=True)]
    for output, found in zip(outputs, sums, strict=True):
        mask = exists[:, None] if wanted is None else exists[:, None] & wanted[None, :]
        plgpu.store(results.at[pl.program_id(2), row[:, None], output[None, :]], found, mask=mask)


def _product(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    return lax.dot_general(rows, matrix, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
