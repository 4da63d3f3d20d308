"""BLOOM: ALiBi, embeddings behind a norm, fused projections by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.alibi import alibi_slopes
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.alibi_decoder import AlibiConfig, AlibiDecoder
from jaxengine.device.weights.rules import Rule, of_kv_groups
from jaxengine.errors import ConfigError

LAYER = "[transformer.]h.*"


class BloomForCausalLM(AlibiDecoder):
    """A `Model`. The published files leave out the prefix `transformer.`, newer ones have it."""

    WEIGHTS = (
        Rule("embed.table", "[transformer.]word_embeddings.weight"),
        *(
            row
            for kind, norm_kind in (("weight", "scale"), ("bias", "bias"))
            for row in (
                Rule(f"embedding_norm.{norm_kind}", f"[transformer.]word_embeddings_layernorm.{kind}"),
                Rule(f"layers.*.attention_norm.{norm_kind}", f"{LAYER}.input_layernorm.{kind}"),
                *(
                    Rule(
                        f"layers.*.attention.{name}.{kind}",
                        f"{LAYER}.self_attention.query_key_value.{kind}",
                        of_kv_groups(name),
                    )
                    for name in "qkv"
                ),
                Rule(f"layers.*.attention.o.{kind}", f"{LAYER}.self_attention.dense.{kind}"),
                Rule(f"layers.*.mlp_norm.{norm_kind}", f"{LAYER}.post_attention_layernorm.{kind}"),
                Rule(f"layers.*.mlp.up.{kind}", f"{LAYER}.mlp.dense_h_to_4h.{kind}"),
                Rule(f"layers.*.mlp.down.{kind}", f"{LAYER}.mlp.dense_4h_to_h.{kind}"),
                Rule(f"norm.{norm_kind}", f"[transformer.]ln_f.{kind}"),
            )
        ),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        "hidden_dropout": Ignored("only used in training"),
        "apply_residual_connection_post_layernorm": Ignored("sums are with what was not normalised", allowed=(False,)),
        "n_inner": Ignored("the feed-forward is four times as wide", allowed=(None,)),
        **dict.fromkeys(
            ("pretraining_tp", "slow_but_exact"), Ignored("slices sums as in training, which rounds differently")
        ),
        **dict.fromkeys(
            (
                "attention_softmax_in_fp32",
                "bias_dropout_fusion",
                "masked_softmax_fusion",
                "offset_alibi",
                "skip_bias_add",
                "skip_bias_add_qkv",
            ),
            Ignored("how it was trained, not what is computed"),
        ),
        "unk_token_id": Ignored("the tokenizer's"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> AlibiConfig:
        hidden_size = reader.nullable_size("hidden_size", None) or reader.size("n_embed")
        reader.raw("n_embed")
        num_heads = reader.nullable_size("n_head", None) or reader.size("num_attention_heads")
        num_layers = reader.nullable_size("n_layer", None) or reader.size("num_hidden_layers")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: {num_heads} heads must divide hidden_size={hidden_size}")
        head_dim = hidden_size // num_heads
        return AlibiConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=4 * hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_position_embeddings=reader.optional_size("seq_length", 2048),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            norm_epsilon=reader.optional("layer_norm_epsilon", 1e-5, float),
            activation="gelu_pytorch_tanh",
            bias=True,
            scale=head_dim**-0.5,
            slopes=alibi_slopes(num_heads),
            embedding_norm=True,
        )
