"""Multi-head latent attention (DeepSeek): a token keeps one vector, of which every head makes its key and its value.

The projections that would make them are drawn into the queries and into what comes back, so that nothing is kept by head, and
nothing is made by head of what is kept. Where there is an indexer, tokens attend to those that it chooses.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers import sharding
from jaxengine.device.layers.attention import HEADS, of_own_places, of_own_rows
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.indexer import Index, Indexer, IndexerShape
from jaxengine.device.layers.keeps import Keeps, Paged, Takes
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Step
from pallas_kernels import choose_tokens, chosen_attention, latent_attention, rotate, write_latents

FEW_HEADS = 8
"""Devices with so many heads each exchange them for tokens where rows decode: all would read every row's latent vectors. On 64
v6e that takes the links as long as reading 130 positions of each row takes, on 16 as 250."""
MIN_TOKENS = 2
"""Of a product of one row XLA's CPU code makes another sum than of several."""


@dataclass(frozen=True, kw_only=True)
class LatentShape:
    """Sizes of an attention of `num_heads`: of a head's queries and keys `plain` channels stay and `rotary_dim` turn by position.

    Keys and `value` channels of values are made of `rank` numbers; queries of `query_rank`, None being the hidden state itself.
    `rope` says which of the step's angles turn, None where those channels stay too. With an `indexer` tokens see some only; with
    `takes` those that a layer before this one has chosen for them. What a layer `gives` the next one takes.
    """

    width: int
    num_heads: int
    plain: int
    rotary_dim: int
    value: int
    rank: int
    query_rank: int | None
    bias: bool
    scale: float
    norm_epsilon: float
    rope: int | None = 0
    indexer: IndexerShape | None = None
    takes: bool = False
    gives: bool = False

    @property
    def latent(self) -> int:
        """Numbers that a token keeps: what keys and values are made of, and a key's rotary part, which heads share."""
        return self.rank + self.rotary_dim

    def exchanges(self, rows: int, layout: Layout, *, platform: str) -> bool:
        """Whether devices attend with all heads of their own of so many decoding rows, and not with their own heads of all.

        A prompt's tokens share what they read, and sending takes longer than attention would.
        """
        devices = layout.shards("heads")
        if platform != "tpu" or layout.own_tokens or self.indexer is not None or self.takes:
            return False
        return devices > 1 and self.num_heads // devices <= FEW_HEADS and rows % devices == 0


class LatentAttention(nnx.Module):
    """A mixer. `bias` is that of the projections down and of the last one.

    On a mesh every device has its own heads, and all latent vectors.
    """

    def __init__(self, shape: LatentShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        width, heads = shape.width, shape.num_heads * (shape.plain + shape.rotary_dim)
        down = ("head_dim", "embed")
        if shape.query_rank is None:
            self.q_down = self.q_norm = None
        else:
            self.q_down = Linear(width, shape.query_rank, axes=down, bias=shape.bias, context=context)
            self.q_norm = self._norm(shape.query_rank)
        self.q = Linear(shape.query_rank or width, heads, axes=("heads", "embed"), bias=False, context=context)
        self.kv_down = Linear(width, shape.latent, axes=down, bias=shape.bias, context=context)
        self.kv_norm = self._norm(shape.rank)
        by_head = ("heads", "head_dim", "embed")
        self.keys = context.parameter((shape.num_heads, shape.plain, shape.rank), by_head)
        self.values = context.parameter((shape.num_heads, shape.value, shape.rank), by_head)
        self.latent_scale = context.cache_scales(shape.latent, "head_dim")
        inner = shape.num_heads * shape.value
        self.o = Linear(inner, width, axes=("embed", "heads"), bias=shape.bias, context=context)
        self.indexer = None if shape.indexer is None else Indexer(shape.indexer, rope=shape.rope, context=context)

    @property
    def keeps(self) -> Keeps:
        """The latent vectors, and keys of the indexer, or nothing beside them where another layer has chosen."""
        latents = Paged(1, self.shape.latent, 0)
        if self.shape.takes:
            return latents, Takes()
        return (latents,) if self.indexer is None else (latents, self.indexer.keeps)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with its pages written."""
        shape, context = self.shape, self.context
        latents = self.kv_down(x, step)
        kept = self.kv_norm(latents[:, : shape.rank])
        rotated = self._rotated(latents[:, None, shape.rank :], step)[:, 0]
        latents = context.layout.gather_stream(jnp.concatenate([kept, rotated], axis=-1), platform=context.platform)
        low = x
        if self.q_down is not None and self.q_norm is not None:
            low = self.q_norm(self.q_down(x, step))
            low = context.layout.gather_stream(low, platform=context.platform)
        index, keys = (None, None) if self.indexer is None else self.indexer(x, low, step)
        queries = self.q(low, step, gathered=self.q_down is not None)
        queries = queries.reshape(x.shape[0], shape.num_heads, shape.plain + shape.rotary_dim)
        queries = context.layout.constrain(queries, HEADS)
        plain = self._by_head(queries[..., : shape.plain], self.keys[...], inward=True)
        rotary = self._rotated(queries[..., shape.plain :], step)
        queries = jnp.concatenate([plain, rotary], axis=-1)
        attended, cache = self._attend(queries, latents, index, keys, cache, step)
        values = self._by_head(attended, self.values[...], inward=False)
        output = self.o(values.reshape(values.shape[0], -1), step)
        return context.layout.constrain(output, ("tokens", "embed")), cache

    def _rotated(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, heads, rotary_dim]` by its position."""
        if self.shape.rope is None:
            return x
        cos, sin = step.shared.angles[self.shape.rope]
        return rotate(x, cos, sin, platform=self.context.platform)

    def _by_head(self, x: jax.Array, matrices: jax.Array, *, inward: bool) -> jax.Array:
        """`x [N, heads, i]` times the matrix of each head, `[heads, i, o]` (`inward`) or `[heads, o, i]` -> `[N, heads, o]`."""
        count = x.shape[0]
        x = jnp.pad(x, ((0, max(0, MIN_TOKENS - count)), (0, 0), (0, 0))).astype(matrices.dtype)
        dimensions = (((2,), (1 if inward else 2,)), ((1,), (0,)))
        y = jax.lax.dot_general(
            x, matrices, dimensions, precision=self.context.precision, preferred_element_type=jnp.float32
        )
        return y.transpose(1, 0, 2)[:count].astype(self.context.activation_dtype)

    def _attend(
        self,
        queries: jax.Array,
        latents: jax.Array,
        index: Index | None,
        keys: jax.Array | None,
        cache: Cache,
        step: Step,
    ) -> tuple[jax.Array, Cache]:
        """`queries [N, heads, D]` and `latents [N, D]` -> `[N, heads, rank]` and the cache with what is kept written to it."""
        place = step.keys
        key_pages = None if place is None else cache.pool(place.pool)
        assert (cache.chosen is not None) == self.shape.takes, "a choice is handed on to those that take it"
        on_devices = self.context.layout.per_device(
            functools.partial(self._attend_on_device, backend=step.attention_backend),
            inputs=(HEADS, None, sharding.LATENT_PAGES, None, None, None, None, sharding.LATENT_PAGES, *(None,) * 6),
            outputs=(HEADS, None, sharding.LATENT_PAGES, sharding.LATENT_PAGES),
        )
        attended, chosen, pages, key_pages = on_devices(
            queries,
            latents,
            cache.pages_of(step),
            None if self.latent_scale is None else self.latent_scale[...],
            index,
            cache.chosen,
            keys,
            key_pages,
            *((None, None) if place is None else (place.slot_mapping, place.page_table)),
            step.slot_mapping,
            step.page_table,
            step.offsets,
            step.starts,
        )
        cache = cache.with_pages(step.pool, pages).handing_on(chosen)
        return attended, cache if place is None else cache.with_pages(place.pool, key_pages)

    def _attend_on_device(
        self,
        queries: jax.Array,
        latents: jax.Array,
        pages: jax.Array,
        scales: jax.Array | None,
        index: Index | None,
        taken: jax.Array | None,
        keys: jax.Array | None,
        key_pages: jax.Array | None,
        key_slots: jax.Array | None,
        key_table: jax.Array | None,
        slots: jax.Array,
        page_table: jax.Array,
        offsets: jax.Array,
        starts: jax.Array,
        *,
        backend: str,
    ) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array | None]:
        """The results of a device's heads, what is handed on, and both kinds of pages. `taken` is another layer's choice."""
        target: dict[str, Any] = {"backend": backend, "platform": self.context.platform}
        of_cache: dict[str, Any] = {"scales": scales, "kv_dtype": self.context.cache_dtype, **target}
        # All rows are written before any row attends: rows of one sequence may share a step.
        pages = write_latents(pages, latents, slots, **of_cache)
        if key_pages is not None:
            assert keys is not None
            assert key_slots is not None
            of_keys: dict[str, Any] = {"kv_dtype": keys.dtype, **target}
            key_pages = write_latents(key_pages, keys, key_slots, **of_keys)

        options = {"scale": self.shape.scale, "value_size": self.shape.rank, **of_cache}
        if self._exchanges(queries, starts):

            def attend_all(queries: jax.Array, offsets: jax.Array, starts: jax.Array) -> jax.Array:
                return latent_attention(queries, pages, page_table, offsets, starts, **options)

            return of_own_places(attend_all, queries, offsets, starts, self._across), None, pages, key_pages

        def attend(
            asked: tuple[jax.Array, Index | None, jax.Array | None], offsets: jax.Array
        ) -> tuple[jax.Array, jax.Array | None]:
            queries, index, chosen = asked
            rows = (page_table, offsets, starts)
            if index is not None:
                assert key_pages is not None
                assert key_table is not None
                assert self.shape.indexer is not None
                count = self.shape.indexer.count
                chosen = choose_tokens(*index, key_pages, key_table, offsets, starts, count=count, **of_keys)
            if chosen is None:
                return latent_attention(queries, pages, *rows, **options), None
            attended = chosen_attention(queries, pages, *rows, chosen, **options)
            return attended, chosen if self.shape.gives else None

        attended, chosen = of_own_rows(attend, (queries, index, taken), offsets, self.context.layout)
        return attended, chosen, pages, key_pages

    @property
    def _across(self) -> tuple[str, ...]:
        """The axes of the mesh over which heads are split."""
        return self.context.layout.across("heads")

    def _exchanges(self, queries: jax.Array, starts: jax.Array) -> bool:
        tokens, rows = len(queries), len(starts)
        return tokens == rows and self.shape.exchanges(rows, self.context.layout, platform=self.context.platform)

    def _norm(self, size: int) -> RMSNorm:
        return RMSNorm(size, epsilon=self.shape.norm_epsilon, axis="head_dim", context=self.context)
