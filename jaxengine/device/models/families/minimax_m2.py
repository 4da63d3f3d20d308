"""MiniMax-M2: Mixtral whose experts are chosen by corrected sigmoids, with queries and keys normalised over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.families.mixtral import MixtralForCausalLM
from jaxengine.device.models.shared.experts import SPARSE_BLOCK, ExpertsConfig, check_chosen
from jaxengine.device.models.shared.rotary_decoder import half_split, half_split_rotary
from jaxengine.device.weights.rules import Ignore, Rule, chain, repeat_kv_heads


class MiniMaxM2ForCausalLM(MixtralForCausalLM):
    """A `Model`. `rotary_dim` says how many channels of a head turn."""

    WEIGHTS = (
        *half_split_rotary(MixtralForCausalLM.WEIGHTS),
        Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_norm.weight", half_split),
        Rule(
            "layers.*.attention.k_norm.scale",
            "[model.]layers.*.self_attn.k_norm.weight",
            chain(half_split, repeat_kv_heads),
        ),
        Rule("layers.*.mlp.correction", f"{SPARSE_BLOCK}.e_score_correction_bias"),
        Ignore("[model.]mtp**", "predicts several tokens: read by what drafts"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **MixtralForCausalLM.IGNORED,
        **dict.fromkeys(
            ("use_mtp", "mtp_transformer_layers", "num_mtp_modules"),
            Ignored("layers that predict several tokens are read by what drafts"),
        ),
        "auto_map": Ignored("code of the repository, which is never run"),
        "qk_norm_type": Ignored("queries and keys are normalised over all heads", allowed=("per_layer",)),
        "use_qk_norm": Ignored("queries and keys are always normalised", allowed=(True,)),
        "use_routing_bias": Ignored("shares are corrected while experts are chosen", allowed=(True,)),
        "scoring_func": Ignored("scores are sigmoids", allowed=("sigmoid",)),
        "shared_intermediate_size": Ignored("an expert of all tokens is other families'", allowed=(0,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ExpertsConfig:
        head_dim = reader.optional_size("head_dim", 128)
        rotary_dim = reader.nullable_size("rotary_dim", None) or head_dim
        shared = read_shared(reader, kv_heads=8, head_dim=128, theta=5e6, partial_rotary=rotary_dim / head_dim)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=shared["mlp_size"],
            activation=shared["activation"],
            routing=Routing(
                count=reader.optional_size("num_local_experts", 256),
                chosen=reader.optional_size("num_experts_per_tok", 8),
                normalised=True,
                sigmoid=True,
                corrected=True,
            ),
        )
        check_chosen(experts)
        return ExpertsConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qk_norm=True,
            experts=experts,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_all=True)
