"""ELECTRA's discriminators: BERT's layers, over embeddings that may have a width of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.shared.bert import IGNORED_BY_BERT, bert_weights, read_bert
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig, classifier_behind
from jaxengine.device.weights.rules import Ignore, Rule

PROJECTION = "[electra.]embeddings_project"


class ElectraModel(Encoder):
    """A gelu stands within a classifier of rows, whatever the activation of layers."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *bert_weights("electra"),
        *(Rule(f"project_in.{of}", f"{PROJECTION}.{of}") for of in ("weight", "bias")),
        Ignore("discriminator_predictions.**", "for replaced words"),
        *(Ignore(f"generator_{part}.**", "for masked words") for part in ("predictions", "lm_head")),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **IGNORED_BY_BERT,
        **dict.fromkeys(
            ("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
            Ignored("of a head for multiple choice"),
        ),
        "generator_size": Ignored("of the generator that it was trained against"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        fields = read_bert(reader)
        size = reader.optional_size("embedding_size", 128)
        return EncoderConfig(
            **fields,
            text_kinds=reader.optional_size("type_vocab_size", 2),
            embedding_size=None if size == fields["hidden_size"] else size,
        )

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Of rows two matrices; one of tokens."""
        inner, outer = classifier_behind(
            config, num_labels, inner="classifier.dense", activation="gelu", outer="classifier.out_proj"
        )
        return ((inner, outer), 1) if purpose is Purpose.CLASSIFY else ((replace(outer, source="classifier"),), 1)
