"""The arrays in which an engine keeps state on its devices: their shapes, types and places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxengine.device.layers.sharding import Layout
from jaxengine.device.runtime.cache_layout import CacheLayout, StateLayout
from jaxengine.device.runtime.media_space import MediaSpace
from pallas_kernels import kv_page_shape, kv_storage_dtype, latent_page_shape


def pages(
    cache: CacheLayout, num_pages: Sequence[int], page_size: int, dtype: Any, *, platform: str, layout: Layout
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The pages of each pool, `[lanes * pages, T, C, L]`; mostly C is `2K` and L is `H`. Of latents `[..., 1, T, L]`.

    `dtype` is of the pools that have none of their own, and `num_pages` are those of a lane.
    """
    found = []
    for pool, count in zip(cache.pools, num_pages, strict=True):
        held = dtype if pool.dtype is None else kv_storage_dtype(pool.dtype, platform=platform)
        if pool.latent:
            page = latent_page_shape(page_size, pool.key, platform=platform)
        else:
            shards = layout.shards("kv_heads")
            page = kv_page_shape(page_size, pool.heads, pool.key, platform=platform, shards=shards, dtype=held)
        sharding = layout.kv_sharding(latent=pool.latent)
        found.append(jax.ShapeDtypeStruct((pool.lanes * count, *page), held, sharding=sharding))
    return tuple(found)


def states(cache: CacheLayout, count: int, *, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
    """What layers keep by slot for so many slots, `[layers, slots, ...]` each, by name."""

    def struct(kept: StateLayout) -> jax.ShapeDtypeStruct:
        sharding = layout.sharding(("layers", "slots", *kept.state.axes))
        return jax.ShapeDtypeStruct((kept.layers, count, *kept.state.shape), kept.state.dtype, sharding=sharding)

    return {kept.state.name: struct(kept) for kept in cache.states}


def one_slot(cache: CacheLayout, *, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
    """The same for one slot beside others, `[1, layers, ...]` each."""

    def struct(kept: StateLayout) -> jax.ShapeDtypeStruct:
        sharding = layout.sharding(("slots", "layers", *kept.state.axes))
        return jax.ShapeDtypeStruct((1, kept.layers, *kept.state.shape), kept.state.dtype, sharding=sharding)

    return {kept.state.name: struct(kept) for kept in cache.states}


def embeddings(media: MediaSpace, *, layout: Layout) -> jax.ShapeDtypeStruct | None:
    """The pool of embeddings, `[pages * page size, W]`, whole on every device; None of a model whose layers read pages."""
    traits = media.traits
    if traits.crossed is not None:
        return None
    shape = (media.num_pages * media.page_size, traits.width)
    return jax.ShapeDtypeStruct(shape, traits.dtype, sharding=layout.replicated)


def crossed(media: MediaSpace, *, platform: str, layout: Layout) -> jax.ShapeDtypeStruct | None:
    """What layers read of an encoder, `[layers * pages, T, C, L]`; None of a model without."""
    shape = media.traits.crossed
    if shape is None:
        return None
    dtype = kv_storage_dtype(media.traits.dtype, platform=platform)
    shards = layout.shards("kv_heads")
    page = kv_page_shape(
        media.page_size, shape.num_heads, shape.head_dim, platform=platform, shards=shards, dtype=dtype
    )
    sharding = layout.kv_sharding(latent=False)
    return jax.ShapeDtypeStruct((shape.num_layers * media.num_pages, *page), dtype, sharding=sharding)
