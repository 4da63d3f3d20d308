"""GPT-2: learned positions, layer norms before each block, projections stored as `[in, out]` (Conv1D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import LearnedPositions
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.weights.rules import Ignore, Rule, chain, of_kv_groups, part, transpose
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows


@dataclass(frozen=True, kw_only=True)
class GPT2Config(DecoderConfig):
    """`scale_by_head` divides scores by the square root of the head size, `scale_by_layer` by the layer's number from 1."""

    layer_norm_epsilon: float
    activation: str
    scale_by_head: bool
    scale_by_layer: bool
    qkv_bias: bool = True

    def scale(self, layer: int) -> float:
        """What the scores of `layer` are multiplied by."""
        scale = self.head_dim**-0.5 if self.scale_by_head else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale


class GPT2LMHeadModel(Decoder):
    """A `Model`. The published files leave out the prefix `transformer.`, newer ones have it."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[transformer.]wte.weight"),
        Rule("positions.table", "[transformer.]wpe.weight"),
        Rule("layers.*.attention_norm.scale", "[transformer.]h.*.ln_1.weight"),
        Rule("layers.*.attention_norm.bias", "[transformer.]h.*.ln_1.bias"),
        Rule("layers.*.attention.q.weight", "[transformer.]h.*.attn.c_attn.weight", chain(transpose, part(0, 3))),
        Rule("layers.*.attention.k.weight", "[transformer.]h.*.attn.c_attn.weight", chain(transpose, part(1, 3))),
        Rule("layers.*.attention.v.weight", "[transformer.]h.*.attn.c_attn.weight", chain(transpose, part(2, 3))),
        Rule("layers.*.attention.q.bias", "[transformer.]h.*.attn.c_attn.bias", part(0, 3)),
        Rule("layers.*.attention.k.bias", "[transformer.]h.*.attn.c_attn.bias", part(1, 3)),
        Rule("layers.*.attention.v.bias", "[transformer.]h.*.attn.c_attn.bias", part(2, 3)),
        Rule("layers.*.attention.o.weight", "[transformer.]h.*.attn.c_proj.weight", transpose),
        Rule("layers.*.attention.o.bias", "[transformer.]h.*.attn.c_proj.bias"),
        Rule("layers.*.mlp_norm.scale", "[transformer.]h.*.ln_2.weight"),
        Rule("layers.*.mlp_norm.bias", "[transformer.]h.*.ln_2.bias"),
        Rule("layers.*.mlp.up.weight", "[transformer.]h.*.mlp.c_fc.weight", transpose),
        Rule("layers.*.mlp.up.bias", "[transformer.]h.*.mlp.c_fc.bias"),
        Rule("layers.*.mlp.down.weight", "[transformer.]h.*.mlp.c_proj.weight", transpose),
        Rule("layers.*.mlp.down.bias", "[transformer.]h.*.mlp.c_proj.bias"),
        Rule("norm.scale", "[transformer.]ln_f.weight"),
        Rule("norm.bias", "[transformer.]ln_f.bias"),
        Rule("head.table", "lm_head.weight", absent_if="tie_word_embeddings"),
        Ignore("[transformer.]h.*.attn.bias", "the causal mask, which attention knows"),
        Ignore("[transformer.]h.*.attn.masked_bias", "the value of masked scores, which attention knows"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), Ignored("only used in training")),
        **dict.fromkeys(
            (
                "summary_activation",
                "summary_first_dropout",
                "summary_proj_to_labels",
                "summary_type",
                "summary_use_proj",
            ),
            Ignored("for classification heads"),
        ),
        "n_ctx": Ignored("an older name of n_positions"),
        "reorder_and_upcast_attn": Ignored("scores are always computed in float32"),
    }

    def __init__(self, config: GPT2Config, context: ModelContext) -> None:
        super().__init__(config, context)
        width = config.hidden_size

        def norm() -> LayerNorm:
            return LayerNorm(width, epsilon=config.layer_norm_epsilon, affine=True, context=context)

        def layer(number: int) -> Block:
            shape = AttentionShape(
                width=width,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                qkv_bias=config.qkv_bias,
                output_bias=True,
                scale=config.scale(number),
                window=config.windows[number] if config.windows else None,
            )
            mlp = MLP(width, config.mlp_size, activation=config.activation, bias=True, context=context)
            return Block(SelfAttention(shape, context=context), mlp, norm=norm)

        self.positions = LearnedPositions(config.max_position_embeddings, width, offset=0, context=context)
        self.layers = nnx.List([layer(number) for number in range(config.num_layers)])
        self.norm = norm()

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GPT2Config:
        hidden_size, num_heads = reader.size("n_embd"), reader.size("n_head")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: n_head={num_heads} must divide n_embd={hidden_size}")
        return GPT2Config(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.nullable_size("n_inner", None) or 4 * hidden_size,
            num_layers=reader.size("n_layer"),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            max_position_embeddings=reader.size("n_positions"),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            layer_norm_epsilon=reader.optional("layer_norm_epsilon", 1e-5, float),
            activation=reader.choice("activation_function", "gelu_new", ACTIVATIONS),
            scale_by_head=reader.optional("scale_attn_weights", True, bool),
            scale_by_layer=reader.optional("scale_attn_by_inverse_layer_idx", False, bool),
        )

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters) + self.positions(positions), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


class GPTBigCodeForCausalLM(GPT2LMHeadModel):
    """StarCoder, SantaCoder: GPT-2 whose heads share one KV head, with matrices as `[out, in]`."""

    WEIGHTS = (
        *(
            replace(row, transform=of_kv_groups(row.target.split(".")[3]) if ".c_attn." in row.source else None)
            for row in GPT2LMHeadModel.WEIGHTS
            if isinstance(row, Rule)
        ),
        *(row for row in GPT2LMHeadModel.WEIGHTS if isinstance(row, Ignore)),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **GPT2LMHeadModel.IGNORED,
        **dict.fromkeys(
            ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
            Ignored("scores are always computed in float32"),
        ),
        **dict.fromkeys(
            (
                "inference_runner",
                "max_batch_size",
                "max_sequence_length",
                "pad_key_length",
                "pre_allocate_kv_cache",
                "validate_runner_input",
            ),
            Ignored("how transformers computes, not what"),
        ),
        "num_key_value_heads": Ignored("multi_query says it"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GPT2Config:
        plain = super().read_config(reader)
        return replace(
            plain,
            num_kv_heads=1 if reader.optional("multi_query", True, bool) else plain.num_heads,
            activation=reader.choice("activation_function", "gelu_pytorch_tanh", ACTIVATIONS),
        )
