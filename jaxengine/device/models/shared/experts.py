"""What families with experts share: what config.json says of them, and decoders that have one beside them for all tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SharedSparseMLP
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.models.config.decoder_config import FOR_THE_START
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

MLP = "[model.]layers.*.mlp"
SPARSE_BLOCK = "[model.]layers.*.block_sparse_moe"
"""What the checkpoints of Mixtral, and of some after it, call the experts of a layer."""

SHARED_EXPERTS: tuple[Rule, ...] = (
    Rule("layers.*.mlp.routed.router", f"{MLP}.gate.weight"),
    *(
        row
        for part in ("gate", "up", "down")
        for row in (
            Rule(f"layers.*.mlp.routed.{part}.weight", f"{MLP}.experts.{{expert}}.{part}_proj.weight"),
            Rule(f"layers.*.mlp.shared.{part}.weight", f"{MLP}.shared_experts.{part}_proj.weight"),
        )
    ),
)
WEIGHED_SHARED_EXPERT: tuple[Rule, ...] = (
    Rule("layers.*.mlp.routed.router", f"{MLP}.gate.weight"),
    Rule("layers.*.mlp.share", f"{MLP}.shared_expert_gate.weight"),
    *(
        row
        for part in ("gate", "up", "down")
        for row in (
            Rule(f"layers.*.mlp.routed.{part}.weight", f"{MLP}.experts.{{expert}}.{part}_proj.weight"),
            Rule(f"layers.*.mlp.shared.{part}.weight", f"{MLP}.shared_expert.{part}_proj.weight"),
        )
    ),
)
"""The expert of all tokens has a weight of its own for each."""
CORRECTION = Rule("layers.*.mlp.routed.correction", f"{MLP}.gate.e_score_correction_bias")
DRAFTS = Ignore("[model.]layers.*.**", "predicts several tokens: read by what drafts", layers="draft_layers")
TRAINING = dict.fromkeys(("output_router_logits", "router_aux_loss_coef"), Ignored("only used in training"))


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(RotaryDecoderConfig):
    """All layers have `experts`."""

    experts: ExpertsShape

    def check_layout(self, layout: Layout) -> None:
        check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=0)
        layout.check_experts(count=self.experts.count, inner=self.experts.inner)


@dataclass(frozen=True, kw_only=True)
class SharedExpertsConfig(RotaryDecoderConfig):
    """The layers with these numbers have `experts` and a feed-forward of `shared_size`, the others one of `mlp_size`.

    `weighed` is as in `SharedSparseMLP`. `draft_layers` are those behind the last, which checkpoints have to predict several
    tokens.
    """

    experts: ExpertsShape
    expert_layers: tuple[int, ...]
    shared_size: int
    weighed: bool = False
    draft_layers: tuple[int, ...] = field(default=(), metadata=FOR_THE_START)

    def check_layout(self, layout: Layout) -> None:
        mlp = self.mlp_size if len(self.expert_layers) < self.num_layers else 0
        for size in (mlp, self.shared_size):
            check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=size)
        layout.check_experts(count=self.experts.count, inner=self.experts.inner)


class SharedExpertsDecoder(RotaryDecoder):
    """A `Model`."""

    config: SharedExpertsConfig

    def feed_forward(self, layer: int) -> FeedForward:
        config = self.config
        if layer not in config.expert_layers:
            return super().feed_forward(layer)
        return SharedSparseMLP(config.experts, shared=config.shared_size, weighed=config.weighed, context=self.context)


def check_chosen(experts: ExpertsShape, *, key: str = "num_experts_per_tok") -> None:
    """Refuse more experts for a token than there are. `key` is what says how many.

    Raises:
        ConfigError: naming both numbers.
    """
    chosen = experts.routing.chosen
    if chosen > experts.count:
        raise ConfigError(f"config.json: {key}={chosen} is more experts than there are, {experts.count}")


def read_num_experts(reader: ConfigReader, default: int) -> int:
    """`num_experts`, or `num_local_experts`, as transformers 5 writes it."""
    new, old = reader.nullable_size("num_local_experts", None), reader.nullable_size("num_experts", None)
    if new is not None and old is not None and new != old:
        raise ConfigError(f"config.json: num_experts={old} and num_local_experts={new} are the same setting; give one")
    return new or old or default


def read_expert_layers(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """The layers that have experts, by `decoder_sparse_step` and `mlp_only_layers`."""
    period = reader.optional_size("decoder_sparse_step", 1)
    without = reader.raw("mlp_only_layers") or []
    if not isinstance(without, list) or any(not isinstance(layer, int) for layer in without):
        raise ConfigError(f"config.json: mlp_only_layers must be a list of layer numbers, got {without!r}")
    return tuple(layer for layer in range(num_layers) if layer not in without and (layer + 1) % period == 0)


def read_dense_and_sparse(reader: ConfigReader, num_layers: int, *, dense: int) -> tuple[int, ...]:
    """The layers that have experts: by `mlp_layer_types`, or all behind the first `first_k_dense_replace`, `dense` by default.

    Raises:
        ConfigError: a list of something else.
    """
    dense = reader.nullable("first_k_dense_replace", dense, int) or 0
    kinds = reader.raw("mlp_layer_types")
    if kinds is None:
        return tuple(range(dense, num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers or set(kinds) - {"dense", "sparse"}:
        raise ConfigError(
            f"config.json: mlp_layer_types must name dense or sparse for each of {num_layers} layers, got {kinds!r}"
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")


def read_drafts(reader: ConfigReader, num_layers: int, *, default: int) -> tuple[int, ...]:
    """`num_nextn_predict_layers` layers behind the last."""
    return tuple(range(num_layers, num_layers + reader.optional("num_nextn_predict_layers", default, int)))


def read_corrected_routing(
    reader: ConfigReader, *, count: int, chosen: int, groups: int, chosen_groups: int, scale: float
) -> Routing:
    """The routing of DeepSeek V3 and its relatives, with the family's defaults.

    Raises:
        ConfigError: groups that do not divide the experts, or too few experts in those that are chosen.
    """
    count = reader.optional_size("n_routed_experts", count)
    groups = reader.nullable_size("n_group", groups) or 1
    chosen_groups = reader.nullable_size("topk_group", chosen_groups) or 1
    chosen = reader.nullable_size("num_experts_per_tok", chosen) or 1
    check_groups(count=count, groups=groups, chosen_groups=chosen_groups, chosen=chosen, least=2)
    return Routing(
        count=count,
        chosen=chosen,
        normalised=reader.optional("norm_topk_prob", True, bool),
        sigmoid=True,
        corrected=True,
        groups=groups,
        chosen_groups=chosen_groups,
        group_best=2,
        scale=reader.nullable("routed_scaling_factor", scale, float) or 1.0,
    )


def check_groups(*, count: int, groups: int, chosen_groups: int, chosen: int, least: int) -> None:
    """Refuse groups of experts that cannot be, or from which `chosen` experts cannot come; a group has `least` experts.

    Raises:
        ConfigError: naming the numbers.
    """
    if groups == 1:
        return
    size = count // groups
    if count % groups or size < least or not chosen_groups <= groups or chosen > chosen_groups * size:
        raise ConfigError(
            f"config.json: n_group={groups} and topk_group={chosen_groups}: {count} experts must be groups of one size, at "
            f"least {least}, and {chosen_groups} of them have the {chosen} that a token takes"
        )
