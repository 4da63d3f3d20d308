"""Attention in which every token sees its whole row, so that nothing is kept of a sequence: of encoders."""

from __future__ import annotations

from functools import partial

import jax

from jaxengine.device.layers.attention import HEADS, KV_HEADS
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.self_attention import SelfAttention
from jaxengine.device.layers.step import Step
from pallas_kernels import row_attention


class RowAttention(SelfAttention):
    """Of its shape a `window` is of so many tokens on each side; there are no chunks, sinks, slopes or soft caps."""

    @property
    def keeps(self) -> Keeps:
        """Nothing."""
        return ()

    def _attended(
        self, queries: jax.Array, keys: jax.Array, values: jax.Array, cache: Cache, step: Step
    ) -> tuple[jax.Array, Cache]:
        attend = partial(
            row_attention, scale=self.shape.scale, window=self.shape.window, platform=self.context.platform
        )
        on_devices = self.context.layout.per_device(attend, inputs=(HEADS, KV_HEADS, KV_HEADS, None), outputs=HEADS)
        attended: jax.Array = on_devices(queries, keys, values, step.offsets)
        return attended.astype(self.context.activation_dtype), cache
