"""Attention of encoders whose scores depend on distances: by a learned number of each class, or by what is at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxengine.device.layers.attention import HEADS
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared, Step
from pallas_kernels import Relative, row_attention

Classes = Callable[[], NDArray[np.int32]]
"""Makes the classes of distances, as `Relative` has them."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DistanceShared(Shared):
    """Beside angles a `table` of all layers, with a row for each of C classes of distances.

    Of `BiasedAttention` it is `[C, heads]`, of `DisentangledAttention` `[C, E]`.
    """

    table: jax.Array | None = None


class RelativeAttention(RowAttention):
    """What the two have in common. There are as many KV heads as heads."""

    def __init__(self, shape: AttentionShape, classes: Classes, *, context: ModelContext) -> None:
        super().__init__(shape, context=context)
        self.classes = classes

    def relative(self, queries: jax.Array, keys: jax.Array, table: jax.Array) -> tuple[jax.Array, ...]:
        """Numbers of queries `[N or 1, heads, C]`, and perhaps of keys."""
        raise NotImplementedError

    def _attended(
        self, queries: jax.Array, keys: jax.Array, values: jax.Array, cache: Cache, step: Step
    ) -> tuple[jax.Array, Cache]:
        assert isinstance(step.shared, DistanceShared)
        assert step.shared.table is not None
        numbers = self.relative(queries, keys, step.shared.table)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, offsets: jax.Array, *numbers: jax.Array) -> jax.Array:
            relative = Relative(self.classes(), *numbers)
            return row_attention(
                q, k, v, offsets, scale=self.shape.scale, relative=relative, platform=self.context.platform
            )

        on_devices = self.context.layout.per_device(
            attend, inputs=(HEADS, HEADS, HEADS, None, *(HEADS for _ in numbers)), outputs=HEADS
        )
        queries, keys, values = (of.astype(self.context.dtype) for of in (queries, keys, values))
        attended: jax.Array = on_devices(queries, keys, values, step.offsets, *numbers)
        return attended.astype(self.context.activation_dtype), cache


class BiasedAttention(RelativeAttention):
    """The table's numbers are added to scores (MPNet)."""

    def relative(self, queries: jax.Array, keys: jax.Array, table: jax.Array) -> tuple[jax.Array, ...]:
        return (table.T[None].astype(jnp.float32) / self.shape.scale,)


class DisentangledAttention(RelativeAttention):
    """Queries meet keys of distances, and keys meet queries of distances (DeBERTa), or one of both.

    These are made of the table by projections of their own, or with `shared_projections` by those of tokens.
    """

    def __init__(
        self,
        shape: AttentionShape,
        classes: Classes,
        *,
        of_queries: bool,
        of_keys: bool,
        shared_projections: bool,
        context: ModelContext,
    ) -> None:
        super().__init__(shape, classes, context=context)
        self.of_queries, self.of_keys = of_queries, of_keys
        heads = shape.num_heads * shape.head_dim
        own = not shared_projections

        def projection(wanted: bool) -> Linear | None:
            return Linear(shape.width, heads, axes=("heads", "embed"), bias=True, context=context) if wanted else None

        self.distance_k, self.distance_q = projection(own and of_queries), projection(own and of_keys)

    def relative(self, queries: jax.Array, keys: jax.Array, table: jax.Array) -> tuple[jax.Array, ...]:
        numbers = []
        if self.of_queries:
            numbers.append(self._met(queries, self.k if self.distance_k is None else self.distance_k, table))
        if self.of_keys:
            if not numbers:
                numbers.append(jnp.zeros((1, queries.shape[1], len(table)), jnp.float32))
            numbers.append(self._met(keys, self.q if self.distance_q is None else self.distance_q, table))
        return tuple(numbers)

    def _met(self, tokens: jax.Array, projection: Linear, table: jax.Array) -> jax.Array:
        """Products of `tokens [N, heads, H]` with what is projected of the table, `[N, heads, C]`."""
        distances = self._heads(projection(table.astype(self.context.activation_dtype), None))
        places = len(tokens)
        if places == 1:  # as a CPU sums the products of several rows
            tokens = jnp.pad(tokens, ((0, 1), (0, 0), (0, 0)))
        products = jnp.einsum(
            "nhd,chd->nhc", tokens, distances, precision=self.context.precision, preferred_element_type=jnp.float32
        )
        return products[:places]
