"""Token and position embeddings, and the final projection to the vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Matrix
from jaxengine.device.layers.schemes import TABLE, WEIGHT
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.schemes.int8 import SCALE


class Embedding(Matrix):
    """A table `[V, E]`, split over the vocabulary: it looks tokens up, and scores hidden states against every token.

    With `bias` every token's score gets a number of its own added. One that looks tokens up is plain or in int8.
    """

    NUMBERS = TABLE

    def __init__(self, vocab_size: int, width: int, *, bias: bool = False, context: ModelContext) -> None:
        self.vocab_axis = context.layout.vocab_axis(vocab_size)
        super().__init__(width, vocab_size, axes=(self.vocab_axis, "embed"), context=context)
        self.bias = context.parameter((vocab_size,), (self.vocab_axis,)) if bias else None

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """`tokens [N]` -> `[N, E]` in the activation dtype."""
        arrays = self.arrays()
        scales = [] if self.scheme is DENSE else [arrays[SCALE]]
        look_up = self.context.layout.per_device(
            self._look_up, inputs=(("tokens",), self.axes, *[self.axes[:1]] * len(scales)), outputs=("tokens", "embed")
        )
        found: jax.Array = look_up(tokens, arrays[WEIGHT], *scales)
        found = found.astype(self.context.activation_dtype)
        return self.context.layout.constrain_stream(found, platform=self.context.platform)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`hidden [R, E]` -> float32 `[R, V]`, split over the vocabulary as the table is."""
        context = self.context
        scores = self.multiply(hidden)
        if self.bias is not None:
            scores += self.bias[...].astype(scores.dtype)
        return context.layout.constrain(scores, ("tokens", self.vocab_axis))

    def _look_up(self, tokens: jax.Array, table: jax.Array, scales: jax.Array | None = None) -> jax.Array:
        if self.context.layout.mesh is None or self.vocab_axis != "vocab":
            return _rows(tokens, table, scales)
        # Each device adds the rows it has and zeros for the others: the sum is exact, one term of it is not zero.
        size = table.shape[0]
        across = self.context.layout.across(self.vocab_axis)
        local = tokens - jax.lax.axis_index(across) * size
        mine = (local >= 0) & (local < size)
        found = _rows(local, table, scales)
        return jax.lax.psum(jnp.where(mine[:, None], found, jnp.zeros((), found.dtype)), across)


def _rows(numbers: jax.Array, table: jax.Array, scales: jax.Array | None) -> jax.Array:
    rows = jnp.take(table, numbers, axis=0, mode="clip")
    if scales is None:
        return rows
    return rows.astype(scales.dtype) * jnp.take(scales, numbers, mode="clip")[:, None]


class LearnedPositions(nnx.Module):
    """A table of position embeddings; OPT's starts at row 2."""

    def __init__(self, num_positions: int, width: int, *, offset: int, context: ModelContext) -> None:
        self.context = context
        self.offset = offset
        self.table = context.parameter((num_positions + offset, width), ("positions", "embed"))

    def __call__(self, positions: jax.Array) -> jax.Array:
        """`positions [N]` -> `[N, E]` in the activation dtype."""
        rows = jnp.take(self.table[...], positions + self.offset, axis=0, mode="clip")
        return rows.astype(self.context.activation_dtype)
