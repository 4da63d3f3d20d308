"""Jamba: layers of Mamba 1, some of attention without positions between them; experts in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax

from jaxengine.device.layers.block import Block, FeedForward
from jaxengine.device.layers.channel_space import ChannelSpace, ChannelSpaceShape
from jaxengine.device.layers.experts import ExpertsShape, SparseMLP
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.channel_spaces import channel_space_rules, check_channel_space, read_rank
from jaxengine.device.models.shared.experts import TRAINING, check_chosen, read_num_experts
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder
from jaxengine.device.models.shared.state_spaces import JAMBA_NAMES
from jaxengine.device.weights.rules import Rule, renamed
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

MIXER, FEED_FORWARD = "[model.]layers.*.mamba", "[model.]layers.*.feed_forward"


@dataclass(frozen=True, kw_only=True)
class JambaConfig(RotaryDecoderConfig):
    """`recurrent` layers have the `channel_space`, and `expert_layers` the experts."""

    recurrent: tuple[int, ...]
    channel_space: ChannelSpaceShape
    expert_layers: tuple[int, ...]

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        check_channel_space(self.channel_space, layout)
        if self.experts is not None:
            layout.check_experts(count=self.experts.count, inner=self.experts.inner)


class JambaForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *renamed(ROTARY_DECODER_WEIGHTS, JAMBA_NAMES),
        *channel_space_rules(MIXER),
        Rule("layers.*.mixer.rank_norm.scale", f"{MIXER}.dt_layernorm.weight"),
        Rule("layers.*.mixer.inward_norm.scale", f"{MIXER}.b_layernorm.weight"),
        Rule("layers.*.mixer.outward_norm.scale", f"{MIXER}.c_layernorm.weight"),
        Rule("layers.*.mlp.router", f"{FEED_FORWARD}.router.weight"),
        *(
            Rule(f"layers.*.mlp.{part}.weight", f"{FEED_FORWARD}.experts.{{expert}}.{part}_proj.weight")
            for part in ("gate", "up", "down")
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        **dict.fromkeys(
            ("use_mamba_kernels", "use_mambapy", "use_associative_scan"), Ignored("how it is computed, not what")
        ),
        **dict.fromkeys(
            ("num_logits_to_keep", "calc_logits_for_entire_prompt"), Ignored("shapes what transformers returns")
        ),
        "mamba_inner_layernorms": Ignored("there always are some", allowed=(True,)),
        "sliding_window": Ignored("no layer sees a window", allowed=(None,)),
    }
    config: JambaConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> JambaConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=None)
        num_layers, width = shared["num_layers"], shared["hidden_size"]
        attends = _read_every(reader, "attn_layer", num_layers, period=8, offset=4)
        experts = ExpertsShape(
            width=width,
            inner=shared["mlp_size"],
            activation=shared["activation"],
            routing=Routing(
                count=read_num_experts(reader, 16),
                chosen=reader.optional_size("num_experts_per_tok", 2),
                normalised=False,
            ),
        )
        expert_layers = _read_every(reader, "expert_layer", num_layers, period=2, offset=1)
        if experts.count == 1:
            expert_layers = ()
        if expert_layers:
            check_chosen(experts)
        return JambaConfig(
            **shared,
            windows=(None,) * num_layers,
            recurrent=tuple(layer for layer in range(num_layers) if layer not in attends),
            channel_space=ChannelSpaceShape(
                width=width,
                channels=reader.optional_size("mamba_expand", 2) * width,
                state=reader.optional_size("mamba_d_state", 16),
                rank=read_rank(reader, "mamba_dt_rank", width),
                taps=reader.optional_size("mamba_d_conv", 4),
                bias=reader.optional("mamba_proj_bias", False, bool),
                convolution_bias=reader.optional("mamba_conv_bias", True, bool),
                activation=shared["activation"],
                norm_epsilon=shared["rms_norm_eps"],
            ),
            expert_layers=expert_layers,
            experts=experts if expert_layers else None,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), rope=None)

    def block(self, layer: int) -> Layer:
        if layer not in self.config.recurrent:
            return super().block(layer)
        space = ChannelSpace(self.config.channel_space, context=self.context)
        return Block(space, self.feed_forward(layer), norm=self.make_norm, attends=False)

    def feed_forward(self, layer: int) -> FeedForward:
        experts = self.config.experts
        if experts is None or layer not in self.config.expert_layers:
            return super().feed_forward(layer)
        return SparseMLP(experts, context=self.context)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters), Shared()


def _read_every(reader: ConfigReader, key: str, num_layers: int, *, period: int, offset: int) -> tuple[int, ...]:
    """One layer in every `..._period`, from `..._offset` on; the arguments are Hugging Face's defaults.

    Raises:
        ConfigError: an offset that is not within a period.
    """
    period, offset = reader.optional_size(f"{key}_period", period), reader.optional(f"{key}_offset", offset, int)
    if not 0 <= offset < period:
        raise ConfigError(f"config.json: {key}_offset={offset} must be at least 0 and below {key}_period={period}")
    return tuple(range(offset, num_layers, period))
