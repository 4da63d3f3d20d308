"""OLMo 3: OLMo 2 whose layers see a window, three of four, and turn by positions of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rope import read_rope_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_windows_by_type
from jaxengine.device.models.families.olmo2 import Olmo2ForCausalLM

WINDOW, PERIOD, THETA = 4096, 4, 500_000.0
"""Hugging Face's defaults: positions that a token sees, of so many layers the last sees everything, and the rotary base."""
GLOBAL, LOCAL = 0, 1
"""Which of the step's angles are whose."""


@dataclass(frozen=True, kw_only=True)
class Olmo3Config(RotaryDecoderConfig):
    """Layers that see everything turn by `rope`, those with a window by `local_rope`."""

    local_rope: Rope


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """A `Model`. Positions are scaled, if at all, where a layer sees everything."""

    config: Olmo3Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Olmo3Config:
        sections = reader.section("rope_parameters")
        shared = read_shared(
            reader,
            kv_heads=None,
            head_dim=None,
            epsilon=1e-5,
            theta=THETA,
            rope_part="full_attention",
        )
        local = None if sections is None else sections.section("sliding_attention")
        attention_bias = reader.optional("attention_bias", False, bool)
        return Olmo3Config(
            **shared,
            windows=read_windows_by_type(reader, shared["num_layers"], window=WINDOW, period=PERIOD),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm=True,
            local_rope=read_rope_section(
                reader,
                local,
                outer=reader.nullable("rope_theta", None, float),
                default=THETA,
                head_dim=shared["head_dim"],
                max_positions=shared["max_position_embeddings"],
            ),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        shape = super().attention_shape(layer)
        return replace(shape, rope=GLOBAL if shape.window is None else LOCAL)

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, Shared]:
        ropes = self.config.rope, self.config.local_rope
        return self.embed(tokens), Shared(tuple(rope.angles(positions) for rope in ropes))
