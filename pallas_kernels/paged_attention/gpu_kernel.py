"""The GPU kernel: one program attends a tile of a row's queries, for one KV head, to one share of the row's blocks of tokens.

Lowered through Triton. Keys and values are loaded by their slots, with a mask: what lies outside of `low .. end` is never read,
so that stale memory needs no cleaning and wild page ids do no harm. Queries and results are masked by their places, so that rows
lie anywhere.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.paged_attention.gpu_blocks import power_of_two
from pallas_kernels.paged_attention.gpu_schedule import Parts, Shares
from pallas_kernels.storage import to_float32

UNSEEN = -1e30  # finite: the maximum over nothing stays a number
LOG2_E = math.log2(math.e)
COMBINED = 32
"""States that are combined at a time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known when the kernel is compiled. Query `m` of a tile is its place `m // group`, head `m % group` of the group."""

    sizes: tuple[int, ...]  # of queries, M: powers of two of at least 16, which is what tensor cores take
    block_tokens: int
    shared: bool  # tiles are shared by several programs, which leave states; else they leave results
    group: int
    width: int  # the head size rounded up to a power of two
    page_tokens: int
    compute: Any  # dtype of the products' operands
    converts: bool  # stored values to it; float8_e4m3fn before Ada is taken apart instead
    scale: float
    window: int | None
    soft_cap: float | None
    has_sinks: bool
    has_slopes: bool
    has_scales: bool


class State(NamedTuple):
    """Online softmax in base 2: weighted sum of values `[M, width]`, largest score and sum of weights `[M]`, all float32.

    Of a single query without the `M`.
    """

    mixed: jax.Array
    largest: jax.Array
    total: jax.Array


class _Program(NamedTuple):
    """Its share as scalars, and what it reads and writes."""

    share: Shares
    kv_head: jax.Array
    q: Any
    kv: Any
    table: Any
    sinks: Any | None
    slopes: Any | None
    scales: Any | None
    results: list[Any]


def kernel(*refs: Any, settings: Settings) -> None:
    """Refs: `Shares`; `q [N, heads, H]`, `kv [pages * T, 2K, H]`, `table [B, P]`; if any, `sinks [heads]`, `slopes [heads]`,
    `scales [2, K]`, and the results of others; the results.

    These are the normalised `[N, heads, H]`, of which only the places of the shares are written, or where tiles are `shared`
    their states: float32 `[states, heads, H]` and twice `[states, heads]`, of which `combine` makes results. The grid is
    `(K, shares)`.
    """
    scalars, (q, kv, table, *rest) = refs[: len(Shares._fields)], refs[len(Shares._fields) :]
    index = pl.program_id(1)
    program = _Program(
        Shares(*(scalar[index] for scalar in scalars)),
        pl.program_id(0),
        q,
        kv,
        table,
        rest.pop(0) if settings.has_sinks else None,
        rest.pop(0) if settings.has_slopes else None,
        rest.pop(0) if settings.has_scales else None,
        rest[-3:] if settings.shared else rest[-1:],
    )
    queries = program.share.places * settings.group
    for smaller, size in itertools.pairwise((0, *settings.sizes)):
        pl.when((smaller < queries) & (queries <= size))(functools.partial(_attend, program, size, settings))


def _attend(program: _Program, size: int, settings: Settings) -> None:
    """Attend the share's queries, which are no more than `size`."""
    share = program.share
    head_size = program.q.shape[2]
    m = jnp.arange(size, dtype=jnp.int32)
    place, query_head = m // settings.group, program.kv_head * settings.group + m % settings.group
    exists = place < share.places
    token = share.start + place
    sees = (token < share.end)[:, None]
    lanes = jnp.arange(settings.width, dtype=jnp.int32)
    own = exists[:, None] & (lanes < head_size)[None, :]
    at = (share.place + place)[:, None], query_head[:, None], lanes[None, :]
    queries = plgpu.load(program.q.at[at], mask=own & sees, other=0.0).astype(settings.compute)

    low = jnp.zeros_like(share.start)  # the first position that any of the tokens sees
    if settings.window is not None:
        low = jnp.maximum(share.start - settings.window + 1, 0)
    largest = jnp.full(size, UNSEEN, jnp.float32)
    total = jnp.zeros(size, jnp.float32)
    if program.sinks is not None:
        sink = LOG2_E * plgpu.load(program.sinks.at[query_head], mask=exists, other=0.0)
        is_first = share.begin == low // settings.block_tokens  # one share of a tile has them
        largest = jnp.where(is_first, sink, largest)
        total = jnp.where(is_first, 1.0, total)
    slope = None
    if program.slopes is not None:
        slope = LOG2_E * plgpu.load(program.slopes.at[query_head], mask=exists, other=0.0)
    key_scale, value_scale = 1.0, 1.0
    if program.scales is not None:
        key_scale, value_scale = program.scales[0, program.kv_head], program.scales[1, program.kv_head]
    state = State(jnp.zeros((size, settings.width), jnp.float32), largest, total)

    def attend_block(block: jax.Array, state: State) -> State:
        position = block * settings.block_tokens + jnp.arange(settings.block_tokens, dtype=jnp.int32)
        readable = (low <= position) & (position < share.end)
        keys, values = _load_block(program, position, readable, lanes, settings)
        seen = readable[None, :] & (position[None, :] <= token[:, None])
        if settings.window is not None:
            seen &= position[None, :] > token[:, None] - settings.window
        scores = _in_base_2(_product(queries, keys, axis=1), key_scale, settings)
        if slope is not None:
            scores += slope[:, None] * (position[None, :] - token[:, None]).astype(jnp.float32)
        return _absorb(state, jnp.where(seen, scores, -jnp.inf), values, settings)

    state = lax.fori_loop(share.begin, share.stop, attend_block, state)
    mixed = jnp.where(sees, state.mixed * value_scale, 0.0)
    if not settings.shared:
        mixed = mixed / jnp.where(state.total > 0, state.total, 1.0)[:, None]
    result, *by_query = program.results
    to = share.to + place
    plgpu.store(result.at[(to[:, None], *at[1:])], mixed.astype(result.dtype), mask=own)
    for result, value in zip(by_query, state[1:], strict=False):  # no others but of states
        plgpu.store(result.at[to, query_head], value, mask=exists)


def combine(*refs: Any) -> None:
    """Refs: `Parts`; states as `kernel` leaves them; the normalised `[N, heads, H]`, whose places of the parts are written.

    The grid is `(heads, B + 1)`. What no program has attended, as padding, is zeros.
    """
    scalars, (mixed, largest, total, result) = refs[: len(Parts._fields)], refs[len(Parts._fields) :]
    head, row = pl.program_id(0), pl.program_id(1)
    parts = Parts(*(scalar[row] for scalar in scalars))
    head_size = result.shape[2]
    width = power_of_two(head_size)
    lanes = jnp.arange(width, dtype=jnp.int32)
    own = lanes < head_size

    def combine_place(place: jax.Array, _: None) -> None:
        def absorb(step: jax.Array, state: State) -> State:
            index = step * COMBINED + jnp.arange(COMBINED, dtype=jnp.int32)
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
        state = lax.fori_loop(0, (parts.number + COMBINED - 1) // COMBINED, absorb, nothing)
        value = state.mixed / jnp.where(state.total > 0, state.total, 1.0)
        plgpu.store(result.at[parts.place + place, head, lanes], value.astype(result.dtype), mask=own)

    lax.fori_loop(0, parts.places, combine_place, None)


def _load_block(
    program: _Program, position: jax.Array, readable: jax.Array, lanes: jax.Array, settings: Settings
) -> tuple[jax.Array, jax.Array]:
    """Keys and values `[t, width]` of a block's positions; zeros where they are not readable."""
    page = plgpu.load(program.table.at[program.share.row, position // settings.page_tokens], mask=readable, other=0)
    slot = page * settings.page_tokens + position % settings.page_tokens
    mask = readable[:, None] & (lanes < program.kv.shape[2])[None, :]
    keys, values = (
        plgpu.load(program.kv.at[slot[:, None], 2 * program.kv_head + channel, lanes[None, :]], mask=mask, other=0.0)
        for channel in (0, 1)
    )
    return _operand(keys, settings), _operand(values, settings)


def _operand(stored: jax.Array, settings: Settings) -> jax.Array:
    if not settings.converts:
        stored = to_float32(lax.bitcast_convert_type(stored, jnp.uint8), kv_dtype=stored.dtype)
    return stored.astype(settings.compute)


def _in_base_2(products: jax.Array, key_scale: Any, settings: Settings) -> jax.Array:
    """Scores whose weights are powers of 2 and not of e."""
    if settings.soft_cap is None:
        return products * (key_scale * (settings.scale * LOG2_E))
    return (settings.soft_cap * LOG2_E) * jnp.tanh(products * (key_scale * (settings.scale / settings.soft_cap)))


def _absorb(state: State, scores: jax.Array, values: jax.Array, settings: Settings) -> State:
    largest = jnp.maximum(state.largest, scores.max(axis=1))
    weights = jnp.exp2(scores - largest[:, None])
    decay = jnp.exp2(state.largest - largest)
    mixed = state.mixed * decay[:, None] + _product(weights.astype(settings.compute), values, axis=0)
    return State(mixed, largest, state.total * decay + weights.sum(axis=1))


def _product(left: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
    # float32 means float32 here, and not the TF32 of the tensor cores.
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        left, right, (((1,), (axis,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
