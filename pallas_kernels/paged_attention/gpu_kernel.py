"""The GPU kernel: one program attends a tile of a row's queries, for one KV head, to one share of the row's blocks of tokens.

Lowered through Triton. Keys and values are loaded by their slots, with a mask: what lies outside of `low .. end` is never read,
so that stale memory needs no cleaning and wild page ids do no harm. Queries and results are masked by their places, so that rows
lie anywhere.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.gpu.attention.pages import operand, slots_of_block
from pallas_kernels.gpu.attention.schedule import Shares
from pallas_kernels.gpu.attention.softmax import LOG2_E, UNSEEN, State, absorb, give, product


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
    their states, as `gpu_softmax.give` leaves them and `combine` makes results of them. The grid is
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
    at = (share.place + place)[:, None], query_head[:, None], lanes[None, :]
    held = exists[:, None] & sees & (lanes < head_size)[None, :]
    queries = plgpu.load(program.q.at[at], mask=held, other=0.0).astype(settings.compute)

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

    def attend_block(block: jax.Array, state: State, *, whole: bool) -> State:
        """Every query sees the `whole` block, or what the masks say."""
        position = block * settings.block_tokens + jnp.arange(settings.block_tokens, dtype=jnp.int32)
        readable = None if whole else (low <= position) & (position < share.end)
        keys, values = _load_block(program, block, readable, lanes, settings)
        scores = _in_base_2(product(queries, keys, axis=1), key_scale, settings)
        if slope is not None:
            scores += slope[:, None] * (position[None, :] - token[:, None]).astype(jnp.float32)
        if readable is not None:
            seen = readable[None, :] & (position[None, :] <= token[:, None])
            if settings.window is not None:
                seen &= position[None, :] > token[:, None] - settings.window
            scores = jnp.where(seen, scores, -jnp.inf)
        return absorb(state, scores, values, compute=settings.compute)

    # Masks cost as much as the softmax: only blocks at the edges of what queries see have them.
    masked, unmasked = (functools.partial(attend_block, whole=whole) for whole in (False, True))
    first_whole = share.begin
    if settings.window is not None:
        last_low = share.start + share.places - settings.window
        first_whole = jnp.clip((last_low + settings.block_tokens - 1) // settings.block_tokens, share.begin, share.stop)
        state = lax.fori_loop(share.begin, first_whole, masked, state)
    last_whole = jnp.clip((share.start + 1) // settings.block_tokens, first_whole, share.stop)
    state = lax.fori_loop(first_whole, last_whole, unmasked, state)
    state = lax.fori_loop(last_whole, share.stop, masked, state)
    mixed = jnp.where(sees, state.mixed * value_scale, 0.0)
    give(state._replace(mixed=mixed), program.results, share.to + place, query_head, exists, lanes)


def _load_block(
    program: _Program, block: jax.Array, readable: jax.Array | None, lanes: jax.Array, settings: Settings
) -> tuple[jax.Array, jax.Array]:
    """Keys and values `[t, width]` of a block's positions; zeros where they are not readable (None: all of them are)."""
    slot = slots_of_block(
        program.table,
        program.share.row,
        block,
        readable,
        tokens=settings.block_tokens,
        page_tokens=settings.page_tokens,
    )
    mask = jnp.broadcast_to((lanes < program.kv.shape[2])[None, :], (settings.block_tokens, settings.width))
    if readable is not None:
        mask &= readable[:, None]
    keys, values = (
        operand(
            plgpu.load(
                program.kv.at[slot[:, None], 2 * program.kv_head + channel, lanes[None, :]], mask=mask, other=0.0
            ),
            compute=settings.compute,
            converts=settings.converts,
        )
        for channel in (0, 1)
    )
    return keys, values


def _in_base_2(products: jax.Array, key_scale: Any, settings: Settings) -> jax.Array:
    """Scores whose weights are powers of 2 and not of e."""
    if settings.soft_cap is None:
        return products * (key_scale * (settings.scale * LOG2_E))
    return (settings.soft_cap * LOG2_E) * jnp.tanh(products * (key_scale * (settings.scale / settings.soft_cap)))
