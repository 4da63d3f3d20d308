"""As `few.py`, for more rows on Hopper: the matrix is read as words of four bytes, as its tensor cores want it in registers.

There a thread has two neighbours of one row at a time: of bytes that is a load for each two, of words one for eight. Inputs are
taken in four parts, each of one byte of every word, by which rows are parted before the kernel.
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

from benchmarks.gpu_candidates.fours import TIMES, fours_of_words
from pallas_kernels.gpu.device import interpreted
from pallas_kernels.gpu.scaled import load, load_factors, multiply_add, piece_inputs

BYTES = 4  # of a word


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """What one program multiplies: `rows` by `kept` rows of bytes, `inputs` at a time; `splits` share the inputs."""

    rows: int
    kept: int
    inputs: int
    splits: int
    warps: int
    stages: int


def fits(tiles: Tiles, *, kept: int, inputs: int, group: int) -> bool:
    """Whether tiles divide a matrix of `kept` rows of bytes: nothing is masked but rows."""
    piece = piece_inputs(tiles.inputs, group)
    return kept % tiles.kept == 0 and inputs % tiles.inputs == 0 and piece >= 16 * BYTES


def multiply(x: jax.Array, weight: jax.Array, scales: jax.Array, *, group: int, pairs: str, tiles: Tiles) -> jax.Array:
    """`x [N, I]` of bfloat16 times the matrix -> float32 `[N, O]`."""
    (count, inputs), kept, outputs = x.shape, weight.shape[0], scales.shape[1]
    assert fits(tiles, kept=kept, inputs=inputs, group=group)
    parts = x.reshape(count, inputs // BYTES, BYTES).transpose(2, 0, 1)
    words = lax.bitcast_convert_type(weight.reshape(kept, inputs // BYTES, BYTES), jnp.uint32)
    partial = pl.pallas_call(
        functools.partial(_kernel, group=group, pairs=pairs, tiles=tiles),
        out_shape=jax.ShapeDtypeStruct((tiles.splits, count, outputs), jnp.float32),
        grid=(pl.cdiv(count, tiles.rows), kept // tiles.kept, tiles.splits),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpreted(),
        name="scaled_matmul_words",
    )(parts, words, scales)
    return functools.reduce(operator.add, (partial[split] for split in range(tiles.splits)))


def _kernel(x: Any, words: Any, scales: Any, results: Any, *, group: int, pairs: str, tiles: Tiles) -> None:
    """`x [4, N, I / 4]`; `results [splits, N, O]`. The grid is `(tiles of N, tiles of kept rows, splits)`."""
    _, count, width = x.shape
    row = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows, dtype=jnp.int32)
    own = pl.program_id(1) * tiles.kept + jnp.arange(tiles.kept, dtype=jnp.int32)
    exists = None if count % tiles.rows == 0 else (row < count)
    piece = piece_inputs(tiles.inputs, group)
    pieces, steps = tiles.inputs // piece, width * BYTES // tiles.inputs

    def factors(step: jax.Array) -> list[list[jax.Array]]:
        last = scales.shape[0] - 1
        at = [jnp.minimum((step * pieces + number) * piece // group, last) for number in range(pieces)]
        return [
            [load_factors(scales, None, (of, 2 * own + half), None).scales * TIMES[pairs] for half in range(2)]
            for of in at
        ]

    def add(step: jax.Array, carry: tuple[list[jax.Array], list[list[jax.Array]]]) -> Any:
        sums, factor = carry
        following = factors(step + 1)  # on their way while this step is computed
        for number in range(pieces):
            word = (step * pieces + number) * (piece // BYTES) + jnp.arange(piece // BYTES, dtype=jnp.int32)
            mask = None if exists is None else exists[None, :]
            parts = [load(x.at[byte, row[None, :], word[:, None]], mask) for byte in range(BYTES)]
            found = [
                functools.reduce(operator.add, map(_product, of_bytes, parts))
                for of_bytes in fours_of_words(load(words.at[own[:, None], word[None, :]]), pairs)
            ]
            sums = [
                multiply_add(product, jnp.broadcast_to(scale[:, None], product.shape), before)
                for product, scale, before in zip(found, factor[number], sums, strict=True)
            ]
        return sums, following

    share = pl.cdiv(steps, tiles.splits)
    begin = pl.program_id(2) * share
    nothing = [jnp.zeros((tiles.kept, tiles.rows), jnp.float32)] * 2
    sums, _ = lax.fori_loop(begin, jnp.minimum(begin + share, steps), add, (nothing, factors(begin)))
    for half, found in enumerate(sums):
        mask = None if exists is None else jnp.broadcast_to(exists[None, :], found.shape)
        plgpu.store(results.at[pl.program_id(2), row[None, :], (2 * own + half)[:, None]], found, mask=mask)


def _product(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    return lax.dot(matrix, rows, preferred_element_type=jnp.float32)
