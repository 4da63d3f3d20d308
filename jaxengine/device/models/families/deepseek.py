"""DeepSeek V2 and V3 (R1 and Kimi K2 are V3): latent attention; behind the first layers experts, of which all tokens take one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.latent_attention import LatentAttention
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.shared.experts import (
    CORRECTION,
    DRAFTS,
    SharedExpertsDecoder,
    check_groups,
    read_corrected_routing,
    read_dense_and_sparse,
    read_drafts,
)
from jaxengine.device.models.shared.latent import LATENT_WEIGHTS, PLAIN, LatentConfig, latent_config, read_latent
from jaxengine.device.weights.rules import Ignore, Rule


class DeepseekV3ForCausalLM(SharedExpertsDecoder):
    """A `Model`. Layers that predict several tokens are no part of it (`drafts/predictors.py`)."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (*LATENT_WEIGHTS, CORRECTION, DRAFTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **PLAIN,
        "scoring_func": Ignored("scores are sigmoids", allowed=("sigmoid",)),
        "topk_method": Ignored("groups are chosen by their two best experts", allowed=("noaux_tc",)),
    }
    config: LatentConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LatentConfig:
        rotary_dim = reader.optional_size("qk_rope_head_dim", 64)
        interleaved = reader.nullable("rope_interleave", True, bool) is True
        shared = read_shared(reader, kv_heads=None, head_dim=rotary_dim, interleaved=interleaved)
        routing = read_corrected_routing(reader, count=256, chosen=8, groups=8, chosen_groups=4, scale=2.5)
        dense = reader.nullable("first_k_dense_replace", 3, int) or 0
        return latent_config(
            shared,
            routing=routing,
            attention=read_latent(reader, shared, ranks=(1536, 512), sizes=(128, 64, 128)),
            inner=reader.optional_size("moe_intermediate_size", 2048),
            num_shared=reader.optional_size("n_shared_experts", 1),
            expert_layers=tuple(range(dense, shared["num_layers"])),
            draft_layers=read_drafts(reader, shared["num_layers"], default=1),
        )

    def block(self, layer: int) -> Block:
        attention = LatentAttention(self.config.attention_of(layer), context=self.context)
        return Block(attention, self.feed_forward(layer), norm=self.make_norm)


class KimiK25ForConditionalGeneration(DeepseekV3ForCausalLM):
    """Kimi K2.5 and K2.6, of which only text is asked: Kimi K2, which is a DeepSeek V3, beside what sees pictures and films."""

    WEIGHTS = language_rules(DeepseekV3ForCausalLM.WEIGHTS, ("vision_tower", "mm_projector"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("vision_config", "media_placeholder_token_id", "video_placeholder", "use_unified_vision_chunk"),
                *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
                *("projection_hidden_size", "projection_layer_norm_eps"),
            ),
            Ignored("pictures are refused"),
        ),
        "auto_map": PLAIN["auto_map"],
        "ignore_index": Ignored("only used in training"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LatentConfig:
        return super().read_config(language_section(reader, DeepseekV3ForCausalLM.IGNORED))


class Kimi_K25ForConditionalGeneration(KimiK25ForConditionalGeneration):  # noqa: N801 - transformers' name
    """The same under the name that transformers saves it with."""


class DeepseekV2ForCausalLM(DeepseekV3ForCausalLM):
    """Scores are a softmax; groups, where there are some, are chosen by their best expert. V2-Lite has queries of one matrix."""

    WEIGHTS = LATENT_WEIGHTS
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **PLAIN,
        "scoring_func": Ignored("scores are a softmax", allowed=("softmax",)),
        "norm_topk_prob": Ignored("weights are not normalised", allowed=(False, None)),
        "mlp_bias": Ignored("the feed-forward has no biases", allowed=(False,)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LatentConfig:
        rotary_dim = reader.optional_size("qk_rope_head_dim", 64)
        shared = read_shared(reader, kv_heads=None, head_dim=rotary_dim, interleaved=True)
        count = reader.optional_size("n_routed_experts", 64)
        chosen = reader.size("num_experts_per_tok")
        limited = reader.choice("topk_method", "greedy", ("greedy", "group_limited_greedy")) == "group_limited_greedy"
        groups, chosen_groups = reader.nullable_size("n_group", None), reader.nullable_size("topk_group", None)
        groups, chosen_groups = (groups or 1, chosen_groups or 1) if limited else (1, 1)
        check_groups(count=count, groups=groups, chosen_groups=chosen_groups, chosen=chosen, least=1)
        routing = Routing(
            count=count,
            chosen=chosen,
            normalised=False,
            groups=groups,
            chosen_groups=chosen_groups,
            scale=reader.optional("routed_scaling_factor", 1.0, float),
        )
        dense = reader.optional("first_k_dense_replace", 0, int)
        return latent_config(
            shared,
            routing=routing,
            attention=read_latent(reader, shared, ranks=(1536, 512), sizes=(128, 64, 128)),
            inner=reader.optional_size("moe_intermediate_size", 1407),
            num_shared=reader.optional_size("n_shared_experts", 2),
            expert_layers=tuple(range(dense, shared["num_layers"])),
            draft_layers=(),
        )


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    """GLM-4.7-Flash: DeepSeek V3 that says of each layer whether it has experts."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = DeepseekV3ForCausalLM.IGNORED

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LatentConfig:
        rotary_dim = reader.optional_size("qk_rope_head_dim", 64)
        interleaved = reader.optional("rope_interleave", True, bool)
        shared = read_shared(
            reader, kv_heads=None, head_dim=rotary_dim, epsilon=1e-5, interleaved=interleaved, partial_rotary=1.0
        )
        num_layers = shared["num_layers"]
        return latent_config(
            shared,
            routing=read_corrected_routing(reader, count=64, chosen=4, groups=1, chosen_groups=1, scale=1.8),
            attention=read_latent(reader, shared, ranks=(768, 512), sizes=(192, 64, 256)),
            inner=reader.optional_size("moe_intermediate_size", 1536),
            num_shared=reader.optional_size("n_shared_experts", 1),
            expert_layers=read_dense_and_sparse(reader, num_layers, dense=1),
            draft_layers=read_drafts(reader, num_layers, default=1),
        )
