"""All of it in one kernel, for many rows: what adapters add never lies in memory.

Written apart, the adapters' products are as many numbers as the matrices', and memory takes longer for them than the matrix
units: of Llama-3.1-8B with 2,048 tokens all of this takes 1,177 thousand cycles apart, 1,029 here, and 976 without adapters
(`benchmarks/results/adapters.json`). Here they are one
step more of a block's sums, which are activated where they are made. What lies between an adapter's two matrices is made of a
block's rows beside the first outputs, and stays in VMEM for the others.
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

from pallas_kernels.adapted_gate import AdaptedMatrix
from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.chip import MIB, SIMULATED, Chip, target_chip
from pallas_kernels.tpu.gates import gate_problem

CHIPS = ("v6e", SIMULATED)
"""Whose schedules were read."""
MANY_ROWS = 512
"""About what it takes that a product on v6e lasts longer than reading its matrix."""
ROWS = 512
"""Of a block."""
SPARE_BYTES = 4 * MIB
"""Of VMEM, beside what is counted. XLA keeps what it moves ahead in the rest: with 12 MiB more set aside it waited 61
thousand cycles longer for copies."""
OUTPUTS = (512, 256, 128)
"""Of a block, as many as leave no rest and fit half of VMEM."""
BY_INPUTS, BY_OUTPUTS = (((1,), (1,)), ((), ())), (((1,), (0,)), ((), ()))


def supports(
    x: Any, gate: AdaptedMatrix, up: AdaptedMatrix, rows: AdapterRows, *, gated: Any, precision: Any, **options: Any
) -> str | None:
    """None, or the chip, or what does not fill its tiles, or a gate that no kernel computes."""
    chip, mesh = target_chip(), jax.sharding.get_abstract_mesh()
    if chip is None or chip.name not in CHIPS:
        return f"it is for {', '.join(CHIPS)}, got {chip and chip.name}"
    if mesh.size > 1 and not mesh.are_all_axes_manual:
        return "XLA cannot cut a kernel for several devices"
    types = {jnp.dtype(array.dtype) for array in (x, *gate)}
    if types != {jnp.dtype(jnp.bfloat16)}:
        return f"all must be of bfloat16, got {', '.join(sorted(map(str, types)))}"
    if x.shape[0] < MANY_ROWS and chip.name != SIMULATED:
        return f"fewer rows than {MANY_ROWS}, got {x.shape[0]}: reading the matrices is what takes time"
    if (problem := gate_problem(gated)) is not None:
        return problem
    if x.shape[1] % LANES or _outputs(chip, gate, len(x)) is None:
        return f"inputs and outputs must be blocks of {LANES} that fit VMEM, got {list(gate.weight.shape)}"
    return None


def adapted_gate(
    x: jax.Array,
    gate: AdaptedMatrix,
    up: AdaptedMatrix,
    rows: AdapterRows,
    *,
    gated: Callable[[jax.Array, jax.Array], jax.Array],
    dtype: DTypeLike,
    **options: Any,
) -> jax.Array:
    """See the op's contract."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    (count, inputs), outputs = x.shape, len(gate.weight)
    rank, ranks = gate.inward.shape[1], gate.inward.shape[0] * gate.inward.shape[1]
    block, block_outputs = min(ROWS, count), _outputs(chip, gate, count)
    assert block_outputs is not None
    blocks = pl.cdiv(count, block)
    weight = pl.BlockSpec((block_outputs, inputs), lambda at, row: (at, 0))
    inward = pl.BlockSpec((ranks, inputs), lambda at, row: (0, 0))
    outward = pl.BlockSpec((ranks, block_outputs), lambda at, row: (0, at))
    result: jax.Array = pl.pallas_call(
        functools.partial(_kernel, gated=gated, rank=rank),
        name="adapted_gate",
        grid=(outputs // block_outputs, blocks),
        in_specs=[
            pl.BlockSpec((block, inputs), lambda at, row: (row, 0)),
            pl.BlockSpec((block, 1), lambda at, row: (row, 0)),
            *(weight, inward, outward) * 2,
        ],
        out_specs=pl.BlockSpec((block, block_outputs), lambda at, row: (row, at)),
        out_shape=jax.ShapeDtypeStruct((count, outputs), dtype),
        scratch_shapes=[pltpu.VMEM((2, blocks * block, ranks), x.dtype)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"),
            vmem_limit_bytes=min(_vmem_bytes(inputs, block_outputs, ranks, count) + SPARE_BYTES, chip.vmem_bytes),
        ),
    )(x, rows.adapters[:, None], *_flat(gate), *_flat(up))
    return result


def _kernel(x: Any, adapters: Any, *rest: Any, gated: Callable[[jax.Array, jax.Array], jax.Array], rank: int) -> None:
    gate, up, result, low = rest[:3], rest[3:6], rest[6], rest[7]
    rows = x.shape[0]
    own_rows = pl.ds(pl.multiple_of(pl.program_id(1) * rows, rows), rows)

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        of_rank = jax.lax.broadcasted_iota(jnp.int32, (rows, low.shape[2]), 1) // rank
        for number, (_, inward, _) in enumerate((gate, up)):
            all_ranks = _dot(x[...], inward[...], BY_INPUTS)
            low[number, own_rows, :] = jnp.where(adapters[...] == of_rank, all_ranks, 0.0).astype(low.dtype)

    def products(number: int, weight: Any, outward: Any) -> jax.Array:
        return _dot(x[...], weight[...], BY_INPUTS) + _dot(low[number, own_rows, :], outward[...], BY_OUTPUTS)

    result[...] = gated(products(0, *gate[::2]), products(1, *up[::2])).astype(result.dtype)


def _dot(left: jax.Array, right: jax.Array, axes: Any) -> jax.Array:
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def _flat(matrix: AdaptedMatrix) -> tuple[jax.Array, ...]:
    """The weight, and the adapters' matrices beside each other."""
    inward, outward = (array.reshape(-1, array.shape[2]) for array in matrix[1:])
    return matrix.weight, inward, outward


def _outputs(chip: Chip, matrix: AdaptedMatrix, count: int) -> int | None:
    """Of a block; None where none fits."""
    (outputs, inputs), ranks = matrix.weight.shape, matrix.inward.shape[0] * matrix.inward.shape[1]
    fitting = (size for size in OUTPUTS if _vmem_bytes(inputs, size, ranks, count) <= chip.vmem_bytes // 2)
    return next((size for size in fitting if outputs % size == 0), None)


def _vmem_bytes(inputs: int, outputs: int, ranks: int, count: int) -> int:
    """Of blocks of bfloat16, two of each that is copied while another is in use, of sums in float32, and of what is kept."""
    copied = ROWS * (inputs + LANES * 2 + outputs) + 2 * outputs * (inputs + ranks)
    return 2 * 2 * copied + 2 * 4 * ROWS * outputs + 2 * 2 * ranks * (2 * inputs + count)
