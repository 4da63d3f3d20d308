"""MPT: ALiBi, no biases anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaxengine.device.layers.alibi import mpt_slopes
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import COMMON_IGNORED, Ignored
from jaxengine.device.models.shared.alibi_decoder import AlibiConfig, AlibiDecoder
from jaxengine.device.weights.rules import Rule, chain, part, repeat_kv_heads
from jaxengine.errors import ConfigError

LAYER = "transformer.blocks.*"

ATTENTION: Mapping[str, Ignored] = {
    **COMMON_IGNORED,
    **dict.fromkeys(("attn_impl", "attn_pdrop", "attn_uses_sequence_id"), Ignored("how it was trained")),
    "alibi": Ignored("learned positions are not built", allowed=(True,)),
    "attn_type": Ignored("every head has keys and values", allowed=("multihead_attention",)),
    "clip_qkv": Ignored("clipped projections are not built", allowed=(None,)),
    "prefix_lm": Ignored("tokens see earlier ones only", allowed=(False,)),
    "qk_ln": Ignored("queries and keys are not normalised", allowed=(False,)),
}


class MptForCausalLM(AlibiDecoder):
    """A `Model`."""

    WEIGHTS = (
        Rule("embed.table", "transformer.wte.weight"),
        Rule("layers.*.attention_norm.scale", f"{LAYER}.norm_1.weight"),
        *(
            Rule(
                f"layers.*.attention.{name}.weight", f"{LAYER}.attn.Wqkv.weight", chain(part(index, 3), repeat_kv_heads)
            )
            for index, name in enumerate("qkv")
        ),
        Rule("layers.*.attention.o.weight", f"{LAYER}.attn.out_proj.weight"),
        Rule("layers.*.mlp_norm.scale", f"{LAYER}.norm_2.weight"),
        Rule("layers.*.mlp.up.weight", f"{LAYER}.ffn.up_proj.weight"),
        Rule("layers.*.mlp.down.weight", f"{LAYER}.ffn.down_proj.weight"),
        Rule("norm.scale", "transformer.norm_f.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            ("resid_pdrop", "emb_pdrop", "embedding_fraction", "init_config", "init_device", "verbose"),
            Ignored("only used in training"),
        ),
        "auto_map": Ignored("code of the repository, which is never run"),
        "tokenizer_name": Ignored("a note about the file, not about the model"),
        "learned_pos_emb": Ignored("there are none beside ALiBi"),
        "expansion_ratio": Ignored("the feed-forward is four times as wide", allowed=(4,)),
        "logit_scale": Ignored("scaled logits are not built", allowed=(None,)),
        "no_bias": Ignored("biases are not built", allowed=(True,)),
        "norm_type": Ignored("all norms are layer norms", allowed=("low_precision_layernorm",)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> AlibiConfig:
        hidden_size, num_heads = reader.size("d_model"), reader.size("n_heads")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: n_heads={num_heads} must divide d_model={hidden_size}")
        head_dim = hidden_size // num_heads
        attention = reader.section("attn_config", ignored=ATTENTION) or ConfigReader({})
        return AlibiConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=4 * hidden_size,
            num_layers=reader.size("n_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_position_embeddings=reader.size("max_seq_len"),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            norm_epsilon=reader.optional("layer_norm_epsilon", 1e-5, float),
            activation="gelu",
            bias=False,
            scale=attention.nullable("softmax_scale", None, float) or head_dim**-0.5,
            slopes=mpt_slopes(num_heads, steepest=attention.optional("alibi_bias_max", 8.0, float)),
            embedding_norm=False,
        )
