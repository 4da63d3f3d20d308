"""Decoders some of whose layers see a window, and turn queries and keys by positions of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder, half_split, turns
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule
from pallas_kernels import AdapterRows

GLOBAL, LOCAL = 0, 1
"""Which of the step's angles are whose."""


@dataclass(frozen=True, kw_only=True)
class TwoRopesConfig(RotaryDecoderConfig):
    """Layers that see everything turn by `rope`, those with a window by `local_rope`."""

    local_rope: Rope

    @property
    def global_layers(self) -> tuple[int, ...]:
        """Those that see everything."""
        return tuple(layer for layer, window in enumerate(self.windows) if window is None)

    @property
    def local_layers(self) -> tuple[int, ...]:
        """Those with a window."""
        return tuple(layer for layer, window in enumerate(self.windows) if window is not None)


class TwoRopesDecoder(RotaryDecoder):
    """A `Model`."""

    config: TwoRopesConfig

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), rope=GLOBAL if self.config.windows[layer] is None else LOCAL)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        ropes = self.config.rope, self.config.local_rope
        return self.embed(tokens, adapters), Shared(tuple(rope.angles(positions) for rope in ropes))


def half_split_two(rows: Sequence[Rule | Ignore]) -> tuple[Rule | Ignore, ...]:
    """As `half_split_rotary`, where the layers with a window turn another part of a head than the others."""
    return tuple(
        own
        for row in rows
        for own in (
            (
                replace(row, transform=row.then(half_split), layers="global_layers"),
                replace(row, transform=row.then(_half_split_locally), layers="local_layers"),
            )
            if isinstance(row, Rule) and turns(row)
            else (row,)
        )
    )


def _half_split_locally(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, TwoRopesConfig)
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads[:, config.local_rope.order()].reshape(tensor.shape)
