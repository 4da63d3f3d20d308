"""int8 by int8 beside many rows on a TPU: rows are rounded in one pass, and sums of integers scaled where they are made.

XLA writes the sums as int32 and reads them again to scale them: four bytes to and four from memory for every result. Thousands of
cycles of all products of a layer of Llama-3.1-8B by the compiler's schedules (libtpu 0.0.42.1; rounding included, each product by
itself, and what copies take where that is more), beside XLA's estimates:

                             v6e            v5e
    rows                 256  2,048     256  2,048
    this                 321  1,094     537  3,601
    XLA                  454  2,787     789  5,862
    bfloat16             645  2,052     945  7,221
    at the chip's peak   233    852     426  3,410
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.matmul.rows import quantise_rows
from pallas_kernels.storage import LANES
from pallas_kernels.tpu_chip import MIB, SIMULATED, Chip, target_chip

CHIPS = ("v5e", "v6e", SIMULATED)
"""Whose matrix units take integers at twice the rate of bfloat16, and whose schedules were read."""
ROWS = 512
"""Of a block."""
ROUNDED = 128
"""Rows that are rounded at once."""
OUTPUTS = (2048, 1024, 512, 256)
"""Of a block, as many as leave no rest and fit half of VMEM: so often are rows read again."""


def takes(x: Any, weight: Any) -> bool:
    """Whether the kernel is for rows `x [N, I]` of bfloat16 on one device, beside int8 `weight [O, I]`."""
    chip = target_chip()
    if (
        chip is None
        or chip.name not in CHIPS
        or x.ndim != 2
        or x.dtype != jnp.bfloat16
        or jax.sharding.get_abstract_mesh().size > 1
    ):
        return False
    return x.shape[1] % LANES == 0 and block_outputs(chip, weight) is not None


def multiply(x: jax.Array, weight: jax.Array, scales: jax.Array, *, dtype: DTypeLike) -> jax.Array:
    """`x [N, I]` by int8 `weight [O, I]` and its scales `[O]` -> `[N, O]` of `dtype`."""
    chip = target_chip()
    assert chip is not None  # `takes` has seen to it
    values, row_scales = _quantise(x)
    return _call(chip, jnp.dtype(dtype), values, row_scales, weight, scales[None])


@jax.jit
def _quantise(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`quantise_rows`, in one pass."""
    count, inputs = x.shape

    def kernel(x: Any, values: Any, scales: Any) -> None:
        values[...], scales[...] = quantise_rows(x[...])

    rows = ROUNDED
    quantised: tuple[jax.Array, jax.Array] = pl.pallas_call(
        kernel,
        name="quantise_rows",
        grid=(pl.cdiv(count, rows),),
        in_specs=[pl.BlockSpec((rows, inputs), lambda row: (row, 0))],
        out_specs=(pl.BlockSpec((rows, inputs), lambda row: (row, 0)), pl.BlockSpec((rows, 1), lambda row: (row, 0))),
        out_shape=(jax.ShapeDtypeStruct(x.shape, jnp.int8), jax.ShapeDtypeStruct((count, 1), jnp.float32)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",), vmem_limit_bytes=64 * MIB),
    )(x)
    return quantised


@functools.partial(jax.jit, static_argnums=(0, 1))  # the layers of a model share what takes seconds to trace
def _call(
    chip: Chip, dtype: Any, values: jax.Array, row_scales: jax.Array, weight: jax.Array, scales: jax.Array
) -> jax.Array:
    (count, inputs), outputs = values.shape, len(weight)
    block = block_outputs(chip, weight)
    assert block is not None
    rows = min(ROWS, count)
    product: jax.Array = pl.pallas_call(
        _kernel,
        name="int8_matmul",
        grid=(outputs // block, pl.cdiv(count, rows)),
        in_specs=[
            pl.BlockSpec((rows, inputs), lambda at, row: (row, 0)),
            pl.BlockSpec((rows, 1), lambda at, row: (row, 0)),
            pl.BlockSpec((block, inputs), lambda at, row: (at, 0)),
            pl.BlockSpec((1, block), lambda at, row: (0, at)),
        ],
        out_specs=pl.BlockSpec((rows, block), lambda at, row: (row, at)),
        out_shape=jax.ShapeDtypeStruct((count, outputs), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(_vmem_bytes(inputs, block) + 16 * MIB, chip.vmem_bytes),
        ),
    )(values, row_scales, weight, scales)
    return product


def _kernel(values: Any, row_scales: Any, weight: Any, scales: Any, products: Any) -> None:
    sums = jax.lax.dot_general(values[...], weight[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    products[...] = (sums.astype(jnp.float32) * row_scales[...] * scales[...]).astype(products.dtype)


def block_outputs(chip: Chip, weight: Any) -> int | None:
    """Outputs of a block, None where none fits."""
    outputs, inputs = weight.shape
    fitting = (size for size in OUTPUTS if outputs % size == 0 and _vmem_bytes(inputs, size) <= chip.vmem_bytes // 2)
    return next(fitting, None)


def _vmem_bytes(inputs: int, outputs: int) -> int:
    """Of blocks, two of each that is copied while another is in use, and of their sums."""
    return 2 * (outputs + ROWS) * inputs + (2 * 4 + 4) * ROWS * outputs + 2 * ROWS * LANES * 4
