"""Multi-head self-attention over the paged KV cache, with grouped KV heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.attention import HEADS, KV_HEADS, attend
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.chunks import by_chunk
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps, Paged
from jaxengine.device.layers.linear import Linear, project
from jaxengine.device.layers.norm import HeadNorms, RMSNorm
from jaxengine.device.layers.step import Step
from pallas_kernels import rotate


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """What long contexts do to queries: the logarithm of how many times `floor` positions precede, times `share`.

    Positions count from `first`: 1 in Llama 4, 0 in Ministral 3.
    """

    floor: float
    share: float
    first: int = 1

    def __call__(self, positions: jax.Array) -> jax.Array:
        """`positions [N]` -> factors of their queries, float32 `[N]`."""
        passed = jnp.floor((positions.astype(jnp.float32) + self.first) / self.floor)
        return jnp.log1p(passed) * self.share + 1.0


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """What tells one layer's attention from another's.

    `num_kv_heads` is the checkpoint's count, without repeats. `scale` multiplies the scores. `rope` says which of the step's
    angles turn queries and keys; None where positions enter elsewhere. `window` is how many positions a token sees, itself
    included; None is all. With a `chunk` it sees those of its own chunk of so many. `norm_epsilon` is set where queries and keys
    are normalised, per head or with `norm_all` over the channels of all heads, `norm_offset` and `norm_affine` as in `RMSNorm`;
    with `norm_each` by layer norms per head, each with a scale of its own. A `temperature` multiplies queries by their position.
    `soft_cap` bounds the scores. With `sinks` each head has a score that takes part in the softmax and has no value. `slopes`
    are those of ALiBi, of each head how much a score falls by position. Of a `gated` one what comes out of the heads is
    multiplied by the sigmoid of another projection of the input.
    """

    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    output_bias: bool = False
    rope: int | None = None
    window: int | None = None
    chunk: int | None = None
    norm_epsilon: float | None = None
    norm_offset: float = 0.0
    norm_affine: bool = True
    norm_all: bool = False
    norm_each: bool = False
    soft_cap: float | None = None
    sinks: bool = False
    slopes: tuple[float, ...] | None = None
    gated: bool = False
    temperature: Temperature | None = None


class SelfAttention(nnx.Module):
    """Column-parallel projections to heads, attention per device, a row-parallel projection back."""

    def __init__(self, shape: AttentionShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        heads = shape.num_heads * shape.head_dim
        kv_heads = context.stored_kv_heads(shape.num_kv_heads) * shape.head_dim
        self.q = Linear(shape.width, heads, axes=("heads", "embed"), bias=shape.qkv_bias, context=context)
        self.k = Linear(shape.width, kv_heads, axes=("kv_heads", "embed"), bias=shape.qkv_bias, context=context)
        self.v = Linear(shape.width, kv_heads, axes=("kv_heads", "embed"), bias=shape.qkv_bias, context=context)
        gate = Linear(shape.width, heads, axes=("heads", "embed"), bias=shape.qkv_bias, context=context)
        self.gate = gate if shape.gated else None
        self.o = Linear(heads, shape.width, axes=("embed", "heads"), bias=shape.output_bias, context=context)
        self.q_norm = self._norm(shape.num_heads, heads, "heads")
        self.k_norm = self._norm(shape.num_kv_heads, kv_heads, "kv_heads")
        self.sinks = context.parameter((shape.num_heads,), ("heads",)) if shape.sinks else None
        stored = context.stored_kv_heads(shape.num_kv_heads)
        self.k_scale, self.v_scale = (context.cache_scales(stored, "kv_heads") for _ in range(2))

    @property
    def paged(self) -> Paged:
        """Keys and values. What lies in a token's chunk lies in a window of that size."""
        shape = self.shape
        heads = self.context.stored_kv_heads(shape.num_kv_heads)
        return Paged(heads, shape.head_dim, shape.head_dim, window=shape.window or shape.chunk)

    @property
    def keeps(self) -> Keeps:
        return (self.paged,)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with its pages written."""
        layout = self.context.layout
        queries, keys, values = project(x, step, self.q, self.k, self.v)
        if self.q_norm is not None and self.k_norm is not None and self.shape.norm_all:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys, values = (self._heads(projected) for projected in (queries, keys, values))
        if self.q_norm is not None and self.k_norm is not None and not self.shape.norm_all:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        if self.shape.rope is not None:
            queries, keys = self._rotated(queries, HEADS, step), self._rotated(keys, KV_HEADS, step)
        if self.shape.temperature is not None:
            factors = self.shape.temperature(step.positions)[:, None, None]
            queries = (queries * factors).astype(queries.dtype)
        attended, pages = attend(
            layout.constrain(queries, HEADS),
            layout.constrain(keys, KV_HEADS),
            layout.constrain(values, KV_HEADS),
            cache.pages_of(step),
            step if self.shape.chunk is None else by_chunk(step, self.shape.chunk),
            paged=self.paged,
            scale=self.shape.scale,
            window=self.shape.window,
            soft_cap=self.shape.soft_cap,
            sinks=None if self.sinks is None else self.sinks[...],
            slopes=None if self.shape.slopes is None else jnp.asarray(self.shape.slopes, jnp.float32),
            scales=self._scales(),
            context=self.context,
        )
        attended = attended.reshape(attended.shape[0], -1)
        if self.gate is not None:
            attended = attended * jax.nn.sigmoid(self.gate(x, step))
        return self.o(attended, step), cache.with_pages(step.pool, pages)

    def _scales(self) -> jax.Array | None:
        if self.k_scale is None or self.v_scale is None:
            return None
        return jnp.stack([self.k_scale[...], self.v_scale[...]])

    def _rotated(self, x: jax.Array, axes: tuple[str, ...], step: Step) -> jax.Array:
        """Heads turned by their positions, by each device its own: told how they lie, XLA would gather those that are shared."""
        assert self.shape.rope is not None
        turn = partial(rotate, projected=self.q_norm is None, platform=self.context.platform)
        on_devices = self.context.layout.per_device(turn, inputs=(axes, None, None), outputs=axes)
        rotated: jax.Array = on_devices(x, *step.shared.angles[self.shape.rope])
        return rotated

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], -1, self.shape.head_dim)

    def _norm(self, count: int, channels: int, axis: str) -> RMSNorm | HeadNorms | None:
        """Of queries or keys, of which a checkpoint has `count` heads, and which have so many channels in all that are stored."""
        shape = self.shape
        if shape.norm_epsilon is None:
            return None
        if shape.norm_each:
            return HeadNorms(count, shape.head_dim, epsilon=shape.norm_epsilon, context=self.context)
        size, axis = (channels, axis) if shape.norm_all else (shape.head_dim, "head_dim")
        return RMSNorm(
            size,
            epsilon=shape.norm_epsilon,
            axis=axis,
            offset=shape.norm_offset,
            affine=shape.norm_affine,
            context=self.context,
        )
