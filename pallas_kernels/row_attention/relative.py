"""Scores that depend on how far apart two tokens are, by classes of distances."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Relative:
    """What is added to the product of a query and a key by the class of their distance, the query's place less the key's.

    `classes int32 [2M - 1]` are those of the distances from `1 - M` to `M - 1`; what is farther apart has that of the nearer end.
    `of_queries float32 [N, heads, C]`, or `[1, heads, C]` where all are alike, has a number of each query for each class, and
    `of_keys [N, heads, C]`, where it is given, one of each key.
    """

    classes: NDArray[np.int32]
    of_queries: jax.Array
    of_keys: jax.Array | None = None

    def added(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """For the places of queries `[r, m]` and of keys `[r, t]`: `[r, heads, m, t]`."""
        distance = queries[:, :, None] - keys[:, None] + len(self.classes) // 2
        number = jnp.take(jnp.asarray(self.classes), distance, mode="clip")[:, None]  # [r, 1, m, t]
        added = jnp.take_along_axis(_by_head(self.of_queries, queries), number, axis=-1)
        if self.of_keys is None:
            return added
        of_keys = jnp.take_along_axis(_by_head(self.of_keys, keys), jnp.swapaxes(number, 2, 3), axis=-1)
        return added + jnp.swapaxes(of_keys, 2, 3)


def _by_head(numbers: jax.Array, places: jax.Array) -> jax.Array:
    """Those of `places [r, m]`: `[r, heads, m, C]`."""
    return jnp.take(numbers, places, axis=0, mode="clip").transpose(0, 2, 1, 3)
