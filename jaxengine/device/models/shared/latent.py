"""What DeepSeek and its relatives share: latent attention; behind the first layers experts, of which all tokens take one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxengine.device.layers.experts import ExpertsShape
from jaxengine.device.layers.latent_attention import LatentShape
from jaxengine.device.layers.rotary import YarnScaling
from jaxengine.device.layers.routing import Routing
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.experts import SHARED_EXPERTS, TRAINING, SharedExpertsConfig, check_chosen
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, bias_rules
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule
from jaxengine.errors import ConfigError

ATTENTION = "[model.]layers.*.self_attn"
NORM_EPSILON = 1e-6
"""Of the norms within attention, whatever the other norms have."""


@dataclass(frozen=True, kw_only=True)
class LatentConfig(SharedExpertsConfig):
    """All layers have this `attention`; `takers` attend to what the last of the others before them has chosen."""

    attention: LatentShape
    takers: tuple[int, ...] = ()

    def attention_of(self, layer: int) -> LatentShape:
        """That of the layer of this number."""
        takes = layer in self.takers
        indexer = None if takes else self.attention.indexer
        return replace(self.attention, indexer=indexer, takes=takes, gives=layer + 1 in self.takers)


def _rotated(tensor: Array, config: KvHeads, plain: int) -> Array:
    """The channels behind the first `plain` of each head, `[heads, channels, ...]`, as they turn here."""
    assert isinstance(config, LatentConfig)
    order = [*range(plain), *(plain + config.rope.order())]
    return tensor[:, order].reshape(-1, *tensor.shape[2:])


def _queries(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, LatentConfig)
    plain = config.attention.plain
    return _rotated(tensor.reshape(-1, plain + config.attention.rotary_dim, *tensor.shape[1:]), config, plain)


def _latents(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, LatentConfig)
    return _rotated(tensor[None], config, config.attention.rank)


def _keys(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """`[heads * (plain + value), rank]` -> `[heads, plain, rank]`."""
    assert isinstance(config, LatentConfig)
    return tensor.reshape(config.num_heads, -1, tensor.shape[1])[:, : config.attention.plain]


def _values(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    assert isinstance(config, LatentConfig)
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
    """Of the family's defaults `ranks` are those of queries, and of keys and values, `sizes` plain, rotary and value channels."""
    plain = reader.optional_size("qk_nope_head_dim", sizes[0])
    rotary_dim = reader.optional_size("qk_rope_head_dim", sizes[1])
    if shared["head_dim"] != rotary_dim:
        raise ConfigError(
            f"config.json: head_dim={shared['head_dim']} and qk_rope_head_dim={rotary_dim} are the same setting"
        )
    scale = (plain + rotary_dim) ** -0.5
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
        rotary_dim=rotary_dim,
        value=reader.optional_size("v_head_dim", sizes[2]),
        rank=reader.optional_size("kv_lora_rank", ranks[1]),
        query_rank=reader.nullable_size("q_lora_rank", ranks[0]),
        bias=reader.optional("attention_bias", False, bool),
        scale=scale,
        norm_epsilon=NORM_EPSILON,
    )


def latent_config(
    shared: Mapping[str, Any],
    *,
    routing: Routing,
    attention: LatentShape,
    inner: int,
    num_shared: int,
    expert_layers: tuple[int, ...],
    draft_layers: tuple[int, ...],
) -> LatentConfig:
    """From what a family reads: experts of `inner` channels, of which `num_shared` in one are taken by all tokens."""
    experts = ExpertsShape(width=shared["hidden_size"], inner=inner, activation=shared["activation"], routing=routing)
    check_chosen(experts)
    num_layers = shared["num_layers"]
    return LatentConfig(
        **shared,
        windows=(None,) * num_layers,
        experts=experts,
        expert_layers=expert_layers,
        shared_size=inner * num_shared,
        attention=attention,
        draft_layers=draft_layers,
    )
