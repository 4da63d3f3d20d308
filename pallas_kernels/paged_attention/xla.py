"""Paged attention in plain XLA: a tile and a block of its pages at a time, online softmax in float32.

Made for the CPU, correct everywhere. Pages are copied once, into head-major blocks that fit the processor's caches. Matrix
products take the cache's dtype (for a bfloat16 cache, queries and softmax weights are rounded to it) and add up in float32. A
quantised cache is read as bfloat16, which holds its values exactly; its scales are factors of the scores and of the result.

A program has code for tiles of two lengths at the most. How many there are of each, and where they lie, is data: what a step
does not have costs nothing.

On the CPU a token's result is the same to the last bit whatever else is in the step: other rows, their number, how its prompt
was cut into rows, how many places the step has. What that rests on, and tests keep:

- blocks lie at fixed positions of the sequence, not of the row;
- a block that a token does not see leaves its state as it was: weights 2^-inf = 0, decay 2^0 = 1;
- XLA's products on the CPU give a row the same bits whatever the number of rows, from two on; there are never fewer;
- except for float32 values with a head size that is no multiple of 64, which are therefore transposed first;
- its sums over an axis do not, so the sum of weights is a product with ones;
- its exp of few numbers differs in the last bit from that of many, so scores are in base 2 and their running maximum is a whole
  number: rescaling is by exact powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from pallas_kernels.paged_attention.tiles import Tiles, cut, tile_lengths
from pallas_kernels.storage import KV_DTYPES, QUANTISED, split_heads, to_float32

BLOCK_TOKENS = 128
TOGETHER_BYTES = 1 << 20  # single tokens are taken together while their blocks of pages fit a cache of this size,
MAX_TOGETHER = 16  # but not more than so many
MIN_QUERIES = 2
UNSEEN = -1e30  # finite: the maximum over nothing stays a number
SUM_COLUMNS = 8  # a product with one column would take another path than the others
LOG2_E = math.log2(math.e)


class _State(NamedTuple):
    """Online softmax in base 2: weighted sum of values `[r, K, M, H]`, largest score rounded up, sum of weights `[r, K, M]`."""

    mixed: jax.Array
    largest: jax.Array
    total: jax.Array


def supports(q: Any, kv_pages: Any, *args: Any, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    return None if kv_dtype in KV_DTYPES else f"kv_pages of {kv_pages.dtype} hold no keys and values"


def paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
    alibi_slopes: jax.Array | None,
    until: jax.Array | None,
    kv_scales: jax.Array | None,
    kv_dtype: DTypeLike,
    kv_heads: int,
) -> jax.Array:
    """See the op's contract. Memory: queries and results in float32, and a block of pages of a few tiles."""
    head_size = q.shape[2]

    def split(pages: jax.Array) -> tuple[jax.Array, jax.Array]:
        stored = pages.reshape(len(pages), -1, *pages.shape[-2:])
        return split_heads(stored, kv_heads=kv_heads, head_size=head_size)

    return attend_pages(
        q,
        kv_pages,
        page_table,
        offsets,
        starts,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        until=until,
        kv_scales=kv_scales,
        kv_dtype=kv_dtype,
        kv_heads=kv_heads,
        value_size=head_size,
        page_tokens=kv_pages.shape[1],
        split=split,
    )


def attend_pages(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    until: jax.Array | None = None,
    kv_scales: jax.Array | None = None,
    both_sides: bool = False,
    added: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None,
    kv_dtype: DTypeLike,
    kv_heads: int,
    value_size: int,
    page_tokens: int,
    split: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
) -> jax.Array:
    """Attention over pages `[pages, ...]` of any shape, `[N, heads, V]`.

    `split` makes keys `[r, t, K, H]` and values `[r, t, K, V]` of `r` blocks of pages, `[r, pages, ...]`. With `both_sides`
    tokens see those after them too, and a `window` is of so many positions on each side. `added` makes of rows `[r]` and of
    the positions of queries `[r, M]` and of keys `[r, t]` what is added to their products, `[r, K, M, t]`; with as many KV heads.
    """
    places, heads, head_size = q.shape
    group = heads // kv_heads
    compute = jnp.dtype(jnp.bfloat16 if kv_dtype in (jnp.bfloat16, *QUANTISED) else jnp.float32)
    transposed = compute == jnp.float32 and value_size % 64 != 0
    block_pages = max(1, BLOCK_TOKENS // page_tokens)
    block_tokens = block_pages * page_tokens
    block_bytes = block_pages * math.prod(kv_pages.shape[1:]) * kv_pages.dtype.itemsize
    key_scale = scale if kv_scales is None else scale * kv_scales[0, :, None, None]

    lengths = tile_lengths(places, group)
    together = max(1, min(MAX_TOGETHER, TOGETHER_BYTES // block_bytes, page_table.shape[0]))
    cut_tiles, numbers = cut(offsets, starts, lengths, places=places, together=together)
    tiles = jnp.stack(cut_tiles)  # of which a loop takes one slice

    def attend_kind(kind: int, length: int, together: int, results: jax.Array) -> jax.Array:
        """Put the results of all tiles of a length into their places of `results [N, heads, V]`, so many `together`."""
        num_queries = max(MIN_QUERIES, group * length)
        place = jnp.minimum(jnp.arange(num_queries, dtype=jnp.int32) // group, length - 1)
        shape = (together, kv_heads, num_queries)

        def by_query(by_head: jax.Array) -> jax.Array:
            """A score of each query head, in base 2, for every query of a tile, `[K, M]`."""
            scores = jnp.tile(LOG2_E * by_head.astype(jnp.float32).reshape(kv_heads, -1), (1, length))
            return jnp.pad(scores, ((0, 0), (0, num_queries - scores.shape[1])), mode="edge")

        largest, total = jnp.full(shape, UNSEEN, jnp.float32), jnp.zeros(shape, jnp.float32)
        if sinks is not None:
            largest = jnp.maximum(largest, jnp.ceil(by_query(sinks)))
            total = jnp.exp2(by_query(sinks) - largest)
        slopes = None if alibi_slopes is None else by_query(alibi_slopes)
        ones = jnp.ones((together * kv_heads, SUM_COLUMNS, block_tokens), compute)
        empty = _State(jnp.zeros((*shape, value_size), jnp.float32), largest, total)

        def attend_tiles(step: jax.Array, results: jax.Array) -> jax.Array:
            own = Tiles(*lax.dynamic_slice_in_dim(tiles[:, kind], step * together, together, axis=1))
            token = jnp.arange(length, dtype=jnp.int32)
            places_of = own.place[:, None] + token  # [r, length]
            queries = q.at[places_of].get(mode="clip").reshape(together, length, kv_heads, group, head_size)
            queries = queries.transpose(0, 2, 1, 3, 4).reshape(together * kv_heads, group * length, head_size)
            queries = jnp.pad(queries, ((0, 0), (0, num_queries - group * length), (0, 0)), mode="edge")
            queries = queries.astype(compute)
            position_of = own.start[:, None] + place  # [r, M]
            before = None if window is None else window if both_sides else window - 1
            lowest = jnp.zeros_like(own.start) if before is None else jnp.maximum(own.start - before, 0)
            last = position_of  # that a query sees
            end = own.end
            if both_sides:  # an empty tile stays one
                row_end = (starts + jnp.diff(offsets)).at[own.row].get(mode="clip")
                row_end = row_end if window is None else jnp.minimum(row_end, own.end + window)
                end = jnp.where(own.end > 0, row_end, 0)
            elif until is not None:
                lasts = until.at[jnp.minimum(places_of, (own.place + own.end - own.start)[:, None] - 1)].get(
                    mode="clip"
                )
                last = lasts[:, place]
                end = jnp.where(own.end > 0, lasts[:, -1] + 1, 0)
            first_block = lowest // block_tokens

            def attend_block(index: jax.Array, state: _State) -> _State:
                block = (first_block + index)[:, None]
                position = block * block_tokens + jnp.arange(block_tokens, dtype=jnp.int32)  # [r, t]
                readable = (lowest[:, None] <= position) & (position < end[:, None])
                page = block * block_pages + jnp.arange(block_pages, dtype=jnp.int32)
                ids = page_table.at[own.row[:, None], page].get(mode="clip")
                # After the row's end the table holds anything: read the sink, which costs nothing as it is in the cache.
                ids = jnp.where(page * page_tokens < end[:, None], ids, 0)
                pages = kv_pages.at[ids].get(mode="clip")
                # Without this a TPU gives the pool the layout that the products below like best, and copies all of it for that.
                pages = with_layout_constraint(pages, Layout(tuple(range(pages.ndim))))
                keys, values = split(pages)
                keys = _operand(keys.transpose(0, 2, 1, 3), kv_dtype, compute)
                # What is not readable gets weight 0, and 0 times a stale NaN is a NaN.
                values = jnp.where(readable[:, :, None, None], values, jnp.zeros((), pages.dtype))
                values = _operand(values.transpose((0, 2, 3, 1) if transposed else (0, 2, 1, 3)), kv_dtype, compute)

                products = _product(queries, keys, axis=2).reshape(*shape, block_tokens)
                if added is not None:
                    products += added(own.row, position_of, position)
                scores = _in_base_2(products, key_scale, soft_cap)
                if slopes is not None:
                    distance = (position[:, None] - position_of[:, :, None]).astype(jnp.float32)  # [r, M, t]
                    scores += slopes[:, :, None] * distance[:, None]
                seen = jnp.broadcast_to(readable[:, None], (together, num_queries, block_tokens))
                if not both_sides:
                    seen &= position[:, None] <= last[:, :, None]
                elif window is not None:
                    seen &= position[:, None] <= position_of[:, :, None] + window
                if before is not None:
                    seen &= position[:, None] >= position_of[:, :, None] - before
                scores = jnp.where(seen[:, None], scores, -jnp.inf)

                largest = jnp.maximum(state.largest, jnp.ceil(scores.max(axis=-1)))
                weights = jnp.exp2(scores - largest[..., None]).astype(compute)
                weights = weights.reshape(together * kv_heads, num_queries, block_tokens)
                decay = _power_of_two(state.largest - largest)
                total = _product(weights, ones, axis=2)[:, :, 0].reshape(shape)
                mixed = _product(weights, values, axis=2 if transposed else 1).reshape(state.mixed.shape)
                return _State(state.mixed * decay[..., None] + mixed, largest, state.total * decay + total)

            mixed, _, total = lax.fori_loop(0, (-(-end // block_tokens) - first_block).max(), attend_block, empty)
            if kv_scales is not None:
                mixed *= kv_scales[1, :, None, None]
            result = mixed / jnp.where(total > 0, total, 1.0)[..., None]
            result = result[:, :, : group * length].reshape(together, kv_heads, length, group, value_size)
            result = result.transpose(0, 2, 1, 3, 4).reshape(together, length, heads, value_size)
            real = token < (own.end - own.start)[:, None]
            return results.at[jnp.where(real, places_of, places)].set(result, mode="drop")

        return lax.fori_loop(0, -(-numbers[kind] // together), attend_tiles, results)

    results = jnp.zeros((places, heads, value_size), jnp.float32)
    for kind, length in enumerate(lengths):
        results = attend_kind(kind, length, together if length == 1 else 1, results)
    return results.astype(q.dtype)


def _operand(stored: jax.Array, kv_dtype: DTypeLike, compute: jnp.dtype) -> jax.Array:
    """Stored values `[r, K, ., .]` as the second operand `[r*K, ., .]` of a product.

    The reshape is not only tidy: XLA's CPU compiler takes its fast path for a bfloat16 product if it sees operands in row-major
    layout, and straight after a transpose it does not.
    """
    rows, kv_heads, *matrix = stored.shape
    stored = stored.reshape(rows * kv_heads, *matrix)
    if compute == jnp.bfloat16:
        if kv_dtype in QUANTISED:
            return to_float32(stored, kv_dtype=kv_dtype).astype(compute)
        return stored if stored.dtype == compute else lax.bitcast_convert_type(stored, compute)
    return to_float32(stored, kv_dtype=kv_dtype)


def _product(left: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
    """Batched `left [b, m, c]` times `right`, summed over `right`'s `axis`, in float32: `[b, m, n]`."""
    # float32 means float32, also on hardware that would rather round operands to bfloat16 or TF32.
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    dimensions = (((2,), (axis,)), ((0,), (0,)))
    return lax.dot_general(left, right, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _in_base_2(products: jax.Array, scale: float | jax.Array, soft_cap: float | None) -> jax.Array:
    """Scores whose weights are powers of 2 and not of e."""
    if soft_cap is None:
        return products * (scale * LOG2_E)
    return (soft_cap * LOG2_E) * jnp.tanh(products * (scale / soft_cap))


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """`2 ** exponent` of whole numbers of at most 0, exactly; 0 below the smallest normal number."""
    biased = jnp.maximum(exponent, -127.0).astype(jnp.int32) + 127
    return lax.bitcast_convert_type(biased << 23, jnp.float32)
