"""How a step's tokens reach paged attention: the one place where layers and kernels meet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from jaxengine.layers import sharding
from jaxengine.layers.context import ModelContext
from pallas_kernels import paged_attention, write_kv

HEADS = ("tokens", "heads", "head_dim")
KV_HEADS = ("tokens", "kv_heads", "head_dim")
PAGES = ("pages", "page_tokens", "kv_channels", "head_dim")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionInputs:
    """What attention needs of a step: `B` rows of tokens in `N` flat places, `P` pages per row, `G` groups of layers.

    `page_table int32 [G, B, P]`, `offsets int32 [B + 1]` and `starts int32 [B]` are those of `pallas_kernels.paged_attention`.
    `slots int32 [G, N]` says where each token's keys and values go: `page * page_size + offset` (in the sink page for padding).
    `places` has the `(group, lane)` of each layer; a lane of the pool is `num_pages` long. `for_layer` and `at` leave the table
    `[B, P]` and the slots `[N]` of one layer, moved to its lane.
    """

    page_table: jax.Array
    offsets: jax.Array
    starts: jax.Array
    slots: jax.Array
    places: tuple[tuple[int, int], ...] = field(metadata={"static": True})
    num_pages: int = field(metadata={"static": True})
    page_size: int = field(metadata={"static": True})
    backend: str = field(metadata={"static": True})

    def for_layer(self, layer: int) -> AttentionInputs:
        """What one layer's attention needs."""
        return self.at(*self.places[layer])

    def at(self, group: int | jax.Array, lane: int | jax.Array) -> AttentionInputs:
        """What the attention of the layer at this place needs."""
        table, slots = (jax.lax.dynamic_index_in_dim(x, group, keepdims=False) for x in (self.page_table, self.slots))
        pages_before = lane * self.num_pages
        return replace(self, page_table=table + pages_before, slots=slots + pages_before * self.page_size)


def attend(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_pages: jax.Array,
    inputs: AttentionInputs,
    *,
    scale: float,
    window: int | None,
    context: ModelContext,
) -> tuple[jax.Array, jax.Array]:
    """Write a layer's keys and values into its pages, then let every token attend to its sequence up to itself.

    `inputs` are those of the layer (`AttentionInputs.for_layer`), and `window` tells the kernel where to begin.

    `queries [N, heads, H]`, `keys` and `values [N, K, H]`, `kv_pages [layers * pages, T, C, L]` -> `[N, heads, H]` and the
    pages. On a mesh every device works on its own heads and its own part of the pages.
    """
    target = {"kv_dtype": context.dtype, "backend": inputs.backend, "platform": context.platform}

    def local(
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        kv_pages: jax.Array,
        slots: jax.Array,
        page_table: jax.Array,
        offsets: jax.Array,
        starts: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        # All rows are written before any row attends: rows of one sequence may share a step.
        kv_pages = write_kv(kv_pages, keys, values, slots, **target)
        attended = paged_attention(
            queries,
            kv_pages,
            page_table,
            offsets,
            starts,
            scale=scale,
            window=window,
            kv_heads=keys.shape[1],
            **target,
        )
        return attended, kv_pages

    slots = inputs.slots
    if keys.shape[0] == 1:
        # XLA:CPU makes a plain update of a scatter of one token, and copies the pool for it. A second token, written to a
        # sink page, keeps it a scatter in place.
        keys, values = (jnp.pad(array, ((0, 1), (0, 0), (0, 0))) for array in (keys, values))
        slots = jnp.append(slots, jnp.int32(0))
    on_devices = sharding.per_device(
        local,
        mesh=context.mesh,
        inputs=(HEADS, KV_HEADS, KV_HEADS, PAGES, None, None, None, None),
        outputs=(HEADS, PAGES),
    )
    result: tuple[jax.Array, jax.Array] = on_devices(
        queries, keys, values, kv_pages, slots, inputs.page_table, inputs.offsets, inputs.starts
    )
    return result
