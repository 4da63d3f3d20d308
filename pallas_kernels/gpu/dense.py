"""Scaled matrices made dense on an NVIDIA GPU: read once as they are kept and written once in bfloat16.

The numbers are those of `scaled_matmul/dense.py`, to the last bit. XLA finds byte and scale of each number by itself: a step
of 2,048 tokens of Llama-3.1-8B took 18 ms more in int4 than in bfloat16 on an H200 (`results/gpu_engines.json`), where reading
and writing takes 4, and rounding results behind products another 5. With this kernel 16 prompts of 512 tokens of gpt-oss-20b
take 202 ms there for 390; of int4 it was not timed yet.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu.device import interpreted
from pallas_kernels.gpu.numbers import as_bytes, numbers
from pallas_kernels.gpu.scaled import load, load_factors
from pallas_kernels.scaled_matmul import numbers_to_a_byte

ROWS, COLUMNS = 16, 256
"""Bytes that a program reads, of which each thread has 16 at a time, as it writes 16 of numbers."""


def make_dense(
    kept: jax.Array, scales: jax.Array, zeros: jax.Array | None, *, group: int, pairs: str, inputs: int
) -> jax.Array:
    """`(kept - zeros) * scales`, rounded to bfloat16 `[G, A, B]`.

    Args:
        kept: `[G, A, B]` of the types of `scaled_matmul`; of two numbers to a byte `[G, A / 2, B]`.
        scales: `[G, Q, O]`, for `Q` groups of inputs.
        zeros: `[G, Q, O]` or None: 0.
        group: inputs that have a scale in common.
        pairs: what two numbers to a byte are.
        inputs: which axis of a matrix they are: 0, and the outputs are `B`, or 1, and the outputs are `A`.
    """
    count, rows, columns = kept.shape
    each = numbers_to_a_byte(kept)
    operands = [as_bytes(kept), scales, *([] if zeros is None else [zeros])]
    made: jax.Array = pl.pallas_call(
        functools.partial(_kernel, kept_as=kept.dtype, group=group, pairs=pairs, inputs=inputs),
        out_shape=jax.ShapeDtypeStruct((count, each * rows, columns), jnp.bfloat16),
        grid=(pl.cdiv(columns, COLUMNS), pl.cdiv(rows, ROWS), count),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpreted(),
        name="make_dense",
    )(*operands)
    return made


def _kernel(kept: Any, scales: Any, *rest: Any, kept_as: DTypeLike, group: int, pairs: str, inputs: int) -> None:
    """`rest`: zeros, if there are any, and results. The grid is `(tiles of B, tiles of bytes of A, G)`."""
    *given, results = rest
    zeros = given[0] if given else None
    which = pl.program_id(2)
    byte = pl.program_id(1) * ROWS + jnp.arange(ROWS, dtype=jnp.int32)
    column = pl.program_id(0) * COLUMNS + jnp.arange(COLUMNS, dtype=jnp.int32)
    exists = (byte < kept.shape[1])[:, None] & (column < kept.shape[2])[None, :]
    each = results.shape[1] // kept.shape[1]
    for half, found in enumerate(
        numbers(load(kept.at[which, byte[:, None], column[None, :]], exists), kept_as, pairs=pairs)
    ):
        row = each * byte + half
        of_group, output = (column // group, row) if inputs else (row // group, column)
        at = (of_group[None, :], output[:, None]) if inputs else (of_group[:, None], output[None, :])
        factors = load_factors(scales, zeros, (which, *at), exists)
        number = found.astype(jnp.float32)
        if factors.zeros is not None:
            number -= factors.zeros
        dense = (number * factors.scales).astype(jnp.bfloat16)
        plgpu.store(results.at[which, row[:, None], column[None, :]], dense, mask=exists)
