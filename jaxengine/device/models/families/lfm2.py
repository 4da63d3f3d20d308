"""LFM2: gated short convolutions in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxengine.device.layers.block import Block
from jaxengine.device.layers.short_convolution import ShortConvolution
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rope import read_rope
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder
from jaxengine.device.weights.rules import Rule, filters, part, repeat_kv_heads
from jaxengine.errors import ConfigError

KINDS = ("full_attention", "conv")
OLDER_KEYS = (
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "theta",
    "use_pos_enc",
)


@dataclass(frozen=True, kw_only=True)
class Lfm2Config(RotaryDecoderConfig):
    """`convolutions` are the layers without attention; each sees `taps` positions."""

    convolutions: tuple[int, ...]
    taps: int
    convolution_bias: bool


class Lfm2ForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        Rule("embed.table", "[model.]embed_tokens.weight"),
        Rule("layers.*.attention_norm.scale", "[model.]layers.*.operator_norm.weight"),
        *(
            rule
            for kind in ("weight", "bias")
            for rule in (
                Rule(f"layers.*.mixer.before.{kind}", f"[model.]layers.*.conv.in_proj.{kind}", part(0, 3)),
                Rule(f"layers.*.mixer.after.{kind}", f"[model.]layers.*.conv.in_proj.{kind}", part(1, 3)),
                Rule(f"layers.*.mixer.value.{kind}", f"[model.]layers.*.conv.in_proj.{kind}", part(2, 3)),
                Rule(f"layers.*.mixer.output.{kind}", f"[model.]layers.*.conv.out_proj.{kind}"),
            )
        ),
        Rule("layers.*.mixer.convolution.taps", "[model.]layers.*.conv.conv.weight", filters),
        Rule("layers.*.mixer.convolution.bias", "[model.]layers.*.conv.conv.bias"),
        Rule("layers.*.attention.q.weight", "[model.]layers.*.self_attn.q_proj.weight"),
        Rule("layers.*.attention.k.weight", "[model.]layers.*.self_attn.k_proj.weight", repeat_kv_heads),
        Rule("layers.*.attention.v.weight", "[model.]layers.*.self_attn.v_proj.weight", repeat_kv_heads),
        Rule("layers.*.attention.o.weight", "[model.]layers.*.self_attn.out_proj.weight"),
        Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_layernorm.weight"),
        Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_layernorm.weight"),
        Rule("layers.*.mlp_norm.scale", "[model.]layers.*.ffn_norm.weight"),
        Rule("layers.*.mlp.gate.weight", "[model.]layers.*.feed_forward.w1.weight"),
        Rule("layers.*.mlp.down.weight", "[model.]layers.*.feed_forward.w2.weight"),
        Rule("layers.*.mlp.up.weight", "[model.]layers.*.feed_forward.w3.weight"),
        Rule("norm.scale", "[model.]embedding_norm.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        OLDER_KEYS, Ignored("another name of a key that is read, or how training began")
    )
    config: Lfm2Config

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Lfm2Config:
        hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
        num_layers = reader.size("num_hidden_layers")
        head_dim = reader.nullable_size("head_dim", None) or hidden_size // num_heads
        max_positions = reader.optional("max_position_embeddings", 128_000, int)
        return Lfm2Config(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=_read_mlp_size(reader),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=reader.nullable_size("num_key_value_heads", 8) or num_heads,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            tie_word_embeddings=reader.optional(
                "tie_embedding", reader.optional("tie_word_embeddings", True, bool), bool
            ),
            dtype=read_stored_dtype(reader),
            windows=(None,) * num_layers,
            rms_norm_eps=reader.optional("norm_eps", 1e-5, float),
            activation="silu",
            rope=read_rope(reader, head_dim=head_dim, max_positions=max_positions, default=1e6),
            qk_norm=True,
            convolutions=_read_convolutions(reader, num_layers),
            taps=reader.optional_size("conv_L_cache", 3),
            convolution_bias=reader.optional("conv_bias", False, bool),
        )

    def block(self, layer: int) -> Layer:
        config = self.config
        if layer not in config.convolutions:
            return super().block(layer)
        convolution = ShortConvolution(
            config.hidden_size, config.taps, bias=config.convolution_bias, context=self.context
        )
        return Block(convolution, self.feed_forward(layer), norm=self.make_norm, attends=False)


def _read_mlp_size(reader: ConfigReader) -> int:
    """The feed-forward's channels: of the size that is given two thirds, times a factor, rounded up, unless told not to."""
    given = reader.optional_size("block_ff_dim", reader.optional_size("intermediate_size", 12_288))
    factor = reader.nullable("block_ffn_dim_multiplier", 1.0, float)
    multiple = reader.optional_size("block_multiple_of", 256)
    if not reader.optional("block_auto_adjust_ff_dim", True, bool):
        return given
    size = int(2 * given / 3)
    return size if factor is None else multiple * -(-int(factor * size) // multiple)


def _read_convolutions(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """By `layer_types`, or all but `full_attn_idxs`."""
    types, attention = reader.raw("layer_types"), reader.raw("full_attn_idxs")
    if types is None:
        attention = list(range(num_layers)) if attention is None else attention
        types = ["full_attention" if layer in attention else "conv" for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in KINDS for kind in types):
        raise ConfigError(
            f"config.json: layer_types must name one of {', '.join(KINDS)} for each of {num_layers} layers, got {types!r}"
        )
    return tuple(layer for layer, kind in enumerate(types) if kind == "conv")
