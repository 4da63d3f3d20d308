"""StarCoder2: rotary positions, layer norms, a plain feed-forward, and biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import Norm
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    LAYER_NORM_BIASES,
    WITHOUT_MLP,
    RotaryDecoder,
    bias_rules,
    layer_norm,
)
from jaxengine.device.weights.rules import Rule


class Starcoder2ForCausalLM(RotaryDecoder):
    """A `Model`. `use_bias` puts biases on every projection."""

    WEIGHTS = (
        *WITHOUT_MLP,
        *LAYER_NORM_BIASES,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.mlp.up.weight", "[model.]layers.*.mlp.c_fc.weight"),
        Rule("layers.*.mlp.up.bias", "[model.]layers.*.mlp.c_fc.bias"),
        Rule("layers.*.mlp.down.weight", "[model.]layers.*.mlp.c_proj.weight"),
        Rule("layers.*.mlp.down.bias", "[model.]layers.*.mlp.c_proj.bias"),
    )
    FEED_FORWARD = MLP
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
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)
