"""The decoder that Llama and its relatives share: rotary positions, RMS norms before each block, gated feed-forward.

Many families differ in switches only (biases, norms of queries and keys, windows), so that each one's file is what it reads of
config.json and what its checkpoints call the parameters. Others say what is theirs of a block, of its attention or of the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.block import Block, FeedForward, Norms
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.mlp import MLP, GatedMLP
from jaxengine.device.layers.norm import LayerNorm, Norm, RMSNorm
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Rule, repeat_kv_heads
from pallas_kernels import AdapterRows


class RotaryDecoder(Decoder):
    """A `Model` of rotary decoder layers."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]] = {}
    NORMS: ClassVar[Norms] = Norms.PRE
    FEED_FORWARD: ClassVar[type[GatedMLP] | type[MLP]] = GatedMLP
    config: RotaryDecoderConfig

    def __init__(self, config: RotaryDecoderConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.layers = nnx.List([self.block(layer) for layer in range(config.num_layers)])
        self.norm = self.make_norm()

    def make_norm(self) -> Norm:
        """A norm of the residual stream."""
        return RMSNorm(self.config.hidden_size, epsilon=self.config.rms_norm_eps, context=self.context)

    def block(self, layer: int) -> Layer:
        """The layer of this number."""
        attends = RowAttention if self.config.whole_rows else SelfAttention
        attention = attends(self.attention_shape(layer), context=self.context)
        kind = self.block_class(layer)
        return kind(attention, self.feed_forward(layer), norm=self.make_norm, norms=self.NORMS)

    def block_class(self, layer: int) -> type[Block]:
        """Of the layer of this number."""
        return Block

    def attention_shape(self, layer: int) -> AttentionShape:
        """Of the layer of this number."""
        config = self.config
        return AttentionShape(
            width=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            scale=config.head_dim**-0.5,
            rope=0,
            window=config.windows[layer],
            norm_epsilon=config.rms_norm_eps if config.qk_norm else None,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        """What the layer of this number does with each token."""
        config = self.config
        return self.FEED_FORWARD(
            config.hidden_size,
            config.mlp_size,
            activation=config.activation,
            bias=config.mlp_bias,
            context=self.context,
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters), Shared((self.config.rope.angles(positions),))

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


def layer_norm(decoder: RotaryDecoder, *, bias: bool = True) -> LayerNorm:
    """A norm of the residual stream for families that have layer norms."""
    config = decoder.config
    return LayerNorm(config.hidden_size, epsilon=config.rms_norm_eps, affine=True, bias=bias, context=decoder.context)


def bias_rules(*projections: str) -> tuple[Rule, ...]:
    """The rows of the biases of the projections named, among `q k v o gate up down`."""
    rows = []
    for projection in projections:
        block, path = ("self_attn", "attention") if projection in ("q", "k", "v", "o") else ("mlp", "mlp")
        rows.append(
            Rule(
                f"layers.*.{path}.{projection}.bias",
                f"[model.]layers.*.{block}.{projection}_proj.bias",
                repeat_kv_heads if projection in ("k", "v") else None,
            )
        )
    return tuple(rows)


def half_split(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """The channels of each head (`[heads * H, ...]`) so that those that turn together are half a head apart."""
    assert isinstance(config, RotaryDecoderConfig)
    heads = tensor.reshape(-1, config.head_dim, *tensor.shape[1:])
    return heads[:, config.rope.order()].reshape(tensor.shape)


def half_split_rotary(rows: Sequence[Rule | Ignore]) -> tuple[Rule | Ignore, ...]:
    """A table whose queries and keys, and their norms, are loaded `half_split`: scores do not depend on the order of channels.

    For families that turn neighbours, or a part of each head.
    """
    return tuple(
        replace(row, transform=row.then(half_split)) if isinstance(row, Rule) and turns(row) else row for row in rows
    )


def turns(row: Rule) -> bool:
    """Whether it makes queries or keys, or norms of them."""
    return row.target.startswith(tuple(f"layers.*.attention.{name}." for name in ("q", "k", "q_norm", "k_norm")))


ROTARY_DECODER_WEIGHTS: tuple[Rule | Ignore, ...] = (
    Rule("embed.table", "[model.]embed_tokens.weight"),
    Rule("layers.*.attention_norm.scale", "[model.]layers.*.input_layernorm.weight"),
    Rule("layers.*.attention.q.weight", "[model.]layers.*.self_attn.q_proj.weight"),
    Rule("layers.*.attention.k.weight", "[model.]layers.*.self_attn.k_proj.weight", repeat_kv_heads),
    Rule("layers.*.attention.v.weight", "[model.]layers.*.self_attn.v_proj.weight", repeat_kv_heads),
    Rule("layers.*.attention.o.weight", "[model.]layers.*.self_attn.o_proj.weight"),
    Rule("layers.*.mlp_norm.scale", "[model.]layers.*.post_attention_layernorm.weight"),
    Rule("layers.*.mlp.gate.weight", "[model.]layers.*.mlp.gate_proj.weight"),
    Rule("layers.*.mlp.up.weight", "[model.]layers.*.mlp.up_proj.weight"),
    Rule("layers.*.mlp.down.weight", "[model.]layers.*.mlp.down_proj.weight"),
    Rule("norm.scale", "[model.]norm.weight"),
    Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
    Ignore("[model.]layers.*.self_attn.rotary_emb.inv_freq", "frequencies are computed from config.json"),
)

WITHOUT_MLP = tuple(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or ".mlp." not in row.target)
"""The table for families whose feed-forward is called otherwise."""

QK_NORMS = (
    Rule("layers.*.attention.q_norm.scale", "[model.]layers.*.self_attn.q_norm.weight"),
    Rule("layers.*.attention.k_norm.scale", "[model.]layers.*.self_attn.k_norm.weight"),
)
"""Norms of each head of queries and of keys."""

LAYER_NORM_BIASES = (
    Rule("layers.*.attention_norm.bias", "[model.]layers.*.input_layernorm.bias"),
    Rule("layers.*.mlp_norm.bias", "[model.]layers.*.post_attention_layernorm.bias"),
    Rule("norm.bias", "[model.]norm.bias"),
)
"""What layer norms have beside the scales of `ROTARY_DECODER_WEIGHTS`."""

BEFORE = ("layers.*.attention_norm.scale", "layers.*.mlp_norm.scale")
"""Norms that Llama has and OLMo 2 has not."""

POST_NORM_WEIGHTS: tuple[Rule | Ignore, ...] = (
    *(row for row in ROTARY_DECODER_WEIGHTS if not isinstance(row, Rule) or row.target not in BEFORE),
    Rule("layers.*.attention_output_norm.scale", "[model.]layers.*.post_attention_layernorm.weight"),
    Rule("layers.*.mlp_output_norm.scale", "[model.]layers.*.post_feedforward_layernorm.weight"),
)
"""The table of a rotary decoder with `Norms.POST`."""
