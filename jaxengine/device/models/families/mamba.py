"""Mamba 1 alone, and Falcon-Mamba, which norms what decides of its states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.channel_space import ChannelSpace, ChannelSpaceShape
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.channel_spaces import channel_space_rules, check_channel_space, read_rank
from jaxengine.device.models.shared.states_alone import (
    MIXER,
    NOT_STATES,
    TRAINING,
    StatesAlone,
    StatesAloneConfig,
    read_states_alone,
)
from jaxengine.device.weights.rules import Ignore, Rule


@dataclass(frozen=True, kw_only=True)
class MambaConfig(StatesAloneConfig):
    """All layers have the `channel_space`."""

    channel_space: ChannelSpaceShape

    def check_layout(self, layout: Layout) -> None:
        check_channel_space(self.channel_space, layout)


class MambaForCausalLM(StatesAlone):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (*NOT_STATES, *channel_space_rules(MIXER))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        **dict.fromkeys(("time_step_scale", "time_step_init_scheme"), Ignored("how training began")),
        **dict.fromkeys(
            ("use_mambapy", "use_falcon_mambapy", "use_associative_scan", "fused_add_norm"),
            Ignored("how it is computed, not what"),
        ),
        **dict.fromkeys(("d_inner", "d_model", "n_layer"), Ignored("another name of a key that is read")),
        "ssm_cfg": Ignored("settings of the first implementation", allowed=({}, None)),
        "pad_vocab_size_multiple": Ignored("vocab_size is padded already"),
    }
    config: MambaConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> MambaConfig:
        space = _read_channel_space(reader)
        shared = read_states_alone(reader, tied=True, heads=space.channels, head_dim=1)
        return MambaConfig(**shared, channel_space=space)

    def mixer(self) -> ChannelSpace:
        return ChannelSpace(self.config.channel_space, context=self.context)


class FalconMambaForCausalLM(MambaForCausalLM):
    """A `Model`."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> MambaConfig:
        config = super().read_config(reader)
        epsilon = reader.optional("mixer_rms_eps", 1e-6, float)
        return replace(config, channel_space=replace(config.channel_space, norm_epsilon=epsilon, norm_affine=False))


def _read_channel_space(reader: ConfigReader) -> ChannelSpaceShape:
    width, expand = reader.size("hidden_size"), reader.optional_size("expand", 2)
    return ChannelSpaceShape(
        width=width,
        channels=reader.optional_size("intermediate_size", expand * width),
        state=reader.optional_size("state_size", 16),
        rank=read_rank(reader, "time_step_rank", width),
        taps=reader.optional_size("conv_kernel", 4),
        bias=reader.optional("use_bias", False, bool),
        convolution_bias=reader.optional("use_conv_bias", True, bool),
        activation=reader.choice("hidden_act", "silu", ACTIVATIONS),
    )
