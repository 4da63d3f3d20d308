"""Mamba 2 alone: every layer is a state space, and of a sequence nothing is kept but states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.block import HalfBlock
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.state_space import StateSpace, StateSpaceShape
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.state_spaces import (
    INITIAL_STEPS,
    check_state_space,
    read_state_space,
    state_space_rules,
)
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

LONGEST = 1 << 20
"""The longest context where config.json says nothing: no position enters, and a state is as large whatever came before."""


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(DecoderConfig):
    """All layers have the `state_space`, whose heads are the model's."""

    norm_epsilon: float
    state_space: StateSpaceShape

    def check_layout(self, layout: Layout) -> None:
        check_state_space(self.state_space, layout)


class Mamba2ForCausalLM(Decoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[backbone.]embeddings.weight"),
        Rule("layers.*.norm.scale", "[backbone.]layers.*.norm.weight"),
        *state_space_rules("[backbone.]layers.*.mixer"),
        Rule("norm.scale", "[backbone.]norm_f.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **INITIAL_STEPS,
        "rescale_prenorm_residual": Ignored("how training began"),
        "residual_in_fp32": Ignored("the residual stream is in the dtype of activations"),
        "chunk_size": Ignored("how sums are cut, not what they are"),
        "norm_before_gate": Ignored("gates come before the norm whatever it says, as in transformers"),
        "rms_norm": Ignored("there always is one", allowed=(True,)),
    }
    config: Mamba2Config

    def __init__(self, config: Mamba2Config, context: ModelContext) -> None:
        super().__init__(config, context)
        self.layers = nnx.List([self.block() for _ in range(config.num_layers)])
        self.norm = self.make_norm()

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Mamba2Config:
        hidden_size, num_layers = reader.size("hidden_size"), reader.size("num_hidden_layers")
        epsilon = reader.optional("layer_norm_epsilon", 1e-5, float)
        space = _read_state_space(reader, hidden_size, epsilon=epsilon)
        return Mamba2Config(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=0,
            num_layers=num_layers,
            num_heads=space.heads,
            num_kv_heads=space.heads,
            head_dim=space.head_dim,
            max_position_embeddings=reader.optional_size("max_position_embeddings", LONGEST),
            tie_word_embeddings=reader.optional("tie_word_embeddings", False, bool),
            dtype=read_stored_dtype(reader),
            norm_epsilon=epsilon,
            state_space=space,
        )

    def make_norm(self) -> RMSNorm:
        """A norm of the residual stream."""
        return RMSNorm(self.config.hidden_size, epsilon=self.config.norm_epsilon, context=self.context)

    def block(self) -> HalfBlock:
        """A layer."""
        space = StateSpace(self.config.state_space, context=self.context)
        return HalfBlock(mixer=space, norm=self.make_norm())

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, Shared]:
        return self.embed(tokens), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


def _read_state_space(reader: ConfigReader, width: int, *, epsilon: float) -> StateSpaceShape:
    shape = read_state_space(
        reader,
        width,
        epsilon=epsilon,
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
