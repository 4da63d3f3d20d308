"""Many rows' inputs in the order of `tpu_float4`, by the matrix unit: XLA takes halves of registers apart for that.

A product with ones and zeros changes no number; what is none goes to its neighbours in the row, whose products have it anyway.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped_scaled_matmul import tpu_float4
from pallas_kernels.tpu.chip import SIMULATED, Chip

LEAST_ROWS = 256
"""Fewer XLA moves itself."""
MOST_ROWS, COLUMNS = 256, 256
"""Of a block, and those that are ordered at once."""


def ordered(x: jax.Array, chip: Chip) -> jax.Array:
    """`x [N, I]` in bfloat16 with its inputs in the order of `tpu_float4.matrix`."""
    if len(x) < LEAST_ROWS and chip.name != SIMULATED:
        return tpu_float4.ordered(x, chip)
    columns = min(COLUMNS, x.shape[1])
    places = tpu_float4.ordered(jnp.arange(columns)[None], chip)
    order = (jnp.arange(columns)[:, None] == places).astype(x.dtype)
    return _ordered(x, order)


@jax.jit  # layers share what takes a while to trace
def _ordered(x: jax.Array, order: jax.Array) -> jax.Array:
    rows, inputs = min(MOST_ROWS, len(x)), x.shape[1]
    return pl.pallas_call(
        _kernel,
        name="order_inputs",
        grid=(pl.cdiv(len(x), rows),),
        in_specs=[
            pl.BlockSpec((rows, inputs), lambda at: (at, 0)),
            pl.BlockSpec(order.shape, lambda at: (0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, inputs), lambda at: (at, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, order)


def _kernel(x: Any, order: Any, found: Any) -> None:
    columns, rest = len(order), x.shape[1] % len(order)

    def put(own: Any, order: jax.Array) -> None:
        found[:, own] = jnp.dot(x[:, own], order, preferred_element_type=jnp.float32).astype(found.dtype)

    @pl.loop(0, x.shape[1] // columns)
    def _(at: jax.Array) -> None:
        put(pl.ds(pl.multiple_of(at * columns, columns), columns), order[...])

    if rest:
        put(pl.ds(x.shape[1] - rest, rest), order[:rest, :rest])
