"""What BERT's relatives read of config.json alike, what they may leave unread, and rules for their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.models.config.decoder_config import read_stored_dtype
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

LAYER = "encoder.layer.*"
PARTS = {
    "attention.q": "attention.self.query",
    "attention.k": "attention.self.key",
    "attention.v": "attention.self.value",
    "attention.o": "attention.output.dense",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
NORMS = {
    "embed_norm": "embeddings.LayerNorm",
    "layers.*.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "layers.*.mlp_norm": f"{LAYER}.output.LayerNorm",
}
IGNORED_BY_BERT: Mapping[str, Ignored] = {
    **dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing"),
        Ignored("only used in training"),
    ),
    "position_embedding_type": Ignored("how positions enter", allowed=("absolute",)),
    **dict.fromkeys(
        (
            "output_past",
            "directionality",
            "pooler_type",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
        ),
        Ignored("of heads that are not built"),
    ),
    "tie_word_embeddings": Ignored("of the head for masked words"),
}


def read_bert(reader: ConfigReader, *, activation: str = "gelu") -> dict[str, Any]:
    """The fields that these families read alike; `activation` is that of a file that names none."""
    hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    if hidden_size % num_heads:
        raise ConfigError(f"config.json: num_attention_heads={num_heads} must divide hidden_size={hidden_size}")
    return {
        "vocab_size": reader.size("vocab_size"),
        "hidden_size": hidden_size,
        "mlp_size": reader.size("intermediate_size"),
        "num_layers": reader.size("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": reader.size("max_position_embeddings"),
        "tie_word_embeddings": True,
        "whole_rows": True,
        "dtype": read_stored_dtype(reader),
        "epsilon": reader.optional("layer_norm_eps", 1e-12, float),
        "activation": reader.choice("hidden_act", activation, ACTIVATIONS),
    }


def matrix_rules(names: Mapping[str, str], layer: str) -> tuple[Rule, ...]:
    """Weights and biases of each layer's matrices, by our `names` theirs below `layer`."""
    return tuple(
        Rule(f"layers.*.{ours}.{of}", f"{layer}.{theirs}.{of}")
        for ours, theirs in names.items()
        for of in ("weight", "bias")
    )


def norm_rules(names: Mapping[str, str], *, prefix: str = "") -> tuple[Rule, ...]:
    """Scales and biases of layer norms, by our `names` theirs behind `prefix`."""
    return tuple(
        Rule(f"{ours}.{of}", f"{prefix}{theirs}.{name}")
        for ours, theirs in names.items()
        for of, name in (("scale", "weight"), ("bias", "bias"))
    )


def bert_weights(prefix: str) -> tuple[Rule | Ignore, ...]:
    """The weight table of a checkpoint whose names begin with `prefix`, or not."""
    before = f"[{prefix}.]"
    return (
        Rule("embed.table", f"{before}embeddings.word_embeddings.weight"),
        Rule("positions.table", f"{before}embeddings.position_embeddings.weight"),
        Rule("kinds.table", f"{before}embeddings.token_type_embeddings.weight"),
        *matrix_rules(PARTS, f"{before}{LAYER}"),
        *norm_rules(NORMS, prefix=before),
        Ignore(f"{before}embeddings.position_ids", "numbers from 0 on"),
        *(Ignore(f"{before}pooler.dense.{of}", "for next sentences and classes") for of in ("weight", "bias")),
    )
