"""Nemotron 3 and 4, Minitron: layer norms whose scales are stored less 1, squared ReLUs, heads of which a half turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    LAYER_NORM_BIASES,
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    half_split_rotary,
    layer_norm,
)
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule


def _and_one(scale: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    return scale + scale.dtype.type(1)


def _own(row: Rule | Ignore) -> Rule | Ignore:
    return replace(row, transform=_and_one) if isinstance(row, Rule) and row.target.endswith("norm.scale") else row


class NemotronForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = half_split_rotary(
        (
            *(_own(row) for row in ROTARY_DECODER_WEIGHTS if ".gate_proj." not in row.source),
            *LAYER_NORM_BIASES,
            *bias_rules("q", "k", "v", "o", "up", "down"),
        )
    )
    FEED_FORWARD = MLP

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(
            reader,
            kv_heads=None,
            head_dim=None,
            epsilon=1e-5,
            epsilon_key="norm_eps",
            activation="relu2",
            partial_rotary=0.5,
        )
        bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
        )

    def make_norm(self) -> LayerNorm:
        return layer_norm(self)
