"""Hunyuan (version 1), dense and with experts: Llama whose queries and keys are normalised after positions have turned them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.experts import (
    MLP,
    TRAINING,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_chosen,
)
from jaxengine.device.models.shared.rotary_decoder import (
    ROTARY_DECODER_WEIGHTS,
    WITHOUT_MLP,
    RotaryDecoder,
    bias_rules,
)
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

QK_NORMS = (
    Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.query_layernorm.weight"),
    Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.key_layernorm.weight"),
)
IGNORED: Mapping[str, Ignored] = {
    "pretraining_tp": Ignored("slices projections as in training, which rounds differently", allowed=(None, 1)),
    "use_qk_norm": Ignored("queries and keys are always normalised", allowed=(True,)),
    "use_cla": Ignored("layers that share keys and values are not built", allowed=(False,)),
    **dict.fromkeys(("eod_token_id", "sep_token_id"), Ignored("tokens of the tokenizer")),
}


def _read(reader: ConfigReader) -> dict[str, Any]:
    """What both read alike."""
    shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=1e-5)
    attention_bias = reader.optional("attention_bias", False, bool)
    return {
        **shared,
        "windows": (None,) * shared["num_layers"],
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "qk_norm": True,
    }


class HunYuanDenseV1ForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (*ROTARY_DECODER_WEIGHTS, *QK_NORMS, *bias_rules("q", "k", "v", "o"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        return RotaryDecoderConfig(**_read(reader))

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_rotated=True)


class HunYuanMoEV1ForCausalLM(SharedExpertsDecoder):
    """Every layer has experts, and a feed-forward of their size beside them."""

    WEIGHTS: ClassVar[tuple[Rule | Ignore, ...]] = (
        *WITHOUT_MLP,
        *QK_NORMS,
        *bias_rules("q", "k", "v", "o"),
        Rule("layers.*.mlp.routed.router", f"{MLP}.gate.wg.weight"),
        *(
            row
            for part in ("gate", "up", "down")
            for row in (
                Rule(f"layers.*.mlp.routed.{part}.weight", f"{MLP}.experts.{{expert}}.{part}_proj.weight"),
                Rule(f"layers.*.mlp.shared.{part}.weight", f"{MLP}.shared_mlp.{part}_proj.weight"),
            )
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {**IGNORED, **TRAINING}

    @classmethod
    def read_config(cls, reader: ConfigReader) -> SharedExpertsConfig:
        shared = _read(reader)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=shared["mlp_size"],
            activation=shared["activation"],
            routing=Routing(
                count=_same_everywhere(reader, "num_experts"),
                chosen=_same_everywhere(reader, "moe_topk"),
                normalised=True,
            ),
        )
        check_chosen(experts, key="moe_topk")
        return SharedExpertsConfig(
            **shared,
            experts=experts,
            expert_layers=tuple(range(shared["num_layers"])),
            shared_size=shared["mlp_size"],
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_rotated=True)


def _same_everywhere(reader: ConfigReader, key: str) -> int:
    """A number, or a list of that of each layer.

    Raises:
        ConfigError: layers differ, or it is no number.
    """
    given = reader.raw(key, 1)
    of_layers = given if isinstance(given, list) and given else [given]
    if type(of_layers[0]) is not int or of_layers[0] < 1 or any(number != of_layers[0] for number in of_layers):
        raise ConfigError(
            f"config.json: {key} must be a number of at least 1, the same in all layers, got {given!r}; "
            "layers that differ are not built"
        )
    return of_layers[0]
