"""ModernBERT: rotary positions, norms before each block, gated feed-forward, and windows in most layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import FeedForward
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.mlp import GatedMLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.layers.rotary import Rope
from jaxengine.device.layers.row_attention import RowAttention
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import read_layer_types
from jaxengine.device.models.interface import Purpose, TokenHeads
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig
from jaxengine.device.weights.rules import Ignore, Rule, part
from jaxengine.errors import ConfigError

POOLINGS = {"cls": Pooling.FIRST, "mean": Pooling.MEAN}
EVERYTHING, WINDOW = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """`sides` are how many tokens on each side a token sees by layer, None being all; `ropes` are of these and of the others."""

    sides: tuple[int | None, ...]
    ropes: tuple[Rope, Rope]


class ModernBertBlock(nnx.Module):
    """Attention and feed-forward, a norm before each; the first layer's attention has none, as the embeddings end in one."""

    def __init__(
        self, attention: RowAttention, mlp: FeedForward, *, first: LayerNorm | None, second: LayerNorm
    ) -> None:
        self.attention, self.mlp = attention, mlp
        self.attention_norm, self.mlp_norm = first, second

    @property
    def keeps(self) -> Keeps:
        """Nothing."""
        return ()

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        seen = x if self.attention_norm is None else self.attention_norm(x)
        mixed, cache = self.attention(seen, cache, step)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x), step), cache


class ModernBertModel(Encoder):
    """A classifier's head is a projection, its activation and a norm, and then the classes; all of it is of tokens too."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[model.]embeddings.tok_embeddings.weight"),
        Rule("embed_norm.scale", "[model.]embeddings.norm.weight"),
        Rule("layers.*.attention_norm.scale", "[model.]layers.*.attn_norm.weight"),
        *(
            Rule(f"layers.*.attention.{name}.weight", "[model.]layers.*.attn.Wqkv.weight", part(at, 3))
            for at, name in enumerate("qkv")
        ),
        Rule("layers.*.attention.o.weight", "[model.]layers.*.attn.Wo.weight"),
        Rule("layers.*.mlp_norm.scale", "[model.]layers.*.mlp_norm.weight"),
        Rule("layers.*.mlp.gate.weight", "[model.]layers.*.mlp.Wi.weight", part(0, 2)),
        Rule("layers.*.mlp.up.weight", "[model.]layers.*.mlp.Wi.weight", part(1, 2)),
        Rule("layers.*.mlp.down.weight", "[model.]layers.*.mlp.Wo.weight"),
        Rule("norm.scale", "[model.]final_norm.weight"),
        Ignore("head.dense.weight", "of a head that is not asked for"),
        Ignore("head.norm.weight", "of a head that is not asked for"),
        Ignore("decoder.**", "for masked words"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("embedding_dropout", "mlp_dropout", "classifier_dropout", "initializer_cutoff_factor"),
                *("sparse_prediction", "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad"),
                *("deterministic_flash_attn", "gradient_checkpointing"),
            ),
            Ignored("only used in training, or how transformers computes"),
        ),
        **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), Ignored("biases of layers", allowed=(False,))),
        "classifier_bias": Ignored("a bias of a classifier's first projection", allowed=(False,)),
        "classifier_activation": Ignored("what follows a classifier's first projection", allowed=("gelu",)),
        **dict.fromkeys(
            ("cls_token_id", "decoder_bias", "tie_word_embeddings"), Ignored("of the head for masked words")
        ),
        **dict.fromkeys(
            ("layer_norm_eps", "position_embedding_type"), Ignored("an older note; norm_eps and rotary positions hold")
        ),
    }
    config: ModernBertConfig

    def __init__(self, config: ModernBertConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.norm = self.make_norm()

    def make_norm(self, width: int | None = None) -> LayerNorm:
        """Without shifts."""
        width = width or self.config.hidden_size
        return LayerNorm(width, epsilon=self.config.epsilon, affine=True, bias=False, context=self.context)

    def block(self, layer: int) -> Layer:
        attention = RowAttention(self.attention_shape(layer), context=self.context)
        first = self.make_norm() if layer else None
        return ModernBertBlock(attention, self.feed_forward(), first=first, second=self.make_norm())

    def attention_shape(self, layer: int) -> AttentionShape:
        config = self.config
        return AttentionShape(
            width=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            rope=0 if config.sides[layer] is None else 1,
            window=config.sides[layer],
        )

    def feed_forward(self) -> FeedForward:
        config = self.config
        return GatedMLP(
            config.hidden_size, config.mlp_size, activation=config.activation, bias=False, context=self.context
        )

    def shared(self, positions: jax.Array) -> Shared:
        return Shared(tuple(rope.angles(positions) for rope in self.config.ropes))

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ModernBertConfig:
        hidden_size, num_heads, num_layers = (
            reader.size(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        if hidden_size % num_heads or hidden_size // num_heads % 2:
            raise ConfigError(
                f"config.json: num_attention_heads={num_heads} must divide hidden_size={hidden_size} evenly"
            )
        period = reader.optional_size("global_attn_every_n_layers", 3)
        types = read_layer_types(reader, num_layers) or tuple(
            WINDOW if layer % period else EVERYTHING for layer in range(num_layers)
        )
        side = reader.optional_size("local_attention", 128) // 2
        return ModernBertConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.size("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            max_position_embeddings=reader.size("max_position_embeddings"),
            tie_word_embeddings=True,
            whole_rows=True,
            positions=False,
            dtype=read_stored_dtype(reader),
            epsilon=reader.optional("norm_eps", 1e-5, float),
            activation=reader.choice("hidden_activation", "gelu", ACTIVATIONS),
            sides=tuple(side if kind == WINDOW else None for kind in types),
            ropes=_ropes(reader, hidden_size // num_heads),
            pooling=POOLINGS[reader.choice("classifier_pooling", "cls", POOLINGS)],
        )

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Of rows and of tokens alike."""
        assert isinstance(config, ModernBertConfig)
        width = config.hidden_size
        inner = ProjectionShape(
            inputs=width,
            outputs=width,
            source="head.dense",
            activation="gelu",
            norm="head.norm",
            epsilon=config.epsilon,
        )
        return (inner, ProjectionShape(inputs=width, outputs=num_labels, source="classifier", bias=True)), 2


class ColbertModernBertModel(ModernBertModel):
    """Of each token a vector and of the text none; the projection is a module of sentence-transformers' files."""

    @classmethod
    def token_heads(cls, config: DecoderConfig) -> TokenHeads:
        return TokenHeads(alone=True)


def _ropes(reader: ConfigReader, head_dim: int) -> tuple[Rope, Rope]:
    """How positions turn layers that see everything, and others: `rope_parameters` by kind, or two bases."""
    bases = {EVERYTHING: reader.optional("global_rope_theta", 160000.0, float), WINDOW: 10000.0}
    bases[WINDOW] = reader.nullable("local_rope_theta", 10000.0, float) or bases[EVERYTHING]
    parameters: Any = reader.raw("rope_parameters") or {}
    for kind, base in bases.items():
        given = parameters.get(kind) or {}
        if given.get("rope_type", "default") != "default":
            raise ConfigError(f"config.json: rope_parameters of {kind} must be of the default type, got {given!r}")
        bases[kind] = float(given.get("rope_theta", base))
    full, window = (Rope(head_dim=head_dim, theta=bases[kind]) for kind in (EVERYTHING, WINDOW))
    return full, window
