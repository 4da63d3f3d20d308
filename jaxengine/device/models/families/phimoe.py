"""Phi-3.5-MoE: Mixtral with layer norms and biases, whose tokens choose their two experts one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.norm import Norm
from jaxengine.device.layers.routing import SparseMixer
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.families.mixtral import MixtralForCausalLM
from jaxengine.device.models.shared.experts import ExpertsConfig
from jaxengine.device.models.shared.rotary_decoder import LAYER_NORM_BIASES, bias_rules, layer_norm
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError


class PhimoeForCausalLM(MixtralForCausalLM):
    """A `Model`. Of LongRoPE's lists the served context says which holds; transformers 5.23 takes the short one always."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *MixtralForCausalLM.WEIGHTS,
        *LAYER_NORM_BIASES,
        *bias_rules("q", "k", "v", "o"),
        Rule("head.bias", "lm_head.bias"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("output_router_logits", "router_aux_loss_coef", "input_jitter_noise", "hidden_dropout"),
            Ignored("only used in training"),
        ),
        "original_max_position_embeddings": Ignored("belongs to scaled positions"),
        "auto_map": Ignored("code of the repository, which is never run"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ExpertsConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=None, theta=1e6, epsilon=1e-5)
        chosen = reader.optional("num_experts_per_tok", 2, int)
        if chosen != SparseMixer.chosen:
            raise ConfigError(f"config.json: num_experts_per_tok={chosen}: a token of Phi-MoE goes to 2 experts")
        routing = SparseMixer(
            count=reader.optional_size("num_local_experts", 16),
            jitter=reader.optional("router_jitter_noise", 0.01, float),
        )
        bias = reader.optional("attention_bias", False, bool)
        head_bias = reader.optional("lm_head_bias", False, bool)
        if head_bias and shared["tie_word_embeddings"]:
            raise ConfigError("config.json: lm_head_bias and tie_word_embeddings: a head that is tied has no bias")
        return ExpertsConfig(
            **shared,
            windows=(reader.nullable_size("sliding_window", None),) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            head_bias=head_bias,
            experts=ExpertsShape(
                width=shared["hidden_size"],
                inner=shared["mlp_size"],
                activation=shared["activation"],
                routing=routing,
            ),
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)


class PhiMoEForCausalLM(PhimoeForCausalLM):
    """The same under the name that Microsoft's files give it."""
