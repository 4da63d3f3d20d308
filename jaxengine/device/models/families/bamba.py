"""Bamba: layers of Mamba 2, some of attention between them whose heads turn by half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.state_space import StateSpace, StateSpaceShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import (
    ROTARY_DECODER_WEIGHTS,
    RotaryDecoder,
    bias_rules,
    half_split_rotary,
)
from jaxengine.device.models.shared.state_spaces import (
    INITIAL_STEPS,
    JAMBA_NAMES,
    check_state_space,
    read_mamba_keys,
    state_space_rules,
)
from jaxengine.device.weights.rules import renamed
from jaxengine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BambaConfig(RotaryDecoderConfig):
    """`recurrent` layers have the `state_space`."""

    recurrent: tuple[int, ...]
    state_space: StateSpaceShape

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        check_state_space(self.state_space, layout)


class BambaForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = half_split_rotary(
        (
            *renamed((*ROTARY_DECODER_WEIGHTS, *bias_rules("q", "k", "v", "o", "gate", "up", "down")), JAMBA_NAMES),
            *state_space_rules("[model.]layers.*.mamba"),
        )
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **INITIAL_STEPS,
        "mamba_chunk_size": Ignored("how sums are cut, not what they are"),
        "num_logits_to_keep": Ignored("shapes what transformers returns"),
        "z_loss_coefficient": Ignored("only used in training"),
    }
    config: BambaConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> BambaConfig:
        shared = read_shared(reader, kv_heads=8, head_dim=None, epsilon=1e-5, partial_rotary=0.5)
        bias = reader.optional("attention_bias", False, bool)
        return BambaConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            recurrent=_read_recurrent(reader, shared),
            state_space=read_mamba_keys(
                reader, shared["hidden_size"], epsilon=shared["rms_norm_eps"], activation=shared["activation"]
            ),
        )

    def block(self, layer: int) -> Layer:
        if layer not in self.config.recurrent:
            return super().block(layer)
        space = StateSpace(self.config.state_space, context=self.context)
        return Block(space, self.feed_forward(layer), norm=self.make_norm, attends=False)


def _read_recurrent(reader: ConfigReader, shared: Mapping[str, Any]) -> tuple[int, ...]:
    """All layers but `attn_layer_indices`, whose heads turn as far as `attn_rotary_emb` says, the older name of a share.

    Raises:
        ConfigError: the two disagree, or an index is no layer's.
    """
    turning, rope = reader.nullable_size("attn_rotary_emb", None), shared["rope"]
    if turning not in (None, rope.rotary_dim or rope.head_dim):
        raise ConfigError(
            f"config.json: attn_rotary_emb={turning} channels of a head turn, and partial_rotary_factor (0.5 where it is "
            f"not given) says {rope.rotary_dim or rope.head_dim}; set partial_rotary_factor with hf_overrides"
        )
    attends = reader.raw("attn_layer_indices") or []
    if not isinstance(attends, list) or any(layer not in range(shared["num_layers"]) for layer in attends):
        raise ConfigError(
            f"config.json: attn_layer_indices must be a list of numbers of the {shared['num_layers']} layers, got {attends!r}"
        )
    return tuple(layer for layer in range(shared["num_layers"]) if layer not in attends)
