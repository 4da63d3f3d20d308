"""SmolLM3: Llama with every fourth layer without positions, in which a window may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import (
    RotaryDecoderConfig,
    read_layer_types,
    read_rotary_layers,
    read_shared,
)
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules

PERIOD = 4
"""Of so many layers the last has no positions, where config.json does not say which."""


@dataclass(frozen=True, kw_only=True)
class SmolLM3Config(RotaryDecoderConfig):
    """`rotary` says of each layer whether its queries and keys are turned by their position."""

    rotary: tuple[bool, ...]


class SmolLM3ForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "pretraining_tp": Ignored("slices projections as in training, which rounds differently", allowed=(None, 1, 2)),
        "max_window_layers": Ignored("layer_types and no_rope_layers say which layers see a window"),
    }
    config: SmolLM3Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> SmolLM3Config:
        shared = read_shared(reader, kv_heads=4, head_dim=None, tied=True, theta=2e6)
        attention_bias = reader.optional("attention_bias", False, bool)
        rotary = read_rotary_layers(reader, shared["num_layers"], period=PERIOD)
        return SmolLM3Config(
            **shared,
            windows=_read_windows(reader, rotary),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            rotary=rotary,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), rope=0 if self.config.rotary[layer] else None)


def _read_windows(reader: ConfigReader, rotary: tuple[bool, ...]) -> tuple[int | None, ...]:
    window = reader.nullable_size("sliding_window", None)
    types = read_layer_types(reader, len(rotary))
    if not reader.optional("use_sliding_window", False, bool):
        window = None
    if types is None:
        return tuple(None if has_positions else window for has_positions in rotary)
    return tuple(window if kind == "sliding_attention" else None for kind in types)
