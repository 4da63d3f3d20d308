"""Kimi Linear: delta rules that forget by channel, latent attention without positions between them, experts of DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block
from jaxengine.device.layers.delta_net import DeltaNet, DeltaNetShape
from jaxengine.device.layers.latent_attention import LatentAttention
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.routing import Routing
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.layer_kinds import read_layer_kinds
from jaxengine.device.models.shared.delta_hybrid import check_delta_net
from jaxengine.device.models.shared.experts import (
    SPARSE_BLOCK,
    SharedExpertsDecoder,
    check_groups,
    read_dense_and_sparse,
)
from jaxengine.device.models.shared.latent import (
    ATTENTION,
    LATENT_WEIGHTS,
    PLAIN,
    LatentConfig,
    latent_config,
    read_latent,
)
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, filters
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

MIXER = "layers.*.attention"
KINDS = {"linear_attention": "recurrent", "full_attention": "full"}
PERIOD = 4
"""Every so many layers one attends, but not the first, where config.json does not say which."""
LINEAR = "linear_attn_config"
"""The section in which published files say what transformers 5 saves beside the other keys."""
EXPERT_PARTS = {"gate": "w1", "down": "w2", "up": "w3"}


@dataclass(frozen=True, kw_only=True)
class KimiLinearConfig(LatentConfig):
    """`recurrent` layers have a `delta_net`, the others the `attention`."""

    recurrent: tuple[int, ...]
    delta_net: DeltaNetShape

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        if self.recurrent:
            check_delta_net(self.delta_net, layout)


def _flat(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    return tensor.reshape(-1)


class KimiLinearForCausalLM(SharedExpertsDecoder):
    """A `Model`."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *(
            row
            for row in LATENT_WEIGHTS
            if isinstance(row, Ignore) or not (".mlp." in row.target or row.source.endswith(".q_proj.weight"))
        ),
        *(Rule(f"{MIXER}.{x}.weight", f"{ATTENTION}.{x}_proj.weight") for x in "qkv"),
        *(Rule(f"{MIXER}.convolve_{x}.taps", f"{ATTENTION}.{x}_conv1d.weight", filters) for x in "qkv"),
        *(
            Rule(f"{MIXER}.{ours}.{to}.weight", f"{ATTENTION}.{theirs}_{end}_proj.weight")
            for ours, theirs in (("decay", "f"), ("gate", "g"))
            for to, end in (("down", "a"), ("up", "b"))
        ),
        Rule(f"{MIXER}.rate.weight", f"{ATTENTION}.b_proj.weight"),
        Rule(f"{MIXER}.decay_bias", f"{ATTENTION}.dt_bias"),
        Rule(f"{MIXER}.log_decays", f"{ATTENTION}.A_log", _flat),
        Rule(f"{MIXER}.norm", f"{ATTENTION}.o_norm.weight"),
        Rule("layers.*.mlp.routed.router", f"{SPARSE_BLOCK}.gate.weight"),
        Rule("layers.*.mlp.routed.correction", f"{SPARSE_BLOCK}.gate.e_score_correction_bias"),
        *(
            row
            for part, name in EXPERT_PARTS.items()
            for row in (
                Rule(f"layers.*.mlp.routed.{part}.weight", f"{SPARSE_BLOCK}.experts.{{expert}}.{name}.weight"),
                Rule(f"layers.*.mlp.shared.{part}.weight", f"{SPARSE_BLOCK}.shared_experts.{part}_proj.weight"),
                # as published, and as transformers 5.23 saves it
                Rule(f"layers.*.mlp.{part}.weight", f"[model.]layers.*.mlp.{part}_proj.weight"),
                Rule(f"layers.*.mlp.{part}.weight", f"{SPARSE_BLOCK}.{part}_proj.weight"),
            )
        ),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **PLAIN,
        "moe_router_activation_func": Ignored("scores are sigmoids", allowed=("sigmoid",)),
        "use_grouped_topk": Ignored("groups are chosen by their two best experts", allowed=(True,)),
        "mla_use_nope": Ignored("no position turns anything", allowed=(True,)),
        **dict.fromkeys(("rope_theta", "rope_scaling"), Ignored("no position turns anything")),
        "head_dim": Ignored("qk_nope_head_dim, qk_rope_head_dim and v_head_dim say it"),
        "num_nextn_predict_layers": Ignored("several tokens are not predicted", allowed=(0,)),
    }
    config: KimiLinearConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> KimiLinearConfig:
        shared = _read_shared(reader)
        num_layers = shared["num_layers"]
        base = latent_config(
            shared,
            routing=_read_routing(reader),
            attention=replace(read_latent(reader, shared, ranks=(None, 512), sizes=(128, 64, 128)), rope=None),
            inner=reader.optional_size("moe_intermediate_size", 1024),
            num_shared=reader.optional_size("num_shared_experts", 1),
            expert_layers=read_dense_and_sparse(reader, num_layers, dense=1),
            draft_layers=(),
        )
        kinds = _read_kinds(reader, num_layers)
        return KimiLinearConfig(
            **vars(base),
            recurrent=tuple(layer for layer, kind in enumerate(kinds) if kind == "recurrent"),
            delta_net=_read_delta_net(reader, shared),
        )

    def block(self, layer: int) -> Block:
        config, context = self.config, self.context
        recurrent = layer in config.recurrent
        mixer = (
            DeltaNet(config.delta_net, context=context)
            if recurrent
            else LatentAttention(config.attention, context=context)
        )
        return Block(mixer, self.feed_forward(layer), norm=self.make_norm)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters), Shared()


def _read_shared(reader: ConfigReader) -> dict[str, Any]:
    num_heads, channels = reader.size("num_attention_heads"), reader.optional_size("qk_rope_head_dim", 64)
    positions = reader.optional_size("model_max_length", reader.optional_size("max_position_embeddings", 1 << 20))
    return {
        "vocab_size": reader.size("vocab_size"),
        "hidden_size": reader.size("hidden_size"),
        "mlp_size": reader.size("intermediate_size"),
        "num_layers": reader.size("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": reader.nullable_size("num_key_value_heads", None) or num_heads,
        "head_dim": channels,
        "max_position_embeddings": positions,
        "tie_word_embeddings": reader.optional("tie_word_embeddings", False, bool),
        "dtype": read_stored_dtype(reader),
        "rms_norm_eps": reader.optional("rms_norm_eps", 1e-5, float),
        "activation": reader.choice("hidden_act", "silu", ACTIVATIONS),
        "rope": Rope(theta=1.0, head_dim=channels),  # of channels as they are: nothing turns
    }


def _read_routing(reader: ConfigReader) -> Routing:
    count = reader.optional_size("num_experts", 256)
    chosen = reader.optional_size("num_experts_per_token", 8)
    groups = reader.optional_size("num_expert_group", 1)
    chosen_groups = reader.nullable_size("topk_group", 1) or 1
    check_groups(count=count, groups=groups, chosen_groups=chosen_groups, chosen=chosen, least=2)
    return Routing(
        count=count,
        chosen=chosen,
        normalised=reader.optional("moe_renormalize", True, bool),
        sigmoid=True,
        corrected=True,
        groups=groups,
        chosen_groups=chosen_groups,
        group_best=2,
        scale=reader.optional("routed_scaling_factor", 2.446, float),
    )


def _read_kinds(reader: ConfigReader, num_layers: int) -> tuple[str, ...]:
    """By `layer_types`, or by the numbers, from 1, of layers of either kind in the section."""
    default = tuple("full" if layer and layer % PERIOD == 0 else "recurrent" for layer in range(num_layers))
    section = reader.section(LINEAR)
    if section is not None:
        full, recurrent = section.raw("full_attn_layers"), section.raw("kda_layers")
        if full is not None or recurrent is not None:
            if sorted([*(full or ()), *(recurrent or ())]) != list(range(1, num_layers + 1)):
                raise ConfigError(
                    f"config.json: {LINEAR} must have each of the layers 1 to {num_layers} in full_attn_layers or in "
                    f"kda_layers, got {full!r} and {recurrent!r}"
                )
            default = tuple("full" if layer + 1 in (full or ()) else "recurrent" for layer in range(num_layers))
    return read_layer_kinds(reader, num_layers, KINDS, default=default)


def _read_delta_net(reader: ConfigReader, shared: Mapping[str, Any]) -> DeltaNetShape:
    heads = reader.optional_size("linear_num_heads", 32)
    size = reader.optional_size("linear_head_dim", 128)
    taps = reader.optional_size("linear_conv_kernel_dim", 4)
    section = reader.section(LINEAR)
    if section is not None:
        heads, size = section.optional_size("num_heads", heads), section.optional_size("head_dim", size)
        taps = section.optional_size("short_conv_kernel_size", taps)
    return DeltaNetShape(
        width=shared["hidden_size"],
        key_heads=heads,
        key_size=size,
        heads=heads,
        value_size=size,
        taps=taps,
        activation=shared["activation"],
        norm_epsilon=shared["rms_norm_eps"],
        rank=size,
    )
