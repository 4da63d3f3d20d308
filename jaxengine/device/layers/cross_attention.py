"""Attention to what an encoder has made of an item: keys and values of each layer, written once, and read by every token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint

from jaxengine.device.layers.alignment import attend_whole
from jaxengine.device.layers.attention import HEADS, KV_HEADS, PAGES, attend, write_slots
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Paged
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.step import Step
from pallas_kernels.storage import split_heads, to_float32


@dataclass(frozen=True, kw_only=True)
class CrossShape:
    """Of all layers of a model: `num_heads` of `head_dim`, each with keys and values of its own, in `num_layers` lanes of one
    pool. An item has `places` at most."""

    width: int
    num_heads: int
    head_dim: int
    num_layers: int
    places: int

    def paged(self, context: ModelContext) -> Paged:
        """What a place keeps in a lane. As activations are: it is written once, and read by all that is said."""
        return Paged(self.num_heads, self.head_dim, self.head_dim, dtype=context.activation_dtype)


class CrossAttention(nnx.Module):
    """Of a layer what reads: queries of its tokens, whose keys and values others have written (`CrossKeys`)."""

    def __init__(self, shape: CrossShape, *, context: ModelContext) -> None:
        self.shape, self.context = shape, context
        heads = shape.num_heads * shape.head_dim
        self.q = Linear(shape.width, heads, axes=("heads", "embed"), bias=True, context=context)
        self.o = Linear(heads, shape.width, axes=("embed", "heads"), bias=True, context=context)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]`, and the cache as it was."""
        crossed = step.crossed
        assert crossed is not None, "a step of a model that crosses says where"
        assert cache.crossed is not None, "and its cache has what"
        lane = step.layer * (cache.crossed.shape[0] // self.shape.num_layers)
        queries = self.q(x, step).reshape(x.shape[0], -1, self.shape.head_dim)
        attended, pages = attend(
            self.context.layout.constrain(queries, HEADS),
            None,
            None,
            cache.crossed,
            replace(step, page_table=crossed.page_table + lane),
            paged=self.shape.paged(self.context),
            scale=self.shape.head_dim**-0.5,
            window=None,
            until=crossed.until,
            context=self.context,
        )
        return self.o(attended.reshape(attended.shape[0], -1), step), replace(cache, crossed=pages)

    def heard(
        self, x: jax.Array, crossed: jax.Array, table: jax.Array, layer: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The same of one text alone, `x [M, E]`, in the layer of this number, of the sound in the pages `table int32 [C]`.

        Returns:
            `[M, E]`, and how much each head attends to each place of the sound, float32 `[heads, M, places]`.
        """
        shape, context = self.shape, self.context
        of_device = shape.num_heads // context.layout.shards("kv_heads")

        def read(pages: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
            held = pages.at[table].get(mode="clip")
            # as in attention: without this a TPU lays the whole pool out anew
            held = with_layout_constraint(held, Layout(tuple(range(held.ndim))))
            held = held.reshape(-1, *held.shape[2:])[: shape.places]
            values = to_float32(held, kv_dtype=context.activation_dtype)
            return split_heads(values, kv_heads=of_device, head_size=shape.head_dim)

        places = ("page_tokens", *KV_HEADS[1:])
        on_devices = context.layout.per_device(read, inputs=(PAGES, None), outputs=(places, places))
        keys, values = on_devices(crossed, table + layer * (crossed.shape[0] // shape.num_layers))
        queries = self.q(x, None).reshape(len(x), -1, shape.head_dim)
        attended, weights = attend_whole(
            queries, keys, values, causal=False, scale=shape.head_dim**-0.5, precision=context.precision
        )
        return self.o(attended.reshape(len(x), -1), None), weights


class CrossKeys(nnx.Module):
    """Of a layer what writes: keys, which have no bias, and values of what an encoder makes."""

    def __init__(self, shape: CrossShape, *, context: ModelContext) -> None:
        self.shape, self.context = shape, context
        heads = shape.num_heads * shape.head_dim
        self.k = Linear(shape.width, heads, axes=("kv_heads", "embed"), bias=False, context=context)
        self.v = Linear(shape.width, heads, axes=("kv_heads", "embed"), bias=True, context=context)

    def write(self, x: jax.Array, pages: jax.Array, slots: jax.Array, *, layer: int, backend: str) -> jax.Array:
        """The pages of all layers with those of `x [M, E]` written to slots `[M]` of this one's lane; slots behind its end are of
        padding, which goes to page 0."""
        lane = pages.shape[0] // self.shape.num_layers
        slots = jnp.where(slots < lane * pages.shape[1], slots, 0)
        keys, values = (of(x, None).reshape(len(x), -1, self.shape.head_dim) for of in (self.k, self.v))
        return write_slots(
            keys,
            values,
            pages,
            slots + layer * lane * pages.shape[1],
            paged=self.shape.paged(self.context),
            backend=backend,
            context=self.context,
        )
