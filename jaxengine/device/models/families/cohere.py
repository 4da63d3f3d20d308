"""Cohere's Command R, R+ and R7B: attention and feed-forward side by side behind one norm, neighbours turn, scaled logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax

from jaxengine.device.layers.block import ParallelBlock
from jaxengine.device.layers.norm import Norm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared, read_windows_by_type
from jaxengine.device.models.shared.rotary_decoder import (
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    half_split_rotary,
    layer_norm,
)
from jaxengine.device.weights.rules import Ignore, Rule
from pallas_kernels import AdapterRows

WINDOW, PERIOD = 4096, 4
"""Hugging Face's defaults: positions that a token sees, and of so many layers the last sees everything."""


@dataclass(frozen=True, kw_only=True)
class CohereConfig(RotaryDecoderConfig):
    """Logits are multiplied by `logit_scale`."""

    logit_scale: float


COHERE_WEIGHTS: tuple[Rule | Ignore, ...] = (
    *(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or row.target != "layers.*.mlp_norm.scale"),
    *bias_rules("q", "k", "v", "o"),
)


class CohereForCausalLM(RotaryDecoder):
    """Command R, and R+, which normalises each head. A `Model`."""

    WEIGHTS = half_split_rotary(
        (
            *COHERE_WEIGHTS,
            Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_norm.weight", each=True),
            Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_norm.weight", each=True),
        )
    )
    config: CohereConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> CohereConfig:
        qk_norm = reader.nullable("use_qk_norm", False, bool) or False
        return _read(reader, (None,) * reader.size("num_hidden_layers"), qk_norm=qk_norm)

    def make_norm(self) -> Norm:
        return layer_norm(self, bias=False)

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_each=True)

    def block(self, layer: int) -> Layer:
        attention = SelfAttention(self.attention_shape(layer), context=self.context)
        return ParallelBlock(attention, self.feed_forward(layer), norm=self.make_norm, one_norm=True)

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        return super().logits(hidden, adapters) * self.config.logit_scale


class Cohere2ForCausalLM(CohereForCausalLM):
    """Command R7B and A: three of four layers see a window, the others everything and no positions. A `Model`."""

    WEIGHTS = half_split_rotary(COHERE_WEIGHTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "rotary_pct": Ignored("heads turn as a whole", allowed=(1.0,)),
        "position_embedding_type": Ignored("a note of training", allowed=("rope_gptj",)),
        **dict.fromkeys(
            ("use_embedding_sharing", "use_parallel_block", "use_gated_activation"),
            Ignored("how these models always are", allowed=(True,)),
        ),
        **dict.fromkeys(
            (
                "use_parallel_embedding",
                "use_qk_norm",
                "layer_switch",
                "order_of_interleaved_layers",
                "cache_implementation",
            ),
            Ignored("the published code does not read it"),
        ),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> CohereConfig:
        num_layers = reader.size("num_hidden_layers")
        return _read(reader, read_windows_by_type(reader, num_layers, window=WINDOW, period=PERIOD))

    def attention_shape(self, layer: int) -> AttentionShape:
        shape = super().attention_shape(layer)
        return replace(shape, rope=None) if shape.window is None else shape


def _read(reader: ConfigReader, windows: tuple[int | None, ...], *, qk_norm: bool = False) -> CohereConfig:
    shared = read_shared(
        reader,
        kv_heads=None,
        head_dim=None,
        tied=True,
        epsilon=1e-5,
        epsilon_key="layer_norm_eps",
        interleaved=True,
    )
    bias = reader.optional("attention_bias", False, bool)
    return CohereConfig(
        **shared,
        windows=windows,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        logit_scale=reader.optional("logit_scale", 0.0625, float),
    )
