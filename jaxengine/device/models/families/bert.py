"""BERT and what has its layers: MiniLM, E5, BGE, GTE of the first generation, RoBERTa and XLM-RoBERTa, ColBERT, BGE-M3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import Purpose, TokenHeads
from jaxengine.device.models.shared.bert import IGNORED_BY_BERT, bert_weights, read_bert
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig, classifier_behind
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError


class BertModel(Encoder):
    """`type_vocab_size` kinds of texts; a classifier of rows stands behind the pooler of next sentences."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *bert_weights("bert"),
        Ignore("cls.**", "for masked words and next sentences"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED_BY_BERT

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        return EncoderConfig(**read_bert(reader), text_kinds=reader.optional_size("type_vocab_size", 2))

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """A tanh between, of rows; one matrix of tokens."""
        shapes = classifier_behind(
            config, num_labels, inner="[bert.]pooler.dense", activation="tanh", outer="classifier"
        )
        return (shapes if purpose is Purpose.CLASSIFY else shapes[1:]), 1


class RobertaModel(Encoder):
    """RoBERTa, XLM-RoBERTa, CamemBERT: positions begin behind the number of the token of padding."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (*bert_weights("roberta"), Ignore("lm_head.**", "for masked words"))
    IGNORED: ClassVar[Mapping[str, Ignored]] = IGNORED_BY_BERT

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        return EncoderConfig(**read_roberta(reader))

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """A tanh between, of rows; one matrix of tokens."""
        inner, outer = classifier_behind(
            config, num_labels, inner="classifier.dense", activation="tanh", outer="classifier.out_proj"
        )
        return ((inner, outer), 1) if purpose is Purpose.CLASSIFY else ((replace(outer, source="classifier"),), 1)


@dataclass(frozen=True, kw_only=True)
class ColbertConfig(EncoderConfig):
    """`token_size` numbers are a token's vector."""

    token_size: int


class ColbertModel(BertModel):
    """ColBERT's own checkpoints (`HF_ColBERT`): BERT and a projection of each token, for late interaction."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ColbertConfig:
        sizes = [reader.nullable_size(key, None) for key in ("colbert_dim", "dim", "projection_dim")]
        kinds = reader.optional_size("type_vocab_size", 2)
        return ColbertConfig(
            **read_bert(reader), text_kinds=kinds, token_size=next((size for size in sizes if size is not None), 128)
        )

    @classmethod
    def token_heads(cls, config: DecoderConfig) -> TokenHeads:
        assert isinstance(config, ColbertConfig)
        vector = ProjectionShape(inputs=config.hidden_size, outputs=config.token_size, source="linear")
        return TokenHeads(vector=vector, alone=True)


@dataclass(frozen=True, kw_only=True)
class BgeM3Config(EncoderConfig):
    """`first` and `last` are the tokens that its tokenizer puts around a text."""

    first: int
    last: int


class BgeM3EmbeddingModel(RobertaModel):
    """BGE-M3 with the two projections beside its weights: a vector of each token, and a weight of each (sparse embeddings)."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> BgeM3Config:
        first, last = reader.optional("bos_token_id", 0, int), reader.optional("eos_token_id", 2, int)
        return BgeM3Config(**read_roberta(reader), first=first, last=last)

    @classmethod
    def token_heads(cls, config: DecoderConfig) -> TokenHeads:
        """As FlagEmbedding has them: the first token counts for nothing, the last one has a vector and no weight."""
        assert isinstance(config, BgeM3Config)
        width = config.hidden_size
        vector = ProjectionShape(inputs=width, outputs=width, source="colbert_linear", bias=True)
        weights = ProjectionShape(inputs=width, outputs=1, source="sparse_linear", bias=True)
        return TokenHeads(vector=vector, weights=weights, first=config.first, last=config.last)


def read_roberta(reader: ConfigReader) -> dict[str, Any]:
    """The fields of RoBERTa's, whose positions begin behind the number of the token of padding."""
    padding = reader.optional("pad_token_id", 1, int)
    fields = read_bert(reader)
    longest = fields["max_position_embeddings"] - padding - 1
    if longest < 1:
        raise ConfigError(f"config.json: max_position_embeddings leaves no position behind pad_token_id={padding}")
    fields |= {"max_position_embeddings": longest, "position_offset": padding + 1}
    return fields | {"text_kinds": reader.optional_size("type_vocab_size", 1)}
