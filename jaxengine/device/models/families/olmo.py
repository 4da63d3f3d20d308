"""OLMo 1: Llama with layer norms that have no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Rule

EPSILON = 1e-5
"""Of the norms, which config.json does not have."""


class OlmoForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *(row for row in ROTARY_DECODER_WEIGHTS if not (isinstance(row, Rule) and row.target.endswith("norm.scale"))),
        *bias_rules("q", "k", "v", "o"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "clip_qkv": Ignored("projections are not clipped", allowed=(None,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=EPSILON)
        bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(**shared, windows=(None,) * shared["num_layers"], qkv_bias=bias, output_bias=bias)

    def make_norm(self) -> LayerNorm:
        config = self.config
        return LayerNorm(config.hidden_size, epsilon=config.rms_norm_eps, affine=False, context=self.context)
