"""OLMo 3: OLMo 2 whose layers see a window, three of four, and turn by positions of their own."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rope import read_rope_section
from jaxengine.device.models.config.rotary_config import read_shared, read_windows_by_type
from jaxengine.device.models.families.olmo2 import Olmo2ForCausalLM
from jaxengine.device.models.shared.two_ropes import TwoRopesConfig, TwoRopesDecoder

WINDOW, PERIOD, THETA = 4096, 4, 500_000.0
"""Hugging Face's defaults: positions that a token sees, of so many layers the last sees everything, and the rotary base."""


class Olmo3ForCausalLM(TwoRopesDecoder, Olmo2ForCausalLM):
    """A `Model`. Positions are scaled, if at all, where a layer sees everything."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> TwoRopesConfig:
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
        return TwoRopesConfig(
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
