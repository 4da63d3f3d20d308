"""Mamba 2 alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.state_space import StateSpace, StateSpaceShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.state_spaces import check_state_space, read_state_space, state_space_rules
from jaxengine.device.models.shared.states_alone import (
    MIXER,
    NOT_STATES,
    TRAINING,
    StatesAlone,
    StatesAloneConfig,
    read_states_alone,
)
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(StatesAloneConfig):
    """All layers have the `state_space`, whose heads are the model's."""

    state_space: StateSpaceShape

    def check_layout(self, layout: Layout) -> None:
        check_state_space(self.state_space, layout)


class Mamba2ForCausalLM(StatesAlone):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (*NOT_STATES, *state_space_rules(MIXER))
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **TRAINING,
        "chunk_size": Ignored("how sums are cut, not what they are"),
        "norm_before_gate": Ignored("gates come before the norm whatever it says, as in transformers"),
    }
    config: Mamba2Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Mamba2Config:
        space = _read_state_space(reader)
        shared = read_states_alone(reader, tied=False, heads=space.heads, head_dim=space.head_dim)
        return Mamba2Config(**shared, state_space=space)

    def mixer(self) -> StateSpace:
        return StateSpace(self.config.state_space, context=self.context)


def _read_state_space(reader: ConfigReader) -> StateSpaceShape:
    width = reader.size("hidden_size")
    shape = read_state_space(
        reader,
        width,
        epsilon=reader.optional("layer_norm_epsilon", 1e-5, float),
        heads="num_heads",
        head_dim="head_dim",
        state="state_size",
        activation="hidden_act",
    )
    expand = reader.optional_size("expand", 2)
    if shape.channels != expand * width:
        raise ConfigError(
            f"config.json: num_heads={shape.heads} of head_dim={shape.head_dim} are not the {expand * width} channels of "
            "expand times hidden_size"
        )
    return shape
