"""StableLM 2: layer norms, of each head a quarter turns; the 12B normalises heads and has its two parts side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxengine.device.layers.block import ParallelBlock
from jaxengine.device.layers.norm import Norm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    LAYER_NORM_BIASES,
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    half_split_rotary,
    layer_norm,
)
from jaxengine.device.weights.rules import Rule


@dataclass(frozen=True, kw_only=True)
class StableLmConfig(RotaryDecoderConfig):
    """`parallel`: attention and feed-forward see the same residual stream, behind one norm."""

    parallel: bool


class StableLmForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = half_split_rotary(
        (
            *ROTARY_DECODER_WEIGHTS,
            *LAYER_NORM_BIASES,
            *bias_rules("q", "k", "v"),
            Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_layernorm.norms.{head}.weight"),
            Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_layernorm.norms.{head}.weight"),
        )
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {"hidden_dropout": Ignored("only used in training")}
    config: StableLmConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> StableLmConfig:
        shared = read_shared(
            reader,
            kv_heads=None,
            head_dim=None,
            epsilon=1e-5,
            epsilon_key="layer_norm_eps",
            partial_rotary=0.25,
        )
        return StableLmConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=reader.optional("use_qkv_bias", False, bool),
            qk_norm=reader.optional("qk_layernorm", False, bool),
            parallel=reader.optional("use_parallel_residual", False, bool),
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_each=True)

    def block(self, layer: int) -> Layer:
        if not self.config.parallel:
            return super().block(layer)
        attention = SelfAttention(self.attention_shape(layer), context=self.context)
        return ParallelBlock(attention, self.feed_forward(layer), norm=self.make_norm, one_norm=True)
