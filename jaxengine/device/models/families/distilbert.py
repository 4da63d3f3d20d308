"""DistilBERT: BERT's layers under names of its own, and no kinds of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.models.config.decoder_config import DecoderConfig, read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.shared.encoder import Encoder, EncoderConfig, classifier_behind
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

LAYER = "[distilbert.]transformer.layer.*"
PARTS = {
    "attention.q": "attention.q_lin",
    "attention.k": "attention.k_lin",
    "attention.v": "attention.v_lin",
    "attention.o": "attention.out_lin",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
}
NORMS = {
    "embed_norm": "[distilbert.]embeddings.LayerNorm",
    "layers.*.attention_norm": f"{LAYER}.sa_layer_norm",
    "layers.*.mlp_norm": f"{LAYER}.output_layer_norm",
}


class DistilBertModel(Encoder):
    """A relu stands within a classifier of rows."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[distilbert.]embeddings.word_embeddings.weight"),
        Rule("positions.table", "[distilbert.]embeddings.position_embeddings.weight"),
        *(
            Rule(f"layers.*.{ours}.{of}", f"{LAYER}.{theirs}.{of}")
            for ours, theirs in PARTS.items()
            for of in ("weight", "bias")
        ),
        *(
            Rule(f"{ours}.{of}", f"{theirs}.{name}")
            for ours, theirs in NORMS.items()
            for of, name in (("scale", "weight"), ("bias", "bias"))
        ),
        Ignore("[distilbert.]embeddings.position_ids", "numbers from 0 on"),
        *(Ignore(f"vocab_{part}.**", "for masked words") for part in ("transform", "layer_norm", "projector")),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(("dropout", "qa_dropout", "seq_classif_dropout"), Ignored("only used in training")),
        "sinusoidal_pos_embds": Ignored("how a table was begun that is in the checkpoint"),
        "tie_weights_": Ignored("of the head for masked words"),
        "tie_word_embeddings": Ignored("of the head for masked words"),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        hidden_size, num_heads = reader.size("dim"), reader.size("n_heads")
        if hidden_size % num_heads:
            raise ConfigError(f"config.json: n_heads={num_heads} must divide dim={hidden_size}")
        return EncoderConfig(
            vocab_size=reader.size("vocab_size"),
            hidden_size=hidden_size,
            mlp_size=reader.size("hidden_dim"),
            num_layers=reader.size("n_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            max_position_embeddings=reader.size("max_position_embeddings"),
            tie_word_embeddings=True,
            whole_rows=True,
            dtype=read_stored_dtype(reader),
            epsilon=1e-12,
            activation=reader.choice("activation", "gelu", ACTIVATIONS),
        )

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """Of rows and of tokens."""
        shapes = classifier_behind(config, num_labels, inner="pre_classifier", activation="relu", outer="classifier")
        return (shapes if purpose is Purpose.CLASSIFY else shapes[1:]), 1
