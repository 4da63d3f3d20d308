"""DeepSeek V2 and V3 (R1 and Kimi K2 are V3): latent attention; behind the first layers experts, of which all tokens take one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.latent_attention import LatentAttention, LatentShape
from jaxengine.device.layers.rotary import YarnScaling
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_shared
from jaxengine.device.models.families.mixtral import check_chosen
from jaxengine.device.models.interface import Paged
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.device.models.shared.shared_experts import (
    CORRECTION,
    DRAFTS,
    SHARED_EXPERTS,
    TRAINING,
    SharedExpertsConfig,
    SharedExpertsDecoder,
    check_groups,
    read_corrected_routing,
    read_drafts,
)
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule
from jaxengine.errors import ConfigError

ATTENTION = "[model.]layers.*.self_attn"
NORM_EPSILON = 1e-6
"""Of the norms within attention, whatever the other norms have."""


@dataclass(frozen=True, kw_only=True)
class DeepseekConfig(SharedExpertsConfig):
    """All layers have this `attention`."""

    attention: LatentShape


def _turned(tensor: Array, config: KvHeads, plain: int) -> Array:
    """The channels behind the first `plain` of each head, `[heads, channels, ...]`, as they turn here."""
    assert isinstance(config, DeepseekConfig)
    order = [*range(plain), *(plain + config.rope.order())]
    return tensor[:, order].reshape(-1, *tensor.shape[2:])


def _queries(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, DeepseekConfig)
    plain = config.attention.plain
    return _turned(tensor.reshape(-1, plain + config.attention.turned, *tensor.shape[1:]), config, plain)


def _latents(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, DeepseekConfig)
    return _turned(tensor[None], config, config.attention.rank)


def _keys(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """`[heads * (plain + value), rank]` -> `[heads, plain, rank]`."""
    assert isinstance(config, DeepseekConfig)
    return tensor.reshape(config.num_heads, -1, tensor.shape[1])[:, : config.attention.plain]


def _values(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, DeepseekConfig)
    return tensor.reshape(config.num_heads, -1, tensor.shape[1])[:, config.attention.plain :]


LATENT_WEIGHTS: tuple[Rule | Ignore, ...] = (
    Rule("layers.*.attention.q_down.weight", f"{ATTENTION}.q_a_proj.weight"),
    Rule("layers.*.attention.q_down.bias", f"{ATTENTION}.q_a_proj.bias"),
    Rule("layers.*.attention.q_norm.scale", f"{ATTENTION}.q_a_layernorm.weight"),
    Rule("layers.*.attention.q.weight", f"{ATTENTION}.q_b_proj.weight", _queries),
    Rule("layers.*.attention.q.weight", f"{ATTENTION}.q_proj.weight", _queries),
    Rule("layers.*.attention.kv_down.weight", f"{ATTENTION}.kv_a_proj_with_mqa.weight", _latents),
    Rule("layers.*.attention.kv_down.bias", f"{ATTENTION}.kv_a_proj_with_mqa.bias", _latents),
    Rule("layers.*.attention.kv_norm.scale", f"{ATTENTION}.kv_a_layernorm.weight"),
    Rule("layers.*.attention.keys", f"{ATTENTION}.kv_b_proj.weight", _keys),
    Rule("layers.*.attention.values", f"{ATTENTION}.kv_b_proj.weight", _values),
    *(row for row in ROTARY_DECODER_WEIGHTS if ".self_attn." not in row.source or ".o_proj." in row.source),
    *bias_rules("o"),
    *SHARED_EXPERTS,
)

PLAIN: Mapping[str, Ignored] = {
    **TRAINING,
    **dict.fromkeys(("aux_loss_alpha", "seq_aux", "ep_size"), Ignored("only used in training")),
    "auto_map": Ignored("code of the repository, which is never run"),
    "moe_layer_freq": Ignored("every layer behind the first dense ones has experts", allowed=(1,)),
    "pretraining_tp": Ignored("slices projections as in training, which rounds differently", allowed=(None, 1)),
    "qk_head_dim": Ignored("the sum of qk_nope_head_dim and qk_rope_head_dim"),
}


def read_latent(
    reader: ConfigReader, shared: Mapping[str, Any], *, ranks: tuple[int | None, int], sizes: tuple[int, int, int]
) -> LatentShape:
    """Of the family's defaults `ranks` are those of queries, and of keys and values, `sizes` plain, turned and value channels."""
    plain = reader.optional_size("qk_nope_head_dim", sizes[0])
    turned = reader.optional_size("qk_rope_head_dim", sizes[1])
    if shared["head_dim"] != turned:
        raise ConfigError(
            f"config.json: head_dim={shared['head_dim']} and qk_rope_head_dim={turned} are the same setting"
        )
    scale = (plain + turned) ** -0.5
    scaling = shared["rope"].scaling
    sections = (reader.section("rope_parameters"), reader.section("rope_scaling"))
    mscale = next(
        (section.nullable("mscale_all_dim", None, float) for section in sections if section is not None), None
    )
    if mscale and isinstance(scaling, YarnScaling) and scaling.factor > 1:
        scale *= (0.1 * mscale * math.log(scaling.factor) + 1.0) ** 2
    return LatentShape(
        width=shared["hidden_size"],
        num_heads=shared["num_heads"],
        plain=plain,
        turned=turned,
        value=reader.optional_size("v_head_dim", sizes[2]),
        rank=reader.optional_size("kv_lora_rank", ranks[1]),
        query_rank=reader.nullable_size("q_lora_rank", ranks[0]),
        bias=reader.optional("attention_bias", False, bool),
        scale=scale,
        norm_epsilon=NORM_EPSILON,
    )


class DeepseekV3ForCausalLM(SharedExpertsDecoder):
    """A `CausalLM`. Layers that predict several tokens are left out."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (*LATENT_WEIGHTS, CORRECTION, DRAFTS)
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **PLAIN,
        "scoring_func": Ignored("scores are sigmoids", allowed=("sigmoid",)),
        "topk_method": Ignored("groups are chosen by their two best experts", allowed=("noaux_tc",)),
    }
    config: DeepseekConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeepseekConfig:
        turned = reader.optional_size("qk_rope_head_dim", 64)
        neighbours = reader.nullable("rope_interleave", True, bool) is True
        shared = read_shared(reader, kv_heads=None, head_dim=turned, bos=0, eos=1, neighbours=neighbours)
        routing = read_corrected_routing(reader, count=256, chosen=8, groups=8, chosen_groups=4, scale=2.5)
        dense = reader.nullable("first_k_dense_replace", 3, int) or 0
        return deepseek_config(
            shared,
            routing=routing,
            attention=read_latent(reader, shared, ranks=(1536, 512), sizes=(128, 64, 128)),
            inner=reader.optional_size("moe_intermediate_size", 2048),
            num_shared=reader.optional_size("n_shared_experts", 1),
            expert_layers=tuple(range(dense, shared["num_layers"])),
            draft_layers=read_drafts(reader, shared["num_layers"], default=1),
        )

    @property
    def cache(self) -> tuple[Paged, ...]:
        config = self.config
        return (Paged(tuple(range(config.num_layers)), 1, config.attention.latent, latent=True),)

    def block(self, layer: int) -> Block:
        attention = LatentAttention(self.config.attention, context=self.context)
        return Block(attention, self.feed_forward(layer), norm=self.make_norm)


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
    def read_config(cls, reader: ConfigReader) -> DeepseekConfig:
        turned = reader.optional_size("qk_rope_head_dim", 64)
        shared = read_shared(reader, kv_heads=None, head_dim=turned, bos=1, eos=2, neighbours=True)
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
        return deepseek_config(
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
    def read_config(cls, reader: ConfigReader) -> DeepseekConfig:
        turned = reader.optional_size("qk_rope_head_dim", 64)
        neighbours = reader.optional("rope_interleave", True, bool)
        shared = read_shared(
            reader, kv_heads=None, head_dim=turned, bos=0, eos=1, epsilon=1e-5, neighbours=neighbours, turned=1.0
        )
        num_layers = shared["num_layers"]
        kinds = reader.raw("mlp_layer_types") or ["dense"] + ["sparse"] * (num_layers - 1)
        if not isinstance(kinds, list) or len(kinds) != num_layers or set(kinds) - {"dense", "sparse"}:
            raise ConfigError(
                f"config.json: mlp_layer_types must name dense or sparse for each of {num_layers} layers, got {kinds!r}"
            )
        return deepseek_config(
            shared,
            routing=read_corrected_routing(reader, count=64, chosen=4, groups=1, chosen_groups=1, scale=1.8),
            attention=read_latent(reader, shared, ranks=(768, 512), sizes=(192, 64, 256)),
            inner=reader.optional_size("moe_intermediate_size", 1536),
            num_shared=reader.optional_size("n_shared_experts", 1),
            expert_layers=tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse"),
            draft_layers=read_drafts(reader, num_layers, default=1),
        )


def deepseek_config(
    shared: Mapping[str, Any],
    *,
    routing: Routing,
    attention: LatentShape,
    inner: int,
    num_shared: int,
    expert_layers: tuple[int, ...],
    draft_layers: tuple[int, ...],
) -> DeepseekConfig:
    """From what a family reads: experts of `inner` channels, of which `num_shared` in one are taken by all tokens."""
    experts = ExpertsShape(width=shared["hidden_size"], inner=inner, activation=shared["activation"], routing=routing)
    check_chosen(experts)
    num_layers = shared["num_layers"]
    return DeepseekConfig(
        **shared,
        windows=(None,) * num_layers,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        experts=experts,
        expert_layers=expert_layers,
        shared_size=inner * num_shared,
        attention=attention,
        draft_layers=draft_layers,
    )
