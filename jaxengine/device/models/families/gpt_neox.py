"""GPT-NeoX (Pythia): attention and feed-forward side by side, of each head a quarter turns, fused projections by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxengine.device.layers.block import ParallelBlock
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import Norm
from jaxengine.device.layers.self_attention import SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder, half_split_rotary, layer_norm
from jaxengine.device.weights.rules import Ignore, Rule, of_kv_groups

LAYER = "[gpt_neox.]layers.*"


@dataclass(frozen=True, kw_only=True)
class GPTNeoXConfig(RotaryDecoderConfig):
    """`parallel`: attention and feed-forward see the same residual stream, each behind a norm of its own."""

    parallel: bool


class GPTNeoXForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = half_split_rotary(
        (
            Rule("embed.table", "[gpt_neox.]embed_in.weight"),
            Rule("layers.*.attention_norm.scale", f"{LAYER}.input_layernorm.weight"),
            Rule("layers.*.attention_norm.bias", f"{LAYER}.input_layernorm.bias"),
            *(
                Rule(
                    f"layers.*.attention.{name}.{kind}",
                    f"{LAYER}.attention.query_key_value.{kind}",
                    of_kv_groups(name),
                )
                for kind in ("weight", "bias")
                for name in "qkv"
            ),
            Rule("layers.*.attention.o.weight", f"{LAYER}.attention.dense.weight"),
            Rule("layers.*.attention.o.bias", f"{LAYER}.attention.dense.bias"),
            Rule("layers.*.mlp_norm.scale", f"{LAYER}.post_attention_layernorm.weight"),
            Rule("layers.*.mlp_norm.bias", f"{LAYER}.post_attention_layernorm.bias"),
            Rule("layers.*.mlp.up.weight", f"{LAYER}.mlp.dense_h_to_4h.weight"),
            Rule("layers.*.mlp.up.bias", f"{LAYER}.mlp.dense_h_to_4h.bias"),
            Rule("layers.*.mlp.down.weight", f"{LAYER}.mlp.dense_4h_to_h.weight"),
            Rule("layers.*.mlp.down.bias", f"{LAYER}.mlp.dense_4h_to_h.bias"),
            Rule("norm.scale", "[gpt_neox.]final_layer_norm.weight"),
            Rule("norm.bias", "[gpt_neox.]final_layer_norm.bias"),
            Rule("head.table", "embed_out.weight", absent_if="tie_word_embeddings"),
            Ignore(f"{LAYER}.attention.bias", "the causal mask, which attention knows"),
            Ignore(f"{LAYER}.attention.masked_bias", "the value of masked scores, which attention knows"),
            Ignore(f"{LAYER}.attention.rotary_emb.inv_freq", "frequencies are computed from config.json"),
        )
    )
    FEED_FORWARD = MLP
    IGNORED: ClassVar[Mapping[str, Ignored]] = dict.fromkeys(
        ("hidden_dropout", "classifier_dropout"), Ignored("only used in training")
    )
    config: GPTNeoXConfig

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GPTNeoXConfig:
        shared = read_shared(
            reader,
            kv_heads=None,
            head_dim=None,
            epsilon=1e-5,
            epsilon_key="layer_norm_eps",
            activation="gelu",
            theta=reader.optional("rotary_emb_base", 10_000.0, float),
            partial_rotary=reader.optional("rotary_pct", 0.25, float),
        )
        bias = reader.optional("attention_bias", True, bool)
        return GPTNeoXConfig(
            **shared,
            windows=(None,) * shared["num_layers"],
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=True,
            parallel=reader.optional("use_parallel_residual", True, bool),
        )

    def make_norm(self) -> Norm:
        return layer_norm(self)

    def block(self, layer: int) -> Layer:
        if not self.config.parallel:
            return super().block(layer)
        attention = SelfAttention(self.attention_shape(layer), context=self.context)
        return ParallelBlock(attention, self.feed_forward(layer), norm=self.make_norm, one_norm=False)
