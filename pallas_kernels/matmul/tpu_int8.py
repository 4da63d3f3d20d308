"""int8 by int8 beside many rows on a TPU: rows are rounded in one pass, and sums of integers scaled where they are made.

XLA writes the sums as int32 and reads them again to scale them: four bytes to and four from memory for every result.
`benchmarks/tpu_products.py` has both. Of several devices each multiplies its own outputs (`parts.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.matmul.parts import WHOLE, Parts
from pallas_kernels.matmul.rows import largest_magnitudes, quantise_rows, round_rows
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.chip import MIB, SIMULATED, Chip, target_chip

CHIPS = ("v5e", "v6e", SIMULATED)
"""Whose matrix units take integers at twice the rate of bfloat16, and whose schedules were read."""
ROWS = 512
"""Of a block."""
ROUNDED = 128
"""Rows that are rounded at once."""
OUTPUTS = (*range(2048, 0, -256), 128)
"""Of a block, as many as leave no rest and fit half of VMEM: so often are rows read again."""


def takes(x: Any, weight: Any) -> bool:
    """Whether the kernel is for a device's rows `x [N, I]` of bfloat16, or part of its inputs, beside int8 `weight [O, I]`."""
    chip, mesh = target_chip(), jax.sharding.get_abstract_mesh()
    if (
        chip is None
        or chip.name not in CHIPS
        or x.ndim != 2
        or x.dtype != jnp.bfloat16
        or (mesh.size > 1 and not mesh.are_all_axes_manual)  # XLA cannot cut a kernel
    ):
        return False
    return x.shape[1] % LANES == 0 and block_outputs(chip, weight) is not None


def multiply(
    x: jax.Array, weight: jax.Array, scales: jax.Array, *, dtype: DTypeLike, parts: Parts = WHOLE
) -> jax.Array:
    """`x [N, I]` by int8 `weight [O, I]` and its scales `[O]` -> `[N, O]` of `dtype`."""
    chip = target_chip()
    assert chip is not None  # `takes` has seen to it
    if parts.inputs:
        [largest] = _by_rows(_find_largest, False, x)
        values, row_scales = parts.gather(*_by_rows(_round_rows, True, x, parts.largest(largest)))
    else:
        values, row_scales = parts.gather(*_by_rows(_quantise_rows, True, x))
    return _call(chip, jnp.dtype(dtype), values, row_scales, weight, scales[None])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _by_rows(kernel: Callable[..., None], rounds: bool, *rows: jax.Array) -> list[jax.Array]:
    """What `kernel` makes of `[N, I]`, and `[N, 1]`, in one pass: int8 `[N, I]` if it `rounds`, and float32 `[N, 1]`."""
    count, inputs = rows[0].shape
    made = [((count, inputs), jnp.int8)] * rounds + [((count, 1), jnp.float32)]

    def spec(columns: int) -> Any:
        return pl.BlockSpec((ROUNDED, columns), lambda row: (row, 0))

    results: list[jax.Array] = pl.pallas_call(
        kernel,
        name=kernel.__name__.strip("_"),
        grid=(pl.cdiv(count, ROUNDED),),
        in_specs=[spec(array.shape[1]) for array in rows],
        out_specs=[spec(columns) for (_, columns), _ in made],
        out_shape=[jax.ShapeDtypeStruct(*shape_and_type) for shape_and_type in made],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",), vmem_limit_bytes=64 * MIB),
    )(*rows)
    return results


def _quantise_rows(x: Any, values: Any, scales: Any) -> None:
    values[...], scales[...] = quantise_rows(x[...])


def _find_largest(x: Any, largest: Any) -> None:
    largest[...] = largest_magnitudes(x[...])


def _round_rows(x: Any, largest: Any, values: Any, scales: Any) -> None:
    values[...], scales[...] = round_rows(x[...], largest[...])


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
