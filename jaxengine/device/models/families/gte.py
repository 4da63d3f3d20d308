"""GTE's second generation as transformers has it: BERT with rotary positions and a gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jaxengine.device.layers.pooler import ProjectionShape
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.interface import Purpose
from jaxengine.device.models.shared.encoder import classifier_behind
from jaxengine.device.models.shared.rotary_encoder import (
    NAMES,
    RotaryEncoder,
    RotaryEncoderConfig,
    read_activation,
    read_rotary_encoder,
)
from jaxengine.device.weights.rules import Ignore, Rule, part

LAYER = "[new.]encoder.layer.*"
PARTS = {"attention.o": "attention.o_proj", "mlp.down": "mlp.down_proj"}
NORMS = {
    "embed_norm": "[new.]embeddings.LayerNorm",
    "layers.*.attention_norm": f"{LAYER}.attn_ln",
    "layers.*.mlp_norm": f"{LAYER}.mlp_ln",
}
"""By our names, theirs."""


class GteModel(RotaryEncoder):
    """In the files of its makers `NewModel`, of which those with `rope_scaling` are refused: their stretch is not built."""

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]] = (
        Rule("embed.table", "[new.]embeddings.word_embeddings.weight"),
        Rule("kinds.table", "[new.]embeddings.token_type_embeddings.weight"),
        *(
            Rule(f"layers.*.attention.{name}.{of}", f"{LAYER}.attention.qkv_proj.{of}", part(at, 3))
            for at, name in enumerate("qkv")
            for of in ("weight", "bias")
        ),
        *(
            Rule(f"layers.*.{ours}.{of}", f"{LAYER}.{theirs}.{of}")
            for ours, theirs in PARTS.items()
            for of in ("weight", "bias")
        ),
        Rule("layers.*.mlp.up.weight", f"{LAYER}.mlp.up_gate_proj.weight", part(0, 2)),
        Rule("layers.*.mlp.gate.weight", f"{LAYER}.mlp.up_gate_proj.weight", part(1, 2)),
        *(
            Rule(f"{ours}.{of}", f"{theirs}.{name}")
            for ours, theirs in NORMS.items()
            for of, name in (("scale", "weight"), ("bias", "bias"))
        ),
        *(Ignore(f"[new.]pooler.dense.{of}", "for classes of rows") for of in ("weight", "bias")),
        Ignore("lm_head.**", "for masked words"),
    )
    IGNORED: ClassVar[Mapping[str, Ignored]] = {
        **dict.fromkeys(
            (
                *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "auto_map"),
                *("unpad_inputs", "use_memory_efficient_attention", "tie_word_embeddings", "logn_attention_clip1"),
            ),
            Ignored("only used in training, or says how it is computed and not what"),
        ),
        "layer_norm_type": Ignored("the kind of its norms", allowed=("layer_norm",)),
        "logn_attention_scale": Ignored("scores that grow with the length", allowed=(False,)),
        "pack_qkv": Ignored("how projections are stored", allowed=(True,)),
        "position_embedding_type": Ignored("how positions enter", allowed=("rope",)),
    }

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        activation = read_activation(reader, "hidden_act", "gelu")
        fields = read_rotary_encoder(reader, NAMES, theta=160000.0, activation=activation, epsilon_key="layer_norm_eps")
        return RotaryEncoderConfig(**fields, biases=True)

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """A tanh between, of rows; one matrix of tokens."""
        shapes = classifier_behind(
            config, num_labels, inner="[new.]pooler.dense", activation="tanh", outer="classifier"
        )
        return (shapes if purpose is Purpose.CLASSIFY else shapes[1:]), 1
