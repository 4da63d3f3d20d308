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

    `num_kv_heads` is the checkpoint's count, without repeats. Where projections have biases, that of keys has none without a
    `key_bias`. `scale` multiplies the scores. `rope` says which of the step's
    angles turn queries and keys; None where positions enter elsewhere. `window` is how many positions a token sees, itself
    included; None is all. With a `chunk` it sees those of its own chunk of so many. `norm_epsilon` is set where queries and
    keys are normalised, per head or with `norm_all` over the channels of all heads, `norm_offset` and `norm_affine` as in
    `RMSNorm`; with `norm_each` by layer norms per head, each with a scale of its own; with `norm_rotated` after positions have
    turned them. A `temperature` multiplies queries by their position. `soft_cap` bounds the scores. With `sinks` each head has
    a score that takes part in the softmax and has no value. `slopes` are those of ALiBi, of each head how much a score falls by
    position. Values have `value_dim` channels a head where it is not `head_dim`, fewer, and are multiplied by `value_scale`; in
    pages they are as large as keys. Of a `gated` one what comes out of the heads is multiplied by the sigmoid of another
    projection of the input, or if it `gates_heads` of one without biases that has a
    number of each head. What is `joined` are two streams side by side, of `width` each.
    """

    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    key_bias: bool = True
    output_bias: bool = False
    rope: int | None = None
    window: int | None = None
    chunk: int | None = None
    norm_epsilon: float | None = None
    norm_offset: float = 0.0
    norm_affine: bool = True
    norm_all: bool = False
    norm_each: bool = False
    norm_rotated: bool = False
    soft_cap: float | None = None
    sinks: bool = False
    slopes: tuple[float, ...] | None = None
    gated: bool = False
    gates_heads: bool = False
    temperature: Temperature | None = None
    value_dim: int | None = None
    value_scale: float = 1.0
    joined: bool = False

    @property
    def inputs(self) -> int:
        """Channels of what queries, keys and values are made of."""
        return 2 * self.width if self.joined else self.width

    @property
    def value_size(self) -> int:
        """Channels of a head's values."""
        return self.head_dim if self.value_dim is None else self.value_dim


class SelfAttention(nnx.Module):
    """Column-parallel projections to heads, attention per device, a row-parallel projection back."""

    def __init__(self, shape: AttentionShape, *, context: ModelContext) -> None:
        self.shape = shape
        self.context = context
        heads = shape.num_heads * shape.head_dim
        stored = context.stored_kv_heads(shape.num_kv_heads)
        kv_heads, values = stored * shape.head_dim, stored * shape.value_size
        output = shape.num_heads * shape.value_size
        self.q = Linear(shape.inputs, heads, axes=("heads", "embed"), bias=shape.qkv_bias, context=context)
        self.k = Linear(
            shape.inputs, kv_heads, axes=("kv_heads", "embed"), bias=shape.qkv_bias and shape.key_bias, context=context
        )
        self.v = Linear(shape.inputs, values, axes=("kv_heads", "embed"), bias=shape.qkv_bias, context=context)
        gates, bias = (shape.num_heads, False) if shape.gates_heads else (output, shape.qkv_bias)
        gate = Linear(shape.inputs, gates, axes=("heads", "embed"), bias=bias, context=context)
        self.gate = gate if shape.gated else None
        self.o = Linear(output, shape.width, axes=("embed", "heads"), bias=shape.output_bias, context=context)
        self.q_norm = self._norm(shape.num_heads, heads, "heads")
        self.k_norm = self._norm(shape.num_kv_heads, kv_heads, "kv_heads")
        self.sinks = context.parameter((shape.num_heads,), ("heads",)) if shape.sinks else None
        scales = [context.cache_scales(stored, "kv_heads") if self.keeps else None for _ in range(2)]
        self.k_scale, self.v_scale = scales

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
        queries, keys, values = project(x, step, self.q, self.k, self.v, sole=self.gate is None)
        if self.shape.norm_all:
            queries, keys = self._normed(queries, keys)
        queries, keys = self._heads(queries), self._heads(keys)
        values = self._values(values)
        if not (self.shape.norm_all or self.shape.norm_rotated):
            queries, keys = self._normed(queries, keys)
        if self.shape.rope is not None:
            queries, keys = self._rotated(queries, HEADS, step), self._rotated(keys, KV_HEADS, step)
        if self.shape.norm_rotated:
            queries, keys = self._normed(queries, keys)
        if self.shape.temperature is not None:
            factors = self.shape.temperature(step.positions)[:, None, None]
            queries = (queries * factors).astype(queries.dtype)
        attended, cache = self._attended(queries, keys, values, cache, step)
        attended = attended[..., : self.shape.value_size]
        if self.gate is not None:
            gates = jax.nn.sigmoid(self.gate(x, step))
            attended = attended * gates.reshape(*attended.shape[:2], -1)
        return self.o(attended.reshape(attended.shape[0], -1), step), cache

    def _attended(
        self, queries: jax.Array, keys: jax.Array, values: jax.Array, cache: Cache, step: Step
    ) -> tuple[jax.Array, Cache]:
        """What each head `[N, heads, H]` gets of the tokens before it, and the cache with its pages written."""
        layout = self.context.layout
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
            until=step.until,
            slopes=None if self.shape.slopes is None else jnp.asarray(self.shape.slopes, jnp.float32),
            scales=self._scales(),
            context=self.context,
        )
        return attended, cache.with_pages(step.pool, pages)

    def _scales(self) -> jax.Array | None:
        if self.k_scale is None or self.v_scale is None:
            return None
        return jnp.stack([self.k_scale[...], self.v_scale[...]])

    def _normed(self, queries: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.q_norm is None or self.k_norm is None:
            return queries, keys
        return self.q_norm(queries), self.k_norm(keys)

    def _rotated(self, x: jax.Array, axes: tuple[str, ...], step: Step) -> jax.Array:
        """Heads turned by their positions, by each device its own: told how they lie, XLA would gather those that are shared."""
        assert self.shape.rope is not None
        turn = partial(rotate, projected=self.q_norm is None or self.shape.norm_rotated, platform=self.context.platform)
        on_devices = self.context.layout.per_device(turn, inputs=(axes, None, None), outputs=axes)
        rotated: jax.Array = on_devices(x, *step.shared.angles[self.shape.rope])
        return rotated

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], -1, self.shape.head_dim)

    def _values(self, x: jax.Array) -> jax.Array:
        """`[N, K * value_size]` -> `[N, K, H]`, behind each head's values zeros."""
        shape = self.shape
        values = x.reshape(x.shape[0], -1, shape.value_size)
        values = values if shape.value_scale == 1.0 else values * shape.value_scale
        missing = shape.head_dim - shape.value_size
        return jnp.pad(values, ((0, 0), (0, 0), (0, missing))) if missing else values

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
