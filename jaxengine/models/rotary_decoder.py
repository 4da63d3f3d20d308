"""The decoder that Llama and its relatives share: rotary positions, RMS norms before each block, gated feed-forward.

Families differ in switches only (biases, norms of queries and keys, windows), so that each family's file is what it reads from
config.json and what its checkpoints call the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxengine.layers.attention import AttentionInputs
from jaxengine.layers.context import ModelContext
from jaxengine.layers.embedding import Embedding
from jaxengine.layers.mlp import GatedMLP
from jaxengine.layers.norm import RMSNorm
from jaxengine.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.models.decoder import Decoder
from jaxengine.models.ignored import Ignored
from jaxengine.models.interface import Paged
from jaxengine.models.rotary_config import RotaryDecoderConfig
from jaxengine.weights.rules import Ignore, Rule, repeat_kv_heads


class RotaryDecoderLayer(nnx.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: RotaryDecoderConfig, *, layer: int, context: ModelContext) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, context=context)
        self.attention = SelfAttention(
            AttentionShape(
                width=config.hidden_size,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads * config.kv_repeats,
                head_dim=config.head_dim,
                qkv_bias=config.qkv_bias,
                output_bias=config.output_bias,
                scale=config.head_dim**-0.5,
                window=config.windows[layer],
                norm_epsilon=config.rms_norm_eps if config.qk_norm else None,
            ),
            context=context,
        )
        self.mlp_norm = RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, context=context)
        self.mlp = GatedMLP(
            config.hidden_size, config.mlp_size, activation=config.activation, bias=config.mlp_bias, context=context
        )

    def __call__(
        self, x: jax.Array, kv_pages: jax.Array, inputs: AttentionInputs, angles: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        attended, kv_pages = self.attention(self.attention_norm(x), angles, kv_pages, inputs)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), kv_pages


class RotaryDecoder(Decoder):
    """A `CausalLM` of rotary decoder layers."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]] = {}

    def __init__(self, config: RotaryDecoderConfig, context: ModelContext) -> None:
        self.config = config
        self.embed = Embedding(config.vocab_size, config.hidden_size, context=context)
        self.layers = nnx.List(
            [RotaryDecoderLayer(config, layer=layer, context=context) for layer in range(config.num_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, epsilon=config.rms_norm_eps, context=context)
        tied = config.tie_word_embeddings
        self.head = None if tied else Embedding(config.vocab_size, config.hidden_size, context=context)

    @property
    def cache(self) -> tuple[Paged, ...]:
        return self.config.cache

    def enter(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
        return self.embed(tokens), (self.config.rope.angles(positions),)

    def leave(self, x: jax.Array) -> jax.Array:
        return self.norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        return (self.embed if self.head is None else self.head).logits(hidden)


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
