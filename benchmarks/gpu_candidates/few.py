"""Few rows times a matrix of 4 bits in Pallas through Triton, for NVIDIA GPUs from Ampere on, the matrix as the left factor.

So numbers are taken apart in the registers that tensor cores read, 16 outputs at once beside 8 rows, where
`scaled_matmul/gpu.py` has 16 rows beside 8 outputs: half as many instructions multiply, and rows are padded to 8. A program has
two warps, or one, so that Triton multiplies from registers on Hopper too; its outputs are blocks that share the rows, none of
more than one for each thread: each thread then reads the scales of its own outputs, which else pass shared memory.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from benchmarks.gpu_candidates.fours import TIMES, fours
from pallas_kernels.gpu.device import interpreted
from pallas_kernels.gpu.scaled import load, load_factors, multiply_add, piece_inputs


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """What one program multiplies: `rows` by `blocks` of `kept` rows of bytes, `inputs` at a time; powers of two.

    `splits` programs share the inputs.
    """

    rows: int
    kept: int
    blocks: int
    inputs: int
    splits: int
    warps: int
    stages: int


def fits(tiles: Tiles, *, kept: int, inputs: int, group: int) -> bool:
    """Whether tiles divide a matrix of `kept` rows of bytes: nothing is masked but rows."""
    piece = piece_inputs(tiles.inputs, group)
    return kept % (tiles.kept * tiles.blocks) == 0 and inputs % tiles.inputs == 0 and piece >= 16


def multiply(x: jax.Array, weight: jax.Array, scales: jax.Array, *, group: int, pairs: str, tiles: Tiles) -> jax.Array:
    """`x [N, I]` of bfloat16 times the matrix -> float32 `[N, O]`."""
    (count, inputs), kept, outputs = x.shape, weight.shape[0], scales.shape[1]
    assert fits(tiles, kept=kept, inputs=inputs, group=group)
    partial = pl.pallas_call(
        functools.partial(_kernel, group=group, pairs=pairs, tiles=tiles),
        out_shape=jax.ShapeDtypeStruct((tiles.splits, count, outputs), jnp.float32),
        grid=(pl.cdiv(count, tiles.rows), kept // (tiles.kept * tiles.blocks), tiles.splits),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpreted(),
        name="scaled_matmul_few",
    )(x, weight, scales)
    return functools.reduce(operator.add, (partial[split] for split in range(tiles.splits)))


def _kernel(x: Any, weight: Any, scales: Any, results: Any, *, group: int, pairs: str, tiles: Tiles) -> None:
    """`results [splits, N, O]`. The grid is `(tiles of N, tiles of kept rows, splits)`."""
    count, inputs = x.shape
    row = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows, dtype=jnp.int32)
    first = pl.program_id(1) * tiles.blocks * tiles.kept
    blocks = [first + block * tiles.kept + jnp.arange(tiles.kept, dtype=jnp.int32) for block in range(tiles.blocks)]
    exists = None if count % tiles.rows == 0 else (row < count)
    piece = piece_inputs(tiles.inputs, group)
    pieces = tiles.inputs // piece

    def factors(step: jax.Array) -> list[list[jax.Array]]:
        """Of every output, block by block, the lower numbers' first; for each piece of a step."""
        last = scales.shape[0] - 1
        at = [jnp.minimum((step * pieces + number) * piece // group, last) for number in range(pieces)]
        return [
            [
                load_factors(scales, None, (of_group, 2 * own + half), None).scales * TIMES[pairs]
                for own in blocks
                for half in range(2)
            ]
            for of_group in at
        ]

    def add(step: jax.Array, carry: tuple[list[jax.Array], list[list[jax.Array]]]) -> Any:
        sums, factor = carry
        following = factors(step + 1)  # on their way while this step is computed
        for number in range(pieces):
            channel = (step * pieces + number) * piece + jnp.arange(piece, dtype=jnp.int32)
            # Not transposed afterwards, or Triton does not read them ahead.
            rows = load(x.at[row[None, :], channel[:, None]], None if exists is None else exists[None, :])
            found = [
                _product(matrix, rows)
                for own in blocks
                for matrix in fours(load(weight.at[own[:, None], channel[None, :]]), pairs)
            ]
            sums = [
                multiply_add(product, jnp.broadcast_to(scale[:, None], product.shape), before)
                for product, scale, before in zip(found, factor[number], sums, strict=True)
            ]
        return sums, following

    share = pl.cdiv(inputs // tiles.inputs, tiles.splits)
    begin = pl.program_id(2) * share
    end = jnp.minimum(begin + share, inputs // tiles.inputs)
    nothing = [jnp.zeros((tiles.kept, tiles.rows), jnp.float32)] * (2 * tiles.blocks)
    sums, _ = lax.fori_loop(begin, end, add, (nothing, factors(begin)))
    for number, found in enumerate(sums):
        output = 2 * blocks[number // 2] + number % 2
        mask = None if exists is None else jnp.broadcast_to(exists[None, :], found.shape)
        plgpu.store(results.at[pl.program_id(2), row[None, :], output[:, None]], found, mask=mask)


def _product(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.dot(matrix, rows, preferred_element_type=jnp.float32)
