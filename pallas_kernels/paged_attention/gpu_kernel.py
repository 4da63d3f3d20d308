"""The GPU kernel: one program attends a tile of a row's queries, for one KV head, to one share of the row's blocks of tokens.

Lowered through Triton. Keys and values are loaded by their slots, with a mask: what lies outside of `low .. end` is never read,
so that stale memory needs no cleaning and wild page ids do no harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.storage import to_float32

UNSEEN = -1e30  # finite: the maximum over nothing stays a number
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known when the kernel is compiled. Query `m` of a tile is its place `m // group`, head `m % group` of the group."""

    queries: int  # M, a power of two of at least 16: what tensor cores take
    tile_places: int
    block_tokens: int
    splits: int
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
    """Online softmax in base 2: weighted sum of values `[M, width]`, largest score and sum of weights `[M]`, all float32."""

    mixed: jax.Array
    largest: jax.Array
    total: jax.Array


class _Tile(NamedTuple):
    """The scalars of a program: positions of the first token, after the last one (0 without tokens), and the first one seen."""

    row: jax.Array
    kv_head: jax.Array
    start: jax.Array
    end: jax.Array
    low: jax.Array


def kernel(q: Any, kv: Any, table: Any, starts: Any, lengths: Any, *rest: Any, settings: Settings) -> None:
    """`q [B, S, N, H]`, `kv [pages * T, 2K, H]`, `table [B, P]`; if any, `sinks [N]`, `slopes [N]`, `scales [2, K]`; the results.

    These are the normalised `[B, S, N, H]` of all tokens, or with several splits the states of each: float32
    `[splits, B, S, N, H]` and twice `[splits, B, S, N]`, which `combine` makes one. The grid is `(K, tiles * splits, B)`.
    """
    optional = list(rest)
    sinks = optional.pop(0) if settings.has_sinks else None
    slopes = optional.pop(0) if settings.has_slopes else None
    scales = optional.pop(0) if settings.has_scales else None
    results = optional
    places, head_size = q.shape[1], q.shape[3]
    # The last tiles of a row see most: they are to begin first.
    tile_index = pl.num_programs(1) // settings.splits - 1 - pl.program_id(1) // settings.splits
    split = pl.program_id(1) % settings.splits
    before = tile_index * settings.tile_places
    tile = _tile(starts, lengths, before, settings)

    m = jnp.arange(settings.queries, dtype=jnp.int32)
    place, query_head = m // settings.group, tile.kv_head * settings.group + m % settings.group
    exists = (place < settings.tile_places) & (before + place < places)
    token = tile.start + place
    lanes = jnp.arange(settings.width, dtype=jnp.int32)
    at = (tile.row, (before + place)[:, None], query_head[:, None], lanes[None, :])
    own = exists[:, None] & (lanes < head_size)[None, :]
    queries = plgpu.load(q.at[at], mask=own & (token < tile.end)[:, None], other=0.0).astype(settings.compute)

    first_block = tile.low // settings.block_tokens
    num_blocks = jnp.maximum((tile.end + settings.block_tokens - 1) // settings.block_tokens - first_block, 0)
    share = (num_blocks + settings.splits - 1) // settings.splits
    begin = first_block + split * share
    stop = jnp.minimum(begin + share, first_block + num_blocks)

    largest = jnp.full(settings.queries, UNSEEN, jnp.float32)
    total = jnp.zeros(settings.queries, jnp.float32)
    if sinks is not None:  # one split has them
        sink = LOG2_E * plgpu.load(sinks.at[query_head], mask=exists, other=0.0)
        largest = jnp.where(split == 0, sink, largest)
        total = jnp.where(split == 0, 1.0, total)
    slope = None if slopes is None else LOG2_E * plgpu.load(slopes.at[query_head], mask=exists, other=0.0)
    key_scale, value_scale = (1.0, 1.0) if scales is None else (scales[0, tile.kv_head], scales[1, tile.kv_head])
    state = State(jnp.zeros((settings.queries, settings.width), jnp.float32), largest, total)

    def attend_block(block: jax.Array, state: State) -> State:
        position = block * settings.block_tokens + jnp.arange(settings.block_tokens, dtype=jnp.int32)
        readable = (tile.low <= position) & (position < tile.end)
        keys, values = _load_block(kv, table, tile, position, readable, lanes, head_size, settings)
        seen = readable[None, :] & (position[None, :] <= token[:, None])
        if settings.window is not None:
            seen &= position[None, :] > token[:, None] - settings.window
        scores = _in_base_2(_product(queries, keys, axis=1), key_scale, settings)
        if slope is not None:
            scores += slope[:, None] * (position[None, :] - token[:, None]).astype(jnp.float32)
        return _absorb(state, jnp.where(seen, scores, -jnp.inf), values, settings)

    state = lax.fori_loop(begin, stop, attend_block, state)
    mixed = jnp.where((token < tile.end)[:, None], state.mixed * value_scale, 0.0)
    if settings.splits == 1:
        mixed = mixed / jnp.where(state.total > 0, state.total, 1.0)[:, None]
        plgpu.store(results[0].at[at], mixed.astype(results[0].dtype), mask=own)
        return
    plgpu.store(results[0].at[(split, *at)], mixed, mask=own)
    for result, value in zip(results[1:], (state.largest, state.total), strict=True):
        plgpu.store(result.at[split, tile.row, before + place, query_head], value, mask=exists)


def combine(mixed: jax.Array, largest: jax.Array, total: jax.Array) -> jax.Array:
    """The splits' states, as `kernel` writes them, as one normalised float32 `[B, S, N, H]`."""
    factor = jnp.exp2(largest - largest.max(axis=0))
    total = (total * factor).sum(axis=0)
    mixed = (mixed * factor[..., None]).sum(axis=0)
    return mixed / jnp.where(total > 0, total, 1.0)[..., None]


def _tile(starts: Any, lengths: Any, before: jax.Array, settings: Settings) -> _Tile:
    row = pl.program_id(2)
    tokens = jnp.clip(lengths[row] - before, 0, settings.tile_places)
    start = starts[row] + before
    end = jnp.where(tokens > 0, start + tokens, 0)
    low = jnp.zeros_like(start) if settings.window is None else jnp.maximum(start - settings.window + 1, 0)
    return _Tile(row, pl.program_id(0), start, end, low)


def _load_block(
    kv: Any,
    table: Any,
    tile: _Tile,
    position: jax.Array,
    readable: jax.Array,
    lanes: jax.Array,
    head_size: int,
    settings: Settings,
) -> tuple[jax.Array, jax.Array]:
    """Keys and values `[t, width]` of a block's positions; zeros where they are not readable."""
    page = plgpu.load(table.at[tile.row, position // settings.page_tokens], mask=readable, other=0)
    slot = page * settings.page_tokens + position % settings.page_tokens
    mask = readable[:, None] & (lanes < head_size)[None, :]
    keys, values = (
        plgpu.load(kv.at[slot[:, None], 2 * tile.kv_head + channel, lanes[None, :]], mask=mask, other=0.0)
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
