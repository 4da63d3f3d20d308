"""Few rows on a TPU: all of them stay in VMEM while the matrices that any goes to pass by, each once.

Rows that are taken are all multiplied with every such matrix, which takes the matrix units hardly more than to have it, and what
is of a group's own is moved to its place. Sorted rows are multiplied in windows of whole tiles, of which a group keeps its own.
XLA's moves of rows into blocks and back take longer than reading matrices where experts are on many devices: there are as many
rows as on all of them together.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped_scaled_matmul.tpu_matrix import Kept, columns_at_once, each_columns, outputs_of_block
from pallas_kernels.take_rows import take_rows
from pallas_kernels.tpu.chip import MIB, SIMULATED, Chip

MOST_TAKEN, MOST_ROWS = 128, 2048
"""Rows of which the kernel takes some, and places of rows by group, up to which this is the way."""
SIMULATED_ROWS = 128
"""The latter in tests, which have both ways."""
LEAST_WINDOW, MOST_WINDOW, TILE = 64, 256, 16
"""Sorted rows that are multiplied at once, and those that a tile of bfloat16 has."""


def fitting(
    chip: Chip, kept: Kept, x: jax.Array, weights: jax.Array, rows: Any, sizes: jax.Array
) -> tuple[jax.Array, Any] | None:
    """Rows and which of them are taken, as `multiply` takes them; None: they are too many. Of many rows some are taken by XLA."""
    count = len(x if rows is None else rows)
    if count > (SIMULATED_ROWS if chip.name == SIMULATED else MOST_ROWS):
        return None
    if rows is not None and len(x) > MOST_TAKEN:
        x, rows = take_rows(x, rows, sizes.sum(), platform="tpu"), None
    needed = _vmem_bytes(kept, weights, len(x), count, taken=rows is not None)
    return (x, rows) if needed <= chip.vmem_bytes // 2 else None


def multiply(
    chip: Chip,
    kept: Kept,
    dtype: Any,
    x: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    rows: Any,
    *factors: jax.Array,
) -> jax.Array:
    """`x [N, I]` in bfloat16 -> `[M, O]`; `factors` are scales and zeros."""
    count = len(x if rows is None else rows)
    places = -(-count // TILE) * TILE
    window = None if rows is not None else window_rows(places, len(sizes))
    if rows is None:
        x = jnp.pad(x, ((0, places - count), (0, 0)))
    scalars = visits(sizes, places=places, window=window)
    found = _call(
        chip, kept, (window, places, dtype), scalars if rows is None else (*scalars, rows), x, weights, factors
    )
    return found[:count]


def window_rows(places: int, groups: int) -> int:
    """Of so many rows those that are multiplied at once: more than a group has on average, so that its matrix is made once."""
    return min(places, MOST_WINDOW, max(LEAST_WINDOW, -(-places // groups // TILE) * TILE + TILE))


def visits(sizes: jax.Array, *, places: int, window: int | None, tile: int = TILE) -> tuple[jax.Array, ...]:
    """How many visits of a matrix there are, one at least; of each its group, the first row that it is for, and the one behind.

    With `window` a visit is for so many rows from the beginning of a tile of rows, the first of which are told as well.
    """
    groups, ends = len(sizes), jnp.cumsum(sizes)
    starts = ends - sizes
    if window is None:
        tiles, most = starts, groups
        visits_of = (sizes > 0).astype(jnp.int32)
    else:
        tiles, most = starts // tile * tile, groups + (places + groups * (tile - 1)) // window
        visits_of = jnp.where(sizes > 0, -(-(ends - tiles) // window), 0)
    visits_to = jnp.cumsum(visits_of)
    used = jnp.maximum(visits_to[-1], 1)
    number = jnp.minimum(jnp.arange(most, dtype=jnp.int32), used - 1)
    group = jnp.minimum((visits_to[None] <= number[:, None]).sum(axis=1, dtype=jnp.int32), groups - 1)
    if window is None:
        return used, group, starts[group], ends[group]
    first = tiles[group] + (number - (visits_to - visits_of)[group]) * window
    begins, stops = jnp.maximum(starts[group], first), jnp.minimum(ends[group], first + window)
    return used, group, begins, stops, jnp.clip(first, 0, max(0, places - window))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # layers share what takes seconds to trace
def _call(
    chip: Chip,
    kept: Kept,
    settings: tuple[int | None, int, Any],
    scalars: tuple[jax.Array, ...],
    x: jax.Array,
    weights: jax.Array,
    factors: tuple[jax.Array, ...],
) -> jax.Array:
    window, places, dtype = settings
    used, *given = scalars
    outputs = factors[0].shape[2]
    wide = outputs_of_block(weights, kept.pairs, chip)
    given_factors, shape, of_factors = kept.blocks(factors, wide)
    of_all = [] if window is not None else [pltpu.VMEM((len(x), wide), jnp.float32)]
    return pl.pallas_call(
        functools.partial(_kernel, kept=kept, window=window, factors=len(factors)),
        name="few_grouped_scaled_matmul",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(given),
            grid=(pl.cdiv(outputs, wide), used),
            in_specs=[
                pl.BlockSpec(x.shape, lambda at, visit, *scalars: (0, 0)),
                pl.BlockSpec((1, weights.shape[1], wide), lambda at, visit, groups, *rest: (groups[visit], 0, at)),
                *[pl.BlockSpec(shape, of_factors)] * len(factors),
            ],
            out_specs=pl.BlockSpec((places, wide), lambda at, visit, *scalars: (0, at)),
            scratch_shapes=[
                *kept.scratch(weights, shape, len(factors)),
                pltpu.VMEM((places, wide), jnp.float32),
                *of_all,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((places, outputs), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=min(
                chip.vmem_bytes * 7 // 8,
                _vmem_bytes(kept, weights, len(x), places, taken=window is None) + 16 * MIB,
            ),
        ),
    )(*given, x, where_it_lies(chip, weights), *given_factors)


def where_it_lies(chip: Chip, weights: jax.Array) -> jax.Array:
    """Read in HBM: XLA would move matrices into VMEM first, those as well that no row goes to."""
    return weights if chip.name == SIMULATED else pltpu.with_memory_space_constraint(weights, pltpu.HBM)


def _kernel(
    groups: Any,
    begins: Any,
    stops: Any,
    given: Any,
    x: Any,
    weight: Any,
    *rest: Any,
    kept: Kept,
    window: int | None,
    factors: int,
) -> None:
    """`given` are the first rows of windows, or the rows that are taken.

    `rest`: scales, zeros if there are any, products, what `kept` makes of the first two, sums of all places, and where rows are
    taken those of all rows.
    """
    products, wide, (sums, *own_sums) = rest[factors], rest[factors + 1 : 2 * factors + 1], rest[2 * factors + 1 :]
    visit = pl.program_id(1)
    kept.widen_if_other(groups, visit, weight, rest[:factors], wide)

    begin, stop = begins[visit], stops[visit]

    @each_columns(weight, products.shape[1])
    def _(own: Any) -> None:
        matrix, factor = kept.columns(weight, wide, groups[visit], own)
        some = slice(None) if window is None else pl.ds(pl.multiple_of(given[visit], TILE), window)
        found = jnp.dot(x[some, :], matrix, preferred_element_type=jnp.float32)
        found = found if factor is None else found * factor
        if window is None:
            own_sums[0][:, own] = found
        else:
            row = jax.lax.broadcasted_iota(jnp.int32, found.shape, 0) + given[visit]
            sums[some, own] = jnp.where((row >= begin) & (row < stop), found, sums[some, own])

    if window is None:

        @pl.loop(begin, stop)
        def move(place: jax.Array) -> None:
            sums[pl.ds(place, 1), :] = own_sums[0][pl.ds(given[place], 1), :]

    @pl.when(visit == pl.num_programs(1) - 1)
    def _() -> None:
        products[...] = sums[...].astype(products.dtype)


def _vmem_bytes(kept: Kept, weights: Any, rows: int, places: int, *, taken: bool) -> int:
    """Of blocks, two of each that is copied while another is in use, of sums, and of what is bfloat16 at once."""
    inputs = weights.shape[1] * (2 if weights.dtype == jnp.uint8 else 1)
    wide = outputs_of_block(weights, kept.pairs, kept.chip)
    return (
        2 * wide * weights.shape[1]
        + 4 * rows * inputs
        + (12 * places + 4 * rows * taken) * wide
        + 4 * columns_at_once(weights, wide) * inputs
    )
