"""The choice in plain XLA: scores of a tile of tokens block by block, the least score that is chosen bit by bit, then positions.

Scores are held as whole numbers in their order, as many as a page table has positions. The `count`-th highest is found from its
highest bit to its lowest, each by counting, which reads only what the longest row has. Positions come in two levels: the line of
128 that holds the j-th chosen token, by the counts of lines before it, then its place in the line. There is no sort.

A token's choice does not depend on what else is in the step, to the last bit of its scores on the CPU, by what
`paged_attention/xla.py` says of products. Tokens that see `count` or fewer have nothing to choose; a tile of such alone costs
next to nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.paged_attention.tiles import Tiles, cut, tile_lengths
from pallas_kernels.storage import HELD_AS_BITS, KV_DTYPES, QUANTISED, to_float32

BLOCK_TOKENS = 512
COUNTED_TOKENS = 8192
LINE = 128
MAX_TOGETHER = 16
TWO_ROWS = 2
"""Of a product of one row XLA's CPU code makes another sum than of several."""


def supports(q: Any, weights: Any, pages: Any, *args: Any, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    if kv_dtype not in KV_DTYPES or kv_dtype in QUANTISED:
        return f"pages of {jnp.dtype(kv_dtype)} hold no keys of an indexer, which are float32, bfloat16 or float16"
    return None


def choose_tokens(
    q: jax.Array,
    weights: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    count: int,
    kv_dtype: DTypeLike,
    compare_all: bool = False,
) -> jax.Array:
    """See the op's contract. With `compare_all` lines are found by comparing with all of them, and not by halving.

    Memory: a number for each position of a page table and token of a tile, and a line for each chosen one.
    """
    places, heads, _ = q.shape
    page_tokens = pages.shape[2]
    block_tokens = max(BLOCK_TOKENS, page_tokens)
    counted = max(COUNTED_TOKENS, block_tokens)
    most = page_table.shape[1] * page_tokens
    width = _whole(most, block_tokens if most < counted else counted)
    counted = min(counted, width)
    first = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (places, count))
    if most <= count:
        return first
    lengths = tile_lengths(places, heads)
    together = max(1, min(MAX_TOGETHER, page_table.shape[0]))
    cut_tiles, numbers = cut(offsets, starts, lengths, places=places, together=together)
    tiles = jnp.stack(cut_tiles)

    def scores(own: Tiles, places_of: jax.Array, until: jax.Array) -> jax.Array:
        """The scores of tiles `[r, length]` in their order, uint32 `[r * length, width]`; 0 where a token does not see."""
        rows, length = places_of.shape
        queries = q.at[places_of].get(mode="clip").reshape(rows, length * heads, -1)
        queries = jnp.pad(queries, ((0, 0), (0, max(0, TWO_ROWS - length * heads)), (0, 0)))
        of_heads = weights.at[places_of].get(mode="clip").reshape(rows * length, 1, heads)
        of_heads = jnp.broadcast_to(of_heads, (rows * length, TWO_ROWS, heads))
        position_of = own.start[:, None] + jnp.arange(length, dtype=jnp.int32)

        def add_block(block: jax.Array, found: jax.Array) -> jax.Array:
            position = block * block_tokens + jnp.arange(block_tokens, dtype=jnp.int32)
            page = position[::page_tokens] // page_tokens
            ids = page_table.at[own.row[:, None], page].get(mode="clip")
            ids = jnp.where(page * page_tokens < until[:, None], ids, 0)
            held = pages.at[ids].get(mode="clip").reshape(rows, block_tokens, -1)[..., : q.shape[2]]
            products = jnp.maximum(_product(queries, _keys(held, kv_dtype), axis=2), 0.0)
            products = products[:, : length * heads].reshape(rows * length, heads, block_tokens)
            score = _product(of_heads, products, axis=1)[:, 0].reshape(rows, length, block_tokens)
            ordered = jnp.where(position <= position_of[..., None], _ordered(score), jnp.uint32(0))
            ordered = ordered.reshape(rows * length, block_tokens)
            return lax.dynamic_update_slice_in_dim(found, ordered, block * block_tokens, axis=1)

        blocks = -(-until.max() // block_tokens)
        return lax.fori_loop(0, blocks, add_block, jnp.zeros((rows * length, width), jnp.uint32))

    def choose_kind(kind: int, length: int, together: int, chosen: jax.Array) -> jax.Array:
        token = jnp.arange(length, dtype=jnp.int32)

        def choose_tiles(step: jax.Array, chosen: jax.Array) -> jax.Array:
            own = Tiles(*lax.dynamic_slice_in_dim(tiles[:, kind], step * together, together, axis=1))
            places_of = own.place[:, None] + token
            until = jnp.where(own.end > count, own.end, 0)

            def choose(chosen: jax.Array) -> jax.Array:
                ordered = scores(own, places_of, until)
                positions = _highest(ordered, count, until.max(), counted=counted, compare_all=compare_all)
                few = (own.start[:, None] + token < count)[..., None]
                result = jnp.where(few, first[0], positions.reshape(together, length, count))
                real = token < (own.end - own.start)[:, None]
                return chosen.at[jnp.where(real, places_of, places)].set(result, mode="drop")

            return lax.cond(until.max() > 0, choose, lambda chosen: chosen, chosen)

        return lax.fori_loop(0, -(-numbers[kind] // together), choose_tiles, chosen)

    chosen = first
    for kind, length in enumerate(lengths):
        chosen = choose_kind(kind, length, together if length == 1 else 1, chosen)
    return chosen


def _keys(held: jax.Array, kv_dtype: DTypeLike) -> jax.Array:
    """Keys as products take them: pages of 16-bit floats as they are, but for those held as bits."""
    return to_float32(held, kv_dtype=kv_dtype) if held.dtype in HELD_AS_BITS else held


def _product(left: jax.Array, right: jax.Array, *, axis: int) -> jax.Array:
    """Batched `left [b, m, c]` times `right`, summed over `right`'s `axis`, in float32: `[b, m, n]`."""
    left = left.astype(right.dtype)
    precision = lax.Precision.HIGHEST if right.dtype == jnp.float32 else None
    dimensions = (((2,), (axis,)), ((0,), (0,)))
    return lax.dot_general(left, right, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _ordered(scores: jax.Array) -> jax.Array:
    """float32 as uint32 in the same order, none of them 0."""
    bits = lax.bitcast_convert_type(jnp.where(scores == 0, jnp.float32(0), scores), jnp.uint32)
    return jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))


def _highest(ordered: jax.Array, count: int, until: jax.Array, *, counted: int, compare_all: bool) -> jax.Array:
    """Positions of the `count` highest of `ordered [n, width]`, ascending, int32 `[n, count]`; of equal ones the first."""
    rows, width = ordered.shape
    chunks = -(-until // counted)

    def at_least(least: jax.Array) -> jax.Array:
        def add(chunk: jax.Array, total: jax.Array) -> jax.Array:
            part = lax.dynamic_slice_in_dim(ordered, chunk * counted, counted, axis=1)
            return total + (part >= least[:, None]).sum(axis=1, dtype=jnp.int32)

        return lax.fori_loop(0, chunks, add, jnp.zeros(rows, jnp.int32))

    def add_bit(index: jax.Array, least: jax.Array) -> jax.Array:
        tried = least | (jnp.uint32(1 << 31) >> index.astype(jnp.uint32))
        return jnp.where(at_least(tried) >= count, tried, least)

    least = lax.fori_loop(0, 32, add_bit, jnp.zeros(rows, jnp.uint32))[:, None, None]
    lines = ordered.reshape(rows, width // LINE, LINE)
    above, equal = ((kind).sum(axis=2, dtype=jnp.int32) for kind in (lines > least, lines == least))
    wanted = count - above.sum(axis=1, dtype=jnp.int32)[:, None]  # of those that are equal to the least
    equal_before = jnp.cumsum(equal, axis=1) - equal
    held = above + jnp.clip(wanted - equal_before, 0, equal)
    ends = jnp.cumsum(held, axis=1)
    number = jnp.arange(count, dtype=jnp.int32)
    line = jax.vmap(lambda ends: _lines(ends, number, compare_all=compare_all))(ends)  # [n, count]

    def of_line(values: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, line, axis=1)

    found = jnp.take_along_axis(lines, line[..., None], axis=1)
    same = found == least
    rank = _running(same) + of_line(equal_before)[..., None]
    taken = _running((found > least) | (same & (rank <= wanted[..., None])))
    within = number - of_line(ends - held)
    return line * LINE + (taken <= within[..., None]).sum(axis=2, dtype=jnp.int32)


def _lines(ends: jax.Array, number: jax.Array, *, compare_all: bool) -> jax.Array:
    """The line that holds each `number`, by where the lines end."""
    method = "compare_all" if compare_all else "scan"
    return jnp.searchsorted(ends, number, side="right", method=method).astype(jnp.int32)


def _running(flags: jax.Array) -> jax.Array:
    """How many of a line's flags are set up to each, itself included: a product, whose sums are whole numbers below 2^8."""
    upper = jnp.triu(jnp.ones((LINE, LINE), jnp.bfloat16))
    sums = jnp.matmul(flags.astype(jnp.bfloat16), upper, preferred_element_type=jnp.float32)
    return sums.astype(jnp.int32)


def _whole(count: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-count // unit) * unit
