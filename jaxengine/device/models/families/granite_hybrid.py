"""Granite 4: layers of Mamba 2, some of attention between them; experts beside a feed-forward of all tokens, or that alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.block import Block, FeedForward
from jaxengine.device.layers.experts import ExpertsShape, SharedSparseMLP
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.sharding import Layout, check_divisible
from jaxengine.device.layers.state_space import StateSpace, StateSpaceShape
from jaxengine.device.layers.step import Step
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.layer_kinds import read_layer_kinds
from jaxengine.device.models.families.granite import GraniteConfig, GraniteForCausalLM, read_granite
from jaxengine.device.models.shared.experts import SPARSE_BLOCK, TRAINING, check_chosen
from jaxengine.device.models.shared.rotary_decoder import WITHOUT_MLP, bias_rules
from jaxengine.device.models.shared.state_spaces import (
    INITIAL_STEPS,
    check_state_space,
    read_mamba_keys,
    state_space_rules,
)
from jaxengine.device.weights.rules import Rule, part
from jaxengine.errors import ConfigError

LAYER = "[model.]layers.*"
KINDS = {"mamba": "recurrent", "linear_attention": "recurrent", "attention": "full", "full_attention": "full"}


@dataclass(frozen=True, kw_only=True)
class GraniteHybridConfig(GraniteConfig):
    """`recurrent` layers have the `state_space`; the others' queries and keys turn if `turns`. All tokens take `mlp_size`."""

    recurrent: tuple[int, ...]
    state_space: StateSpaceShape
    turns: bool

    def check_layout(self, layout: Layout) -> None:
        check_divisible(layout.shards("heads"), heads=self.num_heads, kv_heads=self.num_kv_heads, mlp=self.mlp_size)
        if self.recurrent:
            check_state_space(self.state_space, layout)
        if self.experts is not None:
            layout.check_experts(count=self.experts.count, inner=self.experts.inner)


class OnlyShared(nnx.Module):
    """The feed-forward of all tokens, where there are no experts beside it."""

    def __init__(self, shared: GatedMLP) -> None:
        self.shared = shared

    def __call__(self, x: jax.Array, step: Step) -> jax.Array:
        return self.shared(x, step)


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """A `Model`."""

    WEIGHTS = (
        *WITHOUT_MLP,
        *bias_rules("q", "k", "v", "o"),
        *state_space_rules(f"{LAYER}.mamba"),
        Rule("layers.*.mlp.shared.gate.weight", f"{LAYER}.shared_mlp.input_linear.weight", part(0, 2)),
        Rule("layers.*.mlp.shared.up.weight", f"{LAYER}.shared_mlp.input_linear.weight", part(1, 2)),
        Rule("layers.*.mlp.shared.down.weight", f"{LAYER}.shared_mlp.output_linear.weight"),
        Rule("layers.*.mlp.routed.router", f"{SPARSE_BLOCK}.router.layer.weight"),
        Rule("layers.*.mlp.routed.gate.weight", f"{SPARSE_BLOCK}.input_linear.weight", part(0, 2), each=True),
        Rule("layers.*.mlp.routed.up.weight", f"{SPARSE_BLOCK}.input_linear.weight", part(1, 2), each=True),
        Rule("layers.*.mlp.routed.down.weight", f"{SPARSE_BLOCK}.output_linear.weight", each=True),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        **INITIAL_STEPS,
        "init_method": Ignored("how training began"),
        "mamba_chunk_size": Ignored("how sums are cut, not what they are"),
        "normalization_function": Ignored("the only one that is built", allowed=("rmsnorm",)),
    }
    config: GraniteHybridConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GraniteHybridConfig:
        shared = read_granite(reader)
        num_layers, inner = shared["num_layers"], shared["mlp_size"]
        shared["mlp_size"] = reader.optional_size("shared_intermediate_size", 1024)
        kinds = read_layer_kinds(
            reader, num_layers, KINDS, key="layers_block_type", default=("recurrent",) * num_layers
        )
        return GraniteHybridConfig(
            **shared,
            experts=_read_experts(reader, shared["hidden_size"], inner, shared["activation"]),
            recurrent=tuple(layer for layer, kind in enumerate(kinds) if kind == "recurrent"),
            state_space=read_mamba_keys(
                reader, shared["hidden_size"], epsilon=shared["rms_norm_eps"], activation=shared["activation"]
            ),
            turns=_read_turns(reader),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), rope=0 if self.config.turns else None)

    def block(self, layer: int) -> Block:
        config = self.config
        if layer not in config.recurrent:
            return super().block(layer)
        mixer = StateSpace(config.state_space, context=self.context)
        return Block(
            mixer,
            self.feed_forward(layer),
            norm=self.make_norm,
            residual_multiplier=config.residual_multiplier,
            attends=False,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        config = self.config
        if config.experts is None:
            shared = super().feed_forward(layer)
            assert isinstance(shared, GatedMLP)
            return OnlyShared(shared)
        return SharedSparseMLP(config.experts, shared=config.mlp_size, weighed=False, context=self.context)


def _read_experts(reader: ConfigReader, width: int, inner: int, activation: str) -> ExpertsShape | None:
    """None where there are none: `intermediate_size` then means nothing."""
    count = reader.optional("num_local_experts", 8, int)
    chosen = reader.optional("num_experts_per_tok", 2, int)
    if not count:
        return None
    routing = Routing(count=count, chosen=chosen, normalised=True)
    experts = ExpertsShape(width=width, inner=inner, activation=activation, routing=routing)
    check_chosen(experts)
    return experts


def _read_turns(reader: ConfigReader) -> bool:
    """Whether positions turn queries and keys, by `position_embedding_type`."""
    kind = reader.raw("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise ConfigError(
            f"config.json: position_embedding_type={kind!r} is not built; known are 'rope', 'nope' and null"
        )
    return kind == "rope"
