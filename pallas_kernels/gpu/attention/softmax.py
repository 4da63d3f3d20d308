"""Online softmax on a GPU, whatever the keys are: one block after the other, and shares of a context put together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from pallas_kernels.gpu.attention.blocks import power_of_two
from pallas_kernels.gpu.attention.schedule import Parts

UNSEEN = -1e30  # finite: the maximum over nothing stays a number
LOG2_E = math.log2(math.e)
COMBINED_VALUES = 16 * 256
"""Of states that are combined at a time: they lie in registers."""


class State(NamedTuple):
    """Online softmax in base 2: weighted sum of values `[M, width]`, largest score and sum of weights `[M]`, all float32.

    Of a single query without the `M`.
    """

    mixed: jax.Array
    largest: jax.Array
    total: jax.Array


def absorb(state: State, scores: jax.Array, values: jax.Array, *, compute: DTypeLike) -> State:
    """Attend to a block: scores `[M, t]` in base 2, and values `[t, width]` in the type that products take."""
    largest = jnp.maximum(state.largest, scores.max(axis=1))
    weights = jnp.exp2(scores - largest[:, None])
    decay = jnp.exp2(state.largest - largest)
    mixed = state.mixed * decay[:, None] + product(weights.astype(compute), values, axis=0)
    return State(mixed, largest, state.total * decay + weights.sum(axis=1))


def product(left: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
    """`left [M, k]` times `right` over its `axis`, in float32."""
    # float32 means float32 here, and not the TF32 of the tensor cores.
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        left, right, (((1,), (axis,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def give(state: State, results: list[Any], to: jax.Array, heads: jax.Array, own: jax.Array, lanes: jax.Array) -> None:
    """Write what the queries of a program have come to, `to [M]` of `heads [M]`, where `own [M]`.

    Into `[N, heads, V]` normalised, or as states: `[states, heads, V]` and twice `[states, heads]`.
    """
    result, *by_query = results
    mixed = state.mixed
    if not by_query:
        mixed = mixed / jnp.where(state.total > 0, state.total, 1.0)[:, None]
    at = to[:, None], heads[:, None], lanes[None, :]
    mask = own[:, None] & (lanes < result.shape[2])[None, :]
    plgpu.store(result.at[at], mixed.astype(result.dtype), mask=mask)
    for result, value in zip(by_query, state[1:], strict=False):  # no others but of states
        plgpu.store(result.at[to, heads], value, mask=own)


def combine(*refs: Any) -> None:
    """Refs: `Parts`; states as `give` leaves them; the normalised `[N, heads, V]`, whose places of the parts are written.

    The grid is `(heads, B + 1)`. What no program has attended, as padding, is zeros.
    """
    scalars, (mixed, largest, total, result) = refs[: len(Parts._fields)], refs[len(Parts._fields) :]
    head, row = pl.program_id(0), pl.program_id(1)
    parts = Parts(*(scalar[row] for scalar in scalars))
    head_size = result.shape[2]
    width = power_of_two(head_size)
    together = min(32, COMBINED_VALUES // width)
    lanes = jnp.arange(width, dtype=jnp.int32)
    own = lanes < head_size

    def combine_place(place: jax.Array, _: None) -> None:
        def take(step: jax.Array, state: State) -> State:
            index = step * together + jnp.arange(together, dtype=jnp.int32)
            exists = index < parts.number
            at = parts.at + index * parts.places + place
            part = State(
                plgpu.load(mixed.at[at[:, None], head, lanes[None, :]], mask=exists[:, None] & own[None, :], other=0.0),
                plgpu.load(largest.at[at, head], mask=exists, other=UNSEEN),
                plgpu.load(total.at[at, head], mask=exists, other=0.0),
            )
            most = jnp.maximum(state.largest, part.largest.max())
            factor, decay = jnp.exp2(part.largest - most), jnp.exp2(state.largest - most)
            return State(
                state.mixed * decay + (part.mixed * factor[:, None]).sum(axis=0),
                most,
                state.total * decay + (part.total * factor).sum(),
            )

        nothing = State(jnp.zeros(width, jnp.float32), jnp.float32(UNSEEN), jnp.float32(0))
        state = lax.fori_loop(0, (parts.number + together - 1) // together, take, nothing)
        value = state.mixed / jnp.where(state.total > 0, state.total, 1.0)
        plgpu.store(result.at[parts.place + place, head, lanes], value.astype(result.dtype), mask=own)

    lax.fori_loop(0, parts.places, combine_place, None)
