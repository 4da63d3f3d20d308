"""ERNIE 4.5 with experts: shares are a softmax, corrected while experts are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.shared.experts import (
    MLP,
    SHARED_EXPERTS,
    TRAINING,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_chosen,
)
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, half_split_rotary
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule


def _row(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    return tensor[0]


class Ernie4_5_MoeForCausalLM(SharedExpertsDecoder):  # noqa: N801 - the name in config.json
    """A `Model`."""

    WEIGHTS = (
        *half_split_rotary(ROTARY_DECODER_WEIGHTS),
        *SHARED_EXPERTS,
        Rule("layers.*.mlp.routed.correction", f"{MLP}.moe_statics.e_score_correction_bias", _row),
        Ignore("[model.]mtp_**", "predicts several tokens: read by what drafts"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "moe_capacity": Ignored("only used in training"),
        "moe_gate": Ignored("the best experts are chosen", allowed=("topk",)),
        "moe_use_aux_free": Ignored("shares are corrected while experts are chosen", allowed=(True,)),
        "num_nextn_predict_layers": Ignored("layers that predict several tokens are read by what drafts"),
        "use_bias": Ignored("biases of this family are not built", allowed=(False,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> SharedExpertsConfig:
        shared = read_shared(
            reader, kv_heads=4, head_dim=None, tied=True, epsilon=1e-5, theta=500_000.0, interleaved=True
        )
        num_layers = shared["num_layers"]
        inner = reader.optional_size("moe_intermediate_size", 1536)
        experts = ExpertsShape(
            width=shared["hidden_size"],
            inner=inner,
            activation=shared["activation"],
            routing=Routing(
                count=reader.optional_size("moe_num_experts", 64),
                chosen=reader.optional_size("moe_k", 6),
                normalised=True,
                corrected=True,
                floor=reader.optional("moe_norm_min", 1e-12, float),
            ),
        )
        check_chosen(experts, key="moe_k")
        first, last = reader.optional("moe_layer_start_index", 1, int), reader.optional("moe_layer_end_index", -1, int)
        period = reader.optional_size("moe_layer_interval", 1)
        behind = num_layers if last == -1 else last + 1
        return SharedExpertsConfig(
            **shared,
            windows=(None,) * num_layers,
            experts=experts,
            expert_layers=tuple(layer for layer in range(first, min(behind, num_layers)) if (layer + 1) % period == 0),
            shared_size=inner * reader.optional_size("moe_num_shared_experts", 2),
        )
