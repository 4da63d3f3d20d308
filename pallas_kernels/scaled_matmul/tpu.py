"""The product on a TPU in Pallas: a block of the matrix is read as it is kept, and made bfloat16 on the way to the matrix units.

Beside few rows the sums of each group are scaled, not the numbers: 4 bits cost little more than reading them. Beside many, a
block of the matrix is made dense once, in VMEM, and multiplied with all rows; its scales are spread over inputs by a product.
tpu7x is the one chip where XLA writes a matrix of 8 bits as bfloat16 first: there float8 is faster by this kernel.
Figures are in `benchmarks/tpu_products.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.scaled_matmul.dense import floats
from pallas_kernels.scaled_matmul.spread import group_sums, without_zeros
from pallas_kernels.scaled_matmul.tpu_numbers import less, numbers
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.chip import MIB, NO_TPU, Chip, target_chip

FEW_ROWS = 128
"""Up to so many rows scaling a group's sums takes less than scaling its numbers."""
ROWS, OUTPUTS = 256, 256
"""Of a block; of outputs there are more where VMEM holds them, so that rows are read less often."""
UNCONVERTED = ("tpu7x", "7x")
"""Where XLA writes a matrix as bfloat16 before it multiplies."""
SPREAD = 512
"""Inputs whose scales are spread at once."""


def supports(
    x: Any, weight: Any, scales: Any, zeros: Any, *, group: int, compute: DTypeLike, **options: Any
) -> str | None:
    """None, or why not."""
    if jnp.dtype(compute) != jnp.bfloat16:
        return f"compute is {jnp.dtype(compute)}; the TPU kernel multiplies bfloat16"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    few = math.prod(x.shape[:-1]) <= FEW_ROWS
    if len(scales) == 1 and weight.dtype != jnp.uint8 and not (few and chip.name in UNCONVERTED):
        return "one scale for all inputs of 8 bits needs no kernel: XLA converts them on the way as well"
    if _vmem_bytes(weight, OUTPUTS, ROWS) > chip.vmem_bytes // 2:
        return (
            f"{OUTPUTS} outputs of {weight.shape[1]} inputs and {ROWS} rows do not fit {chip.vmem_bytes} bytes of VMEM"
        )
    return None


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
    result: DTypeLike = jnp.float32,
) -> jax.Array:
    """See the op's contract. Results are rounded here: XLA would read and write them once more."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    rows = x.reshape(-1, x.shape[-1]).astype(compute)
    few = few_rows(len(rows), len(scales), group)
    taken = None
    if zeros is not None and few:
        taken = zeros, group_sums(rows, len(scales), group=group, precision=precision)
    rounded = jnp.dtype(result) == jnp.bfloat16 and (zeros is None or few)
    products = _multiply(chip, group, pairs, jnp.bfloat16 if rounded else jnp.float32, rows, weight, scales, taken)
    if zeros is not None and not few:  # XLA's product for them rounds results as well
        products = without_zeros(products, rows, scales, zeros, group=group, precision=precision)
    return products.reshape(*x.shape[:-1], -1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))  # layers share what takes seconds to trace
def _multiply(
    chip: Chip,
    group: int,
    pairs: str,
    result: DTypeLike,
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    taken: tuple[jax.Array, jax.Array] | None,
) -> jax.Array:
    """`taken`: zeros, and the sums of each group's inputs `[N, Q]`, as often as which they are taken off."""
    (count, inputs), outputs = x.shape, scales.shape[1]
    few = few_rows(count, len(scales), group)
    rows = min(ROWS, count)
    block = block_outputs(chip, weight, outputs, few=few)
    kept = block * len(weight) // outputs
    groups = len(scales)
    of_outputs = pl.BlockSpec((groups, block), lambda at, row: (0, at))
    of_rows = pl.BlockSpec((rows, groups), lambda at, row: (row, 0))
    return pl.pallas_call(
        functools.partial(_few if few else _many, group=group, pairs=pairs, chip=chip),
        name="scaled_matmul",
        grid=(pl.cdiv(outputs, block), pl.cdiv(count, rows)),
        in_specs=[
            pl.BlockSpec((rows, inputs), lambda at, row: (row, 0)),
            pl.BlockSpec((kept, inputs), lambda at, row: (at, 0)),
            of_outputs,
            *([] if taken is None else [of_outputs, of_rows]),
        ],
        out_specs=pl.BlockSpec((rows, block), lambda at, row: (row, at)),
        out_shape=jax.ShapeDtypeStruct((count, outputs), result),
        scratch_shapes=[] if few else [pltpu.VMEM((block, inputs), jnp.bfloat16)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(_vmem_bytes(weight, block, rows) + 24 * MIB, chip.vmem_bytes),
        ),
    )(x, weight, scales, *(taken or ()))


def few_rows(count: int, groups: int, group: int) -> bool:
    """Whether sums are scaled, and not numbers."""
    return count <= FEW_ROWS and (groups == 1 or group % LANES == 0)


def _few(x: Any, weight: Any, scales: Any, *rest: Any, group: int, pairs: str, chip: Chip) -> None:
    """`rest`: what is taken off, if anything is, and products."""
    *taken, products = rest
    sums, more = jnp.zeros(products.shape, jnp.float32), less(weight, chip)
    for number in range(scales.shape[0]):
        own = slice(number * group, min((number + 1) * group, x.shape[1]))
        of_group = _product(x[:, own], numbers(weight[:, own], pairs=pairs, chip=chip))
        sums += of_group * (floats(scales[number : number + 1, :]) * more)
    sums = sums - _taken(scales[...], *(array[...] for array in taken)) if taken else sums
    products[...] = sums.astype(products.dtype)


def _taken(scales: jax.Array, zeros: jax.Array, inputs: jax.Array) -> jax.Array:
    """Sums of `inputs [N, Q]` times zeros and scales, in one product of bfloat16: a float32 one is six."""
    factors = floats(zeros) * floats(scales)
    if len(factors) == 1:
        return inputs * factors
    (high, low), (inputs_high, inputs_low) = _parts(factors), _parts(inputs)
    left = jnp.concatenate([inputs_high, inputs_low, inputs_high], axis=1)
    return jnp.dot(left, jnp.concatenate([high, high, low], axis=0), preferred_element_type=jnp.float32)


def _parts(wide: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two of bfloat16 that add up to float32 numbers but for 2^-17 of each."""
    high = wide.astype(jnp.bfloat16)
    return high, (wide - high.astype(jnp.float32)).astype(jnp.bfloat16)


def _many(x: Any, weight: Any, scales: Any, products: Any, matrix: Any, *, group: int, pairs: str, chip: Chip) -> None:
    """`matrix [block, I]` is made beside the first rows, and stays for the others."""
    groups, inputs, more = scales.shape[0], x.shape[1], less(weight, chip)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        factors = (floats(scales[...]) * more).astype(jnp.bfloat16)
        for first in range(0, inputs, SPREAD):
            some = slice(first, min(first + SPREAD, inputs))
            found = numbers(weight[:, some], pairs=pairs, chip=chip)
            if groups > 1:
                shape = (groups, some.stop - first)
                of_input = (jax.lax.broadcasted_iota(jnp.int32, shape, 1) + first) // group
                own = (jax.lax.broadcasted_iota(jnp.int32, shape, 0) == of_input).astype(jnp.bfloat16)
                spread = jax.lax.dot_general(factors, own, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
                found = (found.astype(jnp.float32) * spread).astype(jnp.bfloat16)
            matrix[:, some] = found

    found = _product(x[...], matrix[...])
    found = found if groups > 1 else found * (floats(scales[...]) * more)
    products[...] = found.astype(products.dtype)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return jax.lax.dot_general(x, matrix, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def block_outputs(chip: Chip, weight: Any, outputs: int, *, few: bool) -> int:
    """As many as half of VMEM holds, of those that leave no rest if there are any; with few rows no more than one piece."""
    if few or outputs <= OUTPUTS:
        return min(OUTPUTS, outputs)
    sizes = [size for size in (4 * OUTPUTS, 2 * OUTPUTS, OUTPUTS) if size <= outputs]
    fitting = [size for size in sizes if _vmem_bytes(weight, size, ROWS) <= chip.vmem_bytes // 2]
    return next((size for size in fitting if outputs % size == 0), fitting[-1])


def _vmem_bytes(weight: Any, outputs: int, rows: int) -> int:
    """Of blocks, two of each that is copied while another is in use, and of the matrix as bfloat16."""
    inputs = weight.shape[1]
    kept = outputs * inputs // (2 if weight.dtype == jnp.uint8 else 1)
    return 2 * kept + 2 * outputs * inputs + 4 * rows * inputs + 8 * rows * outputs
