"""Whisper: an encoder of sounds, and a decoder whose layers attend to what it made of one (arXiv 2212.04356)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
from flax import nnx

from jaxengine.contract.media import Modality
from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.alignment import Alignment, attend_whole
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.cross_attention import CrossAttention, CrossKeys, CrossShape
from jaxengine.device.layers.embedding import LearnedPositions
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.linear import project
from jaxengine.device.layers.mlp import MLP
from jaxengine.device.layers.norm import LayerNorm
from jaxengine.device.layers.self_attention import AttentionShape, SelfAttention
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import MediaTraits
from jaxengine.device.models.shared.seeing import Seeing, of_tower
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.whisper import EPSILON, WhisperTower, WhisperTowerConfig, read_encoder
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError
from pallas_kernels import AdapterRows
from pallas_kernels.dispatch import AUTO

LAYER = "[model.]decoder.layers.*"


@dataclass(frozen=True, kw_only=True)
class CrossedTowerConfig(WhisperTowerConfig):
    """Of an encoder that writes keys and values for a decoder's layers."""

    crossed: CrossShape


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(DecoderConfig):
    """The decoder's; `tower` is the encoder's, and what of it the layers are `crossed` with."""

    activation: str
    crossed: CrossShape
    alignment: Alignment | None = None


class CrossedTower(WhisperTower):
    """An encoder whose end is what each layer of the decoder reads of it."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *WhisperTower.WEIGHTS,
        *(
            Rule(f"crossed.*.{name}", f"{LAYER}.encoder_attn.{theirs}")
            for name, theirs in (
                ("k.weight", "k_proj.weight"),
                ("v.weight", "v_proj.weight"),
                ("v.bias", "v_proj.bias"),
            )
        ),
    )
    config: CrossedTowerConfig

    def __init__(self, config: CrossedTowerConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.crossed = nnx.List([CrossKeys(config.crossed, context=context) for _ in range(config.crossed.num_layers)])

    def write(
        self, pool: jax.Array, x: jax.Array, tapped: Sequence[jax.Array], step: TowerStep, targets: jax.Array
    ) -> jax.Array:
        made = self.embeddings(x, tapped, step)[: len(targets)]
        for layer, keys in enumerate(self.crossed):
            pool = keys.write(made, pool, targets, layer=layer, backend=AUTO)
        return pool


class WhisperLayer(nnx.Module):
    """Attention to the text before, attention to the sound, and a feed-forward, each behind a norm."""

    def __init__(self, config: WhisperConfig, context: ModelContext) -> None:
        def norm() -> LayerNorm:
            return LayerNorm(config.hidden_size, epsilon=EPSILON, affine=True, context=context)

        shape = AttentionShape(
            width=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            qkv_bias=True,
            key_bias=False,
            output_bias=True,
        )
        self.attention = SelfAttention(shape, context=context)
        self.cross = CrossAttention(config.crossed, context=context)
        self.mlp = MLP(config.hidden_size, config.mlp_size, activation=config.activation, bias=True, context=context)
        self.attention_norm, self.cross_norm, self.mlp_norm = norm(), norm(), norm()

    @property
    def keeps(self) -> Keeps:
        """Keys and values of the text."""
        return self.attention.keeps

    def __call__(self, x: jax.Array, cache: Cache, step: Step) -> tuple[jax.Array, Cache]:
        mixed, cache = self.attention(self.attention_norm(x), cache, step)
        x = x + mixed
        heard, cache = self.cross(self.cross_norm(x), cache, step)
        x = x + heard
        return x + self.mlp(self.mlp_norm(x), step), cache

    def heard(
        self, x: jax.Array, crossed: jax.Array, table: jax.Array, layer: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What it gives of one text that is there whole, `x [M, E]`, of the sound in these pages, and how much each head attends
        to that, as in `CrossAttention.heard`."""
        attention = self.attention
        projected = project(self.attention_norm(x), None, attention.q, attention.k, attention.v)
        queries, keys, values = (of.reshape(len(x), -1, attention.shape.head_dim) for of in projected)
        mixed, _ = attend_whole(
            queries, keys, values, causal=True, scale=attention.shape.scale, precision=attention.context.precision
        )
        x = x + attention.o(mixed.reshape(len(x), -1), None)
        attended, weights = self.cross.heard(self.cross_norm(x), crossed, table, layer)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x), None), weights


class WhisperForConditionalGeneration(Seeing):
    """A `Model`."""

    TOWER = CrossedTower
    MODALITIES = (Modality.AUDIO,)
    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[model.]decoder.embed_tokens.weight"),
        Rule("positions.table", "[model.]decoder.embed_positions.weight"),
        *(
            Rule(f"layers.*.{ours}.{kind}", f"{LAYER}.{theirs}.{kind}")
            for ours, theirs in (
                ("attention.q", "self_attn.q_proj"),
                ("attention.k", "self_attn.k_proj"),
                ("attention.v", "self_attn.v_proj"),
                ("attention.o", "self_attn.out_proj"),
                ("cross.q", "encoder_attn.q_proj"),
                ("cross.o", "encoder_attn.out_proj"),
                ("mlp.up", "fc1"),
                ("mlp.down", "fc2"),
            )
            for kind in ("weight", "bias")
            if (ours, kind) != ("attention.k", "bias")
        ),
        *(
            Rule(f"{ours}.{name}", f"{theirs}.{kind}")
            for ours, theirs in (
                ("layers.*.attention_norm", f"{LAYER}.self_attn_layer_norm"),
                ("layers.*.cross_norm", f"{LAYER}.encoder_attn_layer_norm"),
                ("layers.*.mlp_norm", f"{LAYER}.final_layer_norm"),
                ("norm", "[model.]decoder.layer_norm"),
            )
            for name, kind in (("scale", "weight"), ("bias", "bias"))
        ),
        Rule("head.table", "proj_out.weight", absent_if="tie_word_embeddings"),
        *map(of_tower, CrossedTower.WEIGHTS),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **CrossedTower.IGNORED,
        **dict.fromkeys(
            (
                *("dropout", "attention_dropout", "activation_dropout", "decoder_layerdrop", "init_std"),
                *("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"),
                *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
            ),
            Ignored("only used in training"),
        ),
        **dict.fromkeys(("use_weighted_layer_sum", "classifier_proj_size"), Ignored("for classification heads")),
        "is_encoder_decoder": Ignored("it is one"),
        "forced_decoder_ids": Ignored("requests say what a text begins with"),
        "num_hidden_layers": Ignored("another name of encoder_layers"),
    }

    def __init__(self, config: WhisperConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.positions = LearnedPositions(config.max_position_embeddings, config.hidden_size, offset=0, context=context)
        self.layers = nnx.List([WhisperLayer(config, context) for _ in range(config.num_layers)])
        self.norm = LayerNorm(config.hidden_size, epsilon=EPSILON, affine=True, context=context)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> WhisperConfig:
        width, heads = reader.size("d_model"), reader.size("decoder_attention_heads")
        if width % heads:
            raise ConfigError(f"config.json: decoder_attention_heads={heads} must divide d_model={width}")
        if reader.optional("scale_embedding", False, bool):
            raise ConfigError("config.json: scale_embedding=true is not built for Whisper, no published model has it")
        encoder = read_encoder(reader)
        crossed = CrossShape(
            width=width,
            num_heads=heads,
            head_dim=width // heads,
            num_layers=reader.size("decoder_layers"),
            places=encoder.positions,
        )
        return WhisperConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=width,
            mlp_size=reader.size("decoder_ffn_dim"),
            num_layers=reader.size("decoder_layers"),
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=width // heads,
            max_position_embeddings=reader.optional_size("max_target_positions", 448),
            tie_word_embeddings=reader.optional("tie_word_embeddings", True, bool),
            dtype=read_stored_dtype(reader),
            activation=reader.choice("activation_function", "gelu", ACTIVATIONS),
            crossed=crossed,
            alignment=read_alignment(reader, num_layers=crossed.num_layers, num_heads=heads),
            tower=CrossedTowerConfig(**vars(encoder), crossed=crossed),
        )

    @property
    def media(self) -> MediaTraits | None:
        traits = super().media
        assert isinstance(self.config, WhisperConfig)
        config = self.config
        return None if traits is None else replace(traits, crossed=config.crossed, alignment=config.alignment)

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        return self.embed(tokens, adapters) + self.positions(positions), Shared()

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


def read_alignment(reader: ConfigReader, *, num_layers: int, num_heads: int) -> Alignment | None:
    """The heads that tell when words are said: `alignment_heads`, which checkpoints have in generation_config.json."""
    width, given = reader.optional_size("median_filter_width", 7), reader.raw("alignment_heads")
    if width % 2 == 0:
        raise ConfigError(f"config.json: median_filter_width must be odd, got {width}")
    if not given:
        return None
    limits = (num_layers, num_heads)
    pairs = [tuple(pair) for pair in given if isinstance(pair, Sequence)] if isinstance(given, Sequence) else []
    if len(pairs) < len(given) or any(
        len(pair) != 2 or not all(isinstance(at, int) and 0 <= at < most for at, most in zip(pair, limits, strict=True))
        for pair in pairs
    ):
        raise ConfigError(
            f"alignment_heads must be pairs of a layer below {num_layers} and a head below {num_heads}, got {given!r}"
        )
    return Alignment(heads=tuple(pairs), width=width)  # type: ignore[arg-type]
