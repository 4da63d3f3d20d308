"""What a step is for the layers of a model: one value that goes through all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

Angles = tuple[jax.Array, jax.Array]
"""Cosines and sines of a rotary embedding, float32 `[N, 1, H / 2]` each."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Step:
    """`B` rows of tokens in `N` flat places, the rest of which are padding; `P` pages per row, `G` groups of layers.

    `positions int32 [N]`. `page_table int32 [G, B, P]`, `offsets int32 [B + 1]` and `starts int32 [B]` are those of
    `pallas_kernels.paged_attention`. `slots int32 [G, N]` says where each token's keys and values go:
    `page * page_size + offset` (in the sink page for padding). `angles` are those of each rotary embedding that the model has.
    `places` has the `(pool, group, lane)` of each layer; a lane of a pool is as long as its `num_pages`. `for_layer` and `at`
    leave the table `[B, P]` and the slots `[N]` of one layer, moved to its lane of its `pool`.

    `row_slots int32 [B]` are the slots of the rows' sequences. A layer that keeps something there has a place too,
    `(0, 0, lane)`: its number among its like, which `at` leaves as `lane`.
    """

    positions: jax.Array
    page_table: jax.Array
    offsets: jax.Array
    starts: jax.Array
    slots: jax.Array
    row_slots: jax.Array | None = None
    lane: jax.Array | int = 0
    angles: tuple[Angles, ...] = ()
    pool: int = field(default=0, kw_only=True, metadata={"static": True})
    places: tuple[tuple[int, int, int], ...] = field(kw_only=True, metadata={"static": True})
    num_pages: tuple[int, ...] = field(kw_only=True, metadata={"static": True})
    page_size: int = field(kw_only=True, metadata={"static": True})
    attention_backend: str = field(kw_only=True, metadata={"static": True})

    @property
    def real(self) -> jax.Array:
        """Which places hold a token, `bool[N]`."""
        return jnp.arange(self.positions.shape[0], dtype=jnp.int32) < self.offsets[-1]

    @property
    def row_of_place(self) -> jax.Array:
        """The row of each place, `int32 [N]`; of padding one of them."""
        places = jnp.arange(self.positions.shape[0], dtype=jnp.int32)
        ends = self.offsets[1:]
        rows = (places[:, None] >= ends[None]).sum(axis=1, dtype=jnp.int32)
        return jnp.minimum(rows, ends.shape[0] - 1)

    def turning(self, angles: tuple[Angles, ...]) -> Step:
        """The step with these angles."""
        return replace(self, angles=angles)

    def for_layer(self, layer: int) -> Step:
        """What one layer needs."""
        return self.at(*self.places[layer])

    def at(self, pool: int, group: int | jax.Array, lane: int | jax.Array) -> Step:
        """What the layer at this place needs. Which pool it is shapes a program, the rest is data."""
        table, slots = (jax.lax.dynamic_index_in_dim(x, group, keepdims=False) for x in (self.page_table, self.slots))
        pages_before = lane * self.num_pages[pool]
        table, slots = table + pages_before, slots + pages_before * self.page_size
        return replace(self, page_table=table, slots=slots, pool=pool, lane=lane)
