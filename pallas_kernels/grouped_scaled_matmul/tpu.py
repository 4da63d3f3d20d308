"""Blocks of rows of one group on a TPU, in Pallas: a group's matrix is read as it is kept and made bfloat16 beside its products.

Rows lie in whole blocks of their group, with gaps; a matrix that no row goes to is not read. Inputs of float4 are in the order in
which words of eight numbers are taken apart (`tpu_float4.py`), but on chips that have the type. XLA's form, a loop over blocks,
unpacks bytes into neighbouring lanes, and takes more than a thousand times as long (`benchmarks/tpu_products.py --experts`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.grouped_matmul.groups import group_of_row, taken
from pallas_kernels.grouped_scaled_matmul import tpu_float4
from pallas_kernels.scaled_matmul.tpu_numbers import FLOAT4_CHIPS, less, numbers
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.chip import MIB, NO_TPU, Chip, target_chip

FEWEST_ROWS, MOST_ROWS = 16, 256
"""Of a block: a tile of bfloat16, and what a matrix unit takes."""
OUTPUTS = 512
"""Of a block, of which `COLUMNS` are made bfloat16 at once."""
COLUMNS = 256
SUBLANES_OF_GROUPS = 8
"""Groups whose scales are read together where XLA lays groups out next to one another."""
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
    if _taken_apart(weights, pairs, chip):
        reason = tpu_float4.refused(group, count, zeros)
        if reason is not None:
            return reason
    if _vmem_bytes(weights, inputs, MOST_ROWS) > chip.vmem_bytes * 3 // 4:
        return f"a block of {OUTPUTS} outputs and {inputs} inputs does not fit {chip.vmem_bytes} bytes of VMEM"
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
    if _taken_apart(weights, pairs, chip):
        x = tpu_float4.ordered(x, chip)  # before rows are taken, as some are taken often
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
    blocks = taken(x, given if rows is None else rows[given])
    products = _multiply(
        chip, (group, pairs, block, jnp.dtype(dtype)), blocks, weights, scales, zeros, group_of_block, used
    )
    own = group_of_row(sizes, rows=count)
    place = before[own] * block + jnp.arange(count, dtype=jnp.int32) - starts[own]
    return taken(products, place)


def block_rows(count: int, groups: int) -> int:
    """Of so many rows: as many as each group has on average, if that is neither too few nor too many."""
    return min(MOST_ROWS, max(FEWEST_ROWS, pl.next_power_of_2(-(-count // groups))))


@functools.partial(jax.jit, static_argnums=(0, 1))  # layers share what takes seconds to trace
def _multiply(
    chip: Chip,
    settings: tuple[int, str, int, Any],
    x: jax.Array,
    weights: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    group_of_block: jax.Array,
    used: jax.Array,
) -> jax.Array:
    """Blocks of rows `x [M, I]`, each times its group's matrix -> `[M, O]`; blocks that are not `used` hold anything."""
    group, pairs, block, dtype = settings
    (places, inputs), outputs = x.shape, scales.shape[2]
    wide = OUTPUTS if outputs >= OUTPUTS else outputs // LANES * LANES or outputs

    def of_rows(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return jnp.minimum(number, used[0] - 1), 0

    def of_group(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return groups[number], 0, at

    def of_products(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return jnp.minimum(number, used[0] - 1), at

    def of_eight(at: Any, number: Any, groups: Any, used: Any) -> tuple[Any, ...]:
        return 0, groups[number] // SUBLANES_OF_GROUPS, at

    count = scales.shape[1]
    factors = [scales, *([] if zeros is None else [zeros])]
    turned = _lies_turned(scales)
    if turned:
        factors = [array.swapaxes(0, 1) for array in factors]
        shape, spec = (count, SUBLANES_OF_GROUPS, wide), of_eight
    else:
        shape, spec = (1, count, wide), of_group
    return pl.pallas_call(
        functools.partial(_kernel, group=group, count=count, turned=turned, pairs=pairs, chip=chip),
        name="grouped_scaled_matmul",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(outputs, wide), places // block),
            in_specs=[
                pl.BlockSpec((block, inputs), of_rows),
                pl.BlockSpec((1, weights.shape[1], wide), of_group),
                *[pl.BlockSpec(shape, spec)] * len(factors),
            ],
            out_specs=pl.BlockSpec((block, wide), of_products),
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32)] * len(factors),
        ),
        out_shape=jax.ShapeDtypeStruct((places, outputs), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(chip.vmem_bytes * 7 // 8, _vmem_bytes(weights, inputs, block) + 16 * MIB),
        ),
    )(group_of_block, used, x, weights, *factors)


def _kernel(
    groups: Any,
    used: Any,
    x: Any,
    weight: Any,
    scales: Any,
    *rest: Any,
    group: int,
    count: int,
    turned: bool,
    pairs: str,
    chip: Chip,
) -> None:
    """`rest`: zeros if there are any, products, and scales and zeros in float32, of which a row is read into all sublanes."""
    zeros, products, *wide = rest if len(rest) == 4 else (None, *rest)
    block, one_scale = pl.program_id(1), count == 1
    columns = COLUMNS if products.shape[1] % COLUMNS == 0 else min(LANES, products.shape[1])

    def factor(kept: Any, number: int, own: Any) -> jax.Array:
        """Those of one group of inputs, float32 `[1, columns]`."""
        if turned:
            return kept[number, pl.ds(groups[block] % SUBLANES_OF_GROUPS, 1), own]
        return kept[0, pl.ds(number, 1), own]

    def spread(kept: Any, number: int, own: Any, rows: int) -> jax.Array:
        return jnp.broadcast_to(factor(kept, number, own), (rows, columns)).astype(jnp.bfloat16)

    def parts(own: Any) -> Iterator[jax.Array]:
        """The matrix's rows for these outputs, group by group."""
        found = numbers(weight[0, :, own], pairs=pairs, chip=chip)
        for number in range(count):
            part = found[number * group : (number + 1) * group]
            if zeros is not None:
                part -= spread(wide[1], number, own, len(part))
            yield part if one_scale else part * spread(wide[0], number, own, len(part))

    before = groups[jnp.maximum(block - 1, 0)]
    eight = SUBLANES_OF_GROUPS if turned else 1

    @pl.when((block == 0) | (groups[block] // eight != before // eight))
    def _() -> None:
        more = less(weight[0], chip)
        wide[0][...] = scales[...].astype(jnp.float32) * more
        if zeros is not None:
            wide[1][...] = zeros[...].astype(jnp.float32) / more

    @pl.when(block < used[0])
    def _() -> None:
        @pl.loop(0, products.shape[1] // columns)
        def _(at: jax.Array) -> None:
            own = pl.ds(pl.multiple_of(at * columns, min(LANES, columns)), columns)
            if _taken_apart(weight, pairs, chip):
                scale = None if one_scale else lambda number: factor(wide[0], number, own)
                made = tpu_float4.matrix(weight[0, :, own], scale, group, chip)
            else:
                made = list(parts(own))
            matrix = made[0] if len(made) == 1 else jnp.concatenate(made, axis=0)
            found = jnp.dot(x[...], matrix, preferred_element_type=jnp.float32)
            products[:, own] = (found * factor(wide[0], 0, own) if one_scale else found).astype(products.dtype)


def _lies_turned(scales: Any) -> bool:
    """Whether XLA lays scales `[G, Q, O]` out as `[Q, G, O]`: `Q` would leave sublanes empty. Any other order would be a copy."""
    matrices, count, _ = scales.shape
    return count % SUBLANES_OF_GROUPS != 0 and matrices % SUBLANES_OF_GROUPS == 0


def _taken_apart(weights: Any, pairs: str, chip: Chip) -> bool:
    return weights.dtype == jnp.uint8 and pairs == "float4_e2m1fn" and chip.name not in FLOAT4_CHIPS


def _vmem_bytes(weights: Any, inputs: int, rows: int) -> int:
    """Of blocks, two of each that is copied while another is in use, and of what is bfloat16 at once."""
    return 2 * OUTPUTS * weights.shape[1] + 4 * rows * inputs + 8 * rows * OUTPUTS + 4 * COLUMNS * inputs
