"""DeBERTa v2 and v3: BERT without positions in its embeddings, whose attention has terms of distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.block import Block, Norms
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import LearnedPositions
from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.layers.relative_attention import DisentangledAttention, DistanceShared
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.shared.bert import IGNORED_BY_BERT, matrix_rules, norm_rules, read_bert
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig, classifier_behind
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

LAYER = "[deberta.]encoder.layer.*"
PARTS = {
    "attention.q": "attention.self.query_proj",
    "attention.k": "attention.self.key_proj",
    "attention.v": "attention.self.value_proj",
    "attention.distance_k": "attention.self.pos_key_proj",
    "attention.distance_q": "attention.self.pos_query_proj",
    "attention.o": "attention.output.dense",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
NORMS = {
    "embed_norm": "[deberta.]embeddings.LayerNorm",
    "distance_norm": "[deberta.]encoder.LayerNorm",
    "layers.*.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "layers.*.mlp_norm": f"{LAYER}.output.LayerNorm",
}
"""By our names, theirs."""


@dataclass(frozen=True, kw_only=True)
class DebertaV2Config(EncoderConfig):
    """Distances up to `farthest` have a class each, or with `buckets` so many on each side, wider the farther.

    A score has a term of the query and the distance, of the key and the distance, or both. With `shared_projections` tokens'
    make the keys and queries of distances. `distance_norm`: their table goes through a norm. `activation` of a classifier is
    `classifier_activation`.
    """

    farthest: int
    buckets: int
    of_queries: bool
    of_keys: bool
    shared_projections: bool
    distance_norm: bool
    classifier_activation: str

    @property
    def span(self) -> int:
        """Classes on each side."""
        return self.buckets or self.farthest


class DebertaV2Model(Encoder):
    """A classifier of rows stands behind a projection of the first token."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[deberta.]embeddings.word_embeddings.weight"),
        Rule("positions.table", "[deberta.]embeddings.position_embeddings.weight"),
        Rule("kinds.table", "[deberta.]embeddings.token_type_embeddings.weight"),
        Rule("distances.table", "[deberta.]encoder.rel_embeddings.weight"),
        *matrix_rules(PARTS, LAYER),
        *norm_rules(NORMS),
        *(Ignore(f"pooler.dense.{of}", "for classes of rows") for of in ("weight", "bias")),
        *(Ignore(f"{head}.**", "for masked words") for head in ("cls", "lm_predictions", "mask_predictions")),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **{key: value for key, value in IGNORED_BY_BERT.items() if key != "position_embedding_type"},
        **dict.fromkeys(("pooler_dropout", "pooler_hidden_size", "cls_dropout", "legacy"), Ignored("of other heads")),
        "relative_attention": Ignored("terms of distances", allowed=(True,)),
        "conv_kernel_size": Ignored("a convolution behind the first layer", allowed=(None, 0)),
        "conv_act": Ignored("of that convolution"),
        "embedding_size": Ignored("embeddings of another size", allowed=(None,)),
        "attention_head_size": Ignored("heads that are wider than their share", allowed=(None,)),
        "z_steps": Ignored("passes through the last layer in training", allowed=(0,)),
    }
    config: DebertaV2Config

    def __init__(self, config: DebertaV2Config, context: ModelContext) -> None:
        super().__init__(config, context)
        self.distances = LearnedPositions(2 * config.span, config.hidden_size, offset=0, context=context)
        self.distance_norm = self.make_norm() if config.distance_norm else None

    def block(self, layer: int) -> Layer:
        config = self.config
        attention = DisentangledAttention(
            self.attention_shape(layer),
            partial(classes_of, config.max_position_embeddings, farthest=config.farthest, buckets=config.buckets),
            of_queries=config.of_queries,
            of_keys=config.of_keys,
            shared_projections=config.shared_projections,
            context=self.context,
        )
        return Block(attention, self.feed_forward(), norm=self.make_norm, norms=Norms.POST_SUM)

    def attention_scale(self) -> float:
        """Of scores, which have up to three terms."""
        terms = 1 + self.config.of_queries + self.config.of_keys
        return float((self.config.head_dim * terms) ** -0.5)

    def shared(self, positions: jax.Array) -> Shared:
        """The table of distances."""
        table = self.distances.table[...].astype(self.context.activation_dtype)
        return DistanceShared(table=table if self.distance_norm is None else self.distance_norm(table))

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DebertaV2Config:
        fields = read_bert(reader)
        terms = reader.raw("pos_att_type") or []
        terms = [term.strip() for term in (terms.split("|") if isinstance(terms, str) else terms)]
        if not set(terms) <= {"c2p", "p2c"}:
            raise ConfigError(f"config.json: pos_att_type may have c2p and p2c, got {terms!r}")
        farthest = reader.optional("max_relative_positions", -1, int)
        norms = (reader.nullable("norm_rel_ebd", "none", str) or "none").lower().split("|")
        return DebertaV2Config(
            **fields | {"epsilon": reader.optional("layer_norm_eps", 1e-7, float)},
            text_kinds=reader.optional("type_vocab_size", 0, int),
            positions=reader.optional("position_biased_input", True, bool),
            farthest=farthest if farthest > 0 else fields["max_position_embeddings"],
            buckets=max(0, reader.optional("position_buckets", -1, int)),
            of_queries="c2p" in terms,
            of_keys="p2c" in terms,
            shared_projections=reader.optional("share_att_key", False, bool),
            distance_norm="layer_norm" in [norm.strip() for norm in norms],
            classifier_activation=reader.choice("pooler_hidden_act", "gelu", ACTIVATIONS),
        )

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """An activation between, of rows; one matrix of tokens."""
        assert isinstance(config, DebertaV2Config)
        shapes = classifier_behind(
            config, num_labels, inner="pooler.dense", activation=config.classifier_activation, outer="classifier"
        )
        return (shapes if purpose is Purpose.CLASSIFY else shapes[1:]), 1


@lru_cache
def classes_of(longest: int, *, farthest: int, buckets: int) -> NDArray[np.int32]:
    """The classes of the distances in a text of so many tokens, `[2 * longest - 1]`.

    With `buckets` near ones have one each, and then classes are wider the farther, up to `farthest`.
    """
    distance = np.arange(1 - longest, longest, dtype=np.float32)
    span = buckets or farthest
    if buckets:
        middle = np.float32(buckets // 2)
        far = np.abs(distance)
        ratio = np.log(np.maximum(far, middle) / middle) / np.log(np.float32((farthest - 1) / middle))
        distance = np.where(far <= middle, distance, (np.ceil(ratio * (middle - 1)) + middle) * np.sign(distance))
    return np.clip(distance.astype(np.int32) + span, 0, 2 * span - 1).astype(np.int32)
