"""Chosen attention on a TPU: some tokens at a time, whose chosen vectors are gathered; and none where nothing had to be chosen.

A step in which no row is longer than what is chosen runs the dense kernel: what is chosen is all.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels.chosen_attention.rows import ChosenRows, chosen_rows
from pallas_kernels.latent_attention import OP as DENSE
from pallas_kernels.storage import HELD_AS_BITS, QUANTISED
from pallas_kernels.tpu.chip import NO_TPU, target_chip

GATHERED_BYTES = 32 << 20
"""Of vectors that are gathered at once."""


def supports(q: Any, pages: Any, *args: Any, **options: Any) -> str | None:
    """None, or why not."""
    if jnp.dtype(pages.dtype) in HELD_AS_BITS:
        return f"pages are {pages.dtype} bits, which only the CPU needs"
    return NO_TPU if target_chip() is None else None


def chosen_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    chosen: jax.Array,
    *,
    scale: float,
    value_size: int,
    kv_dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract."""
    counts = jnp.diff(offsets)
    longest = jnp.where(counts > 0, starts + counts, 0).max()

    def dense(q: jax.Array) -> jax.Array:
        options = {"scale": scale, "value_size": value_size, "kv_dtype": kv_dtype}
        attended: jax.Array = DENSE.run("auto", "tpu", q, pages, page_table, offsets, starts, **options)
        return attended

    def sparse(q: jax.Array) -> jax.Array:
        return _gathered(q, chosen_rows(pages, page_table, offsets, starts, chosen), scale, value_size)

    return lax.cond(longest <= chosen.shape[1], dense, sparse, q)


def _gathered(q: jax.Array, rows: ChosenRows, scale: float, value_size: int) -> jax.Array:
    """Attend some places at a time, as many as hold tokens."""
    places, heads, size = q.shape
    count, width = rows.page_table.shape[1], rows.pages.shape[3]
    compute = jnp.bfloat16 if rows.pages.dtype in QUANTISED else rows.pages.dtype
    together = max(1, min(places, GATHERED_BYTES // (count * width * jnp.dtype(compute).itemsize)))
    padding = -places % together
    queries = jnp.pad(q.astype(compute), ((0, padding), (0, 0), (0, width - size)))
    slots = jnp.pad(rows.page_table, ((0, padding), (0, 0)))
    lasts = jnp.pad(rows.starts, (0, padding))
    vectors = rows.pages.reshape(-1, width)
    precision = lax.Precision.HIGHEST if compute == jnp.float32 else None

    def product(left: jax.Array, right: jax.Array, axis: int) -> jax.Array:
        dimensions = (((2,), (axis,)), ((0,), (0,)))
        return lax.dot_general(left, right, dimensions, precision=precision, preferred_element_type=jnp.float32)

    def attend(step: jax.Array, results: jax.Array) -> jax.Array:
        of = [lax.dynamic_slice_in_dim(x, step * together, together) for x in (queries, slots, lasts)]
        held = vectors.at[of[1]].get(mode="clip").astype(compute)
        seen = jnp.arange(count, dtype=jnp.int32) <= of[2][:, None]
        held = jnp.where(seen[..., None], held, jnp.zeros((), compute))
        scores = jnp.where(seen[:, None], scale * product(of[0], held, 2), -jnp.inf)
        weights = jax.nn.softmax(scores, axis=2).astype(compute)
        mixed = product(weights, held[..., :value_size], 1)
        return lax.dynamic_update_slice_in_dim(results, mixed.astype(q.dtype), step * together, axis=0)

    results = jnp.zeros((places + padding, heads, value_size), q.dtype)
    used = rows.offsets[-1]
    results = lax.fori_loop(0, -(-used // together), attend, results)[:places]
    real = jnp.arange(places, dtype=jnp.int32) < used
    return jnp.where(real[:, None, None], results, jnp.zeros((), q.dtype))
