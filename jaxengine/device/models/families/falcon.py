"""Falcon: multi-query attention beside the feed-forward, turned heads or ALiBi; large ones have more KV heads, and two norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.alibi import alibi_slopes
from jaxengine.device.layers.block import ParallelBlock
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import Norm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rope import read_rope
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder, layer_norm
from jaxengine.device.weights.rules import Rule, of_kv_groups
from jaxengine.errors import ConfigError

LAYER = "transformer.h.*"


@dataclass(frozen=True, kw_only=True)
class FalconConfig(RotaryDecoderConfig):
    """`parallel`: attention and feed-forward see the same residual stream, behind one norm or (`two_norms`) one each."""

    alibi: bool
    parallel: bool
    two_norms: bool


class FalconForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        Rule("embed.table", "transformer.word_embeddings.weight"),
        *(
            row
            for kind, norm_kind in (("weight", "scale"), ("bias", "bias"))
            for row in (
                Rule(f"layers.*.attention_norm.{norm_kind}", f"{LAYER}.input_layernorm.{kind}"),
                Rule(f"layers.*.attention_norm.{norm_kind}", f"{LAYER}.ln_attn.{kind}"),
                Rule(f"layers.*.mlp_norm.{norm_kind}", f"{LAYER}.post_attention_layernorm.{kind}"),
                Rule(f"layers.*.mlp_norm.{norm_kind}", f"{LAYER}.ln_mlp.{kind}"),
                *(
                    Rule(
                        f"layers.*.attention.{name}.{kind}",
                        f"{LAYER}.self_attention.query_key_value.{kind}",
                        of_kv_groups(name),
                    )
                    for name in "qkv"
                ),
                Rule(f"layers.*.attention.o.{kind}", f"{LAYER}.self_attention.dense.{kind}"),
                Rule(f"layers.*.mlp.up.{kind}", f"{LAYER}.mlp.dense_h_to_4h.{kind}"),
                Rule(f"layers.*.mlp.down.{kind}", f"{LAYER}.mlp.dense_4h_to_h.{kind}"),
                Rule(f"norm.{norm_kind}", f"transformer.ln_f.{kind}"),
            )
        ),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    FEED_FORWARD = MLP
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "hidden_dropout": Ignored("only used in training"),
        "auto_map": Ignored("code of the repository, which is never run"),
        "apply_residual_connection_post_layernorm": Ignored("sums are with what was not normalised", allowed=(False,)),
        "ff_factor": Ignored("ffn_hidden_size says it, or it is four", allowed=(4,)),
    }
    config: FalconConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> FalconConfig:
        hidden_size = reader.nullable_size("hidden_size", None) or reader.size("n_embed")
        reader.raw("n_embed")
        num_heads = reader.nullable_size("num_attention_heads", None) or reader.size("n_head")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: num_attention_heads={num_heads} must divide hidden_size={hidden_size}")
        head_dim = hidden_size // num_heads
        new = reader.optional("new_decoder_architecture", False, bool)
        multi_query, parallel = reader.optional("multi_query", True, bool), reader.optional("parallel_attn", True, bool)
        kv_heads = reader.nullable_size("num_kv_heads", None) or num_heads
        norms = reader.nullable_size("num_ln_in_parallel_attn", None)
        if new and not parallel:
            raise ConfigError("config.json: parallel_attn=false is not built with new_decoder_architecture")
        if norms not in (None, 1, 2) or (norms == 2 and not new):
            raise ConfigError(
                f"config.json: num_ln_in_parallel_attn={norms}: one norm, or with new_decoder_architecture two"
            )
        max_positions = reader.optional_size("max_position_embeddings", 2048)
        bias = reader.optional("bias", False, bool)
        return FalconConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.nullable_size("ffn_hidden_size", None) or 4 * hidden_size,
            num_layers=reader.nullable_size("num_hidden_layers", None) or reader.size("n_layer"),
            num_heads=num_heads,
            num_kv_heads=kv_heads if new or not multi_query else 1,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            rms_norm_eps=reader.optional("layer_norm_epsilon", 1e-5, float),
            activation=reader.choice("activation", "gelu", ACTIVATIONS),
            rope=read_rope(reader, head_dim=head_dim, max_positions=max_positions),
            windows=(None,) * (reader.nullable_size("num_hidden_layers", None) or reader.size("n_layer")),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
            alibi=reader.optional("alibi", False, bool),
            parallel=parallel,
            two_norms=new and norms != 1,
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)

    def attention_shape(self, layer: int) -> AttentionShape:
        shape = super().attention_shape(layer)
        if not self.config.alibi:
            return shape
        # Distances are added before scores are scaled.
        slopes = tuple(slope * shape.scale for slope in alibi_slopes(shape.num_heads))
        return replace(shape, rope=None, slopes=slopes)

    def block(self, layer: int) -> Layer:
        config = self.config
        if not config.parallel:
            return super().block(layer)
        attention = SelfAttention(self.attention_shape(layer), context=self.context)
        return ParallelBlock(attention, self.feed_forward(layer), norm=self.make_norm, one_norm=not config.two_norms)
