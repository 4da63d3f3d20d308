"""How a step's tokens reach paged attention: the one place where layers and kernels meet."""

from __future__ import annotations

import jax

from jaxengine.device.layers import sharding
from jaxengine.device.layers.context import ModelContext
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
    kv_heads: int,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    slopes: jax.Array | None = None,
    scales: jax.Array | None = None,
    context: ModelContext,
) -> tuple[jax.Array, jax.Array]:
    """Write a layer's keys and values into its pages, then let every token attend to its sequence up to itself.

    Without keys and values it attends to what another layer has written, in this step and before. `step` is that of the layer
    (`Step.for_layer`), and `window` tells the kernel where to begin.

    `queries [N, heads, H]`, `keys` and `values [N, K, H]`, K being the `kv_heads` that are stored, and `kv_pages
    [lanes * pages, T, C, L]` of the layer's pool -> `[N, heads, H]` and the pages. `sinks` and ALiBi's `slopes`, `[heads]`, and
    the `scales [2, K]` of a quantised cache are as in `pallas_kernels.paged_attention`. On a mesh every device works on its own
    heads and its own part of the pages.
    """
    of_device = kv_heads // sharding.shards("kv_heads", context.mesh)
    target = {"kv_dtype": context.cache_dtype, "backend": step.attention_backend, "platform": context.platform}

    def local(
        queries: jax.Array,
        keys: jax.Array | None,
        values: jax.Array | None,
        kv_pages: jax.Array,
        slots: jax.Array,
        page_table: jax.Array,
        offsets: jax.Array,
        starts: jax.Array,
        sinks: jax.Array | None,
        slopes: jax.Array | None,
        scales: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        # All rows are written before any row attends: rows of one sequence may share a step.
        if keys is not None and values is not None:
            kv_pages = write_kv(kv_pages, keys, values, slots, kv_scales=scales, **target)
        attended = paged_attention(
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
            kv_scales=scales,
            kv_heads=of_device,
            **target,
        )
        return attended, kv_pages

    on_devices = sharding.per_device(
        local,
        mesh=context.mesh,
        inputs=(HEADS, KV_HEADS, KV_HEADS, PAGES, None, None, None, None, HEADS[1:2], HEADS[1:2], SCALES),
        outputs=(HEADS, PAGES),
    )
    result: tuple[jax.Array, jax.Array] = on_devices(
        queries, keys, values, kv_pages, step.slots, step.page_table, step.offsets, step.starts, sinks, slopes, scales
    )
    return result
