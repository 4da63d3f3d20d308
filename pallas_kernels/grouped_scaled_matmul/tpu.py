"""Blocks of rows of one group on a TPU, in Pallas: a group's matrix is read as it is kept and made bfloat16 beside its products.

Rows lie in whole blocks of their group, with gaps, but for few (`tpu_few.py`, `tpu_group_sums.py`). A matrix that no row goes to
is not read. Inputs of float4 are in the order in which words of eight numbers are taken apart (`tpu_float4.py`), but on chips
that have the type.
XLA's form, a loop over blocks, unpacks bytes into neighbouring lanes, and takes more than a thousand times as long
(`benchmarks/tpu_products.py --experts`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.groups import group_of_row
from pallas_kernels.grouped_scaled_matmul import tpu_few, tpu_float4, tpu_group_sums, tpu_order
from pallas_kernels.grouped_scaled_matmul.tpu_matrix import (
    Kept,
    columns_at_once,
    each_columns,
    factor_bytes,
    outputs_of_block,
    read_together,
    taken_apart,
)
from pallas_kernels.take_rows import take_rows
from pallas_kernels.tpu.chip import MIB, NO_TPU, Chip, target_chip

FEWEST_ROWS, MOST_ROWS = 16, 256
"""Of a block: a tile of bfloat16, and what a matrix unit takes."""
INPUTS_OF_TILE = 64
"""Inputs that fill a tile of bytes with two numbers each."""


def supports(
    x: Any,
    weights: Any,
    sizes: Any,
    scales: Any,
    zeros: Any,
    *,
    group: int,
    compute: DTypeLike,
    pairs: str,
    **options: Any,
) -> str | None:
    """None, or why not."""
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the TPU kernel multiplies bfloat16"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    inputs, count = x.shape[1], scales.shape[1]
    if inputs % INPUTS_OF_TILE:
        return f"{inputs} inputs are not a multiple of {INPUTS_OF_TILE}, which fill a TPU's tiles"
    if count > 1 and group % FEWEST_ROWS:
        return f"groups of {group} inputs are not a multiple of {FEWEST_ROWS}, which fill a TPU's tiles"
    if taken_apart(weights, pairs, chip):
        reason = tpu_float4.refused(group, count, zeros)
        if reason is not None:
            return reason
    wide = outputs_of_block(weights, pairs, chip)
    blocks = _vmem_bytes(weights, wide, inputs, MOST_ROWS)
    if blocks > chip.vmem_bytes * 3 // 4 or blocks + factor_bytes(scales, zeros, wide) > chip.vmem_bytes * 7 // 8:
        return f"a block of {wide} outputs and {inputs} inputs does not fit {chip.vmem_bytes} bytes of VMEM"
    return None


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
    """See the op's contract."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    x = x.astype(compute)
    if taken_apart(weights, pairs, chip):
        x = tpu_order.ordered(x, chip)  # before rows are taken, as some are taken often
    kept = Kept(group, scales.shape[1], read_together(scales), pairs, chip)
    factors = (scales,) if zeros is None else (scales, zeros)
    if taken_apart(weights, pairs, chip):
        fewest = tpu_group_sums.fitting(chip, kept, x, weights, rows, sizes, scales)
        if fewest is not None:
            return tpu_group_sums.multiply(chip, kept, jnp.dtype(dtype), *fewest, weights, sizes, scales)
    if few := tpu_few.fitting(chip, kept, x, weights, rows, sizes):
        return tpu_few.multiply(chip, kept, jnp.dtype(dtype), few[0], weights, sizes, few[1], *factors)
    groups, count = len(sizes), len(x if rows is None else rows)
    block = block_rows(count, groups)
    blocks_of = -(-sizes // block)
    blocks_to, ends = jnp.cumsum(blocks_of), jnp.cumsum(sizes)
    before, starts = blocks_to - blocks_of, ends - sizes
    most = min(count, count // block + groups)  # a group's last block may have rows that are not its own

    used = jnp.maximum(blocks_to[-1:], 1)
    number = jnp.minimum(jnp.arange(most, dtype=jnp.int32), used - 1)
    group_of_block = jnp.minimum((blocks_to[None] <= number[:, None]).sum(axis=1, dtype=jnp.int32), groups - 1)
    first = starts[group_of_block] + (number - before[group_of_block]) * block
    given = jnp.minimum(first[:, None] + jnp.arange(block, dtype=jnp.int32), count - 1).reshape(-1)
    blocks = take_rows(x, given if rows is None else rows[given], used[0] * block, platform="tpu")
    products = _multiply(chip, kept, block, jnp.dtype(dtype), blocks, weights, factors, group_of_block, used)
    own = group_of_row(sizes, rows=count)
    place = before[own] * block + jnp.arange(count, dtype=jnp.int32) - starts[own]
    return take_rows(products, place, ends[-1], platform="tpu")


def block_rows(count: int, groups: int) -> int:
    """Of so many rows: as many as each group has on average, if that is neither too few nor too many."""
    return min(MOST_ROWS, max(FEWEST_ROWS, pl.next_power_of_2(-(-count // groups))))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))  # layers share what takes seconds to trace
def _multiply(
    chip: Chip,
    kept: Kept,
    block: int,
    dtype: Any,
    x: jax.Array,
    weights: jax.Array,
    factors: Sequence[jax.Array],
    group_of_block: jax.Array,
    used: jax.Array,
) -> jax.Array:
    """Blocks of rows `x [M, I]`, each times its group's matrix -> `[M, O]`; blocks that are not `used` hold anything."""
    (places, inputs), outputs = x.shape, factors[0].shape[2]
    wide = outputs_of_block(weights, kept.pairs, chip)

    def of_rows(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return jnp.minimum(number, used[0] - 1), 0

    def of_group(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return groups[number], 0, at

    def of_products(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return jnp.minimum(number, used[0] - 1), at

    factors, shape, of_factors = kept.blocks(factors, wide)
    return pl.pallas_call(
        functools.partial(_kernel, kept=kept),
        name="grouped_scaled_matmul",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(outputs, wide), places // block),
            in_specs=[
                pl.BlockSpec((block, inputs), of_rows),
                pl.BlockSpec((1, weights.shape[1], wide), of_group),
                *[pl.BlockSpec(shape, of_factors)] * len(factors),
            ],
            out_specs=pl.BlockSpec((block, wide), of_products),
            scratch_shapes=kept.scratch(weights, shape, len(factors)),
        ),
        out_shape=jax.ShapeDtypeStruct((places, outputs), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, _vmem_bytes(weights, wide, inputs, block) + 16 * MIB),
        ),
    )(group_of_block, used, x, weights, *factors)


def _kernel(groups: Any, used: Any, x: Any, weight: Any, *rest: Any, kept: Kept) -> None:
    """`rest`: scales, zeros if there are any, products, and what `kept` makes of scales and zeros."""
    factors, products, wide = rest[: len(rest) // 2], rest[len(rest) // 2], rest[len(rest) // 2 + 1 :]
    block = pl.program_id(1)
    kept.widen_if_other(groups, block, weight, factors, wide)

    @pl.when(block < used[0])
    def _() -> None:
        @each_columns(weight, products.shape[1])
        def _(own: Any) -> None:
            matrix, factor = kept.columns(weight, wide, groups[block], own)
            found = jnp.dot(x[...], matrix, preferred_element_type=jnp.float32)
            products[:, own] = (found if factor is None else found * factor).astype(products.dtype)


def _vmem_bytes(weights: Any, wide: int, inputs: int, rows: int) -> int:
    """Of blocks, two of each that is copied while another is in use, and of what is bfloat16 at once."""
    made = 4 * columns_at_once(weights, wide) * inputs
    return 2 * wide * weights.shape[1] + 4 * rows * inputs + 8 * rows * wide + made
