"""OPT: learned positions from row 2 on, layer norms before or after each block, word embeddings of a width of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block, Norms
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import LearnedPositions
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.weights.rules import Rule
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows

POSITION_OFFSET = 2
LAYER_NORM_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class OPTConfig(DecoderConfig):
    """`word_size` is the width of the word embeddings; where it is not `hidden_size` they are projected in and out."""

    word_size: int
    activation: str
    bias: bool
    affine_norms: bool
    norm_first: bool
    final_norm: bool


class OPTForCausalLM(Decoder):
    """A `Model`. Some published files leave out the prefix `model.`."""

    WEIGHTS = (
        Rule("embed.table", "[model.]decoder.embed_tokens.weight"),
        Rule("positions.table", "[model.]decoder.embed_positions.weight"),
        Rule("project_in.weight", "[model.]decoder.project_in.weight"),
        Rule("layers.*.attention_norm.scale", "[model.]decoder.layers.*.self_attn_layer_norm.weight"),
        Rule("layers.*.attention_norm.bias", "[model.]decoder.layers.*.self_attn_layer_norm.bias"),
        Rule("layers.*.attention.q.weight", "[model.]decoder.layers.*.self_attn.q_proj.weight"),
        Rule("layers.*.attention.q.bias", "[model.]decoder.layers.*.self_attn.q_proj.bias"),
        Rule("layers.*.attention.k.weight", "[model.]decoder.layers.*.self_attn.k_proj.weight"),
        Rule("layers.*.attention.k.bias", "[model.]decoder.layers.*.self_attn.k_proj.bias"),
        Rule("layers.*.attention.v.weight", "[model.]decoder.layers.*.self_attn.v_proj.weight"),
        Rule("layers.*.attention.v.bias", "[model.]decoder.layers.*.self_attn.v_proj.bias"),
        Rule("layers.*.attention.o.weight", "[model.]decoder.layers.*.self_attn.out_proj.weight"),
        Rule("layers.*.attention.o.bias", "[model.]decoder.layers.*.self_attn.out_proj.bias"),
        Rule("layers.*.mlp_norm.scale", "[model.]decoder.layers.*.final_layer_norm.weight"),
        Rule("layers.*.mlp_norm.bias", "[model.]decoder.layers.*.final_layer_norm.bias"),
        Rule("layers.*.mlp.up.weight", "[model.]decoder.layers.*.fc1.weight"),
        Rule("layers.*.mlp.up.bias", "[model.]decoder.layers.*.fc1.bias"),
        Rule("layers.*.mlp.down.weight", "[model.]decoder.layers.*.fc2.weight"),
        Rule("layers.*.mlp.down.bias", "[model.]decoder.layers.*.fc2.bias"),
        Rule("norm.scale", "[model.]decoder.final_layer_norm.weight"),
        Rule("norm.bias", "[model.]decoder.final_layer_norm.bias"),
        Rule("project_out.weight", "[model.]decoder.project_out.weight"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("activation_dropout", "dropout", "init_std", "layerdrop"), Ignored("only used in training")),
    }

    def __init__(self, config: OPTConfig, context: ModelContext) -> None:
        super().__init__(config, context, width=config.word_size)
        width, words = config.hidden_size, config.word_size

        def norm() -> LayerNorm:
            return LayerNorm(width, epsilon=LAYER_NORM_EPSILON, affine=config.affine_norms, context=context)

        def layer() -> Block:
            shape = AttentionShape(
                width=width,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                qkv_bias=config.bias,
                output_bias=config.bias,
                scale=config.head_dim**-0.5,
            )
            mlp = MLP(width, config.mlp_size, activation=config.activation, bias=config.bias, context=context)
            norms = Norms.PRE if config.norm_first else Norms.POST_SUM
            return Block(SelfAttention(shape, context=context), mlp, norm=norm, norms=norms)

        self.positions = LearnedPositions(
            config.max_position_embeddings, width, offset=POSITION_OFFSET, context=context
        )
        self.project_in = _projection(words, width, ("embed", "word_embed"), context)
        self.project_out = _projection(width, words, ("word_embed", "embed"), context)
        self.layers = nnx.List([layer() for _ in range(config.num_layers)])
        self.norm = norm() if config.final_norm else None

    @classmethod
    def read_config(cls, reader: ConfigReader) -> OPTConfig:
        hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: num_attention_heads={num_heads} must divide hidden_size={hidden_size}")
        norm_first = reader.optional("do_layer_norm_before", True, bool)
        without_final_norm = reader.optional("_remove_final_layer_norm", False, bool)
        return OPTConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.size("ffn_dim"),
            num_layers=reader.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            max_position_embeddings=reader.size("max_position_embeddings"),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            word_size=reader.nullable_size("word_embed_proj_dim", None) or hidden_size,
            activation=reader.choice("activation_function", "relu", ACTIVATIONS),
            bias=reader.optional("enable_bias", True, bool),
            affine_norms=reader.optional("layer_norm_elementwise_affine", True, bool),
            norm_first=norm_first,
            final_norm=norm_first and not without_final_norm,
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        x = self.embed(tokens, adapters)
        if self.project_in is not None:
            x = self.project_in(x, None)
        return x + self.positions(positions), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return x if self.norm is None else self.norm(x)

    def logits(self, hidden: jax.Array, adapters: AdapterRows | None = None) -> jax.Array:
        # Projected here and not in the forward pass: only the sampled rows come this far.
        if self.project_out is not None:
            hidden = self.project_out(hidden, None)
        return super().logits(hidden, adapters)


def _projection(in_size: int, out_size: int, axes: tuple[str, str], context: ModelContext) -> Linear | None:
    """Between word embeddings and the hidden size, where they differ."""
    return None if in_size == out_size else Linear(in_size, out_size, axes=axes, bias=False, context=context)
