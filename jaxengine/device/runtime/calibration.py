"""Scales of a quantised KV cache, measured: one sequence passes through the programs that serve, and what it left is looked at.

The first pass uses some scale or other. Where values saturated the scale grows, where they were too small to be told apart it
shrinks, and the next pass sees better, until no scale changes: three to six passes. Nothing is compiled for it but the looking.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.rows import Row
from jaxengine.contract.runner import Weights
from jaxengine.device.runtime.cache_layout import PoolLayout
from jaxengine.device.runtime.mesh_caches import part_of_mesh
from jaxengine.device.runtime.runner import ModelRunner
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from jaxengine.device.weights.cache_scales import cache_scale_paths
from pallas_kernels.storage import split_heads, to_float32

HEADROOM = 1.25
"""How much larger than anything that was measured a value may be before it saturates."""
STEPS = 8
"""Scales are powers of two, or one of so many steps between: they do not depend on the last bits of what was measured."""
FIRST_SCALE, LEAST_SCALE = 2.0**-3, 2.0**-30
MAX_PASSES = 10
SLOT = 1

Floats = NDArray[np.float32]


def calibrate(runner: ModelRunner, tokens: Sequence[int], kv_dtype: Any) -> int:
    """Give the cache of every layer, of `kv_dtype`, scales that fit `tokens`, or as many of them as its pages hold.

    A head has a scale for keys and one for values, of latent vectors each number has one. It is for an engine in which nothing
    runs yet.

    Returns:
        How many tokens that were.
    """
    space = runner.space
    tables, count = _page_tables(space, len(tokens))
    here = {layer for view in space.views if view.here for layer in view.layers}
    paths = [path for path in cache_scale_paths(space.parameters) if _layer_of(path) in here]
    scales = {path: np.full(space.parameters[path].shape, FIRST_SCALE, np.float32) for path in paths}
    for _ in range(MAX_PASSES):
        runner.write(Weights(scales))
        _pass(runner, tokens[:count], tables)
        better = {
            path: _better(scale, _largest(runner, path, tables, kv_dtype), kv_dtype) for path, scale in scales.items()
        }
        if all(np.abs(np.log2(better[path] / scales[path])).max() <= 1 / STEPS for path in paths):
            return count
        scales = better
    runner.write(Weights(scales))
    return count


def _page_tables(space: ProgramSpace, count: int) -> tuple[Int32s, int]:
    """Pages of each group for one sequence, `[G, n]`, and how many of `count` tokens they hold."""
    pools = list(zip(space.cache.pools, space.num_pages, strict=True))
    room = min((num_pages - 1) // len(pool.windows) for pool, num_pages in pools)
    length = min(room, space.pages_per_row, -(-count // space.page_size))
    firsts = [1 + length * group for pool, _ in pools for group in range(len(pool.windows))]
    return np.array([np.arange(first, first + length) for first in firsts], np.int32), min(
        count, length * space.page_size, space.max_model_len
    )


def _pass(runner: ModelRunner, tokens: Sequence[int], tables: Int32s) -> None:
    """Run a prompt, in rows as long as the largest shape that is there."""
    bucket = max(runner.buckets, key=lambda bucket: bucket.tokens)
    for start in range(0, len(tokens), bucket.tokens):
        part = tuple(tokens[start : start + bucket.tokens])
        runner.forward(bucket, [Row(SLOT, part, len(part), start, None)], [(SLOT, tables)])


def _layer_of(path: str) -> int:
    """The number of the layer that a scale is of."""
    return int(path.split(".")[1])


def _largest(runner: ModelRunner, path: str, tables: Int32s, kv_dtype: Any) -> Floats:
    """The largest magnitudes in the cache that a scale belongs to, as they are stored."""
    layer, name, views = _layer_of(path), path.rpartition(".")[2], runner.space.views
    mesh, space = next(found for found in enumerate(views) if layer in found[1].layers)
    pool, group, lane = space.cache.indices[layer].pages
    keys, values = magnitudes(
        part_of_mesh(runner.cache, mesh, len(views)).pages[pool],
        put(tables[group] + lane * space.num_pages[pool], space.replicated),
        pool=space.cache.pools[pool],
        devices=space.device_layout.shards("kv_heads"),
        kv_dtype=kv_dtype,
        everywhere=None if space.device_layout.mesh is None else space.replicated,
    )
    return np.nan_to_num(np.asarray(values if name == "v_scale" else keys), nan=np.inf)


@functools.partial(jax.jit, static_argnames=("pool", "devices", "kv_dtype", "everywhere"))
def magnitudes(
    pages: jax.Array,
    ids: jax.Array,
    *,
    pool: PoolLayout,
    devices: int,
    kv_dtype: Any,
    everywhere: jax.sharding.Sharding | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Of keys and of values, `[K]` each; of latent vectors both are those of each number. All devices have them `everywhere`."""
    # Page by page: a gather might have the compiler turn the whole pool.
    stored = jax.lax.map(lambda page: jax.lax.dynamic_index_in_dim(pages, page, keepdims=False), ids)
    if pool.latent:
        whole = jnp.abs(to_float32(stored[..., : pool.key], kv_dtype=kv_dtype)).max(axis=(0, 1, 2))
        return whole, whole
    *before, channels, lanes = stored.shape
    by_device = stored.reshape(*before, devices, channels // devices, lanes)
    both = split_heads(by_device, kv_heads=pool.heads // devices, head_size=pool.key)
    keys, values = (jnp.abs(to_float32(each, kv_dtype=kv_dtype)).max(axis=(0, 1, 4)).reshape(-1) for each in both)
    return (keys, values) if everywhere is None else jax.lax.with_sharding_constraint((keys, values), everywhere)


def _better(scale: Floats, largest: Floats, kv_dtype: Any) -> Floats:
    """Scales under which the largest numbers that were stored, times `HEADROOM`, are the largest of the type."""
    most = 127.0 if kv_dtype == jnp.int8 else float(jnp.finfo(kv_dtype).max)
    wanted = np.where(largest == 0, scale / 64, scale * np.minimum(largest, most) * (HEADROOM / most))
    wanted = np.where(largest >= most, scale * 8, wanted)
    return np.exp2(np.ceil(np.log2(np.maximum(wanted, LEAST_SCALE)) * STEPS) / STEPS).astype(np.float32)
