"""A layer of Gemma 4: heads of two sizes, values that are keys, keys that are another layer's; experts beside a dense network."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.attention import HEADS, KV_HEADS, attend
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.experts import ExpertsShape, SparseMLP
from jaxengine.device.layers.keeps import Keeps, Paged, Reads
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.norm import RMSNorm, by_root_mean_square
from jaxengine.device.layers.step import Angles, Shared, Step
from pallas_kernels import rotate


@dataclass(frozen=True, kw_only=True)
class Gemma4LayerShape:
    """What tells one layer from another.

    `num_kv_heads` is the checkpoint's count, without repeats; `rope` says which of the step's angles turn heads, `window` how far
    back a token sees. A layer that `reads` has no keys and values of its own, but those of the layer of that number. `beside` is
    the size of what a layer is given of each token beside the residual stream, 0 where it is nothing.
    """

    width: int
    mlp_size: int
    activation: str
    epsilon: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool
    rope: int
    window: int | None
    keys_as_values: bool
    reads: int | None
    beside: int
    experts: ExpertsShape | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gemma4Shared(Shared):
    """Beside angles `embeddings [N, layers * P]`, each layer's of a token one behind the other; None where they have none."""

    embeddings: jax.Array | None = None


class Gemma4Attention(nnx.Module):
    """Normalised queries, keys and values; scores are not scaled."""

    def __init__(self, shape: Gemma4LayerShape, *, context: ModelContext) -> None:
        self.shape, self.context = shape, context
        stored = context.stored_kv_heads(shape.num_kv_heads)
        self.paged = Paged(stored, shape.head_dim, shape.head_dim, window=shape.window)
        reads = shape.reads is not None
        heads, kv_heads = shape.num_heads * shape.head_dim, stored * shape.head_dim

        def norm() -> RMSNorm:
            return RMSNorm(shape.head_dim, epsilon=shape.epsilon, axis="head_dim", context=context)

        def to_kv_heads() -> Linear:
            return Linear(shape.width, kv_heads, axes=("kv_heads", "embed"), bias=shape.bias, context=context)

        self.q = Linear(shape.width, heads, axes=("heads", "embed"), bias=shape.bias, context=context)
        self.o = Linear(heads, shape.width, axes=("embed", "heads"), bias=shape.bias, context=context)
        self.q_norm = norm()
        self.k = None if reads else to_kv_heads()
        self.v = None if reads or shape.keys_as_values else to_kv_heads()
        self.k_norm = None if reads else norm()
        self.k_scale, self.v_scale = (None if reads else context.cache_scales(stored, "kv_heads") for _ in range(2))

    @property
    def keeps(self) -> Keeps:
        """Keys and values, if they are not another layer's."""
        return (self.paged if self.shape.reads is None else Reads(self.shape.reads),)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """`x [N, E]` -> `[N, E]` and the cache with its pages written, if the layer writes any."""
        layout, angles = self.context.layout, step.shared.angles[self.shape.rope]
        queries = self._rotated(self.q_norm(self._heads(self.q(x, step))), angles)
        keys, values = self._keys_and_values(x, step)
        attended, pages = attend(
            layout.constrain(queries, HEADS),
            keys,
            values,
            cache.pages_of(step),
            step,
            paged=self.paged,
            scale=1.0,
            window=self.shape.window,
            until=None if self.shape.window is None else step.until,  # a layer that sees all sees nothing later
            scales=None
            if self.k_scale is None or self.v_scale is None
            else jnp.stack([self.k_scale[...], self.v_scale[...]]),
            context=self.context,
        )
        output = self.o(attended.reshape(attended.shape[0], -1), step)
        return layout.constrain(output, ("tokens", "embed")), cache.with_pages(step.pool, pages)

    def _keys_and_values(self, x: jax.Array, step: Step) -> tuple[jax.Array | None, jax.Array | None]:
        if self.k is None or self.k_norm is None:
            return None, None
        keys = self._heads(self.k(x, step))
        values = keys if self.v is None else self._heads(self.v(x, step))
        normed = by_root_mean_square(values, epsilon=self.shape.epsilon, context=self.context).astype(values.dtype)
        keys, values = (
            self.context.layout.constrain(y, KV_HEADS)
            for y in (self._rotated(self.k_norm(keys), step.shared.angles[self.shape.rope]), normed)
        )
        return keys, values

    def _rotated(self, x: jax.Array, angles: Angles) -> jax.Array:
        return rotate(x, *angles, platform=self.context.platform)

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], -1, self.shape.head_dim)


class BesideExperts(nnx.Module):
    """A dense network and experts that see the same residual stream, each behind norms of its own."""

    def __init__(self, mlp: GatedMLP, experts: ExpertsShape, *, epsilon: float, context: ModelContext) -> None:
        def norm() -> RMSNorm:
            return RMSNorm(experts.width, epsilon=epsilon, context=context)

        self.share = experts.width**-0.5
        self.mlp, self.experts = mlp, SparseMLP(experts, context=context)
        self.router_norm, self.mlp_norm, self.experts_norm = norm(), norm(), norm()
        self.mlp_output_norm, self.experts_output_norm = norm(), norm()

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, E]` of the residual stream -> `[N, E]`."""
        dense = self.mlp_output_norm(self.mlp(self.mlp_norm(x), step))
        routed = self.experts(self.experts_norm(x), step, scored=self.router_norm(x) * self.share)
        return dense + self.experts_output_norm(routed)


class NormedMLP(nnx.Module):
    """A dense network behind its norm."""

    def __init__(self, mlp: GatedMLP, *, norm: RMSNorm) -> None:
        self.mlp, self.mlp_norm = mlp, norm

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, E]` of the residual stream -> `[N, E]`."""
        return self.mlp(self.mlp_norm(x), step)


class Beside(nnx.Module):
    """What a layer makes of what it is given of each token beside the residual stream."""

    def __init__(self, shape: Gemma4LayerShape, *, context: ModelContext) -> None:
        self.size, self.activation = shape.beside, shape.activation
        wide = shape.width
        self.gate = Linear(wide, self.size, axes=("word_embed", "embed"), bias=False, context=context)
        self.project = Linear(self.size, wide, axes=("embed", "word_embed"), bias=False, context=context)
        self.norm = RMSNorm(wide, epsilon=shape.epsilon, context=context)

    def __call__(self, x: jax.Array, given: jax.Array, step: Step) -> jax.Array:
        """`x [N, E]` of the residual stream, `given [N, P]` -> `[N, E]`."""
        return self.norm(self.project(ACTIVATIONS[self.activation](self.gate(x, step)) * given, step))


class Gemma4Layer(nnx.Module):
    """Attention, feed-forward and what is given beside, each added to the residual stream behind a norm, and all of it scaled."""

    def __init__(self, shape: Gemma4LayerShape, *, context: ModelContext) -> None:
        def norm() -> RMSNorm:
            return RMSNorm(shape.width, epsilon=shape.epsilon, context=context)

        mlp = GatedMLP(shape.width, shape.mlp_size, activation=shape.activation, bias=False, context=context)
        self.attention = Gemma4Attention(shape, context=context)
        self.attention_norm, self.attention_output_norm, self.output_norm = norm(), norm(), norm()
        self.feed_forward = (
            NormedMLP(mlp, norm=norm())
            if shape.experts is None
            else BesideExperts(mlp, shape.experts, epsilon=shape.epsilon, context=context)
        )
        self.beside = Beside(shape, context=context) if shape.beside else None
        self.scalar = context.parameter((1,), ("embed",))

    @property
    def keeps(self) -> Keeps:
        """What the attention keeps."""
        return self.attention.keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        """The residual stream `[N, E]`, the cache of all layers and the step of this one -> the stream and the cache."""
        mixed, cache = self.attention(self.attention_norm(x), cache, step)
        x = x + self.attention_output_norm(mixed)
        x = x + self.output_norm(self.feed_forward(x, step))
        if self.beside is not None:
            assert isinstance(step.shared, Gemma4Shared)
            assert step.shared.embeddings is not None
            size = self.beside.size
            given = jax.lax.dynamic_slice_in_dim(step.shared.embeddings, step.layer * size, size, axis=1)
            x = x + self.beside(x, given, step)
        return x * self.scalar[...].astype(x.dtype), cache
