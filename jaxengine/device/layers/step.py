"""What a step is for the layers of a model: one value that goes through all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from jaxengine.device.layers.keeps import CacheIndex, PageIndex
from pallas_kernels import AdapterRows

Angles = tuple[jax.Array, jax.Array]
"""Cosines and sines of a rotary embedding, float32 `[N, 1, H / 2]` each."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shared:
    """What all layers are given of a step's tokens beside the residual stream: `angles` of each rotary embedding of the model.

    A family whose layers are given more extends it by further trees of arrays (Gemma 4).
    """

    angles: tuple[Angles, ...] = ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Places:
    """Pages of one kind of one layer, in its lane of a `pool`: `page_table int32 [B, P]` and `slot_mapping int32 [N]`."""

    page_table: jax.Array
    slot_mapping: jax.Array
    pool: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Crossed:
    """Where a step's tokens find what an encoder wrote: `page_table int32 [B, C]` of each row, and of each place the last
    position that there is, `until int32 [N]`."""

    page_table: jax.Array
    until: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Step:
    """`B` rows of tokens in `N` flat places, the rest of which are padding; `P` pages per row, `G` groups of layers.

    `positions int32 [N]`. `page_table int32 [G, B, P]`, `offsets int32 [B + 1]` and `starts int32 [B]` are those of
    `pallas_kernels.paged_attention`. `slot_mapping int32 [G, N]` says where each token's keys and values go:
    `page * page_size + offset` (in the sink page for padding). `row_slots int32 [B]` are the slots of the rows' sequences.
    Of the places the first `used`, an int32, have to be computed, None being all. `adapters` says which one each place goes
    through; None: no place goes through any. `until int32 [N]` is the last position that each place's token sees, in place of its
    own; None: its own. `crossed` is of models whose layers attend to what an encoder wrote.
    `shared` is what the model gives to all layers.

    `indices` say where each layer finds what it keeps; a lane of a pool is as long as its `num_pages`. `for_layer` and `at`
    leave the table `[B, P]` and the mapping `[N]` of one layer, moved to its lane of its `pool`, its number `layer`, that of its
    states, `state`, and where the `keys` of its indexer are, if it has one.
    """

    positions: jax.Array
    page_table: jax.Array
    offsets: jax.Array
    starts: jax.Array
    slot_mapping: jax.Array
    row_slots: jax.Array | None = None
    used: jax.Array | None = None
    adapters: AdapterRows | None = None
    until: jax.Array | None = None
    crossed: Crossed | None = None
    layer: jax.Array | int = 0
    state: jax.Array | int = 0
    shared: Shared = field(default_factory=Shared)
    keys: Places | None = None
    pool: int = field(default=0, kw_only=True, metadata={"static": True})
    indices: tuple[CacheIndex, ...] = field(kw_only=True, metadata={"static": True})
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

    @property
    def begin_of_place(self) -> jax.Array:
        """Where the row of each place begins, `int32 [N]`; of padding anywhere."""
        # A TPU takes numbers one by one, which takes longer than to compare all places with all rows.
        places, begins = jnp.arange(self.positions.shape[0], dtype=jnp.int32), self.offsets[:-1]
        return jnp.where(places[:, None] >= begins, begins, 0).max(axis=1)

    def sharing(self, shared: Shared) -> Step:
        """The step with what the model gives to all layers."""
        return replace(self, shared=shared)

    def for_layer(self, layer: int) -> Step:
        """What one layer needs."""
        return self.at(layer, self.indices[layer])

    def at(self, layer: int | jax.Array, index: CacheIndex) -> Step:
        """What the layer of this number needs, with what it keeps there. Which pool it is shapes a program, the rest is data."""
        own = self._places(index.pages)
        return replace(
            self,
            page_table=own.page_table,
            slot_mapping=own.slot_mapping,
            pool=own.pool,
            layer=layer,
            state=index.state,
            keys=None if index.keys is None else self._places(index.keys),
        )

    def _places(self, index: PageIndex) -> Places:
        table, mapping = (
            jax.lax.dynamic_index_in_dim(x, index.group, keepdims=False) for x in (self.page_table, self.slot_mapping)
        )
        pages_before = index.lane * self.num_pages[index.pool]
        return Places(table + pages_before, mapping + pages_before * self.page_size, index.pool)
