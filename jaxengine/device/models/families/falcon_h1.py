"""Falcon-H1: in every layer attention and Mamba 2 side by side, and numbers of config.json that multiply what goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.state_space import StateSpace, StateSpaceShape
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.models.shared.state_spaces import (
    INITIAL_STEPS,
    JAMBA_NAMES,
    PARTS,
    check_state_space,
    read_mamba_keys,
    state_space_rules,
)
from jaxengine.device.weights.rules import renamed
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """What config.json calls `..._multiplier`, of what goes into and comes out of the parts of a layer, and of a model."""

    embedding: float
    lm_head: float
    key: float
    attention_in: float
    attention_out: float
    ssm_in: float
    ssm_out: float
    gate: float
    down: float


@dataclass(frozen=True, kw_only=True)
class FalconH1Config(RotaryDecoderConfig):
    """Every layer has the `state_space`."""

    state_space: StateSpaceShape
    multipliers: Multipliers

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        check_state_space(self.state_space, layout)


class FalconH1Block(nnx.Module):
    """Attention and a state space of one norm of the residual stream, and behind them a feed-forward."""

    def __init__(self, decoder: FalconH1ForCausalLM, layer: int) -> None:
        context, config = decoder.context, decoder.config
        self.multipliers = config.multipliers
        self.attention_norm, self.mlp_norm = decoder.make_norm(), decoder.make_norm()
        self.attention = SelfAttention(decoder.attention_shape(layer), context=context)
        self.mixer = StateSpace(config.state_space, context=context)
        self.mlp = GatedMLP(
            config.hidden_size,
            config.mlp_size,
            activation=config.activation,
            bias=config.mlp_bias,
            multiplier=config.multipliers.gate,
            context=context,
        )

    @property
    def keeps(self) -> Keeps:
        """Keys and values, and states."""
        return (*self.attention.keeps, *self.mixer.keeps)

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        by, seen = self.multipliers, self.attention_norm(x)
        attended, cache = self.attention(seen * by.attention_in, cache, step)
        mixed, cache = self.mixer(seen * by.ssm_in, cache, step)
        x = x + (mixed * by.ssm_out + attended * by.attention_out)
        return x + self.mlp(self.mlp_norm(x), step) * by.down, cache


class FalconH1ForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *renamed((*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down")), JAMBA_NAMES),
        *state_space_rules("[model.]layers.*.mamba"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **INITIAL_STEPS,
        "mamba_chunk_size": Ignored("how sums are cut, not what they are"),
        "num_logits_to_keep": Ignored("shapes what transformers returns"),
        "attn_layer_indices": Ignored("every layer has attention", allowed=(None,)),
        "mamba_use_mlp": Ignored("every layer has a feed-forward", allowed=(True,)),
        "mlp_expansion_factor": Ignored("intermediate_size says it"),
    }
    config: FalconH1Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> FalconH1Config:
        shared = read_shared(reader, kv_heads=8, head_dim=None, epsilon=1e-5)
        bias = reader.optional("attention_bias", False, bool)
        gate, down = _read_factors(reader, "mlp_multipliers", 2)
        named = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
        return FalconH1Config(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            state_space=_read_state_space(
                reader, shared["hidden_size"], epsilon=shared["rms_norm_eps"], activation=shared["activation"]
            ),
            multipliers=Multipliers(
                **{name: reader.optional(f"{name}_multiplier", 1.0, float) for name in named}, gate=gate, down=down
            ),
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        """Keys are multiplied, which scores are as well."""
        shape = super().attention_shape(layer)
        return replace(shape, scale=shape.scale * self.config.multipliers.key)

    def block(self, layer: int) -> FalconH1Block:
        return FalconH1Block(self, layer)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x, shared = super().embed_tokens(tokens, positions, adapters)
        return x * self.config.multipliers.embedding, shared

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        return super().logits(hidden, adapters) * self.config.multipliers.lm_head


def _read_factors(reader: ConfigReader, key: str, count: int) -> tuple[float, ...]:
    """So many numbers in a list, each 1 where there is none.

    Raises:
        ConfigError: something else.
    """
    given = reader.raw(key)
    if given is None:
        return (1.0,) * count
    if not isinstance(given, list) or len(given) != count or not all(isinstance(x, int | float) for x in given):
        raise ConfigError(f"config.json: {key} must be a list of {count} numbers, got {given!r}")
    return tuple(map(float, given))


def _read_state_space(reader: ConfigReader, width: int, *, epsilon: float, activation: str) -> StateSpaceShape:
    normed = reader.optional("mamba_rms_norm", False, bool)
    space = read_mamba_keys(
        reader,
        width,
        epsilon=epsilon if normed else None,
        activation=activation,
        channels=reader.nullable_size("mamba_d_ssm", 1024),
    )
    gate, value, inward, outward, steps = _read_factors(reader, "ssm_multipliers", len(PARTS))
    return replace(
        space,
        output_bias=reader.optional("projectors_bias", False, bool),
        norm_first=reader.optional("mamba_norm_before_gate", True, bool),
        multipliers=(gate, value, inward, outward, steps),
    )
