"""What Qwen3-Next and Qwen3.5 share: layers of the gated delta rule, some of gated attention between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.delta_net import DeltaNet, DeltaNetShape
from jaxengine.device.layers.norm import RMSNorm
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.layer_kinds import read_layer_kinds
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules, half_split
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, Transform, chain, filters, piece
from jaxengine.errors import ConfigError

LAYER = "[model.]layers.*"
NET, RULES, ATTENTION = f"{LAYER}.linear_attn", "layers.*.mixer", "layers.*.attention"
KINDS = {"linear_attention": "recurrent", "full_attention": "full"}
NORM_OFFSET = 1.0
"""What scales of norms have beyond their parameters, but for the norm of what comes out of a delta rule."""


def _of_each_head(which: int) -> Transform:
    """Queries or their gates, of a tensor that has both of each head."""

    def cut(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        heads = fused.reshape(-1, 2, config.head_dim, *fused.shape[1:])
        return heads[:, which].reshape(-1, *fused.shape[1:])

    return cut


def channels(config: Any) -> tuple[int, ...]:
    """Rows of queries, keys and values of a delta rule, where they lie one behind the other."""
    net: DeltaNetShape = config.delta_net
    return net.sizes


def _gated_attention() -> tuple[Rule | Ignore, ...]:
    fused = tuple(
        rule
        for kind in ("weight", "bias")
        for source in (f"{LAYER}.self_attn.q_proj.{kind}",)
        for rule in (
            Rule(f"{ATTENTION}.q.{kind}", source, chain(_of_each_head(0), half_split)),
            Rule(f"{ATTENTION}.gate.{kind}", source, _of_each_head(1)),
        )
    )
    keys = f"{ATTENTION}.k."
    others = (
        replace(row, transform=row.then(half_split)) if isinstance(row, Rule) and row.target.startswith(keys) else row
        for row in (*ROTARY_DECODER_WEIGHTS, *bias_rules("k", "v", "o"))
        if not isinstance(row, Rule) or not row.target.startswith(f"{ATTENTION}.q.")
    )
    norms = (Rule(f"{ATTENTION}.{x}_norm.scale", f"{LAYER}.self_attn.{x}_norm.weight", half_split) for x in "qk")
    return (*others, *fused, *norms)


DELTA_HYBRID_WEIGHTS: tuple[Rule | Ignore, ...] = (
    *_gated_attention(),
    *(
        Rule(f"{RULES}.convolve_{x}.taps", f"{NET}.conv1d.weight", chain(piece(number, channels), filters))
        for number, x in enumerate("qkv")
    ),
    Rule(f"{RULES}.decay_bias", f"{NET}.dt_bias"),
    Rule(f"{RULES}.log_decays", f"{NET}.A_log"),
    Rule(f"{RULES}.norm", f"{NET}.norm.weight"),
    Rule(f"{RULES}.o.weight", f"{NET}.out_proj.weight"),
    Ignore("mtp.**", "predicts several tokens: read by what drafts"),
)
"""All but a delta rule's projections and experts."""


@dataclass(frozen=True, kw_only=True)
class DeltaHybridConfig(RotaryDecoderConfig):
    """`recurrent` layers have a `delta_net`."""

    recurrent: tuple[int, ...]
    delta_net: DeltaNetShape

    def check_layout(self, layout: Layout) -> None:
        super().check_layout(layout)
        if self.recurrent:
            check_delta_net(self.delta_net, layout)


class DeltaHybrid(RotaryDecoder):
    """A `Model`."""

    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "attn_output_gate": Ignored("attention is always gated", allowed=(True,)),
        "mamba_ssm_dtype": Ignored("states are always float32", allowed=("float32",)),
        **dict.fromkeys(
            ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"),
            Ignored("the first of the layers that predict several tokens is used for all"),
        ),
    }
    config: DeltaHybridConfig

    def make_norm(self) -> RMSNorm:
        config = self.config
        return RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, offset=NORM_OFFSET, context=self.context)

    def attention_shape(self, layer: int) -> AttentionShape:
        return replace(super().attention_shape(layer), norm_offset=NORM_OFFSET, gated=True)

    def block(self, layer: int) -> Layer:
        if layer not in self.config.recurrent:
            return super().block(layer)
        mixer = DeltaNet(self.config.delta_net, context=self.context)
        return Block(mixer, self.feed_forward(layer), norm=self.make_norm, attends=False)


def check_delta_net(net: DeltaNetShape, layout: Layout) -> None:
    """Refuse devices that cannot share the heads of keys evenly.

    Raises:
        ConfigError: naming the numbers.
    """
    size = layout.shards("heads")
    if net.key_heads % size:
        raise ConfigError(
            f"tensor_parallel_size={size} does not divide this model: {net.key_heads} heads of keys in layers of linear "
            "attention must split evenly"
        )


def read_delta_hybrid(reader: ConfigReader, *, kv_heads: int, mlp_key: str = "intermediate_size") -> dict[str, Any]:
    """The fields of `DeltaHybridConfig`. Positions of texts are one number, whatever `mrope_section` makes of pictures'."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    if section is not None:
        section.raw("mrope_section")
        section.raw("mrope_interleaved")
    shared = read_shared(reader, kv_heads=kv_heads, head_dim=256, partial_rotary=0.25, mlp_key=mlp_key)
    num_layers = shared["num_layers"]
    bias = reader.optional("attention_bias", False, bool)
    period = reader.nullable_size("full_attention_interval", None) or 4
    default = tuple("recurrent" if (layer + 1) % period else "full" for layer in range(num_layers))
    kinds = read_layer_kinds(reader, num_layers, KINDS, default=default)
    return {
        **shared,
        "windows": (None,) * num_layers,
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": False,
        "qk_norm": True,
        "recurrent": tuple(layer for layer, kind in enumerate(kinds) if kind == "recurrent"),
        "delta_net": _read_delta_net(
            reader, shared["hidden_size"], activation=shared["activation"], epsilon=shared["rms_norm_eps"]
        ),
    }


def _read_delta_net(reader: ConfigReader, width: int, *, activation: str, epsilon: float) -> DeltaNetShape:
    net = DeltaNetShape(
        width=width,
        key_heads=reader.optional_size("linear_num_key_heads", 16),
        key_size=reader.optional_size("linear_key_head_dim", 128),
        heads=reader.optional_size("linear_num_value_heads", 32),
        value_size=reader.optional_size("linear_value_head_dim", 128),
        taps=reader.optional_size("linear_conv_kernel_dim", 4),
        activation=activation,
        norm_epsilon=epsilon,
    )
    if net.heads % net.key_heads:
        raise ConfigError(
            f"config.json: linear_num_value_heads={net.heads} cannot share linear_num_key_heads={net.key_heads} evenly"
        )
    return net
