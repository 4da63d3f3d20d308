"""StarCoder2: rotary positions, layer norms, a plain feed-forward, and biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import Norm
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    LAYER_NORM_BIASES,
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    layer_norm,
)
from jaxengine.device.weights.rules import Rule


class Starcoder2ForCausalLM(RotaryDecoder):
    """A `Model`. `use_bias` puts biases on every projection."""

    WEIGHTS = (
        *(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or ".mlp." not in row.target),
        *LAYER_NORM_BIASES,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.mlp.up.weight", "[model.]layers.*.mlp.c_fc.weight"),
        Rule("layers.*.mlp.up.bias", "[model.]layers.*.mlp.c_fc.bias"),
        Rule("layers.*.mlp.down.weight", "[model.]layers.*.mlp.c_proj.weight"),
        Rule("layers.*.mlp.down.bias", "[model.]layers.*.mlp.c_proj.bias"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("residual_dropout", "embedding_dropout"), Ignored("only used in training")),
        "norm_type": Ignored("the published code knows layer norms only", allowed=("layer_norm",)),
        "mlp_type": Ignored("the published code knows plain feed-forwards only", allowed=("default",)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(
            reader,
            kv_heads=2,
            head_dim=None,
            tied=True,
            epsilon=1e-5,
            epsilon_key="norm_epsilon",
            activation="gelu_pytorch_tanh",
        )
        bias = reader.optional("use_bias", True, bool)
        return RotaryDecoderConfig(
            **shared,
            windows=(reader.nullable_size("sliding_window", None),) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
            qk_norm=False,
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)

    def feed_forward(self, layer: int) -> FeedForward:
        config = self.config
        return MLP(
            config.hidden_size,
            config.mlp_size,
            activation=config.activation,
            bias=config.mlp_bias,
            context=self.context,
        )
