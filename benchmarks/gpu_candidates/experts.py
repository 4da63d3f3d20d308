"""Few rows of each group times its matrix of 4 bits, in Pallas through Triton, for NVIDIA GPUs from Ampere on.

As `grouped_scaled_matmul/gpu.py`, with the matrix as the left factor, as in `few.py`.
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
from jax.typing import DTypeLike

from benchmarks.gpu_candidates.fours import TIMES, fours
from pallas_kernels.gpu.device import interpreted
from pallas_kernels.gpu.scaled import load, load_factors, multiply_add, piece_inputs
from pallas_kernels.grouped_matmul.groups import most_blocks, row_blocks


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """What one program multiplies: `rows` by `outputs`, `inputs` at a time, powers of two; `splits` programs share the inputs."""

    rows: int
    outputs: int
    inputs: int
    splits: int
    warps: int
    stages: int


def fits(tiles: Tiles, *, inputs: int, outputs: int, group: int) -> bool:
    """Whether tiles divide a matrix: nothing is masked but rows."""
    piece = piece_inputs(tiles.inputs, group)
    return outputs % tiles.outputs == 0 and inputs % tiles.inputs == 0 and piece >= 32


def multiply(
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    scales: jax.Array,
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
    assert fits(tiles, inputs=2 * kept, outputs=outputs, group=group)
    parts = x.reshape(len(x), kept, 2).transpose(2, 0, 1)  # inputs whose numbers are in the same bits
    blocks = most_blocks(count, groups, tiles.rows)
    operands = [*row_blocks(sizes, blocks, tiles.rows), parts, weights, scales, *([] if rows is None else [rows])]
    partial = pl.pallas_call(
        functools.partial(_kernel, group=group, pairs=pairs, tiles=tiles),
        out_shape=jax.ShapeDtypeStruct((tiles.splits, count, outputs), dtype if tiles.splits == 1 else jnp.float32),
        # A block's programs follow each other: its rows stay in the cache.
        grid=(outputs // tiles.outputs, tiles.splits, blocks),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpreted(),
        name="grouped_scaled_matmul_few",
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
    group: int,
    pairs: str,
    tiles: Tiles,
) -> None:
    """Refs: the blocks; `x [2, N, I / 2]`; `weights [G, I / 2, O]`; `scales`; `rest`: `rows [M]` if given,
    and results `[splits, M, O]`.

    The grid is `(tiles of O, splits, blocks)`. Rows of no block are not written.
    """
    *given, results = rest
    tile, split, block = (pl.program_id(axis) for axis in range(3))
    own, exist = group_of_block[block], length[block]
    piece = piece_inputs(tiles.inputs, group)
    pieces, steps = tiles.inputs // piece, 2 * x.shape[2] // tiles.inputs

    @pl.when(exist > 0)
    def _() -> None:
        place = jnp.arange(tiles.rows, dtype=jnp.int32)
        row, exists = first[block] + place, place < exist
        source = load(given[0].at[row], exists) if given else row
        output = tile * tiles.outputs + jnp.arange(tiles.outputs, dtype=jnp.int32)

        def factors(step: jax.Array) -> list[jax.Array]:
            last = scales.shape[1] - 1
            at = [jnp.minimum((step * pieces + number) * piece // group, last) for number in range(pieces)]
            return [load_factors(scales, None, (own, of, output), None).scales * TIMES[pairs] for of in at]

        def add(step: jax.Array, carry: tuple[jax.Array, list[jax.Array]]) -> Any:
            sums, factor = carry
            following = factors(step + 1)  # on their way while this step is computed
            for number in range(pieces):
                byte = (step * pieces + number) * (piece // 2) + jnp.arange(piece // 2, dtype=jnp.int32)
                # Not transposed afterwards, or Triton does not read them ahead.
                matrix = fours(load(weights.at[own, byte[None, :], output[:, None]]), pairs)
                parts = [load(x.at[part, source[None, :], byte[:, None]], exists[None, :]) for part in range(2)]
                found = functools.reduce(operator.add, map(_product, matrix, parts))
                sums = multiply_add(found, jnp.broadcast_to(factor[number][:, None], found.shape), sums)
            return sums, following

        share = pl.cdiv(steps, tiles.splits)
        begin = split * share
        nothing = jnp.zeros((tiles.outputs, tiles.rows), jnp.float32)
        sums, _ = lax.fori_loop(begin, jnp.minimum(begin + share, steps), add, (nothing, factors(begin)))
        mask = jnp.broadcast_to(exists[None, :], sums.shape)
        plgpu.store(results.at[split, row[None, :], output[:, None]], sums.astype(results.dtype), mask=mask)


def _product(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.dot(matrix, rows, preferred_element_type=jnp.float32)
