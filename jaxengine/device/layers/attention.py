"""How a step's tokens reach paged attention: the one place where layers and kernels meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.exchange import heads_to_tokens, tokens_to_heads
from jaxengine.device.layers.keeps import Paged
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Step
from pallas_kernels import paged_attention, write_kv

HEADS = ("tokens", "heads", "head_dim")
KV_HEADS = ("tokens", "kv_heads", "head_dim")
SCALES = ("groups", "kv_heads")
PAGES = ("pages", "page_tokens", "kv_channels", "head_dim")


def attend(
    queries: jax.Array,
    keys: jax.Array | None,
    values: jax.Array | None,
    kv_pages: jax.Array,
    step: Step,
    *,
    paged: Paged,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    slopes: jax.Array | None = None,
    until: jax.Array | None = None,
    scales: jax.Array | None = None,
    context: ModelContext,
) -> tuple[jax.Array, jax.Array]:
    """Write a layer's keys and values into its pages, then let every token attend to its sequence up to itself.

    Without keys and values it attends to what another layer has written, in this step and before. `step` is that of the layer
    (`Step.for_layer`), and `window` tells the kernel where to begin.

    `queries [N, heads, H]`, `keys` and `values [N, K, H]`, K being the heads that the layer has declared (`paged`), and `kv_pages
    [lanes * pages, T, C, L]` of the layer's pool -> `[N, heads, H]` and the pages. `sinks` and ALiBi's `slopes`, `[heads]`,
    `until [N]` and the `scales [2, K]` of a quantised cache are as in `pallas_kernels.paged_attention`. On a mesh every device
    works on its own heads and its own part of the pages.
    """
    layout = context.layout
    of_device = paged.heads // layout.shards("kv_heads")
    target: dict[str, Any] = {
        "kv_dtype": paged.dtype or context.cache_dtype,
        "backend": step.attention_backend,
        "platform": context.platform,
    }

    def local(
        queries: jax.Array,
        new: tuple[jax.Array | None, jax.Array | None],
        kv_pages: jax.Array,
        rows: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
        by_head: tuple[jax.Array | None, jax.Array | None],
        until: jax.Array | None,
        scales: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        (keys, values), (sinks, slopes) = new, by_head
        slots, page_table, offsets, starts = rows
        # All rows are written before any row attends: rows of one sequence may share a step.
        if keys is not None and values is not None:
            kv_pages = write_kv(kv_pages, keys, values, slots, kv_scales=scales, **target)

        def of_rows(tokens: tuple[jax.Array, jax.Array | None], offsets: jax.Array) -> jax.Array:
            queries, until = tokens
            return paged_attention(
                queries,
                kv_pages,
                page_table,
                offsets,
                starts,
                scale=scale,
                window=window,
                soft_cap=soft_cap,
                sinks=sinks,
                alibi_slopes=slopes,
                until=until,
                kv_scales=scales,
                kv_heads=of_device,
                **target,
            )

        return of_own_rows(of_rows, (queries, until), offsets, layout), kv_pages

    on_devices = context.layout.per_device(
        local,
        inputs=(HEADS, KV_HEADS, PAGES, None, HEADS[1:2], None, SCALES),
        outputs=(HEADS, PAGES),
    )
    result: tuple[jax.Array, jax.Array] = on_devices(
        queries,
        (keys, values),
        kv_pages,
        (step.slot_mapping, step.page_table, step.offsets, step.starts),
        (sinks, slopes),
        until,
        scales,
    )
    return result


def write(
    keys: jax.Array,
    values: jax.Array,
    kv_pages: jax.Array,
    step: Step,
    *,
    paged: Paged,
    scales: jax.Array | None = None,
    context: ModelContext,
) -> jax.Array:
    """The pages with a layer's keys and values written, and nothing attended to. As in `attend`."""
    return write_slots(
        keys,
        values,
        kv_pages,
        step.slot_mapping,
        paged=paged,
        scales=scales,
        backend=step.attention_backend,
        context=context,
    )


def write_slots(
    keys: jax.Array,
    values: jax.Array,
    kv_pages: jax.Array,
    slots: jax.Array,
    *,
    paged: Paged,
    scales: jax.Array | None = None,
    backend: str,
    context: ModelContext,
) -> jax.Array:
    """The same to `slots int32 [N]` that no step names."""

    def local(
        keys: jax.Array, values: jax.Array, kv_pages: jax.Array, slots: jax.Array, scales: jax.Array | None
    ) -> jax.Array:
        return write_kv(
            kv_pages,
            keys,
            values,
            slots,
            kv_scales=scales,
            kv_dtype=paged.dtype or context.cache_dtype,
            backend=backend,
            platform=context.platform,
        )

    on_devices = context.layout.per_device(local, inputs=(KV_HEADS, KV_HEADS, PAGES, None, SCALES), outputs=PAGES)
    written: jax.Array = on_devices(keys, values, kv_pages, slots, scales)
    return written


def of_own_rows(attend: Callable[[Any, jax.Array], Any], queries: Any, offsets: jax.Array, layout: Layout) -> Any:
    """`attend(queries, offsets)` on each device; where groups of devices share tokens, of as many rows on each, and then by all.

    `queries` and results are arrays `[N, ...]` of any tree.

    The rows of a device come first in what it attends to, and all others are empty.
    """
    if not layout.own_tokens:
        return attend(queries, offsets)
    groups, rows = layout.across("split_tokens"), offsets.shape[0] - 1
    each = -(-rows // layout.shards("split_tokens"))
    first = jnp.minimum(jax.lax.axis_index(groups) * each, rows)
    start, end = offsets[first], offsets[jnp.minimum(first + each, rows)]
    rolled = jax.tree.map(lambda x: jnp.roll(x, -start, axis=0), queries)

    def of_all(found: jax.Array) -> jax.Array:
        places = jnp.arange(found.shape[0], dtype=jnp.int32).reshape(-1, *(1,) * (found.ndim - 1))
        mine = (places >= start) & (places < end)
        return jax.lax.psum(jnp.where(mine, jnp.roll(found, start, axis=0), jnp.zeros((), found.dtype)), groups)

    return jax.tree.map(of_all, attend(rolled, jnp.clip(offsets, start, end) - start))


def of_own_places(
    attend: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    queries: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    across: tuple[str, ...],
) -> jax.Array:
    """`attend(queries, offsets, starts)` on each device with all heads of its own part of the places, as many on each.

    `queries [N, heads, D]` and the result are of a device's own heads and of all places. What is attended to has to be whole on
    each device.
    """
    mine = heads_to_tokens(queries, across)
    places = mine.shape[0]
    first = jax.lax.axis_index(across) * places
    before = jnp.maximum(first - offsets[:-1], 0)  # a row's tokens on other devices
    return tokens_to_heads(attend(mine, jnp.clip(offsets - first, 0, places), starts + before), across)
