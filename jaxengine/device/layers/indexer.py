"""The indexer of sparse attention (DeepSeek V3.2): small heads of its own score a token's sequence, and the best are attended to.

As in transformers, and unlike DeepSeek's kernels, nothing is rounded to 8 bits on the way, and so nothing is turned by a Hadamard
matrix before that: products do not change by it. Keys are kept in the dtype of activations, whatever the KV cache is kept in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import IndexKeys
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.step import Step
from pallas_kernels import matmul, rotate

NORM_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class IndexerShape:
    """`heads` of `size` channels, the first `rotary_dim` of which turn by position; a token attends to `count` tokens.

    Queries are made of `query_rank` numbers, weights of heads and the key, which heads share, of `width`. With `interleaved` the
    channels that turn together are neighbours in a checkpoint.
    """

    width: int
    query_rank: int
    heads: int
    size: int
    rotary_dim: int
    count: int
    interleaved: bool


class Index(NamedTuple):
    """What a step's tokens are scored by: `queries [N, heads, D]` and float32 `weights [N, heads]`."""

    queries: jax.Array
    weights: jax.Array


class Indexer(nnx.Module):
    """On a mesh every device has all of it: each of its heads has a part in every choice."""

    def __init__(self, shape: IndexerShape, *, rope: int | None, context: ModelContext) -> None:
        """`rope` is as in `LatentShape`."""
        self.shape = shape
        self.rope = rope
        self.context = context
        whole = ("head_dim", "embed")
        self.q = Linear(shape.query_rank, shape.heads * shape.size, axes=whole, bias=False, context=context)
        self.k = Linear(shape.width, shape.size, axes=whole, bias=False, context=context)
        self.k_norm = LayerNorm(shape.size, epsilon=NORM_EPSILON, affine=True, context=context)
        # As a router's: its numbers decide, and it is small.
        self.weights = context.parameter((shape.heads, shape.width), ("all_heads", "embed"))

    @property
    def keeps(self) -> IndexKeys:
        """A key of each token."""
        return IndexKeys(self.shape.size, self.context.activation_dtype, self.shape.count)

    def __call__(self, x: jax.Array, low: jax.Array, step: Step) -> tuple[Index, jax.Array]:
        """`x [N, E]` and what queries are made of, `low [N, query_rank]` -> what scores, and keys `[N, D]`."""
        shape = self.shape
        queries = self._rotated(self.q(low, step).reshape(-1, shape.heads, shape.size), step)
        keys = self._rotated(self.k_norm(self.k(x, step))[:, None], step)[:, 0]
        weights = matmul(x, self.weights[...], precision=self.context.precision, platform=self.context.platform)
        weights = weights.astype(jnp.float32) * (shape.heads * shape.size) ** -0.5
        return Index(queries, weights), keys

    def _rotated(self, x: jax.Array, step: Step) -> jax.Array:
        """`x [N, heads, D]`, of which the first channels turn by position."""
        if self.rope is None:
            return x
        cos, sin = step.shared.angles[self.rope]
        turning = rotate(x[..., : self.shape.rotary_dim], cos, sin, platform=self.context.platform)
        return jnp.concatenate([turning, x[..., self.shape.rotary_dim :]], axis=-1)
