"""MPNet: BERT's layers under names of its own, with a number for each distance added to scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from jaxengine.device.layers.block import Block, Norms
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.layers.relative_attention import BiasedAttention, DistanceShared
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

LAYER = "[mpnet.]encoder.layer.*"
PARTS = {
    "attention.q": "attention.attn.q",
    "attention.k": "attention.attn.k",
    "attention.v": "attention.attn.v",
    "attention.o": "attention.attn.o",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
NORMS = {
    "embed_norm": "[mpnet.]embeddings.LayerNorm",
    "layers.*.attention_norm": f"{LAYER}.attention.LayerNorm",
    "layers.*.mlp_norm": f"{LAYER}.output.LayerNorm",
}
"""By our names, theirs."""

PADDING, CLASSES, FARTHEST = 1, 32, 128
"""Positions begin behind the number of the token of padding. transformers reads no other classes than these."""


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(EncoderConfig):
    """The table of distances has `classes` rows."""

    classes: int


class MPNetModel(Encoder):
    """A tanh stands within a classifier of rows."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[mpnet.]embeddings.word_embeddings.weight"),
        Rule("positions.table", "[mpnet.]embeddings.position_embeddings.weight"),
        Rule("distances", "[mpnet.]encoder.relative_attention_bias.weight"),
        *matrix_rules(PARTS, LAYER),
        *norm_rules(NORMS),
        Ignore("[mpnet.]embeddings.position_ids", "numbers from 0 on"),
        *(Ignore(f"[mpnet.]pooler.dense.{of}", "for other heads") for of in ("weight", "bias")),
        Ignore("lm_head.**", "for masked words"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED_BY_BERT
    config: MPNetConfig

    def __init__(self, config: MPNetConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        self.distances: nnx.Param[jax.Array] = context.parameter(
            (config.classes, config.num_heads), ("positions", "heads")
        )

    def block(self, layer: int) -> Layer:
        longest = self.config.max_position_embeddings
        attention = BiasedAttention(self.attention_shape(layer), partial(classes_of, longest), context=self.context)
        return Block(attention, self.feed_forward(), norm=self.make_norm, norms=Norms.POST_SUM)

    def shared(self, positions: jax.Array) -> Shared:
        """The table of distances."""
        return DistanceShared(table=self.distances[...])

    @classmethod
    def read_config(cls, reader: ConfigReader) -> MPNetConfig:
        fields = read_bert(reader)
        longest = fields["max_position_embeddings"] - PADDING - 1
        classes = reader.optional_size("relative_attention_num_buckets", CLASSES)
        if longest < 1 or classes < CLASSES:
            raise ConfigError(
                f"config.json: max_position_embeddings must be above {PADDING + 1}, and relative_attention_num_buckets at "
                f"least {CLASSES}, got {fields['max_position_embeddings']} and {classes}"
            )
        fields |= {"max_position_embeddings": longest, "position_offset": PADDING + 1}
        return MPNetConfig(**fields, classes=classes)

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Of rows; one matrix of tokens."""
        if purpose is not Purpose.CLASSIFY:
            return (ProjectionShape(inputs=config.hidden_size, outputs=num_labels, source="classifier", bias=True),), 1
        shapes = classifier_behind(
            config, num_labels, inner="classifier.dense", activation="tanh", outer="classifier.out_proj"
        )
        return shapes, 1


@lru_cache
def classes_of(longest: int) -> NDArray[np.int32]:
    """The classes of the distances in a text of so many tokens, `[2 * longest - 1]`: T5's, those of later keys behind."""
    distance = np.arange(1 - longest, longest)
    side = CLASSES // 2
    near, far = side // 2, np.abs(distance)
    ratio = np.log(np.maximum(far, near).astype(np.float32) / near) / np.float32(math.log(FARTHEST / near))
    wide = np.minimum(near + (ratio * (side - near)).astype(np.int32), side - 1)
    return (np.where(far < near, far, wide) + side * (distance < 0)).astype(np.int32)
