"""EuroBERT: Llama whose tokens see their whole text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_shared
from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.shared.rotary_decoder import ROTARY_DECODER_WEIGHTS, RotaryDecoder, bias_rules
from jaxengine.device.weights.rules import Ignore, Rule

POOLINGS = {"bos": Pooling.FIRST, "mean": Pooling.MEAN, "late": Pooling.LATE}


class EuroBertModel(RotaryDecoder):
    """A classifier is a projection, its activation, and the classes."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        *ROTARY_DECODER_WEIGHTS,
        *bias_rules("q", "k", "v", "o", "gate", "up", "down"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("mask_token_id", "mask_token", "clf_pooling"), Ignored("of other heads")),
        "pretraining_tp": Ignored("slices projections as in training, which rounds differently", allowed=(None, 1)),
    }
    POOLING: ClassVar[Pooling] = Pooling.MEAN

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=None, head_dim=None, epsilon=1e-5)
        attention_bias = reader.optional("attention_bias", False, bool)
        return RotaryDecoderConfig(
            **shared | {"tie_word_embeddings": True},
            whole_rows=True,
            windows=(None,) * shared["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=reader.optional("mlp_bias", False, bool),
            pooling=POOLINGS[reader.choice("classifier_pooling", "late", POOLINGS)],
        )

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Both projections, of rows; the last one of tokens."""
        width = config.hidden_size
        inner = ProjectionShape(inputs=width, outputs=width, source="dense", bias=True, activation="gelu")
        outer = ProjectionShape(inputs=width, outputs=num_labels, source="classifier", bias=True)
        return ((inner, outer), 2) if purpose is Purpose.CLASSIFY else ((outer,), 1)
