"""ALBERT: BERT's layer with one set of weights for all layers, over embeddings of a width of their own (arXiv:1909.11942)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.layers.stack import Layer
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.shared.bert import IGNORED_BY_BERT, norm_rules, read_bert
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig, classifier_behind
from jaxengine.device.weights.rules import Ignore, Rule

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
MATRICES = {
    "project_in": "encoder.embedding_hidden_mapping_in",
    "layers.0.attention.q": f"{LAYER}.attention.query",
    "layers.0.attention.k": f"{LAYER}.attention.key",
    "layers.0.attention.v": f"{LAYER}.attention.value",
    "layers.0.attention.o": f"{LAYER}.attention.dense",
    "layers.0.mlp.up": f"{LAYER}.ffn",
    "layers.0.mlp.down": f"{LAYER}.ffn_output",
}
NORMS = {
    "embed_norm": "embeddings.LayerNorm",
    "layers.0.attention_norm": f"{LAYER}.attention.LayerNorm",
    "layers.0.mlp_norm": f"{LAYER}.full_layer_layer_norm",
}
"""By our names, theirs."""

BEFORE = "[albert.]"


class AlbertModel(Encoder):
    """Checkpoints with one group of one layer, as all that were published; a tanh stands within a classifier of rows."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", f"{BEFORE}embeddings.word_embeddings.weight"),
        Rule("positions.table", f"{BEFORE}embeddings.position_embeddings.weight"),
        Rule("kinds.table", f"{BEFORE}embeddings.token_type_embeddings.weight"),
        *(
            Rule(f"{ours}.{of}", f"{BEFORE}{theirs}.{of}")
            for ours, theirs in MATRICES.items()
            for of in ("weight", "bias")
        ),
        *norm_rules(NORMS, prefix=BEFORE),
        Ignore(f"{BEFORE}embeddings.position_ids", "numbers from 0 on"),
        *(Ignore(f"{BEFORE}pooler.{of}", "for the order of sentences and for classes") for of in ("weight", "bias")),
        Ignore("predictions.**", "for masked words"),
        Ignore("sop_classifier.**", "for the order of sentences"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **IGNORED_BY_BERT,
        "classifier_dropout_prob": Ignored("only used in training"),
        "num_hidden_groups": Ignored("how many sets of weights layers have", allowed=(1,)),
        "inner_group_num": Ignored("how many layers a set of weights has", allowed=(1,)),
        **dict.fromkeys(
            ("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
            Ignored("read by no implementation"),
        ),
    }

    def make_layers(self) -> list[Layer]:
        return [self.block(0)] * self.config.num_layers

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        return EncoderConfig(
            **read_bert(reader, activation="gelu_new"),
            text_kinds=reader.optional_size("type_vocab_size", 2),
            embedding_size=reader.optional_size("embedding_size", 128),
        )

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Of rows, behind the pooler; one matrix of tokens."""
        shapes = classifier_behind(config, num_labels, inner="[albert.]pooler", activation="tanh", outer="classifier")
        return (shapes if purpose is Purpose.CLASSIFY else shapes[1:]), 1
